"""What engines that are built will take, from the record of their build. Pure but for reading it; knows no TensorRT.

Plans are on disk, and shapes and scratch in the record, so all that an executor will hold can be reckoned before a
device is touched: by what a plan of memory says, and by what the daemon starts on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from ..bundle import TARGET, Manifest
from ..errors import InputError
from ..needs import Built, BuiltModel, Load
from .delta_executor import Layout
from .engine_fit import Misfit, build_command, misfits, too_small
from .engine_record import EngineRecord, read_record
from .trt_memory import FLOAT, device_places, host_places, layout_of, sizes_of


def with_built(load: Load, manifest: Manifest, bundle: Path, engines: Path) -> Load:
    """``load``, and what of its engines is built; else why none of that counts, with what to run."""
    try:
        record = read_record(engines)
        if record is None:
            told = f"no engines are built yet ({build_command(bundle, engines)})"
            return replace(load, not_built=told)
        for one in _against(record, manifest, engines, load):
            again = build_command(bundle, engines, *one.options)
            return replace(load, not_built=f"the engines in {engines} do not count: {one.text} ({again})")
        return replace(load, built=_built(record, manifest, load))
    except InputError as problem:
        return replace(load, not_built=str(problem))


def _against(record: EngineRecord, manifest: Manifest, engines: Path, load: Load) -> Iterator[Misfit]:
    """Whatever the machine: engines of a board that is not at hand may lie here."""
    for role in (TARGET, *load.roles):
        yield from misfits(record, engines, manifest, role, None)
    small = too_small(record, manifest, TARGET, load.context, load.head_rows)
    if small is not None:
        yield small


def _built(record: EngineRecord, manifest: Manifest, load: Load) -> Built:
    models: list[BuiltModel] = []
    target: Layout | None = None
    for role in (TARGET, *load.roles):
        model = manifest.model(role)
        body, head = record.plans[model.body], record.plans[model.head]
        context = min(record.options.context, model.max_context)
        layout = layout_of(model, body, 1, context, target)
        target = target or layout
        sizes = sizes_of(model, body, head, layout)
        logits = sizes.max_head_rows * sizes.vocab_size * FLOAT
        buffers = device_places(sizes).size - sizes.arena - logits + host_places(sizes).size
        models.append(
            BuiltModel(
                role=role,
                plans=body.bytes + head.bytes,
                capacity=layout.capacity,
                slot=sizes.arena,
                scratch=max(body.scratch_bytes, head.scratch_bytes),
                logits=logits,
                buffers=buffers,
            )
        )
    machine = record.machine
    return Built(f"{machine.device} (SM {machine.sm}) by TensorRT {machine.tensorrt}", tuple(models))

