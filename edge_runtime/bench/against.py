"""The engine against its peers: plain decode and verification, interleaved, at stated quality. Knows no table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .process import OURS, PROGRAMS, Order, PeerProcess, order_for_ours
from .stats import Ratio, paired_ratio


@dataclass(frozen=True, slots=True)
class PeerSource:
    """What a peer is (llama.cpp, transformers, ours) and the file or directory that it loads."""

    kind: str
    path: Path
    program: str = ""
    """In ``peers``; of ours, none is named."""
    python: Path | None = None
    """That it runs under; ``None``: this one."""

    def order(self, threads: int, context: int) -> Order:
        if self.kind == OURS:
            return order_for_ours("ours", self.path, threads, context)
        return Order("serve", str(PROGRAMS / self.program), str(self.path.resolve()), threads, context)


@dataclass(frozen=True, slots=True)
class PeerFigures:
    kind: str
    load_s: float
    nll: float
    decode_ms: float
    """Median milliseconds a greedy token."""
    verify_ms: dict[int, float]
    """Median milliseconds of a forward, by its rows."""
    peak_bytes: int
    decode_speedup: Ratio | None
    """Of ours over this peer; ``None`` for ours."""
    verify_speedup: dict[int, Ratio]


@dataclass(frozen=True, slots=True)
class Plan:
    rounds: int = 12
    decode_tokens: int = 16
    verify_rows: tuple[int, ...] = (2, 4, 8)
    verify_repeats: int = 3
    threads: int = 2
    context: int = 1024


def compare_peers(
    sources: Sequence[PeerSource],
    prompts: Sequence[Sequence[int]],
    sample: Sequence[int],
    plan: Plan,
    progress: Callable[[str, int, int], None],
) -> tuple[PeerFigures, ...]:
    """Each round runs every peer on the same prompt, in rotating order; ratios are taken within rounds."""
    with ExitStack() as stack:
        peers = {}
        for i, source in enumerate(sources):
            progress(f"load {source.kind}", i, len(sources))
            process = PeerProcess(source.kind, source.order(plan.threads, plan.context), source.python)
            peers[source.kind] = stack.enter_context(process)
        samples = _rounds(peers, prompts, plan, progress)
        # After the speed: whole-row logits of a text would otherwise count in the peak.
        peaks = {kind: int(peer.ask("memory")) for kind, peer in peers.items()}
        nll = {}
        for i, (kind, peer) in enumerate(peers.items()):
            progress("quality", i, len(peers))
            nll[kind] = peer.number("nll", ids=list(sample))
        return tuple(_figures(peer, samples, nll[kind], peaks[kind], plan) for kind, peer in peers.items())


Samples = dict[str, dict[int, list[float]]]
"""Seconds by peer and rows, one a round; rows 1 is decoding."""


def _rounds(
    peers: dict[str, PeerProcess],
    prompts: Sequence[Sequence[int]],
    plan: Plan,
    progress: Callable[[str, int, int], None],
) -> Samples:
    samples: Samples = {kind: {rows: [] for rows in (1, *plan.verify_rows)} for kind in peers}
    order = list(peers)
    for number in range(-1, plan.rounds):
        progress("rounds", number, plan.rounds)
        prompt = list(prompts[number % len(prompts)])
        for kind in order[number % len(order) :] + order[: number % len(order)]:
            peer = peers[kind]
            peer.ask("prefill", ids=prompt)
            found = {1: float(np.median(peer.ask("decode", count=plan.decode_tokens)))}
            for rows in plan.verify_rows:
                repeats = [float(peer.ask("verify", rows=rows)) for _ in range(plan.verify_repeats)]
                found[rows] = float(np.median(repeats))
            if number >= 0:  # the first round warms up
                for rows, seconds in found.items():
                    samples[kind][rows].append(seconds)
    progress("rounds", plan.rounds, plan.rounds)
    return samples


def _figures(peer: PeerProcess, samples: Samples, nll: float, peak: int, plan: Plan) -> PeerFigures:
    mine, ours = samples[peer.name], samples[OURS]
    other = peer.name != OURS
    return PeerFigures(
        kind=peer.name,
        load_s=float(peer.greeting["load_s"]),
        nll=nll,
        decode_ms=1e3 * float(np.median(mine[1])),
        verify_ms={rows: 1e3 * float(np.median(mine[rows])) for rows in plan.verify_rows},
        peak_bytes=peak,
        decode_speedup=paired_ratio(mine[1], ours[1]) if other else None,
        verify_speedup={rows: paired_ratio(mine[rows], ours[rows]) for rows in plan.verify_rows} if other else {},
    )
