"""A plan file becomes an engine of TensorRT. Knows files, and neither buffers nor contexts."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import BundleError, DeviceError, why
from .engine_record import EngineTensor
from .trt_objects import Account, Messages, make_logger
from .trt_probe import tensor

if TYPE_CHECKING:
    import tensorrt as trt


@dataclass(frozen=True, slots=True)
class Inspected:
    """What a plan says of itself."""

    io: tuple[EngineTensor, ...]
    scratch_bytes: int


def inspect(path: Path) -> Inspected:
    """Loads it on the device and lets it go. Raises ``DeviceError``."""
    import tensorrt as trt

    messages = Messages()
    logger = make_logger(messages)
    runtime = trt.Runtime(logger)
    engine = open_plan(runtime, path, messages, None)
    return Inspected(io_of(engine), int(engine.device_memory_size_v2))


def open_plan(runtime: trt.Runtime, path: Path, messages: Messages, account: Account | None) -> trt.ICudaEngine:
    """From the mapped file: its pages are read once and let go, and no copy of it is ever in the process' own memory.

    Raises ``BundleError`` where the file is not there, and ``DeviceError`` where TensorRT refuses it.
    """
    with _mapped(path) as plan:
        engine = runtime.deserialize_cuda_engine(plan)
    if engine is None:
        refused = "" if account is None else account.why()
        detail = "; ".join(filter(None, (refused, messages.why())))
        raise DeviceError("deserialize_cuda_engine", f"{path.name} refused", detail=detail)
    return engine


def io_of(engine: trt.ICudaEngine) -> tuple[EngineTensor, ...]:
    import tensorrt as trt

    found = []
    for index in range(engine.num_io_tensors):
        name = engine.get_tensor_name(index)
        shape = engine.get_tensor_shape(name)
        sizes = [shape[at] for at in range(len(shape))]
        incoming = engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT
        found.append(tensor(name, incoming=incoming, dtype=engine.get_tensor_dtype(name), shape=sizes))
    return tuple(found)


@contextmanager
def _mapped(path: Path) -> Iterator[mmap.mmap]:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as problem:
        raise BundleError(f"{path} cannot be read: {why(problem)}") from None
    try:
        if os.fstat(handle).st_size == 0:
            raise BundleError(f"{path} is empty")
        with mmap.mmap(handle, 0, access=mmap.ACCESS_READ) as view:
            yield view
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(handle)
