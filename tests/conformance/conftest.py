"""One engine of each model for all tests, and a record of how near each came to what it is allowed.

    pytest tests/conformance                                     every engine that can run here, on tiny random models
    pytest tests/conformance --engine tensorrt --bundle DIR      one engine, on a bundle of yours
    pytest tests/conformance --engine ort --bundle DIR --device cuda
"""

from __future__ import annotations

import os

# Before anything imports numpy: it reads this once.
os.environ.setdefault("OMP_NUM_THREADS", "2")

from collections.abc import Callable, Iterator

import pytest
from conformance_options import asked_engines, owned_bundle
from running import Measured
from subjects import Bundles, Case, Wanted, cases

from edge_runtime.engines.protocol import Engine


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" not in metafunc.fixturenames:
        return
    owned = owned_bundle(metafunc.config)
    found = [case for engine in asked_engines(metafunc.config) for case in cases(engine, owned)]
    if metafunc.definition.get_closest_marker("writes_texts"):
        found = [case for case in found if not case.reduced]
    metafunc.parametrize("case", found, ids=[case.name for case in found], scope="session")


@pytest.fixture(scope="session")
def bundles(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Bundles:
    device = pytestconfig.getoption("device")
    return Bundles(tmp_path_factory.mktemp("conformance"), owned_bundle(pytestconfig), device)


@pytest.fixture(scope="session")
def opened(bundles: Bundles) -> Iterator[dict[str, Engine]]:
    """By the names of cases: each is opened once, in whatever order tests run."""
    engines: dict[str, Engine] = {}
    yield engines
    for one in engines.values():
        one.close()


@pytest.fixture(autouse=True)
def within(request: pytest.FixtureRequest) -> Iterator[None]:
    if "case" not in request.fixturenames:
        yield
        return
    with request.getfixturevalue("case").within():
        yield


@pytest.fixture
def engine(case: Case, bundles: Bundles, opened: dict[str, Engine]) -> Engine:
    """Shared: a test begins its texts at position 0, or in what it has written itself."""
    if case.name not in opened:
        opened[case.name] = case.opener(bundles, Wanted())
    return opened[case.name]


@pytest.fixture
def fresh(case: Case, bundles: Bundles) -> Iterator[Engine]:
    """Nothing has been written to it yet."""
    opened = case.opener(bundles, Wanted(slots=2))
    yield opened
    opened.close()


@pytest.fixture
def measured(case: Case, record_property: Callable[[str, object], None]) -> Measured:
    """``measured(what, found, allowed)``: asserts, and keeps the figure for the table at the end."""

    def compare(what: str, found: float, allowed: float) -> None:
        record_property("conformance", (case.name, what, float(found), float(allowed)))
        assert found <= allowed, f"{what}: {found:.3g} where {allowed:g} is allowed ({case.tolerance.why})"

    return compare
