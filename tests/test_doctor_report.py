"""What comes out of ``doctor --device``: Markdown and JSON for an issue, and nothing that says whose machine it is."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny_bundle as tiny
from click.testing import CliRunner
from invented_outcomes import broken, healthy, product, trial, with_told

from edge_runtime import __version__
from edge_runtime.boards import board_named
from edge_runtime.cli import doctor_device, main
from edge_runtime.doctor import private, trying
from edge_runtime.doctor.child import Limits, run_probe
from edge_runtime.doctor.device import Trial, curves, judge
from edge_runtime.doctor.facts import facts_of
from edge_runtime.doctor.faults import TITLES
from edge_runtime.doctor.finding import Check
from edge_runtime.doctor.machine import User, read_machine
from edge_runtime.doctor.outcome import Accelerator, Outcome, Request
from edge_runtime.doctor.private import Private, private_here, scrubbed, scrubbed_data
from edge_runtime.doctor.report import Report, markdown
from edge_runtime.doctor.trying import DEFAULT_SHAPES, attempts, has_accelerator, read_state, try_all
from edge_runtime.simulator.release import JETPACK_6_2
from edge_runtime.simulator.tree import BoardTree
from edge_runtime.telemetry.identity import Identity

NOBODY = Identity(False)


def report(tried: Trial | None = None, *checks: Check) -> Report:
    found = tried or trial()
    facts = {"edge-runtime": "0.6.0", "board": "Jetson Orin Nano 8GB (p3767-0005)"}
    return Report(facts, checks or judge(found), found.outcomes, curves(found), 31.4)


def table_rows(text: str) -> list[list[str]]:
    return [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("|")]


def test_the_markdown_has_facts_findings_and_figures() -> None:
    text = markdown(report())
    assert text.startswith("### edge-runtime doctor --device\n") and "- board: Jetson Orin Nano 8GB" in text
    assert "0 problems, found in 31 s." in text
    for words in ("Copies (each byte", "Products, ms by rows", "Verifying K drafts: TensorRT, 4-bit products"):
        assert words in text
    rows = table_rows(text)
    (four,) = (row for row in rows if row[:2] == ["TensorRT", "int4"])
    assert four[2] == "2304 x 9216" and len(four) == 13 and four[-2:] == ["60.0", "1.0e-03"]
    assert ["device to device", "80.0", "128", "TensorRT"] in rows


def test_every_table_is_whole() -> None:
    lines = markdown(report()).splitlines()
    widths: set[int] = set()
    for line in lines:
        if not line.startswith("|"):
            widths = set()
            continue
        widths.add(line.count("|") - line.count("\\|"))
        assert len(widths) == 1, line


def test_problems_come_with_their_fix() -> None:
    text = markdown(report(None, Check("a", "problem", "broken", "mend it"), Check("b", "ok", "fine", "unused")))
    assert "1 problem, found" in text and "| **problem** | a | broken. Fix: mend it |" in text
    assert "unused" not in text


def test_what_a_library_says_cannot_break_the_table() -> None:
    said = "a | b\n<script> `x` @someone \\ end"
    text = markdown(report(trial((*healthy()[:2], broken("torch", "failed", said)))))
    (line,) = (line for line in text.splitlines() if "&lt;script" in line)
    assert "a \\| b &lt;script> 'x' @\u200bsomeone \\\\ end" in line


def test_values_that_are_not_finite_are_shown() -> None:
    text = markdown(report(with_told("tensorrt", products=(product("int4", difference=None),))))
    assert "not finite" in text


ADA = Private(("ada-orin", "ada"), ("/data/models/ada", "/srv/ada"), ("1421921055555",))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("OSError: /srv/ada/lib/x.so: bad", "OSError: ~/lib/x.so: bad"),
        ("'/srv/ada'", "'~'"),
        ("/srv/adam/x", "/srv/adam/x"),
        ("in /ho" + "me/grace/.cache/torch and /ro" + "ot/x", "in ~/.cache/torch and ~/x"),
        ("on ada-orin (Linux)", "on (taken out) (Linux)"),
        ("ADA-ORIN:22", "(taken out):22"),
        ("sudo usermod -aG video ada, then", "sudo usermod -aG video (taken out), then"),
        ("the adapter of adamant", "the adapter of adamant"),
        ("serial 1421921055555.", "serial (taken out)."),
        ("link 48:b0:2d:aa:bb:cc up", "link (taken out) up"),
        ("http://192.168.7.13:8080/x", "http://(taken out):8080/x"),
        ("TensorRT 10.3.0.30, CUDA 12.6.68", "TensorRT 10.3.0.30, CUDA 12.6.68"),
        ("GPU-3f2a1c9e-0b1d-4c2e-9f00-aabbccddeeff", "GPU-(taken out)"),
    ],
)
def test_private_words_are_taken_out(text: str, expected: str) -> None:
    assert scrubbed(text, ADA) == expected


def test_a_name_of_one_letter_is_a_word_elsewhere() -> None:
    assert scrubbed("a table in /data/a/x", Private(("a",), ())) == "a table in /data/(taken out)/x"


def test_names_that_thousands_have_stay(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(platform, "node", lambda: "ubuntu")
    monkeypatch.setattr(private.getpass, "getuser", lambda: "nvidia")
    monkeypatch.setenv("SUDO_USER", "grace")
    monkeypatch.setenv("HOME", "/")
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/machine-id").write_text("0123456789abcdef0123456789abcdef\n")
    found = private_here(tmp_path, ("/data/bundle/",))
    assert found.names == ("grace",) and "/" not in found.places and "/data/bundle" in found.places
    assert found.serials == ("0123456789abcdef0123456789abcdef",)
    assert scrubbed("/opt/nvidia of 0123456789abcdef0123456789abcdef", found) == "/opt/nvidia of (taken out)"


def test_a_user_without_a_name_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody() -> str:
        raise KeyError("no such uid")

    monkeypatch.setattr(private.getpass, "getuser", nobody)
    assert "" not in private_here().names


def test_plain_data_is_searched_to_its_leaves() -> None:
    data = {"ada": ["ada", {"k": float("nan")}, 3, None, True]}
    assert scrubbed_data(data, ADA) == {"(taken out)": ["(taken out)", {"k": None}, 3, None, True]}


def test_probes_of_a_machine_with_an_accelerator_and_of_one_without() -> None:
    there = {one.probe: one for one in attempts(DEFAULT_SHAPES, None, True)}
    assert list(there) == list(TITLES)
    assert there["torch"].request.device == there["nf4"].request.device == there["ort-cuda"].request.device == "cuda"
    assert there["ort-cpu"].request.device == "cpu" and there["tensorrt"].seconds > there["torch"].seconds
    none = {one.probe: one for one in attempts(DEFAULT_SHAPES, Path("b"), False)}
    assert none["torch"].request.device == "cpu" and none["ort-cpu"].request.bundle == "b"
    assert has_accelerator(Identity(True), Path("/nowhere")) and not has_accelerator(NOBODY, Path("/nowhere"))


def test_trying_goes_on_after_whatever_happens(tmp_path: Path) -> None:
    heard: list[str] = []

    def runner(probe: str, _: Sequence[str], __: Request, ___: Limits, tell: Callable[[str], None]) -> Outcome:
        tell("import")
        return broken(probe, "crashed", "", "SIGSEGV")

    def hear(probe: str, stage: str) -> None:
        heard.append(f"{probe} {stage}")

    tried = try_all(NOBODY, DEFAULT_SHAPES, None, hear, runner, tmp_path)
    assert [one.probe for one in tried.outcomes] == list(TITLES)
    absent = [one.probe for one in tried.outcomes if one.ended == "absent"]
    assert absent == ["ort-cuda", "ort-cuda-fpa", "tensorrt"] and "host import" in heard and "ort-cuda start" in heard
    assert any(one.name == "engines" for one in judge(tried))


def test_the_state_of_a_machine_that_tells_little(tmp_path: Path) -> None:
    def unknown() -> float:
        raise OSError

    state = read_state(NOBODY, tmp_path, load=unknown)
    assert (state.sample, state.busy_cores, state.free_blocks_4mb) == (None, None, None)


def run(*arguments: str) -> Any:
    return CliRunner().invoke(main, ["doctor", *arguments])


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real thing with two probes, and next to no time for their figures."""
    every = attempts

    def few(*given: Any) -> tuple[trying.Attempt, ...]:
        kept = [one for one in every(*given) if one.probe in ("host", "ort-cpu", "tensorrt")]
        quick = [replace(one.request, measure_s=0.01, copy_bytes=1 << 20, shapes=((128, 64),)) for one in kept]
        return tuple(replace(one, request=it, seconds=600.0) for one, it in zip(kept, quick, strict=True))

    monkeypatch.setattr(trying, "attempts", few)


