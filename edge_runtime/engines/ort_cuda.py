"""Copies on a CUDA device by address, of parts, which onnxruntime's Python does not offer. Knows no session, no shape.

The library is the CUDA runtime that onnxruntime's provider has loaded into this process, and no other: a second one
would be another version, or none of this machine.
"""

from __future__ import annotations

import ctypes
import functools
import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import EngineError

_TO_HOST, _ON_DEVICE = 2, 3
"""cudaMemcpyKind."""


class DeviceCopies:
    """Each call is over when it returns. Raises ``EngineError``."""

    def __init__(self, library: Any) -> None:
        """``library``: libcudart, or what has its functions."""
        self._library = library

    def to_host(self, address: int, array: NDArray[np.generic]) -> None:
        """Fill a contiguous ``array`` with the bytes at ``address``."""
        self._check(self._library.cudaMemcpy(array.ctypes.data, address, array.nbytes, _TO_HOST))

    def lines(self, source: int, target: int, pitch: int, width: int, height: int) -> None:
        """``width`` bytes of each of ``height`` lines that begin ``pitch`` bytes apart, here as there."""
        call = self._library.cudaMemcpy2D
        self._check(call(target, pitch, source, pitch, width, height, _ON_DEVICE))
        # onnxruntime's streams do not wait for the default one.
        self._check(self._library.cudaDeviceSynchronize())

    def _check(self, status: int) -> None:
        if status:
            said = self._library.cudaGetErrorString(status)
            text = said.decode("utf-8", "replace") if isinstance(said, bytes) else "no text"
            raise EngineError(f"CUDA: error {status}: {text}")


@functools.cache
def device_copies() -> DeviceCopies | None:
    """Of this process; ``None`` where no CUDA runtime is loaded as a library of its own."""
    path = loaded_runtime(Path("/proc/self/maps"))
    if path is None:
        return None
    library = ctypes.CDLL(path)
    size, address = ctypes.c_size_t, ctypes.c_void_p
    library.cudaMemcpy.argtypes = [address, address, size, ctypes.c_int]
    library.cudaMemcpy2D.argtypes = [address, size, address, size, size, size, ctypes.c_int]
    library.cudaGetErrorString.restype = ctypes.c_char_p
    return DeviceCopies(library)


def loaded_runtime(maps: Path) -> str | None:
    """Path of the CUDA runtime among the files that a process maps."""
    try:
        text = maps.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    found = re.search(r"(/\S*/libcudart\.so[.\d]*)$", text, re.MULTILINE)
    return found[1] if found else None
