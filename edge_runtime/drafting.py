"""Who drafts a step, and how much: the grammar, the client's prediction, or a drafter. Decides nothing itself.

What the grammar forces comes first, for it is hardly ever wrong and costs nothing. Then, with one drafter, a prediction
that agrees with the text so far, and the drafter as far as the length policy thinks that it pays. With several, a
chooser hears what prediction and free drafters have found, and says who drafts.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from .budget import Budget
from .drafters.chooser import Ask, Chooser, Offer
from .drafters.length import LengthPlan, LengthPolicy
from .drafters.protocol import NO_TOKENS, DraftContext, Drafter, DraftProposal, as_it_says
from .drafters.several import Several
from .engines.protocol import Engine, Floats, Ids
from .errors import EdgeError, EngineError
from .pacing import most_drafts
from .sampling import Distribution
from .session import GRAMMAR, PREDICTION, Session, StepResult
from .tree import Tree, chain_length

_LOG = logging.getLogger(__name__)
_SUM = 1e-3
"""What the probabilities of a draft's law may lack of one, by rounding."""

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
    confidences: tuple[float, ...] = ()
    """See ``DraftProposal``; the next one too."""
    parents: Ids | None = None

    @property
    def chain(self) -> Ids:
        """[K] without the alternatives."""
        return self.tokens if self.parents is None else self.tokens[: chain_length(self.parents)]

    @property
    def count(self) -> int:
        """Tokens that were proposed one behind the other, up to and with a refused one."""
        return len(self.chain) + (self.refused is not None)

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
    """One drafter and one length policy, or several and a chooser, for the sessions of one target."""

    def __init__(
        self, target: Engine, drafter: Drafter, length: LengthPolicy | Chooser, clock: Clock = time.perf_counter
    ) -> None:
        """Raises ``ValueError`` for a chooser that has nothing to choose from."""
        if isinstance(length, Chooser) and not isinstance(drafter, Several):
            raise ValueError("a chooser needs several drafters")
        self._drafter, self._length = drafter, length
        self._budget = Budget()
        self._target, self._info, self._clock = target, target.info, clock

    def govern(self, budget: Budget) -> None:
        """From the next draft on."""
        if budget is self._budget:
            return
        self._budget = budget
        if isinstance(self._length, Chooser):
            self._length.costs.govern(budget.power)

    def draft(self, session: Session) -> Draft | None:
        """For the next step of a session; its shaper, if any, stands behind the text.

        ``None``: the drafter was fed a chunk of what it lacks, and there may be more. The session remembers.

        A drafter that fails raises what it raises, and the text is as it was: ``give_up`` knows whether it was one.
        """
        if session.max_draft_tokens == 0:
            return Draft(LengthPlan(0, "batched", "K=0: the request wants no drafts"))
        if self._budget.max_draft_tokens == 0:
            return Draft(LengthPlan(0, "batched", f"K=0: {self._budget.reason}"))
        most = max(0, min(session.room, self._info.max_rows) - 1)
        if session.max_draft_tokens is not None:
            most = min(most, session.max_draft_tokens)
        most = most_drafts(most, self._budget)
        if session.warming is None:
            forced = self._forced(session, most)
            if forced is not None:
                return forced
        if session.undrafted:
            return Draft(LengthPlan(0, "batched", session.undrafted))
        session.asks_drafter = True
        draft = self._proposed(session, most)
        session.asks_drafter = False
        return None if draft is None else _allowed(draft, session)

    def _proposed(self, session: Session, most: int) -> Draft | None:
        if not isinstance(self._length, Chooser):
            return self._single(session, most, self._length)
        assert isinstance(self._drafter, Several)  # it was checked
        return self._chosen(session, most, self._length, self._drafter)

    def told(self, session: Session, accepted: int) -> None:
        """The drafter hears how many of its tokens were kept. One that fails here is given up, and the step stands:
        were it taken again, which of two draws counts would hang on what was drawn, and that bends the text's law."""
        session.asks_drafter = True
        try:
            self._drafter.observe(session.slot, accepted)
        except Exception as problem:  # noqa: BLE001 - whatever it was, the text does not need it
            self.give_up(session, problem)
        session.asks_drafter = False

    def forget(self, slot: int) -> str:
        """The slot is to be another text's. Why that text must go without drafts; empty where it need not."""
        try:
            self._drafter.reset(slot)
        except Exception as problem:  # noqa: BLE001 - whatever it was, texts do not need it
            found = f"K=0: {self._drafter.name} could not forget a text: {_named(problem)}"
            _LOG.warning("a drafter failed: %s", found)
            return found
        return ""

    def give_up(self, session: Session, problem: Exception) -> bool:
        """Whether it was the drafter that failed. A draft is a proposal, so its text can go on: plainly from here on,
        and the step that failed is to be taken again."""
        if not session.asks_drafter:
            return False
        session.asks_drafter = False
        session.undrafted = f"K=0: {self._drafter.name} failed: {_named(problem)}"
        session.warming = None
        _LOG.warning("a draft failed, and its text goes on without: %s", session.undrafted)
        self.forget(session.slot)
        return True

    def _forced(self, session: Session, most: int) -> Draft | None:
        """What the grammar leaves no choice about, if there is any."""
        forced = [] if session.shaper is None else session.shaper.forced(most)
        if not forced:
            return None
        plan = LengthPlan(len(forced), "batched", "the grammar leaves no choice")
        return self._checked(Draft(plan, np.array(forced, np.int64), None, GRAMMAR))

    def _single(self, session: Session, most: int, length: LengthPolicy) -> Draft | None:
        if session.warming is None:
            predicted = _predicted(session, most)
            if len(predicted):
                plan = length.plan(most, session.prompt_len, session.kv_len, session.predicting)
                if plan.k > 0:
                    return Draft(plan, predicted[: plan.k], None, PREDICTION)
            most = min(most, self._drafter.max_k)
            plan = length.plan(most, session.prompt_len, session.kv_len, session.drafting)
            if min(plan.k, most) < 1:
                return Draft(plan)
            session.warming = Warming(plan)
        plan = session.warming.plan
        return self._ask(session, session.warming, self._drafter, min(plan.k, most, self._drafter.max_k))

    def _chosen(self, session: Session, most: int, chooser: Chooser, several: Several) -> Draft | None:
        if session.warming is None:
            started = self._clock()
            found = self._found(session, min(most, chooser.free_k), several)
            ask = Ask(most, session.length, session.kv_len, session.room, session.params.greedy)
            offers = [Offer(name, made.tokens, made.evidence) for name, made in found.items()]
            plan = chooser.choose(ask, offers, session.choosing)
            if plan.k < 1:
                return Draft(plan, draft_s=self._clock() - started)
            if plan.source in found:
                made = found[plan.source]
                if plan.source != PREDICTION:
                    several.told_by(several.named(plan.source), session.slot)
                took_s = self._clock() - started
                return self._checked(Draft(plan, made.tokens[: plan.k], None, made.source, made.note, draft_s=took_s))
            several.told_by(several.named(plan.source), session.slot)
            session.warming = Warming(plan)
        plan = session.warming.plan
        chance = chooser.calibration(plan).chance
        return self._ask(session, session.warming, several.named(plan.source), min(plan.k, most), chance)

    def _found(self, session: Session, most: int, several: Several) -> dict[str, DraftProposal]:
        """What costs next to nothing to ask for, by source. Raises ``EngineError`` for what was drawn."""
        found = {}
        predicted = _predicted(session, most)
        if len(predicted):
            found[PREDICTION] = DraftProposal(predicted, None, PREDICTION)
        if most > 0 and several.free:
            context = self._context(session)
            for drafter in several.free:
                made = drafter.propose(context, most)
                if made.laws is not None:
                    raise EngineError(f"{drafter.name} draws, and so it cannot be asked for nothing")
                if len(made.tokens):
                    found[drafter.name] = made
        return found

    def observe(self, session: Session, draft: Draft, result: StepResult, kv_len: int) -> None:
        """After the step that was planned with ``kv_len``."""
        if isinstance(self._length, Chooser):
            self._length.observe(draft.plan, result, kv_len, session.choosing, draft.confidences)
        else:
            state = session.predicting if draft.source == PREDICTION else session.drafting
            self._length.observe(result, kv_len, state)

    def _context(
        self, session: Session, stop_below: float = 0.0, chance: Callable[[float], float] = as_it_says
    ) -> DraftContext:
        return DraftContext(
            tokens=session.tokens,
            slot=session.slot,
            params=session.params,
            seed=session.seed,
            uniform=session.rng.random,
            stop_below=stop_below,
            patience=self._info.max_rows,
            hidden=self._hidden(session),
            kv_len=session.kv_len,
            chance=chance,
            owner=session.owner,
        )

    def _ask(
        self,
        session: Session,
        warming: Warming,
        drafter: Drafter,
        k: int,
        chance: Callable[[float], float] = as_it_says,
    ) -> Draft | None:
        clock, plan = self._clock, warming.plan
        context = replace(self._context(session, plan.stop_below, chance), window=plan.window)
        if plan.branches and self._info.trees:
            spare = min(session.room, self._info.max_rows) - 1 - k
            context = replace(context, branches=max(0, min(plan.branches, spare)))
        started = clock()
        fed = drafter.warm(context)
        warmed = clock()
        warming = Warming(plan, warming.caught_up + fed, warming.catch_up_s + warmed - started)
        session.warming = warming if fed >= self._info.max_rows else None
        if session.warming is not None:
            return None
        proposal = drafter.propose(context, k)
        done = clock()
        if len(proposal.tokens) > k + (context.branches if proposal.parents is not None else 0):
            raise EngineError(f"{proposal.source} proposed {len(proposal.tokens)} tokens where {k} were asked for")
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
            confidences=proposal.confidences,
            parents=proposal.parents,
        )
        return self._checked(draft)

    def _hidden(self, session: Session) -> Floats | None:
        """The target's rows behind what its cache holds, for drafters that read them."""
        if not self._info.keeps_hidden:
            return None
        return self._target.hidden_rows(session.slot)[: min(session.kv_len, session.length - 1)]

    def _checked(self, draft: Draft) -> Draft:
        """Raises ``EngineError``: an id out of range would be read behind the end of a table, and a law that is none
        would bend the text's."""
        tokens, laws = draft.tokens, draft.laws
        if laws is not None and len(laws) != len(draft.chain):
            raise EngineError(f"{draft.source} proposed {len(draft.chain)} tokens with {len(laws)} laws")
        vocab_size = self._info.vocab_size
        if laws is not None and not all(map(partial(_is_law, vocab_size), laws, draft.chain.tolist())):
            raise EngineError(f"{draft.source} drew by what is no law of its token")
        if not all(one >= 0.0 for one in draft.confidences):
            raise EngineError(f"{draft.source} is sure of its tokens by what is not a number")
        if draft.parents is not None:
            Tree.of(tokens, draft.parents)
        if len(tokens) and not 0 <= int(tokens.min()) <= int(tokens.max()) < vocab_size:
            raise EngineError(f"{draft.source} proposed a token outside 0..{vocab_size - 1}")
        return draft


