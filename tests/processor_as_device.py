"""``tensorrt`` and cuda-python whose device is this processor: networks run in onnxruntime, addresses are the host's.

So that what a probe builds is really parsed, bound by shape and address, run and read back. What is missing is what
the probe does not use; what is here has the names of the real ones (a test holds them against the recorded surface).
"""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar
from unittest.mock import patch

import numpy as np
import onnxruntime

Shape = tuple[int, ...]


class Faults:
    """What is to go wrong."""

    parse: ClassVar[bool] = False
    build: ClassVar[bool] = False
    deserialize: ClassVar[bool] = False
    execute: ClassVar[bool] = False
    device: ClassVar[int] = 0
    """Status of every call of CUDA's runtime."""
    nan: ClassVar[bool] = False


def session_of(graph: bytes, folder: str | None) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    if folder is not None:
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", folder)
    return onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])


class ILogger:
    class Severity(IntEnum):
        ERROR = 1

    ERROR = Severity.ERROR


class Logger(ILogger):
    def __init__(self, min_severity: Any = None) -> None:
        assert min_severity == ILogger.ERROR


class NetworkDefinitionCreationFlag(IntEnum):
    STRONGLY_TYPED = 1


class MemoryPoolType(IntEnum):
    WORKSPACE = 0


class INetworkDefinition:
    def __init__(self, flags: int) -> None:
        assert flags == 1 << NetworkDefinitionCreationFlag.STRONGLY_TYPED
        self._graph, self._folder = b"", None


class ParserError:
    def desc(self) -> str:
        return "No importer registered for op: Odd"


class OnnxParser:
    def __init__(self, network: INetworkDefinition, logger: ILogger) -> None:
        self._network = network

    def parse(self, model: bytes, path: str | None = None) -> bool:
        if Faults.parse:
            return False
        self._network._graph = bytes(model)
        self._network._folder = None if path is None else path.rpartition("/")[0]  # type: ignore[assignment]
        return True

    @property
    def num_errors(self) -> int:
        return 1

    def get_error(self, index: int) -> ParserError:
        assert index == 0
        return ParserError()


class IOptimizationProfile:
    def __init__(self) -> None:
        self._shapes: dict[str, tuple[Shape, Shape, Shape]] = {}

    def set_shape(self, input: str, min: Shape, opt: Shape, max: Shape) -> None:
        assert all(low <= usual <= high for low, usual, high in zip(min, opt, max, strict=True))
        self._shapes[input] = (min, opt, max)


class IBuilderConfig:
    def __init__(self) -> None:
        self._profile: IOptimizationProfile | None = None

    def set_memory_pool_limit(self, pool: MemoryPoolType, pool_size: int) -> None:
        assert pool == MemoryPoolType.WORKSPACE and pool_size > 0

    def add_optimization_profile(self, profile: IOptimizationProfile) -> int:
        self._profile = profile
        return 0


class Builder:
    def __init__(self, logger: ILogger) -> None:
        assert isinstance(logger, ILogger)

    def create_network(self, flags: int = 0) -> INetworkDefinition:
        return INetworkDefinition(flags)

    def create_builder_config(self) -> IBuilderConfig:
        return IBuilderConfig()

    def create_optimization_profile(self) -> IOptimizationProfile:
        return IOptimizationProfile()

    def build_serialized_network(self, network: INetworkDefinition, config: IBuilderConfig) -> Any:
        if Faults.build:
            return None
        session = session_of(network._graph, network._folder)
        assert config._profile is not None
        dynamic = {one.name for one in session.get_inputs() if any(not isinstance(size, int) for size in one.shape)}
        assert dynamic <= set(config._profile._shapes)
        # A strongly typed network says the type of every output.
        return SimpleNamespace(session=session, shapes=config._profile._shapes)


class IExecutionContext:
    def __init__(self, plan: Any) -> None:
        self._plan, self._addresses, self._given = plan, dict[str, int](), dict[str, Shape]()

    def set_tensor_address(self, name: str, memory: int) -> bool:
        self._addresses[name] = memory
        return True

    def set_input_shape(self, name: str, shape: Shape) -> bool:
        low, _, high = self._plan.shapes[name]
        self._given[name] = tuple(shape)
        return all(a <= size <= b for a, size, b in zip(low, shape, high, strict=True))

    def infer_shapes(self) -> list[str]:
        return [one.name for one in self._plan.session.get_inputs() if one.name not in self._given]

    def execute_async_v3(self, stream_handle: int) -> bool:
        assert stream_handle == STREAM
        if Faults.execute:
            return False
        session = self._plan.session
        feeds = {one.name: view(self._addresses[one.name], self._given[one.name], DTYPES[one.type])
                 for one in session.get_inputs()}  # fmt: skip
        for one, values in zip(session.get_outputs(), session.run(None, feeds), strict=True):
            values = values * np.nan if Faults.nan else values
            view(self._addresses[one.name], values.shape, values.dtype.name)[...] = values
        return True


