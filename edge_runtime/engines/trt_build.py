"""A bundle becomes plans on the machine that will run them. Knows the order of things; knows no command line.

What is complete and matches is kept, what is missing is built, what is stale or of another machine is refused with the
reason, or built anew where that was asked for. Every file is written beside its place and renamed, and the record after
each plan: a build that is interrupted goes on where it was.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from .. import __version__
from ..bundle import Manifest, Model, read_manifest, verify_files
from ..errors import ConfigError, why
from ..memory import RESERVE_BYTES
from ..resident import machine_memory
from .build_memory import BuildRoom, allocation_cap, build_needs, refuse_beyond_room
from .cuda import Cuda
from .engine_fit import REBUILD, build_command
from .engine_record import (
    RECORD_VERSION,
    BuildOptions,
    EngineMismatch,
    EngineRecord,
    MachineFacts,
    PlanRecord,
    Wanted,
    damaged,
    read_record,
    why_not,
    with_plan,
    without_plans,
    write_record,
)
from .engine_shapes import GRAPHS, GraphName, graph_file, refuse_other_io, roles_of, wanted
from .trt_network import BuildTools, Network
from .trt_objects import Account, make_allocator
from .trt_plan import Inspected, inspect
from .trt_probe import probe, refuse_unsupported

_TIMING_CACHE = "timing.cache"
_LOCK = ".lock"


@dataclass(frozen=True, slots=True)
class BuildRequest:
    bundle: Path
    output: Path
    options: BuildOptions
    rebuild: bool = False
    reserve: int = RESERVE_BYTES
    """Bytes that stay available to the system while it builds."""


class Report(Protocol):
    """What a build tells while it goes on."""

    def machine(self, facts: MachineFacts) -> None: ...

    def hashed(self, done: int, total: int) -> None:
        """Bytes of the bundle that are checked."""
        ...

    def kept(self, plan: PlanRecord) -> None: ...

    def begun(self, graph: str, reason: str) -> None:
        """``reason``: why the plan that is there, if any, is not kept."""
        ...

    def progress(self, phase: str, done: int, total: int) -> None: ...

    def built(self, plan: PlanRecord) -> None: ...


def build_engines(request: BuildRequest, report: Report) -> EngineRecord:
    """Minutes. Raises ``InputError`` for what a person can mend and ``DeviceError`` where the device fails; what was
    complete before stays."""
    manifest = read_manifest(request.bundle)
    roles_of(manifest)
    plans = wanted(manifest, request.options)
    cuda = Cuda()
    machine = probe(cuda)
    refuse_unsupported(machine)
    report.machine(machine)
    with _locked(request.output):
        record, reasons = _settled(request, manifest, machine, plans)
        room = build_room(request, cuda)
        for one in plans:
            if one.graph in reasons:
                refuse_beyond_room(build_needs(manifest, one.graph, request.options.workspace_bytes), room)
        _verify(request.bundle, manifest, report)
        for one in plans:
            if one.graph not in reasons:
                report.kept(record.plans[one.graph])
                continue
            report.begun(one.graph, reasons[one.graph])
            made = _build(request, manifest, one, cuda, room, report)
            record = with_plan(record, made)
            write_record(request.output, record)
            report.built(made)
    return record


def build_room(request: BuildRequest, cuda: Cuda) -> BuildRoom:
    """Raises ``ConfigError`` where this machine does not tell its memory."""
    memory = machine_memory()
    if memory is None:
        raise ConfigError("/proc/meminfo does not tell this machine's memory: nothing is built without knowing it")
    device = None if cuda.facts().integrated else cuda.free_bytes()
    return BuildRoom(memory.available, device, shutil.disk_usage(request.output).free, request.reserve)


@contextmanager
def _locked(output: Path) -> Iterator[None]:
    """One build at a time. Raises ``ConfigError``."""
    try:
        output.mkdir(parents=True, exist_ok=True)
        handle = os.open(output / _LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
    except OSError as problem:
        raise ConfigError(f"{output} cannot be written: {why(problem)}; choose another with --output") from None
    try:
        _lock(handle, output)
        _clear_parts(output)
        yield
    except OSError as problem:
        # A full disk names no file. What was half written would only keep it full.
        _clear_parts(output)
        place = problem.filename2 or problem.filename or output
        raise ConfigError(
            f"building into {output} ended at {place}: {why(problem)}; make room or remove what is in the way, or "
            "choose another with --output"
        ) from None
    finally:
        os.close(handle)


def _clear_parts(output: Path) -> None:
    for part in output.glob("*.part"):
        with suppress(IsADirectoryError):  # none of ours
            part.unlink()


def _lock(handle: int, output: Path) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ConfigError(f"{output}: another build writes there; wait for it, or choose another --output") from None


def _settled(
    request: BuildRequest, manifest: Manifest, machine: MachineFacts, plans: Sequence[Wanted]
) -> tuple[EngineRecord, dict[str, str]]:
    """The record to go on with, and why each graph that must be built must be. Raises ``EngineMismatch``."""
    fresh = EngineRecord(RECORD_VERSION, manifest.name, __version__, machine, request.options, {})
    try:
        record = read_record(request.output)
    except EngineMismatch:
        if not request.rebuild:
            raise
        record = None
    if record is None:
        return fresh, {one.graph: "not built" for one in plans}
    reasons = {}
    for one in plans:
        if (reason := why_not(record, request.output, machine, one)) is not None:
            reasons[one.graph] = reason
    stale = {graph: reason for graph, reason in reasons.items() if _is_there(record, request.output, graph)}
    if stale and not request.rebuild:
        graph, reason = next(iter(stale.items()))
        raise EngineMismatch(
            f"{request.output}: {graph}: {reason}; run {build_command(request.bundle, request.output, REBUILD)}, "
            "or choose another directory with --output"
        )
    listed = {one.graph for one in plans}
    gone = {graph: "" for graph in record.plans if graph in reasons or graph not in listed}
    for graph in gone:
        (request.output / record.plans[graph].file).unlink(missing_ok=True)
    kept = without_plans(record, gone)
    record = EngineRecord(RECORD_VERSION, manifest.name, __version__, machine, request.options, kept.plans)
    if gone:
        write_record(request.output, record)
    return record, reasons


def _is_there(record: EngineRecord, output: Path, graph: str) -> bool:
    """A whole plan, which nobody should lose unasked."""
    plan = record.plans.get(graph)
    return plan is not None and damaged(plan, output) is None


def _verify(bundle: Path, manifest: Manifest, report: Report) -> None:
    """The record names the digests of graphs and weights, so they must be right. Raises ``BundleError``."""
    total = sum(entry.bytes for entry in manifest.files)
    done = 0

    def told(count: int) -> None:
        nonlocal done
        done += count
        report.hashed(done, total)

    verify_files(bundle, manifest, progress=told)


def _build(
    request: BuildRequest, manifest: Manifest, one: Wanted, cuda: Cuda, room: BuildRoom, report: Report
) -> PlanRecord:
    model, graph = _of(manifest, one.graph)
    account = Account(allocation_cap(room))
    tools = BuildTools(
        workspace=request.options.workspace_bytes,
        timing_cache=request.output / _TIMING_CACHE,
        progress=report.progress,
        allocator=make_allocator(cuda, account),
        account=account,
    )
    began_s = time.monotonic()
    part = request.output / f"{one.file}.part"
    digest = _written(request.bundle / one.graph, model, graph, one, tools, part)
    build_s = time.monotonic() - began_s
    _let_pages_go([request.bundle / name for name in model.weights] + [part])
    found = _inspected(part, model, graph)
    part.replace(request.output / one.file)
    return PlanRecord(
        graph=one.graph,
        graph_sha256=one.graph_sha256,
        weights=one.weights,
        file=one.file,
        bytes=(request.output / one.file).stat().st_size,
        sha256=digest,
        io=found.io,
        profiles=one.profiles,
        scratch_bytes=found.scratch_bytes,
        build_s=round(build_s, 1),
    )


def _of(manifest: Manifest, name: str) -> tuple[Model, GraphName]:
    for role in roles_of(manifest):
        for graph in GRAPHS:
            if graph_file(manifest.models[role], graph) == name:
                return manifest.models[role], graph
    raise KeyError(name)


def _written(path: Path, model: Model, graph: GraphName, one: Wanted, tools: BuildTools, part: Path) -> str:
    """The plan's sha256. All that building took is let go of when it returns: inspecting comes after it."""
    network = Network(path, tools)
    refuse_other_io(path, model, graph, network.io)
    with network.serialize(one.profiles) as plan, part.open("wb") as file:
        file.write(plan)
        file.flush()
        os.fsync(file.fileno())
        return hashlib.sha256(plan).hexdigest()


def _inspected(part: Path, model: Model, graph: GraphName) -> Inspected:
    """The plan is loaded once where it will run: one that cannot be is told now, and not at the first start."""
    found = inspect(part)
    refuse_other_io(part, model, graph, found.io)
    return found


def _let_pages_go(paths: Sequence[Path]) -> None:
    """Pages of files that are read once crowd out what the device allocates next."""
    for path in paths:
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
