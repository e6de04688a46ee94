"""What is installed: locks that fit pyproject.toml and say nothing but versions and hashes, licences, lists of parts,
and what an audit that could not ask must not say. Asks nobody.
"""

from __future__ import annotations

import json
import platform
import re
import shlex
import subprocess
import sys
import zipfile
from importlib import import_module
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import pytest
import tiny_bundle as tiny
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = None

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tools"))
try:
    audit, licences, locks, sbom = map(import_module, ("audit", "licences", "locks", "sbom"))
finally:
    sys.path.remove(str(ROOT / "tools"))

HERE = locks.Target(f"{sys.version_info[0]}.{sys.version_info[1]}", platform.machine(), 31)
EACH = [pytest.param(lock, target, id=f"{lock.name}-{target.python}-{target.machine}")
        for lock in locks.LOCKS for target in lock.targets]  # fmt: skip


def each_lock() -> pytest.MarkDecorator:
    return pytest.mark.parametrize("lock", locks.LOCKS, ids=lambda lock: lock.name)


# --- locks ----------------------------------------------------------------------------------------


def test_every_file_is_of_a_lock() -> None:
    assert {path.name for path in locks.FOLDER.glob("*.txt")} == {lock.path.name for lock in locks.LOCKS}


@each_lock()
def test_a_lock_says_versions_and_hashes_and_nothing_else(lock: Any) -> None:
    pins = locks.read(lock.path)
    text = lock.path.read_text(encoding="utf-8")
    assert pins and text.count("--hash=sha256:") == sum(len(pin.hashes) for pin in pins)
    # No host, no index and no file: an install goes wherever the user's pip is pointed.
    assert "://" not in text and not re.search(r"^\s*-(?!-hash=)", text, re.MULTILINE) and " @ " not in text
    assert not [pin.marker for pin in pins if pin.marker and re.search("win32|darwin", pin.marker)]


