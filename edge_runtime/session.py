"""The decoding state of one request. Knows no engine, no drafter, no text and no clock.

The truth about the target's cache is one integer, ``kv_len``: entries below it belong to ``tokens``, whatever lies
behind is void and will be overwritten. Rolling back is making it smaller.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from .choice import TextMemory
from .cost import HeadMode
from .drafters.prediction import Prediction
from .engines.protocol import EngineInfo, Ids
from .errors import InputError, PromptTooLong
from .health import Drafted
from .ledger import TextState
from .repetition import LEAST_SPAN
from .reuse import ONE, Owner
from .sampling import SamplingParams
from .shaper import shaper_for
from .shaping import ShapingParams
from .text.grammar import Grammar

if TYPE_CHECKING:
    from .drafting import Warming

FinishReason = Literal["stop", "length"]
Policy = Literal["lossless", "exact", "sampled", "threshold"]
"""How a draft is accepted. Lossless: by whichever of the next two fits. Exact: when it is the very token that the
target takes, drawn without a look at the draft. Sampled: by rejection sampling, which accepts most. Threshold, LOSSY:
when the target gives it enough."""
Kind = Literal["recovered", "bonus", "ended"]

Top = tuple[tuple[int, float], ...]
"""(id, log-probability) of a token's best alternatives, falling."""

MOST_TOP_LOGPROBS = 20

PREDICTION, GRAMMAR = "prediction", "grammar"
"""Sources of drafts that no drafter made."""

_GREEDY = SamplingParams(temperature=0.0)
_UNSHAPED = ShapingParams()


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Seconds of one step; what an engine did not take is overhead."""

    draft_s: float
    catch_up_s: float
    """Feeding the draft's cache with what it missed."""
    body_s: float
    """The target without its head."""
    head_s: float
    overhead_s: float

    @property
    def verify_s(self) -> float:
        return self.body_s + self.head_s

    @property
    def total_s(self) -> float:
        return self.draft_s + self.catch_up_s + self.body_s + self.head_s + self.overhead_s


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one step committed, and how."""

    tokens: tuple[int, ...]
    """Never empty: the accepted drafts, then the recovered or bonus token unless the text ended before it."""
    logprobs: tuple[float, ...]
    """Of ``tokens``, see ``Session.logprobs``."""
    k: int
    """num_draft_tokens that the length policy asked for."""
    drafted: int
    """What the drafter gave, up to and with a token that the grammar forbids; where the text ended inside the draft,
    only what was judged."""
    accepted: int
    kind: Kind
    """``ended``: an accepted draft token ended the text, so there is no token after it."""
    rows: int
    """T of the target's forward."""
    head_mode: HeadMode
    head_calls: tuple[tuple[int, float], ...]
    """(rows, seconds) of each call of the head."""
    caught_up: int
    """Tokens that the draft's cache had missed and was fed."""
    source: str
    """Of the draft, or empty."""
    reason: str
    """Why this K, and why the draft is shorter than that."""
    times: StepTimes
    finish_reason: FinishReason | None
    top: tuple[Top, ...] | None = None
    """Of each of ``tokens``, where the session asked for them."""
    draft_log_likelihood: float = 0.0
    """Sum over the ``scored`` drafts, under the target as ``logprobs``."""
    scored: int = 0
    """Drafts that were judged, but for one that the grammar forbids."""

    @property
    def tried(self) -> int:
        """Drafts that were judged."""
        return min(self.accepted + 1, self.drafted)


@dataclass(slots=True)
class SourceTotals:
    """Of the steps that one source drafted."""

    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    draft_s: float = 0.0
    """Catching up included."""


@dataclass(slots=True)
class Totals:
    """Sums over the steps behind the prefill; they only grow, whatever is cut from the text afterwards."""

    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    committed: int = 0
    tried_by_position: list[int] = field(default_factory=list)
    """Drafts that were judged, by their place in the draft."""
    accepted_by_position: list[int] = field(default_factory=list)
    steps_by_drafted: dict[int, int] = field(default_factory=dict)
    """Drafted tokens -> steps."""
    predicted: int = 0
    """Tokens of the client's prediction that were judged."""
    predicted_accepted: int = 0
    draft_s: float = 0.0
    """Catching up included."""
    verify_s: float = 0.0
    overhead_s: float = 0.0
    draft_log_likelihood: float = 0.0
    """Sum over ``scored``."""
    scored: int = 0
    by_source: dict[str, SourceTotals] = field(default_factory=dict)

    @property
    def acceptance_by_position(self) -> tuple[float, ...]:
        """Of a draft token that was judged, by its place in the draft."""
        pairs = zip(self.accepted_by_position, self.tried_by_position, strict=True)
        return tuple(accepted / tried for accepted, tried in pairs)

    @property
    def drafting(self) -> Drafted:
        """As health looks at it."""
        return Drafted(
            steps=self.steps,
            drafted=self.drafted,
            accepted=self.accepted,
            scored=self.scored,
            log_likelihood=self.draft_log_likelihood,
            draft_s=self.draft_s,
            verify_s=self.verify_s,
            host_s=self.overhead_s,
        )

    def add(self, result: StepResult) -> None:
        self.steps += 1
        self.drafted += result.drafted
        self.accepted += result.accepted
        self.committed += len(result.tokens)
        tried = result.tried
        if result.source == PREDICTION:
            self.predicted += tried
            self.predicted_accepted += result.accepted
        while len(self.tried_by_position) < tried:
            self.tried_by_position.append(0)
            self.accepted_by_position.append(0)
        for place in range(tried):
            self.tried_by_position[place] += 1
            self.accepted_by_position[place] += place < result.accepted
        self.steps_by_drafted[result.drafted] = self.steps_by_drafted.get(result.drafted, 0) + 1
        self.draft_log_likelihood += result.draft_log_likelihood
        self.scored += result.scored
        times = result.times
        if result.source:
            own = self.by_source.setdefault(result.source, SourceTotals())
            own.steps += 1
            own.drafted += result.drafted
            own.accepted += result.accepted
            own.draft_s += times.draft_s + times.catch_up_s
        self.draft_s += times.draft_s + times.catch_up_s
        self.verify_s += times.body_s + times.head_s
        self.overhead_s += times.overhead_s


