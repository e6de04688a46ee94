"""Options that several commands share. Knows their names and help, and how they become settings."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

import click

from ..decoder import Decoder
from ..drafters.strategy import strategy_named
from ..engines.opening import Backend
from ..errors import ConfigError, InputError
from ..files import read_at_most
from ..loading import LENGTH_POLICIES, DrafterName, LoadedBundle, LoadSettings, length_policy, most_draft_tokens
from ..parameters import MOST_SEED, MOST_THREADS, MOST_TOKENS, Finite, Place, Whole
from ..sampling import SamplingParams
from ..session import Policy, check_policy
from ..text.stop import StopStrings

_MOST_PROMPT_BYTES = 1 << 26
"""More than any context holds."""

F = TypeVar("F", bound=Callable[..., Any])


def bundle_options(function: F) -> F:
    """Which bundle, and how it is loaded."""
    bundle = click.option(
        "--bundle", required=True, metavar="DIR", type=Place(), help="Bundle to run."
    )
    return bundle(engine_options(function))


def engine_options(function: F) -> F:
    """How a bundle is loaded."""
    options = [
        click.option("--context", type=int, metavar="N",
                     help="Tokens of prompt and answer together.  [default: what the bundle holds, at most 2048]"),
        click.option("--threads", type=Whole(0, MOST_THREADS), default=0, metavar="N",
                     help="CPU threads.  [default: one a usable core]"),
        click.option("--deterministic", is_flag=True,
                     help="Logits that do not depend on K, so that drafts never change a text; slower plain steps."),
        click.option("--head", type=click.Choice(["screened", "full"]), default="screened", show_default=True,
                     help="screened: a 4-bit copy of the head finds the rows to score; full: scores all of them."),
        click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True,
                     help="Where the engines run."),
        click.option("--backend", type=click.Choice(get_args(Backend)), default="auto", show_default=True,
                     help="What runs the graphs; auto: what the bundle was exported for. reference: those for "
                     "TensorRT, on this CPU and slowly."),
        click.option("--cpu-fallback", is_flag=True,
                     help="With --device cuda: what has no kernel there runs on the processor, instead of failing."),
        click.option("--cuda-graph", is_flag=True, help="With --device cuda: replay runs of few rows as CUDA graphs."),
        click.option("--drafter", type=click.Choice(get_args(DrafterName)), default="auto",
                     show_default=True, help="Who drafts: nobody, n-grams of the text itself, earlier texts, or a "
                     "model of the bundle by its role; auto: whoever is expected to gain most, step by step."),
        click.option("--k", default="auto", metavar="N|" + "|".join(LENGTH_POLICIES), show_default=True,
                     help="Draft tokens a step; auto goes by measured costs, and may be 0. With any other, --drafter "
                     "auto is the bundle's drafter, or lookup."),
        click.option("--strategy", default="as-requested", metavar="NAME", show_default=True,
                     help="How a drafter picks its tokens: as-requested, greedy, top-k[:N], top-p[:MASS], "
                     "beam[:WIDTH]."),
        click.option("--no-verify", is_flag=True, help="Do not check the bundle's files against their sha256."),
    ]  # fmt: skip
    return apply(function, options)


def socket_option(function: F) -> F:
    """Which daemon. Not a default of click's: the client knows the environment and the rest."""
    return click.option(
        "--socket", metavar="PATH", type=Place(),
        help="Socket of the daemon.  [default: EDGE_RUNTIME_SOCKET, or /run/edge-runtime/api.sock]",
    )(function)  # fmt: skip


def prompt_options(function: F) -> F:
    options = [
        click.option("--prompt", metavar="TEXT", help="Text to continue."),
        click.option("--prompt-file", metavar="FILE", type=Place(allow_dash=True),
                     help="File with the text to continue, - for stdin."),
    ]  # fmt: skip
    return apply(function, options)


