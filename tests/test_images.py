"""docker/: what a linter, a schema and rules of our own say of it, and the steps of an image done without an engine."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import image_rehearsal
import jsonschema
import pytest
import tiny_bundle as tiny
import yaml

from edge_runtime.simulator.namespace import forbidden
from edge_runtime.telemetry.identity import identify

ROOT = Path(__file__).parent.parent
DOCKER = ROOT / "docker"
DOCKERFILES = sorted(DOCKER.glob("*.Dockerfile"))
RUNTIMES = [path for path in DOCKERFILES if path.name.startswith("jetpack")]
COMPOSE = ["compose.yaml", "compose.jtop.yaml"]
PYTHONS = {"jetpack-6": ("python3.10", "12.6."), "jetpack-7": ("python3.12", "13.2.")}


# --- Dockerfiles ----------------------------------------------------------------------------------


def hadolint(*arguments: object, text: str | None = None) -> subprocess.CompletedProcess[str]:
    program = shutil.which("hadolint", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if program is None:
        # Its package has a binary for x86 alone.
        assert os.uname().machine != "x86_64", "hadolint comes with the extra `test`"
        pytest.skip("no hadolint for this machine")
    command = [program, "--config", str(ROOT / ".hadolint.yaml"), *map(str, arguments)]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=False)


def test_hadolint_has_nothing_to_say() -> None:
    done = hadolint(*DOCKERFILES)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("step", "rule"),
    [
        ("FROM debian", "DL3006"),
        ("FROM debian:12\nRUN sudo true", "DL3004"),
        ("FROM debian:12\nRUN [ x = $y ]", "SC2086"),
    ],
)
def test_hadolint_would_tell(step: str, rule: str) -> None:
    done = hadolint("-", text=f"{step}\n")
    assert done.returncode == 1 and rule in done.stdout


def problems(path: Path) -> list[str]:
    """What our own rules say, beyond a linter's."""
    stages = image_rehearsal.stages_of(path)
    names = {stage.name for stage in stages}
    found = []
    for stage in stages:
        image, _, tag = stage.base.rpartition(":")
        if stage.base not in names and (not image or tag == "latest"):
            found.append(f"{stage.base}: no tag")
        for command in stage.commands:
            text = command.original
            if command.cmd.upper() == "ADD" or re.search(r"\b(curl|wget)\b", text):
                found.append(f"{text}: fetches what nobody checks")
            if re.search(r"\bpip (install|wheel)", text) and not re.search(r"--require-hashes|--no-index", text):
                found.append(f"{text}: pip without hashes")
            if "--require-hashes" in text and "--only-binary :all:" not in text:
                found.append(f"{text}: builds with whatever a source asks for")
            if re.match(r"(ENV|ARG)\b.*(TOKEN|SECRET|PASSWORD|API_KEY)", text):
                found.append(f"{text}: a secret stays in the image")
    last = {command.cmd.upper(): command for command in stages[-1].commands}
    user = image_rehearsal.expanded(last["USER"].value[0], _arguments(stages[-1])) if "USER" in last else "0:0"
    if not re.fullmatch(r"[1-9]\d*:[1-9]\d*", user):
        found.append(f"it runs as {user}")
    loose = [kind for kind in ("ENTRYPOINT", "CMD") if kind not in last or not last[kind].json]
    return found + [f"{kind} is no list of words" for kind in loose]


