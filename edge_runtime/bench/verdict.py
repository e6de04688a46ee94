"""What the project claims, held against what was measured. Pure; a claim that is missed is said, never hidden."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .against import PeerFigures
from .process import OURS
from .serving import ServingFigures
from .speculation import PromptFigures

EQUAL_QUALITY_NATS = 0.02
OVERHEAD_BYTES = 250_000_000
NEVER_SLOWER = 0.97
_OVERHEAD_SHARE = 0.03
_SERVED_SHARE = 0.05
_PREFIX_SPEEDUP = 10.0


@dataclass(frozen=True, slots=True)
class Verdict:
    claim: str
    found: str
    met: bool

    def __str__(self) -> str:
        return f"{'met ' if self.met else 'MISSED'} {self.claim}: {self.found}"


def engine_verdicts(peers: Sequence[PeerFigures], bundle_bytes: int) -> Iterator[Verdict]:
    by_kind = {peer.kind: peer for peer in peers}
    ours, llama, reference = by_kind[OURS], by_kind.get("llama.cpp"), by_kind.get("transformers")
    if llama is not None and llama.decode_speedup is not None:
        gap = ours.nll - llama.nll
        yield Verdict("NLL at most 0.02 above llama.cpp's", f"{gap:+.4f}", gap <= EQUAL_QUALITY_NATS)
        found = llama.decode_speedup
        yield Verdict("plain decoding at least as fast as llama.cpp", str(found), found.median >= 1.0)
        rows4 = llama.verify_speedup[4]
        yield Verdict("a forward of 4 rows at least 1.3x faster than llama.cpp's", str(rows4), rows4.median >= 1.3)
    if reference is not None and reference.decode_speedup is not None:
        found = reference.decode_speedup
        yield Verdict("plain decoding 3x transformers bf16", str(found), found.median >= 3.0)
    excess = ours.peak_bytes - bundle_bytes
    yield Verdict(
        "peak resident memory at most the bundle's size + 250 MB",
        f"{ours.peak_bytes / 1e6:.0f} MB, the bundle's {bundle_bytes / 1e6:.0f} MB {excess / 1e6:+.0f} MB",
        excess <= OVERHEAD_BYTES,
    )


def speculation_verdicts(figures: Sequence[PromptFigures]) -> Iterator[Verdict]:
    worst = min(figures, key=lambda figure: figure.speedup.median)
    yield Verdict(
        "speculative never slower than plain by more than 3%",
        f"worst {worst.speedup} ({worst.prompt}, {worst.law}){_looked_again(figures)}",
        worst.speedup.median >= NEVER_SLOWER,
    )
    shares = sorted(figure.overhead for figure in figures)
    middle = shares[len(shares) // 2]
    yield Verdict("loop outside the engines at most 3% of a step", f"median {middle:.1%}", middle <= _OVERHEAD_SHARE)


def _looked_again(figures: Sequence[PromptFigures]) -> str:
    again = [f"{figure.prompt} {figure.law} {figure.first_look} at first" for figure in figures if figure.first_look]
    return f"; measured again: {', '.join(again)}" if again else ""


def serving_verdicts(figures: ServingFigures) -> Iterator[Verdict]:
    added = 1.0 / figures.per_token.median - 1.0
    yield Verdict(
        "a token through the daemon costs at most 5% more",
        f"{added:+.1%} ({figures.direct_tpot_ms:.2f} ms direct, {figures.served_tpot_ms:.2f} ms served, "
        f"ratio {figures.per_token})",
        added <= _SERVED_SHARE,
    )
    yield Verdict(
        f"a known prefix of {figures.prefix_tokens} tokens makes the first token come 10x sooner",
        f"{figures.first_token} ({figures.cold_ttft_ms:.0f} ms cold, {figures.warm_ttft_ms:.0f} ms warm)",
        figures.first_token.median >= _PREFIX_SPEEDUP,
    )
