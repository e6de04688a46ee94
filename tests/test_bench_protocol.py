"""The protocol of ``edge-runtime bench``: order, what is decoded on fake engines, and figures."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from pathlib import Path
from typing import Any

import protocol_runs as runs
import pytest
from compare_runs import fake_bundle

from edge_runtime.bench import bandwidth, stats
from edge_runtime.bench.bandwidth import Speed, best, device_speeds, measure_speeds
from edge_runtime.bench.machine import machine
from edge_runtime.bench.methods import DEFAULT, PLAIN, Method
from edge_runtime.bench.prompts import Domain, DomainPrompt
from edge_runtime.bench.protocol.figures import (
    DEFAULT_LABEL,
    PLAIN_LABEL,
    chosen,
    factors,
    figures,
    reading,
    spread,
    token_speedup,
    whole_speedup,
)
from edge_runtime.bench.protocol.plan import (
    Cell,
    Plan,
    fixed_lengths,
    lengths_named,
    prompt_of,
    refuse_other_model,
    rows_for,
)
from edge_runtime.bench.protocol.record import Answer, Report, done, read_report
from edge_runtime.bench.protocol.run import Bench
from edge_runtime.bench.protocol.sheets import Sheet, by_position, lengths, sheets, shown
from edge_runtime.bench.records import as_json, write_record
from edge_runtime.bench.texts import Law
from edge_runtime.doctor.outcome import Copy
from edge_runtime.doctor.probes.telling import Absent
from edge_runtime.errors import ConfigError, InputError
from edge_runtime.sampling import SamplingParams
from edge_runtime.telemetry.meter import Meter
from edge_runtime.testing import FakeModel

GREEDY = Law("greedy", SamplingParams(temperature=0.0))
SAMPLED = Law("sampled", SamplingParams(temperature=1.0))
DOMAINS = tuple(
    Domain(name, "open", "made up", tuple(DomainPrompt(f"{name}{i}", f"{name} text {i}") for i in range(2)))
    for name in ("law", "poetry")
)
FIXED = (Method("draft", "4"), Method("draft", "20"), Method("draft", "100"))
TOKENS = 24


# The plan


def plan(**changes: Any) -> Plan:
    given: dict[str, Any] = {"rounds": 3, "tokens": TOKENS, "lengths": FIXED, **changes}
    return Plan((GREEDY, SAMPLED), DOMAINS, **given)


def test_rounds_visit_every_domain_before_the_next_begins() -> None:
    assert [(number, domain.domain) for number, domain in plan().episodes()] == [
        (number, name) for number in range(3) for name in ("law", "poetry")
    ]
    assert [prompt_of(DOMAINS[0], number) for number in range(3)] == [0, 1, 0]


def test_the_order_within_a_group_turns_round() -> None:
    first, second = (plan(two=True).groups(number)[0].cells for number in (0, 1))
    assert first == second[::-1] and len(set(first)) == 4
    assert {cell.method for cell in first} == {PLAIN, DEFAULT}


def test_each_length_has_a_plain_text_beside_it() -> None:
    groups = [group for group in plan().groups(0) if group.part == "lengths"]
    assert [group.number for group in groups] == [0, 1]
    assert all(group.cells.count(Cell("main", PLAIN)) == 1 for group in groups)
    assert {cell.method for group in groups for cell in group.cells} == {PLAIN, *FIXED}
    assert [group.part for group in plan().groups(1)] == ["rounds"], "the lengths have rounds of their own"


@pytest.mark.parametrize(("text", "found"), [("4,20", (4, 20)), (" 100, 20 ,20", (20, 100)), ("", ())])
def test_lengths_are_numbers(text: str, found: tuple[int, ...]) -> None:
    assert lengths_named(text) == found


@pytest.mark.parametrize("text", ["0", "256", "a", "4,,5", "-1", "1.5", "²"])
def test_what_is_no_length(text: str) -> None:
    with pytest.raises(ConfigError, match="lengths: "):
        lengths_named(text)


def test_a_forward_has_room_for_the_longest_draft() -> None:
    assert (rows_for(()), rows_for((4, 20)), rows_for((20, 100))) == (64, 64, 101)


def test_fixed_lengths_are_drafted_by_a_model_where_there_is_one() -> None:
    assert fixed_lengths(fake_bundle(FakeModel()), "auto", (4,)) == (Method("draft", "4"),)
    assert fixed_lengths(fake_bundle(), "auto", (4,)) == (Method("lookup", "4"),)
    assert fixed_lengths(fake_bundle(FakeModel()), "lookup", (4,)) == (Method("lookup", "4"),)


@dataclasses.dataclass
class _Part:
    """Of a manifest, what two precisions share."""

    pieces_sha256: str = "a"
    vocab_size: int = 512
    layers: tuple[int, ...] = (1, 2)
    hidden_size: int = 64


@dataclasses.dataclass
class _Manifest:
    files: tuple[str, ...]
    part: _Part
    name: str = "tiny"
    family: str = "gemma3"

    @property
    def tokenizer(self) -> _Part:
        return self.part

    def model(self, role: str) -> _Part:
        return self.part


@pytest.mark.parametrize(
    ("beside", "words"),
    [
        (_Manifest(("x",), _Part()), "the same bundle"),
        (_Manifest(("y",), _Part(pieces_sha256="b"), "other"), "'other' has another vocabulary than 'tiny'"),
        (_Manifest(("y",), _Part(layers=(1, 2, 3))), r"another model \(gemma3, 3 layers, rows of 64\) than"),
        (_Manifest(("y",), _Part(), family="gemma2"), "another model"),
    ],
)
def test_what_is_no_other_precision_of_the_model_is_refused(beside: Any, words: str) -> None:
    main: Any = _Manifest(("x",), _Part())
    refuse_other_model(main, _Manifest(("y",), _Part()))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=f"beside: .*{words}"):
        refuse_other_model(main, beside)


# Decoding


@pytest.fixture(scope="module")
def found() -> tuple[Answer, ...]:
    """Two rounds of one domain, with a bundle beside and drafts as long as the article's."""
    draft = FakeModel(agreement=0.9)
    main, beside = (fake_bundle(draft, max_rows=128, capacity=400) for _ in range(2))
    small = plan(rounds=2, two=True)
    bench = Bench({"main": main, "beside": beside}, small, Meter())
    bench.check_fits()
    assert set(bench.warm_up()) == set(small.cells)
    return tuple(answer for number in (0, 1) for answer in bench.episode(number, DOMAINS[0]).answers)


