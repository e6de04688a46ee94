"""Which TensorRT, CUDA and GPU are here, and whether plans can be built and run with them. Knows no bundle."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..errors import ConfigError, why
from .cuda import Cuda
from .engine_record import EngineTensor, MachineFacts

OLDEST = (10, 3)
OLDEST_SM = 75
"""Tensor cores that take blocks of four bits; Orin is 87."""
_INSTALL = (
    "on a Jetson it comes with JetPack (sudo apt install tensorrt python3-libnvinfer), and a virtual environment sees "
    "it when made with --system-site-packages"
)


def refuse_missing() -> None:
    """Raises ``ConfigError`` where there is no tensorrt, or one whose libraries are not there."""
    try:
        import tensorrt  # noqa: F401  # whether it is there is all that is asked
    except ModuleNotFoundError:
        raise ConfigError(f"tensorrt is not installed: {_INSTALL}") from None
    except (ImportError, OSError) as problem:
        raise ConfigError(f"tensorrt does not load: {why(problem)}; {_INSTALL}") from None


def probe(cuda: Cuda) -> MachineFacts:
    """Raises ``ConfigError`` and ``DeviceError``."""
    refuse_missing()
    import tensorrt as trt

    facts = cuda.facts()
    return MachineFacts(
        tensorrt=str(trt.__version__),
        sm=facts.sm,
        device=facts.name,
        multiprocessors=facts.multiprocessors,
        cuda=facts.runtime,
        driver=facts.driver,
    )


def refuse_unsupported(machine: MachineFacts) -> None:
    """Raises ``ConfigError``."""
    if _numbers(machine.tensorrt)[:2] < OLDEST:
        raise ConfigError(f"TensorRT {machine.tensorrt} is here, and 10.3 is the oldest that will do (JetPack 6.2)")
    if int(machine.sm) < OLDEST_SM:
        raise ConfigError(f"{machine.device} is SM {machine.sm}, and SM {OLDEST_SM} is the oldest that will do")
    if _numbers(machine.driver)[:1] < _numbers(machine.cuda)[:1]:
        raise ConfigError(
            f"the driver knows CUDA {machine.driver}, and cuda-python is of CUDA {machine.cuda}: install one of "
            f"CUDA {_numbers(machine.driver)[0]} (pip install 'cuda-python<{_numbers(machine.driver)[0] + 1}')"
        )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))


_DTYPES = {
    "FLOAT": "float32", "HALF": "float16", "BF16": "bfloat16", "INT8": "int8", "UINT8": "uint8", "INT32": "int32",
    "INT64": "int64", "BOOL": "bool",
}  # fmt: skip


def dtype_name(dtype: object) -> str:
    """A ``tensorrt.DataType`` as a manifest has it."""
    name = str(dtype).rpartition(".")[2]
    return _DTYPES.get(name, name.lower())


def tensor(name: str, *, incoming: bool, dtype: object, shape: Sequence[int]) -> EngineTensor:
    return EngineTensor(name, "in" if incoming else "out", dtype_name(dtype), tuple(int(size) for size in shape))
