"""Records of a measurement as JSON files: written whole, read strictly, refused where they are of other settings. Knows
no field of them.
"""

from __future__ import annotations

import json
import math
import shlex
import sys
from dataclasses import fields
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TypeVar

from ..errors import ConfigError
from ..files import read_at_most, replace_text
from ..schema import plain, structure

_MOST_BYTES = 1 << 28

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
        data = json.loads(read_at_most(path, _MOST_BYTES, ""), parse_constant=_no_number, parse_float=_finite)
    except (ValueError, RecursionError):
        raise ConfigError(f"{path}: not a JSON file") from None
    if not isinstance(data, dict) or data.get("schema") != schema:
        raise ConfigError(f"{path}: not {what} of schema {schema}")
    return structure(cls, data, ConfigError, path.name)


def _no_number(text: str) -> float:
    """For NaN and Infinity, which Python reads and JSON has not: no figure is one."""
    raise ValueError(text)


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _no_number(text)


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
