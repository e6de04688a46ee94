"""``install-service`` and ``uninstall-service``: into a tree like a board's, and for real in a private place."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from unit_checks import verify

from edge_runtime.boards import BOARDS, Board, board_named
from edge_runtime.cli import install_service, main
from edge_runtime.config import read_config
from edge_runtime.simulator.namespace import forbidden

ROOT = Path(__file__).parent.parent
PROGRAM = "opt/edge-runtime/bin/edge-runtime"
CONFIG = "etc/edge-runtime/config.yaml"
HOME = str(Path("/home", "me"))
UNITS = "etc/systemd/system"
WRITTEN = {
    CONFIG, "etc/edge-runtime/installed.json", "etc/sysusers.d/edge-runtime.conf", "etc/tmpfiles.d/edge-runtime.conf",
    f"{UNITS}/edge-runtime.service", f"{UNITS}/edge-runtime.socket", f"{UNITS}/jtop.service.d/edge-runtime.conf",
    f"{UNITS}/edge-runtime.service.d/groups.conf",
}  # fmt: skip


def tree(root: Path, board: Board) -> Path:
    """As far as it matters here: which board it is, its groups, and the program."""
    device_tree = root / "sys/firmware/devicetree/base"
    device_tree.mkdir(parents=True)
    (device_tree / "compatible").write_bytes(f"nvidia,{board.parts[0]}\0nvidia,tegra234\0".encode())
    (root / "etc").mkdir()
    (root / "etc/group").write_text("root:x:0:\nvideo:x:44:\nrender:x:104:\njtop:x:1001:\n")
    (root / PROGRAM).parent.mkdir(parents=True)
    (root / PROGRAM).touch()
    return root


@pytest.fixture
def board(tmp_path: Path) -> Path:
    return tree(tmp_path / "board", board_named("orin-nano-8"))


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def install(board: Path, *options: object) -> list[str]:
    done = run("install-service", "--root", board, "--prefix", "/opt/edge-runtime", *options)
    assert done.exit_code == 0, done.output
    return done.output.splitlines()


def uninstall(board: Path, *options: object) -> list[str]:
    done = run("uninstall-service", "--root", board, *options)
    assert done.exit_code == 0, done.output
    return done.output.splitlines()


def refused(board: Path, words: str, *options: object) -> None:
    before = files(board)
    done = run("install-service", "--root", board, "--prefix", "/opt/edge-runtime", *options)
    assert done.exit_code == 2 and words in done.stderr and done.stderr.count("\n") == 1, done.output
    assert files(board) == before


def files(board: Path) -> dict[str, str]:
    """All regular files and directories below it that may change, with what stands in them."""
    found = {}
    for folder in ("etc", "opt", "var"):
        for path in sorted((board / folder).rglob("*")):
            if not path.is_symlink():
                found[path.relative_to(board).as_posix()] = path.read_text() if path.is_file() else "/"
    return found


def texts(board: Path) -> str:
    return "".join(text for name, text in files(board).items() if name.startswith("etc/"))


# --- what is written ------------------------------------------------------------------------------


def test_a_tree_gets_its_files_and_loses_them_again(board: Path) -> None:
    before = files(board)
    told = install(board)
    after = files(board)
    assert {name for name in after if name not in before and after[name] != "/"} == WRITTEN
    for name in WRITTEN:
        assert stat.S_IMODE((board / name).stat().st_mode) == 0o644
        assert any(line.startswith("write") and line.endswith(str(board / name)) for line in told)
    later = [line.removeprefix("later  ") for line in told if line.startswith("later")]
    assert later == [
        "systemd-sysusers /etc/sysusers.d/edge-runtime.conf",
        "systemd-tmpfiles --create /etc/tmpfiles.d/edge-runtime.conf",
        "systemctl daemon-reload",
        "systemctl enable edge-runtime.socket edge-runtime.service",
    ]
    assert any("no bundle in /var/lib/edge-runtime/bundle yet" in line for line in told)
    assert "later  systemctl disable --now edge-runtime.socket edge-runtime.service" in uninstall(board)
    assert files(board) == before
    assert uninstall(board) == ["nothing to remove: no service was installed from here"]


def test_a_dry_run_names_the_same_and_changes_nothing(board: Path) -> None:
    before = files(board)
    dry = install(board, "--dry-run")
    assert files(board) == before
    real = install(board)
    assert [line.replace("would ", "") for line in dry] == real
    after = files(board)
    dry = uninstall(board, "--dry-run")
    assert files(board) == after
    assert [line.replace("would ", "") for line in dry] == uninstall(board)


def test_again_changes_nothing(board: Path) -> None:
    install(board)
    before = {name: (board / name).stat().st_mtime_ns for name in WRITTEN}
    told = install(board)
    assert {name: (board / name).stat().st_mtime_ns for name in WRITTEN} == before
    assert not any(line.startswith(("write", "make", "remove")) for line in told)


def test_with_a_bundle_it_is_started(board: Path) -> None:
    bundle = board / "var/lib/edge-runtime/bundle/bundle.json"
    bundle.parent.mkdir(parents=True)
    bundle.touch()
    assert "later  systemctl restart --no-block edge-runtime.socket edge-runtime.service" in install(board)


@pytest.mark.parametrize("name", [board.name for board in BOARDS])
def test_every_board_has_its_configuration(tmp_path: Path, name: str) -> None:
    root = tree(tmp_path / name, board_named(name))
    install(root)
    assert (root / CONFIG).read_text() == (ROOT / f"configs/{name}gb.yaml").read_text()


def test_another_user_is_all_of_it(board: Path) -> None:
    install(board, "--user", "gemma")
    text = texts(board)
    lines = ["User=gemma", "Group=gemma", "SocketUser=gemma", "SocketGroup=gemma"]
    lines += [f"d /{place}/edge-runtime 0750 gemma gemma -" for place in ("run", "var/lib")]
    assert set(lines) <= set(text.splitlines()) and "\nu gemma - " in text
    assert read_config(board / CONFIG).server.group == "gemma"


def test_the_program_is_where_it_was_said_to_be(board: Path) -> None:
    (board / "srv/gemma/bin").mkdir(parents=True)
    (board / "srv/gemma/bin/edge-runtime").touch()
    done = run("install-service", "--root", board, "--prefix", "/srv/gemma")
    assert done.exit_code == 0
    unit = (board / UNITS / "edge-runtime.service").read_text()
    assert "\nExecStart=/srv/gemma/bin/edge-runtime serve --config /etc/edge-runtime/config.yaml\n" in unit


def test_only_groups_that_there_are(board: Path) -> None:
    drop_in = board / UNITS / "edge-runtime.service.d/groups.conf"
    install(board)
    assert "\nSupplementaryGroups=video render jtop\n" in drop_in.read_text()
    (board / "etc/group").write_text("root:x:0:\nvideo:x:44:\n")
    install(board)
    assert "\nSupplementaryGroups=video\n" in drop_in.read_text()
    (board / "etc/group").write_text("root:x:0:\n")
    told = install(board)
    assert f"remove {drop_in}" in told and not drop_in.exists()


def given(tmp_path: Path, more: str = "", *, bundle: str = "/srv/bundle") -> Path:
    path = tmp_path / "given.yaml"
    path.write_text(f"bundle: {bundle}\n{more}", encoding="utf-8")
    return path


def test_a_configuration_of_ones_own(board: Path, tmp_path: Path) -> None:
    path = given(tmp_path, "server: {tcp: '127.0.0.1:8080'}\ndrain_s: 100\n")
    install(board, "--config", path)
    assert (board / CONFIG).read_text() == path.read_text()
    # What it asks for, the unit allows.
    assert "\nTimeoutStopSec=120\n" in (board / UNITS / "edge-runtime.service").read_text()
    assert "AF_INET" in (board / UNITS / "edge-runtime.service.d/tcp.conf").read_text()
    install(board, "--config", given(tmp_path))
    assert not (board / UNITS / "edge-runtime.service.d/tcp.conf").exists()
    assert "\nTimeoutStopSec=60\n" in (board / UNITS / "edge-runtime.service").read_text()


# --- what was edited ------------------------------------------------------------------------------


def test_what_was_edited_stays(board: Path, tmp_path: Path) -> None:
    install(board)
    edited = (board / CONFIG).read_text() + "# mine\n"
    (board / CONFIG).write_text(edited)
    unit = board / UNITS / "edge-runtime.service"
    unit.write_text(unit.read_text() + "# mine\n")
    told = install(board, "--config", given(tmp_path), "--user", "edge-runtime")
    kept = [line.split()[1] for line in told if line.startswith("keep") and "edited since" in line]
    assert kept == [str(board / CONFIG), str(unit)]
    assert (board / CONFIG).read_text() == edited and unit.read_text().endswith("# mine\n")
    told = uninstall(board)
    assert f"what was edited stays: sudo rm /{CONFIG} /{UNITS}/edge-runtime.service" in told
    assert (board / CONFIG).read_text() == edited and unit.exists()
    assert not (board / UNITS / "edge-runtime.socket").exists()


def test_what_was_there_before_is_never_removed(board: Path) -> None:
    (board / "etc/sysusers.d").mkdir()
    theirs = board / "etc/sysusers.d/edge-runtime.conf"
    theirs.write_text("u edge-runtime 990\n")
    told = install(board)
    assert any(line.startswith("keep") and str(theirs) in line and "not from here" in line for line in told)
    uninstall(board)
    assert theirs.read_text() == "u edge-runtime 990\n"


def test_half_done_is_undone(board: Path) -> None:
    before = files(board)
    install(board)
    (board / UNITS / "edge-runtime.service").unlink()
    (board / UNITS / "edge-runtime.service.d/more.conf").write_text("[Service]\n")
    told = uninstall(board)
    assert "later  systemctl disable --now edge-runtime.socket" in told
    # What somebody else put there stays, and so does the directory around it.
    (board / UNITS / "edge-runtime.service.d/more.conf").unlink()
    (board / UNITS / "edge-runtime.service.d").rmdir()
    (board / UNITS).rmdir()
    (board / UNITS).parent.rmdir()
    assert files(board) == before


def test_what_fails_in_the_middle_is_undone(board: Path) -> None:
    (board / UNITS).parent.mkdir(parents=True)
    (board / UNITS).touch()  # in the place of a directory
    before = files(board)
    done = run("install-service", "--root", board, "--prefix", "/opt/edge-runtime")
    assert done.exit_code == 1 and "File exists" in done.stderr and done.stderr.count("\n") == 1
    assert files(board) != before
    uninstall(board)
    assert files(board) == before


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("server: {socket: /run/other/api.sock}\n", "server.socket must be /run/edge-runtime/api.sock"),
        ("server: {group: staff}\n", "server.group must be 'edge-runtime'"),
        ("engine: {contxt: 5}\n", "contxt"),
    ],
)
def test_a_configuration_that_no_service_can_have(board: Path, tmp_path: Path, more: str, words: str) -> None:
    refused(board, words, "--config", given(tmp_path, more))


@pytest.mark.parametrize(
    ("bundle", "words"),
    [("bundle", "must be an absolute path"), (f"{HOME}/bundle", "service does not see"), ("/tmp/b", "does not see")],
)
def test_a_bundle_that_the_service_would_not_find(board: Path, tmp_path: Path, bundle: str, words: str) -> None:
    refused(board, words, "--config", given(tmp_path, bundle=bundle))


@pytest.mark.parametrize("name", ["root", "Gemma", "a b", "-x", "x" * 32])
def test_users_that_are_none(board: Path, name: str) -> None:
    refused(board, "--user", f"--user={name}")


def test_a_machine_of_an_unknown_kind_needs_a_configuration(board: Path) -> None:
    shutil.rmtree(board / "sys/firmware")
    refused(board, "give --config FILE")


def test_no_program_or_one_that_the_service_does_not_see(board: Path) -> None:
    for prefix, words in (("/srv/nothing", "there is no program"), (f"{HOME}/venv", "lies below /home")):
        place = board / prefix.lstrip("/") / "bin"
        if prefix.startswith(HOME):
            place.mkdir(parents=True)
            (place / "edge-runtime").touch()
        done = run("install-service", "--root", board, "--prefix", prefix)
        assert done.exit_code == 2 and words in done.stderr


def test_a_record_that_is_none_of_ours(board: Path) -> None:
    (board / "etc/edge-runtime").mkdir()
    (board / "etc/edge-runtime/installed.json").write_text("[]")
    refused(board, "not what install-service wrote")


def test_without_systemd_or_root_one_line_and_code_2(
    monkeypatch: pytest.MonkeyPatch, board: Path, tmp_path: Path
) -> None:
    def all_is_well(*_: object, **__: object) -> str:
        return "/opt/edge-runtime/bin/edge-runtime"

    monkeypatch.setattr(install_service, "_program", all_is_well)
    arguments = ("install-service", "--config", given(tmp_path, bundle="/var/lib/edge-runtime/bundle"))
    monkeypatch.setattr(install_service, "_SYSTEMD_RUNS", tmp_path / "none")
    done = run(*arguments)
    assert done.exit_code == 2 and "systemd does not run here" in done.stderr and done.stderr.count("\n") == 1
    monkeypatch.setattr(install_service, "_SYSTEMD_RUNS", tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    done = run(*arguments)
    assert done.exit_code == 2 and "needs root: sudo" in done.stderr and done.stderr.count("\n") == 1
    assert run(*arguments, "--dry-run").exit_code == 0


# --- for real -------------------------------------------------------------------------------------

_LIVE = """set -e
mount -t tmpfs none /mnt; mkdir -p /mnt/etc /mnt/work
mount -t overlay none -o lowerdir=/etc,upperdir=/mnt/etc,workdir=/mnt/work /etc
mount -t tmpfs none /srv; mkdir -p /srv/edge-runtime/bin; touch /srv/edge-runtime/bin/edge-runtime
mount -t tmpfs none /run; mkdir -p /run/systemd/system
mount -t tmpfs none /var/lib; mkdir -p /var/lib/edge-runtime/bundle; touch /var/lib/edge-runtime/bundle/bundle.json
edge() { "$PYTHON" -m edge_runtime "$@"; }
edge install-service --prefix /srv/edge-runtime --config "$CONFIG"
echo again >>"$LOG"
edge install-service --prefix /srv/edge-runtime
echo gone >>"$LOG"
edge uninstall-service
find /mnt/etc -type f
echo fails >>"$LOG"
printf '#!/bin/sh\necho "Unit is masked" >&2; exit 5\n' >"$FAKES/systemctl"
edge install-service --prefix /srv/edge-runtime --config "$CONFIG" >/dev/null || echo "code $?"
"""


def test_on_a_machine_its_commands_are_run(tmp_path: Path) -> None:
    """In mounts of its own; systemd's programs are stand-ins that write down how they were called."""
    if (reason := forbidden()) is not None:
        pytest.skip(reason)
    log, fakes = tmp_path / "log", tmp_path / "fakes"
    fakes.mkdir()
    for name in ("systemctl", "systemd-sysusers", "systemd-tmpfiles"):
        (fakes / name).write_text(f'#!/bin/sh\necho "{name} $*" >>"$LOG"\n')
        (fakes / name).chmod(0o755)
    config = given(tmp_path, bundle="/var/lib/edge-runtime/bundle")
    environment = {"PATH": f"{fakes}:{os.environ['PATH']}", "LOG": str(log), "FAKES": str(fakes), "CONFIG": str(config),
                   "PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}  # fmt: skip
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", _LIVE]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    units = "edge-runtime.socket edge-runtime.service"
    assert log.read_text().splitlines() == [
        "systemd-sysusers /etc/sysusers.d/edge-runtime.conf",
        "systemd-tmpfiles --create /etc/tmpfiles.d/edge-runtime.conf",
        "systemctl daemon-reload",
        f"systemctl enable {units}",
        f"systemctl restart --no-block {units}",
        "again",
        f"systemctl enable {units}",
        f"systemctl start --no-block {units}",
        "gone",
        f"systemctl disable --now {units}",
        "systemctl daemon-reload",
        "fails",
        "systemd-sysusers /etc/sysusers.d/edge-runtime.conf",
        "systemd-tmpfiles --create /etc/tmpfiles.d/edge-runtime.conf",
    ]
    assert "/mnt/etc" not in done.stdout
    assert done.stdout.endswith("code 1\n") and "systemctl daemon-reload: Unit is masked" in done.stderr


def test_what_is_installed_is_what_systemd_takes(board: Path, tmp_path: Path) -> None:
    install(board, "--config", given(tmp_path, "server: {tcp: '127.0.0.1:8080'}\n"))
    unit = board / UNITS / "edge-runtime.service"
    unit.write_text(unit.read_text().replace(f"/{PROGRAM}", sys.executable))
    done = verify(board / UNITS)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    drop_in = board / UNITS / "edge-runtime.service.d/tcp.conf"
    drop_in.write_text(drop_in.read_text().replace("localhost", "somewhere"))
    assert "somewhere" in verify(board / UNITS).stderr


def test_the_record_says_all_that_was_made(board: Path) -> None:
    install(board)
    record = json.loads((board / "etc/edge-runtime/installed.json").read_text())
    assert {path.lstrip("/") for path in record["files"]} == WRITTEN - {"etc/edge-runtime/installed.json"}
