"""What a foreign template may do, and what it may cost."""

from __future__ import annotations

import contextlib
import time

import pytest

from edge_runtime.errors import InputError
from edge_runtime.text.chat import ChatTemplate, Message
from edge_runtime.text.sandbox import MAX_SOURCE

TALK = [Message("user", "Hi there"), Message("assistant", "Hello!"), Message("user", "Bye")]

ESCAPES = {
    "class": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "globals": "{{ raise_exception.__globals__ }}",
    "method": "{{ messages.append(1) }}",
    "format": "{{ '{0.__class__}'.format(1) }}",
    "attr": "{{ messages | attr('__class__') | attr('__init__') }}",
    "map": "{{ messages | map(attribute='__class__.__init__.__globals__') | list }}",
    "import": "{% import 'os' as os %}{{ os }}",
    "include": "{% include 'secret.txt' %}",
    "extends": "{% extends 'secret.txt' %}",
    "self": "{{ self.__init__.__globals__ }}",
    "cycler": "{{ cycler.__init__.__globals__ }}",
    "namespace": "{{ namespace.__init__.__globals__['os'] }}",
    "lipsum": "{{ lipsum(n=1000000) }}",
    "context": "{{ get_context().parent }}",
}
DOUBLE = "{{% set n = namespace(x='{start}') %}}{{% for i in range(60) %}}{{% set n.x = {more} %}}{{% endfor %}}"
COSTS = {
    "range": "{% for i in range(10 ** 9) %}{% endfor %}",
    "nested": "{% for i in range(90000) %}{% for j in range(90000) %}{% endfor %}{% endfor %}",
    "nested over text": "{% set t = 'x' * 3000 %}" + "{% for a in t %}" * 4 + "{% endfor %}" * 4,
    "recursion": "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
    "branching": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "recursive loop": "{% for a in [[[1]]] recursive %}{{ loop([[1]]) }}{% endfor %}",
    "text": "{% for i in range(99999) %}" + "x" * 10_000 + "{% endfor %}",
    "captured": "{% set c %}{% for i in range(99999) %}" + "x" * 10_000 + "{% endfor %}{% endset %}{{ c | length }}",
    "expressions": "{% set t = 'x' * 99999 %}{% for i in range(99999) %}{{ t }}{% endfor %}",
    "times": "{{ 'x' * 10 ** 12 }}",
    "times from the left": "{{ 10 ** 12 * 'x' }}",
    "list": "{{ [1] * 10 ** 12 }}",
    "power": "{{ 10 ** 10000 }}",
    "squares": DOUBLE.format(start="", more="(n.x or 9) * (n.x or 9)"),
    "plus": DOUBLE.format(start="x", more="n.x + n.x"),
    "tilde": DOUBLE.format(start="x", more="n.x ~ n.x"),
    "join": DOUBLE.format(start="x", more="[n.x, n.x] | join"),
    "join by": "{{ range(99999) | list | join('x' * 99999) }}",
    "join method": "{{ ('x' * 99999).join(['y'] * 99999) }}",
    "replace": DOUBLE.format(start="x", more="n.x | replace('x', 'xx')"),
    "replace nothing": "{{ ('x' * 99999) | replace('', 'y' * 99999) }}",
    "replace method": "{{ ('x' * 99999).replace('x', 'y' * 99999) }}",
    "indent": "{{ 'x\n' * 9999 | indent(10 ** 9, true) }}{{ ('x\n' * 9999) | indent(10 ** 9) }}",
    "center": "{{ 'x' | center(10 ** 12) }}",
    "ljust": "{{ 'x'.ljust(10 ** 12) }}",
    "zfill": "{{ 'x'.zfill(10 ** 12) }}",
    "percent": "{{ '%999999999d' % 1 }}",
    "percent by argument": "{{ '%*d' | format(999999999, 1) }}",
    "format filter": "{{ '%999999999d' | format(1) }}",
    "format width": "{{ '{:>999999999}'.format(1) }}",
    "format width by argument": "{{ '{:>{}}'.format(1, 999999999) }}",
    "format map": "{{ '{x:>999999999}'.format_map({'x': 1}) }}",
    "format of a time": "{{ strftime_now('%c' * 90000) }}",
    "format again and again": "{{ ('{0}' * 90000).format('x' * 90000) | length }}",
    "percent again and again": "{{ (('%(a)s' * 90000) % {'a': 'x' * 90000}) | length }}",
    "join of what is made": "{{ range(90000) | map('string') | join('x' * 90000) | length }}",
    "join method of what is made": "{{ ('x' * 90000).join(range(90000) | map('string')) | length }}",
    "sum of lists": "{{ ([[1]] * 300000) | sum(start=[]) | length }}",
    "tojson far in": "{{ [[1]] | tojson(indent=10 ** 9) }}",
    "round": "{{ 3 | round(10 ** 9) }}",
    "punycode": "{{ ('\u00fc' * 90000).encode('punycode') | length }}",
    "striptags": "{{ ('<>' * 400000) | striptags | length }}",
    "rfind": "{{ ('a' * 400000).rfind('b' ~ 'a' * 200000) }}",
    "trim": "{{ ('a' * 400000) | trim('b' * 200000 ~ 'a') | length }}",
    "division": "{% set x, y = ('f' * 200000) | int(0, 16), ('f' * 90000) | int(0, 16) %}{{ (x // y) | length }}",
    "a loop that sifts": "{% set s = [1] * 300000 %}{% for i in range(90000) %}{% for x in s if false %}{% endfor %}"
    "{% endfor %}",
    "a long body": "{% for i in range(90000) %}" + "{% set x = i %}" * 3000 + "{% endfor %}",
}  # fmt: skip
# Each turn of a loop is cheap, and what it does to a long text is one step of Python's: gigabytes in all.
COSTS |= {
    f"over and over: {step}": "{% set t = 'x' * 90000 %}{% set s = [t] * 900 %}{% for i in range(30000) %}"
    f"{{% set x = {step} %}}{{% endfor %}}"
    for step in (
        "t | upper", "t | trim", "t | length + (t | string | length)", "t | list", "t | tojson", "t | escape",
        "s | map('upper') | list", "s | select('upper') | list", "s | sort", "s | unique | list", "s | tojson",
        "t[1:]", "t[::-1]", "s[1:]", "'y' in t", "t == t[1:]", "t < 'x' * 3", "t is upper", "t.upper()", "t.find('y')",
        "s | sum(start='')", "s | first | upper", "s | groupby(0)", "dict(a=t | upper)", "t | wordcount",
        "'{}'.format(t)", "'{}'.format(s)", "'%s' % (s,)", "s.copy()", "s.count(t)",
    )
}  # fmt: skip
# Short to write and quick to make, and endless as a text, or to whoever compares two of them.
COSTS |= {
    f"lists of lists: {{{{ {step} }}}}": "".join(
        f"{{% set {name}1 = ['xx' | first] * 900 %}}"
        + "".join(f"{{% set {name}{depth + 1} = [{name}{depth}] * 900 %}}" for depth in (1, 2, 3))
        for name in "dh"
    )
    + f"{{% set d = d4 %}}{{% set h = h4 %}}{{{{ {step} }}}}"
    for step in (
        "d", "d ~ ''", "d | tojson | length", "d | string | length", "d | upper | length", "d | join | length",
        "d | replace('a', 'b')", "d | indent", "'{}'.format(d)", "'%s' % d", "d == h", "d < h", "d in [h]",
        "d4.count(h3)", "d4.index(h3)", "{'a': d}.items() | string", "{'a': d}.values() | list | string",
        "namespace(a=d) | string", "[d, h] | sort | length", "dict(a=d) | string", "d is eq(h)",
    )
}  # fmt: skip