def test_every_cell_answers_whole_requests(found: tuple[Answer, ...]) -> None:
    count = Counter((one.part, one.bundle, one.method, one.round) for one in found)
    laws = 2
    for bundle in ("main", "beside"):
        for method in (PLAIN_LABEL, DEFAULT_LABEL):
            assert [count["rounds", bundle, method, number] for number in (0, 1)] == [laws, laws]
    assert count["lengths", "main", PLAIN_LABEL, 0] == 2 * laws
    assert all(count["lengths", "main", method.label, 0] == laws for method in FIXED)
    for one in found:
        assert one.tokens == TOKENS and one.whole_s == pytest.approx(one.ttft_s + one.tpot_s * (TOKENS - 1))
        assert one.ttft_s > 0.0 and one.joules is None and one.nll > 0.0
        assert one.prompt == f"law{one.round}"


def test_the_estimate_counts_what_is_decoded(found: tuple[Answer, ...]) -> None:
    small = plan(rounds=2, two=True)
    episodes = [(number, DOMAINS[0]) for number in (0, 1)]
    assert sum(small.count(cell, episodes) for cell in small.cells) == len(found)


def test_greedy_texts_are_the_same_however_they_are_drafted(found: tuple[Answer, ...]) -> None:
    known = [one.nll for one in found if one.law == "greedy" and one.round == 0]
    assert max(known) - min(known) < 1e-4


