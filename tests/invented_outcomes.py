"""Outcomes of probes as boards might have them: a healthy one, and what changes it."""

from __future__ import annotations

from dataclasses import replace

from edge_runtime.boards import Board, board_named
from edge_runtime.doctor.device import State, Trial
from edge_runtime.doctor.outcome import (
    Accelerator,
    Copy,
    Device,
    Ending,
    Kind,
    LayerResult,
    Outcome,
    Product,
    Told,
)

ORIN = Accelerator("Orin", "8.7", 5_000_000_000, 7_600_000_000)
QUIET = State(None, 0.1, 900)
INNER, OUTER = 2304, 9216
_BYTES = {"float32": 4.0, "float16": 2.0, "int8": 1.06, "int4": 0.53, "nf4": 0.56}


def product(
    kind: Kind, device: Device = "cuda", *, gb_s: float = 80.0, rise: float = 0.02, difference: float | None = 1e-3
) -> Product:
    """Reads its weights at ``gb_s``; each further row costs ``rise`` of the first."""
    size = int(INNER * OUTER * _BYTES[kind])
    first_s = 1e-9 * size / gb_s
    seconds = tuple(first_s * (1.0 + rise * row) for row in range(8))
    return Product(kind, device, INNER, OUTER, size, seconds, difference, 1e-2)


def copied(gb_s: float, what: str = "device to device") -> Copy:
    return Copy(what, 128 << 20, 2e-9 * (128 << 20) / gb_s)


def layer(difference: float | None = 0.01, *, of_bundle: bool = False, largest: float = 4.0) -> LayerResult:
    what = "first layer of gemma" if of_bundle else "a small made-up layer"
    seconds = tuple(1e-4 * (1.0 + 0.1 * row) for row in range(8))
    return LayerResult(what, "float64 on the processor", difference, largest, 0.02, of_bundle, seconds)


def outcome(probe: str, ended: Ending = "finished", **told: object) -> Outcome:
    versions = {} if probe.startswith("host") else {probe.replace("-", "_"): "1.0"}
    launched_s = None if probe.startswith("host") else 1.5
    given = Told(versions=versions, launched_s=launched_s, **told)  # type: ignore[arg-type]
    return Outcome(probe, ended, "end", "", 3.0, None, given)


def broken(
    probe: str, ended: Ending, said: str = "", signal: str | None = None, stage: str = "first kernel"
) -> Outcome:
    return Outcome(probe, ended, stage, said, 90.0, signal)


def healthy() -> tuple[Outcome, ...]:
    """Of an Orin Nano in its fastest mode."""
    host = (copied(25.0, "processor, 1 thread"), copied(45.0, "processor, all cores"))
    floats, four = product("float16", gb_s=75.0), product("int4", gb_s=60.0)
    return (
        outcome("host", copies=host),
        outcome(
            "ort-cpu", products=(product("float32", "cpu", gb_s=20.0), product("int4", "cpu", gb_s=10.0, rise=0.5))
        ),
        outcome(
            "ort-cuda", products=(floats, product("int8", gb_s=70.0), four), copies=(copied(76.0),), layers=(layer(),)
        ),
        outcome("ort-cuda-fpa", products=(floats, four)),
        outcome("tensorrt", products=(floats, four), copies=(copied(80.0),), accelerator=ORIN, layers=(layer(),)),
        outcome("torch", products=(floats,), copies=(copied(78.0),), accelerator=ORIN),
        outcome("nf4", products=(product("nf4", gb_s=40.0),), accelerator=ORIN),
        outcome("host-again", copies=host),
    )


def trial(
    outcomes: tuple[Outcome, ...] | None = None,
    *,
    board: Board | None = None,
    before: State = QUIET,
    after: State | None = None,
) -> Trial:
    found = board or board_named("orin-nano-8")
    return Trial(healthy() if outcomes is None else outcomes, before, after or before, found, True)


def with_outcome(changed: Outcome) -> Trial:
    """The healthy board with one outcome in the place of its own."""
    return trial(tuple(changed if one.probe == changed.probe else one for one in healthy()))


def with_told(probe: str, **told: object) -> Trial:
    (found,) = (one for one in healthy() if one.probe == probe)
    return with_outcome(replace(found, told=replace(found.told, **told)))  # type: ignore[arg-type]