def _arguments(stage: image_rehearsal.Stage) -> dict[str, str]:
    given = [part for command in stage.commands if command.cmd.upper() == "ARG" for part in command.value]
    return dict(part.split("=", 1) for part in given)


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.stem)
def test_rules(path: Path) -> None:
    assert problems(path) == []


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (":r36.4.0", ":latest", "no tag"),
        ("USER ${EDGE_UID}:${EDGE_GID}", "USER root", "runs as root"),
        ("--require-hashes -r /requirements/build.txt", "setuptools", "pip without hashes"),
        ("--only-binary :all: --require-hashes -r /requirements/build", "--require-hashes -r /b", "builds with what"),
        ("WORKDIR /tmp", "ENV HF_TOKEN=hf_x", "secret"),
        ("WORKDIR /tmp", "ADD https://example.org/x /x", "fetches"),
        ('CMD ["serve", "--config", "/etc/edge-runtime/config.yaml"]', "CMD serve", "CMD is no list"),
    ],
)
def test_the_rules_can_fail(tmp_path: Path, old: str, new: str, words: str) -> None:
    text = (DOCKER / "jetpack-6.Dockerfile").read_text(encoding="utf-8")
    assert old in text
    (tmp_path / "Dockerfile").write_text(text.replace(old, new), encoding="utf-8")
    assert any(words in problem for problem in problems(tmp_path / "Dockerfile"))


@pytest.mark.parametrize("path", RUNTIMES, ids=lambda path: path.stem)
def test_a_runtime_asks_for_its_health_by_the_socket(path: Path) -> None:
    last = {command.cmd.upper(): command for command in image_rehearsal.stages_of(path)[-1].commands}
    assert last["HEALTHCHECK"].value[-1] == "/opt/edge-runtime/healthcheck.py"
    assert "EXPOSE" not in last and "VOLUME" not in last


def test_both_runtimes_are_the_same_but_for_the_system() -> None:
    six, seven = ({line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("#")}
                  for path in RUNTIMES)  # fmt: skip
    own = [line for line in six ^ seven if not re.search(r"python3|BASE|TENSORRT|FROM|JetPack|TensorRT|apt|dpkg", line)]
    assert own == []


# --- what goes in ---------------------------------------------------------------------------------


def test_no_weights_and_no_tests_in_the_context() -> None:
    taken = list(image_rehearsal.context_files(ROOT))
    needed = {"edge_runtime/cli/serve.py", "edge_runtime/systemd", "docker/healthcheck.py", "systemd/jtop.conf"}
    assert needed <= set(taken)
    assert not [path for path in taken if path.endswith(image_rehearsal.WEIGHTS) or "__pycache__" in path]
    assert not [path for path in taken if path.startswith(("tests/", ".git", "docs/", "bundles/"))]
    assert sum((ROOT / path).lstat().st_size for path in taken) < 8_000_000


def test_a_context_with_weights_would_be_seen() -> None:
    weights = "export/drafters/gemma-3-270m/model.safetensors"
    assert not image_rehearsal.ignored(weights, ["*", "!export"])
    assert image_rehearsal.ignored(weights, ["*", "!export", "export/drafters"])
    assert image_rehearsal.ignored("docker/.env", ["*", "!docker/healthcheck.py"])
    assert image_rehearsal.ignored("edge_runtime/cli/__pycache__/x.pyc", ["*", "!edge_runtime", "**/__pycache__"])


@pytest.mark.parametrize("image", PYTHONS)
def test_cuda_of_python_is_the_cuda_of_the_base_image(image: str) -> None:
    requirements, version = PYTHONS[image]
    text = (DOCKER / f"{image}.Dockerfile").read_text(encoding="utf-8")
    assert f"COPY requirements/{requirements}.txt" in text
    lock = (ROOT / "requirements" / f"{requirements}.txt").read_text(encoding="utf-8")
    (cuda,) = re.findall(r"^cuda-python==(\S+)", lock, re.MULTILINE)
    assert cuda.startswith(version)


# --- compose --------------------------------------------------------------------------------------


def compose(name: str) -> dict[str, Any]:
    loaded = yaml.safe_load((DOCKER / name).read_text(encoding="utf-8"))
    assert isinstance(loaded, dict)
    return loaded


def validated(document: dict[str, Any]) -> list[str]:
    package = find_spec("check_jsonschema")
    assert package is not None and package.origin is not None
    schema = Path(package.origin).parent / "builtin_schemas/vendor/compose-spec.json"
    validator = jsonschema.Draft202012Validator(json.loads(schema.read_text(encoding="utf-8")))
    return [error.message for error in validator.iter_errors(document)]


