"""Bytes of a body to a typed request. Knows no endpoint and no model; every mistake is one line that names the field.

The standard library's parser and not msgspec's: a key that stands twice must not be settled in silence.
"""

from __future__ import annotations

import json
import math
import re
import types
import typing
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import Struct

from ..errors import InputError, did_you_mean
from .problems import Refusal
from .schema import ContentPart, field_names, neutral

T = TypeVar("T", bound=Struct)
Receive = Callable[[], Awaitable[Any]]
Headers = typing.Mapping[str, str]

_AT = re.compile(r"(?P<what>.*) - at `\$\.?(?P<where>[^`]*)`", re.DOTALL)
_HALF_PAIR = re.compile(r"[\ud800-\udfff]")
_MOST_DIGITS = 64
_MEDIA_TYPE = re.compile(r"application/(?:[\w.-]+\+)?json", re.IGNORECASE)


class ClientLeft(Exception):
    """Before its request was all there, or prepared: there is nobody to answer."""


async def body_of(receive: Receive, headers: Headers, most: int, hold: Callable[[int], None]) -> bytes:
    """``hold`` is told the bytes of each part, and may raise. Raises ``Refusal`` for a body that is too large or no
    JSON by its own account, ``ClientLeft``."""
    kind = headers.get("content-type", "").partition(";")[0].strip()
    if kind and not _MEDIA_TYPE.fullmatch(kind):
        text = f"Content-Type must be application/json, not {kind}"
        raise Refusal(415, "unsupported_media_type", text, "Content-Type")
    coding = headers.get("content-encoding", "identity").strip().lower()
    if coding not in ("", "identity"):
        text = f"Content-Encoding {coding} is not read here; send it plain"
        raise Refusal(415, "unsupported_encoding", text, "Content-Encoding")
    length = headers.get("content-length", "")
    if len(length) > _MOST_DIGITS or (length.isdecimal() and int(length) > most):
        raise _too_large(most)
    parts, size = [], 0
    async for part in _chunks(receive):
        size += len(part)
        if size > most:
            raise _too_large(most)
        hold(len(part))
        parts.append(part)
    return b"".join(parts)


async def until_left(receive: Receive) -> None:
    """Returns when the client went away."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _chunks(receive: Receive) -> AsyncIterator[bytes]:
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientLeft
        yield message.get("body", b"")
        if not message.get("more_body", False):
            return


def _too_large(most: int) -> Refusal:
    return Refusal(413, "request_too_large", f"the body has more than {most} bytes")


def parse(cls: type[T], body: bytes) -> T:
    """Raises ``InputError``."""
    try:
        data = json.loads(
            body.decode("utf-8"),
            object_pairs_hook=_object,
            parse_constant=_Unfit,
            parse_float=_number,
            parse_int=_integer,
        )
        if not isinstance(data, dict):
            raise InputError("the body must be a JSON object")
        _check_values(data)
        return msgspec.convert(_cleaned(cls, data, ""), cls)
    except InputError:
        raise
    except UnicodeDecodeError as problem:
        raise InputError(f"the body is not UTF-8: byte {problem.start}") from None
    except json.JSONDecodeError as problem:
        raise InputError(
            f"the body is not JSON: {problem.msg.removesuffix(' at')} at line {problem.lineno}, column {problem.colno}"
        ) from None
    except RecursionError:
        raise InputError("the body is nested too deeply") from None
    except msgspec.ValidationError as problem:
        raise _mistyped(cls, str(problem)) from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        (twice, _), *_ = Counter(key for key, _ in pairs).most_common(1)
        raise InputError(f"{_shown(twice)}: the key stands twice in one object", _shown(twice))
    return found


@dataclass(frozen=True, slots=True)
class _Unfit:
    """Stands where a number does that is none, until its place is known."""

    digits: str


def _number(digits: str) -> float | _Unfit:
    value = float(digits)
    return value if math.isfinite(value) else _Unfit(digits)


def _integer(digits: str) -> int | _Unfit:
    return int(digits) if len(digits) <= _MOST_DIGITS else _Unfit(digits)


def _check_values(data: Any) -> None:
    """Keys and values that JSON's grammar lets through. Raises ``InputError``."""
    steps: list[str | int] = []
    problem = _unfit(data, steps)
    if problem:
        where = ""
        for step in reversed(steps):
            where = f"{where}[{step}]" if isinstance(step, int) else _place(where, step)
        raise InputError(f"{where}: {problem}", where)


def _unfit(data: Any, steps: list[str | int]) -> str:
    """What is wrong inside; ``steps`` then lead there, the last one first: of what is right no place is written."""
    if isinstance(data, str):
        return "half a surrogate pair, which no UTF-8 can hold" if _HALF_PAIR.search(data) else ""
    if isinstance(data, _Unfit):
        return f"{_shown(data.digits)} is no number that can be used here"
    inside: Any = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for step, value in inside:
        problem = (isinstance(step, str) and _unfit(step, [])) or (not isinstance(value, int) and _unfit(value, steps))
        if problem:
            steps.append(step)
            return problem
    return ""


