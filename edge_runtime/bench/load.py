"""Many clients of one daemon at once: what they got, how fast, and what it cost. Knows no model and no table.

A request is lost when its answer breaks off, ends without a reason, or is refused. Greedy requests are asked again and
again, so that an answer which another session's cache got into shows as a text that differs from the first.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..client import AsyncClient, EdgeRuntimeError, Status

_SAMPLE_S = 2.0


@dataclass(frozen=True, slots=True)
class LoadPlan:
    clients: int
    seconds: float
    prompts: Sequence[str]
    min_tokens: int = 16
    max_tokens: int = 96
    seed: int = 0


@dataclass(frozen=True, slots=True)
class MemorySample:
    at_s: float
    anonymous_bytes: int
    now_bytes: int


@dataclass(frozen=True, slots=True)
class LoadFigures:
    requests: int
    lost: int
    problems: tuple[str, ...]
    """The first few of the lost ones."""
    repeated: int
    """Greedy requests that had been asked before."""
    differing: int
    """Of those, answers with another text: near-ties, but for a deterministic daemon 0."""
    tokens: int
    seconds: float
    ttft_s: tuple[float, ...]
    """Rising, of all answers."""
    tpot_s: tuple[float, ...]
    memory: tuple[MemorySample, ...]
    status: Status
    """At the end."""

    def memory_growth(self) -> float | None:
        """Share by which the mean of the last quarter is above that of the second (the first is warm-up)."""
        count = len(self.memory) // 4
        if count < 1:
            return None
        before = [sample.anonymous_bytes for sample in self.memory[count : 2 * count]]
        after = [sample.anonymous_bytes for sample in self.memory[-count:]]
        return sum(after) / len(after) / (sum(before) / len(before)) - 1.0


@dataclass(slots=True)
class _Tally:
    requests: int = 0
    lost: int = 0
    tokens: int = 0
    repeated: int = 0
    differing: int = 0
    problems: list[str] = field(default_factory=list)
    ttft_s: list[float] = field(default_factory=list)
    tpot_s: list[float] = field(default_factory=list)
    texts: dict[tuple[str, int], str] = field(default_factory=dict)
    memory: list[MemorySample] = field(default_factory=list)

    def lose(self, why: str) -> None:
        self.lost += 1
        if len(self.problems) < 5:
            self.problems.append(why)


def quantile(rising: Sequence[float], share: float) -> float | None:
    return rising[min(int(share * len(rising)), len(rising) - 1)] if rising else None


async def run_load(
    socket: Path | None, plan: LoadPlan, progress: Callable[[float], None] = lambda done: None
) -> LoadFigures:
    """``progress`` is told the share of the time that is over."""
    tally, started = _Tally(), time.monotonic()
    async with AsyncClient(socket) as watcher:
        watching = asyncio.create_task(_watch(watcher, tally, started, plan.seconds, progress))
        await asyncio.gather(*(_client(socket, plan, number, tally, started) for number in range(plan.clients)))
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        status = await watcher.status()
    return LoadFigures(
        requests=tally.requests,
        lost=tally.lost,
        problems=tuple(tally.problems),
        repeated=tally.repeated,
        differing=tally.differing,
        tokens=tally.tokens,
        seconds=time.monotonic() - started,
        ttft_s=tuple(sorted(tally.ttft_s)),
        tpot_s=tuple(sorted(tally.tpot_s)),
        memory=tuple(tally.memory),
        status=status,
    )


async def _watch(
    client: AsyncClient, tally: _Tally, started: float, seconds: float, progress: Callable[[float], None]
) -> None:
    while True:
        memory = (await client.status()).memory
        now = time.monotonic() - started
        tally.memory.append(MemorySample(now, memory.anonymous_bytes, memory.now_bytes))
        progress(min(now / seconds, 1.0))
        await asyncio.sleep(_SAMPLE_S)


async def _client(socket: Path | None, plan: LoadPlan, number: int, tally: _Tally, started: float) -> None:
    draw = random.Random(plan.seed * 1000 + number)
    async with AsyncClient(socket) as client:
        while time.monotonic() - started < plan.seconds:
            prompt = draw.choice(plan.prompts)
            most = draw.choice((plan.min_tokens, (plan.min_tokens + plan.max_tokens) // 2, plan.max_tokens))
            greedy = draw.random() < 0.5
            await _ask(client, prompt, most, draw.randrange(1 << 30) if not greedy else None, tally)


async def _ask(client: AsyncClient, prompt: str, max_tokens: int, seed: int | None, tally: _Tally) -> None:
    tally.requests += 1
    began = time.monotonic()
    first = last = None
    try:
        temperature = 0.0 if seed is None else 1.0
        async with client.stream_complete(
            prompt, max_tokens=max_tokens, temperature=temperature, seed=seed or 0, top_k=64
        ) as chunks:
            async for chunk in chunks:
                last = time.monotonic()
                first = first or (last if chunk.text else None)
            answer = chunks.completion()
    except EdgeRuntimeError as problem:
        tally.lose(str(problem))
        return
    usage = answer.usage
    if answer.finish_reason not in ("stop", "length") or usage is None:
        tally.lose(f"ended as {answer.finish_reason}")
        return
    tally.tokens += usage.completion_tokens
    if first is not None and last is not None:
        tally.ttft_s.append(first - began)
        if usage.completion_tokens > 1:
            tally.tpot_s.append((last - first) / (usage.completion_tokens - 1))
    if seed is None:
        known = tally.texts.get((prompt, max_tokens))
        tally.repeated += known is not None
        tally.differing += known is not None and known != answer.text
        tally.texts.setdefault((prompt, max_tokens), answer.text)


@dataclass(frozen=True, slots=True)
class DisconnectFigures:
    """Clients that left at a random moment."""

    asked: int
    left_before_an_answer: int
    busy_slots: int
    """Some time after the last one left."""
    waiting: int
    cancelled: int


async def run_disconnects(
    socket: Path | None, count: int, prompts: Sequence[str], at_once: int = 8, seed: int = 0
) -> DisconnectFigures:
    draw = random.Random(seed)
    moments = [(draw.choice(prompts), draw.uniform(0.0, 0.6), draw.randrange(1, 12)) for _ in range(count)]
    gate = asyncio.Semaphore(at_once)

    async def leave(client: AsyncClient, prompt: str, after_s: float, after_chunks: int) -> int:
        seen = 0

        async def read() -> None:
            nonlocal seen
            async with client.stream_complete(prompt, max_tokens=500) as chunks:
                async for _ in chunks:
                    seen += 1
                    if seen >= after_chunks:
                        return

        async with gate:
            with contextlib.suppress(asyncio.TimeoutError, EdgeRuntimeError):
                await asyncio.wait_for(read(), after_s)
        return seen

    async with AsyncClient(socket) as client:
        before = (await client.status()).requests.cancelled
        # A crowd's own: a connection whose client gave up before it was made stays open until its pool is closed.
        async with AsyncClient(socket) as crowd:
            seen = await asyncio.gather(*(leave(crowd, *moment) for moment in moments))
        for _ in range(100):
            status = await client.status()
            if not (status.requests.running or status.requests.waiting):
                break
            await asyncio.sleep(0.05)
    busy = sum(slot.busy for slot in status.slots)
    return DisconnectFigures(count, seen.count(0), busy, status.requests.waiting, status.requests.cancelled - before)


@dataclass(frozen=True, slots=True)
class FairnessFigures:
    """A short request that comes while a long one runs."""

    short_s: float
    long_s: float
    """Of the long one, measured from the moment the short one came."""
    alone_s: float
    """The short one with nobody beside it."""


async def run_fairness(socket: Path | None, prompt: str, short: int = 20, long: int = 500) -> FairnessFigures:
    async with AsyncClient(socket) as one, AsyncClient(socket) as other:
        began = time.monotonic()
        await other.complete(prompt, max_tokens=short, temperature=0.0)
        alone_s = time.monotonic() - began
        came = asyncio.Event()
        ended: list[float] = []

        async def run_long() -> None:
            try:
                async with one.stream_complete(f"{prompt} ", max_tokens=long, temperature=1.0, seed=1) as chunks:
                    async for _ in chunks:
                        came.set()
            finally:
                came.set()  # also where it is refused: nobody else would say so
            ended.append(time.monotonic())

        task = asyncio.create_task(run_long())
        await came.wait()
        began = time.monotonic()
        await other.complete(prompt, max_tokens=short, temperature=0.0)
        short_s = time.monotonic() - began
        await task
    return FairnessFigures(short_s, ended[0] - began, alone_s)
