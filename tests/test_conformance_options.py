"""What ``pytest tests/conformance`` says of options that name no engine or no bundle: one line, before any test."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import tiny_trt as tiny
from conformance_options import asked_engines

sys.path.append(str(Path(__file__).with_name("conformance")))


def asked(*engines: str, bundle: Path | str | None = None) -> list[str]:
    options = {"engine": list(engines), "bundle": None if bundle is None else str(bundle)}
    return asked_engines(SimpleNamespace(getoption=options.__getitem__))  # type: ignore[arg-type]


def refused(*engines: str, bundle: Path | str | None = None) -> str:
    with pytest.raises(pytest.UsageError) as problem:
        asked(*engines, bundle=bundle)
    assert "\n" not in str(problem.value)
    return str(problem.value)


@pytest.fixture
def board(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if tensorrt were installed."""
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: find("json") if name == "tensorrt" else find(name))


def test_names_that_are_none(tmp_path: Path) -> None:
    assert "there are fake, delta, trt-fake, ort" in refused("nonsense")
    for engines in ((), ("ort",), ("fake",)):
        assert refused(*engines, bundle=tmp_path / "none").startswith("--bundle: no bundle at")
        assert "it has no bundle.json" in refused(*engines, bundle=tmp_path)


def test_an_engine_that_is_not_for_the_bundle() -> None:
    assert refused("ort", bundle=tiny.bundle()) == "--engine ort: the bundle is made for reference or tensorrt"
    assert asked("reference", bundle=tiny.bundle()) == ["reference"]


def test_what_tensorrt_lacks(board: None, tmp_path: Path) -> None:
    assert "--bundle DIR" in refused("tensorrt")
    bundle = Path(shutil.copytree(tiny.bundle(), tmp_path / "b"))
    assert refused("tensorrt", bundle=bundle) == f"--bundle: no engines are built of it: edge-runtime build {bundle}"
    (bundle / "engine").mkdir()
    (bundle / "engine" / "engine.json").write_text("{")
    assert "--rebuild" in refused("tensorrt", bundle=bundle)
    (bundle / "target.weights").unlink()
    assert "target.weights: missing" in refused("tensorrt", bundle=bundle)


def test_what_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert refused("nf4") == "--engine nf4: torch is not installed here"
    assert refused("tensorrt") == "--engine tensorrt: tensorrt is not installed here"
