"""The units in systemd/: that systemd takes them, and that what they say fits the daemon."""

from __future__ import annotations

import configparser
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tiny_bundle as tiny
from daemon_runs import write_config
from unit_checks import verify

from edge_runtime.client import Client
from edge_runtime.config import DEFAULT_SOCKET, Config, read_config

ROOT = Path(__file__).parent.parent
UNITS = ROOT / "systemd"
BOARDS = sorted((ROOT / "configs").glob("*-orin-*.yaml")) + sorted((ROOT / "configs").glob("orin-*.yaml"))


def settings(name: str) -> dict[str, dict[str, str]]:
    """Section -> key -> value of a unit; keys that stand several times have their last value."""
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string((UNITS / name).read_text(encoding="utf-8"))
    return {section: dict(parser[section]) for section in parser.sections()}


def seconds(text: str) -> float:
    assert text.isdecimal(), f"{text!r}: say seconds"
    return float(text)


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The units as on a machine where the program is installed: here, in this Python's directory."""
    for path in UNITS.glob("edge-runtime.*"):
        text = path.read_text(encoding="utf-8")
        (tmp_path / path.name).write_text(text.replace("/opt/edge-runtime/bin/edge-runtime", sys.executable))
    return tmp_path


def test_systemd_takes_the_units(installed: Path) -> None:
    done = verify(installed)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("old", "new"),
    [("Type=notify", "Type=notfy"), ("WatchdogSec=30", "WatchdogSec=often"), ("ProtectHome=yes", "ProtectHom=yes")],
)
def test_systemd_would_tell(installed: Path, old: str, new: str) -> None:
    path = installed / "edge-runtime.service"
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")
    done = verify(installed)
    assert new.split("=")[0] in done.stderr or new.split("=")[1] in done.stderr


def test_the_service_is_what_the_daemon_expects() -> None:
    service = settings("edge-runtime.service")["Service"]
    assert (service["Type"], service["NotifyAccess"], service["Restart"]) == ("notify", "main", "on-failure")
    assert service["ExecReload"] == "/bin/kill -HUP $MAINPID"
    assert re.fullmatch(r"/\S+/edge-runtime serve --config /etc/edge-runtime/\S+\.yaml", service["ExecStart"])
    # Exit code 2 is a wrong configuration or bundle.
    assert service["RestartPreventExitStatus"] == "2"
    assert seconds(service["WatchdogSec"]) >= 10
    assert (service["RuntimeDirectory"], service["RuntimeDirectoryMode"]) == ("edge-runtime", "0750")
    assert service["RuntimeDirectoryPreserve"] == "yes"  # the socket unit's socket lies in it


def test_it_may_do_no_more_than_it_needs() -> None:
    service = settings("edge-runtime.service")["Service"]
    wanted = {
        "NoNewPrivileges": "yes", "ProtectSystem": "strict", "ProtectHome": "yes", "PrivateTmp": "yes",
        "RestrictAddressFamilies": "AF_UNIX", "User": "edge-runtime", "LimitCORE": "0",
    }  # fmt: skip
    assert {key: service.get(key) for key in wanted} == wanted
    # What would take the GPU away, or make all clients the same user.
    for key in ("PrivateDevices", "PrivateUsers", "MemoryDenyWriteExecute"):
        assert key not in service


EXPOSURE = 20
"""Tenths, of 100: what systemd sees that a service could do."""


def exposure(place: Path, most: int) -> subprocess.CompletedProcess[str]:
    program = shutil.which("systemd-analyze")
    assert program is not None
    command = [program, "security", "--offline=true", "--no-pager", f"--threshold={most}"]
    return subprocess.run([*command, str(place)], capture_output=True, text=True, check=False)


def test_systemd_finds_little_that_it_could_do(installed: Path) -> None:
    """What is left is needed: a device, code made at run time, clients' uids, its own socket's group."""
    program = shutil.which("systemd-analyze")
    if program is None or "--offline" not in subprocess.run([program, "--help"], capture_output=True, text=True).stdout:
        pytest.skip("systemd-analyze is not installed, or older than 250: it cannot judge a unit that is not running")
    path = installed / "edge-runtime.service"
    done = exposure(path, EXPOSURE)
    assert done.returncode == 0 and "Overall exposure level" in done.stdout, done.stdout + done.stderr
    text = path.read_text(encoding="utf-8")
    for line in ("CapabilityBoundingSet=\n", "SystemCallFilter=@system-service\n", "NoNewPrivileges=yes\n"):
        assert line in text
        text = text.replace(line, "")
    path.write_text(text, encoding="utf-8")
    assert exposure(path, EXPOSURE).returncode != 0


def test_the_time_to_stop_is_longer_than_a_drain() -> None:
    stop_s = seconds(settings("edge-runtime.service")["Service"]["TimeoutStopSec"])
    assert stop_s > Config("b").drain_s + 15
    for path in BOARDS:
        assert stop_s > read_config(path).drain_s + 15


