"""One harness a reader: ``seeds`` to start from, ``mutate``, ``read`` under a judge, and what it may refuse with."""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path
from random import Random
from typing import Protocol, cast

from ..judge import Judge


class Target(Protocol):
    REFUSAL: type[Exception] | tuple[type[Exception], ...]
    NAME: str
    """Of the file that the reader is given."""

    def seeds(self) -> list[bytes]: ...

    def mutate(self, data: bytes, rng: Random) -> bytes: ...

    def read(self, judge: Judge, path: Path) -> None:
        """``path`` is in a directory of its own, with what ``prepare`` wrote."""
        ...


def names() -> list[str]:
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def target(name: str) -> Target:
    return cast(Target, importlib.import_module(f".{name}", __package__))
