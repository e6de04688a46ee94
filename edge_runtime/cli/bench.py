"""``edge-runtime bench``: the articles' protocol on this machine, how cost grows, or what the project claims. Knows the
options of all views, measures and shows nothing itself.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import click

from ..bench.protocol.plan import LENGTHS
from ..console import plain_console
from ..parameters import Place, Written, refuse_useless
from .bench_batch import measure_batch
from .bench_claims import PARTS, Wanted, hold_claims
from .bench_growth import measure_growth
from .bench_protocol import measure_protocol
from .laws import law_options, refuse_useless_laws

_WIDTH = 100
"""Of tables that go into a file."""
_OF_BOTH = {"bundle", "view", "threads", "rounds", "tokens", "json_path"}
_OF_PEERS = {"gguf"}
_OF_BATCH = _OF_BOTH | {"quick"}
_OF_GROWTH = {"models", "parts", "contexts"}
_WITH_GROWTH = {"bundle", "view", "threads", "rounds", "quick", "head", "drafter", "json_path", "resume", "html_path"}


@click.command()
@click.option("--bundle", default="bundles/gemma-3-270m", type=Place(), show_default=True, help="Bundle to measure.")
@click.option("--view", type=click.Choice(["protocol", "growth", "batch", "claims", *PARTS]), default="protocol",
              show_default=True,
              help="protocol: whole answers, plain against drafted, as the source articles measure them. growth: what "
              "context, sessions and larger models cost. batch: several sessions in one step against taking turns. "
              "claims: against llama.cpp and transformers, by prompt, and through the daemon, with verdicts; or one "
              "part of it.")  # fmt: skip
@click.option("--beside", metavar="DIR", type=Place(),
              help="The same model in another precision: precision and drafting taken apart.")  # fmt: skip
@click.option("--domains", metavar="A,B", help="Kinds of text.  [default: the articles' five]")
@law_options
@click.option("--rounds", type=click.IntRange(2), metavar="N", help="Of everything.  [default: 10; growth, claims: 12]")
@click.option("--tokens", type=click.IntRange(16), metavar="N", help="Of each text.  [default: 200; claims: 64]")
@click.option("--lengths", metavar="A,B", default=",".join(map(str, LENGTHS)), show_default=True,
              help="Drafts of fixed length, beside the adaptive default.")  # fmt: skip
@click.option("--length-rounds", type=click.IntRange(1), default=1, metavar="N", show_default=True,
              help="Rounds that these are part of.")  # fmt: skip
@click.option("--drafter", default="auto", metavar="NAME", show_default=True,
              help="Who drafts at fixed lengths; auto: the bundle's first, or lookup.")  # fmt: skip
@click.option("--skip", type=click.Choice(["lengths", "memory"]), multiple=True,
              help="Leave out the draft lengths, or the peak memory of daemons.")  # fmt: skip
@click.option("--quick", is_flag=True, help=
              "One kind of text, 2 rounds of 32 tokens, short drafts and contexts: to see it go.")
@click.option("--head", type=click.Choice(["screened", "full"]), default="screened", show_default=True,
              help="Head of the bundles.")  # fmt: skip
@click.option("--threads", type=click.IntRange(1), default=os.cpu_count() or 1, show_default=True,
              help="Of every program.")  # fmt: skip
@click.option("--model", "models", multiple=True, type=Place(), metavar="DIR",
              help="Growth: one more bundle, of another size.")  # fmt: skip
@click.option("--parts", metavar="A,B", help="Growth: of context, sessions, models.  [default: all]")
@click.option("--contexts", metavar="A,B",
              help="Growth: tokens in the cache.  [default: 128 to 8192, as far as the bundle goes]")  # fmt: skip
@click.option("--gguf", type=Place(), help="The checkpoint of the bundle, for the peers of --view claims.")
@click.option("--json", "json_path", type=Written(), help="Write texts and figures here, as they come.")
@click.option("--resume", type=Written(), help="Go on with such a file; written to, unless --json is given.")
@click.option("--html", "html_path", type=Written(), help="Write one page with plots, tables and the data here.")
@click.pass_context
def bench(said: click.Context, /, **given: Any) -> None:
    """Measure whole answers on this machine, plain against drafted; or hold what the project claims."""
    view = given["view"]
    console = plain_console(None if sys.stdout.isatty() else _WIDTH)
    if view == "batch":
        refuse_useless(said, "--view batch", set(given) - _OF_BATCH)
        measure_batch(given, console)
        return
    if view == "growth":
        refuse_useless(said, "--view growth", set(given) - _OF_GROWTH - _WITH_GROWTH)
        measure_growth(given, console)
        return
    if view == "protocol":
        refuse_useless(said, "--view protocol", _OF_PEERS | _OF_GROWTH)
        refuse_useless_laws(said, given)
        measure_protocol(given, console)
        return
    of_peers: set[str] = _OF_PEERS if view in ("claims", "peers") else set()
    vain = set(given) - _OF_BOTH - of_peers | ({"tokens"} if view == "peers" else set())
    refuse_useless(said, f"--view {view}", vain)
    wanted = Wanted(
        bundle=given["bundle"],
        gguf=given["gguf"],
        parts=PARTS if view == "claims" else (view,),
        threads=given["threads"],
        rounds=given["rounds"] or 12,
        tokens=given["tokens"] or 64,
        json_path=given["json_path"],
    )
    hold_claims(wanted, console)
