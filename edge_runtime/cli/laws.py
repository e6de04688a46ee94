"""Options that ``bench`` and ``compare`` share: laws to decode under, and lists of names. Knows no figure."""

from __future__ import annotations

from typing import Any

import click

from ..bench.texts import Law
from ..errors import ConfigError
from ..parameters import Finite, Whole, refuse_useless
from ..sampling import SamplingParams
from .options import F, apply


def law_options(function: F) -> F:
    """Under which laws texts are decoded for a comparison."""
    options = [
        click.option("--greedy/--no-greedy", default=True, help="With greedy decoding.  [default: yes]"),
        click.option("--sampled/--no-sampled", default=True, help="With sampling.  [default: yes]"),
        click.option("--temperature", type=Finite(0.0, above=True), default=1.0, show_default=True,
                     help="Of the sampled law."),
        click.option("--top-k", type=Whole(0), default=64, show_default=True,
                     help="Of the sampled law; 0: all."),
        click.option("--top-p", type=Finite(0.0, 1.0, above=True), default=0.95, show_default=True,
                     help="Of the sampled law; 1: all."),
    ]  # fmt: skip
    return apply(function, options)


def refuse_useless_laws(said: click.Context, given: dict[str, Any]) -> None:
    """Raises ``UsageError``."""
    if not given["sampled"]:
        refuse_useless(said, "--no-sampled leaves that law out", ("temperature", "top_k", "top_p"))


def laws_of(given: dict[str, Any]) -> tuple[Law, ...]:
    """Raises ``ConfigError`` where none is left."""
    laws = [Law("greedy", SamplingParams(temperature=0.0))] if given["greedy"] else []
    if given["sampled"]:
        laws.append(Law("sampled", SamplingParams(given["temperature"], given["top_k"], given["top_p"])))
    if not laws:
        raise ConfigError("neither greedy nor sampled: nothing is left to compare")
    return tuple(laws)


def names_in(text: str | None) -> tuple[str, ...]:
    """Of ``A,B``; none for ``None``. Raises ``ConfigError`` for an empty one."""
    if text is None:
        return ()
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise ConfigError(f"{text!r}: an empty name among those between commas")
    return names