def sampling_options(function: F) -> F:
    options = [
        click.option("--max-tokens", type=Whole(1, MOST_TOKENS), metavar="N",
                     help="End after so many tokens.  [default: when the context is full]"),
        click.option("--temperature", type=Finite(), default=0.0, metavar="T", show_default=True, help="0 is greedy."),
        click.option("--top-k", type=int, default=0, metavar="N",
                     help="Sample from the N best tokens.  [default: all]"),
        click.option("--top-p", type=Finite(), default=1.0, metavar="P",
                     help="Sample from the best tokens that hold this mass.  [default: all]"),
        click.option("--min-p", type=Finite(), default=0.0, metavar="P",
                     help="Leave out tokens below this share of the best one's probability.  [default: none]"),
        click.option("--seed", type=Whole(0, MOST_SEED), metavar="N",
                     help="The same sampled text again, whatever drafter and K (to the last near-tie with "
                     "--deterministic)."),
        click.option("--policy", type=click.Choice(get_args(Policy)), default="lossless", show_default=True,
                     help="What of a draft is accepted. exact: what the target takes itself; sampled: by rejection "
                     "sampling; lossless: the better of the two; threshold is lossy: what the target gives 0.5 or "
                     "more."),
        click.option("--stop", multiple=True, metavar="TEXT", help="End before this text; may be given several times."),
    ]  # fmt: skip
    return apply(function, options)


def load_settings(given: dict[str, Any]) -> LoadSettings:
    return LoadSettings(
        context=given["context"],
        threads=given["threads"],
        deterministic=given["deterministic"],
        head=given["head"],
        device=given["device"],
        drafter=given["drafter"],
        max_draft_tokens=most_draft_tokens(given["k"]),
        verify_hashes=not given["no_verify"],
        backend=given["backend"],
        cpu_fallback=given["cpu_fallback"],
        cuda_graphs="captured" if given["cuda_graph"] else "none",
    )


def check_drafting(given: dict[str, Any]) -> None:
    """Before anything is loaded. Raises ``ConfigError`` and ``InputError``."""
    length_policy(given["k"])
    strategy_named(given["strategy"])
    check_policy(given["policy"], sampling_params(given), given["seed"])


def decoder_of(bundle: LoadedBundle, given: dict[str, Any]) -> Decoder:
    """Raises ``ConfigError``."""
    return bundle.decoder(given["drafter"], length_policy(given["k"]), strategy=strategy_named(given["strategy"]))


def sampling_params(given: dict[str, Any]) -> SamplingParams:
    return SamplingParams(given["temperature"], given["top_k"], given["top_p"], given["min_p"])


def stop_strings(given: dict[str, Any]) -> tuple[str, ...]:
    """Raises ``InputError`` for one that cannot stop."""
    stops = tuple(as_text(stop) for stop in given["stop"])
    StopStrings(stops)
    return stops


def read_prompt(prompt: str | None, prompt_file: Path | None) -> str:
    """Raises ``InputError`` unless exactly one is given and can be read."""
    if (prompt is None) == (prompt_file is None):
        raise ConfigError("give either --prompt or --prompt-file")
    if prompt_file is None:
        assert prompt is not None
        return as_text(prompt)
    try:
        if str(prompt_file) == "-":
            data = sys.stdin.buffer.read(_MOST_PROMPT_BYTES + 1)
        else:
            data = read_at_most(prompt_file, _MOST_PROMPT_BYTES, "prompt file ")
        if len(data) > _MOST_PROMPT_BYTES:
            raise ConfigError(f"prompt file {prompt_file}: more than {_MOST_PROMPT_BYTES >> 20} MiB")
        return data.decode("utf-8")
    except OSError as problem:
        raise ConfigError(f"prompt file {prompt_file}: {problem.strerror}") from None
    except UnicodeDecodeError as problem:
        raise ConfigError(f"prompt file {prompt_file}: not UTF-8 at byte {problem.start}") from None


def as_text(given: str) -> str:
    """An argument or a line as UTF-8, which it is whatever the locale says. Raises ``InputError``."""
    try:
        # What Python could not decode stands there as surrogates.
        return given.encode("utf-8", "surrogateescape").decode("utf-8")
    except UnicodeError:
        raise InputError(f"not UTF-8: {given[:40]!r}") from None


def apply(function: F, options: Sequence[Callable[[F], F]]) -> F:
    """In the order in which help lists them."""
    for option in reversed(options):
        function = option(function)
    return function
