"""The graphs of a delta cache on TensorRT. Knows plans, addresses and one stream; neither slots' meaning nor tokens.

A run is asked for and not waited for; what the host reads is fetched by copies that are. All that a body may be bound
to is known once slot and number of rows are, so bindings are made once and kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from ..bundle import Manifest
from .delta_executor import PARTS, Copy2d, HostBuffers, Layout
from .engine_record import EngineRecord, PlanRecord
from .opening import GraphMode
from .protocol import Floats
from .trt_device import TrtDevice
from .trt_memory import ALIGNED, FLOAT, PinnedBuffers, device_places, layout_of, sizes_of
from .trt_runner import Binding, Runner

_SAID = ("argmax", "candidate_ids", "candidate_logits", "logsumexp", "gathered")
"""By a head, in the order of memory."""
_FIRST_SAID, _LAST_SAID = _SAID[0], _SAID[-1]
_ANYWHERE = -1
"""In place of a head's first row, where it is copied to a place of its own."""


@dataclass(frozen=True, slots=True)
class TrtSettings:
    slots: int = 1
    graphs: GraphMode = "none"
    """CUDA graphs: fewer microseconds a run for more memory. Not tried on a board yet."""


class TrtExecutor:
    """Implements ``delta_executor.Executor``. Raises ``DeviceError`` where the device fails."""

    def __init__(
        self,
        device: TrtDevice,
        directory: Path,
        record: EngineRecord,
        manifest: Manifest,
        role: str,
        settings: TrtSettings,
        target: TrtExecutor | None = None,
    ) -> None:
        """``directory``: of the plans, which ``record`` is of. ``target``: whose caches a model with ``shares`` uses.

        Raises ``BundleError`` (a plan that is not there), ``OutOfBudget`` and ``DeviceError``; nothing is then held.
        """
        model = manifest.model(role)
        body, head = record.plans[model.body], record.plans[model.head]
        self._device, self._target, self._body_plan = device, target, body
        context = min(record.options.context, model.max_context)
        self._layout = layout_of(model, body, settings.slots, context, None if target is None else target.layout)
        self._sizes = sizes = sizes_of(model, body, head, self._layout)
        self._places = device_places(sizes)
        self._names = {tensor.name for tensor in body.io}
        self._open = {name for plan in (body, head) for profile in plan.profiles for name in profile.inputs}
        self._bodies: dict[tuple[int, int], Binding] = {}
        self._heads: dict[tuple[int, int], Binding] = {}
        self._graphs = settings.graphs
        self._closing = ExitStack()
        with ExitStack() as opened:
            # Plans first: they are the largest.
            self._body = opened.enter_context(_runner(device, directory, body, settings.graphs))
            self._head = opened.enter_context(_runner(device, directory, head, settings.graphs))
            self._address = device.allocate(self._places.size, f"the {role} model's caches and buffers")
            opened.callback(device.free, self._address)
            self._pinned = PinnedBuffers(device.cuda, sizes)
            self._event = device.cuda.make_event()
            opened.callback(device.cuda.end_event, self._event)
            # Before anything is let go: what was asked for may still be running.
            opened.callback(device.cuda.wait, device.stream)
            self._closing = opened.pop_all()

    @property
    def layout(self) -> Layout:
        return self._layout

    @property
    def host(self) -> HostBuffers:
        return self._pinned.host

    @property
    def device(self) -> TrtDevice:
        return self._device

    @property
    def graph_problem(self) -> str | None:
        """Why runs go without a CUDA graph although there was to be one."""
        return self._body.problem or self._head.problem

    def adopt(self, device: TrtDevice) -> None:
        """Closes it with itself, after all else."""
        mine = self._closing.pop_all()
        self._closing.callback(device.close)
        self._closing.push(mine)

    def run_body(self, slot: int, rows: int) -> None:
        binding = self._bodies.get((slot, rows))
        if binding is None:
            binding = self._bodies[(slot, rows)] = self._bind_body(slot, rows)
        cuda, stream, sizes = self._device.cuda, self._device.stream, self._sizes
        # Positions and the rows behind them lie in one piece.
        self._to_device("positions", self._places["embeddings"].offset + rows * sizes.embedded * FLOAT)
        if sizes.hidden_input is not None:
            self._to_device("hidden_in", self._places["hidden_in"].offset + rows * sizes.hidden_input * FLOAT)
        cuda.record(self._event, stream)
        self._body.run(binding)
        # The host may write its rows again once they are copied, while the device computes.
        cuda.wait_event(self._event)

    def commit(self, copies: Sequence[Copy2d]) -> None:
        self._lines(self._at("new"), copies)

    def copy(self, copies: Sequence[Copy2d]) -> None:
        self._lines(self._arena(), copies)

    def clear(self, offset: int, size: int) -> None:
        self._device.cuda.zero(self._arena() + offset, size, self._device.stream)

    def run_head(self, first: int, rows: int) -> None:
        place = first if self._in_place(first) else _ANYWHERE
        binding = self._heads.get((place, rows))
        if binding is None:
            binding = self._heads[(place, rows)] = self._bind_head(place, rows)
        cuda, stream = self._device.cuda, self._device.stream
        self._to_device("inverse_temperature", self._places["gather_ids"].stop)
        if place == _ANYWHERE:
            row = self._sizes.hidden_size * FLOAT
            cuda.copy(self._at("head_input"), self._at("hidden") + first * row, rows * row, stream)
        self._head.run(binding)
        self._to_host(_FIRST_SAID, self._places[_LAST_SAID].stop - self._places[_FIRST_SAID].offset)
        cuda.wait(stream)

    def fetch_hidden(self, rows: int) -> None:
        sizes = self._sizes
        self._to_host("hidden", rows * sizes.hidden_size * FLOAT)
        if sizes.feeds and sizes.hidden_input is not None:
            self._to_host("feed", rows // sizes.fan_out * sizes.hidden_input * FLOAT)
        self._device.cuda.wait(self._device.stream)

    def fetch_logits(self, row: int) -> Floats:
        cuda, stream, size = self._device.cuda, self._device.stream, self._sizes.vocab_size * FLOAT
        cuda.to_host(self._pinned.at("logits_row"), self._at("logits") + row * size, size, stream)
        cuda.wait(stream)
        return self._pinned.logits_row

    def close(self) -> None:
        self._bodies.clear()
        self._heads.clear()
        self._closing.close()

    # What a run is bound to

    def _bind_body(self, slot: int, rows: int) -> Binding:
        sizes, layout = self._sizes, self._layout
        shapes: dict[str, tuple[int, ...]] = {"embeddings": (1, rows, sizes.embedded), "positions": (rows,)}
        addresses = {name: self._at(name) for name in ("embeddings", "positions", "hidden")}
        if sizes.hidden_input is not None:
            shapes["hidden_in"] = (1, rows, sizes.hidden_input)
            addresses["hidden_in"] = self._at("hidden_in")
        if sizes.feeds:
            addresses["feed"] = self._at("feed")
        new, region = layout.new(rows), self._at("new") if "new" in self._places else 0
        for i, place in enumerate(layout.caches):
            for part, begins in zip(PARTS, new[i], strict=True):
                shapes[f"past_{part}_{i}"] = (1, place.kv_heads, layout.capacity, place.head_dim)
                addresses[f"past_{part}_{i}"] = self._arena() + layout.past(slot, i, part)
                addresses[f"new_{part}_{i}"] = region + begins
        known = {name: address for name, address in addresses.items() if name in self._names}
        return self._bound(_profile_of(self._body_plan, rows), shapes, known)

    def _bind_head(self, first: int, rows: int) -> Binding:
        width = self._sizes.hidden_size
        hidden = self._at("head_input") if first == _ANYWHERE else self._at("hidden") + first * width * FLOAT
        names = ("inverse_temperature", "gather_ids", "logits", *_SAID)
        addresses = {"hidden": hidden, **{name: self._at(name) for name in names}}
        return self._bound(0, {"hidden": (rows, width), "gather_ids": (rows,)}, addresses)

    def _bound(self, profile: int, shapes: dict[str, tuple[int, ...]], addresses: dict[str, int]) -> Binding:
        left_open = tuple((name, shape) for name, shape in shapes.items() if name in self._open)
        return Binding(profile, left_open, tuple(addresses.items()))

    def _in_place(self, first: int) -> bool:
        """Whether the head may read its rows where the body left them. With graphs it never does: one of them for each
        number of rows is enough, one for each place as well would be too many."""
        return self._graphs == "none" and first * self._sizes.hidden_size * FLOAT % ALIGNED == 0

    # Addresses and copies

    def _at(self, name: str) -> int:
        return self._address + self._places[name].offset

    def _arena(self) -> int:
        if self._layout.owned or self._target is None:
            return self._at("arena")
        return self._target._arena()

    def _to_device(self, first: str, stop: int) -> None:
        """From the begin of a region of what is exchanged up to ``stop``, an offset in the device's block."""
        size = stop - self._places[first].offset
        self._device.cuda.to_device(self._at(first), self._pinned.at(first), size, self._device.stream)

    def _to_host(self, first: str, size: int) -> None:
        self._device.cuda.to_host(self._pinned.at(first), self._at(first), size, self._device.stream)

    def _lines(self, source: int, copies: Sequence[Copy2d]) -> None:
        """``source``: the address that the copies' sources count from. Targets are in the arena."""
        cuda, stream, arena = self._device.cuda, self._device.stream, self._arena()
        for one in copies:
            target, begin = arena + one.target, source + one.source
            cuda.copy_lines(target, one.target_pitch, begin, one.source_pitch, one.width, one.height, stream)


def _runner(device: TrtDevice, directory: Path, plan: PlanRecord, graphs: GraphMode) -> Runner:
    return Runner(device, device.open_plan(directory / plan.file), graphs)


def _profile_of(plan: PlanRecord, rows: int) -> int:
    for index, profile in enumerate(plan.profiles):
        if profile.least_rows <= rows <= profile.most_rows:
            return index
    raise ValueError(f"{rows} rows: {plan.file} has no profile of them")
