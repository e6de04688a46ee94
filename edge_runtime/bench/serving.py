"""What the daemon adds to a token, and what it saves on a prompt that it knows. Knows no table.

One daemon in a process of its own, and the same bundle in this one: rounds go back and forth between them.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from ..client import Client
from ..loading import LoadedBundle
from ..sampling import SamplingParams
from .corpus import sample_text
from .daemon import running_daemon
from .methods import PLAIN
from .stats import Ratio, paired_ratio
from .texts import Desk, Held, Law, Task

_GREEDY = Law("greedy", SamplingParams(temperature=0.0))
PREFIX_TOKENS = 1000


@dataclass(frozen=True, slots=True)
class ServingFigures:
    per_token: Ratio
    """Seconds per token of ``generate`` over those of a client on the socket, both plain: below 1 is overhead."""
    direct_tpot_ms: float
    served_tpot_ms: float
    first_token: Ratio
    """Seconds to the first token of a new prompt over those of one whose first ``prefix_tokens`` are known."""
    prefix_tokens: int
    cold_ttft_ms: float
    warm_ttft_ms: float


def compare_serving(
    bundle: LoadedBundle,
    prompt: str,
    *,
    rounds: int,
    max_tokens: int,
    progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> ServingFigures:
    desk, task = Desk(bundle, Held()), Task("", "", tuple(bundle.tokenizer.encode(prompt)))
    direct: list[float] = []
    served: list[float] = []
    cold: list[float] = []
    warm: list[float] = []
    with running_daemon(bundle.directory, engine={"drafter": "none"}) as socket, Client(socket) as client:
        for number in range(rounds):
            progress("daemon against generate", number, rounds)
            sides: list[Callable[[], None]] = [
                lambda: direct.append(desk.ask(PLAIN, task, _GREEDY, 0, max_tokens).seconds_per_token),
                lambda: served.append(_served(client, prompt, max_tokens)[1]),
            ]
            for side in sides if number % 2 == 0 else sides[::-1]:
                side()
        for number in range(max(rounds // 2, 2)):
            progress("a prefix that is known", number, rounds)
            prefix = _prefix(bundle, number)
            cold.append(_served(client, prefix + "\n\nIn short,", 2)[0])
            warm.append(_served(client, prefix + "\n\nThe author", 2)[0])
    return ServingFigures(
        per_token=paired_ratio(direct, served),
        direct_tpot_ms=1e3 * statistics.median(direct),
        served_tpot_ms=1e3 * statistics.median(served),
        first_token=paired_ratio(cold, warm),
        prefix_tokens=PREFIX_TOKENS,
        cold_ttft_ms=1e3 * statistics.median(cold),
        warm_ttft_ms=1e3 * statistics.median(warm),
    )


def _served(client: Client, prompt: str, max_tokens: int) -> tuple[float, float]:
    """Seconds to the first chunk with a token, and per later token, as the client sees them."""
    moments: list[float] = []
    began = time.perf_counter()
    with client.stream_complete(prompt, max_tokens=max_tokens, temperature=0.0) as chunks:
        for chunk in chunks:
            if chunk.text or chunk.finish_reason:
                moments.append(time.perf_counter())
        usage = chunks.completion().usage
    assert usage is not None
    return moments[0] - began, (moments[-1] - moments[0]) / max(usage.completion_tokens - 1, 1)


def _prefix(bundle: LoadedBundle, number: int) -> str:
    """A text of ``PREFIX_TOKENS`` tokens that no earlier round shares the beginning of."""
    text = f"Document {number}. " + sample_text()
    ids = bundle.tokenizer.encode(text[:8000])[:PREFIX_TOKENS]
    return b"".join(bundle.tokenizer.piece_bytes(token) for token in ids).decode("utf-8", "ignore")
