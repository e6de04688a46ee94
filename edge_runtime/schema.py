"""Plain data (JSON, YAML) into frozen dataclasses. Knows no file format and no field of its own.

``msgspec`` checks the types; what it does not do for dataclasses is to refuse an unknown key and to say which
key was meant, and that is what this module adds.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from typing import Any, TypeVar

import msgspec

from .errors import InputError, did_you_mean

T = TypeVar("T")


def structure(cls: type[T], data: Any, error: type[InputError], where: str) -> T:
    """``data`` as a ``cls``, or ``error`` with one line that names ``where`` and the key."""
    _refuse_unknown(cls, data, error, where)
    try:
        return msgspec.convert(data, cls)
    except msgspec.ValidationError as problem:
        raise error(f"{where}: {problem}") from None


def plain(value: Any) -> Any:
    """The reverse: builtins only, ready for a JSON or YAML writer."""
    return msgspec.to_builtins(value)


def _refuse_unknown(cls: Any, data: Any, error: type[InputError], where: str) -> None:
    for inner in _members(cls):
        if dataclasses.is_dataclass(inner) and isinstance(data, dict):
            hints = typing.get_type_hints(inner)
            for key, value in data.items():
                if key not in hints:
                    raise error(f"{where}: unknown key {key!r}{did_you_mean(str(key), hints)}")
                _refuse_unknown(hints[key], value, error, f"{where}: {key}")
        origin, args = typing.get_origin(inner), typing.get_args(inner)
        if origin in (tuple, list) and args and isinstance(data, list):
            for index, value in enumerate(data):
                _refuse_unknown(args[0], value, error, f"{where}[{index}]")
        if origin is dict and isinstance(data, dict):
            for key, value in data.items():
                _refuse_unknown(args[1], value, error, f"{where}: {key}")


def _members(cls: Any) -> tuple[Any, ...]:
    """A union's members, or the type itself."""
    if typing.get_origin(cls) in (typing.Union, types.UnionType):
        return typing.get_args(cls)
    return (cls,)
