"""Texts to train on, as token segments. Knows no model; where the texts come from is ``collect``'s business.

A corpus is files or directories of UTF-8 text. Files under one top directory are a domain; segments are taken from the
domains in turn, so that any share of the data is as mixed as all of it. The last files of each domain are held out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edge_runtime.errors import ConfigError, why

Ids = NDArray[np.int64]

SOURCES_NAME = "SOURCES.json"
_SUFFIXES = frozenset((".txt", ".md", ".rst", ".py", ".json", ".html", ".tex", ".c", ".sh"))
_HELD_OUT = 0.04
_LARGEST_FILE = 64 << 20


@dataclass(frozen=True, slots=True)
class Segments:
    """Of one corpus, each of the same length, a begin-of-text id first."""

    train: Ids
    """[n, length], domains in turn"""
    held: Ids
    """[m, length] of texts that are not in ``train``"""
    domains: dict[str, int]
    """Tokens by domain, held-out ones included."""
    digest: str
    """Of the files: features of another corpus are not these."""


def corpus_files(paths: Sequence[Path]) -> dict[str, list[Path]]:
    """By domain, sorted. Raises ``ConfigError`` where a path is missing or holds no text."""
    found: dict[str, list[Path]] = {}
    for path in paths:
        if path.is_file():
            found.setdefault(path.stem, []).append(path)
        elif path.is_dir():
            for file in sorted(path.rglob("*")):
                if file.suffix in _SUFFIXES and file.is_file() and file.name != SOURCES_NAME:
                    inside = file.relative_to(path).parts
                    found.setdefault(inside[0] if len(inside) > 1 else path.name, []).append(file)
        else:
            raise ConfigError(f"corpus {path}: no such file or directory")
    if not found:
        raise ConfigError(f"corpus {', '.join(map(str, paths))}: no text files ({', '.join(sorted(_SUFFIXES))})")
    return found


def read_segments(
    paths: Sequence[Path], encode: Callable[[str], list[int]], bos_id: int, length: int, seed: int
) -> Segments:
    """``encode`` gives the ids of a text without a begin-of-text id."""
    digest = hashlib.sha256()
    train: list[Ids] = []
    held: list[Ids] = []
    domains: dict[str, int] = {}
    random = np.random.default_rng(seed)
    for domain, files in corpus_files(paths).items():
        pieces = [_cut(encode(_text(file, digest)), bos_id, length) for file in files]
        rows = np.concatenate(pieces)
        if not len(rows):
            continue
        domains[domain] = rows.size
        kept = len(rows) - max(1, round(len(rows) * _HELD_OUT)) if len(rows) > 1 else 1
        train.append(random.permutation(rows[:kept], axis=0))
        held.append(random.permutation(rows[kept:], axis=0))
    if not train or not sum(map(len, held)):
        raise ConfigError(f"the corpus has fewer than two texts of {length} tokens")
    return Segments(_in_turn(train, length), _in_turn(held, length), domains, digest.hexdigest())


def _text(file: Path, digest: hashlib._Hash) -> str:
    try:
        if file.stat().st_size > _LARGEST_FILE:
            raise ConfigError(f"corpus {file}: larger than {_LARGEST_FILE >> 20} MiB; split it")
        data = file.read_bytes()
        digest.update(data)
        return data.decode("utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise ConfigError(f"corpus {file}: {why(problem)}") from None


def _cut(ids: list[int], bos_id: int, length: int) -> Ids:
    """[n, length]; what is left over at the end is dropped."""
    body = length - 1
    count = len(ids) // body
    rows = np.array(ids[: count * body], np.int64).reshape(count, body)
    return np.concatenate([np.full((count, 1), bos_id, np.int64), rows], axis=1)


def _in_turn(domains: list[Ids], length: int) -> Ids:
    """Round robin; a domain that is at its end is left out."""
    taken = [rows[i] for rows, i in _turns(domains)]
    return np.stack(taken) if taken else np.empty((0, length), np.int64)


def _turns(domains: list[Ids]) -> Iterator[tuple[Ids, int]]:
    for i in range(max(map(len, domains))):
        yield from ((rows, i) for rows in domains if i < len(rows))
