"""Parallel heads from features in closed form: no training, two passes of ridge regression. Knows no engine.

A head's ``mix`` maps [embedding; row] straight to the row that its token is read from. What that leaves is fitted by a
random hidden layer (``up``) whose outputs are weighed by ridge again (``down``). Rows are compared after division by
the final norm's weight, which makes all dimensions alike; a gain per head then makes its law as sure as it is right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from edge_runtime import __version__
from edge_runtime.bundle import file_sha256
from edge_runtime.errors import ConfigError

from .checkpoint import Checkpoint, effective_norm
from .graph import Graph
from .parallel_heads import FittedHeads, HeadsConfig

_BATCH_ROWS = 4096
_GAIN_ROWS = 1024
_GAINS = (0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.35, 1.5, 1.75, 2.0)
_SPREAD = 1.5
"""Of what enters the activation: wide enough to bend, and not to clip."""
_RIDGE = 1e-3
"""Of the mean of the diagonal."""

Ids = NDArray[np.int64]
Floats = NDArray[np.float32]
Progress = Callable[[str, int, int], None]


class Texts(Protocol):
    """Tokens [texts, length] and the target's rows [texts, length, B] on them, of which ``done`` texts are there."""

    @property
    def tokens(self) -> NDArray[Any]: ...

    @property
    def hidden(self) -> NDArray[Any]: ...

    @property
    def done(self) -> int: ...


class HeldTexts(Texts, Protocol):
    @property
    def best(self) -> NDArray[Any] | None:
        """[texts, length] the target's best token behind each."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    inputs: Floats
    """[n, 2 B]"""
    wanted: list[Floats]
    """[heads] of [n, B]"""
    tokens: list[Ids]
    """[heads] of [n] what is read from those rows."""


class Embedding:
    """Rows of the target's table as they are asked for."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._table = checkpoint.tensor(Graph.EMBED)

    def rows(self, ids: Ids) -> Floats:
        """[len(ids), B] unscaled"""
        known, places = np.unique(ids, return_inverse=True)
        rows = np.concatenate([self._table.rows(int(token), int(token) + 1) for token in known])
        found: Floats = rows[places.reshape(-1)]
        return found


def fit_heads(
    checkpoint: Checkpoint,
    parts: Sequence[Texts],
    token_ids: Ids,
    heads: int,
    inner: int | None = None,
    progress: Progress = lambda what, done, total: None,
) -> FittedHeads:
    """``inner`` ``None``: as wide as the target's rows. Raises ``ConfigError`` where there is too little to fit to."""
    config = checkpoint.config
    shape = HeadsConfig(
        hidden_size=config.hidden_size,
        heads=heads,
        inner=inner or config.hidden_size,
        rms_eps=config.rms_eps,
        embed_scale=config.embed_scale,
        final_softcap=config.final_softcap,
        head_rows=len(token_ids),
        vocab_size=config.vocab_size,
    )
    norm = effective_norm(checkpoint, "final_norm")
    maker = _RowMaker(shape, norm, Embedding(checkpoint), parts)
    if maker.count < 4 * config.hidden_size:
        raise ConfigError(f"{maker.count} rows of features are too few to fit heads of {config.hidden_size} to")
    tensors: dict[str, Floats] = {
        "embed_norm": np.ones(config.hidden_size, np.float32),
        "hidden_scale": (1.0 / norm).astype(np.float32),
        "out_scale": norm.astype(np.float32),
    }
    mixes = _fit_mixes(maker, progress)
    ups = _random_ups(maker, mixes)
    downs = _fit_downs(maker, mixes, ups, progress)
    head = Embedding(checkpoint).rows(token_ids)
    for i, gain in enumerate(_gains(maker, mixes, ups, downs, head, token_ids)):
        w = f"heads.{i}."
        # The gain of the whole head, taken out again ahead of the activation.
        tensors |= {w + "mix": gain * mixes[i], w + "up": ups[i] / gain, w + "down": gain * downs[i]}
    return FittedHeads(shape, {name: values.astype(np.float32) for name, values in tensors.items()}, token_ids)