def test_the_socket_is_where_clients_look() -> None:
    unit = settings("edge-runtime.socket")["Socket"]
    assert unit["ListenStream"] == DEFAULT_SOCKET
    assert (unit["SocketMode"], unit["SocketGroup"], unit["DirectoryMode"]) == ("0660", "edge-runtime", "0750")
    assert len(BOARDS) == 6
    for path in BOARDS:
        server = read_config(path).server
        assert (server.socket, server.mode, server.group) == (DEFAULT_SOCKET, "0660", "edge-runtime")


def test_user_and_directories() -> None:
    sysusers = (UNITS / "sysusers.conf").read_text(encoding="utf-8")
    assert re.search(r"^u edge-runtime ", sysusers, re.MULTILINE)
    tmpfiles = (UNITS / "tmpfiles.conf").read_text(encoding="utf-8")
    assert re.search(r"^d /run/edge-runtime 0750 edge-runtime edge-runtime", tmpfiles, re.MULTILINE)
    for program, option, text in (
        ("systemd-sysusers", "--dry-run", sysusers),
        ("systemd-tmpfiles", "--dry-run", tmpfiles),
    ):
        known = shutil.which(program)
        if known is None or option not in subprocess.run([known, "--help"], capture_output=True, text=True).stdout:
            continue
        done = subprocess.run([known, option, "-"], input=text, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


# --- for real -------------------------------------------------------------------------------------


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


@pytest.mark.skipif(not Path("/run/systemd/system").is_dir(), reason="systemd does not run here: see test_daemon.py")
def test_started_reloaded_and_stopped_by_systemd(tmp_path: Path) -> None:
    whose = [] if os.geteuid() == 0 else ["--user"]
    if run("systemctl", *whose, "show-environment").returncode != 0:
        pytest.skip("no systemd manager for this user")
    unit = f"edge-runtime-test-{os.getpid()}.service"
    service = settings("edge-runtime.service")["Service"]
    keys = ("Type", "NotifyAccess", "ExecReload", "WatchdogSec", "TimeoutStartSec", "TimeoutStopSec", "UMask")
    properties = [f"--property={key}={service[key]}" for key in keys]
    config = write_config(tmp_path / "daemon.yaml", tiny.bundle())
    command = [sys.executable, "-m", "edge_runtime", "serve", "--config", str(config)]
    directory = f"--property=WorkingDirectory={ROOT}"

    def state(key: str) -> str:
        return run("systemctl", *whose, "show", "--value", f"--property={key}", unit).stdout.strip()

    try:
        # Returns after READY=1.
        started = run("systemd-run", *whose, f"--unit={unit}", directory, *properties, "--", *command)
        assert started.returncode == 0, started.stderr + run("journalctl", *whose, "-u", unit).stdout
        assert (state("ActiveState"), state("StatusText").split()[0]) == ("active", "serving")
        with Client(tmp_path / "api.sock") as client:
            assert client.complete("Hi", max_tokens=3).usage is not None
            assert run("systemctl", *whose, "reload", unit).returncode == 0
            assert client.health().ready
        assert run("systemctl", *whose, "stop", unit).returncode == 0
        assert state("Result") in ("success", "")
        assert not (tmp_path / "api.sock").exists()
    finally:
        run("systemctl", *whose, "kill", "--signal=KILL", unit)
        run("systemctl", *whose, "reset-failed", unit)


def test_the_readme_names_every_file() -> None:
    readme = (UNITS / "README.md").read_text(encoding="utf-8")
    for path in UNITS.iterdir():
        assert path.name in readme or path.name == "README.md"


# --- what stands beside the units -----------------------------------------------------------------


def test_the_package_has_what_stands_here() -> None:
    package = ROOT / "edge_runtime"
    for name in ("systemd", "configs"):
        assert (package / name).is_symlink() and (package / name).resolve() == ROOT / name


def test_it_waits_for_what_a_board_has_and_needs_none_of_it() -> None:
    unit = settings("edge-runtime.service")["Unit"]
    assert set(unit["Wants"].split()) == set(unit["After"].split()) >= {"jtop.service", "nvpmodel.service"}
    assert "Requires" not in unit and "BindsTo" not in unit
    # Groups that a machine does not have would keep it from starting: they are in a drop-in, as far as there are any.
    assert "SupplementaryGroups" not in settings("edge-runtime.service")["Service"]
    assert settings("groups.conf")["Service"] == {"SupplementaryGroups": "video render jtop"}


def test_jtop_comes_back_when_it_ends_with_code_0(tmp_path: Path) -> None:
    assert settings("jtop.conf")["Service"]["Restart"] == "always"
    # As jetson-stats installs it: on-failure alone lets it lie where one reading failed.
    (tmp_path / "jtop.service").write_text("[Service]\nExecStart=/bin/true\nRestart=on-failure\nRestartSec=10s\n")
    drop_in = tmp_path / "jtop.service.d/edge-runtime.conf"
    drop_in.parent.mkdir()
    drop_in.write_text((UNITS / "jtop.conf").read_text(encoding="utf-8"), encoding="utf-8")
    done = verify(tmp_path, "jtop")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    drop_in.write_text("[Service]\nRestart=ever\n", encoding="utf-8")
    assert "ever" in verify(tmp_path, "jtop").stderr
