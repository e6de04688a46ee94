"""What more context costs: prompts, plain steps, drafts and verifications, memory. Knows no figure and no table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...bundle import Manifest
from ...loading import LoadedBundle
from ...resident import resident
from .record import Held, Prefill, Step
from .stepping import Kind, Stepper, drafter_named, room_for, text_of

Progress = Callable[[str, int, int], None]
_PREFILLS = 3
"""At most, beside the one that warms up: of 8192 tokens each takes as long as a thousand steps."""
_TURNS = 2
"""Of each kind in a round."""


@dataclass(frozen=True, slots=True)
class ContextPlan:
    contexts: tuple[int, ...]
    """Rising."""
    ks: tuple[int, ...]
    rounds: int

    @property
    def kinds(self) -> tuple[Kind, ...]:
        return tuple(Kind(k) for _ in range(_TURNS) for k in (0, *self.ks))

    @property
    def room(self) -> int:
        """Behind the longest context."""
        return room_for(self.ks, len(self.kinds) + 1)


def entry_bytes(manifest: Manifest, roles: Sequence[str], kept: int) -> int:
    """Of one token in the caches of these models, and of the hidden row that the target keeps, if ``kept`` wide."""
    return sum(manifest.model(role).kv_bytes_per_token for role in roles) + 4 * kept


def bytes_per_token(bundle: LoadedBundle) -> int:
    info = bundle.target.info
    return entry_bytes(bundle.manifest, ("target", *bundle.drafting), info.hidden_size if info.keeps_hidden else 0)


def measure_context(
    bundle: LoadedBundle, drafter: str, plan: ContextPlan, progress: Progress = lambda what, done, total: None
) -> tuple[tuple[Prefill, ...], tuple[Step, ...], tuple[Held, ...]]:
    """The longest context and ``plan.room`` must fit the slot."""
    longest = plan.contexts[-1]
    stepper = Stepper(bundle, drafter_named(bundle, drafter), plan.ks, text_of(bundle, longest + plan.room))
    passes = min(_PREFILLS, plan.rounds)
    whole = 1 + passes + plan.rounds
    progress("context", 0, whole)
    held = _filled(bundle, stepper, plan)
    prefills: list[Prefill] = []
    steps: list[Step] = []
    for number in range(passes):
        progress("context", 1 + number, whole)
        seconds, done = 0.0, 0
        for context in plan.contexts:
            seconds += stepper.feed(done, context)
            done = context
            prefills.append(Prefill(context, number, seconds))
    for number in range(plan.rounds):
        progress("context", 1 + passes + number, whole)
        # Falling, so that a drafter's cache is rolled back and not fed again, but for once.
        for context in plan.contexts[::-1]:
            steps += stepper.round(context, plan.kinds, number)
            stepper.feed(context, min(context + plan.room, longest))
    return tuple(prefills), tuple(steps), held


def _filled(bundle: LoadedBundle, stepper: Stepper, plan: ContextPlan) -> tuple[Held, ...]:
    """Rising, for the first time: nothing larger has been touched before. All shapes run here, and none counts."""
    held, done, entry = [], 0, bytes_per_token(bundle)
    for context in plan.contexts:
        stepper.feed(done, context)
        stepper.round(context, plan.kinds, 0)
        held.append(Held(context, entry * context, resident()))
        done = context
    return tuple(held)
