"""Records of a measurement as JSON files: written whole, read strictly, refused where they are of other settings; and
what a figure in one may be. Knows no field of them.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, Any, TypeVar

from msgspec import Meta

from ..errors import ConfigError
from ..files import read_at_most, replace_text
from ..schema import plain, structure

_MOST_BYTES = 1 << 28
_MOST = 1 << 53
"""No figure is larger: seconds, tokens and bytes stay below it by far, and sums of them are still numbers."""

_NO_TEXT, _CONTROL = re.compile(r"[\ud800-\udfff]"), re.compile(r"[\x00-\x1f\x7f-\x9f]")
_FREE = ("text", "command")
"""Keys of what a model wrote and of what a shell was given; all else stands in tables, and a terminal shows it."""

Count = Annotated[int, Meta(ge=0, le=_MOST)]
Some = Annotated[int, Meta(ge=1, le=_MOST)]
Drafts = Annotated[int, Meta(ge=0, le=1023)]
"""K."""
Share = Annotated[float, Meta(ge=0.0, le=1.0)]
Spent = Annotated[float, Meta(ge=0.0, le=1e9)]
"""Seconds, and none perhaps;"""
Took = Annotated[float, Meta(ge=1e-9, le=1e9)]
"""and of what surely took some: it is divided by."""

T = TypeVar("T")


def started() -> str:
    """Date and time, to the minute."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")


def command() -> str:
    """That this process was started by."""
    return shlex.join(["edge-runtime", *sys.argv[1:]])


def as_json(record: Any) -> str:
    """One line, ended."""
    return json.dumps(plain(record), ensure_ascii=False, separators=(",", ":")) + "\n"


def write_record(path: Path, record: Any) -> None:
    """Whole or not at all: a stop while writing leaves the file of before. Raises ``OSError``."""
    replace_text(path, as_json(record))


def begin_file(path: Path, record: Any) -> None:
    """Before an hour has gone by. Raises ``ConfigError``."""
    try:
        write_record(path, record)
    except OSError as problem:
        raise ConfigError(f"{path} cannot be written: {problem.strerror}") from None


def read_record(path: Path, cls: type[T], schema: int, what: str) -> T:
    """``what`` it is, for a file that is none. Raises ``ConfigError``."""
    try:
        text = read_at_most(path, _MOST_BYTES, "")
        data = json.loads(text, parse_constant=_figure, parse_float=_figure, parse_int=_whole)
    except _NoFigure as problem:
        raise ConfigError(f"{path}: {problem} is no figure") from None
    except (ValueError, RecursionError):
        raise ConfigError(f"{path}: not a JSON file") from None
    if not isinstance(data, dict) or data.get("schema") != schema:
        raise ConfigError(f"{path}: not {what} of schema {schema}")
    record = structure(cls, data, ConfigError, path.name)
    for key, word in _words(data):  # no deeper than what it was found to be
        if _NO_TEXT.search(word) or (key not in _FREE and _CONTROL.search(word)):
            raise ConfigError(f"{path}: {key or 'a name in it'} holds characters that no text has")
    return record


def _words(data: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """All texts of a tree, keys too, with the key that they stand under."""
    if isinstance(data, dict):
        yield from (("", name) for name in data)
        for name, value in data.items():
            yield from _words(value, name)
    elif isinstance(data, list):
        for value in data:
            yield from _words(value, key)
    elif isinstance(data, str):
        yield key, data


class _NoFigure(Exception):
    """NaN and Infinity, which Python reads and JSON has not, and what no measurement comes to."""


def _figure(text: str) -> float:
    number = float(text)
    if not abs(number) <= _MOST:
        raise _NoFigure(text[:40])
    return number


def _whole(text: str) -> int:
    if len(text) > len(str(-_MOST)) or abs(int(text)) > _MOST:
        raise _NoFigure(text[:40])
    return int(text)


def refuse_unknown(path: Path, what: str, found: Iterable[str], known: Iterable[str]) -> None:
    """Names that the settings of a record do not have. Raises ``ConfigError``."""
    odd = set(found) - set(known)
    if odd:
        raise ConfigError(f"{path}: {what} {min(odd)!r} is none of its settings")


def refuse_rounds(path: Path, found: Iterable[int], rounds: int) -> None:
    """Beyond those of the settings; they count from 0. Raises ``ConfigError``."""
    last = max(found, default=0)
    if last >= rounds:
        raise ConfigError(f"{path}: round {last} is none of its {rounds}")


def refuse_more_kept(path: Path, tried: Sequence[Sequence[int]], kept: Sequence[Sequence[int]]) -> None:
    """Of drafts by position, text by text. Raises ``ConfigError``."""
    for number, (judged, accepted) in enumerate(zip(tried, kept, strict=True)):
        if len(judged) != len(accepted) or any(one > other for one, other in zip(accepted, judged, strict=True)):
            raise ConfigError(f"{path}: text {number} has more drafts accepted than tried")


def refuse_other_settings(path: Path, found: Any, wanted: Any) -> None:
    """Of one dataclass, both. Raises ``ConfigError`` that names the first difference."""
    for name in (field.name for field in fields(wanted)):
        before, now = getattr(found, name), getattr(wanted, name)
        if before != now:
            raise ConfigError(f"{path} cannot be resumed: {name} was {_shown(before)} and is now {_shown(now)}")


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "nothing"
    return ", ".join(f"{key} {what}" for key, what in value.items()) if isinstance(value, dict) else str(value)
