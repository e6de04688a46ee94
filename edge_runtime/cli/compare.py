"""``edge-runtime compare``: every drafter and policy against plain decoding. Knows what to ask and to show, no more."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from .. import __version__
from ..bench.compare.baseline import fastest_plain
from ..bench.compare.costs import step_costs
from ..bench.compare.floors import floors
from ..bench.compare.plot import check_plot, plot
from ..bench.compare.pricing import curves
from ..bench.compare.record import SCHEMA, Report, Settings, read_report
from ..bench.compare.study import Plan, Study
from ..bench.methods import SEARCHED_K, fixed_methods, named_methods
from ..bench.prompts import Domain, chosen_domains, prompts_sha256
from ..bench.records import begin_file, refuse_other_settings, write_record
from ..bench.texts import Law, check_fits
from ..bundle import MANIFEST_NAME, file_sha256
from ..console import counted, plain_console
from ..loading import MAX_DRAFT_TOKENS, LoadedBundle, LoadSettings, load_bundle
from ..parameters import MOST_ROUNDS, MOST_THREADS, MOST_TOKENS, Kept, Place, Whole, Written, refuse_useless
from .compare_tables import costs_table, tables
from .laws import law_options, laws_of, names_in, refuse_useless_laws
from .progress import duration, nested_progress

_PARTS = ("named", "search", "priced")
_QUICK_K = (1, 2, 3, 5, 7)
_EXTRA = 1.2
"""What comes on top of the texts: prompts, texts read again, second looks."""
_MINUTES_OF_MS = 1e-3 / 60.0
_WORTH_A_FILE = 5.0
"""Minutes."""
_OF_COSTS = {"costs_only", "bundle", "head", "threads"}


@click.command()
@click.option("--bundle", required=True, metavar="DIR", type=Place(), help="Bundle to study.")
@click.option("--drafters", metavar="A,B", help="Only these.  [default: all that the bundle offers]")
@click.option("--policies", metavar="X,Y", help="Only these lengths of drafts, or threshold.  [default: all by name]")
@click.option("--domains", metavar="A,B", help="Only these kinds of text.  [default: all]")
@law_options
@click.option("--rounds", type=Whole(2, MOST_ROUNDS), metavar="N", help="Of the default and its rivals.  [default: 5]")
@click.option("--tokens", type=Whole(16, MOST_TOKENS), metavar="N", help="Of each text.  [default: 64]")
@click.option("--quick", is_flag=True, help="One prompt a domain, 2 rounds of 32 tokens, fewer K: to see how it goes.")
@click.option("--skip", type=click.Choice(_PARTS), multiple=True,
              help="Leave out the named policies, the search for the best fixed K, or the projections.")  # fmt: skip
@click.option("--costs", "costs_only", is_flag=True, help="Only what a step costs against K.")
@click.option("--head", type=click.Choice(["screened", "full"]), default="screened", show_default=True,
              help="Head of the bundle under study; plain decoding has the faster one.")  # fmt: skip
@click.option(
    "--threads", type=Whole(0, MOST_THREADS), default=0, metavar="N", help="CPU threads.  [default: one a usable core]"
)
@click.option("--json", "json_path", metavar="FILE", type=Kept(),
              help="Write the texts and figures here, as they come.")  # fmt: skip
@click.option("--resume", metavar="FILE", type=Kept(),
              help="Go on with such a file; written to, unless --json is given.")  # fmt: skip
@click.option("--plot", "plot_path", metavar="FILE", type=Written(), help="Draw it: a .svg, .png or .pdf file.")
@click.option("--strict", is_flag=True, help="Exit code 1 where a floor is missed.")
@click.pass_context
def compare(said: click.Context, /, **given: Any) -> None:
    """Compare every drafter and policy with plain decoding, on five domains, retrieval, JSON, edits and chat."""
    if given["costs_only"]:
        refuse_useless(said, "--costs shows what a step costs, and no text", set(given) - _OF_COSTS)
    refuse_useless_laws(said, given)
    console = plain_console(None if sys.stdout.isatty() else 100)
    settings = LoadSettings(head=given["head"], threads=given["threads"], max_draft_tokens=MAX_DRAFT_TOKENS)
    domains, laws = chosen_domains(names_in(given["domains"])), laws_of(given)
    if given["plot_path"] is not None:
        check_plot(given["plot_path"])
    before = None if given["resume"] is None else read_report(given["resume"])
    subject = plain = load_bundle(given["bundle"], settings)
    try:
        if given["costs_only"]:
            console.print(costs_table(step_costs(subject.target, MAX_DRAFT_TOKENS)))
            return
        plan = _plan(subject, laws, given)
        check_fits(subject, domains, plan.prompts, plan.tokens)
        report = _report(subject, plan, given)
        if before is not None:
            refuse_other_settings(given["resume"], before.settings, report.settings)
            report = replace(report, plain=before.plain, domains=before.domains, costs=before.costs)
        plain, plain_ms = fastest_plain(subject, settings, domains[0].prompts[0].text, report.plain or None)
        study = Study(subject, plain, plan)
        report = _measure(study, plan, domains, replace(report, plain=plain_ms), given)
    finally:
        subject.close()
        if plain is not subject:
            plain.close()
    for table in tables(report):
        console.print(table)
    if given["plot_path"] is not None:
        plot(report, given["plot_path"])
    if given["strict"] and any(floor.state == "MISSED" for floor in report.floors):
        raise SystemExit(1)


def _plan(subject: LoadedBundle, laws: tuple[Law, ...], given: dict[str, Any]) -> Plan:
    quick, skip, drafters = given["quick"], given["skip"], names_in(given["drafters"])
    named = named_methods(subject, drafters, names_in(given["policies"]))
    fixed = fixed_methods(subject, drafters, _QUICK_K if quick else SEARCHED_K)
    return Plan(
        laws=laws,
        named=() if "named" in skip else named,
        fixed=() if "search" in skip else fixed,
        curves=() if "priced" in skip else curves(),
        rounds=given["rounds"] or (2 if quick else 5),
        named_rounds=1 if quick else 2,
        finalists=1 if quick else 3,
        priced_rounds=1 if quick else 2,
        prompts=1 if quick else 3,
        tokens=given["tokens"] or (32 if quick else 64),
    )


def _report(subject: LoadedBundle, plan: Plan, given: dict[str, Any]) -> Report:
    """With nothing in it yet."""
    settings = Settings(
        machine={"processor": platform.processor() or platform.machine(), "cpus": str(os.cpu_count())},
        bundle=subject.manifest.name,
        bundle_sha256=file_sha256(subject.directory / MANIFEST_NAME),
        prompts_sha256=prompts_sha256(),
        laws={law.name: str(law) for law in plan.laws},
        methods=tuple(method.label for method in plan.named),
        searched=tuple(method.label for method in plan.fixed),
        curves=tuple(curve.name for curve in plan.curves),
        rounds=plan.rounds,
        named_rounds=plan.named_rounds,
        finalists=plan.finalists,
        prompts_per_domain=plan.prompts,
        tokens=plan.tokens,
        head=given["head"],
        threads=given["threads"],
    )
    return Report(SCHEMA, __version__, settings, {})


def _measure(study: Study, plan: Plan, domains: Sequence[Domain], report: Report, given: dict[str, Any]) -> Report:
    """Domain by domain, and the file written after each."""
    done = {record.domain for record in report.domains}
    left = [domain for domain in domains if domain.domain not in done]
    path = given["json_path"] or given["resume"]
    _announce(plan, left, len(done), min(report.plain.values()), path)
    if not report.costs:
        report = replace(report, costs=study.step_costs(MAX_DRAFT_TOKENS))
        if path is not None:
            begin_file(path, report)
    with nested_progress("domains") as progress:
        for number, domain in enumerate(left):
            progress("domains", number, len(left))
            report = replace(report, domains=(*report.domains, study.domain(domain, progress)))
            if path is not None:
                write_record(path, report)
    report = replace(report, floors=tuple(floors(report.domains, tuple(report.settings.laws))), complete=True)
    if path is not None:
        write_record(path, report)
    return report


def _announce(plan: Plan, domains: Sequence[Domain], done: int, plain_ms: float, path: Path | None) -> None:
    texts = plan.texts(domains)
    minutes = texts * plan.tokens * plain_ms * _MINUTES_OF_MS * _EXTRA
    known = f", {counted(done, 'domain')} known from the file" if done else ""
    click.echo(
        f"{texts} texts of {plan.tokens} tokens at {plain_ms:.1f} ms a plain token: about "
        f"{duration(60.0 * minutes)}{known}",
        err=True,
    )
    if path is None and minutes > _WORTH_A_FILE:
        click.echo("with --json FILE, what is done would be kept where this is stopped", err=True)
