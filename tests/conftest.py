"""Settings of every test: no network, few threads, no time limit on a generated example. And the real Gemma, once."""

from __future__ import annotations

import os

# Before anything imports numpy, torch or tokenizers: each reads these once.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # of the tests' own sessions; what ours say by themselves is tested
# There is a worker for each core.
os.environ.setdefault("OMP_NUM_THREADS", "1" if "PYTEST_XDIST_WORKER" in os.environ else "2")
# Where there are more, threads that spin while they wait for each other cost tenfold where others work as well.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import functools
import importlib.util
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
_GROUPS = ("real", "real tokenizer", "real, in fp32", None)
"""In the order in which workers take them: what the third one needs, the first has exported by then."""


@functools.cache
def _needs(path: Path, names: tuple[str, ...]) -> bool:
    """Whether a file has a fixture of one of these names."""
    source = path.read_text(encoding="utf-8")
    return any(f"{name}:" in source or f'"{name}"' in source for name in names)


@functools.cache
def _group(path: Path) -> str | None:
    """Files that one worker takes one after the other: what they begin with is dear, and made once a process."""
    if _needs(path, _REAL):
        return "real, in fp32" if _needs(path, ("fp32_bundle",)) else "real"
    return "real tokenizer" if "import model_fixture" in path.read_text(encoding="utf-8") else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The long stretches first, and of them what takes two exports."""
    paths = {item.path for item in items}
    keys = {path: (_GROUPS.index(_group(path)), not _needs(path, ("reference",))) for path in paths}
    items.sort(key=lambda item: keys[item.path])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Workers take a file at a time, or a group of them. All that needs the real model is two groups, one for each of
    two workers."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            name = nodeid.split("::")[0]
            return _group(config.rootpath / name) or name

    return ByFile(config, log)


@pytest.fixture(scope="session")
def demo_gguf() -> Path:
    """Gemma 3 270M out of its package, its sha256 checked."""
    from export.demo import demo_checkpoint

    return demo_checkpoint()


@pytest.fixture(scope="session")
def real_export(demo_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., ExportRun]]:
    """``real_export(*options)``: the real model by ``edge-export export``, each set of options once for all workers."""
    from export_runs import shared_exports

    base = tmp_path_factory.getbasetemp()
    # That of a worker lies in the one of the whole run.
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "bundles"
    with shared_exports(demo_gguf, folder) as export:
        yield export


@pytest.fixture(scope="session")
def exact_bundle(real_export: Callable[..., ExportRun]) -> Path:
    from export_runs import EXACT

    return real_export(*EXACT).output


@pytest.fixture(scope="session")
def fp32_bundle(real_export: Callable[..., ExportRun]) -> Path:
    return real_export("--precision", "fp32").output


@pytest.fixture(scope="session")
def reference(demo_gguf: Path) -> Reference:
    """transformers in float32 with the GGUF's own weights."""
    from export.checkpoint import open_checkpoint
    from export.reference import Reference

    return Reference(open_checkpoint(demo_gguf))
