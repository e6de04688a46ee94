"""Where a foreign template runs. Knows no chat and no model.

Jinja's sandbox keeps a template from Python's attributes and from files. What it may cost is bounded here: every turn
of a loop, every character that an expression makes, and what it reads for that, is paid from a budget, ahead where it
could be many (``template_work``).
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, NoReturn

from ..errors import InputError
from .template_work import FILTERS, READ_FOR_ONE, TESTS, Budget, Pay, length, listed, pay_for_binop, pay_for_call

MAX_SOURCE = 256 << 10
_FREE_WORK = 1 << 20
_WORK_PER_CHARACTER = 8
"""Of what a template is given: a few copies of it, and loops over it."""
_BUDGET = "work left"
"""Not a name that a template can spell."""
_WORK_OF_A_TURN = 8
"""Of a loop, or a call: what takes as long as some characters."""
_LONGEST_TIME_FORMAT = 256
# Made to fill space, or without a bound that is easily known.
_NO_FILTERS = (
    "center", "wordwrap", "xmlattr", "urlize", "pprint", "random", "filesizeformat", "batch", "slice", "striptags",
)  # fmt: skip
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
        budget = Budget(_FREE_WORK + _WORK_PER_CHARACTER * size)
        parts: list[str] = []
        try:
            for part in self._template.generate(**given, **{_BUDGET: budget}):
                budget.pay(len(part))
                parts.append(part)
        except self._errors as problem:
            _refuse(str(problem) or type(problem).__name__, "messages")
        return "".join(parts)


def _environment() -> Any:
    import jinja2
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Environment(ImmutableSandboxedEnvironment):
        intercepted_binops = frozenset({"+", "-", "*", "**", "%", "/", "//"})

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            pay_for_binop(_budget(context), operator, left, right)
            return super().call_binop(context, operator, left, right)

        def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:
            args = tuple(map(listed, args))
            pay_for_call(_budget(__context), __obj, args, kwargs)
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
    filters: dict[str, Any] = environment.filters
    tests: dict[str, Any] = environment.tests
    for name, filter_ in filters.items():
        filters[name] = _bounded(filter_, FILTERS.get(name, Budget.read))
    for name, test in tests.items():
        tests[name] = _bounded(test, TESTS.get(name, Budget.read))
    filters[_TURN], filters[_CONCAT] = jinja2.pass_context(_turn), jinja2.pass_context(_concat)
    filters[_READ], filters[_SEARCHED] = jinja2.pass_context(_read), jinja2.pass_context(_searched)
    filters[_SIFTED] = jinja2.pass_context(_sifted)
    given = environment.globals
    environment.globals = {name: given[name] for name in _GLOBALS}
    environment.globals |= {"range": jinja2.pass_context(_range), "raise_exception": _refuse, "strftime_now": _now}
    return environment


# --- paying ---------------------------------------------------------------------------------------

_TURN, _CONCAT, _READ, _SEARCHED, _SIFTED = "turn of a loop", "concatenation", "read", "searched", "sifted"


def _paying(tree: Any) -> Any:
    """The template with a payment at each turn of a loop, call of a macro, ``~``, comparison and slice."""
    from jinja2 import nodes
    from jinja2.visitor import NodeTransformer

    class Paying(NodeTransformer):
        def visit_For(self, node: Any) -> Any:
            work = payment(node)
            self.generic_visit(node)
            node.body.insert(0, work)
            if node.test is not None:
                node.iter = paid(node.iter, _SIFTED)
            return node

        def visit_Macro(self, node: Any) -> Any:
            work = payment(node)
            self.generic_visit(node)
            node.body.insert(0, work)
            return node

        visit_CallBlock = visit_Macro

        def visit_Concat(self, node: Any) -> Any:
            self.generic_visit(node)
            return paid(nodes.List(node.nodes), _CONCAT)

        def visit_Compare(self, node: Any) -> Any:
            self.generic_visit(node)
            node.expr = paid(node.expr, _READ)
            for side in node.ops:
                side.expr = paid(side.expr, _SEARCHED if side.op in ("in", "notin") else _READ)
            return node

        def visit_Getitem(self, node: Any) -> Any:
            self.generic_visit(node)
            if isinstance(node.arg, nodes.Slice):
                node.node = paid(node.node, _READ)
            return node

    def paid(node: Any, what: str) -> Any:
        return node if isinstance(node, nodes.Const) else nodes.Filter(node, what, [], [], None, None)

    def payment(node: Any) -> Any:
        written = sum(len(data.data) for data in node.find_all(nodes.TemplateData))
        parts = sum(1 for _ in node.find_all(nodes.Node))
        work = nodes.Const(written + parts // READ_FOR_ONE)
        return nodes.Output([nodes.Filter(work, _TURN, [], [], None, None)])

    return Paying().visit(tree)


def _budget(context: Any) -> Budget:
    budget: Budget = context.parent[_BUDGET]
    return budget


def _turn(context: Any, work: int) -> str:
    _budget(context).pay(_WORK_OF_A_TURN + work)
    return ""


def _concat(context: Any, parts: list[Any]) -> str:
    _budget(context).spell(*parts)
    return "".join(map(str, parts))


def _read(context: Any, value: Any) -> Any:
    _budget(context).read(value)
    return value


def _searched(context: Any, value: Any) -> Any:
    """Of a dictionary a key is looked up."""
    return value if isinstance(value, dict) else _read(context, value)


def _sifted(context: Any, value: Any) -> Any:
    """A loop with a condition looks at items that have no turn."""
    _budget(context).pay(length(value))
    return value


def _paid(context: Any, value: Any) -> Any:
    _budget(context).spell(value)
    return value


def _range(context: Any, *bounds: int) -> range:
    turns = range(*bounds)
    _budget(context).pay(len(turns))
    return turns


def _bounded(function: Callable[..., Any], pay: Pay) -> Callable[..., Any]:
    """A filter or test of Jinja's, paid for before it runs. It may want the environment first."""
    import jinja2

    wants = getattr(function, "jinja_pass_arg", None)

    def paid(context: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        value = listed(value)
        pay(_budget(context), value, *args, **kwargs)
        first = {"environment": context.environment, "eval_context": context.eval_ctx, "context": context}
        made = function(*([first[wants.name]] if wants else []), value, *args, **kwargs)
        if isinstance(made, str):
            _budget(context).pay(len(made) // 2)
        return made

    return jinja2.pass_context(paid)


# --- what a template may call ---------------------------------------------------------------------


def _refuse(message: str, param: str | None = "messages") -> NoReturn:
    """What a template calls to refuse a conversation."""
    raise InputError(f"chat template: {' '.join(str(message).split())}", param)


def _now(form: str) -> str:
    if len(form) > _LONGEST_TIME_FORMAT:
        raise ValueError(f"a format of a time has at most {_LONGEST_TIME_FORMAT} characters")
    return datetime.now().strftime(form)