@pytest.mark.parametrize(
    "text",
    [
        "anyio==4.16.0\n",
        "anyio>=4 \\\n    --hash=sha256:" + "a" * 64 + "\n",
        "anyio==4.* \\\n    --hash=sha256:" + "a" * 64 + "\n",
        "anyio==4.16.0 \\\n    --hash=md5:" + "a" * 32 + "\n",
        "anyio==4.16.0 \\\n    --hash=sha256:" + "a" * 63 + "\n",
        "--index-url x\n",
        "anyio @ file:x \\\n    --hash=sha256:" + "a" * 64 + "\n",
        "-e .\n",
    ],
)
def test_the_reader_refuses_what_is_no_pin(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.txt").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=r"."):
        locks.read(tmp_path / "x.txt")


def wanted(lock: Any, target: Any) -> list[Requirement]:
    """What pyproject.toml asks for there, and what the lock adds."""
    if tomllib is None:
        pytest.skip("tomllib is there from Python 3.11 on")
    document = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    project, found = document["project"], list(lock.also)
    found += project["dependencies"] if lock.project else []
    extras = list(lock.extras)
    for extra in extras:
        for text in project["optional-dependencies"][extra]:
            one = Requirement(text)
            if canonicalize_name(one.name) == locks.SELF:
                extras += sorted(one.extras - set(extras))
            else:
                found.append(text)
    found += document["build-system"]["requires"] if lock.name == "build" else []
    requirements = [Requirement(text) for text in found]
    return [one for one in requirements if one.marker is None or one.marker.evaluate(target.environment)]


@pytest.mark.parametrize(("lock", "target"), EACH)
def test_a_lock_fits_what_is_asked_for(lock: Any, target: Any) -> None:
    pins = locks.pins_for(lock, target)
    asked = wanted(lock, target)
    assert len(asked) > 10 or not lock.project
    for one in asked:
        assert one.specifier.contains(pins[canonicalize_name(one.name)].version), f"{one}: run `make lock`"
    # Nothing that nobody wants.
    roots = {canonicalize_name(one.name) for one in asked}
    for pin in pins.values():
        assert pin.name in roots or any(name in pins for name in pin.wanted_by), pin.name
        assert set(pin.wanted_by) <= {other.name for other in locks.read(lock.path)} | {locks.SELF}
    # The system's on a board; and what comes as another build from one machine to the next has no one hash.
    assert not [name for name in pins if "tensorrt" in name or name.startswith(("nvidia-", "torch"))]


def test_a_requirement_that_moved_would_be_seen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8").replace('"click>=8.1"', '"click>=99"')
    (tmp_path / "pyproject.toml").write_text(text, encoding="utf-8")
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    with pytest.raises(AssertionError, match="make lock"):
        test_a_lock_fits_what_is_asked_for(locks.LOCKS[1], HERE)


def test_a_lock_is_closed() -> None:
    """By the metadata of what is installed here in the version that is pinned, whatever uv believes."""
    pins = locks.pins_for(locks.LOCKS[1], HERE)
    seen = 0
    for pin in pins.values():
        try:
            found = distribution(pin.name)
        except PackageNotFoundError:
            continue
        for text in found.requires or () if found.version == pin.version else ():
            one = Requirement(text)
            if one.marker is None or one.marker.evaluate({**HERE.environment, "extra": ""}):
                assert one.specifier.contains(pins[canonicalize_name(one.name)].version), f"{pin.name}: {one}"
                seen += 1
    assert seen > 10


def test_the_tests_run_with_what_is_locked() -> None:
    if not (Path(sys.prefix) / "pins.txt").exists():
        pytest.skip("this environment was not made by make")
    pins = locks.pins_for(locks.LOCKS[1], HERE)
    assert {name: distribution(name).version for name in pins} == {name: pin.version for name, pin in pins.items()}


# --- what make does with them ---------------------------------------------------------------------


def installs(*targets: str) -> list[str]:
    """The commands of pip by which make would do so, in an environment that is there and empty."""
    command = ["make", "--dry-run", *targets, f"VENV={ROOT / 'none'}", "USABLE=yes"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return [line for line in done.stdout.splitlines() if " -m pip " in line]


@pytest.mark.parametrize("target", ["demo", "sbom", "lock", "audit"])
def test_make_installs_by_hash_or_without_an_index(target: str) -> None:
    hashed, *others = installs(target)
    assert "--require-hashes" in hashed and "--only-binary :all:" in hashed
    assert others == [] or (target == "demo" and len(others) == 1)
    assert all("--no-index --no-deps --no-build-isolation" in one for one in others)


def test_what_the_tests_run_with_is_installed_by_the_lock_first() -> None:
    hashed, beside = installs("ready")
    assert "--require-hashes -r requirements/build.txt -r requirements/demo.txt" in hashed and "pins.txt" in beside


def test_a_forged_wheel_is_not_installed(tmp_path: Path) -> None:
    """By the very command of `make demo`, where an index hands out something else under a pinned name and version."""
    (pin,) = locks.read(locks.FOLDER / "build.txt")
    stem = f"{pin.name}-{pin.version}"
    with zipfile.ZipFile(tmp_path / f"{stem}-py3-none-any.whl", "w") as wheel:
        about = f"Metadata-Version: 2.1\nName: {pin.name}\nVersion: {pin.version}\n"
        wheel.writestr(f"{stem}.dist-info/METADATA", about)
        wheel.writestr(f"{stem}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{stem}.dist-info/RECORD", "")
    words = shlex.split(installs("demo")[0])
    options = words[words.index("install") : words.index("-r")]
    command = [sys.executable, "-m", "pip", *options, "-r", "requirements/build.txt", "--no-index"]
    command += ["--ignore-installed", "--find-links", str(tmp_path), "--target", str(tmp_path / "to")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode != 0 and "DO NOT MATCH THE HASHES" in done.stderr, done.stderr
    assert not (tmp_path / "to").exists() or not list((tmp_path / "to").iterdir())


# --- licences -------------------------------------------------------------------------------------


def test_every_licence_is_known_and_taken() -> None:
    known = licences.recorded()
    assert licences.problems(locks.all_pins(), known) == []
    assert set(known) == set(locks.all_pins()), "run `make lock`"
    assert licences.PAGE.read_text(encoding="utf-8") == licences.page(locks.LOCKS, known), "run `make lock`"


@pytest.mark.parametrize(
    ("expression", "taken"),
    [
        ("MIT", True), ("Apache-2.0 OR GPL-3.0-only", True), ("BSD-3-Clause AND MIT", True),
        ("GPL-3.0-only", False), ("AGPL-3.0-or-later", False), ("LGPL-2.1-only", False), ("SSPL-1.0", False),
        ("MIT AND GPL-2.0-only", False), ("LicenseRef-Proprietary", False), ("(MIT OR GPL-2.0-only) AND MIT", False),
        ("GPL-3.0-only WITH GCC-exception-3.1", False),
    ],
)  # fmt: skip
def test_a_licence_that_is_not_taken_would_be_seen(expression: str, taken: bool) -> None:
    known = {("x", "1"): licences.Licence(expression, "expression")}
    assert (licences.problems([("x", "1")], known) == []) is taken
    assert licences.problems([("y", "1")], known) == ["y 1: no known licence"]


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({"license_expression": "MIT", "license": "GPL"}, ("MIT", "expression")),
        ({"license": "Apache 2.0"}, ("Apache-2.0", "licence")),
        ({"license": "BSD", "classifier": ["License :: OSI Approved :: BSD License"]}, None),
        ({"license": "UNKNOWN", "classifier": ["License :: OSI Approved :: MIT License"]}, ("MIT", "classifier")),
        ({"license": "The whole text of some licence.\nAnd so on."}, None),
        ({"classifier": ["License :: A :: MIT License", "License :: A :: Other"]}, None),
        ({}, None),
    ],
)
def test_a_licence_is_what_metadata_say_and_never_a_guess(metadata: dict[str, Any], expected: Any) -> None:
    found = licences.licence_of({"name": "Some_Package", **metadata})
    assert found == (None if expected is None else licences.Licence(*expected))


# --- lists of parts -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["demo", "python3.10"])
def test_a_list_of_parts_has_what_the_lock_has(name: str) -> None:
    (lock,) = (one for one in locks.LOCKS if one.name == name)
    text = sbom.written(sbom.of_lock(lock, licences.recorded()))
    document = json.loads(text)
    parts = {one["bom-ref"]: one for one in document["components"]}
    packages = {(one["name"], one["version"]) for one in parts.values() if one["type"] == "library"}
    assert packages == {(pin.name, pin.version) for pin in locks.read(lock.path)}
    assert all(one["licenses"] for one in parts.values())
    # Each is there because of something that leads to the program.
    reached, edges = {"edge-runtime"}, {one["ref"]: one.get("dependsOn", []) for one in document["dependencies"]}
    todo = ["edge-runtime"]
    while todo:
        todo += [one for one in edges[todo.pop()] if one not in reached and not reached.add(one)]  # type: ignore[func-returns-value]
    assert reached == {"edge-runtime", *parts}
    models = [one["name"] for one in parts.values() if one["type"] == "machine-learning-model"]
    assert models == (["drafter for gemma-3-270m"] if name == "demo" else [])


def test_the_same_parts_are_the_same_bytes_and_others_another_number() -> None:
    demo, known = locks.LOCKS[1], licences.recorded()
    first, again, other = (sbom.written(sbom.of_lock(lock, known)) for lock in (demo, demo, locks.LOCKS[2]))
    assert first == again and "timestamp" not in first
    numbers = {json.loads(text)["serialNumber"] for text in (first, again, other)}
    assert len(numbers) == 2


def test_what_the_schema_refuses_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    bom = sbom.of_lock(locks.LOCKS[3], licences.recorded())
    monkeypatch.setattr(sbom.uuid, "uuid5", lambda *_: type("Number", (), {"urn": "no number"}))
    with pytest.raises(ValueError, match="not CycloneDX"):
        sbom.written(bom)


def test_a_bundle_has_a_list_of_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = tiny.bundle()
    monkeypatch.setattr(sys, "argv", ["sbom.py", str(tmp_path / "out"), "--bundle", str(bundle)])
    sbom.main()
    document = json.loads((tmp_path / "out" / f"bundle-{bundle.name}.cdx.json").read_text(encoding="utf-8"))
    listed = {one["name"]: one["hashes"][0]["content"] for one in document["components"]}
    manifest = json.loads((bundle / "bundle.json").read_text(encoding="utf-8"))
    assert listed == {one["name"]: one["sha256"] for one in manifest["files"]}
    assert len(list((tmp_path / "out").iterdir())) == 1 + sum(lock.project for lock in locks.LOCKS)


def test_no_bundle_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no bundle at"):
        sbom.of_bundle(tmp_path / "none")


# --- audit ----------------------------------------------------------------------------------------

GOOD = {"name": "click", "version": "8.5.1", "vulns": []}
BAD = {"name": audit.BAD[0], "version": audit.BAD[1], "vulns": [{"id": "PYSEC-2020-96"}]}
HOLE = {"name": "h11", "version": "0.15", "vulns": [{"id": "GHSA-x"}, {"id": "GHSA-y"}]}


def skipped(name: str) -> dict[str, Any]:
    return {"name": name, "skip_reason": f"Dependency not found and could not be audited: {name}"}


def reported(*entries: dict[str, Any]) -> dict[str, Any]:
    return {"dependencies": list(entries), "fixes": []}


@pytest.mark.parametrize(
    ("reports", "code", "words"),
    [
        ([reported(GOOD, BAD)], 0, "asked about 1 releases, 0 known"),
        ([reported(GOOD, BAD), reported(HOLE)], 1, "h11 0.15: GHSA-y"),
        # Each of these is exit code 0 of pip-audit, or 1 as where there are vulnerabilities.
        ([reported(skipped("click"), skipped("pyyaml"))], 3, "COULD NOT ASK: it does not know pyyaml 5.3"),
        ([reported(GOOD, {**BAD, "vulns": []})], 3, "COULD NOT ASK: it knows no vulnerability of pyyaml 5.3"),
        ([reported(GOOD, BAD), "Name or service not known"], 3, "COULD NOT ASK: Name or service not known"),
        ([reported(GOOD, BAD, skipped("click"))], 3, "no verdict"),
        ([reported(HOLE, BAD, skipped("click"))], 1, "could not be audited: click"),
        ([reported()], 3, "COULD NOT ASK"),
    ],
)
def test_an_audit_that_could_not_ask_is_no_verdict(reports: list[Any], code: int, words: str) -> None:
    said: list[str] = []
    assert audit.verdict({"pypi": audit.answered(reports)}, said.append) == code
    assert words in "\n".join(said)


def test_one_database_that_was_asked_about_everything_is_enough() -> None:
    answers = {"pypi": audit.answered(["no route"]), "osv": audit.answered([reported(GOOD, BAD)])}
    assert audit.verdict(answers, lambda line: None) == 0


def test_no_name_is_asked_about_twice_at_once() -> None:
    found = audit.rounds([("numpy", "2.2.6"), ("numpy", "2.5.5"), ("click", "8.5.1"), ("numpy", "2.4.6")])
    assert found == [[("click", "8.5.1"), ("numpy", "2.2.6")], [("numpy", "2.4.6")], [("numpy", "2.5.5")]]
