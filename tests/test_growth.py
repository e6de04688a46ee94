"""``edge-runtime bench --view growth``: steps, replayed acceptance, figures, and all of it at once."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny_bundle as tiny
from click.testing import CliRunner, Result
from compare_runs import fake_bundle
from test_bench_page import Outline

from edge_runtime.bench import stats
from edge_runtime.bench.growth.context import ContextPlan, measure_context
from edge_runtime.bench.growth.figures import coins, host_figures, over_one, replay, step_figures
from edge_runtime.bench.growth.html import page
from edge_runtime.bench.growth.models import ModelPlan, measure_model, rounds_within
from edge_runtime.bench.growth.plots import plots
from edge_runtime.bench.growth.record import (
    Contexts,
    Facts,
    ModelRun,
    Prefill,
    Report,
    Sessions,
    Settings,
    Shared,
    Step,
    Way,
    read_report,
)
from edge_runtime.bench.growth.stepping import Kind, Stepper, drafter_named, room_for, text_of
from edge_runtime.bench.protocol.svg import Lines
from edge_runtime.bench.records import write_record
from edge_runtime.bench.stats import middle
from edge_runtime.cli import bench_growth, main
from edge_runtime.errors import ConfigError
from edge_runtime.resident import Resident
from edge_runtime.testing import FakeModel

KS = (1, 3)
KINDS = (Kind(0), Kind(1), Kind(3))
FACTS = Facts("made up", "0" * 64, "int4", 2, 1, 1, "draft")


@pytest.fixture(autouse=True)
def _few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stats, "_RESAMPLES", 40)


def stepper(draft: FakeModel | None, **engine: Any) -> tuple[Stepper, Any, Any]:
    bundle = fake_bundle(draft, **engine)
    made = Stepper(bundle, drafter_named(bundle, "auto"), KS, text_of(bundle, 200))
    return made, bundle.target, bundle.drafting.get("draft")


# Steps


def test_a_round_begins_behind_its_context_and_turns_round() -> None:
    made, target, draft = stepper(FakeModel())
    made.feed(0, 40)
    for number in (0, 1):
        steps = made.round(40, KINDS, number)
        assert [step.k for step in steps] == ([0, 1, 3] if number == 0 else [3, 1, 0])
        # The model drafts for itself: all of it is kept.
        assert [(step.drafted, step.accepted, step.rows) for step in steps] == [(s.k, s.k, s.k + 1) for s in steps]
        assert {step.context for step in steps} == {40} and {step.round for step in steps} == {number}
    begun = [call.first for call in target.calls if call.kind == "forward" and call.first >= 40]
    assert begun.count(40) == 2
    fed = [call.rows for call in draft.calls if call.kind == "forward"]
    assert sum(rows > 2 for rows in fed) == 1, "the drafter was fed the context once, and rolled back for the second"


def test_what_a_round_wrote_over_is_mended() -> None:
    plan = ContextPlan((16, 48), KS, 2)
    bundle = fake_bundle(FakeModel())
    bundle.manifest.model = lambda role: dataclasses.make_dataclass("M", ["kv_bytes_per_token"])(10)
    prefills, steps, held = measure_context(bundle, "auto", plan)
    target: Any = bundle.target
    assert target.cache[0, :48].tolist() == text_of(bundle, 48).tolist()
    assert [(one.context, one.round) for one in prefills] == [(16, 0), (48, 0), (16, 1), (48, 1)]
    assert all(one.seconds > 0 for one in prefills)
    assert [(one.context, one.cache_bytes) for one in held] == [(16, 320), (48, 960)]
    assert len(steps) == 2 * 2 * len(plan.kinds)


def test_without_a_drafter_drafts_are_free() -> None:
    made, _, _ = stepper(None)
    made.feed(0, 9)
    steps = made.round(9, KINDS, 0)
    assert [(step.drafted, step.rows) for step in steps] == [(0, 1), (1, 2), (3, 4)]


def test_which_drafter_can_be_timed() -> None:
    assert drafter_named(fake_bundle(FakeModel()), "auto") == "draft"
    assert drafter_named(fake_bundle(), "auto") == "none"
    with pytest.raises(ConfigError, match=r"drafter lookup: .* with draft, none$"):
        drafter_named(fake_bundle(FakeModel()), "lookup")


# Replayed acceptance


@pytest.mark.parametrize("agreement", [1.0, -1.0], ids=["agrees", "never agrees"])
def test_what_is_kept_is_the_coins_word_and_the_draft_is_paid_for(agreement: float) -> None:
    made, _, draft = stepper(FakeModel(agreement=agreement), capacity=64)
    made.feed(0, 8)
    made.round(8, [Kind(3, 1.0)], 0)
    for rate, kept in ((0.0, 0), (1.0, 3)):
        before = len(draft.calls)
        (step,) = made.round(8, [Kind(3, rate)], 0)
        assert (step.drafted, step.accepted) == (3, kept)
        assert len(draft.calls) - before >= 6, "two steps of three drafts, each a forward"


def test_the_coin_of_a_place_is_the_same_for_every_k_and_falls_as_it_should() -> None:
    made, _, _ = stepper(FakeModel(agreement=-1.0))
    made.feed(0, 190)
    firsts: dict[int, list[int]] = {}
    for k in KS:
        found = [made.round(context, [Kind(k, 0.7)], 0)[0].accepted for context in range(20, 180, 4)]
        firsts[k] = [min(accepted, 1) for accepted in found]
    assert 0.5 < sum(firsts[1]) / 40 < 0.9
    # Steps begin at the same places where the uncounted one before them kept as much.
    assert firsts[1] == firsts[3]


# Figures


def step(k: int, total: float = 1.0, round: int = 0, acceptance: float | None = None, **more: Any) -> Step:
    given = {"context": 8, "drafted": k, "accepted": 0, "rows": k + 1, "draft_s": 0.25 * k, "head_s": 0.0,
             "loop_s": 0.01, "ran_s": None, **more}  # fmt: skip
    return Step(k=k, acceptance=acceptance, round=round, body_s=total - 0.25 * k - 0.01, **given)


def test_a_step_is_taken_apart() -> None:
    found = step_figures([step(0), step(3, 2.0), step(3, 2.2), step(3, 9.0, drafted=1)], 8, 3)
    assert found is not None and found.verify_s.median == pytest.approx(1.35) and found.draft_s == pytest.approx(0.25)
    assert step_figures([step(0)], 8, 3) is None
    host = host_figures([step(0, ran_s=0.95), step(0, ran_s=0.9)], 0)
    assert host is not None and host.share is not None and host.around_s is not None
    assert host.share.median == pytest.approx(0.075) and host.around_s == pytest.approx(0.065)
    silent = host_figures([step(0)], 0)
    assert silent is not None and silent.share is None and silent.loop_s == 0.01


def test_speed_up_is_of_measured_seconds_and_of_tokens_by_the_rate() -> None:
    steps = [step(0, 1.0), step(1, 1.5, acceptance=0.5), step(0, 2.0, 1), step(1, 3.0, 1, 0.5, accepted=1)]
    run = ModelRun(FACTS, 8, 1.0, 1.0, Resident(1, 1, 1), tuple(steps))
    found = replay(run, 1, 0.5)
    # One and a half tokens in one and a half times the time, in either round.
    assert found is not None and found.speedup.median == pytest.approx(1.0) and found.speedup.pairs == 2
    assert replay(run, 1, 0.9) is None
    assert coins(run) == (1.5, 1.5)


def test_sessions_are_held_against_one_in_the_same_round() -> None:
    def run(sessions: int, round: int, tokens: int, way: Way = "plain") -> Shared:
        return Shared(sessions, way, round, 0.1, 1.0, tokens, 0.1, 0.0, Resident(1, 1, 1))

    runs = (run(1, 0, 10), run(2, 0, 8), run(1, 1, 20), run(2, 1, 16), run(2, 0, 99, "drafted"))
    found = over_one(Sessions(1, 1, 1, runs), 2, "plain")
    assert found is not None and found.median == pytest.approx(0.8)
    assert over_one(Sessions(1, 1, 1, runs), 2, "drafted") is None
    assert over_one(Sessions(1, 1, 1, runs), 1, "plain") is None


def test_a_median_has_an_interval() -> None:
    found = middle([1.0, 2.0, 9.0]).times(2.0)
    assert (found.median, found.count) == (4.0, 3) and 2.0 <= found.low <= 4.0 <= found.high <= 18.0
    with pytest.raises(ValueError, match="no median"):
        middle([])


def test_a_slow_model_has_few_rounds() -> None:
    assert [rounds_within(12, seconds) for seconds in (0.0, 1.0, 30.0, 500.0)] == [12, 12, 4, 3]
    assert rounds_within(2, 500.0) == 2


def test_a_model_is_stepped_with_every_length_and_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = fake_bundle(FakeModel())
    plan = ModelPlan(16, KS, (0.5, 0.9), 2)
    told: list[tuple[int, int]] = []
    run = measure_model(bundle, FACTS, plan, progress=lambda what, done, total: told.append((done, total)))
    counts = {(s.k, s.acceptance): 0 for s in run.steps}
    for one in run.steps:
        counts[one.k, one.acceptance] += 1
    assert counts == {(0, None): 4, (1, 0.5): 2, (3, 0.5): 2, (1, 0.9): 2, (3, 0.9): 2}
    assert told == [(0, 1), (1, 3), (2, 3)] and run.prefill_s > 0


def test_what_a_round_adds_has_room() -> None:
    assert room_for((1, 3), 4) == 17
    plan = ModelPlan(40, KS, (1.0,), 2)
    bundle = fake_bundle(FakeModel(), capacity=40 + plan.room)
    run = measure_model(bundle, FACTS, plan)
    assert all(one.drafted == one.k for one in run.steps)


# The file


def _report(*steps: Step, **changes: Any) -> Report:
    settings = Settings({}, "0", (8,), KS, (1, 2), (0.5,), 2, "full", "auto", 1)
    runs = tuple(Shared(count, "plain", 0, 0.1, 1.0, 9, 0.1, 0.0, Resident(1, 1, 1)) for count in (1, 2))
    model = ModelRun(FACTS, 8, 1.0, 1.0, Resident(1, 1, 1), steps)
    given = {"sessions": Sessions(1, 1, 1, runs), "models": (model,), **changes}
    return Report(1, "0", settings, "now", "bench", FACTS, **given)


PAIR = (step(0), step(1, 1.5, acceptance=0.5))


def test_a_step_of_a_round_without_a_plain_one_is_beside_nothing(tmp_path: Path) -> None:
    write_record(tmp_path / "g.json", _report(*PAIR, step(1, 9.0, round=1, acceptance=0.5)))
    report = read_report(tmp_path / "g.json")
    assert "made up" in page(report)
    (run,) = report.models
    found = replay(run, 1, 0.5)
    assert found is not None and found.speedup.pairs == 1
    assert replay(ModelRun(FACTS, 8, 1.0, 1.0, Resident(1, 1, 1), PAIR[1:]), 1, 0.5) is None


def test_a_line_with_a_gap_is_not_drawn_over_it() -> None:
    """A drafter that gave fewer tokens behind one of the contexts: what came behind the next is not its value."""
    steps = (step(0), step(0, context=16), step(1, context=16), step(3), step(3, context=16))
    known = Contexts((Prefill(16, 0, 1.0),), steps, ())
    drawn = {plot.title: plot for plot in plots(_report(context=known)) if isinstance(plot, Lines)}
    assert [name for name, _ in drawn["Milliseconds of a step"].series] == ["plain", "K=3"]
    assert set(drawn) == {"Milliseconds of a step", "Milliseconds of a drafted token"}
    assert not [plot for plot in plots(_report(context=Contexts((), (), ()))) if isinstance(plot, Lines)]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (_report(*PAIR, step(1, round=7, acceptance=0.5)), "round 7 is none of its 2"),
        (_report(*PAIR, step(1, round=-1, acceptance=0.5)), "round: expected int >= 0"),
        (_report(*PAIR, dataclasses.replace(PAIR[1], k=10**9)), r"models\[0\].steps\[2\].k: expected int <= 1023"),
        (_report(*PAIR, step(1, acceptance=1.5)), "acceptance: expected float <= 1.0"),
        (_report(dataclasses.replace(PAIR[0], body_s=0.0)), "body_s: expected float >= "),
        (_report(*PAIR, sessions=Sessions(1, 1, 1, ())), "sessions.runs: expected array of length >= 1"),
    ],
)  # fmt: skip
def test_a_record_that_could_not_have_been_measured(tmp_path: Path, changed: Report, words: str) -> None:
    write_record(tmp_path / "g.json", changed)
    with pytest.raises(ConfigError, match=words):
        read_report(tmp_path / "g.json")


# The whole of it


def growth(*options: str) -> Result:
    given = ("bench", "--view", "growth", "--bundle", str(tiny.bundle()), "--threads", "1", "--quick", *options)
    return CliRunner().invoke(main, given)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_growth, "_QUICK_CONTEXTS", (64, 128, 8192))


@pytest.mark.usefixtures("small")
def test_it_shows_writes_and_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, html = tmp_path / "g.json", tmp_path / "g.html"
    real: Callable[..., Any] = bench_growth.measure_sessions

    def stop(*given: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(bench_growth, "measure_sessions", stop)
    stopped = growth("--json", str(path))
    assert stopped.exit_code == 130, stopped.output
    assert "8192 and 21 tokens of steps do not fit the 4096 of bundle" in " ".join(stopped.stderr.split())
    before = read_report(path)
    assert before.context is not None and before.sessions is None and not before.complete
    monkeypatch.setattr(bench_growth, "measure_sessions", real)
    other = tiny.bundle_without_draft()
    done = growth("--resume", str(path), "--html", str(html), "--model", str(other))
    assert done.exit_code == 0, done.output
    after = read_report(path)
    assert after.context == before.context and after.sessions is not None and after.complete
    assert [run.facts.drafter for run in after.models] == ["draft", "none"]
    runs = after.sessions.runs
    assert {(run.sessions, run.way) for run in runs} == {(n, way) for n in (1, 2) for way in ("plain", "drafted")}
    assert all(run.window_tokens >= 7 and run.ttft_s > 0 for run in runs)
    assert all(step.ran_s is not None and 0 < step.ran_s < step.total_s for step in after.context.steps)
    for words in ("Context", "Sessions that take turns", "Models", "Replayed at a set acceptance, not text",
                  "What of a step is our own code"):  # fmt: skip
        assert words in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 140
    assert done.stdout.count("[") == done.stdout.count("]") and "peak MB" in done.stdout, "columns that are cut"
    outline = Outline(html.read_text(encoding="utf-8"))
    assert (outline.wrong, outline.open) == ([], []) and len(outline.all("svg")) == 10
    assert "nan" not in "".join(outline.text_of("text")) and any("not text" in one for one in outline.text_of("h3"))
    again = growth("--resume", str(path), "--model", str(other))
    assert again.exit_code == 0 and again.stdout == done.stdout
    refused = growth("--resume", str(path), "--rounds", "3")
    assert refused.exit_code == 2 and "cannot be resumed: rounds was 2 and is now 3" in refused.stderr


@pytest.mark.usefixtures("small")
def test_what_does_not_fit_is_said_before_anything_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    found = growth("--contexts", "4090")
    assert found.exit_code == 2 and "export it with --max-context 4111" in " ".join(found.stderr.split())
    missing = growth("--model", "no/such")
    assert missing.exit_code == 2 and missing.stderr.count("\n") == 1
    monkeypatch.setattr(bench_growth, "_QUICK_ACCEPTANCES", (0.5,) * 600)
    large = growth()
    assert large.exit_code == 2 and "models: 64 and 4805 tokens of steps do not fit the 4096" in large.stderr
