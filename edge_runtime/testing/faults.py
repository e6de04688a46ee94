"""What goes wrong, on demand: engines, drafters and sources of readings that fail at a moment of a test's choice.

Knows no server and no scheduler. An engine that is told nothing is a ``FakeEngine``, so that the text without any fault
is what it must be compared with.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..drafters.protocol import DraftContext, Drafter, DraftProposal
from ..engines.protocol import Floats, HeadOutput, HeadRequest, StepInput, StepOutput
from ..errors import EngineError
from ..sampling import Distribution
from ..telemetry.sample import GpuReading, Rail, Sample, Zone
from .engine import CallKind, FakeEngine

SECRET = "what somebody " + "wrote"
"""In the words of errors that nobody foresaw: it may stand in no log and in no status. Put together, so that the line
of code in a traceback does not hold it."""


@dataclass(frozen=True, slots=True)
class EngineFault:
    """Once. ``raises`` or ``spoils``, or, of a full row, ``spoils_row``."""

    name: str
    at: CallKind
    raises: Callable[[], Exception] | None = None
    spoils: Callable[[HeadOutput], HeadOutput] | None = None
    spoils_row: Callable[[Floats], Floats] | None = None
    says: str = ""
    """Words of the reason, as status and log must have them."""


def _nan(head: HeadOutput) -> HeadOutput:
    return replace(head, logsumexp=np.full_like(head.logsumexp, np.nan))


def _candidates(value: float) -> Callable[[HeadOutput], HeadOutput]:
    """The sum stays finite: a kernel that computed some of a row."""

    def spoil(head: HeadOutput) -> HeadOutput:
        logits = head.candidate_logits.copy()
        logits[-1, 0] = value
        return replace(head, candidate_logits=logits)

    return spoil


def _gathered(value: float) -> Callable[[HeadOutput], HeadOutput]:
    """Of the drafts' own logits, where a head is asked for them."""

    def spoil(head: HeadOutput) -> HeadOutput:
        return head if head.gathered is None else replace(head, gathered=np.full_like(head.gathered, value))

    return spoil


def _ids(token: int) -> Callable[[HeadOutput], HeadOutput]:
    def spoil(head: HeadOutput) -> HeadOutput:
        ids = head.candidate_ids.copy()
        ids[:, 0] = token
        return replace(head, argmax=np.full_like(head.argmax, token), candidate_ids=ids)

    return spoil


def _argmax(head: HeadOutput) -> HeadOutput:
    return replace(head, argmax=np.full_like(head.argmax, 1 << 40))


