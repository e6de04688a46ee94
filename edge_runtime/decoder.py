"""The loop: propose, verify, accept, commit. Knows no text, no server and no hardware.

One forward of the target sees what its cache lacks and the draft behind it. Nothing of a session changes before
a step is decided, so an engine that fails, or a consumer that leaves, finds it as it was.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from .budget import Budget
from .drafters.chooser import Chooser
from .drafters.length import FixedLength, LengthPlan, LengthPolicy
from .drafters.protocol import Drafter, NoDraft
from .drafting import Clock as Clock
from .drafting import Draft, Drafting
from .engines.protocol import Engine, HeadOutput, HeadRequest, Ids, StepInput
from .engines.usable import refuse_unusable
from .repetition import period
from .sampling import Distribution, Probs
from .session import FinishReason, Kind, Session, StepResult, StepTimes, Top
from .tree import Tree, row_parents
from .verification import Judge, Row, judge_for

Progress = Callable[[int, int], None]
"""Told (tokens in the cache, tokens of the prompt) after each chunk of a prefill."""


@dataclass(slots=True)
class _Walk:
    """Verification under way: what was decided so far."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    top: list[Top] = field(default_factory=list)
    accepted: int = 0
    judged: int = 0
    chain: int = 0
    """Drafts one behind the other, before any alternative."""
    path: list[int] = field(default_factory=list)
    """Nodes of the draft's tree that were accepted and gone on from."""
    kind: Kind | None = None
    head_calls: list[tuple[int, float]] = field(default_factory=list)
    scored: int = 0
    draft_log_likelihood: float = 0.0
    """Of the ``scored`` drafts."""

    @property
    def node(self) -> int:
        """Of the draft's tree that the walk stands on, -1 for the text."""
        return self.path[-1] if self.path else -1


