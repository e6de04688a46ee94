"""YAML as text, spoilt line by line. Knows no key."""

from __future__ import annotations

import json
from collections.abc import Sequence
from random import Random

from .hostile import WORDS, edit_bytes, number

_SCALARS = (
    "~", "yes", "0o17", "0x_", "1_000", "1:60:60", "2001-99-99", "2001-01-01", "1e999", ".nan", "-.inf", "1.0:1:1",
    "!!binary aaaa", "!!python/object:os.system x", "!!set {a}", "!!float x", "!!int x", "!!int ''", "!!bool x",
    "!!timestamp x", "!!str 1", "!local x", "!!map [1]", "!!omap [a: 1]", "=", "<<", "|", ">", "'", '"', '"\\ud800"',
    '"\\x1b[31m"', '"\\u202e"', "[", "{", "[[[[", "&a x", "*a", "9" * 5000, "1" + ":1" * 250 + ".0", "- 1", "? a",
    "%YAML 9.9", "---", "...", "#", "\t", "@", "`", "\u2028", "\u0085x", "\ufeff", "{a: {a: {a: 1}}}",
)  # fmt: skip
_MERGED = "".join(
    f"{key}: &{key} {{<<: [{', '.join([f'*{of}'] * 8)}]}}\n" for of, key in zip("abcdefg", "bcdefgh", strict=True)
)
_BLOCKS = (
    "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b]\n",
    f"a: &a {{x: 1, y: 2, z: 3}}\n{_MERGED}", "a: &a [*a]\n", "draft: &d\n  draft: *d\n", "? [a, b]\n: 1\n",
    "? {a: b}\n: 1\n", "1: 2\n", "null: 2\n", "a" * 2000 + ": 1\n", "x: " + "[" * 400 + "\n", "- " * 500 + "\n",
    "".join(" " * i + f"k{i}:\n" for i in range(200)), "--- a\n--- b\n",
)  # fmt: skip


def edit_yaml(data: bytes, rng: Random, known: Sequence[str] = ()) -> bytes:
    if rng.randrange(8) == 0:
        return edit_bytes(data, rng)
    lines = data.decode("utf-8", "replace").splitlines() or [""]
    for _ in range(rng.choice((1, 1, 2, 3))):
        at = rng.randrange(len(lines))
        line = lines[at]
        indent = line[: len(line) - len(line.lstrip())]
        key, colon, _ = line.partition(":")
        choice = rng.randrange(9)
        if choice <= 2:
            lines[at] = f"{key}{colon or ':'} {_scalar(rng, known)}"
        elif choice == 3:
            lines[at] = f"{indent}{rng.choice(known or WORDS)}: {_scalar(rng, known)}"
        elif choice == 4:
            lines.insert(at, line)
        elif choice == 5 and len(lines) > 1:
            del lines[at]
        elif choice == 6:
            lines[at] = rng.choice(("", " ", "  ", "    ", "\t", "- ", "? ", "!!x ", "&a ", "*a ")) + line
        elif choice == 7:
            lines[at:at] = rng.choice(_BLOCKS).splitlines()
        else:
            lines[at] = edit_bytes(line.encode("utf-8", "replace"), rng).decode("utf-8", "replace")
    return "\n".join(lines).encode("utf-8", "surrogatepass")[: 1 << 16]


def _scalar(rng: Random, known: Sequence[str]) -> str:
    choice = rng.randrange(4)
    if choice == 0:
        return rng.choice(_SCALARS)
    if choice == 1:
        return str(number(rng) * rng.choice((1, -1)))
    if choice == 2:
        return json.dumps(rng.choice(WORDS))
    return rng.choice(known or _SCALARS)
