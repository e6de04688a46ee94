"""Settings of every test: no network, few threads, no time limit on a generated example. And the real Gemma, once."""

from __future__ import annotations

import os

# Before anything imports numpy, torch or tokenizers: each reads these once.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ.setdefault("OMP_NUM_THREADS", "2")

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from export_runs import ExportRun, watched_export
from hypothesis import settings

from export.checkpoint import open_checkpoint
from export.demo import demo_checkpoint
from export.reference import Reference

# Shared cores make a single slow example likely and meaningless.
settings.register_profile("project", deadline=None)
settings.load_profile("project")


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist looks for the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Two workers share the tests, a file at a time: one begins with all that need the real model, which is exported
    once and for one of them, and the other with everything else.
    """
    needs = {"real_export", "exact_bundle", "fp32_bundle", "reference"}
    real = {item.path for item in items if not needs.isdisjoint(getattr(item, "fixturenames", ()))}
    for item in items:
        item.add_marker(pytest.mark.xdist_group("real" if item.path in real else item.path.name))
    items.sort(key=lambda item: item.path not in real)


@pytest.fixture(scope="session")
def demo_gguf() -> Path:
    """Gemma 3 270M out of its package, its sha256 checked."""
    return demo_checkpoint()


@pytest.fixture(scope="session")
def real_export(demo_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., ExportRun]]:
    """``real_export(*options)``: the real model by ``edge-export export``, each set of options once a session."""
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
    return Reference(open_checkpoint(demo_gguf))