class Session:
    """Tokens, their log-probabilities, and how far the target's cache has them."""

    __slots__ = (
        "_buffer", "_logprobs", "asks_drafter", "choosing", "drafting", "eos_ids", "finish_reason", "kv_len", "length",
        "limit", "max_draft_tokens", "owner", "params", "policy", "predicting", "prediction", "prefill_s",
        "prompt_len", "repeat_limit", "repetition", "rng", "seed", "shaper", "slot", "threshold", "top_logprobs",
        "totals", "undrafted", "warming",
    )  # fmt: skip

    def __init__(
        self,
        info: EngineInfo,
        prompt: Sequence[int] | Ids,
        params: SamplingParams,
        *,
        max_tokens: int | None = None,
        eos_ids: Sequence[int] = (),
        seed: int | None = None,
        rng: np.random.Generator | None = None,
        policy: Policy = "lossless",
        threshold: float = 0.5,
        slot: int = 0,
        kv_len: int = 0,
        shaping: ShapingParams = _UNSHAPED,
        grammar: Grammar | None = None,
        top_logprobs: int | None = None,
        prediction: Sequence[int] | Ids | None = None,
        max_draft_tokens: int | None = None,
        repeat_limit: int | None = None,
        owner: Owner = ONE,
    ) -> None:
        """``info`` is the target's. ``max_tokens`` ``None``: as many as the context holds.

        ``seed`` makes the text a function of the prompt; without one, ``rng`` (by default a fresh one) draws.
        ``kv_len`` entries of the slot are known to hold the first tokens of this very prompt.
        ``top_logprobs``: alternatives that each token comes with, and its log-probability is then the model's own.
        ``prediction``: what the text may turn out to be; drafts. ``max_draft_tokens``: most of K, 0 for plain decoding.
        ``repeat_limit``: the text ends once so many tokens at its end only repeat themselves.
        ``owner``: whose text it is, which only that one's later texts may be drafted from.
        Prompt and text together never exceed the capacity. Raises ``InputError``, ``PromptTooLong``.
        """
        ids = _checked_prompt(info, prompt)
        _check_options(info, max_tokens, max_draft_tokens, top_logprobs, repeat_limit)
        if not 0 <= kv_len <= len(ids):
            raise InputError(f"{kv_len} cached tokens of a prompt of {len(ids)}")
        check_policy(policy, params, seed, threshold)
        self.prompt_len = self.length = len(ids)
        self.limit = info.capacity if max_tokens is None else min(info.capacity, len(ids) + max_tokens)
        self._buffer: Ids = np.zeros(self.limit, np.int64)
        self._buffer[: len(ids)] = ids
        self._logprobs: NDArray[np.float64] = np.zeros(self.limit - len(ids))
        # The lossy rule of the article reads the law at temperature 1 and takes the target's best token.
        self.params = params if policy != "threshold" else _GREEDY
        self.policy: Policy = policy
        self.threshold = threshold
        self.seed = seed
        self.rng = rng if rng is not None else np.random.default_rng()
        self.eos_ids = frozenset(int(token) for token in eos_ids)
        self.slot = slot
        self.kv_len = kv_len
        self.shaper = shaper_for(shaping, grammar, info.vocab_size, self.eos_ids)
        """``None``: the law is the model's."""
        self.top_logprobs = top_logprobs
        self.max_draft_tokens = max_draft_tokens
        self.repeat_limit = repeat_limit
        self.owner = owner
        self.prediction = None if prediction is None else Prediction(prediction, info.vocab_size)
        self._begin(info)

    def _begin(self, info: EngineInfo) -> None:
        self.finish_reason: FinishReason | None = None
        self.repetition = ""
        """What ended the text, if that was the repeat limit."""
        self.drafting = TextState()
        """Of the length policy, on the drafter; the next one, on the prediction."""
        self.predicting = TextState()
        self.choosing = TextMemory()
        """Of a chooser, on all of them."""
        self.warming: Warming | None = None
        """A draft that is not made yet."""
        self.asks_drafter = False
        """Whether a drafter is at work for it, or failed in the midst of that."""
        self.undrafted = ""
        """Why nobody drafts for this text any more; empty while somebody may."""
        self.prefill_s = 0.0
        self.totals = Totals()

    @property
    def tokens(self) -> Ids:
        """[length] prompt and text, a view."""
        return self._buffer[: self.length]

    @property
    def generated(self) -> Ids:
        """[length - prompt_len] the text's tokens, the one that ended it included; a view."""
        return self._buffer[self.prompt_len : self.length]

    @property
    def logprobs(self) -> NDArray[np.float64]:
        """[length - prompt_len] of ``generated`` under the model, before bias, penalties, grammar and filters; a view.

        At the request's temperature (1 for greedy); at 1 for every request with ``top_logprobs``.
        """
        return self._logprobs[: self.length - self.prompt_len]

    @property
    def log_likelihood(self) -> float:
        """Sum of ``logprobs``."""
        return float(self.logprobs.sum())

    @property
    def room(self) -> int:
        """Tokens that may still be committed."""
        return self.limit - self.length

    def pending_with(self, draft: Ids) -> Ids:
        """[length - kv_len + K] what the target has to see next; a view.

        The draft lies in the buffer behind ``length``, where nothing is valid: an accepted token is in place.
        """
        if len(draft):
            self._buffer[self.length : self.length + len(draft)] = draft
        return self._buffer[self.kv_len : self.length + len(draft)]

    def commit(self, tokens: Sequence[int], logprobs: Sequence[float], kv_len: int) -> None:
        """Append tokens [n], of which the cache has those below ``kv_len``."""
        end = self.length + len(tokens)
        self._buffer[self.length : end] = tokens
        self._logprobs[self.length - self.prompt_len : end - self.prompt_len] = logprobs
        # Last, so that an interruption leaves a session that is merely a step behind.
        self.length, self.kv_len = end, kv_len
        self._agree()

    def cut(self, length: int) -> None:
        """Take tokens back until ``length`` are left, their log-probabilities and cache entries with them."""
        if not self.prompt_len <= length <= self.length:
            raise ValueError(f"cannot cut {self.length} tokens to {length}: {self.prompt_len} are the prompt")
        self.length = length
        self.kv_len = min(self.kv_len, length)
        self.repetition, self.warming = "", None
        self._agree()

    def _agree(self) -> None:
        if self.shaper is not None:
            self.shaper.agree(self.generated)


