"""One ONNX graph becomes one plan, by TensorRT's parser and builder. Knows no bundle and no file but the graph and a
timing cache; what it allocates on the device goes through an allocator with a cap.

Networks are strongly typed: the graph says what is computed in which precision, and nothing is turned down on the way.
There are no auxiliary streams, so that one stream is the order of everything.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ..errors import BundleError, DeviceError
from .engine_record import EngineTensor, Profile
from .trt_objects import Account, Cancelling, Messages, Progress, make_logger, make_monitor
from .trt_probe import tensor

if TYPE_CHECKING:
    import tensorrt as trt

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class BuildTools:
    """What all builds of one run share."""

    workspace: int
    timing_cache: Path | None
    """``None``: tactics are timed anew each time."""
    progress: Progress
    allocator: trt.IGpuAllocator | None = None
    """``None``: TensorRT's own, without a cap."""
    account: Account | None = None
    messages: Messages = field(default_factory=Messages)
    cancelling: Cancelling = field(default_factory=Cancelling)


class Network:
    """A parsed graph. ``serialize`` builds it."""

    def __init__(self, graph: Path, tools: BuildTools) -> None:
        """Raises ``BundleError`` where the parser refuses it, with the node."""
        import tensorrt as trt

        self._graph, self._tools = graph, tools
        self._logger = make_logger(tools.messages)
        self._builder = _made("Builder", trt.Builder(self._logger), tools)
        if tools.allocator is not None:
            self._builder.gpu_allocator = tools.allocator
        flags = 1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
        self._network = _made("create_network", self._builder.create_network(flags), tools)
        parser = _made("OnnxParser", trt.OnnxParser(self._network, self._logger), tools)
        # From the file and not from its bytes: the weights lie beside it.
        if not parser.parse_from_file(str(graph)):
            raise BundleError(f"{graph}: TensorRT {trt.__version__} does not take it: {_refusal(parser, tools)}")
        self._parser = parser  # holds the weights that the network names

    @property
    def io(self) -> tuple[EngineTensor, ...]:
        network = self._network
        incoming = [network.get_input(index) for index in range(network.num_inputs)]
        outgoing = [network.get_output(index) for index in range(network.num_outputs)]
        return tuple(
            tensor(one.name, incoming=index < len(incoming), dtype=one.dtype, shape=_sizes(one.shape))
            for index, one in enumerate([*incoming, *outgoing])
        )

    def serialize(self, profiles: Sequence[Profile]) -> memoryview:
        """The plan. Raises ``DeviceError`` where it cannot be built, ``KeyboardInterrupt`` where a person ended it."""
        import tensorrt as trt

        tools = self._tools
        config = _made("create_builder_config", self._builder.create_builder_config(), tools)
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, tools.workspace)
        config.max_aux_streams = 0
        for profile in profiles:
            self._add_profile(config, profile)
        monitor = make_monitor(tools.progress, tools.cancelling)
        if monitor is not None:
            config.progress_monitor = monitor
        if tools.timing_cache is not None:
            _use_timing_cache(config, tools.timing_cache, tools)
        with _interruptible(tools.cancelling):
            plan = self._builder.build_serialized_network(self._network, config)
        if tools.cancelling.wanted:
            raise KeyboardInterrupt
        if tools.cancelling.problem is not None:
            raise tools.cancelling.problem
        if plan is None:
            refused = tools.account.why() if tools.account is not None else ""
            detail = "; ".join(filter(None, (refused, tools.messages.why())))
            raise DeviceError("build_serialized_network", f"no plan of {self._graph.name}", detail=detail)
        if tools.timing_cache is not None:
            _keep_timing_cache(config, tools.timing_cache)
        return memoryview(plan)

    def _add_profile(self, config: trt.IBuilderConfig, profile: Profile) -> None:
        made = _made("create_optimization_profile", self._builder.create_optimization_profile(), self._tools)
        for name, shapes in profile.inputs.items():
            try:
                made.set_shape(name, shapes.least, shapes.usual, shapes.most)
            except (RuntimeError, ValueError) as problem:  # what the binding raises where TensorRT returns false
                raise DeviceError("set_shape", f"profile {profile.name}, {name}", detail=str(problem)) from None
        if config.add_optimization_profile(made) < 0:
            raise DeviceError(
                "add_optimization_profile", f"profile {profile.name} refused", detail=self._tools.messages.why()
            )


def _made(call: str, thing: _T | None, tools: BuildTools) -> _T:
    """Factories of TensorRT return nothing where they fail."""
    if thing is None:
        raise DeviceError(call, "failed", detail=tools.messages.why())
    return thing


def _sizes(shape: trt.Dims) -> tuple[int, ...]:
    return tuple(int(shape[index]) for index in range(len(shape)))


def _refusal(parser: trt.OnnxParser, tools: BuildTools) -> str:
    """The first error with its node; what else the log said, where the parser has none."""
    if not parser.num_errors:
        return tools.messages.why() or "it does not say why"
    error = parser.get_error(0)
    node = f"{error.node_operator()} {error.node_name()}".strip()
    return " ".join(f"{node + ': ' if node else ''}{error.desc()}".split())


def _use_timing_cache(config: trt.IBuilderConfig, path: Path, tools: BuildTools) -> None:
    """What was timed before is not timed again. A cache of another GPU or release is refused, and begun anew."""
    known = path.read_bytes() if path.exists() else b""
    cache = config.create_timing_cache(known)
    if cache is not None and config.set_timing_cache(cache, ignore_mismatch=False):
        return
    tools.messages.why()
    cache = _made("create_timing_cache", config.create_timing_cache(b""), tools)
    if not config.set_timing_cache(cache, ignore_mismatch=False):
        raise DeviceError("set_timing_cache", "failed", detail=tools.messages.why())


def _keep_timing_cache(config: trt.IBuilderConfig, path: Path) -> None:
    cache = config.get_timing_cache()
    if cache is None:
        return
    part = path.with_name(f"{path.name}.part")
    part.write_bytes(memoryview(cache.serialize()))
    part.replace(path)


@contextmanager
def _interruptible(cancelling: Cancelling) -> Iterator[None]:
    """Ctrl-C ends a build at its next step: raised inside TensorRT, an exception would end the process untidily."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ask(number: int, frame: object) -> None:
        cancelling.wanted = True
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # who asks twice does not want to wait for the step

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
