"""``tensorrt`` without TensorRT: the classes that our code uses, held to the surface of a real release.

What a release lacks cannot be called here: a class has no member that its surface has not, a call takes what the real
one takes, a property that cannot be set is not set. A plan is a few lines that name their ONNX file, and a run is
onnxruntime over the buffers whose addresses it was told, when the fake stream comes to it (``fake_cuda``). Refuses what
the real one refuses: shapes outside of the profile, addresses that are not aligned, a context without scratch, another
release's plan.
"""

from __future__ import annotations

import ctypes
import enum
import functools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from fake_cuda import FakeRuntime
from trt_surface import Member, surface

_MAGIC = b"a plan of the fake TensorRT\n"
_SCRATCH = 4096
_WEIGHTS = 10_000
_ALIGNED = 256
_ONNX = {1: "FLOAT", 10: "HALF", 6: "INT32", 7: "INT64", 9: "BOOL", 3: "INT8"}
_NUMPY = {"FLOAT": np.float32, "HALF": np.float16, "INT32": np.int32, "INT64": np.int64, "BOOL": np.bool_}


class Surfaced:
    """Base of all classes: members are those of the surface, and no others."""

    _members: dict[str, Member]

    def __init_subclass__(cls, of: str = "", api: dict[str, dict[str, Member]] | None = None, **more: Any) -> None:
        super().__init_subclass__(**more)
        if api is None:
            return  # of our code's own: it may have what it likes
        cls._members = members = api[of]
        for name, value in list(vars(cls).items()):
            if name.startswith("_") and name != "__init__":
                continue
            if name == "__init__" and "__init__" not in members:
                continue  # made by another class
            if name not in members:
                raise AssertionError(f"{of}.{name} is not in the surface")
            if members[name].kind == "method":
                setattr(cls, name, _checked(of, name, members[name], value))

    def __getattr__(self, name: str) -> Any:
        if name in type(self)._members:
            raise NotImplementedError(f"the fake lacks {type(self).__name__}.{name}")
        raise AttributeError(f"{type(self).__name__} has no {name}")

    def __setattr__(self, name: str, value: Any) -> None:
        member = type(self)._members.get(name)
        own = name.startswith("_") or _ours(type(self))
        if not own and (member is None or member.kind != "settable"):
            raise AttributeError(f"{type(self).__name__}.{name} cannot be set")
        object.__setattr__(self, name, value)


def _ours(kind: type) -> bool:
    return kind.__module__ != __name__


def _checked(of: str, name: str, member: Member, function: Any) -> Any:
    @functools.wraps(function)
    def call(self: Any, *arguments: Any, **named: Any) -> Any:
        if not any(way.takes(len(arguments), set(named)) for way in member.ways):
            raise TypeError(f"{of}.{name}: incompatible function arguments")
        return function(self, *arguments, **named)

    return call


class _Memory(bytes):
    """IHostMemory: has a buffer, and its size."""

    @property
    def nbytes(self) -> int:
        return len(self)


class FakeTensorRT(SimpleNamespace):
    """Stands for the module. Public attributes below are for tests to read and set."""

    failures: dict[str, int]
    """Call -> how often it still succeeds; then it says no, as the real one does."""

    def __init__(self, cuda: FakeRuntime, version: str = "10.3.0") -> None:
        super().__init__()
        self.__version__ = version
        self.failures = {}
        self.refuses: set[str] = set()
        """Operators that the parser does not take."""
        self.calls: list[str] = []
        self.built: list[str] = []
        """Files of the graphs that were built."""
        self.during_build = lambda: None
        self.builder_wants = 50_000
        """Bytes that a build asks the allocator for."""
        self.scratch = _SCRATCH
        for name, members in surface(version).items():
            values = {member: at for at, (member, of) in enumerate(members.items()) if of.kind == "value"}
            if values and name not in ("ILogger", "Logger"):
                setattr(self, name, enum.Enum(name, values, type=_Enumeration))
        _define_log(self, surface(version))
        _define_build(self, surface(version), cuda)
        _define_run(self, surface(version), cuda)

    def fails(self, call: str) -> bool:
        self.calls.append(call)
        left = self.failures.get(call)
        if left is None:
            return False
        self.failures[call] = left - 1
        return left <= 0