@pytest.mark.parametrize("name", ESCAPES)
def test_a_template_gets_nothing_of_python(name: str) -> None:
    """Either it is refused, or what it asked for is not there."""
    made = ""
    with contextlib.suppress(InputError):
        made = ChatTemplate(ESCAPES[name]).render(TALK)
    assert made == ""


@pytest.mark.parametrize("name", COSTS)
def test_a_template_without_an_end_is_stopped(name: str) -> None:
    begun_s = time.process_time()
    with pytest.raises(InputError, match="chat template: ") as caught:
        ChatTemplate(COSTS[name]).render(TALK)
    assert time.process_time() - begun_s < 30.0  # of the processor; some of these would take hours
    assert len(str(caught.value).splitlines()) == 1 and len(str(caught.value)) < 300


def test_a_template_of_megabytes_is_not_read() -> None:
    with pytest.raises(InputError, match="characters, at most"):
        ChatTemplate("x" * (MAX_SOURCE + 1))


def test_what_is_cheap_may_be_done() -> None:
    """What the families' own templates use."""
    source = """\
{%- macro quoted(x, deep=false) -%}{{ '<' ~ x ~ '>' }}{%- endmacro -%}
{%- set ns = namespace(n=0) -%}
{%- for m in messages if m.role != 'system' recursive -%}
{%- if loop.index0 == 2 %}{% break %}{% endif -%}
{%- set ns.n = ns.n + m['content'] | length -%}
{{ quoted(m['content'].split(' ')[0] | upper, deep=true) }}{{ [1, 'a'] | join('-') }}{{ 'aXbX' | replace('X', '') }}
{%- endfor -%}
{{ ns.n }}{{ {'b': 1, 'a': none} | tojson }}{{ 'a\nb' | indent(2) }}{{ '%s-%d' | format('x', 3) }}{{ '%5.1f' % 2.25 }}
{%- for key, value in {'z': 1, 'y': 2} | dictsort %}{{ key }}{% endfor -%}
{{ 'a,b'.replace(',', ';') }}{{ '-'.join(['x', 'y']) }}{{ messages[::-1] | map(attribute='role') | list | length }}"""
    made = ChatTemplate(source).render(TALK)
    assert made == '<HI>1-aab<HELLO!>1-aab14{"a": null, "b": 1}a\n  bx-3  2.2yza;bx-y3'


def test_a_long_conversation_is_within_the_budget() -> None:
    template = ChatTemplate(
        "{% for m in messages %}{{ m.content | trim }}{% set parts = m.content.split(' ') %}{% endfor %}"
    )
    talk = [Message("user", "word " * 200_000), Message("assistant", "x" * 1_000_000)]
    assert len(template.render(talk)) == 1_999_999


def test_each_conversation_has_a_budget_of_its_own() -> None:
    template = ChatTemplate("{% for i in range(30000) %}{{ i }}{% endfor %}")
    assert {len(template.render(TALK)) for _ in range(8)} == {138_890}
