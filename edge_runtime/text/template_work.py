"""What the steps of a template cost, ahead of each: work in characters, from a budget. Knows no template and no syntax.

A value is measured to its innermost item: a list of lists of lists may be short, and endless as a text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, ItemsView, KeysView, ValuesView
from types import GeneratorType
from typing import Any

from ..errors import InputError

READ_FOR_ONE = 8
"""Characters that are looked at in the time in which one is made."""
_WORK_OF_A_CALL = 8
_LONGEST_INTEGER = 1024
_LONGEST_FRACTION = 64
_WIDEST_INDENT = 8
_SHORT_WORD = 64
"""Characters that are looked for at a place of a text at once."""
_WIDE_BRACES = re.compile(r":[^}]*(?:\{|\d{4})")
_WIDE = re.compile(r"%[^a-zA-Z%]*(?:\*|\d{4})")
_NO_METHODS = frozenset({"center", "ljust", "rjust", "zfill", "expandtabs", "translate", "encode"})
"""Of texts: made to fill space, or without a bound that is easily known."""
# Done at once, however large a value is.
_QUICK_FILTERS = ("length", "count", "first", "last", "default", "d")
_QUICK_TESTS = (
    "defined", "undefined", "none", "string", "mapping", "sequence", "iterable", "number", "integer", "float",
    "boolean", "true", "false", "callable",
)  # fmt: skip
Pay = Callable[..., None]
"""Of a budget, for a value and what else a filter is given. Raises ``ValueError`` for what is not done at all."""


class Budget:
    def __init__(self, work: int) -> None:
        self._left = work

    def pay(self, work: int) -> None:
        self._left -= work
        if self._left < 0:
            raise InputError("chat template: it does more work than any conversation of this size needs", "messages")

    def read(self, *values: Any, **named: Any) -> None:
        """Pays for looking at all of them, to the end."""
        items, characters = _measured((*values, *named.values()), self._left)
        self.pay(items + characters // READ_FOR_ONE)

    def spell(self, *values: Any, times: int = 1) -> None:
        """Pays for their text, so many times."""
        items, characters = _measured(values, self._left)
        self.pay((items + characters) * times)


def pay_for_binop(budget: Budget, operator: str, left: Any, right: Any) -> None:
    """Raises ``ValueError`` for what is not done at all."""
    if operator == "%" and isinstance(left, str):
        _pay_for_format(budget, left, right)
    elif isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length() * right if operator == "**" else left.bit_length() + right.bit_length()
        if bits > _LONGEST_INTEGER:
            raise ValueError("too large an integer")
        budget.pay(1)
    elif operator == "*":
        times, value = (left, right) if isinstance(left, int) else (right, left)
        budget.pay(length(value) * max(times, 1) if isinstance(times, int) else 1)
    else:
        budget.pay(length(left) + length(right))


def pay_for_call(budget: Budget, called: Any, args: tuple[Any, ...], named: dict[str, Any]) -> None:
    """Raises ``ValueError`` for what is not done at all."""
    import jinja2

    budget.pay(_WORK_OF_A_CALL + len(args) + len(named))
    if isinstance(called, jinja2.runtime.Macro):
        return
    # Jinja wraps str.format.
    called = getattr(called, "__wrapped__", called)
    owner, name = getattr(called, "__self__", None), getattr(called, "__name__", "")
    if not isinstance(owner, str):
        budget.read(*args, **named)
        if isinstance(owner, list | tuple | dict) and name in ("copy", "count", "index"):
            budget.read(owner)
    elif name in _NO_METHODS:
        raise ValueError(f"{name} is not allowed")
    elif name in ("format", "format_map"):
        if _WIDE_BRACES.search(owner):
            raise ValueError("a format that fills space")
        budget.spell(*args, *named.values(), times=owner.count("{"))
        budget.pay(len(owner))
    elif name == "join":
        _pay_for_join(budget, args[0], owner)
    elif name == "replace":
        _pay_for_replace(budget, owner, *args)
    else:
        _pay_for_search(budget, owner, *args)


def _pay_for_search(budget: Budget, value: Any, *args: Any, **named: Any) -> None:
    """Of a text: whatever is looked for at each place of it."""
    budget.read(value, *args, **named)
    longest = max((len(one) for one in (*args, *named.values()) if isinstance(one, str)), default=0)
    budget.pay(length(value) * (longest // _SHORT_WORD))


def _pay_for_format(budget: Budget, value: Any, *args: Any) -> None:
    text = str(value) if isinstance(value, str) else ""
    if _WIDE.search(text):
        raise ValueError("a format that fills space")
    # A mapping, in its place, may be asked for one item again and again.
    budget.spell(value)
    budget.spell(*args, times=text.count("%") if any(isinstance(one, dict) for one in args) else 1)


def _pay_for_join(budget: Budget, value: Any, d: Any = "", attribute: Any = None) -> None:
    budget.spell(value)
    budget.spell(d, times=length(value))


def _pay_for_replace(budget: Budget, value: Any, old: Any, new: Any, count: Any = None) -> None:
    budget.spell(value, old, new)
    text, old = str(value), str(old)
    budget.pay((text.count(old) if old else len(text) + 1) * len(str(new)))


def _pay_for_indent(budget: Budget, value: Any, width: Any = 4, first: Any = False, blank: Any = False) -> None:
    budget.spell(value)
    step = width if isinstance(width, int) else length(width)
    budget.pay((str(value).count("\n") + 1) * max(step, 0))


def _pay_for_json(budget: Budget, value: Any, indent: Any = None) -> None:
    if indent is not None and not (isinstance(indent, int) and 0 <= indent <= _WIDEST_INDENT):
        raise ValueError(f"an indent is a number up to {_WIDEST_INDENT}")
    budget.spell(value)
    if indent:
        budget.spell(value, times=indent * _depth(value))


def _depth(value: Any) -> int:
    """Of what is paid for."""
    depth, level = 0, [value]
    while level := [item for one in level for item in _inside(one)]:
        depth += 1
    return depth


def _pay_for_sum(budget: Budget, value: Any, attribute: Any = None, start: Any = 0) -> None:
    if not isinstance(start, int | float):
        raise ValueError("only numbers are summed")
    budget.read(value)


def _pay_for_round(budget: Budget, value: Any, precision: Any = 0, method: Any = "common") -> None:
    if not (isinstance(precision, int) and abs(precision) <= _LONGEST_FRACTION):
        raise ValueError(f"a number is rounded to at most {_LONGEST_FRACTION} digits")
    budget.read(value)


def _pay_nothing(budget: Budget, value: Any, *args: Any, **named: Any) -> None:
    budget.pay(1)


def _measured(values: Any, most: int) -> tuple[int, int]:
    """(items, characters) of all of these and of what is inside them; more than ``most`` items are not counted."""
    items = characters = 0
    waiting = [values]
    while waiting:
        inside = _inside(waiting.pop())
        items += len(inside)
        if items > most:
            break
        for one in inside:
            if isinstance(one, str):
                characters += len(one)
            elif isinstance(one, int):
                characters += one.bit_length() // 3
            elif one is not None:
                waiting.append(one)
    return items, characters


def _inside(value: Any) -> Any:
    """What a container holds."""
    import jinja2

    if isinstance(value, dict):
        return (*value, *value.values())
    if isinstance(value, list | tuple | set | frozenset | ItemsView | KeysView | ValuesView):
        return value
    if isinstance(value, jinja2.utils.Namespace):
        raise ValueError("a namespace is no value: what is in it may be itself")
    return range(length(value)) if isinstance(value, range) else ()


def listed(value: Any) -> Any:
    """What can be gone through once, as what can be measured before. Its items are paid for as they are made."""
    return list(value) if isinstance(value, GeneratorType | reversed) else value


def length(value: Any) -> int:
    return len(value) if hasattr(value, "__len__") else 1


FILTERS: dict[str, Pay] = {
    "join": _pay_for_join,
    "replace": _pay_for_replace,
    "indent": _pay_for_indent,
    "format": _pay_for_format,
    "tojson": _pay_for_json,
    "sum": _pay_for_sum,
    "round": _pay_for_round,
    "trim": _pay_for_search,
    **dict.fromkeys(_QUICK_FILTERS, _pay_nothing),
}
"""Others read all that they are given."""
TESTS: dict[str, Pay] = dict.fromkeys(_QUICK_TESTS, _pay_nothing)
