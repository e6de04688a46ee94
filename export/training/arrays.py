"""Arrays that an earlier run left on disk, read back. Knows neither what they are nor torch."""

from __future__ import annotations

import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from edge_runtime.errors import ConfigError, why

DAMAGED: tuple[type[Exception], ...] = (OSError, ValueError, KeyError, EOFError, MemoryError, NotImplementedError)
DAMAGED += (RuntimeError, SyntaxError, TypeError, tokenize.TokenError, zipfile.BadZipFile, zlib.error)
"""What numpy raises for a file that was cut off, or whose header says what is not so: spoilt files were shown to it."""


def read_array(path: Path, shape: tuple[int, ...] | None = None) -> NDArray[Any]:
    """Of numbers in a ``.npy``, of ``shape`` where that is known. Raises ``ConfigError``."""
    try:
        with path.open("rb") as file:
            found = _numbers(_loaded(file))
        if shape is not None and found.shape != shape:
            raise ValueError(f"{list(found.shape)} numbers, not {list(shape)}")
    except DAMAGED as problem:
        raise _unreadable(path, problem) from None
    return found


def read_arrays(path: Path, names: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Of a ``.npz``, those of ``names``. Raises ``ConfigError``."""
    try:
        with path.open("rb") as file:
            known = _loaded(file)
            if isinstance(known, np.ndarray):
                raise ValueError("one array, where several belong")
            return {name: known[name] for name in names}
    except DAMAGED as problem:
        raise _unreadable(path, problem) from None


def _numbers(found: Any) -> NDArray[Any]:
    if not isinstance(found, np.ndarray) or found.dtype.kind not in "iuf":
        raise ValueError("no array of numbers")
    return found


def _loaded(file: BinaryIO) -> Any:
    """``np.load`` without its warning of a header that seems to be of Python 2."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return np.load(file)


def _unreadable(path: Path, problem: Exception) -> ConfigError:
    words = why(problem) or type(problem).__name__
    return ConfigError(f"{path} cannot be read: {words}; remove it, and what it held is gathered again")