class ICudaEngine:
    def __init__(self, plan: Any) -> None:
        self._plan = plan

    def create_execution_context(self) -> IExecutionContext:
        return IExecutionContext(self._plan)


class Runtime:
    def __init__(self, logger: ILogger) -> None:
        assert isinstance(logger, ILogger)

    def deserialize_cuda_engine(self, serialized_engine: Any) -> ICudaEngine | None:
        return None if Faults.deserialize else ICudaEngine(serialized_engine)


TENSORRT = (Builder, IBuilderConfig, ICudaEngine, IExecutionContext, INetworkDefinition, IOptimizationProfile, Logger)
TENSORRT += (MemoryPoolType, NetworkDefinitionCreationFlag, OnnxParser, ParserError, Runtime)
DTYPES = {"tensor(float)": "float32", "tensor(float16)": "float16", "tensor(int32)": "int32"}
STREAM = 77
_SIZES: dict[int, Any] = {}


def view(address: int, shape: Shape, dtype: str) -> np.ndarray[Any, Any]:
    """What lies at an address; more than was allocated there is a fault of the test."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    assert size <= ctypes.sizeof(_SIZES[address]), f"{size} bytes of {ctypes.sizeof(_SIZES[address])}"
    return np.frombuffer(_SIZES[address], np.uint8, size).view(dtype).reshape(shape)


class Status(IntEnum):
    cudaSuccess = 0
    cudaErrorIllegalAddress = 700


class CudaRuntime:
    """Of the calls that are made, as functions that hand out a tuple."""

    cudaStreamNonBlocking, cudaEventDisableTiming, cudaHostAllocDefault = 1, 2, 0
    cudaMemcpyKind = SimpleNamespace(
        cudaMemcpyHostToDevice=1, cudaMemcpyDeviceToHost=2, cudaMemcpyDeviceToDevice=3
    )  # fmt: skip
    cudaDeviceAttr = SimpleNamespace(
        cudaDevAttrComputeCapabilityMajor=75, cudaDevAttrComputeCapabilityMinor=76, cudaDevAttrMultiProcessorCount=16,
        cudaDevAttrIntegrated=18,
    )  # fmt: skip

    def __init__(self) -> None:
        self._events: dict[int, float] = {}

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cuda"):
            raise AttributeError(name)
        return lambda *given: (Status(Faults.device), *self._answer(name, given))

    def cudaGetErrorName(self, status: Status) -> Any:
        return Status.cudaSuccess, status.name.encode()

    def cudaGetErrorString(self, status: Status) -> Any:
        return Status.cudaSuccess, b"an illegal memory access was encountered"

    def _answer(self, name: str, given: tuple[Any, ...]) -> tuple[Any, ...]:
        simple: dict[str, tuple[Any, ...]] = {
            "cudaGetDeviceCount": (1,), "cudaSetDevice": (), "cudaStreamCreateWithFlags": (STREAM,),
            "cudaStreamSynchronize": (), "cudaEventSynchronize": (), "cudaDriverGetVersion": (12060,),
            "cudaRuntimeGetVersion": (12060,), "cudaMemGetInfo": (5 << 30, 7 << 30),
            "cudaGetDeviceProperties": (SimpleNamespace(name=b"Orin\0"),),
        }  # fmt: skip
        if name in simple:
            return simple[name]
        if name == "cudaDeviceGetAttribute":
            return ({75: 8, 76: 7, 16: 8, 18: 1}[given[0]],)
        if name == "cudaMalloc":
            buffer = (ctypes.c_uint8 * given[0])()
            _SIZES[ctypes.addressof(buffer)] = buffer
            return (ctypes.addressof(buffer),)
        if name == "cudaFree":
            del _SIZES[given[0]]
            return ()
        if name == "cudaMemcpyAsync":
            assert given[4] == STREAM
            ctypes.memmove(*given[:3])
            return ()
        if name == "cudaEventCreateWithFlags":
            self._events[len(self._events) + 1] = 0.0
            return (len(self._events),)
        if name == "cudaEventRecord":
            self._events[given[0]] = time.perf_counter()
            return ()
        assert name == "cudaEventElapsedTime", name
        return (1e3 * (self._events[given[1]] - self._events[given[0]]),)


@contextmanager
def processor_as_device(**faults: Any) -> Iterator[None]:
    tensorrt = ModuleType("tensorrt")
    for one in TENSORRT:
        setattr(tensorrt, one.__name__, one)
    tensorrt.__version__ = "10.3.0"  # type: ignore[attr-defined]
    runtime: Any = CudaRuntime()
    cuda, bindings = ModuleType("cuda"), ModuleType("cuda.bindings")
    bindings.runtime = runtime  # type: ignore[attr-defined]
    modules = {"tensorrt": tensorrt, "cuda": cuda, "cuda.bindings": bindings, "cuda.bindings.runtime": runtime}
    with patch.dict("sys.modules", modules), patch.multiple(Faults, **faults) if faults else patch.dict({}):
        try:
            yield
        finally:
            _SIZES.clear()