def held_agreement(fitted: FittedHeads, checkpoint: Checkpoint, part: HeldTexts) -> tuple[float, ...]:
    """Of each head by itself with the target's best token, along texts that were not fitted to."""
    shape, t = fitted.config, fitted.tensors
    maker = _RowMaker(shape, t["out_scale"], Embedding(checkpoint), [part])
    head = maker.embedding.rows(fitted.token_ids)
    agreed, count = np.zeros(shape.heads), 0
    if part.best is None:
        return ()
    for tokens, hidden, best in zip(part.tokens[: part.done], part.hidden, part.best, strict=False):
        rows = maker.rows(np.asarray(tokens, np.int64)[None], np.asarray(hidden, np.float32)[None])
        count += len(rows.inputs)
        for i in range(shape.heads):
            a: Floats = rows.inputs @ t[f"heads.{i}.mix"].T
            bent: Floats = a @ t[f"heads.{i}.up"].T
            drafts = fitted.token_ids[(((a + gelu(bent) @ t[f"heads.{i}.down"].T) * t["out_scale"]) @ head.T).argmax(1)]
            agreed[i] += np.count_nonzero(drafts == best[1 + i : 1 + i + len(drafts)])
    return tuple((agreed / max(1, count)).round(3).tolist())


def fit_record(
    fitted: FittedHeads, checkpoint: Checkpoint, parts: Sequence[Texts], held: Mapping[str, HeldTexts]
) -> FittedHeads:
    """With how it was made, and how it does on texts that it did not see."""
    source = checkpoint.path
    record = {
        "made_by": f"edge-export fit-heads {__version__}",
        "target": {"name": checkpoint.config.name, "sha256": file_sha256(source) if source.is_file() else None},
        "tokens": sum(part.done * part.tokens.shape[1] for part in parts),
        "held_out": {name: held_agreement(fitted, checkpoint, part) for name, part in held.items()},
        "licence": "a derivative of the target, under the target's terms (GEMMA_NOTICE.txt)",
    }
    return replace(fitted, record=record)


