"""What a larger model costs, and what drafting brings it at an acceptance that is set. Knows no figure and no table."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from ...bundle import MANIFEST_NAME, TARGET, file_sha256
from ...decoder import Clock
from ...loading import LoadedBundle
from ...needs import weights_read
from ...resident import resident
from .record import Facts, ModelRun, Step
from .stepping import Kind, Stepper, room_for, text_of

Progress = Callable[[str, int, int], None]
_AIM_S = 120.0
"""Of the rounds of one model, where the least number of them does not take longer."""
_LEAST_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class ModelPlan:
    context: int
    ks: tuple[int, ...]
    acceptances: tuple[float, ...]
    rounds: int
    """At most."""

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """A plain step among the drafted ones of each acceptance."""
        return tuple(kind for rate in self.acceptances for kind in (Kind(0), *(Kind(k, rate) for k in self.ks)))

    @property
    def room(self) -> int:
        return room_for(self.ks, len(self.kinds) + 1)


def rounds_within(most: int, round_s: float) -> int:
    """As many as fit the time that is aimed at, by what one took."""
    return min(most, max(_LEAST_ROUNDS, int(_AIM_S / max(round_s, 1e-9))))


def facts_of(bundle: LoadedBundle, drafter: str, head: Literal["screened", "full"]) -> Facts:
    manifest = bundle.manifest
    target = manifest.model(TARGET)
    return Facts(
        name=manifest.name,
        sha256=file_sha256(bundle.directory / MANIFEST_NAME),
        precision=target.precision,
        layers=len(target.layers),
        file_bytes=sum(entry.bytes for entry in manifest.files),
        read_bytes=weights_read(manifest, head),
        drafter=drafter,
    )


def measure_model(
    bundle: LoadedBundle,
    facts: Facts,
    plan: ModelPlan,
    clock: Clock = time.perf_counter,
    progress: Progress = lambda what, done, total: None,
) -> ModelRun:
    """The context and ``plan.room`` must fit the slot."""
    stepper = Stepper(bundle, facts.drafter, plan.ks, text_of(bundle, plan.context + plan.room), clock)
    progress(facts.name, 0, 1)
    prefill_s = stepper.feed(0, plan.context)
    began, few = clock(), plan.kinds[: 1 + len(plan.ks)]
    stepper.round(plan.context, few, 0)
    rounds = rounds_within(plan.rounds, (clock() - began) * len(plan.kinds) / len(few))
    found, steps = resident(), list[Step]()
    for number in range(rounds):
        progress(facts.name, 1 + number, 1 + rounds)
        steps += stepper.round(plan.context, plan.kinds, number)
    return ModelRun(facts, plan.context, prefill_s, bundle.load_s, found, tuple(steps))
