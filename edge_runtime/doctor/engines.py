"""What is built of a bundle for TensorRT, against the bundle, the settings and the machine. Judges; builds nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..bundle import TARGET, Manifest
from ..engines.engine_fit import REBUILD, Misfit, build_command, misfits, too_small
from ..engines.engine_record import ENGINE_DIRECTORY, EngineRecord, MachineFacts, read_record
from ..engines.engine_shapes import roles_of
from ..errors import BundleError, ConfigError
from ..memory import shown
from ..needs import Load
from .finding import Check
from .outcome import Outcome

_NAME = "TensorRT engines"
_TOLD = 3
_BUNDLE = Path("BUNDLE")
"""In commands: a report goes into an issue, and nobody is to know where a person keeps his bundles."""


@dataclass(frozen=True, slots=True)
class Subject:
    bundle: Path
    manifest: Manifest
    engines: Path | None
    """As configured; ``None``: in the bundle."""
    load: Load | None
    """As configured; ``None``: all that the bundle holds."""


def check_engines(subject: Subject, seen: Outcome | None) -> tuple[Check, ...]:
    """``seen``: what TensorRT's probe told; ``None``: it was not asked. Nothing of a bundle for another engine, or that
    another one is to run."""
    try:
        roles = roles_of(subject.manifest)
    except BundleError:
        return ()
    load = subject.load
    if load is not None:
        if load.device != "cuda":
            return ()  # backend reference
        roles = (TARGET, *load.roles)
    engines = subject.engines or subject.bundle / ENGINE_DIRECTORY
    named = (_BUNDLE, _BUNDLE / ENGINE_DIRECTORY if engines == subject.bundle / ENGINE_DIRECTORY else engines)
    try:
        record = read_record(engines)
    except ConfigError as problem:
        return (Check(_NAME, "problem", str(problem), build_command(*named, REBUILD)),)
    if record is None:
        fix = f"{build_command(*named)} on the board that runs them; elsewhere engine.backend: reference"
        return (Check(_NAME, "advice" if _facts(seen) is None else "problem", "none are built", fix),)
    machine = _machine(seen, record)
    found = [one for role in roles for one in misfits(record, engines, subject.manifest, role, machine)]
    if not found and load is not None:
        small = too_small(record, subject.manifest, TARGET, load.context, load.head_rows)
        found = [] if small is None else [small]
    return (_wrong(found, named) if found else _right(record, machine is not None),)


def _wrong(found: list[Misfit], named: tuple[Path, Path]) -> Check:
    texts = list(dict.fromkeys(one.text for one in found))
    more = f"; and {len(texts) - _TOLD} more" if len(texts) > _TOLD else ""
    # The command that goes furthest does for the others too.
    options = max((one.options for one in found), key=len)
    return Check(_NAME, "problem", "; ".join(texts[:_TOLD]) + more, build_command(*named, *options))


def _right(record: EngineRecord, compared: bool) -> Check:
    plans = record.plans.values()
    where = f"built on {record.machine.device} (SM {record.machine.sm}) by TensorRT {record.machine.tensorrt}"
    text = f"{len(plans)} of {shown(sum(one.bytes for one in plans))}, {where}"
    return Check(_NAME, "ok", text if compared else f"{text}; not compared with this machine")


def _facts(seen: Outcome | None) -> tuple[str, str, str, int | None] | None:
    """(TensorRT, SM, device, multiprocessors) of this machine, as far as its probe came."""
    if seen is None or seen.told.accelerator is None or "tensorrt" not in seen.told.versions:
        return None
    gpu = seen.told.accelerator
    return seen.told.versions["tensorrt"], gpu.compute.replace(".", ""), gpu.name, gpu.multiprocessors


def _machine(seen: Outcome | None, record: EngineRecord) -> MachineFacts | None:
    facts = _facts(seen)
    if facts is None:
        return None
    tensorrt, sm, device, count = facts
    return MachineFacts(tensorrt, sm, device, record.machine.multiprocessors if count is None else count, "", "")