def _holed(row: Floats) -> Floats:
    spoilt = row.copy()
    spoilt[len(spoilt) // 2] = np.nan
    return spoilt


_UNUSABLE = "not usable"
FORWARD_FAULTS = (
    EngineFault("device fails", "forward", lambda: EngineError("the device is gone"), says="the device is gone"),
    EngineFault("no memory", "forward", lambda: MemoryError(SECRET), says="MemoryError"),
    EngineFault("not foreseen", "forward", lambda: KeyError(SECRET), says="KeyError"),
)
HEAD_FAULTS = (
    EngineFault("device fails", "head", lambda: EngineError("the device is gone"), says="the device is gone"),
    EngineFault("no memory", "head", lambda: MemoryError(SECRET), says="MemoryError"),
    EngineFault("sum is NaN", "head", spoils=_nan, says=_UNUSABLE),
    EngineFault("logit is NaN", "head", spoils=_candidates(math.nan), says=_UNUSABLE),
    EngineFault("logit is inf", "head", spoils=_candidates(math.inf), says=_UNUSABLE),
    EngineFault("id too large", "head", spoils=_ids(1 << 40), says=_UNUSABLE),
    EngineFault("id is -1", "head", spoils=_ids(-1), says=_UNUSABLE),
)
FIELD_FAULTS = (
    EngineFault("argmax too large", "head", spoils=_argmax, says=_UNUSABLE),
    EngineFault("draft's logit is NaN", "head", spoils=_gathered(math.nan), says=_UNUSABLE),
    EngineFault("draft's logit is inf", "head", spoils=_gathered(math.inf), says=_UNUSABLE),
)
"""Of one field alone; the draft's is there where rows of a draft are asked for."""
ROW_FAULTS = (
    EngineFault("no memory", "logits", lambda: MemoryError(SECRET), says="MemoryError"),
    EngineFault("logit is NaN", "logits", spoils_row=_holed, says=_UNUSABLE),
)
"""Of full rows, which only some laws ask for."""
COPY_FAULT = EngineFault("device fails", "copy", lambda: EngineError("the device is gone"), says="the device is gone")


class FaultyEngine(FakeEngine):
    """A ``FakeEngine`` that a fault can be put into, from any thread."""

    fault: EngineFault | None = None
    """Gone once it happened, unless it is ``lasting``."""
    skip = 0
    """Calls of the fault's kind that still go well."""
    lasting = False
    happened = 0

    def inject(self, fault: EngineFault, skip: int = 0, *, lasting: bool = False) -> None:
        self.skip, self.lasting, self.happened, self.fault = skip, lasting, 0, fault

    def heal(self) -> None:
        self.fault = None

    def forward(self, step: StepInput) -> StepOutput:
        fault = self._due("forward")
        output = super().forward(step)
        # Behind it: with the entries already written, the worst that a device can do.
        _raise(fault)
        return output

    def head(self, request: HeadRequest) -> HeadOutput:
        fault = self._due("head")
        _raise(fault)
        output = super().head(request)
        return output if fault is None or fault.spoils is None else fault.spoils(output)

    def logits(self, row: int) -> Floats:
        fault = self._due("logits")
        _raise(fault)
        full = super().logits(row)
        return full if fault is None or fault.spoils_row is None else fault.spoils_row(full)

    def copy_prefix(self, source: int, target: int, count: int) -> None:
        fault = self._due("copy")
        super().copy_prefix(source, target, count)
        _raise(fault)

    def _due(self, kind: CallKind) -> EngineFault | None:
        fault = self.fault
        if fault is None or fault.at != kind:
            return None
        if self.skip:
            self.skip -= 1
            return None
        self.happened += 1
        if not self.lasting:
            self.fault = None
        return fault


def _raise(fault: EngineFault | None) -> None:
    if fault is not None and fault.raises is not None:
        raise fault.raises()


@dataclass(frozen=True, slots=True)
class DraftFault:
    """``at``: the method of a drafter. It raises, or what it proposes is ``spoilt``."""

    name: str
    at: str
    raises: Callable[[], Exception] | None = None
    spoils: Callable[[DraftProposal], DraftProposal] | None = None
    says: str = ""


def _drafted(tokens: Sequence[int]) -> Callable[[DraftProposal], DraftProposal]:
    return lambda made: DraftProposal(np.array(tokens, np.int64), None, made.source)


def _by_law(ids: Sequence[int], *probs: float) -> Callable[[DraftProposal], DraftProposal]:
    """One token, 3, drawn by such a law."""
    law = Distribution(np.array(ids, np.int64), np.array(probs))
    return lambda made: DraftProposal(np.array([3], np.int64), (law,), made.source)


def _sure(made: DraftProposal) -> DraftProposal:
    return replace(made, confidences=(math.nan,) * len(made.tokens))


DRAFT_FAULTS = (
    DraftFault("device fails", "propose", lambda: EngineError("the drafter is gone"), says="the drafter is gone"),
    DraftFault("no memory", "propose", lambda: MemoryError(SECRET), says="MemoryError"),
    DraftFault("no memory to catch up", "warm", lambda: MemoryError(SECRET), says="MemoryError"),
    DraftFault("not foreseen", "observe", lambda: KeyError(SECRET), says="KeyError"),
    DraftFault("id too large", "propose", spoils=_drafted([1 << 40]), says="outside"),
    DraftFault("id is -1", "propose", spoils=_drafted([-1]), says="outside"),
    DraftFault("too many tokens", "propose", spoils=_drafted([1] * 99), says="were asked for"),
    DraftFault("law is NaN", "propose", spoils=_by_law([3, 5], 0.5, math.nan), says="no law"),
    DraftFault("law is too much", "propose", spoils=_by_law([3, 5], 0.5, 7.0), says="no law"),
)
LAW_FAULTS = (
    DraftFault("law is below zero", "propose", spoils=_by_law([3, 5], 1.5, -0.5), says="no law"),
    DraftFault("law is of no token", "propose", spoils=_by_law([3, 1 << 40], 0.5, 0.5), says="no law"),
    DraftFault("law is of an id below zero", "propose", spoils=_by_law([-1, 3], 0.5, 0.5), says="no law"),
    DraftFault("law is of more ids than parts", "propose", spoils=_by_law([3, 5, 7], 0.5, 0.5), says="no law"),
    DraftFault("law is out of order", "propose", spoils=_by_law([3, 7, 5], 0.5, 0.25, 0.25), says="no law"),
    DraftFault("law is another token's", "propose", spoils=_by_law([4, 5], 0.5, 0.5), says="no law"),
    DraftFault("as sure as NaN", "propose", spoils=_sure, says="not a number"),
)
"""Of what it says of its tokens, finer."""


class FaultyDrafter:
    """A drafter that a fault can be put into."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self.name, self.max_k, self.window = drafter.name, drafter.max_k, drafter.window
        self.fault: DraftFault | None = None
        self.happened = 0

    def inject(self, fault: DraftFault) -> None:
        """From now on, until it is ``heal``ed."""
        self.happened, self.fault = 0, fault

    def heal(self) -> None:
        self.fault = None

    def warm(self, context: DraftContext) -> int:
        self._raise("warm")
        return self._drafter.warm(context)

    def propose(self, context: DraftContext, k: int) -> DraftProposal:
        self._raise("propose")
        made, fault = self._drafter.propose(context, k), self.fault
        if fault is None or fault.spoils is None or not len(made.tokens):
            return made
        self.happened += 1
        return fault.spoils(made)

    def observe(self, slot: int, accepted: int) -> None:
        self._raise("observe")
        self._drafter.observe(slot, accepted)

    def reset(self, slot: int) -> None:
        self._drafter.reset(slot)

    def _raise(self, at: str) -> None:
        fault = self.fault
        if fault is not None and fault.at == at and fault.raises is not None:
            self.happened += 1
            raise fault.raises()


GOOD_SAMPLE = Sample(0.0, "faulty", 9000, (Rail("VDD_IN", 9000),), (Zone("tj", 60.0),), GpuReading(600.0, 900.0, 0.5))
LIES: dict[str, Callable[[Sample], Sample]] = {
    "power beyond JSON": lambda one: replace(one, power_mw=10**30),
    "power below zero": lambda one: replace(one, power_mw=-5),
    "temperature is NaN": lambda one: replace(one, zones=(Zone("tj", math.nan),)),
    "temperature of a star": lambda one: replace(one, zones=(Zone("tj", 1e30),)),
    "clock is inf": lambda one: replace(one, gpu=GpuReading(math.inf, -1.0, math.nan)),
    "read tomorrow": lambda one: replace(one, time_s=one.time_s + 86400.0),
    "read at no time": lambda one: replace(one, time_s=math.nan),
    "read yesterday": lambda one: replace(one, time_s=one.time_s - 86400.0),
}
"""What a sensor may say instead of the truth."""


class FaultySource:
    """Implements ``telemetry.source.TelemetrySource``: reads the same board again and again, and can be spoilt."""

    name = "faulty"

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.lie: Callable[[Sample], Sample] | None = None
        self.frozen_s: float | None = None
        """When it was read, from now on."""
        self.gone = False
        self.raises: Exception | None = None

    @property
    def trouble(self) -> str | None:
        return "faulty: its sensors are gone" if self.gone else None

    def latest(self) -> Sample | None:
        if self.raises is not None:
            raise self.raises
        if self.gone:
            return None
        sample = replace(GOOD_SAMPLE, time_s=self._clock() if self.frozen_s is None else self.frozen_s)
        return sample if self.lie is None else self.lie(sample)

    def close(self) -> None:
        """There is nothing to close."""