@pytest.mark.usefixtures("quick")
def test_the_command_with_a_bundle_writes_a_report(tmp_path: Path) -> None:
    output = tmp_path / "report.md"
    result = run("--device", "--bundle", str(tiny.bundle()), "--output", str(output))
    text = output.read_text(encoding="utf-8")
    assert result.exit_code in (0, 1), result.output
    assert "trying onnxruntime on the processor" in result.stderr and str(output) in result.stdout
    assert f"- edge-runtime: {__version__}" in text and "- absent: accelerator on this machine" in text
    assert "onnxruntime on the processor: first layer of tiny" in text and "GB/s" in text
    for private_word in (str(tiny.bundle()), os.path.expanduser("~") + "/"):
        assert private_word not in text
    (line,) = (line for line in text.splitlines() if "first layer of tiny |" in line and "from the" in line)
    assert line.startswith("| ok |") and "float32 activations" in line


@pytest.mark.usefixtures("quick")
def test_the_command_in_json() -> None:
    result = run("--device", "--json")
    told = json.loads(result.stdout)
    assert told["problems"] == sum(one["status"] == "problem" for one in told["checks"])
    (ort,) = (one for one in told["outcomes"] if one["probe"] == "ort-cpu")
    assert ort["ended"] == "finished"
    assert [one["kind"] for one in ort["told"]["products"]] == ["float32", "int8", "int4"]
    assert told["curves"] and told["facts"]["bundle"].startswith("none")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--bundle", "b"], "--bundle"),
        (["--output", "f"], "--output"),
        (["--device", "--root", "."], "--root"),
        (["--device", "--bundle", "no-such-place"], "no bundle at"),
        (["--device", "--output", "/proc/no/such/place"], "cannot be written"),
    ],
)
def test_what_is_wrong_is_one_line(arguments: list[str], words: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2 and words in result.output and "Traceback" not in result.output
    assert "trying" not in result.output


def test_a_bundle_whose_layer_cannot_be_read_is_measured_at_other_shapes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged = tiny.copy_of(tiny.bundle(), tmp_path)
    (damaged / "target.body.onnx").write_bytes(b"\x0a\x05ab")
    seen: list[Any] = []

    def nothing(identity: Identity, shapes: Any, *_: Any) -> Trial:
        seen.append(shapes)
        return trial(())

    monkeypatch.setattr(doctor_device, "try_all", nothing)
    result = run("--device", "--bundle", str(damaged))
    assert seen == [DEFAULT_SHAPES] and "cannot be read" in result.stdout
    (damaged / "target.body.onnx").unlink()
    result = run("--device", "--bundle", str(damaged))
    assert result.exit_code == 2 and "target.body.onnx cannot be read" in result.output


def test_a_probe_that_is_interrupted_ends_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> Trial:
        raise KeyboardInterrupt

    monkeypatch.setattr(doctor_device, "try_all", interrupted)
    assert run("--device").exit_code != 0
    assert run_probe is trying.run_probe


def test_the_facts_of_a_board(tmp_path: Path) -> None:
    board = BoardTree.build(tmp_path / "board", board_named("orin-nano-8"), JETPACK_6_2)
    machine = read_machine(board.root, user=User("ada", False, frozenset()))
    state = read_state(machine.identity, board.root, load=lambda: 0.1)
    assert state.sample is not None and state.free_blocks_4mb is not None
    facts = facts_of(machine, trial(before=state), "gemma")
    assert facts["board"].startswith("Jetson Orin Nano 8GB (p3767-000") and facts["JetPack"].startswith("6.2 (L4T 36.4")
    assert facts["power mode"] == state.sample.power_mode and " C before, " in facts["temperature"]
    assert facts["accelerator"] == "Orin, SM 8.7, 5.00 GB of 7.60 GB free" and facts["bundle"] == "gemma"
    assert "tensorrt 1.0" in facts["packages"] and "absent" not in facts and "ada" not in " ".join(facts.values())
    told = replace(healthy()[4].told, accelerator=Accelerator("Orin", "8.7", 5_000_000_000))
    only = trial((replace(healthy()[4], told=told), broken("torch", "absent", "torch")), before=state)
    facts = facts_of(machine, only, None)
    assert facts["accelerator"] == "Orin, SM 8.7, 5.00 GB free" and facts["absent"] == "torch"
    assert facts["bundle"].startswith("none")
