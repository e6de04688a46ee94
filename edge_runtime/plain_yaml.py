"""YAML as a person writes settings: words, numbers, lists and sections. Knows no key.

What a setting has no use for and a reader trips over is refused by name: aliases, which can make gigabytes of a few
lines, tags, which ask for types, and keys that stand twice or are merged (<<), of which one would win in silence.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .errors import ConfigError
from .files import read_at_most

MOST_BYTES = 1 << 18
"""The reader takes seconds for a file of so many."""


def read_yaml(path: Path, what: str = "") -> Any:
    """``None`` for a file that says nothing. ``what`` it is, ahead of its name. Raises ``ConfigError``."""
    import yaml

    class Loader(yaml.SafeLoader):
        def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
            event: Any = self.peek_event()  # type: ignore[no-untyped-call]
            line: int = event.start_mark.line + 1
            if isinstance(event, yaml.AliasEvent):
                raise ConfigError(f"line {line}: aliases (*name) are not supported")
            if (tag := getattr(event, "tag", None)) is not None:
                raise ConfigError(f"line {line}: tags (!name) are not supported: {tag!r:.80}")
            return super().compose_node(parent, index)

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            seen = set()
            for key, _ in node.value:
                if not isinstance(key, yaml.ScalarNode):
                    raise ConfigError(f"line {key.start_mark.line + 1}: a key must be a word, not a list or a section")
                if key.tag == "tag:yaml.org,2002:merge":
                    raise ConfigError(f"line {key.start_mark.line + 1}: merges (<<) are not supported")
                if key.value in seen:
                    raise ConfigError(f"line {key.start_mark.line + 1}: {key.value!r} stands twice")
                seen.add(key.value)
            return super().construct_mapping(node, deep)

    text = read_at_most(path, MOST_BYTES, what)
    try:
        return yaml.load(text, Loader)
    except RecursionError:
        raise ConfigError(f"{what}{path}: nested too deeply") from None
    except ConfigError as problem:
        raise ConfigError(f"{what}{path}: {problem}") from None
    except (yaml.YAMLError, ValueError, ArithmeticError) as problem:  # of numbers: too long a one, a date that is none
        raise ConfigError(f"{what}{path}: not YAML: {' '.join(str(problem).split())}") from None
