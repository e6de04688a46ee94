"""A soak from its first answer to its last: laps of load and happenings, a rest behind each. Knows what is written down
when; nothing of what it means.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from ...client import AsyncClient, EdgeRuntimeError
from ..corpus import sample_text
from .asking import Asking, Conversation, ask, learn
from .happenings import Happenings, NotItself, idle
from .mix import Script, scripts
from .plan import SoakPlan
from .record import Checkpoint, End, Look, Manner, Probe, Record, share_had
from .stage import Stage

_LOOK_S = 0.25
_MANNERS: tuple[Manner, ...] = ("streamed", "streamed", "streamed", "whole", "whole", "slow", "left")
_REFUSED_S = 1.0
"""Before a client that was refused asks again."""
_SHORT = ("json", "tools")

Told = Callable[[str, float], None]
"""What is done now, and the share of the time that is over."""


@dataclass(frozen=True, slots=True)
class _Soak:
    stage: Stage
    plan: SoakPlan
    record: Record
    asking: Asking
    known: tuple[Script, ...]


async def soak(stage: Stage, plan: SoakPlan, record: Record, told: Told) -> None:
    """Until its time is over or the daemon ends; whatever ends it, the record has what came before."""
    began_s = time.monotonic()

    def clock() -> float:
        return time.monotonic() - began_s

    known = scripts(plan.sizes)
    this = _Soak(stage, plan, record, Asking({}, plan.patience_s, clock), known)
    why = "stopped"
    try:
        async with AsyncClient(stage.socket, patience_s=0.0) as client:
            watching = asyncio.create_task(_watch(this))
            running = asyncio.create_task(_laps(this, client, told))
            await asyncio.wait({watching, running}, return_when=asyncio.FIRST_COMPLETED)
            for task in (watching, running):
                task.cancel()
            found = await asyncio.gather(watching, running, return_exceptions=True)
            problems = [one for one in found if isinstance(one, Exception)]
            why = f"{type(problems[0]).__name__}: {problems[0]}" if problems else "complete"
    finally:
        if stage.ended is not None:
            why = f"the daemon ended with {stage.ended}"
        record.add(End(clock(), why))


async def _laps(this: _Soak, client: AsyncClient, told: Told) -> None:
    plan = this.plan
    right: dict[tuple[str, int], str] = {}
    for place, script in enumerate(this.known):
        told(f"learns the right texts, {place + 1} of {len(this.known)}", 0.0)
        right |= await learn(client, script)
    this = replace(this, asking=replace(this.asking, right=right))
    short = [script for script in this.known if script.kind in _SHORT]
    happenings = Happenings(this.stage, plan, client, this.asking, this.record.add, short)
    began_s, lap = this.asking.clock(), 0
    while (done_s := this.asking.clock() - began_s) < 60.0 * plan.minutes or lap < plan.laps:
        told(f"lap {lap}", done_s / (60.0 * plan.minutes))
        over = asyncio.Event()
        crowd = [asyncio.create_task(_client(this, lap, number, over)) for number in range(plan.clients)]
        try:
            await happenings.lap(lap, this.record.add)
        finally:
            over.set()
            await asyncio.gather(*crowd)
        await _rest(this, client, happenings, lap)
        lap += 1


async def _watch(this: _Soak) -> None:
    """The board follows what the daemon does. Raises ``EdgeRuntimeError`` when that is gone."""
    stage, clock = this.stage, this.asking.clock
    async with AsyncClient(stage.socket, patience_s=0.0) as client:
        status, taken, last_s = await client.status(), stage.taken(), clock()
        while True:
            await asyncio.sleep(_LOOK_S)
            before_s = status.board.busy_s or 0.0
            status, now_s = await client.status(), clock()
            before, taken = taken, stage.taken()
            had = share_had(taken.processor_s - before.processor_s, taken.waited_s - before.waited_s)
            # A step that waits for a processor heats nothing meanwhile.
            busy_s = had * ((status.board.busy_s or 0.0) - before_s)
            stage.busy_share(min(1.0, max(0.0, busy_s / (now_s - last_s))))
            last_s = now_s
            tokens, state = status.speed.generated_tokens, status.board.throttle_state or ""
            this.record.add(Look(now_s, round(stage.plant.die_c, 2), state, tokens, stage.beyond, round(had, 3)))


async def _client(this: _Soak, lap: int, number: int, over: asyncio.Event) -> None:
    """One request after the other, as programs ask: a conversation to its end, with pauses."""
    draw = random.Random(f"{this.plan.seed} {lap} {number}")
    conversation: Conversation | None = None
    async with AsyncClient(this.stage.socket, patience_s=0.0) as client:
        while not over.is_set():
            if conversation is None or conversation.over:
                conversation = Conversation(draw.choice(this.known))
            answer = await ask(client, conversation, draw.choice(_MANNERS), this.asking, draw.randrange(1 << 30))
            this.record.add(answer)
            if answer.outcome not in ("right", "refused"):
                conversation = None
            await asyncio.sleep(_REFUSED_S if answer.outcome == "refused" else draw.uniform(0.0, this.plan.think_s))


async def _rest(this: _Soak, client: AsyncClient, happenings: Happenings, lap: int) -> None:
    """Nobody asks: what the daemon holds then, and how quick it is."""

    async def quiet() -> bool:
        return idle(await client.status())

    try:
        await happenings.until("nobody asks, so nothing runs", quiet)
        held = this.stage.taken().anonymous
        await happenings.forgotten()
        await happenings.until("nobody asks, so nothing runs", quiet)
    except NotItself as problem:
        raise EdgeRuntimeError(str(problem)) from None
    taken, status = this.stage.taken(), await client.status()
    this.record.add(
        Checkpoint(
            this.asking.clock(), lap, held, taken.anonymous, taken.files, taken.threads, taken.processor_s,
            taken.waited_s, sum(slot.busy for slot in status.slots), status.requests.waiting, this.stage.errors(),
        )
    )  # fmt: skip
    for number in range(this.plan.probes):
        this.record.add(await _probe(this, client, lap, number))


async def _probe(this: _Soak, client: AsyncClient, lap: int, number: int) -> Probe:
    """The same text in each lap, and one that no cache holds."""
    size = this.plan.sizes.document // 2
    prompt = f"{number}: {sample_text()[number * size : (number + 1) * size]}"
    before, began_s = this.stage.taken(), this.asking.clock()
    moments: list[float] = []
    async with client.stream_complete(prompt, max_tokens=this.plan.sizes.tokens, temperature=0.0) as chunks:
        async for chunk in chunks:
            if chunk.text or chunk.finish_reason:
                moments.append(this.asking.clock())
        usage = chunks.completion().usage
    tokens = 1 if usage is None else usage.completion_tokens
    tpot_s = (moments[-1] - moments[0]) / max(1, tokens - 1)
    after = this.stage.taken()
    return Probe(
        this.asking.clock(), lap, moments[0] - began_s, tpot_s, after.processor_s - before.processor_s,
        after.waited_s - before.waited_s,
    )  # fmt: skip


