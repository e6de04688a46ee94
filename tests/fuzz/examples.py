"""A plain tree that a dataclass can be made of, out of its types alone; and the words that may stand in one."""

from __future__ import annotations

import dataclasses
import types
import typing
from typing import Any, Literal


def example(kind: Any) -> Any:
    """With every field that it may have; numbers are 1."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        return {field.name: example(hints[field.name]) for field in dataclasses.fields(kind)}
    if origin in (typing.Union, types.UnionType):
        return example(next(one for one in inner if one is not type(None)))
    if origin is Literal:
        return inner[0]
    if origin is dict:
        return {str(example(inner[0])): example(inner[1])}
    if origin in (tuple, list):
        return [example(one) for one in inner if one is not ...]
    return {int: 1, float: 1.0, str: "a", bool: True}.get(kind, {"a": 1})


def words(kind: Any) -> list[str]:
    """Its keys, those of what is in it, and the values of its literals."""
    found: dict[str, None] = {}
    _gather(kind, found)
    return list(found)


def _gather(kind: Any, found: dict[str, None]) -> None:
    if dataclasses.is_dataclass(kind):
        for name, hint in typing.get_type_hints(kind).items():
            found[name] = None
            _gather(hint, found)
    elif typing.get_origin(kind) is Literal:
        found.update({str(one): None for one in typing.get_args(kind)})
    else:
        for inner in typing.get_args(kind):
            _gather(inner, found)
