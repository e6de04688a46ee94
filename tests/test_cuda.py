"""CUDA behind typed calls, over the fake runtime: what is told of a GPU, how failures read, that copies land."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import pytest
from fake_cuda import FakeRuntime
from fake_tensorrt import installed

from edge_runtime.engines.cuda import Cuda, GpuFacts
from edge_runtime.errors import DeviceError, EngineError


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRuntime]:
    for _, cuda in installed(monkeypatch):
        yield cuda


def test_facts_of_the_gpu(runtime: FakeRuntime) -> None:
    assert Cuda().facts() == GpuFacts("Orin", "87", 8, True, "12.6", "12.6")
    runtime.facts.sm, runtime.facts.runtime, runtime.facts.driver = "120", 13020, 13030
    facts = Cuda().facts()
    assert (facts.sm, facts.runtime, facts.driver) == ("120", "13.2", "13.3")
    assert Cuda().free_bytes() == runtime.free


def test_a_status_is_told_with_call_name_and_number(runtime: FakeRuntime) -> None:
    cuda = Cuda()
    runtime.failures = {"cudaMalloc": (0, "cudaErrorMemoryAllocation")}
    with pytest.raises(DeviceError) as problem:
        cuda.allocate(100)
    assert isinstance(problem.value, EngineError)
    told = problem.value
    assert (told.call, told.name, told.code) == ("cudaMalloc", "cudaErrorMemoryAllocation", 2)
    assert str(problem.value) == "cudaMalloc: cudaErrorMemoryAllocation (2): as a test wants it"


def test_lines_are_copied_where_they_belong(runtime: FakeRuntime) -> None:
    cuda = Cuda()
    stream, host = cuda.make_stream(), cuda.allocate_pinned(64)
    source, target = cuda.allocate(64), cuda.allocate(64)
    ctypes.memmove(host, bytes(range(64)), 64)
    cuda.to_device(source, host, 64, stream)
    cuda.zero(target, 64, stream)
    cuda.copy_lines(target + 8, 16, source, 32, 4, 2, stream)
    cuda.to_host(host, target, 64, stream)
    cuda.wait(stream)
    found = ctypes.string_at(host, 64)
    wanted = bytearray(64)
    wanted[8:12], wanted[24:28] = bytes(range(4)), bytes(range(32, 36))
    assert found == bytes(wanted)
    for address in (source, target):
        cuda.free(address)
    cuda.free_pinned(host)
    cuda.end_stream(stream)
    assert set(runtime.held.values()) == {0}


def test_a_capture_is_launched_again_or_abandoned(runtime: FakeRuntime) -> None:
    cuda = Cuda()
    stream, host, device = cuda.make_stream(), cuda.allocate_pinned(4), cuda.allocate(4)
    ctypes.memset(host, 7, 4)
    cuda.begin_capture(stream)
    cuda.to_device(device, host, 4, stream)
    graph = cuda.end_capture(stream)
    cuda.wait(stream)
    assert ctypes.string_at(device, 4) != bytes([7] * 4)  # captured, not run
    cuda.launch(graph, stream)
    cuda.wait(stream)
    assert ctypes.string_at(device, 4) == bytes([7] * 4)
    cuda.end_graph(graph)
    cuda.begin_capture(stream)
    with pytest.raises(DeviceError, match="cudaErrorStreamCaptureUnsupported"):
        cuda.wait(stream)
    cuda.abandon_capture(stream)
    cuda.wait(stream)
    assert runtime.held["graphs"] == runtime.held["executables"] == 0


def test_events_are_waited_for_and_timed(runtime: FakeRuntime) -> None:
    cuda = Cuda()
    stream, first, last = cuda.make_stream(), cuda.make_event(timed=True), cuda.make_event(timed=True)
    for event in (first, last):
        cuda.record(event, stream)
    cuda.wait_event(last)
    assert cuda.elapsed_ms(first, last) == 1.0
    for event in (first, last):
        cuda.end_event(event)
    assert runtime.held["events"] == 0