def test_drafts_are_as_long_as_the_text_leaves_room_for(found: tuple[Answer, ...]) -> None:
    by_label = {one.method: one for one in found if one.part == "lengths" and one.law == "sampled"}
    assert len(by_label["draft K=4"].tried_by_position) <= 4
    assert by_label["draft K=20"].drafted / by_label["draft K=20"].steps > 4
    assert by_label["draft K=100"].drafted / by_label["draft K=100"].steps <= TOKENS


def test_texts_of_the_first_round_are_kept() -> None:
    bench = Bench({"main": fake_bundle(FakeModel())}, plan(lengths=()), Meter())
    assert {(one.law, one.method) for one in bench.episode(0, DOMAINS[1]).samples} == {
        (law, method) for law in ("greedy", "sampled") for method in (PLAIN_LABEL, DEFAULT_LABEL)
    }
    assert bench.episode(1, DOMAINS[1]).samples == ()


def test_a_prompt_that_does_not_fit_is_told_before_anything_runs() -> None:
    with pytest.raises(InputError, match=r"law: law0 has \d+ tokens, and the context of 31 cannot hold 24 more"):
        Bench({"main": fake_bundle(capacity=31)}, plan(lengths=()), Meter()).check_fits()


def test_memory_has_a_speed() -> None:
    found = measure_speeds(2, 0.002, 1 << 20)
    assert [(one.what, one.threads) for one in found] == [
        ("reading", 1), ("copying", 1), ("reading", 2), ("copying", 2)]  # fmt: skip
    fastest = best(found)
    assert fastest is not None and fastest.gb_s == max(one.gb_s for one in found) > 0.0
    assert best(()) is None and str(runs.report().speeds[1]) == "copying with 2 threads 20.0 GB/s"


def test_so_has_that_of_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    class Arrays:
        def copied(self, size_bytes: int, budget_s: float) -> Copy:
            return Copy("device to device", 1000, 2e-8)

    monkeypatch.setattr(bandwidth, "DeviceArrays", Arrays)
    assert [str(one) for one in device_speeds()] == ["copying on the device 100.0 GB/s"]

    def absent() -> Arrays:
        raise Absent("cuda-python")

    monkeypatch.setattr(bandwidth, "DeviceArrays", absent)
    assert device_speeds() == ()


def test_a_machine_is_told_in_words() -> None:
    found = machine()
    assert "cores" in found["processor"] and found["numpy"] and found == machine()


# Figures


def test_a_spread_has_mean_deviation_and_the_95th_percentile() -> None:
    found = spread([float(value) for value in range(1, 22)])
    assert (found.mean, found.p95, found.count) == (11.0, 20.0, 21) and found.sd == pytest.approx(6.2048, abs=1e-4)
    assert spread([3.0]).sd is None and spread([1.0, 3.0]).times(1e3).mean == 2000.0
    with pytest.raises(ValueError, match="no spread"):
        spread([])


def test_figures_of_made_up_texts() -> None:
    assert figures([]) is None
    one = figures([runs.drafted(0.016, joules=20.2), runs.drafted(0.016, joules=None)])
    assert one is not None
    assert one.whole_s.mean == pytest.approx(1.7) and one.tokens_per_s == pytest.approx(62.5)
    assert one.acceptance_rate == 0.5 and one.acceptance_length == 2.0 and one.drafted_per_step == 2.0
    assert one.by_position == (1.0, 0.0) and one.joules_per_token == pytest.approx(0.2)
    assert (one.draft_ms, one.verify_ms) == (pytest.approx(3.2), pytest.approx(25.6))
    assert one.sources == (("mtp", 0.8),) and one.steps_per_s == pytest.approx(31.25)


