"""Who drafts a step, and how much: the grammar, the client's prediction, or the drafter. Knows no engine of a target.

What the grammar forces comes first, for it is hardly ever wrong and costs nothing; then a prediction that agrees with
the text so far; then the drafter, as far as the length policy thinks that it pays.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from .drafters.length import LengthPlan, LengthPolicy
from .drafters.protocol import NO_TOKENS, DraftContext, Drafter
from .engines.protocol import Engine, Floats, Ids
from .sampling import Distribution
from .session import GRAMMAR, PREDICTION, Session, StepResult

Clock = Callable[[], float]
"""Seconds since some fixed moment."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A proposal as far as there is room for it and the grammar allows it, and what making it took."""

    plan: LengthPlan
    tokens: Ids = field(default_factory=lambda: NO_TOKENS)
    """[K] a view, of the drafter's."""
    laws: tuple[Distribution, ...] | None = None
    """[>= K] one more where there is a refused token."""
    source: str = ""
    note: str = ""
    refused: int | None = None
    """What the drafter proposed next and the grammar forbids. Its row is decided against it, not drawn anew: whether
    a draw was refused depends on the draw, and must not bend the law."""
    caught_up: int = 0
    catch_up_s: float = 0.0
    earlier_s: float = 0.0
    """Of ``catch_up_s``, in turns before."""
    draft_s: float = 0.0

    @property
    def count(self) -> int:
        """Tokens that were proposed, up to and with a refused one."""
        return len(self.tokens) + (self.refused is not None)

    @property
    def by_drafter(self) -> bool:
        return self.count > 0 and self.source not in (GRAMMAR, PREDICTION)


@dataclass(frozen=True, slots=True)
class Warming:
    """A draft that waits until the drafter has caught up with its text."""

    plan: LengthPlan
    caught_up: int = 0
    catch_up_s: float = 0.0


class Drafting:
    """One drafter and one length policy, for the sessions of one target."""

    def __init__(
        self, target: Engine, drafter: Drafter, length: LengthPolicy, clock: Clock = time.perf_counter
    ) -> None:
        self.drafter, self.length = drafter, length
        self._target, self._info, self._clock = target, target.info, clock

    def draft(self, session: Session) -> Draft | None:
        """For the next step of a session; its shaper, if any, stands behind the text.

        ``None``: the drafter was fed a chunk of what it lacks, and there may be more. The session remembers.
        """
        if session.max_draft_tokens == 0:
            return Draft(LengthPlan(0, "batched", "K=0: the request wants no drafts"))
        most = max(0, min(session.room, self._info.max_rows) - 1)
        if session.max_draft_tokens is not None:
            most = min(most, session.max_draft_tokens)
        if session.warming is None:
            free = self._free(session, most)
            if free is not None:
                return free
        most = min(most, self.drafter.max_k)
        if session.warming is None:
            plan = self.length.plan(most, session.prompt_len, session.kv_len, session.drafting)
            if min(plan.k, most) < 1:
                return Draft(plan)
            session.warming = Warming(plan)
        draft = self._ask(session, session.warming, min(session.warming.plan.k, most))
        return None if draft is None else _allowed(draft, session)

    def _free(self, session: Session, most: int) -> Draft | None:
        """What costs nothing to draft, if there is any."""
        forced = [] if session.shaper is None else session.shaper.forced(most)
        if forced:
            plan = LengthPlan(len(forced), "batched", "the grammar leaves no choice")
            return self._checked(Draft(plan, np.array(forced, np.int64), None, GRAMMAR))
        if session.prediction is None or not most:
            return None
        found = session.prediction.following(session.generated, most)
        if not len(found):
            return None
        plan = self.length.plan(most, session.prompt_len, session.kv_len, session.predicting)
        return _allowed(Draft(plan, found[: plan.k], None, PREDICTION), session) if plan.k > 0 else None

    def observe(self, session: Session, draft: Draft, result: StepResult, kv_len: int) -> None:
        """After the step that was planned with ``kv_len``."""
        state = session.predicting if draft.source == PREDICTION else session.drafting
        self.length.observe(result, kv_len, state)

    def _ask(self, session: Session, warming: Warming, k: int) -> Draft | None:
        clock, plan, chunk = self._clock, warming.plan, self._info.max_rows
        context = DraftContext(
            tokens=session.tokens,
            slot=session.slot,
            params=session.params,
            seed=session.seed,
            uniform=session.rng.random,
            stop_below=plan.stop_below,
            patience=chunk,
            hidden=self._hidden(session),
            kv_len=session.kv_len,
        )
        started = clock()
        fed = self.drafter.warm(context)
        warmed = clock()
        warming = Warming(plan, warming.caught_up + fed, warming.catch_up_s + warmed - started)
        session.warming = warming if fed >= chunk else None
        if session.warming is not None:
            return None
        proposal = self.drafter.propose(context, k)
        done = clock()
        if len(proposal.tokens) > k:
            raise ValueError(f"{proposal.source} proposed {len(proposal.tokens)} tokens where {k} were asked for")
        draft = Draft(
            plan=plan,
            tokens=proposal.tokens,
            laws=proposal.laws,
            source=proposal.source if len(proposal.tokens) else "",
            note=proposal.note,
            caught_up=warming.caught_up,
            catch_up_s=warming.catch_up_s,
            earlier_s=warming.catch_up_s - (warmed - started),
            draft_s=done - warmed,
        )
        return self._checked(draft)

    def _hidden(self, session: Session) -> Floats | None:
        """The target's rows behind what its cache holds, for drafters that read them."""
        if not self._info.keeps_hidden:
            return None
        return self._target.hidden_rows(session.slot)[: min(session.kv_len, session.length - 1)]

    def _checked(self, draft: Draft) -> Draft:
        """Raises ``ValueError``: an id out of range would be read behind the end of a table."""
        tokens, laws = draft.tokens, draft.laws
        if laws is not None and len(laws) != len(tokens):
            raise ValueError(f"{draft.source} proposed {len(tokens)} tokens with {len(laws)} laws")
        if len(tokens) and not 0 <= int(tokens.min()) <= int(tokens.max()) < self._info.vocab_size:
            raise ValueError(f"{draft.source} proposed a token outside 0..{self._info.vocab_size - 1}")
        return draft


def _allowed(draft: Draft, session: Session) -> Draft:
    """Up to the first token that the grammar forbids."""
    if session.shaper is None or not len(draft.tokens):
        return draft
    tokens = draft.tokens.tolist()
    kept = session.shaper.valid_prefix(tokens)
    if kept == len(tokens):
        return draft
    return replace(draft, tokens=draft.tokens[:kept], refused=tokens[kept])
