"""Graphs of a bundle as onnxruntime sessions. Knows files and options, no buffer and no step."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..bundle import Model
from ..cores import chosen_threads
from ..errors import BundleError, ConfigError, first_line
from ..quiet import keep_to_ourselves
from .even_rows import WITHOUT_BLOCKS
from .ort_settings import OrtSettings

if TYPE_CHECKING:
    import onnxruntime

_PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}


@dataclass(frozen=True, slots=True)
class Sessions:
    """Of one model. A file that the target has loaded already is the target's session, weights and all."""

    stem: onnxruntime.InferenceSession | None
    body: onnxruntime.InferenceSession
    head: onnxruntime.InferenceSession
    readout: onnxruntime.InferenceSession
    lookup: onnxruntime.InferenceSession | None
    by_file: dict[str, onnxruntime.InferenceSession]


def open_sessions(
    directory: Path,
    model: Model,
    settings: OrtSettings,
    table: Mapping[str, onnxruntime.OrtValue],
    target: Sessions | None,
) -> Sessions:
    by_file: dict[str, onnxruntime.InferenceSession] = {}
    narrow = model.narrow if settings.device == "cpu" and looks_one_further() else {}

    def session(
        name: str,
        where: OrtSettings = settings,
        shared: Mapping[str, onnxruntime.OrtValue] | None = None,
        replayed: bool = False,
        of_logits: bool = False,
    ) -> onnxruntime.InferenceSession:
        name = narrow.get(name, name)
        found = None if target is None else target.by_file.get(name)
        if found is None:
            found = make_session(directory / name, where, shared, replayed=replayed, of_logits=of_logits)
        by_file[name] = found
        return found

    screen = model.screen if settings.head == "screened" else None
    # The head first: its table is the largest mapping, and peak memory is what sinks an 8 GB board.
    head = session(screen.head if screen else model.head, replayed=True, of_logits=True)
    lanes = model.lanes if settings.lanes else None
    stem = None if model.stem is None or lanes else session(model.stem, shared=table, replayed=True)
    body = session(lanes.graph if lanes else model.body, shared=table, replayed=True)
    readout = session(screen.readout if screen else model.readout, shared=table if screen else {}, of_logits=True)
    # What is only looked up stays on the host, whatever the device.
    lookup = None if model.lookup is None else session(model.lookup.graph, replace(settings, device="cpu"))
    return Sessions(stem, body, head, readout, lookup, by_file)


def looks_one_further() -> bool:
    """Whether a window of n on the CPU is n tokens beside the row itself, as before 1.24 (measured with 1.23.2)."""
    keep_to_ourselves()
    import onnxruntime

    major, minor = onnxruntime.__version__.split(".")[:2]
    return (int(major), int(minor)) < (1, 24)


def refuse_missing_provider(device: str) -> None:
    keep_to_ourselves()
    import onnxruntime

    if _PROVIDERS[device] not in onnxruntime.get_available_providers():
        # Never fall back in silence: a model that was meant for the GPU must not crawl on the CPU.
        raise ConfigError(f"device {device!r}: this onnxruntime has no {_PROVIDERS[device]}")


def map_table(directory: Path, model: Model, settings: OrtSettings) -> dict[str, onnxruntime.OrtValue]:
    """The embedding, mapped once: left to themselves, two sessions map it twice, and both count.

    With caches that are paid for at load it is read then too: its rows would come in one by one, in the first minutes.
    """
    keep_to_ourselves()
    import onnxruntime

    values = {}
    for tensor in model.table:
        try:
            mapped = np.memmap(directory / tensor.file, tensor.dtype, "r", tensor.offset, tensor.shape)
        except (OSError, ValueError, OverflowError) as problem:
            raise BundleError(f"{directory / tensor.file}: {tensor.name} cannot be mapped: {problem}") from None
        if settings.cache == "at-load":
            mapped.reshape(-1).view(np.uint8)[:: mmap.PAGESIZE].max(initial=0)
        values[tensor.name] = onnxruntime.OrtValue.ortvalue_from_numpy(mapped)
    return values