def test_speed_ups_are_of_pairs_that_were_decoded_back_to_back() -> None:
    """The machine is three times as slow in the second round: the ratio does not care."""
    plain = [runs.answer(0.02), runs.answer(0.06, round=1, ttft_s=0.3), runs.answer(1.0, domain="poetry")]
    ours = [runs.drafted(0.016), runs.drafted(0.048, round=1, ttft_s=0.3)]
    tokens, whole = token_speedup(plain, ours), whole_speedup(plain, ours)
    assert tokens is not None and (tokens.median, tokens.pairs) == (pytest.approx(1.25), 2)
    assert whole is not None and whole.median == pytest.approx((2.1 / 1.7 + 6.3 / 5.1) / 2)
    assert whole_speedup(plain[2:], ours) is None
    assert shown(whole) == "1.24 [1.24, 1.24]" and shown(None) == "-"
    assert shown(token_speedup(plain[:1], ours)) == "1.25", "a single pair has no interval"


def test_texts_that_loop_are_left_out_with_what_stands_beside_them() -> None:
    report = runs.report(answers=(runs.answer(), runs.drafted(0.01, repeat_rate=0.5), runs.answer(round=1)))
    assert [one.round for one in chosen(report, straight=True)] == [1]
    assert len(chosen(report)) == 3


def test_two_factors_are_taken_apart() -> None:
    found = factors(runs.report(), "greedy")
    assert found is not None
    medians = [one.median for one in (found.precision, found.speculation, found.both, found.speculation_here)]
    # The prompt's 0.1 s are the same in all four cells.
    assert medians == pytest.approx([1.95, 1.24, 2.41, 1.24], abs=0.02)
    assert factors(runs.report(two=False), "greedy") is None


def test_bandwidth_is_what_steps_read() -> None:
    report = runs.report()
    plain = figures([runs.answer(0.02)])
    assert plain is not None
    found = reading(report, "main", plain)
    assert found is not None and found.gb_s == pytest.approx(10.0) and found.share == pytest.approx(0.5)
    assert (found.limit.what, found.limit.threads) == ("copying", 2)
    unknown = dataclasses.replace(report, bundles={"main": runs.facts("x", "int8", None)})
    assert reading(unknown, "main", plain) is None
    assert reading(dataclasses.replace(report, speeds=()), "main", plain) is None


def test_lengths_have_the_shape_of_the_article_s_table() -> None:
    found = lengths(runs.report(), "sampled")
    assert [one.label for one in found] == [*runs.LENGTHS, "adaptive"]
    assert [one.found.drafted_per_step for one in found] == [4.0, 20.0, 50.0, 100.0, 2.0]
    ratios = [one.speedup.median for one in found if one.speedup is not None]
    assert ratios == pytest.approx([1 / 0.88, 1 / 1.2, 1 / 1.8, 1 / 2.8, 1.25])
    assert lengths(runs.report(answers=()), "sampled") == []


# Tables


@pytest.fixture(autouse=True)
def _few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stats, "_RESAMPLES", runs.RESAMPLES)


def tables(report: Report) -> dict[str, Sheet]:
    """By the first word of their titles."""
    return {sheet.title.split()[0]: sheet for sheet in sheets(report)}


def test_tables_hold_what_was_measured() -> None:
    found = tables(runs.report())
    assert all(len(row) == len(sheet.columns) for sheet in found.values() for row in sheet.rows)
    whole = found["Whole"]
    assert len(whole.rows) == 2 * 6 * 2
    plain, drafted = whole.rows[-2:]
    assert plain[:3] == ("sampled", "all", "plain") and plain[-1] == ""
    assert drafted[-1].startswith("1.24 [") and drafted[3:8] == ("1.73 ± 0.02", "1.77", "61.2", "100 ± 0", "16.3 ± 0.2")
    two = found["Precision"]
    assert [row[1:3] for row in two.rows[:4]] == [("fp32", "plain"), ("fp32", "drafted"), ("exact", "plain"),
                                                  ("exact", "drafted")]  # fmt: skip
    assert "greedy: precision alone 1.95x, speculation alone 1.24x" in two.caption
    assert found["Bundles"].rows[0] == ("gemma <tiny>", "exact", "2.9877", "430", "200", "500", "560")
    assert by_position(runs.report(), "greedy")["adaptive"] == (1.0, 0.0)


