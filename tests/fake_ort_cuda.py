"""An onnxruntime whose CUDA device is a part of this machine's memory that the host may not touch. Knows no test.

Graphs run on the real CPU provider, over the very addresses that were bound; what is bound to the wrong side, and every
copy between the sides, is seen. It says what our side does, and nothing of what CUDA computes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime

CUDA, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"


class FakeCuda:
    """Put in the place of the module ``onnxruntime``. Public attributes are for tests to read and set."""

    def __init__(self) -> None:
        self.available: Sequence[str] = (CUDA, CPU)
        self.started: Sequence[str] = (CUDA, CPU)
        """What a session says that it has."""
        self.fails: str | None = None
        """What making a session raises."""
        self.sessions: list[SimpleNamespace] = []
        """File name, configuration entries and provider options of each."""
        self.runs: list[tuple[str, str | None]] = []
        """File name and number of the CUDA graph of each run."""
        self.whole_copies = 0
        """Device values that were copied to the host with everything in them."""
        self.to_host: list[int] = []
        """Bytes of each copy by address."""
        self.on_device: list[tuple[int, int]] = []
        """Width and height of each."""
        self.bound: list[tuple[str, str, str]] = []
        """File name, name and device of each binding."""
        self._memory: list[np.ndarray] = []
        self.__version__ = onnxruntime.__version__
        self.RunOptions = _Entries
        self.SessionOptions = _Entries
        self.OrtValue = SimpleNamespace(ortvalue_from_shape_and_type=self._value)

    def get_available_providers(self) -> list[str]:
        return list(self.available)

    def InferenceSession(self, path: str, options: _Entries, providers: Any, enable_fallback: int = 1) -> _Session:
        if self.fails is not None:
            raise RuntimeError(self.fails)
        ((provider, provider_options),) = providers
        assert enable_fallback == 0
        name = path.rsplit("/", 1)[-1]
        made = {"name": name, "provider": provider, "entries": options.entries, "options": provider_options}
        self.sessions.append(SimpleNamespace(**made))
        return _Session(self, path, name, provider)

    def _value(self, shape: list[int], dtype: Any, device: str, number: int) -> _Value:
        assert (device, number) == ("cuda", 0)
        array = np.zeros(shape, dtype)
        self._memory.append(array)
        return _Value(self, array)

    def owns(self, address: int) -> bool:
        """Whether an address is the device's."""
        return any(one.ctypes.data <= address < one.ctypes.data + max(1, one.nbytes) for one in self._memory)

    # The CUDA runtime, as far as copies need it

    def cudaMemcpy(self, target: int, source: int, size: int, kind: int) -> int:
        assert kind == 2 and self.owns(source) and not self.owns(target)
        self.to_host.append(size)
        ctypes.memmove(target, source, size)
        return 0

    def cudaMemcpy2D(
        self, target: int, target_pitch: int, source: int, source_pitch: int, width: int, height: int, kind: int
    ) -> int:
        assert kind == 3 and self.owns(source) and self.owns(target) and width <= min(target_pitch, source_pitch)
        self.on_device.append((width, height))
        for line in range(height):
            ctypes.memmove(target + line * target_pitch, source + line * source_pitch, width)
        return 0

    def cudaDeviceSynchronize(self) -> int:
        return 0

    def cudaGetErrorString(self, status: int) -> bytes:
        return b"out of memory"


class _Entries:
    """Options of a session or a run."""

    def __init__(self) -> None:
        self.entries: dict[str, str] = {}

    def add_session_config_entry(self, key: str, value: str) -> None:
        self.entries[key] = value

    add_run_config_entry = add_session_config_entry


class _Value:
    def __init__(self, cuda: FakeCuda, array: np.ndarray) -> None:
        self._cuda, self._array = cuda, array

    def data_ptr(self) -> int:
        return int(self._array.ctypes.data)

    def numpy(self) -> np.ndarray:
        self._cuda.whole_copies += 1
        return self._array.copy()

    def update_inplace(self, array: np.ndarray) -> None:
        assert array.shape == self._array.shape and array.dtype == self._array.dtype
        self._array[...] = array


class _Session:
    def __init__(self, cuda: FakeCuda, path: str, name: str, provider: str) -> None:
        self._cuda, self.name, self._provider = cuda, name, provider
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 3
        self.real = onnxruntime.InferenceSession(path, options, providers=[CPU])

    def get_providers(self) -> list[str]:
        return list(self._cuda.started) if self._provider == CUDA else [CPU]

    def io_binding(self) -> _Binding:
        return _Binding(self._cuda, self)

    def run_with_iobinding(self, binding: _Binding, options: _Entries | None = None) -> None:
        self._cuda.runs.append((self.name, None if options is None else options.entries["gpu_graph_id"]))
        self.real.run_with_iobinding(binding.real)


class _Binding:
    def __init__(self, cuda: FakeCuda, session: _Session) -> None:
        self._cuda, self._name = cuda, session.name
        self.real = session.real.io_binding()

    def bind_input(self, name: str, device: str, number: int, kind: Any, shape: list[int], address: int) -> None:
        self._bind(self.real.bind_input, name, device, number, kind, shape, address)

    def bind_output(self, name: str, device: str, number: int, kind: Any, shape: list[int], address: int) -> None:
        self._bind(self.real.bind_output, name, device, number, kind, shape, address)

    def _bind(self, bind: Any, name: str, device: str, number: int, kind: Any, shape: list[int], address: int) -> None:
        assert self._cuda.owns(address) == (device == "cuda"), f"{name} is bound to the wrong side"
        self._cuda.bound.append((self._name, name, device))
        bind(name, "cpu", number, kind, shape, address)
