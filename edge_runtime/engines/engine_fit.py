"""Whether engines that were built are what a bundle and its settings want, in words, each with the command that helps.
Reads sizes of files and no contents; knows no TensorRT.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..bundle import Manifest
from .engine_record import ENGINE_DIRECTORY, EngineRecord, MachineFacts, PlanRecord, damaged, foreign, stale
from .engine_shapes import GRAPHS, capacity_of, graph_file, io_problem, wanted

REBUILD = "--rebuild"


@dataclass(frozen=True, slots=True)
class Misfit:
    text: str
    options: tuple[str, ...]
    """Of the build that mends it."""


def build_command(bundle: Path, engines: Path, *more: str) -> str:
    """As it may be typed."""
    output = [] if engines == bundle / ENGINE_DIRECTORY else ["--output", str(engines)]
    return shlex.join(["edge-runtime", "build", str(bundle), *output, *more])


def misfits(
    record: EngineRecord, engines: Path, manifest: Manifest, role: str, machine: MachineFacts | None
) -> Iterator[Misfit]:
    """Of one model; ``machine`` ``None``: whatever it is."""
    if machine is not None and (reason := foreign(record, machine)) is not None:
        yield Misfit(reason, (REBUILD,))
        return
    model = manifest.model(role)
    graphs = {graph_file(model, graph): graph for graph in GRAPHS}
    for one in wanted(manifest, record.options):
        if one.graph not in graphs:
            continue
        plan = record.plans.get(one.graph)
        reason = stale(record, engines, one)
        if reason is None and plan is not None and (odd := io_problem(model, graphs[one.graph], plan.io)) is not None:
            reason = f"its record {odd}"
        if reason is not None:
            # What is not there, or not whole, is built without being asked twice.
            whole = plan is not None and damaged(plan, engines) is None
            yield Misfit(f"{one.graph}: {reason}", (REBUILD,) if whole else ())


def too_small(
    record: EngineRecord, manifest: Manifest, role: str, context: int, head_rows: int
) -> Misfit | None:
    """What of the settings is beyond engines without misfits."""
    model = manifest.model(role)
    body, head = record.plans[model.body], record.plans[model.head]
    capacity = capacity_of(body.profiles, body.io)
    if capacity is not None and context > capacity:
        text = f"context of {context} tokens: these engines hold {capacity}"
        return Misfit(text, (REBUILD, "--context", str(context)))
    if head_rows > _most_rows(head):
        text = f"{head_rows - 1} draft tokens: these engines verify up to {record.options.draft_length}"
        return Misfit(text, (REBUILD, "--draft-length", str(head_rows - 1)))
    return None


def _most_rows(plan: PlanRecord) -> int:
    return max(profile.most_rows for profile in plan.profiles)
