"""What options of both command lines take: numbers that are some, paths that are none by accident, files that can be
written. Knows no command.

click's own floats let NaN through any range, and infinity where a bound is missing; its paths take an empty word for
the current directory. So no command has those: a test looks at all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import click
from click.core import ParameterSource

from .errors import ConfigError
from .files import check_directory_writable, check_replaceable, check_writable, name_too_long

MOST_THREADS, MOST_ROUNDS, MOST_TOKENS, MOST_SEED = 1 << 10, 10_000, 1 << 24, (1 << 63) - 1
"""What any machine has, anybody waits for, any context holds, and a request may say."""


class Whole(click.IntRange):
    """A whole number, within bounds that may be left out; click's own is an "integer range" to whoever reads of it."""

    name = "integer"


class Finite(click.FloatRange):
    """A float that is a number, within bounds that may be left out."""

    name = "number"

    def __init__(
        self, low: float | None = None, high: float | None = None, unit: str = "", *, above: bool = False
    ) -> None:
        """``unit``: in words, for who gives another. ``above``: ``low`` itself is too little."""
        super().__init__(low, high, min_open=above)
        self._unit = f" {unit}" if unit else ""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number: float = click.FLOAT.convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number.", param, ctx)
        too_little = self.min is not None and (number <= self.min if self.min_open else number < self.min)
        if too_little or (self.max is not None and number > self.max):
            self.fail(f"{value} is not {self._wanted()}{self._unit}.", param, ctx)
        return number

    def _describe_range(self) -> str:
        """For ``--help``: click says ``x<=None`` where there is no bound."""
        return super()._describe_range() if self.min is not None or self.max is not None else ""

    def _wanted(self) -> str:
        if self.min is None:
            return f"at most {self.max:g}"
        low = f"{'above' if self.min_open else 'at least'} {self.min:g}"
        if self.max is None:
            return low
        return f"{low} and at most {self.max:g}" if self.min_open else f"from {self.min:g} to {self.max:g}"


if TYPE_CHECKING:
    _Path = click.Path[Path]
else:  # not generic in every release
    _Path = click.Path


class Place(_Path):
    """A path; an empty word is none, which pathlib would take for the current directory."""

    def __init__(self, **given: Any) -> None:
        super().__init__(path_type=Path, **given)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        _refuse_nothing(self, str(value), param, ctx)
        if name_too_long(value):
            self.fail(f"{str(value)!r}: File name too long.", param, ctx)
        return super().convert(value, param, ctx)


class _Checked(Place):
    """What would fail behind the work is told before it."""

    checks: ClassVar[tuple[Callable[[Path], None], ...]] = ()
    """Each raises ``ConfigError``."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path = super().convert(value, param, ctx)
        try:
            for check in self.checks:
                check(path)
        except ConfigError as problem:
            self.fail(str(problem), param, ctx)
        return path


class Written(_Checked):
    """A file that is written at the end."""

    checks: ClassVar[tuple[Callable[[Path], None], ...]] = (check_writable,)


class Kept(Written):
    """A file that is written again and again, or read back: an ordinary one."""

    checks = (check_writable, check_replaceable)


class WrittenDirectory(_Checked):
    """A directory that is written into; it may be there."""

    checks = (check_directory_writable,)


class Word(click.types.StringParamType):
    """Text that names something: not empty."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        _refuse_nothing(self, str(value), param, ctx)
        return super().convert(value, param, ctx)


def refuse_useless(ctx: click.Context, why: str, names: Iterable[str]) -> None:
    """What was said on the command line and has no effect there. ``names``: of parameters. Raises ``UsageError``."""
    vain = set(names)
    for param in ctx.command.params:
        if param.name in vain and ctx.get_parameter_source(param.name or "") is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"{why}: not with {param.opts[0]}", ctx)


def _refuse_nothing(
    kind: click.ParamType[Any], value: str, param: click.Parameter | None, ctx: click.Context | None
) -> None:
    if not value:
        kind.fail("it is empty.", param, ctx)
    if "\0" in value:
        kind.fail("it holds a null character.", param, ctx)