def make_session(
    path: Path,
    settings: OrtSettings,
    shared: Mapping[str, onnxruntime.OrtValue] | None = None,
    entries: Mapping[str, str] | None = None,
    *,
    replayed: bool = False,
    of_logits: bool = False,
) -> onnxruntime.InferenceSession:
    """``entries``: of onnxruntime's session configuration. ``replayed``: its runs may be captured as CUDA graphs, where
    the settings want that. ``of_logits``: what it computes in is as wide as the vocabulary."""
    keep_to_ourselves()
    import onnxruntime

    provider = _PROVIDERS[settings.device]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = chosen_threads(settings.threads)
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    # Each session has a pool of threads, and one that still spins takes its core from the next session: without this
    # two threads on two cores are slower than one (measured: 33 ms a step against 14).
    options.add_session_config_entry("session.force_spinning_stop", "1")
    if of_logits and settings.device == "cpu":
        # From the second run of a shape on its tensors lie in one new block, beside the pieces of the first run, which
        # the arena keeps: 36 MB for 16 rows of Gemma 3 270M, and not quicker. (A body's are small, and 3% quicker.)
        options.enable_mem_pattern = False
    for key, entry in (entries or {}).items():
        options.add_session_config_entry(key, entry)
    for name, value in (shared or {}).items():
        options.add_initializer(name, value)
    provider_options: dict[str, str] = {}
    if settings.device == "cuda":
        _prepare_cuda(options, settings)
        provider_options = cuda_options(settings, replayed)
    try:
        # With its own fallback onnxruntime prints a note when a provider fails, and goes on without it.
        with _environment({WITHOUT_BLOCKS: "1"} if settings.deterministic else {}):
            session = onnxruntime.InferenceSession(
                str(path), options, providers=[(provider, provider_options)], enable_fallback=0
            )
    except Exception as problem:  # onnxruntime raises its own classes, unrelated to each other
        first = first_line(problem)
        if settings.device == "cuda" and "CPU EP" in first:
            raise ConfigError(
                f"{path}: a part of it has no CUDA kernel in onnxruntime {onnxruntime.__version__}; "
                "engine.cpu_fallback: true (--cpu-fallback) lets that part run on the processor, slowly"
            ) from problem
        raise BundleError(f"{path} does not load: {first}") from problem
    if provider not in session.get_providers():
        # A provider whose libraries are missing is left out with a line in the log.
        raise ConfigError(
            f"device {settings.device!r}: onnxruntime has {provider} but could not start it: its CUDA or cuDNN is "
            "missing or another one"
        )
    return session


@contextmanager
def _environment(entries: Mapping[str, str]) -> Iterator[None]:
    """For settings that onnxruntime reads nowhere else."""
    before = {name: os.environ.get(name) for name in entries}
    os.environ.update(entries)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _prepare_cuda(options: onnxruntime.SessionOptions, settings: OrtSettings) -> None:
    # Products of several rows by tensor cores on the 4-bit weights as they are; else a verification expands all of
    # them first, and costs several plain steps. Earlier versions know the variable alone.
    options.add_session_config_entry("ep.cuda.fpa_intb_gemm", "1")
    os.environ.setdefault("ORT_FPA_INTB_GEMM", "1")
    # Weights outside the arena: what it has once held, it keeps, and unpacked weights would be among that.
    options.add_session_config_entry("session.use_device_allocator_for_initializers", "1")
    if not settings.cpu_fallback:
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")


def cuda_options(settings: OrtSettings, replayed: bool) -> dict[str, str]:
    """Of onnxruntime's CUDA provider."""
    # As much as was asked for: the next power of two is half a board.
    options = {"arena_extend_strategy": "kSameAsRequested"}
    if settings.gpu_memory_bytes is not None:
        options["gpu_mem_limit"] = str(settings.gpu_memory_bytes)
    if settings.gpu_stream is not None:
        options["user_compute_stream"] = str(settings.gpu_stream)
    if settings.cuda_graph and replayed:
        options["enable_cuda_graph"] = "1"
    return options