@pytest.mark.parametrize("name", COMPOSE)
def test_compose_is_of_the_specification(name: str) -> None:
    assert validated(compose(name)) == []


def test_the_schema_would_tell() -> None:
    document = compose("compose.yaml")
    document["services"]["edge-runtime"]["readonly"] = True
    document["services"]["build"]["group_add"] = {"video": 44}
    assert len(validated(document)) >= 2


@pytest.mark.parametrize("service", ["edge-runtime", "build"])
def test_a_service_may_do_no_more_than_it_needs(service: str) -> None:
    said = compose("compose.yaml")["services"][service]
    assert (said["runtime"], said["network_mode"], said["read_only"]) == ("nvidia", "none", True)
    assert said["cap_drop"] == ["ALL"] and said["security_opt"] == ["no-new-privileges:true"]
    assert said["ulimits"]["core"] == 0 and any(one.startswith("/tmp") for one in said["tmpfs"])
    assert not {"privileged", "pid", "ipc", "ports", "cap_add"} & set(said)
    assert "EDGE_UID" in said["user"] and {"VIDEO_GID", "RENDER_GID"} <= variables(" ".join(said["group_add"]))


def test_directories_are_mounted_and_none_is_made() -> None:
    mounts = {one["target"]: one for one in compose("compose.yaml")["services"]["edge-runtime"]["volumes"]}
    mounts |= {one["target"]: one for one in compose("compose.jtop.yaml")["services"]["edge-runtime"]["volumes"]}
    assert {target for target, one in mounts.items() if not one.get("read_only", False)} == {
        "/run/edge-runtime",
        "/run/jtop.sock",
    }
    files = {target for target in mounts if target.endswith((".sock", "_release"))}
    assert files == {"/run/jtop.sock", "/etc/nv_tegra_release"}  # each with its reason beside it
    assert all(one["bind"] == {"create_host_path": False} for one in mounts.values())


def test_it_is_given_the_time_that_the_daemon_takes() -> None:
    unit = (ROOT / "systemd/edge-runtime.service").read_text(encoding="utf-8")
    stop_s = re.search(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE)
    assert stop_s is not None
    assert compose("compose.yaml")["services"]["edge-runtime"]["stop_grace_period"] == f"{stop_s[1]}s"


def variables(text: str) -> set[str]:
    return set(re.findall(r"\$\{(\w+)", text))


# --- the numbers of a machine ---------------------------------------------------------------------

GROUPS = {"video": 44, "render": 104, "edge-runtime": 990, "jtop": 1001}


def env_sh(tmp_path: Path, groups: dict[str, int], release: str) -> subprocess.CompletedProcess[str]:
    fakes = tmp_path / "fakes"
    fakes.mkdir()
    known = "".join(f"{name}) echo {name}:x:{gid}: ;; " for name, gid in groups.items())
    (fakes / "getent").write_text(f'#!/bin/sh\ncase "$2" in {known} *) exit 2 ;; esac\n')
    (fakes / "id").write_text("#!/bin/sh\necho 991\n")
    for name in ("getent", "id"):
        (fakes / name).chmod(0o755)
    (tmp_path / "release").write_text(release)
    environment = {"PATH": f"{fakes}:{os.environ['PATH']}", "NV_TEGRA_RELEASE": str(tmp_path / "release")}
    return subprocess.run(["sh", str(DOCKER / "env.sh")], env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("release", "jetpack"), [("# R36 (release), REVISION: 4.3\n", "6"), ("# R39 (release)", "7")])
