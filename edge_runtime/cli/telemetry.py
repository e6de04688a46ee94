"""``edge-runtime telemetry``: what the board says of itself, once or as it changes. Knows how to show a sample."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import get_args

import click

from ..console import shown
from ..errors import Unavailable
from ..parameters import Finite, Place, Whole, refuse_useless
from ..telemetry.opening import SourceName, is_starting, open_source
from ..telemetry.recording import new_samples, read_recording, record
from ..telemetry.sample import Sample
from ..telemetry.source import TelemetrySource

_PATIENCE_S = 30.0
"""For a first sample: jtop's process has to start."""
_MOST_LINES = 1_000_000_000


@click.command()
@click.option("--source", "wanted", type=click.Choice(get_args(SourceName)[:-1]), default="auto", show_default=True,
              help="Where the values are from; auto says why.")  # fmt: skip
@click.option("--replay", type=Place(), metavar="FILE", help="Instead: a recording, all of it at once.")
@click.option("--root", type=Place(exists=True, file_okay=False), default=Path("/"), metavar="DIR", show_default=True,
              help="Where the board's file system begins.")  # fmt: skip
@click.option("--interval", type=Finite(0.02, 3600.0, "seconds"), default=1.0, metavar="S", show_default=True,
              help="Seconds between samples.")  # fmt: skip
@click.option("--count", type=Whole(1, _MOST_LINES), metavar="N", help="So many samples, a line each.")
@click.option("--follow", is_flag=True, help="Samples without end, a line each.")
@click.option("--json", "as_json", is_flag=True, help="As JSON, an object a line: what --replay reads.")
@click.pass_context
def telemetry(
    said: click.Context,
    /,
    wanted: SourceName,
    replay: Path | None,
    root: Path,
    interval: float,
    count: int | None,
    follow: bool,
    as_json: bool,
) -> None:
    """Show power, temperatures, clocks and memory of this board, and where they are from.

    Exit code 0: something was read; 1: nothing can be read here, and why; 2: something that was given is wrong.
    """
    if follow and count is not None:
        raise click.UsageError("give either --follow, which has no end, or --count")
    if replay is not None:
        refuse_useless(said, "--replay shows a file, as fast as it can", ("wanted", "root", "interval"))
        recording = read_recording(replay)
        if recording.note:
            click.echo(f"{replay}: {recording.note}", err=True)
        _show(iter(recording.samples), f"replay of {replay}", count, follow, as_json)
        return
    if not follow and count is None:
        refuse_useless(said, "one sample is shown, unless --count or --follow asks for more", ("interval",))
    if wanted == "jtop":
        refuse_useless(said, "jtop is a service of this machine", ("root",))
    opened = open_source(wanted, root)
    if opened.source is None:
        raise Unavailable(opened.reason)
    try:
        _wait_for_one(opened.source)
        _show(new_samples(opened.source, interval), opened.reason, count, follow, as_json)
    finally:
        opened.source.close()


def _show(samples: Iterator[Sample], reason: str, count: int | None, follow: bool, as_json: bool) -> None:
    wanted = islice(samples, None if follow else count or 1)
    if as_json:
        record(wanted, lambda line: click.echo(line, nl=False))
    elif follow or count is not None:
        click.echo(f"# {shown(reason)}")
        for sample in wanted:
            click.echo(shown(line_of(sample)))
    else:
        click.echo("\n".join(shown(line) for line in page(next(wanted), reason)))


def _wait_for_one(source: TelemetrySource) -> None:
    """Only for a process that is starting: what has gone wrong is known at once."""
    deadline_s = time.monotonic() + _PATIENCE_S
    while True:
        # In this order: what comes between both is a sample.
        may_come = is_starting(source) and time.monotonic() < deadline_s
        if source.latest() is not None:
            return
        if not may_come:
            raise Unavailable(source.trouble or f"{source.name}: nothing has come")
        time.sleep(0.05)


def line_of(sample: Sample) -> str:
    """One line of a table whose columns stand where they stood."""
    hottest, throttling = sample.hottest, sample.throttling
    temperature_c = None if hottest is None else hottest.temperature_c
    available_bytes = None if sample.memory is None else sample.memory.available_bytes
    events = sum(count for _, count in throttling.over_current_events)
    cooling = sum(device.state for device in throttling.cooling if device.name.endswith("throttle-alert"))
    cells = (
        f"{sample.time_s:10.2f} s",
        f"{_number(sample.power_mw, 1e-3, 2):>6} W",
        f"{_number(temperature_c, 1.0, 1):>5} C {hottest.name if hottest else '-':<4}",
        f"{_number(sample.gpu.clock_mhz):>5} MHz {_number(sample.gpu.load, 100.0):>3}%",
        f"{_number(available_bytes, 1e-9, 2):>6} GB free",
        f"{sample.power_mode or '-':<10}",
        f"oc {events}, throttle {cooling}",
    )
    return "  ".join(cells)


def page(sample: Sample, reason: str) -> Iterator[str]:
    """All of it."""
    yield _row("source", reason)
    yield _row("power", f"{_number(sample.power_mw, 1e-3, 2)} W")
    for rail in sample.rails:
        yield _row("", f"{rail.name} {rail.power_mw / 1e3:.2f} W")
    yield _row("mode", sample.power_mode or "-")
    yield _row("zones", ", ".join(f"{zone.name} {zone.temperature_c:.1f} C" for zone in sample.zones) or "-")
    throttling = sample.throttling
    trips = f"{_number(throttling.passive_trip_c, 1.0, 1)} C, off at {_number(throttling.critical_trip_c, 1.0, 1)} C"
    yield _row("throttles", f"at {trips}")
    gpu = sample.gpu
    yield _row(
        "gpu", f"{_number(gpu.clock_mhz)} of {_number(gpu.max_clock_mhz)} MHz, load {_number(gpu.load, 100.0)}%"
    )
    if sample.memory is not None:
        memory = sample.memory
        yield _row("memory", f"{memory.available_bytes / 1e9:.2f} of {memory.total_bytes / 1e9:.2f} GB available")
        yield _row("", f"swap {memory.swap_used_bytes / 1e9:.2f} of {memory.swap_total_bytes / 1e9:.2f} GB")
        yield _row("", f"{_number(memory.free_blocks_4mb)} free blocks of 4 MB")
    events = ", ".join(f"{name} {count}" for name, count in throttling.over_current_events)
    yield _row("events", events or "-")
    active = ", ".join(f"{device.name} {device.state}/{device.max_state}"
                       for device in throttling.cooling if device.state)  # fmt: skip
    yield _row("cooling", active or "-")
    yield _row("fan", f"{_number(sample.fan, 100.0)}%")
    for problem in sample.problems:
        yield _row("problem", problem)


def _row(name: str, text: str) -> str:
    return f"{name:<10} {text}"


def _number(value: float | None, scale: float = 1.0, digits: int = 0) -> str:
    return "-" if value is None else f"{value * scale:.{digits}f}"