class _Enumeration:
    def __int__(self) -> int:
        return int(self.value)  # type: ignore[attr-defined]


def _define_log(trt: FakeTensorRT, api: Any) -> None:
    severity = enum.Enum("Severity", ("INTERNAL_ERROR", "ERROR", "WARNING", "INFO", "VERBOSE"))

    class ILogger(Surfaced, of="ILogger", api=api):
        INTERNAL_ERROR, ERROR, WARNING = severity.INTERNAL_ERROR, severity.ERROR, severity.WARNING
        Severity = severity

        def __init__(self) -> None: ...

        def log(self, severity: Any, msg: str) -> None:
            raise AssertionError("to be overridden")

    class IProgressMonitor(Surfaced, of="IProgressMonitor", api=api):
        def __init__(self) -> None: ...

    class IGpuAllocator(Surfaced, of="IGpuAllocator", api=api):
        def __init__(self) -> None: ...

    trt.ILogger, trt.IProgressMonitor, trt.IGpuAllocator = ILogger, IProgressMonitor, IGpuAllocator


def _define_build(trt: FakeTensorRT, api: Any, cuda: FakeRuntime) -> None:
    class ITensor(Surfaced, of="ITensor", api=api):
        def __init__(self, name: str, dtype: Any, shape: Sequence[int]) -> None:
            self._name, self._dtype, self._shape = name, dtype, Dims(shape)

        name = property(lambda self: self._name)
        dtype = property(lambda self: self._dtype)
        shape = property(lambda self: self._shape)

    class Dims(Surfaced, of="Dims", api=api):
        def __init__(self, shape: Sequence[int] = ()) -> None:
            self._sizes = tuple(shape)

        def __len__(self) -> int:
            return len(self._sizes)

        def __getitem__(self, at: int) -> int:
            return self._sizes[at]

    class INetworkDefinition(Surfaced, of="INetworkDefinition", api=api):
        def __init__(self) -> None:
            self._io: dict[str, list[Any]] = {"in": [], "out": []}
            self._graph = ""

        num_inputs = property(lambda self: len(self._io["in"]))
        num_outputs = property(lambda self: len(self._io["out"]))

        def get_input(self, index: int) -> Any:
            return self._io["in"][index]

        def get_output(self, index: int) -> Any:
            return self._io["out"][index]

    class IOptimizationProfile(Surfaced, of="IOptimizationProfile", api=api):
        def __init__(self) -> None:
            self._shapes: dict[str, list[list[int]]] = {}

        def set_shape(self, input: str, min: Any, opt: Any, max: Any) -> None:
            shapes = [list(min), list(opt), list(max)]
            if trt.fails("set_shape") or not all(a <= b <= c for a, b, c in zip(*shapes, strict=True)):
                raise RuntimeError("Shape provided for min is inconsistent with other shapes.")
            self._shapes[input] = shapes

    class ITimingCache(Surfaced, of="ITimingCache", api=api):
        def __init__(self, data: bytes) -> None:
            self._data = data

        def serialize(self) -> Any:
            return _Memory(self._data)

    class IBuilderConfig(Surfaced, of="IBuilderConfig", api=api):
        max_aux_streams = -1
        progress_monitor = None

        def __init__(self) -> None:
            self._profiles: list[Any] = []
            self._limits: dict[Any, int] = {}
            self._cache: Any = None

        def set_memory_pool_limit(self, pool: Any, pool_size: int) -> None:
            self._limits[pool] = pool_size

        def add_optimization_profile(self, profile: Any) -> int:
            if trt.fails("add_optimization_profile"):
                return -1
            self._profiles.append(profile)
            return len(self._profiles) - 1

        def create_timing_cache(self, serialized_timing_cache: bytes) -> Any:
            return None if trt.fails("create_timing_cache") else ITimingCache(bytes(serialized_timing_cache))

        def set_timing_cache(self, cache: Any, ignore_mismatch: bool) -> bool:
            known = cache._data.startswith(f"timed by {trt.__version__}".encode()) or not cache._data
            if known:
                self._cache = cache
            return known and not trt.fails("set_timing_cache")

        def get_timing_cache(self) -> Any:
            return self._cache

    class Builder(Surfaced, of="Builder", api=api):
        gpu_allocator = None

        def __init__(self, logger: Any) -> None:
            self._logger = logger

        def create_network(self, flags: int = 0) -> Any:
            assert flags == 1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED), "not strongly typed"
            return None if trt.fails("create_network") else INetworkDefinition()

        def create_builder_config(self) -> Any:
            return None if trt.fails("create_builder_config") else IBuilderConfig()

        def create_optimization_profile(self) -> Any:
            return IOptimizationProfile()

        def build_serialized_network(self, network: Any, config: Any) -> Any:
            assert config.max_aux_streams == 0 and trt.MemoryPoolType.WORKSPACE in config._limits
            trt.during_build()
            if not _goes_on(config.progress_monitor):
                return None
            if self.gpu_allocator is not None and trt.builder_wants:
                address = self.gpu_allocator.allocate(trt.builder_wants, _ALIGNED, 0)
                if not address:
                    self._logger.log(trt.ILogger.ERROR, "out of memory in a tactic")
                    return None
                assert self.gpu_allocator.deallocate(address)
            if trt.fails("build_serialized_network"):
                self._logger.log(trt.ILogger.ERROR, "no implementation of a node")
                return None
            for tensor in network._io["in"]:
                open_sizes = -1 in tensor._shape._sizes
                assert not open_sizes or all(tensor.name in one._shapes for one in config._profiles), tensor.name
            if config._cache is not None:
                config._cache._data = f"timed by {trt.__version__}: {len(trt.built)}".encode()
            trt.built.append(Path(network._graph).name)
            return _Memory(_MAGIC + json.dumps(_plan(trt, network, config)).encode())

    class ParserError(Surfaced, of="ParserError", api=api):
        def __init__(self, operator: str, name: str) -> None:
            self._node = (operator, name)

        def desc(self) -> str:
            return "unsupported by this\nrelease"

        def node_operator(self) -> str:
            return self._node[0]

        def node_name(self) -> str:
            return self._node[1]

    class OnnxParser(Surfaced, of="OnnxParser", api=api):
        def __init__(self, network: Any, logger: Any) -> None:
            self._network, self._logger, self._errors = network, logger, []  # type: ignore[var-annotated]

        num_errors = property(lambda self: len(self._errors))

        def parse_from_file(self, model: str) -> bool:
            import onnx

            graph = onnx.load(model, load_external_data=False).graph
            self._errors = [ParserError(one.op_type, one.name) for one in graph.node if one.op_type in trt.refuses]
            self._network._graph = model
            for way, values in (("in", graph.input), ("out", graph.output)):
                for value in values:
                    kind = value.type.tensor_type
                    shape = [one.dim_value if one.HasField("dim_value") else -1 for one in kind.shape.dim]
                    dtype = trt.DataType[_ONNX[kind.elem_type]]
                    self._network._io[way].append(ITensor(value.name, dtype, shape))
            return not self._errors

        def get_error(self, index: int) -> Any:
            return self._errors[index]

    trt.Builder, trt.OnnxParser, trt.Dims = Builder, OnnxParser, Dims


