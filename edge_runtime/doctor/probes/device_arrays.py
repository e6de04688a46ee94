"""numpy arrays and times on one stream of the first device. Knows CUDA by ``engines.cuda``; no engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...engines.cuda import Cuda
from ...errors import ConfigError
from ..outcome import Accelerator, Copy
from .telling import Absent, Teller

_WARM, _LEAST_RUNS, _MOST_RUNS = 2, 5, 50


class DeviceArrays:
    """Memory is given back with the process. ``DeviceError`` from every call; ``Absent`` without cuda-python."""

    def __init__(self) -> None:
        try:
            self._cuda = Cuda()
        except ConfigError:
            raise Absent("cuda-python") from None
        self.stream = self._cuda.make_stream()
        self._start, self._end = self._cuda.make_event(timed=True), self._cuda.make_event(timed=True)

    def introduce(self, teller: Teller) -> None:
        facts = self._cuda.facts()
        teller.versions(cuda_driver=facts.driver, cuda_runtime=facts.runtime)
        compute = f"{facts.sm[:-1]}.{facts.sm[-1:]}"
        free = self._cuda.free_bytes()
        teller.accelerator(Accelerator(facts.name, compute, free, multiprocessors=facts.multiprocessors))

    def empty(self, size_bytes: int) -> int:
        """Address of so many bytes."""
        return self._cuda.allocate(max(1, size_bytes))

    def copy_in(self, address: int, array: NDArray[np.generic]) -> None:
        contiguous = np.ascontiguousarray(array)
        self._cuda.to_device(address, contiguous.ctypes.data, contiguous.nbytes, self.stream)
        self._cuda.wait(self.stream)

    def copy_out(self, address: int, shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
        array = np.empty(shape, dtype)
        self._cuda.to_host(array.ctypes.data, address, array.nbytes, self.stream)
        self._cuda.wait(self.stream)
        return array

    def seconds(self, run: Callable[[], object], budget_s: float) -> float:
        """Of what ``run`` puts on the stream, by events: the lower quartile of as many as fit into ``budget_s``."""
        for _ in range(_WARM):
            run()
        found: list[float] = []
        while len(found) < _LEAST_RUNS or (len(found) < _MOST_RUNS and sum(found) < budget_s):
            self._cuda.record(self._start, self.stream)
            run()
            self._cuda.record(self._end, self.stream)
            self._cuda.wait_event(self._end)
            found.append(1e-3 * self._cuda.elapsed_ms(self._start, self._end))
        return sorted(found)[len(found) // 4]

    def copied(self, size_bytes: int, budget_s: float) -> Copy:
        source, target = self.empty(size_bytes), self.empty(size_bytes)
        seconds = self.seconds(lambda: self._cuda.copy(target, source, size_bytes, self.stream), budget_s)
        self._cuda.wait(self.stream)
        for address in (source, target):
            self._cuda.free(address)
        return Copy("device to device", size_bytes, seconds)
