"""A run of the bench's protocol as it might have come out. Knows no test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from edge_runtime.bench.bandwidth import Speed
from edge_runtime.bench.protocol.figures import DEFAULT_LABEL, PLAIN_LABEL
from edge_runtime.bench.protocol.plan import ARTICLE_DOMAINS, Part, Which
from edge_runtime.bench.protocol.record import SCHEMA, Answer, BundleFacts, Peak, Report, Sample, Settings
from edge_runtime.resident import Resident

LAWS = {"greedy": "greedy", "sampled": "temperature 1.0, top_k 64"}
LENGTHS = ("mtp K=4", "mtp K=20", "mtp K=50", "mtp K=100")
RESAMPLES = 40
"""Of an interval, where a test is about something else: thousands take a second of a whole report."""
EVIL = "</pre><script>document.title = 'taken'</script> & <b>\"bold\"</b> \u2028 " + "x" * 400
"""A text that a model might write."""
TOKENS = 101


def answer(tpot_s: float = 0.02, **changes: Any) -> Answer:
    """Of a prompt that takes 0.1 s and 100 tokens behind the first."""
    given: dict[str, Any] = {
        "part": "rounds", "domain": "law", "prompt": "lease", "law": "greedy", "round": 0, "group": 0, "bundle": "main",
        "method": PLAIN_LABEL, "prompt_tokens": 30, "tokens": TOKENS, "ttft_s": 0.1, "tpot_s": tpot_s, "steps": 100,
        "draft_s": 0.0, "verify_s": 90.0 * tpot_s, "overhead_s": 10.0 * tpot_s, "committed": 100, "drafted": 0,
        "accepted": 0, "tried_by_position": (), "accepted_by_position": (), "repeat_rate": 0.0, "nll": 2.5,
        "joules": None, "sources": {"": 100}, "reason": "",
    }  # fmt: skip
    given |= changes
    given.setdefault("whole_s", given["ttft_s"] + given["tpot_s"] * (given["tokens"] - 1))
    return Answer(**given)


def drafted(tpot_s: float, k: int = 2, **changes: Any) -> Answer:
    """50 steps of ``k`` drafts each, of which the first is kept in every one."""
    tried = (50, *(50 for _ in range(min(k, 2) - 1)))
    given: dict[str, Any] = {
        "method": DEFAULT_LABEL, "steps": 50, "drafted": 50 * k, "accepted": 50, "tried_by_position": tried,
        "accepted_by_position": (50, 0)[: len(tried)], "draft_s": 10.0 * tpot_s, "verify_s": 80.0 * tpot_s,
        "sources": {"mtp": 40, "": 10},
    }  # fmt: skip
    return answer(tpot_s, **(given | changes))


def answers(
    rounds: int, bundles: tuple[Which, ...], lengths: tuple[str, ...], joules: float | None
) -> Iterator[Answer]:
    """Drafting is 1.25 times as fast a token, the bundle beside half as fast; longer drafts cost more."""
    for number in range(rounds):
        for place, domain in enumerate(ARTICLE_DOMAINS):
            for law in LAWS:
                where: dict[str, Any] = {"domain": domain, "law": law, "round": number, "joules": joules}
                for bundle in bundles:
                    second = 0.02 * (1.0 + 0.01 * place + 0.002 * number) * (2.0 if bundle == "beside" else 1.0)
                    yield answer(second, bundle=bundle, **where)
                    yield drafted(second / 1.25, bundle=bundle, **where)
                part: Part = "lengths"
                for count, label in enumerate(lengths if number == 0 else ()):
                    if count % 2 == 0:
                        yield answer(0.02, part=part, group=count // 2, **where)
                    k = int(label.partition("=")[2])
                    yield drafted(0.02 * (0.8 + k / 50), k, part=part, group=count // 2, method=label, **where)


def facts(name: str, precision: str, read_bytes: int | None = 200_000_000, nll: float = 2.9877) -> BundleFacts:
    return BundleFacts(name, "ab" * 32, precision, 430_000_000, read_bytes, nll, 400, 1.5)


def report(*, two: bool = True, rounds: int = 2, joules: float | None = None, **changes: Any) -> Report:
    bundles: tuple[Which, ...] = ("beside", "main") if two else ("main",)
    settings = Settings(
        machine={"processor": "made up, 2 of 2 cores", "memory": "8.0 GB", "numpy": "2.0"},
        bundles=dict.fromkeys(bundles, "ab" * 32),
        prompts_sha256="cd" * 32,
        domains=ARTICLE_DOMAINS,
        laws=LAWS,
        compared=("main none K=0", "main auto auto"),
        lengths=LENGTHS,
        rounds=rounds,
        length_rounds=1,
        tokens=TOKENS,
        head="screened",
        threads=2,
    )
    known = {"main": facts("gemma <tiny>", "exact"), "beside": facts("gemma-fp32", "fp32", 800_000_000, 2.9868)}
    given: dict[str, Any] = {
        "bundles": {bundle: known[bundle] for bundle in ("main", "beside") if bundle in bundles},
        "speeds": (Speed("reading", 1, 12.0), Speed("copying", 2, 20.0), Speed("reading", 2, 16.0)),
        "peaks": tuple(
            Peak(bundle, drafter, Resident(500_000_000 + 60_000_000 * (drafter == "auto"), 1, 1))
            for bundle in bundles
            for drafter in ("none", "auto")
        ),
        "answers": tuple(answers(rounds, bundles, LENGTHS, joules)),
        "samples": tuple(
            Sample("law", "greedy", bundle, method, EVIL)
            for bundle in bundles
            for method in (PLAIN_LABEL, DEFAULT_LABEL)
        ),
        "complete": True,
    }
    return Report(
        SCHEMA, "0.1.0", settings, "2026-11-30 12:00 UTC", "edge-runtime bench --html 'a b.html'", "no Jetson",
        **(given | changes),
    )  # fmt: skip
