"""Graphs of a bundle as onnxruntime sessions. Knows files and options, no buffer and no step."""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..bundle import Model
from ..errors import BundleError, ConfigError
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
        name: str, where: OrtSettings = settings, shared: Mapping[str, onnxruntime.OrtValue] | None = None
    ) -> onnxruntime.InferenceSession:
        name = narrow.get(name, name)
        found = None if target is None else target.by_file.get(name)
        by_file[name] = found if found is not None else make_session(directory / name, where, shared)
        return by_file[name]

    screen = model.screen if settings.head == "screened" else None
    # The head first: its table is the largest mapping, and peak memory is what sinks an 8 GB board.
    head = session(screen.head if screen else model.head)
    stem = None if model.stem is None else session(model.stem, shared=table)
    body = session(model.body, shared=table)
    readout = session(screen.readout if screen else model.readout, shared=table if screen else {})
    # What is only looked up stays on the host, whatever the device.
    lookup = None if model.lookup is None else session(model.lookup.graph, replace(settings, device="cpu"))
    return Sessions(stem, body, head, readout, lookup, by_file)


def looks_one_further() -> bool:
    """Whether a window of n on the CPU is n tokens beside the row itself, as before 1.24 (measured with 1.23.2)."""
    import onnxruntime

    major, minor = onnxruntime.__version__.split(".")[:2]
    return (int(major), int(minor)) < (1, 24)


def refuse_missing_provider(device: str) -> None:
    import onnxruntime

    if _PROVIDERS[device] not in onnxruntime.get_available_providers():
        # Never fall back in silence: a model that was meant for the GPU must not crawl on the CPU.
        raise ConfigError(f"device {device!r}: this onnxruntime has no {_PROVIDERS[device]}")


def map_table(directory: Path, model: Model, settings: OrtSettings) -> dict[str, onnxruntime.OrtValue]:
    """The embedding, mapped once: left to themselves, two sessions map it twice, and both count.

    With caches that are paid for at load it is read then too: its rows would come in one by one, in the first minutes.
    """
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
) -> onnxruntime.InferenceSession:
    """``entries``: of onnxruntime's session configuration."""
    import onnxruntime

    provider = _PROVIDERS[settings.device]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = settings.threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    # Each session has a pool of threads, and one that still spins takes its core from the next session: without this
    # two threads on two cores are slower than one (measured: 33 ms a step against 14).
    options.add_session_config_entry("session.force_spinning_stop", "1")
    for key, entry in (entries or {}).items():
        options.add_session_config_entry(key, entry)
    for name, value in (shared or {}).items():
        options.add_initializer(name, value)
    provider_options: dict[str, Any] = {}
    if settings.device == "cuda":
        provider_options["arena_extend_strategy"] = "kSameAsRequested"
        if settings.gpu_memory_bytes is not None:
            provider_options["gpu_mem_limit"] = settings.gpu_memory_bytes
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=[(provider, provider_options)])
    except Exception as problem:  # onnxruntime raises its own classes, unrelated to each other
        raise BundleError(f"{path} does not load: {str(problem).splitlines()[0]}") from problem
