"""What was built for one machine, and whether it is still right: ``engine.json``. Pure but for reading and writing that
file; knows no TensorRT.

A plan runs on the release of TensorRT and the kind of GPU that it was built with, and holds the weights of one graph.
So the record says all of it, and ``why_not`` compares it with what is wanted, in words that a person can act on.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Literal

from ..errors import ConfigError, why
from ..files import check_ordinary, read_text_at_most
from ..schema import plain, structure

RECORD_NAME = "engine.json"
ENGINE_DIRECTORY = "engine"
"""Of a bundle, where nothing else is said."""
RECORD_VERSION = 1
_MOST_BYTES = 16 << 20
MOST_TOKENS = 1 << 24
"""That anything can be built for."""
_MOST_ROWS, _MOST_SIZE, _LONGEST = 1 << 16, 1 << 45, 200

ProfileName = Literal["decode", "prefill", "head"]


class EngineMismatch(ConfigError):
    """Engines that are missing, stale or of another machine: told with what to run."""


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """Where plans are built and run."""

    tensorrt: str
    sm: str
    device: str
    multiprocessors: int
    cuda: str
    driver: str


@dataclass(frozen=True, slots=True)
class Shapes:
    """Of one input in a profile: the least, what it is tuned for, the most."""

    least: tuple[int, ...]
    usual: tuple[int, ...]
    most: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Profile:
    name: ProfileName
    least_rows: int
    most_rows: int
    inputs: dict[str, Shapes]
    """Of the inputs whose shape is not fixed."""


@dataclass(frozen=True, slots=True)
class EngineTensor:
    """One line of a plan's I/O table; -1: a dimension that a profile bounds."""

    name: str
    direction: Literal["in", "out"]
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BuildOptions:
    draft_length: int
    """K: verification runs up to K + 1 rows."""
    chunk: int
    """Rows of a prefill chunk."""
    context: int
    """Tokens that a cache holds, where the graphs leave it open."""
    workspace_bytes: int
    """Most scratch that a tactic may want."""


@dataclass(frozen=True, slots=True)
class PlanRecord:
    graph: str
    graph_sha256: str
    weights: dict[str, str]
    """File -> sha256."""
    file: str
    bytes: int
    sha256: str
    io: tuple[EngineTensor, ...]
    profiles: tuple[Profile, ...]
    scratch_bytes: int
    """What an execution context computes in, over all profiles."""
    build_s: float


@dataclass(frozen=True, slots=True)
class EngineRecord:
    schema_version: int
    bundle: str
    made_by: str
    machine: MachineFacts
    options: BuildOptions
    plans: dict[str, PlanRecord]
    """By graph."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A plan as this bundle, these options and this machine would have it."""

    graph: str
    graph_sha256: str
    weights: dict[str, str]
    profiles: tuple[Profile, ...]

    @property
    def file(self) -> str:
        return plan_file(self.graph)


def plan_file(graph: str) -> str:
    return f"{graph.removesuffix('.onnx')}.plan"


def read_record(directory: Path) -> EngineRecord | None:
    """``None``: nothing was built there. Raises ``EngineMismatch`` for a record that cannot be read."""
    path = directory / RECORD_NAME
    if not path.exists():
        return None
    again = "build the engines again with --rebuild"
    try:
        check_ordinary(path, "")
        data = json.loads(read_text_at_most(path, _MOST_BYTES, ""))
    except ConfigError as problem:
        raise EngineMismatch(f"{problem}; {again}") from None
    except (ValueError, RecursionError) as problem:
        raise EngineMismatch(f"{path} cannot be read: {why(problem)}; {again}") from None
    version = data.get("schema_version") if isinstance(data, dict) else None
    if type(version) is not int or version != RECORD_VERSION:
        told = f"schema version {version!r:.40}, but this runtime reads {RECORD_VERSION}"
        raise EngineMismatch(f"{path}: {told}; {again}")
    try:
        record = structure(EngineRecord, data, EngineMismatch, str(path))
    except EngineMismatch as problem:
        raise EngineMismatch(f"{problem}; {again}") from None
    for oddity in _unsound(record):
        raise EngineMismatch(f"{path}: {oddity}, which no build writes; {again}")
    return record


