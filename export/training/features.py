"""Texts and their target rows on disk, so that a stop costs nothing. Knows neither the target nor the training.

A part is a directory: ``tokens.npy`` [rows, length], ``hidden.npy`` [rows, length, width] in float16 and ``part.json``
with what it was made from and how many rows are there. A held-out part also has what the target's whole law comes to,
``normaliser.npy`` and ``best.npy`` [rows, length].
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_runtime.errors import ConfigError, why
from edge_runtime.files import read_text_at_most, whole

from .arrays import DAMAGED

_RECORD = "part.json"
_MOST_BYTES, _MOST_ROWS = 1 << 24, 1 << 40


@dataclass(slots=True)
class Part:
    """Rows of one length; ``done`` of them are there."""

    directory: Path
    tokens: NDArray[np.int32]
    hidden: NDArray[np.float16]
    normaliser: NDArray[np.float32] | None
    """log sum exp of the target's logits over all of its vocabulary."""
    best: NDArray[np.int32] | None
    """The target's argmax."""
    made_from: dict[str, Any]
    done: int

    @property
    def size(self) -> int:
        return int(self.tokens.shape[0])

    @property
    def length(self) -> int:
        return int(self.tokens.shape[1])

    def append(
        self,
        tokens: NDArray[Any],
        hidden: NDArray[np.float32],
        normaliser: NDArray[np.float32] | None = None,
        best: NDArray[Any] | None = None,
    ) -> None:
        """Rows behind those that are there; they count once they are on disk."""
        if np.abs(hidden).max(initial=0.0) > np.finfo(np.float16).max or not np.isfinite(hidden).all():
            raise ConfigError("the target's hidden rows do not fit float16: features cannot be stored")
        place = slice(self.done, self.done + len(tokens))
        for array in (self.tokens, self.hidden, self.normaliser, self.best):
            if isinstance(array, np.memmap):
                _reserve(array, place)
        self.tokens[place], self.hidden[place] = tokens, hidden.astype(np.float16)
        if self.normaliser is not None and self.best is not None and normaliser is not None:
            self.normaliser[place], self.best[place] = normaliser, np.asarray(best, np.int32)
        for array in (self.tokens, self.hidden, self.normaliser, self.best):
            if isinstance(array, np.memmap):
                array.flush()
        self.done = place.stop
        self._write_record()

    def _write_record(self) -> None:
        with whole(self.directory / _RECORD) as partial:
            partial.write_text(json.dumps({**self.made_from, "done": self.done}, indent=1) + "\n", encoding="utf-8")


def _reserve(array: np.memmap[Any, Any], rows: slice) -> None:
    """Room on the disk for rows of a sparse file: where there is none, a look into the mapping would end the process
    (SIGBUS). Raises ``OSError``."""
    size = array.dtype.itemsize * int(np.prod(array.shape[1:]))
    with open(str(array.filename), "r+b") as file:
        try:
            os.posix_fallocate(file.fileno(), array.offset + rows.start * size, (rows.stop - rows.start) * size)
        except OSError as problem:
            problem.filename = str(array.filename)
            raise


def open_part(directory: Path, rows: int, length: int, width: int, made_from: dict[str, Any], *, held: bool) -> Part:
    """A new part, or the one that an earlier run began. Raises ``ConfigError`` where that was of something else."""
    made_from = {**made_from, "rows": rows, "length": length, "width": width}
    record = directory / _RECORD
    if not record.is_file():
        directory.mkdir(parents=True, exist_ok=True)
        part = _map(directory, "w+", (rows, length), width, made_from, 0, held)
        part._write_record()
        return part
    found = _read_record(record)
    done = found.pop("done")
    for key, value in made_from.items():
        if found.get(key) != value:
            kept = f"{directory} holds features with {key} {found.get(key)!r}, not {value!r}"
            raise ConfigError(f"{kept}: choose another output, or remove it")
    return _map(directory, "r+", (rows, length), width, made_from, done, held)


def read_part(directory: Path) -> Part:
    """A part that is there, whatever it was made from. Raises ``ConfigError``."""
    found = _read_record(directory / _RECORD)
    done = found.pop("done")
    return _map(
        directory, "r", (found["rows"], found["length"]), found["width"], found, done, (directory / "best.npy").exists()
    )


def _read_record(path: Path) -> dict[str, Any]:
    """Its sizes are whole numbers, and no more rows are done than there are."""
    try:
        found: Any = json.loads(read_text_at_most(path, _MOST_BYTES, ""))
    except ConfigError as problem:
        raise ConfigError(f"{path}: no features there ({problem})") from None
    except (ValueError, RecursionError) as problem:
        raise ConfigError(f"{path}: no features there ({problem})") from None
    sizes: list[Any] = (
        [found.get(name) for name in ("rows", "length", "width", "done")] if isinstance(found, dict) else []
    )
    if not sizes or not all(type(size) is int and 0 <= size < _MOST_ROWS for size in sizes) or sizes[3] > sizes[0]:
        raise ConfigError(f"{path}: no features there (its rows, length, width and done do not make sense)")
    record: dict[str, Any] = found
    return record


def _map(
    directory: Path, mode: Any, shape: tuple[int, int], width: int, made_from: dict[str, Any], done: int, held: bool
) -> Part:
    def array(name: str, dtype: Any, shape: tuple[int, ...]) -> Any:
        # Sparse where the file system can: a part that is never filled takes no room.
        new = {"dtype": dtype, "shape": shape} if mode == "w+" else {}
        path = directory / f"{name}.npy"
        try:
            found = np.lib.format.open_memmap(path, mode=mode, **new)
        except DAMAGED as problem:
            raise ConfigError(f"{path}: no features there ({why(problem)})") from None
        if found.shape != shape or found.dtype != dtype:
            raise ConfigError(f"{path}: not {list(shape)} values of {np.dtype(dtype)}, as {_RECORD} says")
        return found

    return Part(
        directory,
        array("tokens", np.int32, shape),
        array("hidden", np.float16, (*shape, width)),
        array("normaliser", np.float32, shape) if held else None,
        array("best", np.int32, shape) if held else None,
        made_from,
        done,
    )