class Decoder:
    """One target, one drafter, any number of sessions in turn. Belongs to the thread that owns the engines."""

    def __init__(
        self,
        target: Engine,
        drafter: Drafter | None = None,
        length: LengthPolicy | Chooser | None = None,
        *,
        max_head_rows: int | None = None,
        clock: Clock = time.perf_counter,
    ) -> None:
        """Without a drafter, plain decoding. ``max_head_rows``: most rows that one call of the head may read.

        Raises ``ValueError`` for a target with a reduced head: its text would not be the model's.
        """
        info = target.info
        if info.token_ids is not None:
            raise ValueError("a target needs its full vocabulary")
        self.target = target
        self.drafter: Drafter = drafter if drafter is not None else NoDraft()
        self.length: LengthPolicy | Chooser = length if length is not None else FixedLength(self.drafter.max_k)
        self._drafting = Drafting(target, self.drafter, self.length, clock)
        self._info = info
        self._max_head_rows = min(max_head_rows or info.max_rows, info.max_rows)
        self._clock = clock
        self._gather: Ids = np.zeros(info.max_rows, np.int64)
        # Written to now: what draws from whole rows is paid for here, and never again.
        self.scratch: Probs = np.full((2, info.vocab_size), 0.0)
        """Of the thread that steps; its contents are nobody's."""

    def govern(self, budget: Budget) -> None:
        """What the next steps may draft, and the power that they are priced by. Cheap while it stays the same."""
        self._drafting.govern(budget)

    def goes_on_without(self, session: Session, problem: Exception) -> bool:
        """After a turn that raised: whether a drafter failed, and the turn may be repeated without one. The text is the
        same, and status says why it is slower."""
        return self._drafting.give_up(session, problem)

    def forget_drafts(self, slot: int) -> str:
        """What drafters remember of a slot that is to be another text's. Why that text must go without drafts; empty
        where it need not."""
        return self._drafting.forget(slot)

    def prefill(self, session: Session, progress: Progress | None = None) -> StepResult:
        """Everything that the cache lacks, then the first token; a valid ``kv_len`` > 0 saves its part.

        An exception out of ``progress`` stops it between two chunks, and calling again goes on from there.
        """
        _refuse_finished(session)
        while (result := self._prefill_turn(session)) is None:
            if progress is not None:
                progress(session.kv_len, session.prompt_len)
        if progress is not None:
            progress(session.prompt_len, session.prompt_len)
        return result

    def advance(self, session: Session) -> StepResult | None:
        """One turn of a session among others: a chunk that a cache lacks, its draft's too (``None``), or a step.

        The first step is the prefill's. An engine that fails leaves the text as it was: the turn may be repeated.
        """
        _refuse_finished(session)
        if session.length == session.prompt_len:
            return self._prefill_turn(session)
        return None if self._fed_chunk(session) else self._turn(session)

    def step(self, session: Session) -> StepResult:
        """One step of a session; also the first, though ``prefill`` reports progress."""
        _refuse_finished(session)
        while (result := self._turn(session)) is None:
            pass
        return result

    def _turn(self, session: Session) -> StepResult | None:
        started = self._clock()
        self._settle(session)
        kv_len = session.kv_len
        draft = self._drafting.draft(session)
        if draft is None:
            return None
        result = self._step(session, draft, started)
        session.totals.add(result)
        self._drafting.observe(session, draft, result, kv_len)
        return result

    def _prefill_turn(self, session: Session) -> StepResult | None:
        started = self._clock()
        try:
            if self._fed_chunk(session):
                return None
            self._settle(session)
            return self._step(session, Draft(LengthPlan(0, "batched", "prefill")), self._clock())
        finally:
            session.prefill_s += self._clock() - started

    def _fed_chunk(self, session: Session, drafted: int = 0) -> bool:
        """Feed one chunk, unless all that the cache lacks fits one forward with a draft behind it."""
        if session.length - session.kv_len + drafted <= self._info.max_rows:
            return False
        # The last token is never fed here: its row is what the step reads.
        stop = min(session.kv_len + self._info.max_rows, session.length - 1)
        self.target.forward(StepInput(session.slot, session.tokens[session.kv_len : stop], session.kv_len, None))
        session.kv_len = stop
        return True

    def _settle(self, session: Session) -> None:
        """Whatever a step that failed left behind, or a text that was cut."""
        # A cache that holds even the last token (after a cut, or a reused prefix) has no row to decide on.
        session.kv_len = min(session.kv_len, session.length - 1)
        if session.shaper is not None:
            session.shaper.agree(session.generated)

    def _step(self, session: Session, draft: Draft, started: float) -> StepResult:
        clock = self._clock
        while self._fed_chunk(session, len(draft.tokens)):
            pass
        position, first = session.kv_len, session.length - 1 - session.kv_len
        fed = session.pending_with(draft.tokens)
        before = clock()
        parents = None if draft.parents is None else row_parents(first, draft.parents)
        self.target.forward(StepInput(session.slot, fed, position, None, parents=parents))
        body_s = clock() - before
        walk = self._verify(session, draft, first)
        if walk.node >= len(walk.path):
            before = clock()
            self.target.keep_path(session.slot, session.length, np.array(walk.path, np.int64))
            body_s += clock() - before
        repetition = _end_repetition(session, walk)
        session.commit(walk.tokens, walk.logprobs, session.length + walk.accepted)
        session.repetition = repetition
        session.finish_reason = finish_reason = _finish(session)
        if draft.by_drafter:
            self._drafting.told(session, walk.accepted)
        head_s = 0.0
        for _, seconds in walk.head_calls:
            head_s += seconds
        engines_s = draft.draft_s + draft.catch_up_s - draft.earlier_s + body_s + head_s
        assert walk.kind is not None  # the walk ends by one
        return StepResult(
            tokens=tuple(walk.tokens),
            logprobs=tuple(walk.logprobs),
            k=draft.plan.k,
            # Where the text ended, or left the chain, what was drafted behind was never tried.
            drafted=walk.judged if walk.kind == "ended" or walk.node >= walk.chain else draft.count,
            accepted=walk.accepted,
            kind=walk.kind,
            rows=len(fed),
            head_mode=draft.plan.head_mode,
            head_calls=tuple(walk.head_calls),
            caught_up=draft.caught_up,
            source=draft.source,
            reason=f"{draft.plan.reason}; {draft.note}" if draft.note else draft.plan.reason,
            times=StepTimes(draft.draft_s, draft.catch_up_s, body_s, head_s, clock() - started - engines_s),
            finish_reason=finish_reason,
            top=None if session.top_logprobs is None else tuple(walk.top),
            draft_log_likelihood=walk.draft_log_likelihood,
            scored=walk.scored,
        )

    def _verify(self, session: Session, draft: Draft, first: int) -> _Walk:
        """Rows ``first`` + 0..K of the last forward, until a draft is rejected or the text ends; then alternatives."""
        judge = judge_for(session)
        walk = self._verify_chain(session, draft, draft.chain, judge, first)
        if draft.parents is None:
            return walk
        tree = Tree.of(draft.tokens, draft.parents)
        while walk.kind == "recovered" and (node := tree.alternative(walk.node, walk.tokens[-1])) is not None:
            walk.accepted += 1
            walk.path.append(node)
            walk.kind = "ended" if walk.tokens[-1] in session.eos_ids else None
            while walk.kind is None:
                self._verify_behind(session, tree, walk, judge, first)
        return walk

    def _verify_chain(self, session: Session, draft: Draft, chain: Ids, judge: Judge, first: int) -> _Walk:
        rows = len(chain) + 1
        group = rows if draft.plan.head_mode == "batched" else draft.plan.head_mode
        group = min(group, self._max_head_rows)
        gather: Ids | None = None
        if judge.gathers or rows > 1:
            gather = self._gather[:rows]
            gather[:-1] = chain
            gather[-1] = 0  # the bonus row has no draft
        drafted = chain.tolist()
        if draft.refused is not None and draft.laws is not None:
            drafted.append(draft.refused)
        walk = _Walk(chain=len(chain))
        for start in range(0, rows, group):
            stop = min(start + group, rows)
            head = self._head(walk, judge, first + start, first + stop, None if gather is None else gather[start:stop])
            for index in range(start, stop):
                row = Row(self.target, head, index - start, judge.inverse_temperature, self.scratch, session.shaper)
                law = None if draft.laws is None or index == len(drafted) else draft.laws[index]
                _decide(walk, judge, row, drafted[index] if index < len(drafted) else None, law, session)
                if index < min(walk.judged, len(chain)):
                    walk.scored += 1
                    walk.draft_log_likelihood += row.draft_logprob
                if walk.kind is not None:
                    return walk
                walk.path.append(index)
        return walk

    def _verify_behind(self, session: Session, tree: Tree, walk: _Walk, judge: Judge, first: int) -> None:
        """The row of the alternative that the walk stands on. Few are reached, so each is read out alone."""
        node = walk.node
        behind = tree.next(node)
        gather = self._gather[:1]
        gather[0] = 0 if behind is None else tree.tokens[behind]
        head = self._head(walk, judge, first + 1 + node, first + 2 + node, gather if judge.gathers else None)
        row = Row(self.target, head, 0, judge.inverse_temperature, self.scratch, session.shaper)
        _decide(walk, judge, row, None if behind is None else tree.tokens[behind], None, session)
        if behind is not None and walk.kind in (None, "ended"):
            walk.path.append(behind)

    def _head(self, walk: _Walk, judge: Judge, first: int, stop: int, gather: Ids | None) -> HeadOutput:
        before = self._clock()
        head = self.target.head(HeadRequest(first, stop, judge.inverse_temperature, gather))
        refuse_unusable(head, self._info.vocab_size)
        walk.head_calls.append((stop - first, self._clock() - before))
        return head


