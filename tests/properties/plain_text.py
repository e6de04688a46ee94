"""The one right answer to a request, token by token and from the definitions. Knows no engine, session or drafter."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from edge_runtime.acceptance import gumbel_pick
from edge_runtime.noise import gumbel
from edge_runtime.sampling import SamplingParams, law_from_logits
from edge_runtime.shaping import ShapingParams
from edge_runtime.testing import FakeModel
from edge_runtime.testing.grammar import Rule

VOCAB = 24
PIECES = (
    b"a", b"b", b"ab", b"", b"\xe4", b"\xb8", b"\xad", b"\xc3", b"\xa9", b"\xf0\x9f", b"\xa6\x99", b"\xb8\xad",
    "é".encode(), b" ", b"\xff", "中".encode(), b"c", b"d", b"e", b"f", b"g", b"h", b"i", b"</s>",
)  # fmt: skip
"""What tokens add to a text: characters split over two and three of them, several at once, none, and what is none."""
EOS = 23


@dataclass(frozen=True)
class Asked:
    """One answer that is wanted, in plain values."""

    model: FakeModel
    prompt: tuple[int, ...]
    limit: int
    """Tokens of prompt and answer, by the context and by what was asked for."""
    params: SamplingParams
    seed: int | None = None
    shaping: ShapingParams = ShapingParams()
    rule: Rule | None = None
    """Of its grammar."""
    eos: tuple[int, ...] = (EOS,)
    stops: tuple[str, ...] = ()
    repeat_limit: int | None = None
    top_logprobs: int | None = None


@dataclass
class Right:
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    top: list[list[tuple[int, float]]] = field(default_factory=list)
    text: str = ""
    finish_reason: str = ""


def right_answer(asked: Asked) -> Right:
    found, ids = Right(), np.arange(asked.model.vocab_size)
    while not found.finish_reason:
        logits = asked.model.logits(asked.model.digest(np.array([*asked.prompt, *found.tokens])), ids)
        token = _next(asked, found.tokens, logits.astype(np.float64))
        own = logits.astype(np.float64) * (1.0 if asked.top_logprobs is not None else _inverse(asked.params))
        own -= own.max()
        own -= np.log(np.exp(own).sum())
        found.tokens.append(token)
        found.logprobs.append(float(own[token]))
        if asked.top_logprobs is not None:
            order = np.argsort(-own, kind="stable")[: asked.top_logprobs]
            found.top.append([(int(one), float(own[one])) for one in order])
        _end(asked, found)
    return found


def _inverse(params: SamplingParams) -> float:
    return 1.0 if params.temperature == 0.0 else 1.0 / params.temperature


def _next(asked: Asked, answer: list[int], logits: np.ndarray) -> int:  # type: ignore[type-arg]
    for token, bias in asked.shaping.logit_bias.items():
        logits[token] += bias
    for token in set(answer):
        logits[token] -= asked.shaping.presence_penalty + asked.shaping.frequency_penalty * answer.count(token)
    if asked.rule is not None:
        logits[~np.isin(np.arange(len(logits)), list(asked.rule(tuple(answer))))] = -np.inf
    law = law_from_logits(logits, asked.params)
    if asked.params.temperature == 0.0:
        return int(law.ids[0])
    assert asked.seed is not None
    return gumbel_pick(law, gumbel(asked.seed, len(asked.prompt) + len(answer), law.ids))


def _end(asked: Asked, found: Right) -> None:
    tokens = found.tokens
    ended = tokens[-1] in asked.eos
    data = b"".join(PIECES[token] for token in (tokens[:-1] if ended else tokens))
    certain, at = stopped(codecs.getincrementaldecoder("utf-8")("replace").decode(data), asked.stops)
    if at:
        found.text, found.finish_reason = certain, "stop"
        return
    if ended:
        found.finish_reason = "stop"
    elif len(asked.prompt) + len(tokens) >= asked.limit or _circles(tokens, asked.repeat_limit):
        found.finish_reason = "length"
    if found.finish_reason:
        found.text, _ = stopped(data.decode("utf-8", "replace"), asked.stops)


def _circles(tokens: list[int], span: int | None) -> bool:
    """Whether the last ``span`` tokens are something said three times or more."""
    if span is None or len(tokens) < span:
        return False
    end = tokens[-span:]
    return any(end[length:] == end[:-length] for length in range(1, span // 3 + 1))


def stopped(text: str, stops: Sequence[str]) -> tuple[str, bool]:
    """The text before the stop string that is complete first, of several the longest; and whether there is one."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            return text[: end - max(map(len, found))], True
    return text, False


def characters(prefix: tuple[int, ...]) -> list[int]:
    """A grammar: whole characters of UTF-8, of which the last is complete where the answer ends."""
    data = b"".join(PIECES[token] for token in prefix)
    found = [token for token in range(VOCAB) if token != EOS and _may_begin(data + PIECES[token])]
    return [*found, EOS] if _may_begin(data, final=True) else found


def _may_begin(data: bytes, final: bool = False) -> bool:
    try:
        codecs.getincrementaldecoder("utf-8")("strict").decode(data, final)
    except UnicodeDecodeError:
        return False
    return True


def words(chosen: Sequence[Sequence[int]]) -> Callable[[tuple[int, ...]], set[int]]:
    """A grammar: one of some answers."""

    def rule(prefix: tuple[int, ...]) -> set[int]:
        left = [word for word in chosen if tuple(word[: len(prefix)]) == prefix]
        return {EOS if len(word) == len(prefix) else word[len(prefix)] for word in left}

    return rule


def pairs(prefix: tuple[int, ...]) -> list[int]:
    """A grammar: each token twice, so that half of the text is forced."""
    return [prefix[-1]] if len(prefix) % 2 else [*range(VOCAB)]
