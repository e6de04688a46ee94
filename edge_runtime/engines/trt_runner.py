"""One plan, run. Knows contexts, profiles and captured graphs; knows addresses, and nothing of what lies there.

What a run is bound to - profile, shapes, addresses - is a ``Binding`` that its owner makes once and hands over again:
the same object means that nothing has to be set. With CUDA graphs each binding is captured behind its first run, in a
context of its own, since a captured graph stands only as long as its context is not bound anew. There are few: bindings
beyond ``_MOST_GRAPHS`` run without.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import DeviceError
from .opening import GraphMode
from .trt_device import Scratch, TrtDevice

if TYPE_CHECKING:
    import tensorrt as trt

_MOST_GRAPHS = 24
"""Of one plan. Each holds a context, with what TensorRT keeps on the device for it."""


@dataclass(frozen=True, slots=True, eq=False)
class Binding:
    """Compared by identity."""

    profile: int
    shapes: tuple[tuple[str, tuple[int, ...]], ...]
    """Of the inputs whose shape the plan leaves open."""
    addresses: tuple[tuple[str, int], ...]
    """Of all inputs and outputs, aligned to 256 bytes."""


class _Context:
    """An execution context, and what it was last told."""

    def __init__(self, device: TrtDevice, engine: trt.ICudaEngine, profile: int) -> None:
        import tensorrt as trt

        context = engine.create_execution_context(trt.ExecutionContextAllocationStrategy.USER_MANAGED)
        if context is None:
            raise device.failed("create_execution_context")
        self._device, self._context = device, context
        self._binding: Binding | None = None
        self._scratch: Scratch | None = None
        if profile != context.active_optimization_profile:
            try:
                done = context.set_optimization_profile_async(profile, device.stream)
            except RuntimeError:  # what the binding raises where TensorRT returns false
                done = False
            if not done:
                raise device.failed("set_optimization_profile_async", f"profile {profile} refused")

    def run(self, binding: Binding) -> None:
        """Asks for it; the stream says when it is done."""
        if self._scratch is not self._device.scratch:
            self._scratch = self._device.scratch
            if self._scratch.size:  # a small graph may want none
                self._context.set_device_memory(self._scratch.address, self._scratch.size)
        if self._binding is not binding:
            self._bind(binding)
        self.enqueue()

    def enqueue(self) -> None:
        if not self._context.execute_async_v3(self._device.stream):
            self._binding = None
            raise self._device.failed("execute_async_v3")

    @property
    def scratch(self) -> Scratch | None:
        return self._scratch

    def _bind(self, binding: Binding) -> None:
        context, device = self._context, self._device
        self._binding = None
        for name, shape in binding.shapes:
            if not context.set_input_shape(name, shape):
                raise device.failed("set_input_shape", f"{name} of {' x '.join(map(str, shape))} refused")
        for name, address in binding.addresses:
            if not context.set_tensor_address(name, address):
                raise device.failed("set_tensor_address", f"{name} refused")
        if open_names := context.infer_shapes():
            raise device.failed("infer_shapes", f"not told: {', '.join(open_names)}")
        self._binding = binding


@dataclass(slots=True)
class _Captured:
    context: _Context
    graph: int | None
    """``None``: it could not be captured, and runs without."""


class Runner:
    """Raises ``DeviceError`` from every call. A context manager: at its end contexts go, and then the engine."""

    def __init__(self, device: TrtDevice, engine: trt.ICudaEngine, graphs: GraphMode) -> None:
        self._device, self._graphs = device, graphs
        self._engine: trt.ICudaEngine | None = engine
        self._contexts: dict[int, _Context] = {}
        self._captured: dict[Binding, _Captured] = {}
        self.problem: str | None = None
        """Why bindings run without a graph although there was to be one."""

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *problem: object) -> None:
        for binding in list(self._captured):
            self._forget(binding)
        self._contexts.clear()
        self._engine = None

    @property
    def graphs(self) -> int:
        """How many are captured."""
        return sum(one.graph is not None for one in self._captured.values())

    def run(self, binding: Binding) -> None:
        """Asks for one run; the stream says when it is done."""
        if self._graphs == "none":
            self._plain(binding)
            return
        known = self._captured.get(binding)
        if known is None and len(self._captured) >= _MOST_GRAPHS:
            self._plain(binding)
        elif known is None:
            self._capture(binding)
        elif known.graph is not None and known.context.scratch is self._device.scratch:
            self._device.cuda.launch(known.graph, self._device.stream)
        elif known.graph is not None:
            self._forget(binding)  # the scratch has moved, and the graph still names its old place
            self._capture(binding)
        else:
            known.context.run(binding)

    def _plain(self, binding: Binding) -> None:
        context = self._contexts.get(binding.profile)
        if context is None:
            context = self._contexts[binding.profile] = self._made(binding)
        context.run(binding)

    def _capture(self, binding: Binding) -> None:
        """Runs once as it is, which settles what TensorRT puts off until then; then the same again is captured."""
        cuda, stream = self._device.cuda, self._device.stream
        context = self._made(binding)
        context.run(binding)
        self._captured[binding] = _Captured(context, None)
        try:
            cuda.begin_capture(stream)
            try:
                context.enqueue()
            except DeviceError:
                cuda.abandon_capture(stream)
                raise
            self._captured[binding].graph = cuda.end_capture(stream)
        except DeviceError as problem:
            # The run itself is right: what cannot be captured goes on without.
            self.problem = self.problem or str(problem)

    def _made(self, binding: Binding) -> _Context:
        if self._engine is None:
            raise ValueError("this engine is closed")
        return _Context(self._device, self._engine, binding.profile)

    def _forget(self, binding: Binding) -> None:
        graph = self._captured.pop(binding).graph
        if graph is not None:
            self._device.cuda.end_graph(graph)
