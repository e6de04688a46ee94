"""The daemon as a process, from its first datagram to its exit code; the manager is this test."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import tiny_bundle as tiny
from daemon_runs import PATIENCE_S, Gate, Running, daemon, settled, write_config

from edge_runtime.client import Client, Completion, EdgeRuntimeError

SECRET = "xyzzy plugh"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return write_config(tmp_path / "daemon.yaml", tiny.bundle())


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    made = Gate(tmp_path / "gate")
    yield made
    made.close()


def assert_refused(running: Running, words: str) -> None:
    with running.client(patience_s=0.0) as client, pytest.raises(EdgeRuntimeError, match=words) as caught:
        client.complete("Hi", max_tokens=1)
    assert caught.value.status == 503 and caught.value.retry_after_s is not None


def count_of(done: Completion) -> int:
    assert done.usage is not None
    return done.usage.completion_tokens


def post_bundle(running: Running, place: Path) -> httpx.Response:
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(running.socket_path)), timeout=PATIENCE_S) as client:
        return client.post("http://x/v1/admin/bundle", json={"path": str(place)})


# --- a life ---------------------------------------------------------------------------------------


def test_a_whole_life(tmp_path: Path, config: Path, gate: Gate) -> None:
    gate.shut()
    with daemon(tmp_path, config, gate=gate) as running:
        assert running.until("EXTEND_TIMEOUT_USEC")  # it may take long, and says so
        gate.reached()
        # It answers at once, and says what it waits for: the warm-up pass, in which it stands.
        with running.client() as client:
            health = client.health()
            assert (health.ready, health.state, health.reason) == (False, "loading", "the model is being loaded")
            assert client.status().state == "loading"
        assert_refused(running, "loading")
        assert post_bundle(running, tiny.bundle()).status_code == 503
        mode = stat.S_IMODE(running.socket_path.stat().st_mode)
        assert mode == 0o660
        assert not any("READY" in told for told in running.told)
        gate.open()
        assert running.until("READY")["STATUS"].startswith("serving ")
        with running.client() as client:
            assert client.health().ready
            assert count_of(client.complete(SECRET, max_tokens=5, temperature=0.0)) == 5
            assert client.status().requests.finished == 1
        assert running.stop() == 0
        assert running.until("STOPPING")
        assert not running.socket_path.exists()
        log = running.log()
    events = [line.split()[2] for line in log.splitlines()]
    assert events == ["listening", "telemetry", "loading", "ready", "draining", "drained", "stopped"]
    assert "xyzzy" not in log and "plugh" not in log


def test_the_watchdog_is_fed_while_the_engine_moves_and_starves_while_it_hangs(
    tmp_path: Path, config: Path, gate: Gate
) -> None:
    with daemon(tmp_path, config, gate=gate, environment={"WATCHDOG_USEC": "500000"}) as running:
        running.ready()
        for _ in range(3):
            running.until("WATCHDOG")  # idle
        with running.client() as client, client.stream_complete("Hi", max_tokens=500, temperature=0.0) as chunks:
            next(chunks)
            gate.hold()
            # What is on its way may still come; then nothing, for several periods.
            assert running.silence_s(1.5)
            gate.open()
            running.until("WATCHDOG")
            assert chunks.completion().text
        assert running.stop() == 0


def test_systemds_socket_is_used_and_left_to_it(tmp_path: Path, config: Path, gate: Gate) -> None:
    gate.shut()
    place = tmp_path / "activated.sock"
    with socket.socket(socket.AF_UNIX) as passed:
        passed.bind(str(place))
        passed.listen()
        # A client that was there before the daemon.
        early = socket.socket(socket.AF_UNIX)
        early.settimeout(PATIENCE_S)
        early.connect(str(place))
        early.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        with daemon(tmp_path, config, gate=gate, passed=passed) as running, early:
            assert early.recv(4096).startswith(b"HTTP/1.1 503 ")
            gate.open()
            running.ready()
            running.socket_path = place
            with running.client() as client:
                assert client.complete("Hi", max_tokens=2).usage is not None
            assert not (tmp_path / "api.sock").exists()
            assert running.stop() == 0
            assert running.log_lines("listening")[0].endswith("inherited=yes")
        assert place.exists()


# --- that do not begin ----------------------------------------------------------------------------


def failed(config: Path, *options: str, code: int = 2) -> str:
    command = [sys.executable, "-m", "edge_runtime", "serve", "--config", str(config), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("error: ") and "Traceback" not in done.stderr
    return last


def test_what_keeps_it_from_starting(tmp_path: Path, config: Path) -> None:
    assert "none.yaml: No such file" in failed(tmp_path / "none.yaml")
    broken = write_config(tmp_path / "broken.yaml", tiny.bundle(), engine={"sesions": 1})
    assert "did you mean 'sessions'" in failed(broken)
    assert "no bundle at" in failed(config, "--bundle", str(tmp_path / "none"))
    place = tiny.copy_of(tiny.bundle(), tmp_path)
    (place / "target.weights").unlink()
    assert "target.weights" in failed(config, "--bundle", str(place))
    long = write_config(tmp_path / "long.yaml", tiny.bundle(), engine={"context": 100000})
    assert "context of 100000" in failed(long)
    small = write_config(tmp_path / "small.yaml", tiny.bundle(), budget={"memory_gb": 0.1})
    assert "100 MB may be taken" in failed(small)
    (tmp_path / "precious").write_text("")
    assert "not a socket" in failed(config, "--socket", str(tmp_path / "precious"))
    assert not (tmp_path / "api.sock").exists()  # nothing is left behind


def test_a_socket_on_which_a_daemon_answers(tmp_path: Path, config: Path) -> None:
    with daemon(tmp_path, config) as running:
        running.until("EXTEND_TIMEOUT_USEC")
        assert failed(config) == f"error: another daemon answers at {running.socket_path}"
        running.ready()
        assert running.stop() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_loading_ends_it(tmp_path: Path, config: Path, gate: Gate, number: signal.Signals) -> None:
    gate.shut()
    with daemon(tmp_path, config, gate=gate) as running:
        running.until("EXTEND_TIMEOUT_USEC")
        running.signal(number)
        running.until("STOPPING")
        assert running.ends() == 0
        assert not running.socket_path.exists()


# --- reloading ------------------------------------------------------------------------------------


def reload(running: Running) -> str:
    """The status that it ends with."""
    running.signal(signal.SIGHUP)
    told = running.until("RELOADING")
    assert int(told["MONOTONIC_USEC"]) > 0
    return running.until("READY")["STATUS"]


def test_hang_ups(tmp_path: Path, config: Path) -> None:
    with daemon(tmp_path, config) as running, running.client() as client:
        running.ready()
        # Limits, at once.
        write_config(config, tiny.bundle(), limits={"max_tokens": 3, "queue": 5}, server={"socket": "other.sock"})
        assert reload(running) == f"serving {client.models()[0].id}"
        assert count_of(client.complete("Hi", max_tokens=50, temperature=0.0)) == 3
        assert client.status().requests.queue_limit == 5
        assert len(running.log_lines("server.socket changed: needs a restart")) == 1
        # Another engine, beside the old one.
        engine = {"sessions": 3, "context": 256, "threads": 1, "drafter": "lookup"}
        write_config(config, tiny.bundle(), engine=engine)
        reload(running)
        status = client.status()
        assert status.model is not None and (status.model.context, len(status.slots)) == (256, 3)
        assert (status.model.drafter, status.requests.queue_limit) == ("prompt_lookup", 64)
        # What cannot be read, and what cannot be loaded, leaves what is served.
        small = f"bundle: {tiny.bundle()}\nengine: {{context: 300}}\nbudget: {{memory_gb: 0.1}}\n"
        for text, words in (
            ("bundel: x\n", "did you mean 'bundle'"),
            ("bundle: none\n", "no bundle at"),
            (small, "that are held now"),
        ):
            config.write_text(text, encoding="utf-8")
            assert words in reload(running)
            status = client.status()
            assert (status.state, status.model.context if status.model else 0) == ("ready", 256)
            assert status.reason.startswith("reload failed: ") and words in status.reason
            assert client.health().ready
            assert client.complete("Hi", max_tokens=2).text
        assert status.memory.budget_bytes == 100_000_000
        assert len(running.log_lines("error reload failed")) == 3
        # And the next one that can be is tried anew.
        write_config(config, tiny.bundle_without_draft())
        reload(running)
        status = client.status()
        assert status.reason == "" and status.model is not None
        assert (status.model.bundle, status.model.context) == (str(tiny.bundle_without_draft()), 512)
        # Keys that only a restart changes are named, all of them, as long as they differ from what is in force.
        write_config(config, tiny.bundle_without_draft(), budget={"telemetry": "replay", "recording": "board.ndjson"})
        reload(running)
        reload(running)
        assert len(running.log_lines("budget.telemetry, budget.recording changed: needs a restart")) == 2
        told = running.log_lines("needs a restart")
        write_config(config, tiny.bundle_without_draft())
        reload(running)
        assert running.log_lines("needs a restart") == told
        assert running.stop() == 0


def test_a_failed_warm_up_keeps_the_old_model(tmp_path: Path, config: Path) -> None:
    """A bundle whose files are all there and whose graph does not run."""
    place = tiny.copy_of(tiny.bundle(), tmp_path)
    with daemon(tmp_path, config) as running, running.client() as client:
        running.ready()
        before = client.complete("Hi", max_tokens=20, temperature=0.0).text
        path = place / "target.body.onnx"
        path.write_bytes(b"\xff" * path.stat().st_size)
        engine = {"sessions": 2, "context": 512, "threads": 1, "drafter": "none", "verify_hashes": False}
        write_config(config, place, engine=engine)
        assert "reload failed" in reload(running)
        assert client.complete("Hi", max_tokens=20, temperature=0.0).text == before
        assert running.stop() == 0


def test_a_bundle_that_was_exported_anew_in_its_place_is_loaded_anew(tmp_path: Path) -> None:
    place = tiny.copy_of(tiny.bundle(), tmp_path)
    config = write_config(tmp_path / "daemon.yaml", place)
    with daemon(tmp_path, config) as running, running.client() as client:
        running.ready()
        reload(running)
        assert not running.log_lines("swapped")
        # As export does: beside the place, then renamed.
        shutil.copytree(tiny.bundle_without_draft(), tmp_path / "new")
        place.rename(tmp_path / "old")
        (tmp_path / "new").rename(place)
        assert client.complete("Hi", max_tokens=2).text  # what was loaded is served on
        reload(running)
        assert len(running.log_lines("swapped")) == 1
        assert client.complete("Hi", max_tokens=2).text
        assert running.stop() == 0


def test_the_bundle_may_be_swapped_over_http(tmp_path: Path, config: Path) -> None:
    with daemon(tmp_path, config) as running:
        running.ready()
        refused = post_bundle(running, tmp_path / "none")
        assert (refused.status_code, "no bundle at" in refused.text) == (400, True)
        assert running.log_lines("error swap failed")
        done = post_bundle(running, tiny.bundle_without_draft())
        assert (done.status_code, done.json()["model"]["bundle"]) == (200, str(tiny.bundle_without_draft()))
        # The file says what it said before: a hang-up changes nothing of it.
        reload(running)
        with running.client() as client:
            model = client.status().model
            assert model is not None and model.bundle == str(tiny.bundle_without_draft())
        assert running.stop() == 0


def test_an_answer_that_runs_ends_on_the_model_that_it_began_on(tmp_path: Path, config: Path, gate: Gate) -> None:
    with daemon(tmp_path, config, gate=gate) as running, running.client() as client:
        running.ready()
        whole = client.complete("Hi", max_tokens=60, temperature=0.0).text
        with client.stream_complete("Hi", max_tokens=60, temperature=0.0) as chunks:
            next(chunks)
            write_config(config, tiny.bundle_without_draft())
            reload(running)
            for _ in chunks:
                pass
            assert chunks.completion().text == whole
        assert running.stop() == 0


# --- the end --------------------------------------------------------------------------------------


def test_running_answers_end_and_new_ones_are_refused(tmp_path: Path, config: Path, gate: Gate) -> None:
    with daemon(tmp_path, config, gate=gate) as running, running.client() as client:
        running.ready()
        with client.stream_complete("Hi", max_tokens=40, temperature=0.0) as chunks:
            next(chunks)
            gate.hold()
            running.signal(signal.SIGTERM)
            running.until("STOPPING")
            assert_refused(running, "draining")
            assert client.status().state == "draining"
            gate.open()
            for _ in chunks:
                pass
            done = chunks.completion()
        assert (count_of(done), done.finish_reason) == (40, "length")
        assert running.ends() == 0
        assert running.log_lines("drained complete=True")


def test_what_takes_longer_than_the_drain_is_broken_off(tmp_path: Path, config: Path, gate: Gate) -> None:
    write_config(config, tiny.bundle(), drain_s=0)
    with daemon(tmp_path, config, gate=gate) as running, running.client() as client:
        running.ready()
        with client.stream_complete("Hi", max_tokens=400, temperature=0.0) as chunks:
            next(chunks)
            gate.hold()
            running.signal(signal.SIGTERM)
            running.until("STOPPING")
            gate.open()
            with pytest.raises(EdgeRuntimeError, match="the daemon stops"):
                for _ in chunks:
                    pass
        assert running.ends() == 0
        assert running.log_lines("drained complete=False")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_at_once(tmp_path: Path, config: Path, gate: Gate, number: signal.Signals) -> None:
    with daemon(tmp_path, config, gate=gate) as running, running.client() as client:
        running.ready()
        with client.stream_complete("Hi", max_tokens=400) as chunks:
            next(chunks)
            gate.hold()
            running.signal(number)
            running.until("STOPPING")
            running.signal(number)
            assert running.ends() == -number
        assert not running.socket_path.exists()


def test_an_engine_that_hangs_does_not_keep_it_for_ever(tmp_path: Path, config: Path, gate: Gate) -> None:
    write_config(config, tiny.bundle(), drain_s=0)
    patience = {"TEST_PATIENCE_S": "1"}
    with daemon(tmp_path, config, gate=gate, environment=patience) as running, running.client() as client:
        running.ready()
        with client.stream_complete("Hi", max_tokens=400) as chunks:
            next(chunks)
            gate.hold()
            running.signal(signal.SIGTERM)
            assert running.ends() == 1
        assert running.log_lines("error: the engine hangs")
        assert not running.socket_path.exists()


def test_a_place_that_another_took_is_left_to_it(tmp_path: Path, config: Path) -> None:
    with daemon(tmp_path, config) as first:
        first.ready()
        first.socket_path.unlink()
        with daemon(tmp_path, config) as second:
            second.ready()
            assert first.stop() == 0
            with second.client() as client:
                assert client.health().ready
            assert second.stop() == 0


# --- who comes and goes ---------------------------------------------------------------------------


def test_a_client_that_waits_is_served_by_the_daemon_that_comes(tmp_path: Path, config: Path) -> None:
    counts: list[int] = []

    def ask() -> None:
        with Client(tmp_path / "api.sock", patience_s=PATIENCE_S) as client:
            counts.append(count_of(client.complete("Hi", max_tokens=5, temperature=0.0)))

    thread = threading.Thread(target=ask)
    thread.start()
    with daemon(tmp_path, config) as running:
        thread.join(PATIENCE_S)
        assert counts == [5]
        assert running.stop() == 0


def test_a_client_that_leaves_frees_its_slot(tmp_path: Path, config: Path) -> None:
    with daemon(tmp_path, config) as running, running.client() as client:
        running.ready()
        for _ in range(5):
            with client.stream_complete("Hi", max_tokens=400, temperature=1.0) as chunks:
                next(chunks)
        client.complete("Hi", max_tokens=2)
        status = settled(client)
        assert not any(slot.busy for slot in status.slots)
        assert status.requests.finished + status.requests.cancelled == 6
        assert running.stop() == 0


# --- the log --------------------------------------------------------------------------------------


def test_levels_for_the_journal_and_times_for_a_file(tmp_path: Path, config: Path) -> None:
    with daemon(tmp_path, config) as running:
        running.ready()
        running.stop()
        for line in running.log().splitlines():
            assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (info|warning|error) \w+", line), line
    reading, writing = os.pipe()
    found = os.fstat(writing)
    command = [sys.executable, "-m", "edge_runtime", "serve", "--config", str(config), "--bundle", str(tmp_path / "no")]
    done = subprocess.run(
        command,
        stderr=writing,
        check=False,
        timeout=PATIENCE_S,
        env={**os.environ, "JOURNAL_STREAM": f"{found.st_dev}:{found.st_ino}"},
    )
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        lines = pipe.read().decode().splitlines()
    assert done.returncode == 2
    assert [line[:4] for line in lines] == ["<6>l", "<6>t", "<6>l", "<6>s", "erro"], lines


def test_the_status_as_json_is_the_whole_of_it(tmp_path: Path, config: Path) -> None:
    with daemon(tmp_path, config) as running:
        running.ready()
        command = [sys.executable, "-m", "edge_runtime", "status", "--json", "--socket", str(running.socket_path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
        told = json.loads(done.stdout)
        assert (told["state"], told["model"]["context"], told["board"]["power_mw"]) == ("ready", 512, None)
        assert running.stop() == 0
