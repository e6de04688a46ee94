"""What a schema would cost to compile, before it is: the places where the grammar library's own limits do not hold.
Knows no grammar library.

It intersects all patterns that hold at one place, and the states of that are the product of theirs: six of 70 letters
took more than 4 GB and had no end (llguidance 1.9). ``multipleOf`` is a machine of as many states as the number, anew
at each place. Members that may be left out are compared each with each. And an integer that is at most -2^63 + 1 makes
it recurse without an end, and the process ends with it.
"""

from __future__ import annotations

import math
from decimal import Decimal, InvalidOperation
from typing import NamedTuple

from ..errors import InputError
from .schema_parts import Part, Parts, escaped

_FREE_PATTERNS = 2
"""Any two are cheap, or within the library's limits."""
_MOST_STATES = 1_000_000
"""Of more patterns than those, as the product of their lengths: some 0.1 s, 20 MB."""
_MOST_MULTIPLE = 100_000
"""Some 0.6 s, 50 MB."""
_MOST_MULTIPLES = 2 * _MOST_MULTIPLE
"""Of all places together."""
_MOST_OPTIONAL = 1000
"""Members of one object. The library stops at an answer's first token where there are some 500; 8,000 took it 6 s to
compile."""
_MOST_PATTERNED = 64
"""``patternProperties`` of one object: the library compares each with each."""
_FORMAT_LETTERS = 64
_LEAST = -(10**18)
"""Of an integer; the library is safe down to some -9.2e18."""


class _Cost(NamedTuple):
    """Of what holds at one place at once, at most; each a logarithm, so that factors are sums."""

    patterns: int = 0
    letters: float = 0.0
    multiple: float = 0.0
    optional: int = 0
    """No logarithm: members that may be left out, of one object."""

    def beside(self, other: _Cost) -> _Cost:
        return _Cost(
            # Doubling references would make numbers of any length.
            min(self.patterns + other.patterns, 1 << 30),
            min(self.letters + other.letters, 1e9),
            min(self.multiple + other.multiple, 1e9),
            min(self.optional + other.optional, 1 << 30),
        )

    def or_else(self, other: _Cost) -> _Cost:
        return _Cost(
            max(self.patterns, other.patterns),
            max(self.letters, other.letters),
            max(self.multiple, other.multiple),
            max(self.optional, other.optional),
        )


def check_costs(parts: Parts) -> None:
    """Raises ``InputError`` for a schema that takes the library minutes or gigabytes."""
    known: dict[Part, _Cost] = {}
    # By hand and not by recursion: references may be a thousand deep. One to what is not yet known goes round in a
    # circle, through objects or lists: it holds at another place.
    waiting = [(parts.whole, False)]
    waiting += [(part, False) for part in parts.all]
    begun: set[Part] = set()
    while waiting:
        part, done = waiting.pop()
        if done:
            known[part] = _cost(part, parts, known)
            _check(part, known[part])
        elif part not in begun and isinstance(part.said, dict):
            begun.add(part)
            _check_numbers(part)
            waiting.append((part, True))
            referred = parts.referred(part)
            waiting += [(one, False) for one in (*part.inner.values(), referred) if one is not None]
    _check_together(known, parts)


def _cost(part: Part, parts: Parts, known: dict[Part, _Cost]) -> _Cost:
    """At the place of the part, or further inside it: objects of which all must hold are merged, member by member."""

    def most(*keys: str) -> _Cost:
        found = _Cost()
        for one in (one for key in keys for one in part.within(key)):
            found = found.or_else(known.get(one, _Cost()))
        return found

    inside = most("properties", "items", "prefixItems", "additionalProperties").beside(most("patternProperties"))
    whole = _own(part).or_else(inside).beside(most("anyOf")).beside(most("oneOf"))
    for one in part.within("allOf"):
        whole = whole.beside(known.get(one, _Cost()))
    referred = parts.referred(part)
    return whole if referred is None else whole.beside(known.get(referred, _Cost()))


def _own(part: Part) -> _Cost:
    pattern, form = part.said.get("pattern"), part.said.get("format")
    letters = [max(2, len(pattern))] if isinstance(pattern, str) else []
    letters += [_FORMAT_LETTERS] if isinstance(form, str) else []
    states = max(1, _states(part.said.get("multipleOf")))
    return _Cost(len(letters), sum(map(math.log, letters)), math.log(states), _optional(part))


def _optional(part: Part) -> int:
    required = part.said.get("required")
    needed = {escaped(name) for name in required if isinstance(name, str)} if isinstance(required, list) else set()
    return sum(step[0] == "properties" and step[1] not in needed for step in part.inner)


def _states(multiple: object) -> int:
    """Digits of a number, as one: 0.25 and 2500 are 25."""
    if isinstance(multiple, bool) or not isinstance(multiple, int | float):
        return 1
    try:
        digits = Decimal(str(multiple)).normalize().as_tuple().digits
    except InvalidOperation:
        return 1
    # Of more digits than these the library says that they are too many.
    return int("".join(map(str, digits[:16])))


def _check(part: Part, cost: _Cost) -> None:
    if cost.patterns > _FREE_PATTERNS and cost.letters > math.log(_MOST_STATES):
        raise InputError(
            f"{part.place}: {cost.patterns} patterns and formats may hold at one place, and together they are too "
            f"costly: {_FREE_PATTERNS}, or shorter ones"
        )
    if cost.multiple > math.log(_MOST_MULTIPLE):
        raise InputError(f"{part.place}: multipleOf has too many digits: up to {_MOST_MULTIPLE}, zeros left out")
    patterned = len(part.within("patternProperties"))
    if patterned > _MOST_PATTERNED:
        raise InputError(f"{part.place}: {patterned} patternProperties, at most {_MOST_PATTERNED}")
    if cost.optional > _MOST_OPTIONAL:
        raise InputError(
            f"{part.place}: {cost.optional} properties of one object that may be left out, at most {_MOST_OPTIONAL}"
        )


def _check_together(known: dict[Part, _Cost], parts: Parts) -> None:
    """Each multiple is built anew at each place that has it, by itself or by reference."""
    places = sum(cost.multiple > 0 and _has_multiple(part, parts) for part, cost in known.items())
    states = math.exp(max(cost.multiple for cost in known.values()))
    if places > 1 and places * states > _MOST_MULTIPLES:
        raise InputError(
            f"multipleOf at {places} places, up to {states:.0f} together at one, is too costly: at most "
            f"{_MOST_MULTIPLES} in all, zeros left out"
        )


def _has_multiple(part: Part, parts: Parts) -> bool:
    return "multipleOf" in part.said or parts.referred(part) is not None


def _check_numbers(part: Part) -> None:
    waiting = [part.said.get(key) for key in ("const", "enum", "maximum", "exclusiveMaximum")]
    while waiting:
        value = waiting.pop()
        if isinstance(value, list):
            waiting += value
        elif isinstance(value, dict):
            waiting += value.values()
        elif isinstance(value, int | float) and value < _LEAST:
            raise InputError(f"{part.place}: {str(value)[:32]} is below {_LEAST:.0e}, which is not supported")