def _decide(walk: _Walk, judge: Judge, row: Row, draft: int | None, law: Distribution | None, session: Session) -> None:
    """Take the row's token into the walk, and end it where nothing behind can matter."""
    position = session.length + len(walk.tokens)
    if draft is None:
        token = judge.draw(row, position)
        walk.kind = "bonus"
    else:
        decision = judge.decide(row, draft, law, position)
        token = decision.token
        walk.judged += 1
        if decision.accepted:
            walk.accepted += 1
            if token in session.eos_ids:
                walk.kind = "ended"
        else:
            walk.kind = "recovered"
    if session.shaper is not None:
        session.shaper.follow(token)
    walk.tokens.append(token)
    if session.top_logprobs is None:
        walk.logprobs.append(row.logprob(token))
    else:
        own, best = row.raw_logprobs(token, session.top_logprobs)
        walk.logprobs.append(own)
        walk.top.append(best)


def _end_repetition(session: Session, walk: _Walk) -> str:
    """Cut the walk where plain decoding would have ended a text that only repeats itself; says so."""
    span = session.repeat_limit
    if span is None:
        return ""
    text = np.concatenate([session.generated[-span:], np.array(walk.tokens, np.int64)])
    for left in range(len(walk.tokens) - 1, -1, -1):
        found = period(text[: len(text) - left], span)
        if found is None:
            continue
        count = len(walk.tokens) - left
        if left:
            walk.accepted = walk.judged = count
            walk.kind = "ended"
        del walk.tokens[count:], walk.logprobs[count:], walk.top[count:]
        return f"the last {span} tokens only repeat themselves, every {found}"
    return ""


def _refuse_finished(session: Session) -> None:
    if session.finish_reason is not None or session.room < 1:
        raise ValueError("the session is finished")


def _finish(session: Session) -> FinishReason | None:
    if int(session.tokens[-1]) in session.eos_ids:
        return "stop"
    return None if session.room and not session.repetition else "length"