def test_all_that_compose_asks_for_is_told(tmp_path: Path, release: str, jetpack: str) -> None:
    done = env_sh(tmp_path, GROUPS, release)
    told = dict(line.split("=") for line in done.stdout.splitlines())
    assert done.returncode == 0 and done.stderr == ""
    assert told == {"JETPACK": jetpack, "EDGE_UID": "991", "EDGE_GID": "990", "VIDEO_GID": "44", "RENDER_GID": "104",
                    "JTOP_GID": "1001"}  # fmt: skip
    asked = {one for name in COMPOSE for one in variables((DOCKER / name).read_text(encoding="utf-8"))}
    assert asked == set(told)
    assert (DOCKER / f"jetpack-{jetpack}.Dockerfile").is_file()


@pytest.mark.parametrize(
    ("lacking", "release", "words"),
    [
        ("edge-runtime", "# R36 (release)\n", "systemd-sysusers"),
        ("render", "# R36 (release)\n", "there is no group render"),
        ("none", "# R35 (release)\n", "neither L4T 36"),
    ],
)
def test_what_is_missing_is_one_line(tmp_path: Path, lacking: str, release: str, words: str) -> None:
    groups = {name: gid for name, gid in GROUPS.items() if name != lacking}
    done = env_sh(tmp_path, groups, release)
    assert done.returncode == 1 and words in done.stderr and done.stderr.count("\n") == 1 and done.stdout == ""


# --- in a container -------------------------------------------------------------------------------


@pytest.fixture
def answering(tmp_path: Path) -> Iterator[Callable[[bytes], Path]]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:

        def answer(data: bytes) -> Path:
            listener.bind(str(tmp_path / "s"))
            listener.listen()
            threading.Thread(target=once, args=(data,), daemon=True).start()
            return tmp_path / "s"

        def once(data: bytes) -> None:
            connection, _ = listener.accept()
            with connection:
                assert connection.recv(1024).startswith(b"GET /health HTTP/1.1\r\n")
                connection.sendall(data)

        yield answer


def healthy(path: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-IS", str(DOCKER / "healthcheck.py"), str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("data", "code"),
    [(b"HTTP/1.1 200 OK\r\n\r\n", 0), (b"HTTP/1.1 503 Service Unavailable\r\n\r\n", 1), (b"", 1), (b"\xff 200\r\n", 0)],
)
def test_health(answering: Callable[[bytes], Path], data: bytes, code: int) -> None:
    assert healthy(answering(data)).returncode == code


def test_health_of_nobody(tmp_path: Path) -> None:
    done = healthy(tmp_path / "none")
    assert done.returncode == 1 and done.stderr.count("\n") == 1


def test_a_container_knows_its_board_by_what_is_mounted(tmp_path: Path) -> None:
    (target,) = (one["target"] for one in compose("compose.yaml")["services"]["edge-runtime"]["volumes"]
                 if one["source"].endswith("devicetree/base"))  # fmt: skip
    (tmp_path / "sys/firmware").mkdir(parents=True)  # an engine puts an empty one over the host's
    tree = tmp_path / target.lstrip("/")
    tree.mkdir(parents=True)
    (tree / "compatible").write_bytes(b"nvidia,p3768-0000+p3767-0005\0nvidia,p3767-0005\0nvidia,tegra234\0")
    found = identify(tmp_path)
    assert found.tegra and found.board is not None and found.board.name == "orin-nano-8"


def test_the_steps_of_an_image_without_an_engine() -> None:
    """The wheel is built and installed into the image's environment, whose command serves a bundle and answers."""
    if (reason := forbidden()) is not None:
        pytest.skip(reason)
    options = ("--offline", "--bundle", str(tiny.bundle()))
    command = [sys.executable, str(ROOT / "tests/image_rehearsal.py"), str(DOCKER / "jetpack-6.Dockerfile"), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    left_out = [line for line in done.stdout.splitlines() if line.startswith("left out")]
    assert [line.split("(")[1].split(")")[0] for line in left_out] == [
        "downloads", "packages of the base image's archive", "downloads", "packages of the base image",
    ]  # fmt: skip
    assert done.stdout.endswith("started, healthy, answered, ended with 0\n")
