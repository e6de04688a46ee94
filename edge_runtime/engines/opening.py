"""Which engine runs a bundle: the choice, and what it refuses. Knows no graph and no device.

A bundle is exported for one kind of engine, since a graph that one of them likes another cannot run. So there is little
to choose: ``auto`` takes what the bundle was made for, and ``reference`` runs the graphs of TensorRT on a CPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..bundle import Manifest
from ..errors import ConfigError
from .engine_record import ENGINE_DIRECTORY
from .ort import OrtEngine, other_dialect
from .ort_settings import OrtSettings
from .protocol import Engine

Backend = Literal["auto", "onnxruntime", "tensorrt", "reference", "nf4"]
_OF_DIALECT: dict[str, Backend] = {"ort": "onnxruntime", "tensorrt": "tensorrt", "nf4": "nf4"}
GraphMode = Literal["none", "captured"]


@dataclass(frozen=True, slots=True)
class BuiltEngines:
    """Of TensorRT alone: where its engines lie, and how they run."""

    directory: Path | None = None
    """``None``: in the bundle itself, where ``edge-runtime build`` puts them."""
    graphs: GraphMode = "none"
    verify_hashes: bool = True


def chosen_backend(manifest: Manifest, role: str, backend: Backend, place: str = "BUNDLE") -> Backend:
    """What ``auto`` is, and whether a bundle can be run by what was asked for. Raises ``ConfigError``.

    ``place``: of the bundle, as its owner would type it.
    """
    dialect = manifest.model(role).dialect
    if backend == "auto" or backend == _OF_DIALECT[dialect]:
        return _OF_DIALECT[dialect]
    if "nf4" in (backend, dialect):
        raise ConfigError(
            f"bundle {manifest.name!r} is for backend {_OF_DIALECT[dialect]}, not {backend}: use backend auto, or "
            "export it again with the engine that you want in its recipe"
        )
    if backend == "onnxruntime" and dialect != "ort":
        raise ConfigError(other_dialect(manifest, place))
    if backend != "onnxruntime" and dialect == "ort":
        raise ConfigError(
            f"bundle {manifest.name!r} holds graphs for ONNX Runtime, not for backend {backend}: export it again with "
            "engine: tensorrt in its recipe, or use backend auto"
        )
    return backend


def open_engine(
    directory: Path,
    manifest: Manifest,
    role: str,
    backend: Backend,
    settings: OrtSettings,
    target: Engine | None = None,
    built: BuiltEngines | None = None,
) -> Engine:
    """``target``: the engine of the same kind whose caches a model with ``shares`` writes to, and whose device it runs
    on. ``built``: of backend tensorrt.

    Raises ``BundleError`` (a graph that does not load), ``ConfigError`` (settings beyond bundle or machine, engines
    that are not built or of another machine), ``OutOfBudget`` and ``EngineError``.
    """
    chosen = chosen_backend(manifest, role, backend, str(directory))
    if settings.lanes and chosen != "onnxruntime":
        raise ConfigError(f"steps of several sessions at once: backend onnxruntime has them, {chosen} does not")
    if chosen == "onnxruntime":
        return OrtEngine(directory, manifest, role, settings, target if isinstance(target, OrtEngine) else None)
    if chosen == "nf4":
        from .torch_nf4 import Nf4Engine

        return Nf4Engine(directory, manifest, role, settings)
    if chosen == "reference":
        return _reference(directory, manifest, role, settings, target)
    return _tensorrt(directory, manifest, role, settings, target, built or BuiltEngines())


def _reference(directory: Path, manifest: Manifest, role: str, settings: OrtSettings, target: Engine | None) -> Engine:
    from .delta import DeltaEngine, DeltaSettings
    from .ort_delta import OrtDelta

    owner = target.executor if isinstance(target, DeltaEngine) else None
    device = OrtDelta(directory, manifest, role, settings, owner if isinstance(owner, OrtDelta) else None)
    wanted = DeltaSettings(settings.deterministic, settings.keeps_hidden, settings.cache)
    return DeltaEngine(directory, manifest, role, device, wanted)


def _tensorrt(
    directory: Path,
    manifest: Manifest,
    role: str,
    settings: OrtSettings,
    target: Engine | None,
    built: BuiltEngines,
) -> Engine:
    from .trt_opening import TrtOpening, open_trt_engine

    asked = TrtOpening(
        engines=built.directory or directory / ENGINE_DIRECTORY,
        capacity=settings.capacity,
        slots=settings.slots,
        max_head_rows=settings.max_head_rows,
        cap=settings.gpu_memory_bytes,
        deterministic=settings.deterministic,
        keeps_hidden=settings.keeps_hidden,
        graphs=built.graphs,
        verify_hashes=built.verify_hashes,
    )
    return open_trt_engine(directory, manifest, role, asked, target)
