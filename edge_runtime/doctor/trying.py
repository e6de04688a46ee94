"""Which probes a machine gets, in which order and within which limits; runs them. Judges nothing.

One after the other: two of them at once would measure each other.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..resident import machine_memory
from ..telemetry.identity import Identity
from ..telemetry.sysfs import SysfsSource, free_blocks
from .child import Limits, command_of, run_probe
from .device import State, Trial
from .faults import WEIGHT_ONLY
from .outcome import Outcome, Request

DEFAULT_SHAPES = ((2304, 9216), (9216, 2304))
"""Of a Gemma 2 2B: what its feed-forward multiplies by."""
MOST_VALUES = 24 << 20
"""Of a product that is measured: in float32 some 100 MB, several times over while an engine packs it."""
MOST_SHAPES = 2
_MEASURE_S = 0.25
_COPY_S = 0.4
_HOST_SHARE = 32
"""Of the available memory that a buffer of the copy takes at most."""
_LARGEST_COPY = 256 << 20
_PROBE_SHARE = 0.6
"""Of what is available, for one probe."""
_LEAST_PROBE_BYTES = 512 << 20
_SECONDS = 90.0
_BUILD_SECONDS = 240.0
"""Networks are built on the device, some of them for a quarter of a minute."""
_ACCELERATORS = ("dev/nvidia0", "dev/nvhost-gpu", "dev/nvgpu", "dev/nvmap")

Runner = Callable[[str, Sequence[str], Request, Limits, Callable[[str], None]], Outcome]


@dataclass(frozen=True, slots=True)
class Attempt:
    probe: str
    module: str
    request: Request
    seconds: float = _SECONDS
    needs_accelerator: bool = False


def attempts(shapes: Sequence[tuple[int, int]], bundle: Path | None, accelerator: bool) -> tuple[Attempt, ...]:
    """``shapes`` of products, the largest first."""
    directory = None if bundle is None else str(bundle)
    cpu = Request(shapes=tuple(shapes), measure_s=_MEASURE_S, bundle=directory)
    cuda = Request("cuda", tuple(shapes), measure_s=_MEASURE_S, bundle=directory)
    weight_only = replace(cuda, environment={WEIGHT_ONLY: "1"}, bundle=None)
    # What belongs to the accelerator is tried on the processor only where there is none.
    here = cuda if accelerator else Request(shapes=tuple(shapes[:1]), measure_s=_MEASURE_S)
    host = Request(measure_s=_COPY_S, copy_bytes=_host_copy())
    building = Request("cuda", tuple(shapes[:1]), measure_s=_MEASURE_S, bundle=directory)
    return (
        Attempt("host", "host", host),
        Attempt("ort-cpu", "ort", cpu),
        Attempt("ort-cuda", "ort", cuda, needs_accelerator=True),
        Attempt("ort-cuda-fpa", "ort", weight_only, needs_accelerator=True),
        Attempt("tensorrt", "trt", building, _BUILD_SECONDS, needs_accelerator=True),
        Attempt("torch", "torch_floats", here),
        Attempt("nf4", "nf4", here),
        Attempt("host-again", "host", host),
    )


def try_all(
    identity: Identity,
    shapes: Sequence[tuple[int, int]],
    bundle: Path | None,
    heard: Callable[[str, str], None],
    runner: Runner = run_probe,
    root: Path = Path("/"),
) -> Trial:
    """``heard`` is told the probe and its stage."""
    accelerator = has_accelerator(identity, root)
    before = read_state(identity, root)
    outcomes = []
    for attempt in attempts(shapes, bundle, accelerator):
        heard(attempt.probe, "start")
        if attempt.needs_accelerator and not accelerator:
            outcomes.append(Outcome(attempt.probe, "absent", "start", "accelerator on this machine", 0.0))
            continue
        limits = Limits(attempt.seconds, _probe_bytes())
        tell = functools.partial(heard, attempt.probe)
        outcomes.append(runner(attempt.probe, command_of(attempt.module), attempt.request, limits, tell))
    return Trial(tuple(outcomes), before, read_state(identity, root), identity.board, identity.tegra)


def has_accelerator(identity: Identity, root: Path = Path("/")) -> bool:
    return identity.tegra or any((root / name).exists() for name in _ACCELERATORS)


def read_state(identity: Identity, root: Path = Path("/"), *, load: Callable[[], float] | None = None) -> State:
    sample = SysfsSource(root).latest() if identity.tegra else None
    try:
        busy: float | None = (load or _load)()
    except OSError:
        busy = None
    return State(sample, busy, free_blocks(root))


def _load() -> float:
    return os.getloadavg()[0]


def _host_copy() -> int:
    memory = machine_memory()
    return _LARGEST_COPY if memory is None else min(_LARGEST_COPY, memory.available // _HOST_SHARE)


def _probe_bytes() -> int:
    memory = machine_memory()
    return _LEAST_PROBE_BYTES if memory is None else max(_LEAST_PROBE_BYTES, int(_PROBE_SHARE * memory.available))
