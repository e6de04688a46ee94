"""Values that readers trip over, and edits of bytes, words and JSON trees. Knows no format of ours; all randomness is
the caller's.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from random import Random
from typing import Any

WIDTHS = (8, 16, 31, 32, 33, 53, 62, 63, 64)
EDGES = tuple(sorted({0, 1, 2, 3, 5, 7, 12, 13, 31, 100, 255, *((1 << w) + d for w in WIDTHS for d in (-1, 0, 1))}))
FLOATS = (0.0, -0.0, -1.0, 1e-45, 5e-324, 1e38, 1e39, 1.7e308, 1e-6, 0.5, 3.0)
WORDS = (
    "", " ", "\n", "\0", "a\nb", "\x1b[31mred\x1b[0m", "..", ".", "/etc/passwd", "../x", "x" * 300, "x" * 5000,
    "\u202eevil", "\ud800", "\udcff", "\u2028", "\ufeff", "%s%n", "{0}", "null", "true", "1e999", "NaN", "-1", "0",
    "on", "\u0660\u0661", "\U0001f4a5", "é", "<end_of_turn>", "default", "linear", "full_attention",
    "sliding_attention",
)  # fmt: skip


def number(rng: Random, near: int = 0) -> int:
    """One that overflows, underflows, or lies beside what stood there."""
    choice = rng.randrange(4)
    if choice == 0:
        return near + rng.choice((-1, 1, -8, 8, 32, -32, 4096))
    if choice == 1:
        return near * rng.choice((2, 3, 256, 65537))
    if choice == 2:
        return rng.choice(EDGES)
    return rng.getrandbits(rng.choice((3, 8, 16, 32, 64)))


def edit_bytes(data: bytes, rng: Random) -> bytes:
    """Flips, cuts, copies."""
    out = bytearray(data or b"\0")
    for _ in range(rng.choice((1, 1, 1, 2, 4, 16))):
        at = rng.randrange(len(out)) if out else 0
        choice = rng.randrange(7)
        if choice == 0 and out:
            out[at] ^= 1 << rng.randrange(8)
        elif choice == 1 and out:
            out[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, 0x0A, 0x22, 0x5B, rng.randrange(256)))
        elif choice == 2:
            width = rng.choice((1, 2, 4, 8))
            value = number(rng, int.from_bytes(out[at : at + width], "little")) % (1 << 8 * width)
            out[at : at + width] = value.to_bytes(width, "little")
        elif choice == 3:
            del out[at : at + rng.choice((1, 4, 8, 64))]
        elif choice == 4:
            out[at:at] = out[(start := rng.randrange(len(out) + 1)) : start + rng.choice((1, 8, 64))]
        elif choice == 5:
            out[at:at] = rng.randbytes(rng.choice((1, 4, 8)))
        elif rng.randrange(4) == 0:
            del out[at:]
    return bytes(out)


class Twice(dict[str, Any]):
    """An object in which the key of ``again`` stands a second time, behind the others."""

    again: tuple[Any, Any]


def spell(value: Any) -> str:
    """JSON, and what is none: NaN, infinities, numbers of any length (``Raw``), keys that stand twice."""
    if isinstance(value, Raw):
        return value.text
    if isinstance(value, dict):
        pairs = [*value.items(), *([value.again] if isinstance(value, Twice) else [])]
        return "{" + ", ".join(f"{json.dumps(str(key))}: {spell(item)}" for key, item in pairs) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(spell, value)) + "]"
    return json.dumps(value)


class Raw:
    """What stands in the file as it is."""

    def __init__(self, text: str) -> None:
        self.text = text


def value(rng: Random, known: Sequence[str] = (), depth: int = 0) -> Any:
    """Any leaf, or a small tree."""
    choice = rng.randrange(12 if depth < 3 else 9)
    if choice <= 2:
        return number(rng) * rng.choice((1, 1, 1, -1))
    if choice == 3:
        return rng.choice(FLOATS)
    if choice == 4:
        return Raw(
            rng.choice(
                (
                    "NaN",
                    "Infinity",
                    "-Infinity",
                    "1e400",
                    "-0",
                    "9" * 400,
                    "9" * 4299,
                    "9" * 4300,
                    "9" * 5000,
                    "0.1e-999",
                )
            )
        )
    if choice <= 7:
        return rng.choice(WORDS if not known or rng.randrange(2) else known)
    if choice == 8:
        return rng.choice((None, True, False))
    if choice == 9:
        return [value(rng, known, depth + 1) for _ in range(rng.choice((0, 1, 2, 3, 40)))]
    if choice == 10:
        return {str(rng.choice(known or WORDS)): value(rng, known, depth + 1) for _ in range(rng.randrange(3))}
    levels = rng.choice((3, 50, 900, 9_000))
    return Raw("[" * levels + "]" * levels if rng.randrange(2) else '{"a":' * levels + "1" + "}" * levels)


def edit_tree(tree: Any, rng: Random, known: Sequence[str] = ()) -> Any:
    """``tree`` changed at one to three places; it is not kept as it was."""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        tree = _edit(tree, rng, known)
    return tree


def _edit(tree: Any, rng: Random, known: Sequence[str]) -> Any:
    if not isinstance(tree, dict | list) or not tree or rng.randrange(24) == 0:
        return _leaf(tree, rng, known)
    place = rng.choice(list(tree)) if isinstance(tree, dict) else rng.randrange(len(tree))
    if isinstance(tree[place], dict | list) and rng.randrange(4):
        tree[place] = _edit(tree[place], rng, known)
        return tree
    choice = rng.randrange(10)
    if choice == 0:
        del tree[place]
    elif choice == 1 and isinstance(tree, dict):
        tree[str(rng.choice(known or WORDS) if rng.randrange(2) else rng.choice(WORDS))] = value(rng, known)
    elif choice == 1 and isinstance(tree, list):
        tree.insert(place, tree[place] if rng.randrange(2) else value(rng, known))
    elif choice == 2 and isinstance(tree, dict):
        twice = Twice(tree)
        twice.again = (place, tree[place] if rng.randrange(2) else value(rng, known))
        return twice
    elif choice == 3 and len(tree) > 1:
        other = rng.choice(list(tree)) if isinstance(tree, dict) else rng.randrange(len(tree))
        tree[place], tree[other] = tree[other], tree[place]
    elif choice == 4 and isinstance(tree, dict):
        tree[rng.choice(WORDS)] = tree.pop(place)
    else:
        tree[place] = _leaf(tree[place], rng, known)
    return tree


def _leaf(leaf: Any, rng: Random, known: Sequence[str]) -> Any:
    if isinstance(leaf, int) and not isinstance(leaf, bool) and rng.randrange(3):
        return number(rng, leaf)
    if isinstance(leaf, str) and rng.randrange(3) == 0:
        at = rng.randrange(len(leaf) + 1)
        return leaf[:at] + rng.choice(WORDS) + leaf[at:]
    return value(rng, known)


def edit_json(data: bytes, rng: Random, known: Sequence[str] = ()) -> bytes:
    """As a tree where it is one, else (and now and then) as bytes."""
    if rng.randrange(8) == 0:
        return edit_bytes(data, rng)
    try:
        tree = json.loads(data)
    except (ValueError, RecursionError):
        return edit_bytes(data, rng)
    try:
        return spell(edit_tree(tree, rng, known)).encode("utf-8", "surrogatepass")
    except (ValueError, RecursionError):
        return edit_bytes(data, rng)
