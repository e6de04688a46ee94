"""Local text files as an index in one SQLite file: vectors (sqlite-vec) and words (FTS5). Knows no daemon.

The embeddings are WordLlama's, 256 numbers a passage, whose weights are in its package: nothing is downloaded. apsw is
SQLite with extensions allowed, which many builds of Python forbid.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import apsw
import numpy as np
import sqlite_vec

SUFFIXES = (".md", ".txt", ".rst")
DIMENSIONS = 256
PASSAGE_CHARACTERS = 500
CANDIDATES = 12
"""Of each of the two searches, before they are ranked again."""
_SAYS_NOTHING = """
a an and any are as at be by can do does for from has have how i if in is it its may me my of on or our should so that
the them then there they this to up was we were what when where which who whose why will with you your
"""
_TABLES = f"""
CREATE TABLE IF NOT EXISTS files (path TEXT PRIMARY KEY, digest TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS passages
    (id INTEGER PRIMARY KEY, path TEXT NOT NULL, line INTEGER NOT NULL, text TEXT NOT NULL);
CREATE VIRTUAL TABLE IF NOT EXISTS vectors USING vec0(embedding float[{DIMENSIONS}] distance_metric=cosine);
CREATE VIRTUAL TABLE IF NOT EXISTS words USING fts5(text, tokenize='porter');
"""


class Embedder(Protocol):
    def embed(self, texts: list[str], norm: bool) -> np.ndarray:
        """float32 [texts, 256], of length 1 with ``norm``."""


def load_embedder() -> Embedder:
    # Importing it turns on the log of the whole program, every HTTP request included; not where that is set up already.
    logging.basicConfig(level=logging.WARNING)
    import wordllama

    # Its package has the files laid out as its cache would: told that this is the cache, it looks no further.
    return wordllama.WordLlama.load(cache_dir=Path(wordllama.__file__).parent, disable_download=True)


@dataclass(frozen=True)
class Passage:
    id: int
    path: str
    line: int
    text: str


class Index:
    """``place``: a file, or ``:memory:``. Files that have not changed since the last time are not embedded again."""

    def __init__(self, place: str, embedder: Embedder) -> None:
        self._embedder = embedder
        self._sql = apsw.Connection(place)
        self._sql.enable_load_extension(True)
        self._sql.load_extension(sqlite_vec.loadable_path())
        self._sql.execute(_TABLES)

    def update(self, folder: Path) -> tuple[int, int]:
        """Passages that were embedded now, and all that there are."""
        known = dict(self._sql.execute("SELECT path, digest FROM files"))
        found = {str(file): file.read_bytes() for file in sorted(folder.rglob("*")) if file.suffix in SUFFIXES}
        digests = {path: hashlib.sha256(data).hexdigest() for path, data in found.items()}
        new: list[tuple[str, int, str]] = []
        with self._sql:
            for path in known.keys() - {path for path in digests if known.get(path) == digests[path]}:
                self._forget(path)
            for path, digest in digests.items():
                if known.get(path) != digest:
                    self._sql.execute("INSERT INTO files VALUES (?, ?)", (path, digest))
                    new += [(path, *part) for part in passages(found[path].decode("utf-8", "replace"))]
            self._add(new)
        ((total,),) = self._sql.execute("SELECT count(*) FROM passages")
        return len(new), total

    def _forget(self, path: str) -> None:
        ids = [row[0] for row in self._sql.execute("SELECT id FROM passages WHERE path = ?", (path,))]
        for table, key in (("passages", "id"), ("vectors", "rowid"), ("words", "rowid")):
            self._sql.executemany(f"DELETE FROM {table} WHERE {key} = ?", [(one,) for one in ids])
        self._sql.execute("DELETE FROM files WHERE path = ?", (path,))

    def _add(self, new: Sequence[tuple[str, int, str]]) -> None:
        if not new:
            return
        # What a passage is about often stands in the name of its file alone.
        named = [f"{Path(path).stem}: {text}" for path, _, text in new]
        vectors = self._embedder.embed(named, norm=True).astype(np.float32)
        for (path, line, text), name, vector in zip(new, named, vectors, strict=True):
            self._sql.execute("INSERT INTO passages (path, line, text) VALUES (?, ?, ?)", (path, line, text))
            row = self._sql.last_insert_rowid()
            self._sql.execute("INSERT INTO vectors (rowid, embedding) VALUES (?, ?)", (row, vector.tobytes()))
            self._sql.execute("INSERT INTO words (rowid, text) VALUES (?, ?)", (row, name))

    def search(self, question: str, most: int) -> list[Passage]:
        """The best of both searches, by reciprocal rank; then as different from each other as may be (MMR)."""
        query = self._embedder.embed([question], norm=True).astype(np.float32)[0]
        near = self._ids(
            "SELECT rowid FROM vectors WHERE embedding MATCH ? AND k = ? ORDER BY distance", query.tobytes(), CANDIDATES
        )
        # Quoted: a question is no expression of FTS5's.
        words = [word for word in re.findall(r"\w+", question.lower()) if word not in _SAYS_NOTHING.split()]
        asked = " OR ".join(f'"{word}"' for word in words)
        said = self._ids("SELECT rowid FROM words WHERE words MATCH ? ORDER BY bm25(words) LIMIT ?", asked, CANDIDATES)
        scores: dict[int, float] = {}
        for ranking in (near, said):
            for rank, one in enumerate(ranking):
                scores[one] = scores.get(one, 0.0) + 1.0 / (60 + rank)
        return [self._passage(one) for one in self._diverse(scores, most)]

    def _ids(self, query: str, wanted: bytes | str, most: int) -> list[int]:
        return [row[0] for row in self._sql.execute(query, (wanted, most))] if wanted else []

    def _diverse(self, scores: dict[int, float], most: int, weight: float = 0.7) -> Iterable[int]:
        """Maximal marginal relevance: ``weight`` of a passage's own score, the rest for what is not said yet."""
        vectors = {one: self._vector(one) for one in scores}
        best = max(scores.values(), default=1.0)
        chosen: list[int] = []

        def gain(one: int) -> float:
            likeness = max((float(vectors[one] @ vectors[other]) for other in chosen), default=0.0)
            return weight * scores[one] / best - (1.0 - weight) * likeness

        while len(chosen) < min(most, len(scores)):
            chosen.append(max((one for one in scores if one not in chosen), key=gain))
        return chosen

    def _vector(self, one: int) -> np.ndarray:
        ((data,),) = self._sql.execute("SELECT embedding FROM vectors WHERE rowid = ?", (one,))
        return np.frombuffer(data, np.float32)

    def _passage(self, one: int) -> Passage:
        (row,) = self._sql.execute("SELECT id, path, line, text FROM passages WHERE id = ?", (one,))
        return Passage(*row)


def passages(text: str) -> Iterator[tuple[int, str]]:
    """(line, text): whole paragraphs, as many as fit; what is longer by itself is cut."""
    start, held = 1, ""
    for found in re.finditer(r"(?:.*\S.*\n?)+", text):
        paragraph, line = found.group().rstrip(), text.count("\n", 0, found.start()) + 1
        if held and len(held) + len(paragraph) > PASSAGE_CHARACTERS:
            yield start, held
            held = ""
        start, held = (start, f"{held}\n{paragraph}") if held else (line, paragraph)
        while len(held) > 2 * PASSAGE_CHARACTERS:
            cut, held = held[:PASSAGE_CHARACTERS], held[PASSAGE_CHARACTERS:]
            yield start, cut
            start += cut.count("\n")
    if held:
        yield start, held