def _goes_on(monitor: Any) -> bool:
    """Two phases, one in the other; whether nobody ended them."""
    if monitor is None:
        return True
    monitor.phase_start("Building engine", None, 2)
    monitor.phase_start("Timing", "Building engine", 3)
    going = [monitor.step_complete("Timing", step) for step in range(3)]
    monitor.phase_finish("Timing")
    going += [monitor.step_complete("Building engine", step) for step in range(2)]
    monitor.phase_finish("Building engine")
    return all(going)


def _plan(trt: FakeTensorRT, network: Any, config: Any) -> dict[str, Any]:
    io = [(one.name, way, one.dtype.name, list(one._shape._sizes)) for way in ("in", "out") for one in network._io[way]]
    return {"tensorrt": trt.__version__, "graph": network._graph, "io": io,
            "profiles": [one._shapes for one in config._profiles], "scratch": trt.scratch}  # fmt: skip


@functools.cache
def _session(path: str) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def _define_run(trt: FakeTensorRT, api: Any, cuda: FakeRuntime) -> None:
    class IExecutionContext(Surfaced, of="IExecutionContext", api=api):
        def __init__(self, engine: Any) -> None:
            self._engine, self._profile = engine, 0 if not engine._contexts else -1
            engine._contexts += 1
            self._shapes: dict[str, tuple[int, ...]] = {}
            self._addresses: dict[str, int] = {}
            self._scratch = (0, 0)
            self._settled = False
            self._epoch = 0

        active_optimization_profile = property(lambda self: self._profile)

        def set_optimization_profile_async(self, profile_index: int, stream_handle: int) -> bool:
            if trt.fails("set_optimization_profile_async"):
                raise RuntimeError("Error in set optimization profile async.")
            self._profile, self._shapes = profile_index, {}
            return True

        def set_device_memory(self, memory: int, size: int) -> None:
            self._changed()
            self._scratch = (memory, size)

        def set_input_shape(self, name: str, shape: Sequence[int]) -> bool:
            least, _, most = self._engine._plan["profiles"][self._profile][name]
            fits = all(a <= b <= c for a, b, c in zip(least, shape, most, strict=True))
            if trt.fails("set_input_shape") or not fits:
                self._engine._log(f"{name}: {tuple(shape)} is outside of the profile")
                return False
            self._changed()
            self._shapes[name] = tuple(shape)
            return True

        def set_tensor_address(self, name: str, memory: int) -> bool:
            if name not in self._engine._io or memory % _ALIGNED or trt.fails("set_tensor_address"):
                return False
            self._changed()
            self._addresses[name] = memory
            return True

        def infer_shapes(self) -> list[str]:
            missing = [name for name in self._engine._plan["profiles"][self._profile] if name not in self._shapes]
            return ["positions"] if trt.fails("infer_shapes") else missing

        def execute_async_v3(self, stream_handle: int) -> bool:
            memory, size = self._scratch
            wanted = self._engine._plan["scratch"]
            enough = not wanted or (size >= wanted and cuda.inside(cuda.device, memory, size))
            known = set(self._addresses) == set(self._engine._io)
            if trt.fails("execute_async_v3") or not enough or not known:
                self._engine._log("the context is not ready" if not (enough and known) else "a kernel failed")
                return False
            if cuda.capturing(stream_handle) and not self._settled:
                cuda.spoil_capture(stream_handle)  # what was put off until the first run cannot be captured
                return False
            self._settled = True
            epoch, shapes, addresses = self._epoch, dict(self._shapes), dict(self._addresses)
            captured = cuda.capturing(stream_handle)

            def work() -> None:
                assert not captured or self._epoch == epoch, "a graph of a context that was bound anew"
                self._engine._run(shapes, addresses)
                if size:
                    ctypes.memset(memory, 0x77, size)

            cuda.ask(stream_handle, work)
            return True

        def _changed(self) -> None:
            self._settled = False
            self._epoch += 1

    class ICudaEngine(Surfaced, of="ICudaEngine", api=api):
        def __init__(self, plan: dict[str, Any], logger: Any, allocator: Any) -> None:
            self._plan, self._logger, self._allocator, self._contexts = plan, logger, allocator, 0
            self._io = {name: (way, dtype, shape) for name, way, dtype, shape in plan["io"]}
            self._weights = allocator.allocate(_WEIGHTS, _ALIGNED, 0) if allocator is not None else 0

        def __del__(self) -> None:
            if self._allocator is not None and self._weights:
                assert self._allocator.deallocate(self._weights)

        num_io_tensors = property(lambda self: len(self._io))
        device_memory_size_v2 = property(lambda self: self._plan["scratch"])

        def get_tensor_name(self, index: int) -> str:
            return list(self._io)[index]

        def get_tensor_mode(self, name: str) -> Any:
            return trt.TensorIOMode.INPUT if self._io[name][0] == "in" else trt.TensorIOMode.OUTPUT

        def get_tensor_shape(self, name: str) -> Any:
            return trt.Dims(self._io[name][2])

        def get_tensor_dtype(self, name: str) -> Any:
            return trt.DataType[self._io[name][1]]

        def create_execution_context(self, strategy: Any = None) -> Any:
            assert strategy == trt.ExecutionContextAllocationStrategy.USER_MANAGED
            return None if trt.fails("create_execution_context") else IExecutionContext(self)

        def _log(self, text: str) -> None:
            self._logger.log(trt.ILogger.ERROR, text)

        def _run(self, shapes: dict[str, tuple[int, ...]], addresses: dict[str, int]) -> None:
            inputs = {}
            for name, (way, dtype, shape) in self._io.items():
                if way == "in":
                    sizes = shapes.get(name, tuple(shape))
                    inputs[name] = _array(cuda, addresses[name], sizes, _NUMPY[dtype]).copy()
            session = _session(self._plan["graph"])
            names = [one.name for one in session.get_outputs()]
            for name, value in zip(names, session.run(names, inputs), strict=True):
                _array(cuda, addresses[name], value.shape, value.dtype)[...] = value

    class Runtime(Surfaced, of="Runtime", api=api):
        gpu_allocator = None

        def __init__(self, logger: Any) -> None:
            self._logger = logger

        def deserialize_cuda_engine(self, serialized_engine: Any) -> Any:
            data = bytes(serialized_engine)
            if trt.fails("deserialize_cuda_engine") or not data.startswith(_MAGIC):
                self._logger.log(trt.ILogger.ERROR, "Serialization assertion failed")
                return None
            plan = json.loads(data.removeprefix(_MAGIC))
            if plan["tensorrt"] != trt.__version__:
                self._logger.log(trt.ILogger.ERROR, "Version tag does not match")
                return None
            engine = ICudaEngine(plan, self._logger, self.gpu_allocator)
            if self.gpu_allocator is not None and not engine._weights:
                self._logger.log(trt.ILogger.ERROR, "out of memory")
                return None
            return engine

    trt.Runtime = Runtime


def _array(cuda: FakeRuntime, address: int, shape: Sequence[int], dtype: Any) -> Any:
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    assert cuda.inside(cuda.device, address, size), "an address of nobody"
    return np.frombuffer((ctypes.c_uint8 * size).from_address(address), dtype).reshape(tuple(shape))


def installed(monkeypatch: Any, version: str = "10.3.0", **facts: Any) -> Iterator[tuple[FakeTensorRT, FakeRuntime]]:
    """Both in the place of the real ones, for a fixture to yield from."""
    cuda = FakeRuntime(**facts)
    trt = FakeTensorRT(cuda, version)
    put_in_place(monkeypatch, trt, cuda)
    yield trt, cuda


def put_in_place(monkeypatch: Any, trt: FakeTensorRT, cuda: FakeRuntime) -> None:
    package = SimpleNamespace(bindings=SimpleNamespace(runtime=cuda))
    for name, module in (("tensorrt", trt), ("cuda", package), ("cuda.bindings", package.bindings),
                         ("cuda.bindings.runtime", cuda)):  # fmt: skip
        monkeypatch.setitem(__import__("sys").modules, name, module)
