"""The API of four releases of TensorRT, as their bindings have it (``tools/tensorrt_surface.py``). Knows no module."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

_FILE = Path(__file__).with_name("tensorrt_surface.json")


@dataclass(frozen=True)
class Way:
    """One way to call a method."""

    names: tuple[str, ...]
    """Of the parameters behind ``self``."""
    required: int
    gives: str

    def takes(self, count: int, keywords: set[str]) -> bool:
        given = {*self.names[:count], *keywords}
        fits = count <= len(self.names) and keywords <= set(self.names[count:])
        return fits and set(self.names[: self.required]) <= given


@dataclass(frozen=True)
class Member:
    kind: str
    """method, property, settable, value or class."""
    ways: tuple[Way, ...] = ()
    gives: str = ""


@cache
def _data() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(_FILE.read_text(encoding="utf-8"))
    return found


def versions() -> tuple[str, ...]:
    return tuple(_data()["versions"])


@cache
def surface(version: str) -> dict[str, dict[str, Member]]:
    """Class -> member, of one release."""
    found: dict[str, dict[str, Member]] = {}
    for name, members in _data()["classes"].items():
        there = {}
        for member, ways in members.items():
            for way, where in ways.items():
                if where == "all" or version in where:
                    there[member] = _member(way)
        if there:
            found[name] = there
    return found


def _member(text: str) -> Member:
    kind, _, gives = text.partition("; ")
    if kind in ("property", "settable", "value", "class"):
        return Member(kind, gives=gives)
    return Member("method", tuple(_way(one) for one in text.split("; ")))


def _way(text: str) -> Way:
    inside, _, gives = text.removeprefix("(").partition(") -> ")
    parts = [one for one in re.split(r", (?=\w+:)", inside) if one][1:]
    required = [one for one in parts if " = " not in one]
    return Way(tuple(one.partition(":")[0] for one in parts), len(required), gives)
