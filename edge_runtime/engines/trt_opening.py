"""Engines that were built become engines that run. Knows what of a record must fit; knows no step."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..bundle import Manifest, file_sha256
from ..errors import ConfigError
from ..memory import RESERVE_BYTES
from ..resident import machine_memory
from .cuda import Cuda
from .delta import DeltaEngine, DeltaSettings
from .engine_fit import REBUILD, build_command, misfits, too_small
from .engine_record import EngineMismatch, EngineRecord, MachineFacts, PlanRecord, read_record
from .opening import GraphMode
from .protocol import Engine
from .trt import TrtExecutor, TrtSettings
from .trt_device import TrtDevice
from .trt_probe import probe, refuse_unsupported


@dataclass(frozen=True, slots=True)
class TrtOpening:
    """What is asked of a bundle's engines."""

    engines: Path
    """Directory that ``edge-runtime build`` wrote."""
    capacity: int
    slots: int
    max_head_rows: int
    cap: int | None
    """Most bytes on the device, of all models together; ``None``: what there is, less the reserve."""
    deterministic: bool = False
    keeps_hidden: bool = False
    graphs: GraphMode = "none"
    verify_hashes: bool = True


def open_trt_engine(
    bundle: Path, manifest: Manifest, role: str, asked: TrtOpening, target: Engine | None = None
) -> DeltaEngine:
    """``target``: the engine of the target, whose device all drafters share; it is closed last.

    Raises ``EngineMismatch`` (engines that are missing, stale or foreign), ``ConfigError`` (settings beyond them),
    ``OutOfBudget`` and ``DeviceError``; nothing is then held.
    """
    # First: a workstation has no CUDA, and what it lacks before that is the board.
    _existing_record(bundle, asked)
    owner = target.executor if isinstance(target, DeltaEngine) else None
    first = owner if isinstance(owner, TrtExecutor) else None
    cuda = Cuda() if first is None else first.device.cuda
    machine = probe(cuda)
    refuse_unsupported(machine)
    record = checked_record(bundle, manifest, role, asked, machine)
    if first is None:
        device = TrtDevice(_cap(cuda) if asked.cap is None else asked.cap, cuda)
    else:
        device = first.device
    try:
        settings = TrtSettings(asked.slots, asked.graphs)
        executor = TrtExecutor(device, asked.engines, record, manifest, role, settings, first)
        if first is None:
            executor.adopt(device)
    except BaseException:
        if first is None:
            device.close()
        raise
    try:
        wanted_settings = DeltaSettings(asked.deterministic, asked.keeps_hidden, "at-load")
        return DeltaEngine(bundle, manifest, role, executor, wanted_settings)
    except BaseException:
        executor.close()
        raise


def checked_record(
    bundle: Path, manifest: Manifest, role: str, asked: TrtOpening, machine: MachineFacts
) -> EngineRecord:
    """The record, of engines that may run here and are what is asked. Raises ``EngineMismatch`` and ``ConfigError``."""
    record, engines = _existing_record(bundle, asked), asked.engines
    for one in misfits(record, engines, manifest, role, machine):
        raise EngineMismatch(f"{engines}: {one.text}; run {build_command(bundle, engines, *one.options)}")
    model = manifest.model(role)
    if asked.verify_hashes:
        for graph in (model.body, model.head):
            _verify(bundle, engines, record.plans[graph])
    small = too_small(record, manifest, role, asked.capacity, asked.max_head_rows)
    if small is not None:
        raise ConfigError(f"{small.text}; run {build_command(bundle, engines, *small.options)}")
    return record


def _existing_record(bundle: Path, asked: TrtOpening) -> EngineRecord:
    record = read_record(asked.engines)
    if record is None:
        raise EngineMismatch(
            f"{asked.engines}: no engines are built; on the board run {build_command(bundle, asked.engines)}, "
            "elsewhere use backend reference"
        )
    return record


def _verify(bundle: Path, engines: Path, plan: PlanRecord) -> None:
    if file_sha256(engines / plan.file) != plan.sha256:
        raise EngineMismatch(
            f"{engines / plan.file} is not what was written: its sha256 differs; "
            f"run {build_command(bundle, engines, REBUILD)}"
        )


def _cap(cuda: Cuda) -> int:
    """What there is now: on a board the memory is the system's as well, and a reserve of it stays."""
    if not cuda.facts().integrated:
        return cuda.free_bytes()
    memory = machine_memory()
    return cuda.free_bytes() if memory is None else max(0, memory.available - RESERVE_BYTES)
