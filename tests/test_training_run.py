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
from training_runs import PLAN, checkpoint, corpus, features, wanted

from edge_runtime.bundle import read_manifest, write_manifest
from edge_runtime.errors import CheckpointError, ConfigError
from export.__main__ import main
from export.checkpoint import open_checkpoint
from export.training.batches import Batches
from export.training.checkpoint import load_drafter
from export.training.drafter import start_from
from export.training.evaluate import held_acceptance
from export.training.features import read_part
from export.training.gather import projection_start
from export.training.session import BEST_NAME, Shown, train_drafter
from export.training.target import TorchTarget, target_checkpoint
from export.training.trainer import STATE_NAME, Seen, Trainer


class Stop(Exception):
    """A power cut."""


def stopping_at(step: int) -> Shown:
    def progress(what: str, done: int, total: int) -> None:
        if what.startswith(f"training: step {step},"):
            raise Stop

    return Shown(progress)


def test_a_stop_changes_nothing(tmp_path: Path) -> None:
    plan = replace(PLAN, steps=16, check_every_steps=4)
    best = load_drafter(train_drafter(wanted(tmp_path / "whole", plan, features=features()), Shown()))
    state = torch.load(tmp_path / "whole" / STATE_NAME, weights_only=True)
    assert [entry["step"] for entry in state["progress"]["history"]] == [4, 8, 12, 16]

    stopped = wanted(tmp_path / "stopped", plan, features=features())
    with pytest.raises(Stop):
        train_drafter(stopped, stopping_at(11))
    train_drafter(stopped, Shown())
    again = torch.load(tmp_path / "stopped" / STATE_NAME, weights_only=True)
    for name, values in state["params"].items():
        assert torch.equal(again["params"][name], values), name
        assert torch.equal(again["average"][name], state["average"][name]), name
    assert np.array_equal(
        load_drafter(tmp_path / "stopped" / BEST_NAME).tensors["projection"], best.tensors["projection"]
    )


def test_training_learns_what_a_random_start_does_not_know(tmp_path: Path) -> None:
    """And the ridge start knows some of it beforehand."""
    model = TorchTarget(open_checkpoint(checkpoint()))
    parts = [read_part(features() / name) for name in ("natural", "drawn")]
    held = read_part(features() / "held-drawn")
    token_ids = np.arange(128, 512, dtype=np.int64)
    width = model.config.hidden_size
    torch.manual_seed(1)
    start, params = start_from(model, token_ids, torch.randn(width, 2 * width) / width**0.5)
    known = held_acceptance(*start_from(model, token_ids, projection_start(features())), model.embed, held)
    untrained = held_acceptance(start, params, model.embed, held)
    plan = replace(PLAN, projection_share=1.0)
    trainer = Trainer(start, params, model.embed, Batches(parts, 240, seed=0), None, plan, tmp_path)
    seen: list[Seen] = []
    trainer.run(lambda trainer: {}, lambda progress, last, share: seen.append(last))
    found = held_acceptance(start, trainer.average, model.embed, held)
    assert untrained.sampled[0] < 0.05 and known.sampled[0] > 0.2
    assert found.sampled[0] > 0.2 and found.sampled[1] > 0.2 and found.greedy[0] > 0.2
    assert np.mean([last.cross_entropy for last in seen[-5:]]) < np.mean([last.cross_entropy for last in seen[:5]]) - 1
    assert seen[-1].acceptance[0] > seen[0].acceptance[0] + 0.1


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
    places = {"t": checkpoint(), "o": tmp_path, "c": corpus()}
    given = ["train-drafter", "--threads", "1", *(option.format(**places) for option in options)]
    result = CliRunner().invoke(main, given)
    message = result.stderr.strip().splitlines()[-1]
    assert result.exit_code == 2 and message.startswith("error: ") and words in message


def test_the_command_trains_and_says_where(tmp_path: Path) -> None:
    shutil.copytree(features(), tmp_path / "features")
    given = ["train-drafter", "--target", str(checkpoint()), "--output", str(tmp_path), "--steps", "1"]
    given += ["--features", str(tmp_path / "features"), "--rows", "128", "--threads", "1"]
    result = CliRunner().invoke(main, given)
    assert result.exit_code == 0, result.output
    assert "untrained: held-drawn: sampled" in result.stdout and f"{tmp_path / 'best'}: the best" in result.stdout


def test_a_bundle_stands_for_the_checkpoint_that_it_was_made_of(tmp_path: Path) -> None:
    assert target_checkpoint(tiny_bundle.bundle()).path == tiny_bundle.checkpoint()
    copy = tiny_bundle.copy_of(tiny_bundle.bundle(), tmp_path)
    manifest = read_manifest(copy)
    write_manifest(copy, replace(manifest, recipe={**manifest.recipe, "source": str(tmp_path / "gone")}))
    with pytest.raises(CheckpointError, match="gone is not there"):
        target_checkpoint(copy)
