"""What happens to the daemon of a soak, one thing after the other, each until the daemon is itself again. Knows no
client but those that come in a crowd.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

from ...client import AsyncClient, EdgeRuntimeError
from ...status import Status
from .asking import Asking, Conversation, ask
from .mix import Script
from .plan import DRAFTERS, LAP, SoakPlan, What
from .record import Answer, Happening
from .stage import Stage

_LOOK_S = 0.1


class NotItself(Exception):
    """The daemon did not do in time what was waited for."""


class Happenings:
    def __init__(
        self, stage: Stage, plan: SoakPlan, client: AsyncClient, asking: Asking, add: Callable[[Answer], None],
        short: Sequence[Script],
    ) -> None:  # fmt: skip
        """``short``: what a crowd asks for. ``add`` is told of its answers."""
        self._stage, self._plan, self._client, self._asking = stage, plan, client, asking
        self._add, self._short = add, short
        self._lap = 0
        self._does: dict[What, Callable[[], Awaitable[str]]] = {
            "limits": self._limits,
            "warm": self._warm,
            "engine": self._engine,
            "memory": self._memory,
            "swap": self._swap,
            "no swap": self._no_swap,
            "hot": self._hot,
            "crowd": self._crowd,
            "back": self._back,
        }

    async def lap(self, number: int, add: Callable[[Happening], None]) -> None:
        """All of it, spread over a lap; one that is late delays the others."""
        self._lap = number
        began_s = time.monotonic()
        for place, what in enumerate(LAP):
            due_s = self._plan.lap_s * (place + 0.5) / len(LAP)
            await asyncio.sleep(max(0.0, due_s - (time.monotonic() - began_s)))
            at_s, note, went_well = self._asking.clock(), "", None
            try:
                note, went_well = await self._does[what](), True
            except (NotItself, EdgeRuntimeError) as problem:
                note, went_well = str(problem), False
            finally:
                add(Happening(at_s, self._asking.clock(), what, went_well, note))
        await asyncio.sleep(max(0.0, self._plan.lap_s - (time.monotonic() - began_s)))

    async def until(self, what: str, holds: Callable[[], Awaitable[bool]]) -> None:
        end_s = time.monotonic() + self._plan.patience_s
        while not await holds():
            if time.monotonic() > end_s:
                raise NotItself(f"{what}: not within {self._plan.patience_s:g} s")
            await asyncio.sleep(_LOOK_S)

    async def forgotten(self) -> None:
        """As ``_memory``, with nobody there: at its end the caches are empty, and what was in them is given back.
        Raises ``NotItself``."""

        async def refused() -> bool:
            # Slots may be empty already, of a model that was just loaded: not before this was the daemon told.
            return not await self._answers()

        async def empty() -> bool:
            return not any(slot.tokens for slot in (await self._client.status()).slots)

        self._stage.starve(True)
        try:
            await self.until("requests are refused while memory runs out", refused)
            await self.until("what idle slots remember is let go", empty)
        finally:
            self._stage.starve(False)
        await self.until("requests are taken again", self._answers)

    # Reloads

    async def _limits(self) -> str:
        queue = self._plan.queue + self._lap % 2
        await self._reloads("reloaded limits", lambda: self._stage.reload("limits", queue=queue))
        return f"queue {queue}"

    async def _engine(self) -> str:
        drafter = DRAFTERS[self._lap % len(DRAFTERS)]
        await self._reloads("swapped model=", lambda: self._stage.reload("engine", drafter=drafter))
        return f"drafter {drafter}"

    async def _back(self) -> str:
        await self._reloads("swapped model=", lambda: self._stage.reload("engine"))
        return ""

    async def _reloads(self, word: str, does: Callable[[], None]) -> None:
        before = self._stage.told(word)

        async def done() -> bool:
            return self._stage.told(word) > before and not (await self._client.status()).reason

        does()
        await self.until(f"the log says {word!r}", done)

    async def _swap(self) -> str:
        await self._client.swap_bundle(self._stage.twin)
        return ""

    async def _no_swap(self) -> str:
        """A bundle that is none: refused, and what is served goes on."""
        before = await self._client.status()
        try:
            await self._client.swap_bundle(self._stage.twin / "nothing")
        except EdgeRuntimeError as problem:
            after = await self._client.status()
            if problem.status == 400 and before.model == after.model:
                return str(problem)
            raise NotItself(f"a bundle that is none was answered by {problem.status}: {problem}") from None
        raise NotItself("a bundle that is none was taken")

    # The board

    async def _warm(self) -> str:
        self._stage.breathe(self._plan.warm_c)
        await asyncio.sleep(self._plan.hold_s)
        status = await self._client.status()
        self._stage.breathe(self._plan.air_c)
        return f"{status.board.throttle_state} at {status.board.temperature_c} C"

    async def _hot(self) -> str:
        """Too hot without any work: no step may be taken, and those that come are told so."""

        async def stopped() -> bool:
            return (await self._client.status()).budget.admit is False

        async def cool() -> bool:
            return self._stage.plant.die_c <= self._plan.limit_c

        async def resumed() -> bool:
            return bool((await self._client.status()).budget.admit)

        self._stage.beyond = True
        self._stage.breathe(self._plan.hot_c)
        try:
            await self.until("a board that is too hot takes no requests", stopped)
            await asyncio.sleep(self._plan.hold_s)
        finally:
            self._stage.breathe(self._plan.air_c)
        await self.until("the board cools", cool)
        self._stage.beyond = False
        await self.until("a board that has cooled takes requests", resumed)
        return ""

    async def _memory(self) -> str:
        async def refused() -> bool:
            return not await self._answers()

        self._stage.starve(True)
        try:
            await self.until("requests are refused while memory runs out", refused)
            await asyncio.sleep(self._plan.hold_s)
        finally:
            self._stage.starve(False)
        await self.until("requests are taken again", self._answers)
        return ""

    async def _answers(self) -> bool:
        """Whether a request is taken, as far as memory goes."""
        try:
            await self._client.complete("a", max_tokens=1, temperature=0.0)
        except EdgeRuntimeError as problem:
            if problem.type in ("unavailable_error", "rate_limit_error"):
                return "memory" not in str(problem)
            raise
        return True

    async def _crowd(self) -> str:
        """More than may wait: each is answered or told that the queue is full."""
        async with AsyncClient(self._stage.socket, patience_s=0.0) as crowd:
            conversations = [Conversation(self._short[n % len(self._short)]) for n in range(self._plan.crowd)]
            answers = await asyncio.gather(*(ask(crowd, one, "whole", self._asking, 0) for one in conversations))
        for answer in answers:
            self._add(answer)
        full = sum(answer.outcome == "refused" for answer in answers)
        return f"{full} of {len(answers)} were told that the queue is full"


def idle(status: Status) -> bool:
    return not (status.requests.running or status.requests.waiting or any(slot.busy for slot in status.slots))
