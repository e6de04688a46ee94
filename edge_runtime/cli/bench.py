"""``edge-runtime bench``: the articles' protocol on this machine, how cost grows, what the project claims, or
its peers side by side. Knows the options of all views, measures and shows nothing itself.
"""

from __future__ import annotations

import sys
from typing import Any

import click

from ..bench.environments import ENVIRONMENTS, named_pythons
from ..bench.process import PATIENCE_S
from ..bench.protocol.plan import LENGTHS
from ..console import plain_console
from ..cores import usable_cores
from ..parameters import (
    MOST_ROUNDS,
    MOST_THREADS,
    MOST_TOKENS,
    Finite,
    Kept,
    Place,
    Whole,
    Word,
    Written,
    refuse_useless,
)
from .bench_batch import measure_batch
from .bench_claims import PARTS, Wanted, hold_claims
from .bench_growth import measure_growth
from .bench_protocol import measure_protocol
from .bench_rivals import hold_rivals
from .laws import law_options, refuse_useless_laws

VIEWS = ("protocol", "growth", "batch", "rivals", "claims", *PARTS)
_WIDTH, _WIDE = 100, 140
"""Of tables that go into a file, and of those that have more columns."""
_OF_BOTH = {"bundle", "view", "threads", "rounds", "tokens", "json_path"}
_OF_PEERS = {"gguf", "peer_python", "peer_envs"}
_OF_RIVALS = {"peers", "assistant", "patience"}
_OF_BATCH = _OF_BOTH | {"quick"}
_OF_GROWTH = {"models", "parts", "contexts"}
_WITH_GROWTH = {"bundle", "view", "threads", "rounds", "quick", "head", "drafter", "json_path", "resume", "html_path"}


@click.command()
@click.option("--bundle", default="bundles/gemma-3-270m", type=Place(), show_default=True, help="Bundle to measure.")
@click.option("--view", type=click.Choice(VIEWS), default="protocol", show_default=True,
              help="protocol: whole answers, plain against drafted, as the source articles measure them. growth: what "
              "context, sessions and larger models cost. batch: several sessions in one step against taking turns. "
              "rivals: whole answers beside those of other programs, with verdicts. claims: forwards against llama.cpp "
              "and transformers, by prompt, and through the daemon, with verdicts; or one part of it.")  # fmt: skip
@click.option("--beside", metavar="DIR", type=Place(),
              help="The same model in another precision: precision and drafting taken apart.")  # fmt: skip
@click.option("--domains", metavar="A,B", help="Kinds of text.  [default: the articles' five]")
@law_options
@click.option("--rounds", type=Whole(2, MOST_ROUNDS), metavar="N",
              help="Of everything.  [default: 10; growth, claims: 12; rivals: 6]")  # fmt: skip
@click.option("--tokens", type=Whole(16, MOST_TOKENS), metavar="N",
              help="Of each text.  [default: 200; claims, rivals: 64]")  # fmt: skip
@click.option("--lengths", metavar="A,B", default=",".join(map(str, LENGTHS)), show_default=True,
              help="Drafts of fixed length, beside the adaptive default.")  # fmt: skip
@click.option("--length-rounds", type=Whole(1, MOST_ROUNDS), default=1, metavar="N", show_default=True,
              help="Rounds that these are part of.")  # fmt: skip
@click.option("--drafter", default="auto", metavar="NAME", show_default=True,
              help="Who drafts at fixed lengths; auto: the bundle's first, or lookup.")  # fmt: skip
@click.option("--skip", type=click.Choice(["lengths", "memory"]), multiple=True,
              help="Leave out the draft lengths, or the peak memory of daemons.")  # fmt: skip
@click.option("--quick", is_flag=True, help=
              "One kind of text, 2 rounds of 32 tokens, short drafts and contexts: to see it go.")
@click.option("--head", type=click.Choice(["screened", "full"]), default="screened", show_default=True,
              help="Head of the bundles.")  # fmt: skip
@click.option("--threads", type=Whole(1, MOST_THREADS), default=usable_cores(), show_default=True,
              help="Of every program.")  # fmt: skip
@click.option("--model", "models", multiple=True, type=Place(), metavar="DIR",
              help="Growth: one more bundle, of another size.")  # fmt: skip
@click.option("--parts", metavar="A,B", help="Growth: of context, sessions, models.  [default: all]")
@click.option("--contexts", metavar="A,B",
              help="Growth: tokens in the cache.  [default: 128 to 8192, as far as the bundle goes]")  # fmt: skip
@click.option("--gguf", type=Place(), help="The checkpoint of the bundle, for the peers of --view claims and rivals.")
@click.option("--peers", metavar="A,B", type=Word(), help="Of --view rivals.  [default: all that there are]")
@click.option("--peer-python", metavar="KIND=PATH", multiple=True, help="The Python that has a peer; several times.")
@click.option("--peer-envs", metavar="DIR", type=Place(),
              help=f"Of the peers' environments, as `make peers` makes them.  [default: {ENVIRONMENTS}]")  # fmt: skip
@click.option("--assistant", metavar="MODEL", type=Place(),
              help="A smaller model of the same vocabulary, which drafts for transformers.  [default: its own first "
              "layers]")  # fmt: skip
@click.option("--patience", type=Finite(0.0, 1e6, "seconds", above=True), default=PATIENCE_S, show_default=True,
              metavar="S", help="For one answer of a peer, before it is out.")  # fmt: skip
@click.option("--json", "json_path", metavar="FILE", type=Kept(), help="Write texts and figures here, as they come.")
@click.option("--resume", metavar="FILE", type=Kept(),
              help="Go on with such a file; written to, unless --json is given.")  # fmt: skip
@click.option("--html", "html_path", metavar="FILE", type=Written(),
              help="Write one page with plots, tables and the data here.")  # fmt: skip
@click.pass_context
def bench(said: click.Context, /, **given: Any) -> None:
    """Measure whole answers on this machine, plain against drafted; beside other programs; or hold what the project
    claims."""
    view = given["view"]
    console = plain_console(None if sys.stdout.isatty() else _WIDE if view == "growth" else _WIDTH)
    if view == "batch":
        refuse_useless(said, "--view batch", set(given) - _OF_BATCH)
        measure_batch(given, console)
        return
    if view == "growth":
        refuse_useless(said, "--view growth", set(given) - _OF_GROWTH - _WITH_GROWTH)
        measure_growth(given, console)
        return
    if view == "protocol":
        refuse_useless(said, "--view protocol", _OF_PEERS | _OF_RIVALS | _OF_GROWTH)
        refuse_useless_laws(said, given)
        measure_protocol(given, console)
        return
    if view == "rivals":
        refuse_useless(said, "--view rivals", set(given) - _OF_BOTH - _OF_PEERS - _OF_RIVALS)
        hold_rivals(given, console)
        return
    of_peers: set[str] = _OF_PEERS if view in ("claims", "peers") else set()
    vain = set(given) - _OF_BOTH - of_peers | ({"tokens"} if view == "peers" else set())
    refuse_useless(said, f"--view {view}", vain)
    if given["gguf"] is not None and not given["gguf"].exists():
        raise click.UsageError(f"gguf: there is no {given['gguf']}")
    wanted = Wanted(
        bundle=given["bundle"],
        gguf=given["gguf"],
        parts=PARTS if view == "claims" else (view,),
        threads=given["threads"],
        rounds=given["rounds"] or 12,
        tokens=given["tokens"] or 64,
        json_path=given["json_path"],
        pythons=named_pythons(given["peer_python"]),
        environments=given["peer_envs"] or ENVIRONMENTS,
    )
    hold_claims(wanted, console)
