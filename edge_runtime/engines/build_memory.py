"""What building a plan takes of memory, and whether it is there. Pure; knows no TensorRT.

Building is what kills small boards: it takes several times what running does, at once, and where processor and GPU
share their memory nothing of it swaps. So it is reckoned and refused before anything is allocated. The factor is
assumed: it stands for the file, the network's copy, the builder's own and the finished plan. No board has told yet.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..bundle import Manifest
from ..errors import OutOfBudget
from ..memory import RESERVE_BYTES, shown

WEIGHTS_FACTOR = 3.0
"""Copies of a graph's weights that exist at a time."""
PROCESS_BYTES = 1_000_000_000
"""Interpreter, libraries and CUDA's context, with the builder's kernels. Assumed."""
WORKSPACE_BYTES = 1 << 30
LEAST_WORKSPACE_BYTES = 1 << 26
_PLAN_FACTOR = 1.2
"""Bytes of a plan to a byte of its weights, for the disk."""


@dataclass(frozen=True, slots=True)
class BuildNeeds:
    """Bytes, while the plan of one graph is built."""

    graph: str
    weights: int
    """That the graph names, as they are stored."""
    workspace: int

    @property
    def host(self) -> int:
        return int(WEIGHTS_FACTOR * self.weights) + PROCESS_BYTES

    @property
    def device(self) -> int:
        return self.weights + self.workspace

    @property
    def shared(self) -> int:
        """Of one memory for both: the weights on the device are one of the factor's copies."""
        return self.host + self.workspace

    @property
    def plan(self) -> int:
        return int(_PLAN_FACTOR * self.weights)


@dataclass(frozen=True, slots=True)
class BuildRoom:
    """What there is before anything is built."""

    host: int
    """Available to programs, in bytes."""
    device: int | None
    """Free on a GPU with a memory of its own; ``None``: it shares the host's."""
    disk: int
    reserve: int = RESERVE_BYTES
    """Left to the system."""


def build_needs(manifest: Manifest, graph: str, workspace: int) -> BuildNeeds:
    sizes = {entry.name: entry.bytes for entry in manifest.files}
    for model in manifest.models.values():
        if graph not in (model.body, model.head):
            continue
        stored = [one.stored for one in model.graphs if one.file == graph]
        return BuildNeeds(graph, stored[0] if stored else sum(sizes[name] for name in model.weights), workspace)
    raise KeyError(graph)


def refuse_beyond_room(needs: BuildNeeds, room: BuildRoom) -> None:
    """Raises ``OutOfBudget`` with the figures, and with what would help."""
    allowed = max(0, room.host - room.reserve)
    copies = f"{WEIGHTS_FACTOR:g} x {shown(needs.weights)} of weights and {shown(PROCESS_BYTES)} for the process"
    wanted = needs.shared if room.device is None else needs.host
    if room.device is None:
        copies += f", and {shown(needs.workspace)} of workspace"
    if wanted > allowed:
        raise OutOfBudget(
            f"building {needs.graph} may take {shown(wanted)} ({copies}), and {shown(allowed)} may be taken: "
            f"{shown(room.host)} are available, {shown(room.reserve)} of these in reserve; "
            f"{_advice(needs, room, wanted)}"
        )
    if room.device is not None and needs.device > room.device:
        raise OutOfBudget(
            f"building {needs.graph} may take {shown(needs.device)} of the GPU's memory ({shown(needs.weights)} of "
            f"weights and {shown(needs.workspace)} of workspace), and {shown(room.device)} are free there"
        )
    if needs.plan > room.disk:
        raise OutOfBudget(
            f"the plan of {needs.graph} may take {shown(needs.plan)} of the disk, and {shown(room.disk)} are free there"
        )


def _advice(needs: BuildNeeds, room: BuildRoom, wanted: int) -> str:
    least = wanted - needs.workspace + LEAST_WORKSPACE_BYTES
    if room.device is None and least <= room.host - room.reserve:
        fits = (room.host - room.reserve - (wanted - needs.workspace)) >> 20
        return f"--workspace {fits} (MiB) would fit, or close other programs"
    return "stop other programs and the desktop (sudo systemctl isolate multi-user.target), or take a smaller model"


def allocation_cap(room: BuildRoom) -> int:
    """Most that the builder may hold on the device: what is not there must be refused to it, not to the system."""
    return max(0, room.host - room.reserve) if room.device is None else room.device