def _unsound(record: EngineRecord) -> Iterator[str]:
    """What nobody may reckon with, or name a file by: a build with --rebuild deletes what a record names."""
    options = record.options
    sizes = [("draft_length", options.draft_length, 0, _MOST_ROWS), ("chunk", options.chunk, 1, _MOST_ROWS)]
    sizes += [("context", options.context, 1, MOST_TOKENS)]
    sizes += [("workspace_bytes", options.workspace_bytes, 0, _MOST_SIZE)]
    for graph, plan in record.plans.items():
        if plan.graph != graph or Path(graph).name != graph or plan.file != plan_file(graph):
            yield f"a plan of {graph!r:.80} in {plan.file!r:.80}"
        sizes += [(f"bytes of {plan.file}", plan.bytes, 1, _MOST_SIZE)]
        sizes += [(f"scratch_bytes of {plan.file}", plan.scratch_bytes, 0, _MOST_SIZE)]
        if not 0 <= plan.build_s < math.inf:
            yield f"build_s of {plan.file} is {plan.build_s}"
    for what, size, least, most in sizes:
        if not least <= size <= most:
            yield f"{what} is {size if abs(size) <= _MOST_SIZE else 'a number of many digits'}"
    for field in fields(record.machine):
        text = str(getattr(record.machine, field.name))
        if not text.isprintable() or len(text) > _LONGEST:
            yield f"machine.{field.name} is {text!r:.80}"


def write_record(directory: Path, record: EngineRecord) -> None:
    """Beside the place and renamed: a reader sees the old one or the new one."""
    text = json.dumps(plain(record), indent=1, ensure_ascii=False)
    part = directory / f"{RECORD_NAME}.part"
    with part.open("w", encoding="utf-8") as file:
        file.write(text + "\n")
        file.flush()
        os.fsync(file.fileno())
    part.replace(directory / RECORD_NAME)


def with_plan(record: EngineRecord, plan: PlanRecord) -> EngineRecord:
    return replace(record, plans={**record.plans, plan.graph: plan})


def without_plans(record: EngineRecord, graphs: Mapping[str, object]) -> EngineRecord:
    return replace(record, plans={graph: plan for graph, plan in record.plans.items() if graph not in graphs})


# Whether it is still right


def foreign(record: EngineRecord, machine: MachineFacts) -> str | None:
    """Why none of the plans may run here, in words; ``None``: they may."""
    was = record.machine
    if was.tensorrt != machine.tensorrt:
        return f"built by TensorRT {was.tensorrt}, and here is {machine.tensorrt}"
    if was.sm != machine.sm:
        return f"built for SM {was.sm} ({was.device}), and this GPU is SM {machine.sm} ({machine.device})"
    if (was.device, was.multiprocessors) != (machine.device, machine.multiprocessors):
        # The same kernels would run, with choices that were timed on another board.
        return (
            f"built on {was.device} with {was.multiprocessors} multiprocessors, and this is {machine.device} with "
            f"{machine.multiprocessors}"
        )
    return None


def why_not(record: EngineRecord, directory: Path, machine: MachineFacts, wanted: Wanted) -> str | None:
    """Why the plan of a graph is not what is wanted, in words; ``None``: it is. Reads sizes, no contents."""
    return foreign(record, machine) or stale(record, directory, wanted)


def stale(record: EngineRecord, directory: Path, wanted: Wanted) -> str | None:
    """The same, whatever the machine."""
    plan = record.plans.get(wanted.graph)
    if plan is None:
        return "not built"
    if plan.graph_sha256 != wanted.graph_sha256:
        return f"{wanted.graph} has changed since it was built"
    for name, digest in wanted.weights.items():
        if plan.weights.get(name) != digest:
            return f"the weights in {name} have changed since it was built"
    if plan.profiles != wanted.profiles:
        return f"built for {_profiles(plan.profiles)}, and {_profiles(wanted.profiles)} are wanted"
    return damaged(plan, directory)


def damaged(plan: PlanRecord, directory: Path) -> str | None:
    """Whether the file is there, in the size that was written."""
    path = directory / plan.file
    try:
        size = path.stat().st_size
    except OSError:
        return f"{plan.file} is missing"
    return None if size == plan.bytes else f"{plan.file} has {size} bytes, and {plan.bytes} were written"


def _profiles(profiles: tuple[Profile, ...]) -> str:
    """``decode of 1 to 8 rows and prefill of 9 to 64, 2048 tokens of past``."""
    told = " and ".join(f"{one.name} of {one.least_rows} to {one.most_rows} rows" for one in profiles)
    past = {shapes.most[2] for one in profiles for name, shapes in one.inputs.items() if name.startswith("past_")}
    return f"{told}, {max(past)} tokens of past" if past else told