def test_what_nobody_measured_is_said_and_not_made_up() -> None:
    found = tables(runs.report(two=False, speeds=(), peaks=()))
    assert list(found) == ["Whole", "What", "Draft", "Bundles", "Where"]
    costs = found["Where"]
    assert {row[3:5] for row in costs.rows} == {("-", "-")} and {row[-1] for row in costs.rows} == {"-"}
    assert "not measured: no Jetson" in costs.caption and "limit: not measured" in costs.caption
    assert found["Bundles"].rows[0][-2:] == ("not measured", "not measured")
    measured = tables(runs.report(two=False, joules=20.2))["Where"]
    assert measured.rows[0][-1] == "0.200" and "idle power in it (no Jetson)" in measured.caption


def test_precisions_of_one_name_are_told_apart() -> None:
    report = runs.report(bundles={"main": runs.facts("one", "int4"), "beside": runs.facts("two", "int4")})
    assert {row[1] for row in tables(report)["Precision"].rows} == {"int4 (one)", "int4 (two)"}


# The file


def test_a_report_comes_back_as_it_was(tmp_path: Path) -> None:
    write_record(tmp_path / "new" / "run.json", runs.report())
    assert read_report(tmp_path / "new" / "run.json") == runs.report()
    assert len(done(runs.report())) == 2 * 5
    (tmp_path / "odd.json").write_text(as_json(runs.report()).replace('"ttft_s"', '"ttfts"'), encoding="utf-8")
    with pytest.raises(ConfigError, match="ttft"):
        read_report(tmp_path / "odd.json")
    whole = as_json(runs.report())
    for figure in ("NaN", "Infinity", "-Infinity", "1e999"):
        (tmp_path / "odd.json").write_text(re.sub(r'"tpot_s":[0-9.e-]+', f'"tpot_s":{figure}', whole, count=1))
        with pytest.raises(ConfigError, match=re.escape(f"{figure} is no figure")):
            read_report(tmp_path / "odd.json")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"answers": (runs.answer(domain="lwa"),)}, "domain 'lwa' is none of its settings"),
        ({"answers": (runs.answer(law="gready"),)}, "law 'gready' is none of its settings"),
        ({"answers": (runs.answer(round=2),)}, "round 2 is none of its 2"),
        ({"answers": (runs.answer(tokens=1),)}, r"answers\[0\].tokens: expected int >= 2"),
        ({"answers": (runs.answer(tpot_s=0.0),)}, r"answers\[0\].tpot_s: expected float >= "),
        ({"answers": (runs.answer(steps=1 << 60),)}, "1152921504606846976 is no figure"),
        ({"answers": (runs.drafted(0.1, accepted_by_position=(51, 0)),)}, "text 0 has more drafts accepted than tried"),
        ({"answers": (runs.answer(bundle="beside"),)}, "bundle 'beside' is none of its settings"),
        ({"answers": (), "samples": (), "peaks": (), "bundles": {}}, "nothing of its main bundle"),
        ({"speeds": (Speed("reading", 1, 0.0),)}, "reading at 0 GB/s"),
        ({"bundles": {"main": runs.facts("\x1b[2J", "exact")}}, "name holds characters that no text has"),
    ],
)  # fmt: skip
def test_a_record_that_does_not_fit_itself_is_refused(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    write_record(tmp_path / "odd.json", runs.report(two=False, **{"samples": (), **changes}))
    with pytest.raises(ConfigError, match=words) as caught:
        read_report(tmp_path / "odd.json")
    assert "\n" not in str(caught.value)


def test_a_text_that_cannot_be_written_again_is_refused(tmp_path: Path) -> None:
    (tmp_path / "odd.json").write_text(as_json(runs.report()).replace("</pre>", "\\ud800"), encoding="utf-8")
    with pytest.raises(ConfigError, match="text holds characters that no text has"):
        read_report(tmp_path / "odd.json")