def _checked_prompt(info: EngineInfo, prompt: Sequence[int] | Ids) -> Ids:
    ids = np.asarray(prompt, dtype=np.int64)
    if ids.ndim != 1 or len(ids) == 0:
        raise InputError("the prompt has no tokens", "prompt")
    if len(ids) >= info.capacity:
        raise PromptTooLong.of(str(len(ids)), info.capacity)
    if int(ids.min()) < 0 or int(ids.max()) >= info.vocab_size:
        raise InputError(f"the prompt holds a token id outside 0..{info.vocab_size - 1}", "prompt")
    return ids


def _check_options(
    info: EngineInfo,
    max_tokens: int | None,
    max_draft_tokens: int | None,
    top_logprobs: int | None,
    repeat_limit: int | None,
) -> None:
    _check_range("max_tokens", max_tokens, 1)
    _check_range("max_draft_tokens", max_draft_tokens, 0)
    _check_range("top_logprobs", top_logprobs, 0, min(MOST_TOP_LOGPROBS, info.candidates))
    _check_range("repeat_limit", repeat_limit, LEAST_SPAN)


def check_policy(policy: Policy, params: SamplingParams, seed: int | None, threshold: float = 0.5) -> None:
    """Raises ``InputError``."""
    if not 0.0 < threshold <= 1.0:
        raise InputError(f"the acceptance threshold must be in (0, 1], not {threshold}")
    if policy == "sampled" and seed is not None and not params.greedy:
        raise InputError("policy sampled: a seeded text must not hang on its drafts; exact does not", "seed")


def _check_range(name: str, value: int | None, least: int, most: int | None = None) -> None:
    if value is None or (value >= least and (most is None or value <= most)):
        return
    wanted = f"at least {least}" if most is None else f"in {least}..{most}"
    raise InputError(f"{name} must be {wanted}, not {value}", name)


def common_prefix(left: Ids, right: Ids) -> int:
    """Tokens that two sequences share at their start: what of a cache may be used again."""
    shared = min(len(left), len(right))
    differs = left[:shared] != right[:shared]
    return int(differs.argmax()) if differs.any() else shared
