"""What an engine is. Knows neither onnxruntime nor TensorRT, neither text nor sampling.

The idea is *positional forward*: the caller says where the tokens stand, the engine writes their K/V at
``[position, position + T)`` and attends to ``[0, position + T)``. Rolling back is passing a smaller position;
nothing is trimmed, cropped or copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]
Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """Fixed facts of a loaded engine."""

    vocab_size: int
    """Rows of the head. Equals the tokenizer's size for a target; fewer for a draft with a reduced head."""
    hidden_size: int
    capacity: int
    """Tokens that one slot holds."""
    slots: int
    max_rows: int
    """Largest T of one forward (the prefill chunk)."""
    candidates: int
    """C, the candidates returned per row."""
    min_rows: int
    """1, or 2 in the deterministic mode, which never runs a lone row."""
    token_ids: Ids | None
    """[vocab_size] head row -> token id for a reduced head, else ``None`` (identity)."""
    hidden_input: int | None = None
    """Width of the hidden rows that a forward takes beside its tokens: a drafter that reads its target's mind."""
    keeps_hidden: bool = False
    """Whether the hidden rows of a slot stay behind its cache entries, for such drafters."""
    fan_out: int = 1
    """Hidden rows that a forward makes of each token: more than one where parallel heads say several next tokens."""
    lanes: int = 0
    """Slots that one step may serve, where the engine is a ``LanesEngine``."""
    trees: bool = False
    """Whether a forward may run alternatives side by side (``StepInput.parents``)."""


@dataclass(frozen=True, slots=True)
class HeadRequest:
    """Which rows of a forward are read out, and how."""

    first: int
    """First of the forward's hidden rows, counted from those of its first token."""
    stop: int
    inverse_temperature: float = 1.0
    """Of the log-sum-exp; 1.0 for greedy requests."""
    gather_ids: Ids | None = None
    """[R] one token id per row whose logit is wanted, or ``None``."""


@dataclass(frozen=True, slots=True)
class HeadOutput:
    """R rows. The arrays are views on buffers of the engine: valid until its next call.

    Ids are token ids (a reduced head is already mapped). Logits are after the final softcap, at temperature 1.
    """

    argmax: Ids
    """[R]"""
    candidate_ids: Ids
    """[R, C], by falling logit."""
    candidate_logits: Floats
    """[R, C]"""
    logsumexp: Floats
    """[R] log sum exp(logits * inverse_temperature) over the whole vocabulary."""
    gathered: Floats | None
    """[R] logits at ``gather_ids``."""


@dataclass(frozen=True, slots=True)
class StepInput:
    slot: int
    tokens: Ids
    """[T], 1 <= T <= max_rows"""
    position: int
    """Index of ``tokens[0]``; ``position + T <= capacity``."""
    head: HeadRequest | None
    """``None`` where only the cache is filled (all prefill chunks but the last)."""
    hidden: Floats | None = None
    """[T, hidden_input] where the engine takes them, else ``None``."""
    parents: Ids | None = None
    """[T] the earlier row that each token follows, -1 for the text in the cache; ``None``: each the one before it.

    A tree, where ``info.trees``: a row stands one place behind its parent and attends to the text and its ancestors,
    while its entry lies at ``position`` + its index, to be moved by ``keep_path`` or overwritten.
    """


@dataclass(frozen=True, slots=True)
class StepOutput:
    head: HeadOutput | None
    hidden: Floats
    """[T * fan_out, hidden_size] after the final norm, token by token; a view, valid until the next forward."""
    feed: Floats | None = None
    """[T, hidden_input] what such a drafter says its target's rows would be, to feed itself with; a view likewise."""


class Engine(Protocol):
    """One model on one device. Not thread-safe: one engine thread owns it.

    Raises ``EngineError`` when the device fails and ``ValueError`` on a programming error (a slot, a
    position or a T out of range).
    """

    @property
    def info(self) -> EngineInfo: ...

    def forward(self, step: StepInput) -> StepOutput: ...

    def head(self, request: HeadRequest) -> HeadOutput:
        """Read out rows of the last forward; verification that stops early calls it group by group."""
        ...

    def logits(self, row: int) -> Floats:
        """[vocab_size] the full row, by its index in the last ``HeadOutput``.

        Only for laws that the candidates do not contain; head rows, not token ids, of a reduced head.
        """
        ...

    def copy_prefix(self, source: int, target: int, count: int) -> None:
        """Cache entries [0, ``count``) of slot ``source`` into ``target``; what that one held behind them is void.

        After an ``EngineError`` all of ``target`` is void. The slots stay apart: neither sees what is written later.
        """
        ...

    def keep_path(self, slot: int, position: int, rows: Ids) -> None:
        """Entries ``position`` + ``rows`` [n], rising, become the entries [``position``, ``position`` + n).

        What of a tree was accepted, made a text again. After an ``EngineError`` all from ``position`` on is void.
        """
        ...

    def forget(self, slot: int) -> None:
        """All entries of the slot are void; their memory goes back to the system where it can, until it fills again."""
        ...

    def hidden_rows(self, slot: int) -> Floats:
        """[capacity, hidden_size] the rows behind the slot's cache entries, void where those are; a view.

        Raises ``ValueError`` where they are not kept.
        """
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class LanesOutput:
    steps: tuple[StepOutput, ...]
    """Of each lane, in the order asked for; views, valid until the next call that is no ``logits``."""
    first_rows: tuple[int, ...]
    """Where each lane's hidden rows begin, for ``head``; the full rows of ``logits`` are those read out so far by the
    steps, lane behind lane."""


class LanesEngine(Engine, Protocol):
    """An engine that serves several slots in one step, whose matrices are then read once.

    What a lane gives is what ``forward`` gives for its step alone: to the same bits in the deterministic mode, else up
    to near-ties (docs/batch.md). Commit and rollback are each caller's own, as ever: a smaller position.
    """

    def forward_lanes(self, steps: Sequence[StepInput]) -> LanesOutput:
        """1 to ``info.lanes`` steps of different slots, no trees; all rows together at most ``info.max_rows``, where a
        lane counts as ``info.min_rows`` at least, and likewise the head's rows.
        """
        ...
