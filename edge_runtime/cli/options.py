"""Options that several commands share. Knows their names and help, and how they become settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from ..errors import ConfigError
from ..loading import LoadSettings
from ..sampling import SamplingParams

F = TypeVar("F", bound=Callable[..., Any])


def bundle_options(function: F) -> F:
    """Which bundle, and how it is loaded."""
    options = [
        click.option("--bundle", required=True, type=click.Path(path_type=Path), help="Directory of the bundle."),
        click.option("--context", type=int, help="Tokens of prompt and answer together (default: at most 2048)."),
        click.option("--threads", type=click.IntRange(0), default=0, help="Threads of a product; 0: one per core."),
        click.option("--deterministic", is_flag=True, help="Same bits whatever K: never runs a lone row."),
        click.option("--head", type=click.Choice(["screened", "full"]), default="screened",
                     help="Way through the head."),
        click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", help="Where the engines run."),
        click.option("--drafter", type=click.Choice(["auto", "none", "lookup", "draft"]), default="auto",
                     help="auto: the bundle's draft model, or prompt lookup."),
        click.option("--k", default="auto", help="Draft tokens a step: auto (measured), prompt-length, or a number."),
        click.option("--no-verify", is_flag=True, help="Skip the hashes of the bundle's files."),
    ]  # fmt: skip
    return _apply(function, options)


def sampling_options(function: F) -> F:
    options = [
        click.option("--max-tokens", type=click.IntRange(1), help="Tokens of the answer."),
        click.option("--temperature", type=float, default=0.0, help="0: greedy."),
        click.option("--top-k", type=int, default=0, help="0: off."),
        click.option("--top-p", type=float, default=1.0, help="1: off."),
        click.option("--min-p", type=float, default=0.0, help="0: off."),
        click.option("--seed", type=click.IntRange(0), help="Makes a sampled text repeatable, at any K."),
        click.option("--policy", type=click.Choice(["lossless", "threshold"]), default="lossless",
                     help="threshold: accept drafts the target gives 0.5 or more (lossy)."),
        click.option("--stop", multiple=True, help="End before this text; may be given several times."),
    ]  # fmt: skip
    return _apply(function, options)


def load_settings(given: dict[str, Any]) -> LoadSettings:
    return LoadSettings(
        context=given["context"],
        threads=given["threads"],
        deterministic=given["deterministic"],
        head=given["head"],
        device=given["device"],
        drafter=given["drafter"],
        verify_hashes=not given["no_verify"],
    )


def sampling_params(given: dict[str, Any]) -> SamplingParams:
    return SamplingParams(given["temperature"], given["top_k"], given["top_p"], given["min_p"])


def read_prompt(prompt: str | None, prompt_file: Path | None) -> str:
    """Raises ``ConfigError`` unless exactly one is given and can be read."""
    if (prompt is None) == (prompt_file is None):
        raise ConfigError("give --prompt or --prompt-file")
    if prompt_file is None:
        assert prompt is not None
        return prompt
    try:
        return prompt_file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise ConfigError(f"{prompt_file}: {problem}") from None


def _apply(function: F, options: Sequence[Callable[[F], F]]) -> F:
    for option in reversed(options):
        function = option(function)
    return function