class _RowMaker:
    def __init__(self, shape: HeadsConfig, norm: Floats, embedding: Embedding, parts: Sequence[Texts]) -> None:
        self.shape, self.embedding = shape, embedding
        self._scale = (1.0 / norm).astype(np.float32)
        self._parts = [part for part in parts if part.done and part.tokens.shape[1] > shape.heads + 1]

    @property
    def count(self) -> int:
        return sum(part.done * (part.tokens.shape[1] - self.shape.heads - 1) for part in self._parts)

    def batches(self) -> Iterator[_Rows]:
        for part in self._parts:
            texts = max(1, _BATCH_ROWS // part.tokens.shape[1])
            for start in range(0, part.done, texts):
                place = slice(start, min(start + texts, part.done))
                yield self.rows(np.asarray(part.tokens[place], np.int64), np.asarray(part.hidden[place], np.float32))

    def rows(self, tokens: Ids, hidden: Floats) -> _Rows:
        """Of texts [texts, length]: row t joins token t + 1 with row t; head i wants row t + 1 + i."""
        heads, width = self.shape.heads, self.shape.hidden_size
        count = tokens.shape[1] - heads - 1
        scaled = hidden * self._scale
        e = self.embedding.rows(tokens[:, 1 : count + 1].reshape(-1)) * np.float32(self.shape.embed_scale)
        e /= np.sqrt((e * e).mean(axis=1, keepdims=True) + self.shape.rms_eps)
        inputs = np.concatenate([e, scaled[:, :count].reshape(-1, width)], axis=1)
        wanted = [scaled[:, 1 + i : 1 + i + count].reshape(-1, width) for i in range(heads)]
        following = [tokens[:, 2 + i : 2 + i + count].reshape(-1) for i in range(heads)]
        return _Rows(inputs, wanted, following)


def _fit_mixes(maker: _RowMaker, progress: Progress) -> list[Floats]:
    """[heads] of [B, 2 B]"""
    width, heads = maker.shape.hidden_size, maker.shape.heads
    gram, cross = np.zeros((2 * width, 2 * width)), [np.zeros((2 * width, width)) for _ in range(heads)]
    done = 0
    for rows in maker.batches():
        gram += rows.inputs.T @ rows.inputs
        for i in range(heads):
            cross[i] += rows.inputs.T @ rows.wanted[i]
        done += len(rows.inputs)
        progress("mix", done, maker.count)
    return [_ridge(gram, one) for one in cross]


def _random_ups(maker: _RowMaker, mixes: list[Floats]) -> list[Floats]:
    """[heads] of [W, B]"""
    rng = np.random.default_rng(0)
    first = next(maker.batches())
    ups = []
    for mix in mixes:
        length = float(np.sqrt(((first.inputs @ mix.T) ** 2).sum(axis=1).mean()))
        drawn = rng.standard_normal((maker.shape.inner, maker.shape.hidden_size))
        ups.append((drawn * _SPREAD / max(length, 1e-6)).astype(np.float32))
    return ups


def _fit_downs(maker: _RowMaker, mixes: list[Floats], ups: list[Floats], progress: Progress) -> list[Floats]:
    """[heads] of [B, W]"""
    inner, width, heads = maker.shape.inner, maker.shape.hidden_size, maker.shape.heads
    grams = [np.zeros((inner, inner)) for _ in range(heads)]
    cross = [np.zeros((inner, width)) for _ in range(heads)]
    done = 0
    for rows in maker.batches():
        for i in range(heads):
            a: Floats = rows.inputs @ mixes[i].T
            bent: Floats = a @ ups[i].T
            features = gelu(bent)
            grams[i] += features.T @ features
            cross[i] += features.T @ (rows.wanted[i] - a)
        done += len(rows.inputs)
        progress("down", done, maker.count)
    return [_ridge(gram, one) for gram, one in zip(grams, cross, strict=True)]


def _ridge(gram: NDArray[np.float64], cross: NDArray[np.float64]) -> Floats:
    """[outputs, inputs]"""
    ridge = _RIDGE * float(np.trace(gram)) / len(gram)
    solved: Floats = np.linalg.solve(gram + ridge * np.eye(len(gram)), cross).T.astype(np.float32)
    return solved


def _gains(
    maker: _RowMaker, mixes: list[Floats], ups: list[Floats], downs: list[Floats], head: Floats, token_ids: Ids
) -> Iterator[float]:
    """That which makes the text's own tokens likeliest, of the tokens that the head can say."""
    rows = next(maker.batches())
    norm = (1.0 / maker._scale).astype(np.float32)
    for i in range(maker.shape.heads):
        places = np.searchsorted(token_ids, rows.tokens[i])
        sayable = token_ids[np.minimum(places, len(token_ids) - 1)] == rows.tokens[i]
        chosen = np.flatnonzero(sayable)[:_GAIN_ROWS]
        if not len(chosen):
            yield 1.0
            continue
        a: Floats = rows.inputs[chosen] @ mixes[i].T
        bent: Floats = a @ ups[i].T
        logits: Floats = ((a + gelu(bent) @ downs[i].T) * norm) @ head.T
        own: Floats = logits[np.arange(len(chosen)), places[chosen]]
        yield min(_GAINS, key=lambda gain: _nll(logits, own, gain, maker.shape.final_softcap))


def _nll(logits: Floats, own: Floats, gain: float, softcap: float | None) -> float:
    scaled: NDArray[Any] = gain * logits
    mine: NDArray[Any] = gain * own
    if softcap is not None:
        scaled, mine = softcap * np.tanh(scaled / softcap), softcap * np.tanh(mine / softcap)
    top = scaled.max(axis=1)
    return float((top + np.log(np.exp(scaled - top[:, None]).sum(axis=1)) - mine).mean())


def gelu(x: Floats) -> Floats:
    inner: Floats = np.float32(np.sqrt(2.0 / np.pi)) * (x + np.float32(0.044715) * x**3)
    out: Floats = (np.float32(0.5) * x * (np.float32(1.0) + np.tanh(inner))).astype(np.float32)
    return out
