"""A tiny drafter is trained in seconds, stopped and gone on with. Knows no piece of it."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tiny_bundle
import torch
from click.testing import CliRunner
from training_runs import PLAN, corpus, features, wanted

from edge_runtime.errors import ConfigError
from export.__main__ import main
from export.training.checkpoint import load_drafter
from export.training.session import BEST_NAME, Shown, train_drafter
from export.training.trainer import STATE_NAME


class Stop(Exception):
    """A power cut."""


def stopping_at(step: int) -> Shown:
    def progress(what: str, done: int, total: int) -> None:
        if what.startswith(f"training: step {step},"):
            raise Stop

    return Shown(progress)


def test_training_learns_and_a_stop_changes_nothing(tmp_path: Path) -> None:
    lines: list[str] = []
    plan = replace(PLAN, check_every_steps=10)
    whole = train_drafter(wanted(tmp_path / "whole", plan, features=features()), Shown(line=lines.append))
    untrained = float(lines[0].split("sampled ")[1].split()[0])
    best = load_drafter(whole)
    held = best.record["training"]["held_out"]["held-drawn"]
    state = torch.load(tmp_path / "whole" / STATE_NAME, weights_only=True)
    history = state["progress"]["history"]
    assert [entry["step"] for entry in history] == [10, 20, 30, 40]
    assert history[-1]["cross_entropy"][0] < history[0]["cross_entropy"][0]
    assert held["sampled"][0] > untrained + 0.1
    assert held["sampled"][1] > 0.5 * held["sampled"][0]

    stopped = wanted(tmp_path / "stopped", plan, features=features())
    with pytest.raises(Stop):
        train_drafter(stopped, stopping_at(27))
    train_drafter(stopped, Shown())
    again = torch.load(tmp_path / "stopped" / STATE_NAME, weights_only=True)
    for name, values in state["params"].items():
        assert torch.equal(again["params"][name], values), name
        assert torch.equal(again["average"][name], state["average"][name]), name
    assert np.array_equal(
        load_drafter(tmp_path / "stopped" / BEST_NAME).tensors["projection"], best.tensors["projection"]
    )


def test_the_record_says_what_it_was_made_of(tmp_path: Path) -> None:
    best = train_drafter(wanted(tmp_path, replace(PLAN, steps=2), features=features()), Shown())
    record = load_drafter(best).record
    assert record["features"]["natural"]["done"] > 0 and record["features"]["drawn"]["kind"] == "drawn"
    assert record["target"]["name"] and "GEMMA_NOTICE.txt" in record["licence"]
    assert (best / "GEMMA_NOTICE.txt").read_text(encoding="utf-8").startswith("Gemma")
    assert record["training"]["tokens_seen"] > 0


def test_a_state_of_another_head_is_refused(tmp_path: Path) -> None:
    train_drafter(wanted(tmp_path, replace(PLAN, steps=1), features=features()), Shown())
    with pytest.raises(ConfigError, match="another shape or head"):
        train_drafter(wanted(tmp_path, PLAN, features=features(), head_rows=128), Shown())
    (tmp_path / STATE_NAME).write_bytes(b"nonsense")
    with pytest.raises(ConfigError, match="not a checkpoint of a training run"):
        train_drafter(wanted(tmp_path, PLAN, features=features()), Shown())


def test_drawn_texts_are_the_same_after_a_stop(tmp_path: Path) -> None:
    output = tmp_path / "out"
    stopped = wanted(output, replace(PLAN, steps=1))

    def progress(what: str, done: int, total: int) -> None:
        if what == "features" and done > 2000:
            raise Stop

    with pytest.raises(Stop):
        train_drafter(stopped, Shown(progress))
    train_drafter(stopped, Shown())
    for part in ("natural", "drawn", "held-natural", "held-drawn"):
        for name in ("tokens.npy", "hidden.npy"):
            expected = np.load(features() / part / name)
            found = np.load(output / "features" / part / name)
            np.testing.assert_allclose(found, expected, rtol=1e-2, atol=1e-2, err_msg=f"{part}/{name}")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "Missing option"),
        (["--target", "{t}", "--output", "{o}"], "give a corpus"),
        (["--target", "{t}", "--output", "{o}", "--corpus", "{o}/none"], "hours or steps"),
        (["--target", "{t}", "--output", "{o}", "--corpus", "{o}/none", "--steps", "1"], "no such file"),
        (["--target", "{o}/none", "--output", "{o}", "--corpus", "{c}", "--steps", "1"], "no such checkpoint"),
        (
            ["--target", "{t}", "--output", "{o}", "--corpus", "{c}", "--steps", "1", "--device", "cuda"],
            "no such device",
        ),
        (["--target", "{t}", "--output", "{o}", "--features", "{o}", "--steps", "1"], "no features"),
        (["--target", "{t}", "--output", "{o}", "--corpus", "{c}", "--steps", "1", "--share", "2"], "share"),
    ],
)
def test_what_cannot_be_trained_is_told_in_one_line(tmp_path: Path, options: list[str], words: str) -> None:
    if "--device" in options and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    places = {"t": tiny_bundle.checkpoint(), "o": tmp_path, "c": corpus()}
    given = ["train-drafter", "--threads", "1", *(option.format(**places) for option in options)]
    result = CliRunner().invoke(main, given)
    message = result.stderr.strip().splitlines()[-1]
    assert result.exit_code == 2 and message.startswith("error: ") and words in message


def test_the_command_trains_from_a_bundle_and_says_where(tmp_path: Path) -> None:
    shutil.copytree(features(), tmp_path / "features")
    given = ["train-drafter", "--target", str(tiny_bundle.bundle()), "--output", str(tmp_path), "--steps", "1"]
    given += ["--features", str(tmp_path / "features"), "--rows", "128", "--threads", "1"]
    result = CliRunner().invoke(main, given)
    assert result.exit_code == 0, result.output
    assert "untrained: held-drawn: sampled" in result.stdout and f"{tmp_path / 'best'}: the best" in result.stdout
