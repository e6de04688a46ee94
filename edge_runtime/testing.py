"""Fakes for tests, the users' own included. Knows no numerics of a real model, and needs no file and no device.

``FakeEngine`` is a language model whose next logits are a hash of the tokens in its cache. It keeps the
positional contract of ``engines.protocol`` to the letter: what a caller forgot to feed, fed twice or left behind a
rejection changes the logits, so that a decoder's mistake shows in its text.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from .cost import CostTable
from .decoder import Decoder
from .drafters.protocol import DraftContext, DraftProposal
from .engines.protocol import EngineInfo, Floats, HeadOutput, HeadRequest, Ids, StepInput, StepOutput
from .errors import EngineError
from .noise import gumbel, uniforms
from .session import Session, StepResult

_UNWRITTEN = -1
_PADDING = -2
_LOGITS = 0x5EED
_OTHER = 0x0DD


class ManualClock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def advance(self, seconds: float) -> None:
        self.now_s += seconds


@dataclass(frozen=True, slots=True)
class FakeModel:
    """What a ``FakeEngine`` computes. Two engines of one ``FakeModel`` are the same model."""

    vocab_size: int = 64
    seed: int = 0
    order: int | None = None
    """The last tokens that the logits depend on; ``None``: all of them, so that no stale entry goes unseen."""
    scale: float = 2.0
    """Of the logits: a larger one is a more certain model."""
    agreement: float = 1.0
    """Share of the model of this seed in the logits, the rest being another one's: 1 is the model itself, 0 has
    nothing to do with it, -1 wants the contrary."""

    def digest(self, tokens: Ids) -> int:
        """What a row behind ``tokens`` [n] knows of them. A chain, so that order and length count."""
        digest = 0
        for token in tokens.tolist() if self.order is None else tokens[-self.order :].tolist():
            digest = self.extend(digest, token)
        return digest

    def extend(self, digest: int, token: int) -> int:
        return int(uniforms(digest, token, 0) * 2.0**52)

    def logits(self, digest: int, ids: Ids) -> Floats:
        """[len(ids)]"""
        own = gumbel(self.seed ^ _LOGITS, digest, ids)
        if self.agreement != 1.0:
            other = gumbel(self.seed ^ _OTHER, digest, ids)
            own = self.agreement * own + (1.0 - abs(self.agreement)) * other
        scaled: Floats = (self.scale * own).astype(np.float32)
        return scaled


CallKind = Literal["forward", "head", "logits", "copy"]


@dataclass(frozen=True, slots=True)
class FakeCall:
    """One call that a ``FakeEngine`` answered."""

    kind: CallKind
    slot: int
    """The one written to, of a copy."""
    first: int
    """Position of the first token, the first row of a head, or the slot that a copy reads."""
    rows: int


class FakeEngine:
    """Implements ``engines.protocol.Engine``. Public attributes are for tests to read and set."""

    def __init__(
        self,
        model: FakeModel | None = None,
        *,
        capacity: int = 128,
        slots: int = 1,
        max_rows: int = 16,
        candidates: int = 8,
        min_rows: int = 1,
        token_ids: Ids | None = None,
        clock: ManualClock | None = None,
        cost: CostTable | None = None,
    ) -> None:
        """``token_ids`` rising, for a reduced head. ``clock`` moves by what ``cost`` says a call takes."""
        self.model = model or FakeModel()
        self._ids: Ids = np.arange(self.model.vocab_size) if token_ids is None else np.asarray(token_ids, np.int64)
        self._info = EngineInfo(
            vocab_size=len(self._ids),
            hidden_size=1,
            capacity=capacity,
            slots=slots,
            max_rows=max_rows,
            candidates=min(candidates, len(self._ids)),
            min_rows=min_rows,
            token_ids=None if token_ids is None else self._ids,
        )
        # One spare entry for the padded row of min_rows 2.
        self.cache: Ids = np.full((slots, capacity + 1), _UNWRITTEN, np.int64)
        """[slots, capacity + 1] tokens"""
        # As K/V, an entry is made from those before it when it is written, and keeps what was wrong with them.
        self._digests = [[_UNWRITTEN] * (capacity + 1) for _ in range(slots)]
        self.calls: list[FakeCall] = []
        self.fail_after: int | None = None
        """Calls but those of ``logits`` that still succeed; then one raises ``EngineError``."""
        self.broken_rows = False
        """Whether logits are NaN, as after a numeric overflow."""
        self._clock, self._cost = clock, cost
        self._slot = self._position = self._rows = 0
        self._logits: Floats = np.zeros((0, len(self._ids)), np.float32)
        self._hidden: Floats = np.zeros((max_rows, 1), np.float32)

    @property
    def info(self) -> EngineInfo:
        return self._info

    def forward(self, step: StepInput) -> StepOutput:
        info, count = self._info, len(step.tokens)
        if not (0 <= step.slot < info.slots and 1 <= count <= info.max_rows):
            raise ValueError(f"slot {step.slot} of {info.slots}, {count} rows of at most {info.max_rows}")
        if not 0 <= step.position <= info.capacity - count:
            raise ValueError(f"tokens [{step.position}, {step.position + count}) leave a slot of {info.capacity}")
        if int(step.tokens.min()) < 0 or int(step.tokens.max()) >= self.model.vocab_size:
            raise ValueError("a token id is outside the embedding table")
        self.calls.append(FakeCall("forward", step.slot, step.position, count))
        # Fails half-way, with entries already written: the worst that a device can do.
        self._write(step.slot, step.position, step.tokens)
        if info.min_rows > count:
            self._write(step.slot, step.position + count, np.full(1, _PADDING))
        self._fail()
        self._slot, self._position, self._rows = step.slot, step.position, count
        if self._clock is not None and self._cost is not None:
            self._clock.advance(self._cost.body(count))
        head = None if step.head is None else self.head(step.head)
        return StepOutput(head, self._hidden[:count])

    def head(self, request: HeadRequest) -> HeadOutput:
        first, count = request.first, request.stop - request.first
        if not (first >= 0 and count >= 1 and request.stop <= self._rows):
            raise ValueError(f"head rows [{first}, {request.stop}) of {self._rows}")
        self.calls.append(FakeCall("head", self._slot, first, count))
        self._fail()
        if self._clock is not None and self._cost is not None:
            self._clock.advance(self._cost.head(count))
        logits = np.stack([self._row(self._position + row) for row in range(first, request.stop)])
        self._logits = logits
        # Stable: ties by rising id.
        falling = np.argsort(-logits, axis=1, kind="stable")[:, : self._info.candidates]
        scaled = logits.astype(np.float64) * request.inverse_temperature
        top = scaled.max(axis=1)
        return HeadOutput(
            argmax=self._ids[falling[:, 0]],
            candidate_ids=self._ids[falling],
            candidate_logits=np.take_along_axis(logits, falling, axis=1),
            logsumexp=(top + np.log(np.exp(scaled - top[:, None]).sum(axis=1))).astype(np.float32),
            gathered=self._gathered(logits, request.gather_ids),
        )

    def logits(self, row: int) -> Floats:
        self.calls.append(FakeCall("logits", self._slot, row, 1))
        full: Floats = self._logits[row]
        return full

    def copy_prefix(self, source: int, target: int, count: int) -> None:
        info = self._info
        if not (0 <= source < info.slots and 0 <= target < info.slots and 0 <= count <= info.capacity):
            raise ValueError(f"{count} entries of slot {source} into slot {target}: {info.slots} of {info.capacity}")
        self.calls.append(FakeCall("copy", target, source, count))
        done = count if self.fail_after != 0 else count // 2
        self.cache[target, :done] = self.cache[source, :done]
        self._digests[target][:done] = self._digests[source][:done]
        self._fail()

    def hidden_rows(self, slot: int) -> Floats:
        raise ValueError("this engine keeps no hidden rows")

    def close(self) -> None:
        self.cache = self.cache[:0]

    def rows_of(self, kind: CallKind) -> list[int]:
        """Rows of each call of a kind, in order."""
        return [call.rows for call in self.calls if call.kind == kind]

    def _write(self, slot: int, position: int, tokens: Ids) -> None:
        digests, cache, model = self._digests[slot], self.cache[slot], self.model
        for place, token in enumerate(tokens.tolist(), start=position):
            cache[place] = token
            if model.order is not None:
                digests[place] = model.digest(cache[: place + 1])
            else:
                digests[place] = model.extend(digests[place - 1] if place else 0, token)

    def _row(self, position: int) -> Floats:
        row = self.model.logits(self._digests[self._slot][position], self._ids)
        return np.full_like(row, np.nan) if self.broken_rows else row

    def _gathered(self, logits: Floats, gather_ids: Ids | None) -> Floats | None:
        if gather_ids is None:
            return None
        if len(gather_ids) != len(logits):
            raise ValueError(f"{len(gather_ids)} ids to gather from {len(logits)} rows")
        places = np.minimum(np.searchsorted(self._ids, gather_ids), len(self._ids) - 1)
        if not np.array_equal(self._ids[places], gather_ids):
            raise ValueError("a gathered id is not in the head")
        return logits[np.arange(len(logits)), places]

    def _fail(self) -> None:
        if self.fail_after is None:
            return
        if self.fail_after == 0:
            self.fail_after = None
            raise EngineError("the fake engine was told to fail")
        self.fail_after -= 1


class ScriptedDraft:
    """Implements ``drafters.protocol.Drafter``: drafts a text known beforehand, wrong where it is told to be."""

    name = "scripted"

    def __init__(self, text: Sequence[int], wrong_at: Sequence[int] = (), max_k: int = 8) -> None:
        """``text``: prompt and answer; ``wrong_at``: positions of the text, counted from its start."""
        self.max_k = max_k
        self.observed: list[int] = []
        self._text: Ids = np.asarray(text, np.int64).copy()
        self._text[list(wrong_at)] ^= 1

    def warm(self, context: DraftContext) -> int:
        return 0

    def propose(self, context: DraftContext, k: int) -> DraftProposal:
        count = len(context.tokens)
        return DraftProposal(self._text[count : count + min(k, self.max_k)], None, self.name)

    def observe(self, slot: int, accepted: int) -> None:
        self.observed.append(accepted)

    def reset(self, slot: int) -> None:
        pass


Rule = Callable[[tuple[int, ...]], Collection[int]]
"""The answer so far -> the tokens that may come next, end-of-text ids among them."""


class FakeGrammar:
    """Implements ``text.grammar.Grammar`` by a rule."""

    def __init__(self, rule: Rule, vocab_size: int = 64) -> None:
        self.rule, self.vocab_size = rule, vocab_size

    @staticmethod
    def one_of(texts: Collection[Sequence[int]], eos: int, vocab_size: int = 64) -> FakeGrammar:
        """One of some texts, and then the end."""

        def rule(prefix: tuple[int, ...]) -> set[int]:
            count = len(prefix)
            left = [text for text in texts if tuple(text[:count]) == prefix]
            return {eos if len(text) == count else text[count] for text in left}

        return FakeGrammar(rule, vocab_size)

    def start(self) -> FakeGrammarState:
        return FakeGrammarState(self)


class FakeGrammarState:
    """Forces what the rule leaves no choice about."""

    def __init__(self, grammar: FakeGrammar) -> None:
        self._grammar = grammar
        self.accepted: list[int] = []
        self._mask = np.zeros(grammar.vocab_size, np.bool_)

    def _next(self, *more: int) -> Collection[int]:
        return self._grammar.rule((*self.accepted, *more))

    def allowed(self) -> NDArray[np.bool_]:
        self._mask[:] = False
        self._mask[list(self._next())] = True
        return self._mask

    def allows(self, token: int) -> bool:
        self._mask[:] = False  # as promised: the view is void now
        return token in self._next()

    def forced(self, most: int) -> list[int]:
        self._mask[:] = False
        forced: list[int] = []
        while len(forced) < most and len(only := list(self._next(*forced))) == 1:
            forced += only
        return forced

    def valid_prefix(self, tokens: list[int]) -> int:
        self._mask[:] = False
        return next((i for i, token in enumerate(tokens) if token not in self._next(*tokens[:i])), len(tokens))

    def accept(self, token: int) -> None:
        if not self.allows(token):
            raise ValueError(f"token {token} is not allowed behind {self.accepted}")
        self.accepted.append(token)

    def rollback(self, count: int) -> None:
        self._mask[:] = False
        if not 0 <= count <= len(self.accepted):
            raise ValueError(f"cannot take back {count} of {len(self.accepted)} tokens")
        del self.accepted[len(self.accepted) - count :]


def decode(decoder: Decoder, session: Session) -> list[StepResult]:
    """The steps of a session from where it is to its end."""
    results = []
    if session.length == session.prompt_len:
        results.append(decoder.prefill(session))
    while session.finish_reason is None:
        results.append(decoder.step(session))
    return results