def _named(problem: Exception) -> str:
    # What nobody foresaw may quote a text.
    return str(problem) if isinstance(problem, EdgeError) else type(problem).__name__


def _is_law(vocab_size: int, law: Distribution, token: int) -> bool:
    """As ``Distribution`` promises, over the vocabulary, and one that ``token`` can be drawn from."""
    ids, probs = law.ids, law.probs
    if len(ids) != len(probs) or not (ids[1:] > ids[:-1]).all() or not 0 <= int(ids[0]) <= int(ids[-1]) < vocab_size:
        return False
    # Not the other way round: what is not a number is near to nothing.
    return abs(float(probs.sum()) - 1.0) < _SUM and float(probs.min()) >= 0.0 and law.prob(token) > 0.0


def _predicted(session: Session, most: int) -> Ids:
    if session.prediction is None or not most:
        return NO_TOKENS
    return session.prediction.following(session.generated, most)


def _allowed(draft: Draft, session: Session) -> Draft:
    """Up to the first token that the grammar forbids."""
    if session.shaper is None or not len(draft.tokens):
        return draft
    # What an alternative may be depends on another text than the one that the shaper stands behind.
    draft = replace(draft, tokens=draft.chain, parents=None)
    tokens = draft.tokens.tolist()
    kept = session.shaper.valid_prefix(tokens)
    if kept == len(tokens):
        return draft
    return replace(draft, tokens=draft.tokens[:kept], refused=tokens[kept])
