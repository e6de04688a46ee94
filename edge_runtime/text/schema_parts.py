"""The schemas inside a JSON schema, and what follows from how they hang together. Knows no keyword's meaning but those
that hold several schemas, and no grammar library.

Whoever asks may be hostile: all of it takes time and memory in proportion to the schema, whatever it refers to.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Schema = dict[str, Any]
Step = tuple[str, ...]
"""From a schema to one inside: a keyword, and a name or a number where that holds several."""

ONE = frozenset({"additionalProperties", "items"})
LISTS = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})
MAPS = frozenset({"properties", "patternProperties", "$defs", "definitions"})
_LONGEST_PLACE = 160


class Part:
    """One schema inside, by its place. Compared by identity: two that read the same are two."""

    __slots__ = ("above", "inner", "said", "step")

    def __init__(self, said: Any, above: Part | None = None, step: Step = ()) -> None:
        self.said, self.above, self.step = said, above, step
        """``said``: what stands there, perhaps no schema at all."""
        self.inner: dict[Step, Part] = {}

    @property
    def place(self) -> str:
        """As a JSON pointer; of a long one the end. Made when it is asked for: names may be as long as the schema, and
        stand above as many parts."""
        steps: list[str] = []
        length, part = 0, self
        while part.above is not None:
            step = "/".join(part.step)
            length += 1 + len(step)
            if length > _LONGEST_PLACE:
                return f".../{'/'.join([step[-_LONGEST_PLACE:], *reversed(steps)])}"
            steps.append(step)
            part = part.above
        return "/".join(["#", *reversed(steps)])

    def within(self, key: str) -> list[Part]:
        """The schemas behind a keyword, where they are objects."""
        return [part for step, part in self.inner.items() if step[0] == key]


class Parts:
    """All of them, the whole first, each ahead of those inside it."""

    def __init__(self, schema: Schema) -> None:
        self.whole = Part(schema)
        self.all: list[Part] = []
        waiting = [self.whole]
        while waiting:
            part = waiting.pop()
            self.all.append(part)
            for step, said in _inner(part.said) if isinstance(part.said, dict) else ():
                inner = part.inner[step] = Part(said, part, step)
                waiting.append(inner)

    def referred(self, part: Part) -> Part | None:
        """The schema that ``$ref`` names, if it is one of these."""
        reference = part.said.get("$ref")
        if not isinstance(reference, str) or not reference.startswith("#"):
            return None
        found: Part | None = self.whole
        tokens = iter(reference.split("/")[1:] if reference.startswith("#/") else [])
        for token in tokens:
            if found is None:
                return None
            step = (token,) if token in ONE else (token, next(tokens, ""))
            found = found.inner.get(step)
        return found if found is not None and isinstance(found.said, dict) else None


def escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


def _inner(said: Schema) -> Iterator[tuple[Step, Any]]:
    for key, value in said.items():
        if key in ONE:
            yield (key,), value
        elif key in LISTS and isinstance(value, list):
            yield from (((key, str(index)), item) for index, item in enumerate(value))
        elif key in MAPS and isinstance(value, dict):
            yield from (((key, escaped(name)), item) for name, item in value.items())
