"""Single steps behind a cache of a known length, in slot 0. Knows no figure and no file.

A round begins anew behind ``context`` tokens of one text, and every kind of step has its turn in it, one behind the
other: each finds cache and drafter as the step of another kind has left them, and whatever else the machine does meets
all of them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from ...decoder import Clock, Decoder
from ...drafters.length import FixedLength
from ...drafters.protocol import Drafter, NoDraft
from ...engines.protocol import Engine, Ids, StepInput
from ...errors import ConfigError
from ...loading import DrafterName, LoadedBundle
from ...sampling import SamplingParams
from ...session import Session, StepResult
from ..corpus import sample_text
from ..methods import AUTO
from ..reading import as_ids
from .record import Step
from .replay import FreeDraft, Replayed

_GREEDY = SamplingParams(temperature=0.0)
_NO_MODEL = ("lookup", AUTO)


@dataclass(frozen=True, slots=True)
class Kind:
    """Of a step."""

    k: int
    """0: plain."""
    acceptance: float | None = None


def drafter_named(bundle: LoadedBundle, name: str) -> str:
    """The bundle's first that thinks for ``auto``, ``none`` where it has none. Raises ``ConfigError``."""
    thinking = [one for one in bundle.drafters() if one not in _NO_MODEL]
    if name == AUTO:
        return thinking[0] if thinking else FreeDraft.name
    if name not in (*thinking, FreeDraft.name):
        offered = ", ".join([*thinking, FreeDraft.name])
        raise ConfigError(f"drafter {name}: steps of this bundle can be timed with {offered}")
    return name


def room_for(ks: Sequence[int], kinds: int) -> int:
    """Tokens that a round may add, and one more that stands behind the cache."""
    return kinds * (max(ks, default=0) + 1) + 1


def text_of(bundle: LoadedBundle, count: int) -> Ids:
    """[count] of a licence, again and again where it is too short."""
    ids = bundle.tokenizer.encode(sample_text())
    return as_ids((ids * -(-count // len(ids)))[:count])


class Stepper:
    def __init__(
        self, bundle: LoadedBundle, drafter: str, ks: Sequence[int], ids: Ids, clock: Clock = time.perf_counter
    ) -> None:
        """``ids``: the text, longer than any context by what rounds add."""
        self._target, self._ids, self._clock = Replayed(bundle.target), ids, clock
        self._engines: tuple[Engine, ...] = (bundle.target, *bundle.drafting.values())
        rows = bundle.max_head_rows
        made: Drafter = FreeDraft(rows - 1)
        if drafter != made.name:
            made = bundle.drafter(cast(DrafterName, drafter))
        # One drafter for all lengths: it knows what its cache holds.
        self._decoders = {
            k: Decoder(self._target, made if k else NoDraft(), FixedLength(k), max_head_rows=rows, clock=clock)
            for k in (0, *ks)
        }
        self._longest = max(ks, default=0)
        made.reset(0)

    def feed(self, start: int, stop: int) -> float:
        """Entries [start, stop) of the text; seconds."""
        began, rows = self._clock(), self._target.info.max_rows
        for first in range(start, stop, rows):
            tokens = self._ids[first : min(first + rows, stop)]
            self._target.forward(StepInput(0, tokens, first, None))
        return self._clock() - began

    def round(self, context: int, kinds: Sequence[Kind], number: int) -> list[Step]:
        """Behind a cache that holds the text; what lies behind ``context`` is written over. Its first step, which feeds
        the drafter what it lacks, does not count."""
        room = room_for((self._longest,), len(kinds) + 1)
        session = Session(
            self._target.info, self._ids[: context + 1], _GREEDY, max_tokens=room, kv_len=context
        )
        self._target.acceptance, self._target.round = None, number
        self._decoders[self._longest].step(session)
        steps = []
        for kind in kinds if number % 2 == 0 else kinds[::-1]:
            self._target.acceptance = kind.acceptance
            before = self._ran_s()
            result = self._decoders[kind.k].step(session)
            after = self._ran_s()
            ran_s = None if before is None or after is None else after - before
            steps.append(_step(result, context, kind, number, ran_s))
        return steps

    def _ran_s(self) -> float | None:
        """Of engines that say so: how long their graphs ran so far."""
        known = [getattr(engine, "ran_s", None) for engine in self._engines]
        return None if None in known else sum(cast(list[float], known))


def _step(result: StepResult, context: int, kind: Kind, number: int, ran_s: float | None) -> Step:
    times = result.times
    return Step(
        context=context,
        k=kind.k,
        acceptance=kind.acceptance,
        round=number,
        drafted=result.drafted,
        accepted=result.accepted,
        rows=result.rows,
        draft_s=times.draft_s + times.catch_up_s,
        body_s=times.body_s,
        head_s=times.head_s,
        loop_s=times.overhead_s,
        ran_s=ran_s,
    )
