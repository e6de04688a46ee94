"""Plain data (JSON, YAML) into frozen dataclasses. Knows no file format and no field of its own.

``msgspec`` checks the types; what it does not do for dataclasses is to refuse an unknown key and to say which
key was meant, nor does it say what a key may be, and that is what this module adds.
"""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeVar

import msgspec

from .errors import InputError, did_you_mean

T = TypeVar("T")

_PLACE = re.compile(r"(?P<what>.*) - at `\$\.?(?P<place>[^`]*)`", re.DOTALL)
_ENUM = "Invalid enum value "
_KNOWN_HINTS: dict[Any, dict[str, Any]] = {}
"""Worked out once: a manifest has hundreds of each class."""
_MISSING = re.compile(r"Object missing required field `([^`]*)`")


def structure(
    cls: type[T], data: Any, error: type[InputError], where: str, units: Mapping[str, str] = types.MappingProxyType({})
) -> T:
    """``data`` as a ``cls``, or ``error`` with one line that names ``where`` and the key. ``units``: what keys are
    counted in, by the ending of their names."""
    try:
        _refuse_unknown(cls, data, error, where, cls)
        return msgspec.convert(data, cls)
    except msgspec.ValidationError as problem:
        raise error(f"{where}: {_told(cls, str(problem), units)}") from None
    except ValueError as problem:  # an integer that Python does not write, for it has thousands of digits
        raise error(f"{where}: {problem}") from None


def plain(value: Any) -> Any:
    """The reverse: builtins only, ready for a JSON or YAML writer."""
    return msgspec.to_builtins(value)


def _told(cls: Any, problem: str, units: Mapping[str, str]) -> str:
    """msgspec's words with the key as its file has it, and with what may stand there."""
    found = _PLACE.fullmatch(problem)
    what, place = (found["what"], found["place"]) if found else (problem, "")
    if missing := _MISSING.fullmatch(what):
        return f"{place}{'.' if place else ''}{missing[1]} is missing"
    if what.startswith(_ENUM) and (allowed := _allowed(cls, place)):
        given = what[len(_ENUM) :]
        names = [str(value) for value in allowed]
        listed = " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))
        meant = did_you_mean(given[1:-1], names) if given[:1] == "'" else ""  # no number is like another
        return f"{place} must be {listed}, not {given}{meant}"
    what = what[:1].lower() + what[1:].replace("`", "")
    unit = next((f" ({words})" for ending, words in units.items() if place.endswith(ending)), "")
    return f"{place}: {what}{unit}" if place else what


def _allowed(cls: Any, place: str) -> list[Any]:
    """What the literal at a place like ``models[...].io[3].graph`` admits; nothing, where none is found."""
    at = [cls]
    for step in re.findall(r"\[[^]]*\]|[^.\[]+", place):
        inner = [member for kind in at for member in _members(kind)]
        if step.startswith("["):
            at = [typing.get_args(kind)[-1 if typing.get_origin(kind) is dict else 0]
                  for kind in inner if typing.get_origin(kind) in (tuple, list, dict)]  # fmt: skip
        else:
            hints = [_hints(kind) for kind in inner if dataclasses.is_dataclass(kind)]
            at = [hint[step] for hint in hints if step in hint]
    members = [member for kind in at for member in _members(kind)]
    return [value for kind in members if typing.get_origin(kind) is Literal for value in typing.get_args(kind)]


def _refuse_unknown(cls: Any, data: Any, error: type[InputError], where: str, root: Any) -> None:
    for inner in _members(cls):
        if dataclasses.is_dataclass(inner) and isinstance(data, dict):
            hints = _hints(inner)
            for key, value in data.items():
                if key not in hints:
                    meant = _home(root, str(key)) or did_you_mean(str(key), hints)
                    raise error(f"{where}: unknown key {key!r}{meant}")
                _refuse_unknown(hints[key], value, error, f"{where}: {key}", root)
        origin, args = typing.get_origin(inner), typing.get_args(inner)
        if origin in (tuple, list) and args and isinstance(data, list):
            for index, value in enumerate(data):
                _refuse_unknown(args[0], value, error, f"{where}[{index}]", root)
        if origin is dict and isinstance(data, dict):
            for key, value in data.items():
                _refuse_unknown(args[1], value, error, f"{where}: {key}", root)


def _hints(cls: Any) -> dict[str, Any]:
    """Of a dataclass."""
    found = _KNOWN_HINTS.get(cls)
    if found is None:
        found = _KNOWN_HINTS[cls] = typing.get_type_hints(cls)
    return found


def _home(root: Any, key: str) -> str:
    """Where a key that stands in the wrong section belongs, in words; empty where it is no key at all."""
    found = [section for section, name in _keys(root, "") if name == key]
    if not found:
        return ""
    return " (it belongs " + (f"into {' or '.join(found)})" if all(found) else "to the top, into no section)")


def _keys(cls: Any, section: str) -> Iterator[tuple[str, str]]:
    """(section, key) of a class and of the sections in it."""
    hints = _hints(cls) if dataclasses.is_dataclass(cls) else {}
    for name, hint in hints.items():
        yield section, name
        for inner in _members(hint):
            yield from _keys(inner, f"{section} {name}:".strip())


def _members(cls: Any) -> tuple[Any, ...]:
    """A union's members, or the type itself."""
    if typing.get_origin(cls) in (typing.Union, types.UnionType):
        return typing.get_args(cls)
    return (cls,)
