"""``--engine`` and ``--bundle`` of the engine conformance suite, and its table at the end. Knows no engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("engines", "engine conformance (tests/conformance)")
    group.addoption("--engine", action="append", default=[], metavar="NAME",
                    help="Try this engine: fake, delta, trt-fake, ort, reference, nf4 or tensorrt; may be given "
                    "several times. "
                    "Default: all that can run here.")  # fmt: skip
    group.addoption("--bundle", default=None, metavar="DIR",
                    help="Try the engines on this bundle rather than on tiny random models.")  # fmt: skip
    group.addoption("--device", choices=["cpu", "cuda"], default="cpu",
                    help="Where ort and nf4 run --bundle.")  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "writes_texts: needs an engine with a whole head")


def owned_bundle(config: pytest.Config) -> Path | None:
    given = config.getoption("bundle")
    return None if given is None else Path(given).resolve()


def asked_engines(config: pytest.Config) -> list[str]:
    """Those that were named, or all that can run here. A name that cannot run is an error, never a silent nothing."""
    from subjects import ENGINES, bundle_problem, runs_here, why_not_here

    from edge_runtime.errors import EdgeError

    owned, asked = owned_bundle(config), config.getoption("engine")
    for name in asked:
        if name not in ENGINES:
            raise pytest.UsageError(f"--engine {name}: there are {', '.join(ENGINES)}")
    try:
        able = [name for name in ENGINES if runs_here(name, owned)]
    except EdgeError as problem:
        raise pytest.UsageError(f"--bundle: {problem}") from None
    for name in asked:
        if name not in able:
            raise pytest.UsageError(f"--engine {name}: {why_not_here(name, owned)}")
    try:
        problem = None if owned is None else bundle_problem(asked or able, owned)
    except EdgeError as unread:
        problem = str(unread)
    if problem is not None:
        raise pytest.UsageError(f"--bundle: {problem}")
    return asked or able


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """The worst of each figure beside what is allowed."""
    worst: dict[tuple[str, str], tuple[float, float]] = {}
    reports = [one for kind in ("passed", "failed") for one in terminalreporter.stats.get(kind, [])]
    for report in reports:
        for name, value in getattr(report, "user_properties", ()):
            if name == "conformance":
                subject, what, found, allowed = value
                worst[subject, what] = max(worst.get((subject, what), (-1.0, 0.0)), (found, allowed))
    if not worst or not terminalreporter.config.getoption("engine"):
        return
    terminalreporter.section("engine conformance: the worst found, and what is allowed (in deviations of the logits)")
    for (subject, what), (found, allowed) in sorted(worst.items()):
        terminalreporter.write_line(f"{subject:24} {what:44} {found:10.2g} {allowed:10.2g}")
