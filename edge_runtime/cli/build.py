"""``edge-runtime build``: a bundle's graphs become TensorRT engines for this machine. Asks and shows, builds none."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

import click

from ..console import plain_console
from ..engines.build_memory import LEAST_WORKSPACE_BYTES, WORKSPACE_BYTES
from ..engines.engine_record import ENGINE_DIRECTORY, MOST_TOKENS, BuildOptions, EngineRecord, MachineFacts, PlanRecord
from ..engines.trt_build import BuildRequest, build_engines
from ..loading import DEFAULT_CONTEXT, MAX_DRAFT_TOKENS
from ..memory import shown
from ..parameters import Place, Whole, WrittenDirectory

_CHUNK = 64
_LONGEST_DRAFT = 63
_MIB = 1 << 20
_EVERY_S = 20.0
"""Between two lines of a log."""


@click.command()
@click.argument("bundle", metavar="BUNDLE", type=Place())
@click.option("--output", metavar="DIR", type=WrittenDirectory(),
              help=f"Where the engines go.  [default: {ENGINE_DIRECTORY} in the bundle]")
@click.option("--draft-length", type=Whole(0, _LONGEST_DRAFT), default=MAX_DRAFT_TOKENS, show_default=True,
              metavar="K", help="Most draft tokens that one verification takes.")
@click.option("--chunk", type=Whole(1, 1024), default=_CHUNK, show_default=True, metavar="N",
              help="Rows of a prefill chunk.")
@click.option("--context", type=Whole(1, MOST_TOKENS), default=DEFAULT_CONTEXT, show_default=True, metavar="N",
              help="Tokens that a session's cache holds; at most the bundle's.")
@click.option("--workspace", type=Whole(LEAST_WORKSPACE_BYTES // _MIB, 1 << 17), metavar="MIB",
              default=WORKSPACE_BYTES // _MIB, show_default=True, help="Most scratch that a kernel may want.")
@click.option("--rebuild", is_flag=True, help="Build anew what is stale or of another machine.")  # fmt: skip
def build(
    bundle: Path, output: Path | None, draft_length: int, chunk: int, context: int, workspace: int, rebuild: bool
) -> None:
    """Build the TensorRT engines of BUNDLE on the machine that will run them.

    Run it again after an interruption: what is complete is kept. It takes minutes and several times the memory that
    running takes; whether that is there is checked first.
    """
    options = BuildOptions(draft_length, chunk, context, workspace * _MIB)
    where = bundle / ENGINE_DIRECTORY if output is None else output
    with _Shown() as report:
        record = build_engines(BuildRequest(bundle, where, options, rebuild), report)
    _sum_up(where, record)


class _Shown:
    """Implements ``trt_build.Report``: lines on stderr, and a bar where a person watches."""

    def __init__(self) -> None:
        self._console = plain_console(stderr=True)
        self._stack = ExitStack()
        self._told_s = time.monotonic()

    def __enter__(self) -> _Shown:
        from rich.status import Status

        self._status = Status("", console=self._console)
        if self._console.is_terminal:
            self._stack.enter_context(self._status)
        return self

    def __exit__(self, *problem: object) -> None:
        self._stack.close()

    def machine(self, facts: MachineFacts) -> None:
        self._line(
            f"TensorRT {facts.tensorrt}, CUDA {facts.cuda} (driver: {facts.driver}), {facts.device}, SM {facts.sm}, "
            f"{facts.multiprocessors} multiprocessors"
        )

    def hashed(self, done: int, total: int) -> None:
        self._step(f"checking the bundle: {shown(done)} of {shown(total)}")

    def kept(self, plan: PlanRecord) -> None:
        self._line(f"{plan.file}: kept, {shown(plan.bytes)}")

    def begun(self, graph: str, reason: str) -> None:
        self._line(f"{graph}: {reason}; building")

    def progress(self, phase: str, done: int, total: int) -> None:
        self._step(f"{phase}: {done} of {total}")

    def built(self, plan: PlanRecord) -> None:
        self._line(f"{plan.file}: {shown(plan.bytes)} in {plan.build_s:.0f} s, scratch {shown(plan.scratch_bytes)}")

    def _line(self, text: str) -> None:
        self._console.print(text, soft_wrap=True)
        self._told_s = time.monotonic()

    def _step(self, text: str) -> None:
        if self._console.is_terminal:
            self._status.update(text)
        elif time.monotonic() - self._told_s >= _EVERY_S:
            self._line(text)


def _sum_up(where: Path, record: EngineRecord) -> None:
    plans = record.plans.values()
    scratch = max(plan.scratch_bytes for plan in plans)
    click.echo(f"{where}: {len(plans)} engines, {shown(sum(plan.bytes for plan in plans))}, scratch {shown(scratch)}")
