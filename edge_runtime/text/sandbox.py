"""Where a foreign template runs. Knows no chat and no model.

Jinja's sandbox keeps a template from Python's attributes and from files. What it may cost is bounded here: every turn
of a loop, every character that an expression makes, and what it reads for that, is paid from a budget, ahead where it
could be many.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from typing import Any, NoReturn

from ..errors import InputError

MAX_SOURCE = 256 << 10
_FREE_WORK = 1 << 20
_WORK_PER_CHARACTER = 8
"""Of what a template is given: a few copies of it, and loops over it."""
_BUDGET = "work left"
"""Not a name that a template can spell."""
_WORK_OF_A_TURN = 8
"""Of a loop, or a call: what takes as long as some characters."""
_READ_FOR_ONE = 8
"""Characters that are looked at in the time in which one is made."""
_LONGEST_INTEGER = 1024
_LONGEST_TIME_FORMAT = 256
_WIDE_BRACES = re.compile(r":[^}]*(?:\{|\d{4})")
_WIDE = re.compile(r"%[^a-zA-Z%]*(?:\*|\d{4})")
# Made to fill space, or without a bound that is easily known.
_NO_FILTERS = ("center", "wordwrap", "xmlattr", "urlize", "pprint", "random", "filesizeformat", "batch", "slice")
_NO_METHODS = frozenset({"center", "ljust", "rjust", "zfill", "expandtabs", "translate"})
_GLOBALS = ("dict", "namespace", "joiner", "cycler")


class Template:
    """Raises ``InputError`` for a source that does not parse, and wherever the template refuses or fails."""

    def __init__(self, source: str) -> None:
        import jinja2

        # A template is a foreign program: what it does to values it did not expect is an error of its own too.
        self._errors: tuple[type[Exception], ...] = (
            jinja2.TemplateError, TypeError, ValueError, LookupError, ArithmeticError, AttributeError, RecursionError,
            MemoryError,
        )  # fmt: skip
        if len(source) > MAX_SOURCE:
            raise InputError(f"chat template: {len(source)} characters, at most {MAX_SOURCE} are run")
        try:
            environment = _environment()
            tree = _paying(environment.parse(source))
            self._template: Any = environment.from_string(tree)
        except self._errors as problem:
            _refuse(str(problem), None)

    def render(self, given: dict[str, Any], size: int) -> str:
        """``size``: characters of what is given, by which the work is bounded."""
        budget = _Budget(_FREE_WORK + _WORK_PER_CHARACTER * size)
        parts: list[str] = []
        try:
            for part in self._template.generate(**given, **{_BUDGET: budget}):
                budget.pay(len(part))
                parts.append(part)
        except self._errors as problem:
            _refuse(str(problem) or type(problem).__name__, "messages")
        return "".join(parts)


class _Budget:
    def __init__(self, work: int) -> None:
        self._left = work

    def pay(self, work: int) -> None:
        self._left -= work
        if self._left < 0:
            raise InputError("chat template: it does more work than any conversation of this size needs", "messages")


def _environment() -> Any:
    import jinja2
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Environment(ImmutableSandboxedEnvironment):
        intercepted_binops = frozenset({"+", "*", "**", "%"})

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            _budget(context).pay(_size_of_binop(operator, left, right))
            return super().call_binop(context, operator, left, right)

        def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:
            _budget(__context).pay(_size_of_call(__obj, args))
            return super().call(__context, __obj, *args, **kwargs)

    # As transformers sets it up, since templates are written against that.
    environment = Environment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.loopcontrols"],
        finalize=jinja2.pass_context(_paid),
    )
    for name in _NO_FILTERS:
        del environment.filters[name]
    filters = environment.filters
    filters["join"] = _bounded(filters["join"], lambda value, d="", *rest: _size_of_join(value, d))
    filters["replace"] = _bounded(filters["replace"], lambda value, *rest: _size_of_replace(str(value), rest))
    filters["indent"] = _bounded(filters["indent"], _size_of_indent)
    filters["format"] = _bounded(filters["format"], lambda value, *rest: _size_of_binop("%", value, rest))
    known: list[dict[str, Any]] = [filters, environment.tests]
    for named in known:
        for name in set(named) - {"join", "replace", "indent", "format"}:
            named[name] = _bounded(named[name], lambda value, *rest, **more: _reading(value))
    filters[_TURN], filters[_CONCAT] = jinja2.pass_context(_turn), jinja2.pass_context(_concat)
    filters[_READ] = jinja2.pass_context(_read)
    given = environment.globals
    environment.globals = {name: given[name] for name in _GLOBALS}
    environment.globals |= {"range": jinja2.pass_context(_range), "raise_exception": _refuse, "strftime_now": _now}
    return environment


# --- paying ---------------------------------------------------------------------------------------

_TURN, _CONCAT, _READ = "turn of a loop", "concatenation", "what is read"


def _paying(tree: Any) -> Any:
    """The template with a payment at each turn of a loop, call of a macro, ``~``, comparison and slice."""
    from jinja2 import nodes
    from jinja2.visitor import NodeTransformer

    class Paying(NodeTransformer):
        def visit_For(self, node: Any) -> Any:
            self.generic_visit(node)
            node.body.insert(0, payment(node))
            return node

        visit_Macro = visit_CallBlock = visit_For

        def visit_Concat(self, node: Any) -> Any:
            self.generic_visit(node)
            return nodes.Filter(nodes.List(node.nodes), _CONCAT, [], [], None, None)

        def visit_Compare(self, node: Any) -> Any:
            self.generic_visit(node)
            for side in (node, *node.ops):
                side.expr = reading(side.expr)
            return node

        def visit_Getitem(self, node: Any) -> Any:
            self.generic_visit(node)
            if isinstance(node.arg, nodes.Slice):
                node.node = reading(node.node)
            return node

    def reading(node: Any) -> Any:
        return node if isinstance(node, nodes.Const) else nodes.Filter(node, _READ, [], [], None, None)

    def payment(node: Any) -> Any:
        written = sum(len(data.data) for data in node.find_all(nodes.TemplateData))
        return nodes.Output([nodes.Filter(nodes.Const(written), _TURN, [], [], None, None)])

    return Paying().visit(tree)


def _budget(context: Any) -> _Budget:
    budget: _Budget = context.parent[_BUDGET]
    return budget


def _turn(context: Any, written: int) -> str:
    _budget(context).pay(_WORK_OF_A_TURN + written)
    return ""


def _concat(context: Any, parts: list[Any]) -> str:
    texts = [str(part) for part in parts]
    _budget(context).pay(sum(map(len, texts)))
    return "".join(texts)


def _read(context: Any, value: Any) -> Any:
    _budget(context).pay(_reading(value))
    return value


def _paid(context: Any, value: Any) -> Any:
    _budget(context).pay(len(value) if isinstance(value, str) else 1)
    return value


def _range(context: Any, *bounds: int) -> range:
    turns = range(*bounds)
    _budget(context).pay(len(turns))
    return turns


def _bounded(function: Callable[..., Any], size: Callable[..., int]) -> Callable[..., Any]:
    """A filter or test of Jinja's, paid for before it runs. It may want the environment first."""
    import jinja2

    wants = getattr(function, "jinja_pass_arg", None)

    def paid(context: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        _budget(context).pay(size(value, *args, **kwargs))
        first = {"environment": context.environment, "eval_context": context.eval_ctx, "context": context}
        made = function(*([first[wants.name]] if wants else []), value, *args, **kwargs)
        if isinstance(made, str):
            _budget(context).pay(len(made) // 2)
        return made

    return jinja2.pass_context(paid)


def _size_of_binop(operator: str, left: Any, right: Any) -> int:
    if operator == "%" and isinstance(left, str):
        if _WIDE.search(left):
            raise ValueError("a format that fills space")
        return len(left) + sum(_length(item) for item in (right if isinstance(right, tuple) else (right,)))
    if isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length() * right if operator == "**" else left.bit_length() + right.bit_length()
        if bits > _LONGEST_INTEGER:
            raise ValueError("too large an integer")
        return 1
    if operator == "*":
        times, value = (left, right) if isinstance(left, int) else (right, left)
        return _length(value) * max(times, 1) if isinstance(times, int) else 1
    return _length(left) + _length(right)


def _size_of_call(called: Any, args: tuple[Any, ...]) -> int:
    # Jinja wraps str.format.
    called = getattr(called, "__wrapped__", called)
    owner, name = getattr(called, "__self__", None), getattr(called, "__name__", "")
    if not isinstance(owner, str):
        return _WORK_OF_A_TURN + sum(map(_reading, args))
    if name in ("format", "format_map") and _WIDE_BRACES.search(owner):
        raise ValueError("a format that fills space")
    if name in _NO_METHODS:
        raise ValueError(f"{name} is not allowed")
    if name == "replace":
        return _size_of_replace(owner, args)
    if name == "join":
        return _size_of_join(args[0], owner)
    return len(owner)


def _size_of_join(value: Any, d: Any = "", *rest: Any, **named: Any) -> int:
    return (
        sum(_length(item) + _length(d) for item in value) if isinstance(value, list | tuple | dict) else _length(value)
    )


def _size_of_replace(value: str, args: tuple[Any, ...]) -> int:
    old, new = (str(argument) for argument in args[:2])
    return len(value) + (value.count(old) if old else len(value) + 1) * len(new)


def _size_of_indent(value: Any, width: Any = 4, *rest: Any, **named: Any) -> int:
    step = width if isinstance(width, int) else _length(width)
    return _length(value) + (str(value).count("\n") + 1) * step


def _length(value: Any) -> int:
    return len(value) if hasattr(value, "__len__") else 1


def _reading(value: Any) -> int:
    """Of a value from its start to its end, items of a list included."""
    if isinstance(value, list | tuple | dict):
        return len(value) + sum(len(item) for item in value if isinstance(item, str)) // _READ_FOR_ONE
    return 1 + _length(value) // _READ_FOR_ONE


# --- what a template may call ---------------------------------------------------------------------


def _refuse(message: str, param: str | None = "messages") -> NoReturn:
    """What a template calls to refuse a conversation."""
    raise InputError(f"chat template: {' '.join(str(message).split())}", param)


def _now(form: str) -> str:
    if len(form) > _LONGEST_TIME_FORMAT:
        raise ValueError(f"a format of a time has at most {_LONGEST_TIME_FORMAT} characters")
    return datetime.now().strftime(form)
