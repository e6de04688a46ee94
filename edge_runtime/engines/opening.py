"""Which engine runs a bundle: the choice, and what it refuses. Knows no graph and no device.

A bundle is exported for one kind of engine, since a graph that one of them likes another cannot run. So there is little
to choose: ``auto`` takes what the bundle was made for, and ``reference`` runs the graphs of TensorRT on a CPU.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from ..bundle import Manifest
from ..errors import ConfigError
from .ort import OrtEngine, other_dialect
from .ort_settings import OrtSettings
from .protocol import Engine

Backend = Literal["auto", "onnxruntime", "tensorrt", "reference", "nf4"]
_OF_DIALECT: dict[str, Backend] = {"ort": "onnxruntime", "tensorrt": "tensorrt", "nf4": "nf4"}


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
) -> Engine:
    """``target``: the engine of the same kind whose caches a model with ``shares`` writes to.

    Raises ``BundleError`` (a graph that does not load) and ``ConfigError`` (settings beyond bundle or machine).
    """
    chosen = chosen_backend(manifest, role, backend, str(directory))
    if chosen == "onnxruntime":
        return OrtEngine(directory, manifest, role, settings, target if isinstance(target, OrtEngine) else None)
    if chosen == "nf4":
        from .torch_nf4 import Nf4Engine

        return Nf4Engine(directory, manifest, role, settings)
    if chosen == "reference":
        return _reference(directory, manifest, role, settings, target)
    raise ConfigError(other_dialect(manifest, str(directory)))


def _reference(directory: Path, manifest: Manifest, role: str, settings: OrtSettings, target: Engine | None) -> Engine:
    from .delta import DeltaEngine, DeltaSettings
    from .ort_delta import OrtDelta

    owner = target.executor if isinstance(target, DeltaEngine) else None
    device = OrtDelta(directory, manifest, role, settings, owner if isinstance(owner, OrtDelta) else None)
    wanted = DeltaSettings(settings.deterministic, settings.keeps_hidden, settings.cache)
    return DeltaEngine(directory, manifest, role, device, wanted)