@dataclass(frozen=True, slots=True)
class _Shape:
    """What a field's value is made of, as far as objects are in it."""

    inside: type[Struct] | None
    """Of an object."""
    item: _Shape | None
    """Of a list's items."""


@dataclass(frozen=True, slots=True)
class _Fields:
    known: dict[str, _Shape | None]
    """``None``: nothing to look into."""
    asks_nothing: dict[str, tuple[Any, ...]]


@cache
def _fields(cls: type[Struct]) -> _Fields:
    hints = typing.get_type_hints(cls)
    return _Fields({name: _shape(hints[name]) for name in field_names(cls)}, neutral(cls))


def _shape(hint: Any) -> _Shape | None:
    members = list(_members(hint))
    inside = next((one for one in members if isinstance(one, type) and issubclass(one, Struct)), None)
    item = next((_shape(typing.get_args(one)[0]) for one in members if typing.get_origin(one) is list), None)
    return _Shape(inside, item) if inside or item else None


def _members(hint: Any) -> Iterator[Any]:
    """Of a union, constraints taken off."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        for one in typing.get_args(hint):
            yield from _members(one)
    elif typing.get_origin(hint) is typing.Annotated:
        yield from _members(typing.get_args(hint)[0])
    else:
        yield hint


def _cleaned(cls: type[Struct], data: dict[str, Any], where: str) -> dict[str, Any]:
    """Without fields that ask for nothing. Raises ``InputError`` for those that are unknown or ask for something."""
    fields = _fields(cls)
    if cls is ContentPart and data.get("type", "text") != "text":
        place = f"{where}.type"
        raise InputError(f"{place}: {_shown(data['type'])} parts are not supported: this model reads text", place)
    kept: dict[str, Any] = {}
    for key, value in data.items():
        shape = fields.known.get(key)
        if shape is not None:
            kept[key] = _inside(shape, value, _place(where, key))
        elif key in fields.known:
            kept[key] = value
        elif key not in fields.asks_nothing:
            place = _place(where, key)
            raise InputError(f"{place}: unknown field{did_you_mean(key[:64], fields.known)}", place)
        elif value is not None and not any(_same(value, one) for one in fields.asks_nothing[key]):
            place = _place(where, key)
            raise InputError(f"{place} is not supported", place)
    return kept


def _inside(shape: _Shape, value: Any, where: str) -> Any:
    if isinstance(value, dict) and shape.inside is not None:
        return _cleaned(shape.inside, value, where)
    if isinstance(value, list) and shape.item is not None:
        return [_inside(shape.item, one, f"{where}[{index}]") for index, one in enumerate(value)]
    return value


def _place(where: str, key: str) -> str:
    return f"{where}.{_shown(key)}" if where else _shown(key)


def _same(left: Any, right: Any) -> bool:
    """``False`` is not 0."""
    return bool(left == right) and isinstance(left, bool) == isinstance(right, bool)


def _mistyped(cls: type[Struct], problem: str) -> InputError:
    found = _AT.fullmatch(problem)
    if found is None:
        missing = re.fullmatch(r"Object missing required field `(.+)`", problem)
        return InputError(f"{missing[1]} is required", missing[1]) if missing else InputError(problem)
    what, where = found["what"].replace("`", ""), found["where"].replace("[...]", "")
    missing = re.fullmatch(r"Object missing required field (.+)", what)
    if missing:
        place = f"{where}.{missing[1]}" if where else missing[1]
        return InputError(f"{place} is required", place)
    unlisted = re.fullmatch(r"Invalid enum value (['\"])(.*)\1", what, re.DOTALL)
    if unlisted and (listed := _listed(cls, where)):
        what = f"'{_shown(unlisted[2])}' is not one of {', '.join(listed)}"
    return InputError(f"{where}: {what[:1].lower()}{what[1:]}", where or None)


def _listed(cls: type[Struct], where: str) -> list[str]:
    """Words that a field may hold, by its place."""
    *places, last = re.sub(r"\[\d+\]", "", where).split(".")
    inside: type[Struct] | None = cls
    for place in places:
        shape = _fields(inside).known.get(place) if inside else None
        while shape is not None and shape.inside is None:
            shape = shape.item
        inside = shape.inside if shape else None
    hint = typing.get_type_hints(inside).get(last) if inside else None
    return [word for one in _members(hint) if typing.get_origin(one) is Literal for word in typing.get_args(one)]


def _shown(key: Any) -> str:
    """Of what a client wrote, enough to find it again."""
    text = str(key)
    text = text if len(text) <= 64 else text[:61] + "..."
    return _HALF_PAIR.sub("?", text)
