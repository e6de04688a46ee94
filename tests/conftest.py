"""Settings of every test: no network, few threads, no time limit on a generated example. And the real Gemma, once."""

from __future__ import annotations

import os

# Before anything imports numpy, torch or tokenizers: each reads these once.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ.setdefault("OMP_NUM_THREADS", "2")
# Two workers share the cores; threads that spin while they wait for each other cost tenfold where others work as well.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import functools
import importlib.util
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from conformance_options import pytest_addoption as pytest_addoption
from conformance_options import pytest_configure as pytest_configure
from conformance_options import pytest_terminal_summary as pytest_terminal_summary

if TYPE_CHECKING:
    from export_runs import ExportRun

    from export.reference import Reference

# A board that tries its engine has pytest and the runtime, and no more.
if importlib.util.find_spec("hypothesis") is not None:
    from hypothesis import HealthCheck, settings

    # Shared cores make slow examples likely and meaningless. CI judges a change, so it draws the same examples each
    # time; new ones are drawn wherever a person runs the tests.
    settings.register_profile(
        "project", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize="CI" in os.environ
    )
    settings.load_profile("project")


_REAL = ("real_export", "exact_bundle", "fp32_bundle", "reference")


@functools.cache
def _needs_the_real_model(path: Path, names: tuple[str, ...] = _REAL) -> bool:
    source = path.read_text(encoding="utf-8")
    return any(f"{name}:" in source or f'"{name}"' in source for name in names)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What needs the real model first: it is the longest stretch that one worker has to do."""
    real = {path: _needs_the_real_model(path) for path in {item.path for item in items}}
    items.sort(key=lambda item: not real[item.path])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Workers take a file at a time; all that needs the real model counts as two, one for each of two workers: exports
    are few, and none has more to do than the other."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            name = nodeid.split("::")[0]
            path = config.rootpath / name
            if not _needs_the_real_model(path):
                return name
            return "real, in fp32" if _needs_the_real_model(path, ("fp32_bundle",)) else "real"

    return ByFile(config, log)


@pytest.fixture(scope="session")
def demo_gguf() -> Path:
    """Gemma 3 270M out of its package, its sha256 checked."""
    from export.demo import demo_checkpoint

    return demo_checkpoint()


@pytest.fixture(scope="session")
def real_export(demo_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., ExportRun]]:
    """``real_export(*options)``: the real model by ``edge-export export``, each set of options once a session."""
    from export_runs import watched_export

    folder = tmp_path_factory.mktemp("bundles")
    done: dict[tuple[str, ...], ExportRun] = {}

    def export(*options: str) -> ExportRun:
        if options not in done:
            done[options] = watched_export(demo_gguf, folder / f"gemma-{len(done)}", *options)
            assert done[options].returncode == 0, done[options].stderr
        return done[options]

    yield export
    # pytest keeps the folders of three sessions, and these hold gigabytes.
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def exact_bundle(real_export: Callable[..., ExportRun]) -> Path:
    return real_export("--precision", "exact").output


@pytest.fixture(scope="session")
def fp32_bundle(real_export: Callable[..., ExportRun]) -> Path:
    return real_export("--precision", "fp32").output


@pytest.fixture(scope="session")
def reference(demo_gguf: Path) -> Reference:
    """transformers in float32 with the GGUF's own weights."""
    from export.checkpoint import open_checkpoint
    from export.reference import Reference

    return Reference(open_checkpoint(demo_gguf))
