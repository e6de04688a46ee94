"""What export leaves at its output: a complete bundle, or what was there before."""

from __future__ import annotations

import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from export_runs import EXPORT, ROOT, start_export
from tiny_models import TinyConfig, save_tiny_checkpoint

from edge_runtime.bundle import file_sha256, read_manifest, verify_files
from edge_runtime.errors import CheckpointError, ConfigError, InputError
from export.build import build_bundle
from export.checkpoint import open_checkpoint
from export.model_writer import ModelPlan, write_model
from export.recipe import DraftRecipe, ExportRecipe

TINY = TinyConfig(layers=2)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_checkpoint(tmp_path_factory.mktemp("tiny"), TINY)


def recipe(source: Path, output: Path, **keys: Any) -> ExportRecipe:
    return ExportRecipe(source=str(source), output=str(output), **{"precision": "int8", "max_context": 128, **keys})


def export(source: Path, output: Path, *, overwrite: bool = False, **keys: Any) -> None:
    build_bundle(recipe(source, output, **keys), silent, overwrite=overwrite)


def silent(what: str, done: int, total: int) -> None:
    pass


def contents(directory: Path) -> dict[str, str]:
    return {path.name: file_sha256(path) for path in directory.iterdir()}


def test_a_bundle_lists_and_holds_the_same_files(tiny: Path, tmp_path: Path) -> None:
    export(tiny, tmp_path / "deep" / "down" / "bundle", draft=DraftRecipe(layers=1, vocab_rows=128))
    output = tmp_path / "deep" / "down" / "bundle"
    manifest = read_manifest(output)
    verify_files(output, manifest)
    assert {entry.name for entry in manifest.files} | {"bundle.json"} == {path.name for path in output.iterdir()}
    assert sorted(path.name for path in output.parent.iterdir()) == ["bundle"], "nothing is left beside it"
    assert output.stat().st_mode & 0o777 == 0o755
    sizes = {entry.name: entry.bytes for entry in manifest.files}
    models = manifest.models.values()
    assert manifest.memory.weights == sum(sizes[name] for name in {name for m in models for name in m.weights})
    assert manifest.memory.kv_per_token == (2 + 1) * 2 * 2 * 32 * 4, "layers, K and V, heads, dim, float32"
    assert manifest.memory.logits_per_row == 4 * TINY.vocab
    assert manifest.name == "bundle"
    assert manifest.sources[0].kind == "safetensors"


def test_the_same_recipe_makes_the_same_bytes(tiny: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        export(tiny, tmp_path / name)
    assert read_manifest(tmp_path / "a").files == read_manifest(tmp_path / "b").files


class Stop(Exception):
    pass


@pytest.mark.parametrize("error", [Stop, KeyboardInterrupt])
@pytest.mark.parametrize("older", [False, True])
def test_whatever_stops_an_export_leaves_what_was_there(
    tiny: Path, tmp_path: Path, older: bool, error: type[BaseException]
) -> None:
    output, calls = tmp_path / "bundle", 0

    def counting(what: str, done: int, total: int) -> None:
        nonlocal calls
        calls += 1

    build_bundle(recipe(tiny, tmp_path / "whole"), counting)
    if older:
        export(tiny, output, precision="fp32")
    before = contents(output) if older else {}
    for stop_at in range(calls):
        left = stop_at

        def stopping(what: str, done: int, total: int) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise error

        with pytest.raises(error):
            build_bundle(recipe(tiny, output), stopping, overwrite=True)
        assert output.exists() == older
        assert not older or contents(output) == before
        assert sorted(path.name for path in tmp_path.iterdir()) == (["bundle", "whole"] if older else ["whole"])


def _older_bundle(tiny: Path, output: Path) -> dict[str, str]:
    export(tiny, output)
    return contents(output)


def _wait_for_weights(process: subprocess.Popen[str], folder: Path, least: int) -> None:
    """Until a temporary directory in ``folder`` holds a weight file of ``least`` bytes."""
    for _ in range(6000):
        if any(path.stat().st_size >= least for path in folder.glob(".*.tmp/target.weights")):
            return
        assert process.poll() is None, "the export ended before it could be stopped"
        time.sleep(0.01)
    raise AssertionError("no weights within a minute")


def test_a_killed_export_leaves_the_older_bundle_and_the_next_one_sweeps_up(
    demo_gguf: Path, tiny: Path, tmp_path: Path
) -> None:
    output = tmp_path / "bundle"
    before = _older_bundle(tiny, output)
    with start_export(demo_gguf, output, "--precision", "fp32", "--overwrite") as process:
        _wait_for_weights(process, tmp_path, 1 << 20)
        process.kill()
    assert process.returncode == -signal.SIGKILL
    assert contents(output) == before
    assert read_manifest(output).name == "bundle"
    (left,) = (path.name for path in tmp_path.iterdir() if path != output)
    assert left.startswith(".bundle.") and left.endswith(".tmp"), "what is left is hidden and names its bundle"
    export(tiny, output, overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]


def test_ctrl_c_ends_an_export_with_130_and_no_trace(demo_gguf: Path, tmp_path: Path) -> None:
    output = tmp_path / "bundle"
    with start_export(demo_gguf, output, "--precision", "fp32") as process:
        _wait_for_weights(process, tmp_path, 1 << 20)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=60)
    # The line feed ahead of it is for the terminal, which has just shown ^C.
    assert (process.returncode, stdout, stderr.lstrip()) == (130, "", "error: interrupted\n")
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_one_line_and_leaves_the_older_bundle(tiny: Path, tmp_path: Path) -> None:
    output = tmp_path / "bundle"
    before = _older_bundle(tiny, output)
    options = ["--source", str(tiny), "--output", str(output), "--precision", "fp32", "--max-context", "128"]
    # A limit on the size of files fails like a disk that is full: in the middle of a write. Units of 512 or 1024.
    limited = ["sh", "-c", 'ulimit -f 128; exec "$@"', "sh", *EXPORT, *options, "--overwrite"]
    done = subprocess.run(limited, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"error: {output} cannot be written: File too large\n"
    assert contents(output) == before
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]


def test_an_export_between_its_two_renames_is_made_good(tiny: Path, tmp_path: Path) -> None:
    output = tmp_path / "bundle"
    before = _older_bundle(tiny, output)
    # As a power cut leaves it: the older bundle is out of the way, the new one not yet in its place.
    output.rename(tmp_path / ".bundle.abc.old")
    (tmp_path / ".bundle.abc.tmp").mkdir()
    with pytest.raises(ConfigError, match=f"{output} exists"):
        export(tiny, output)
    assert contents(output) == before
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]


def test_an_export_that_still_runs_is_not_swept_away(tiny: Path, tmp_path: Path) -> None:
    output, nested = tmp_path / "bundle", False

    def another(what: str, done: int, total: int) -> None:
        nonlocal nested
        if not nested:
            nested = True
            export(tiny, output, precision="fp32")
            assert len(list(tmp_path.glob(".bundle.*.tmp"))) == 1, "its own is still there"

    build_bundle(recipe(tiny, output), another)
    assert read_manifest(output).models["target"].precision == "int8", "the last one to end wins"
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]


def test_neighbours_with_a_like_name_are_not_swept_away(tiny: Path, tmp_path: Path) -> None:
    kept = [".bundle.tmp", ".bundle.v2.abc.tmp", ".other.abc.tmp", "bundle.tmp", ".bundle.abc"]
    for name in kept:
        (tmp_path / name).mkdir()
    export(tiny, tmp_path / "bundle")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*kept, "bundle"])


def test_an_output_that_is_a_link_stays_one(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    export(tiny, tmp_path / "disk" / "real")
    link = tmp_path / "bundle"
    link.symlink_to(tmp_path / "disk" / "real")
    export(tiny, link, overwrite=True, precision="fp32")
    assert link.is_symlink()
    assert read_manifest(tmp_path / "disk" / "real").models["target"].precision == "fp32"
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_dir()) == ["bundle", "disk", "real"]


@pytest.mark.parametrize(
    ("keys", "kind", "message"),
    [
        ({"max_context": 129}, ConfigError, "max_context: 129, but the checkpoint holds 128 tokens"),
        ({"draft": DraftRecipe()}, ConfigError, "draft: give a source, or layers and vocab_rows"),
        ({"draft": DraftRecipe(layers=3)}, ConfigError, "draft.layers: 3, but the checkpoint has 2"),
        ({"draft": DraftRecipe(layers=0)}, ConfigError, "draft.layers: 0, but the checkpoint has 2"),
        ({"draft": DraftRecipe(vocab_rows=513)}, ConfigError, "draft.vocab_rows: 513, but the vocabulary has 512"),
        ({"draft": DraftRecipe(vocab_rows=0)}, ConfigError, "draft.vocab_rows: 0, but the vocabulary has 512"),
        ({"draft": DraftRecipe(vocab_rows=64, frequency_corpus="none.txt")}, ConfigError, "draft.frequency_corpus"),
        ({"draft": DraftRecipe(source="nowhere")}, CheckpointError, "nowhere: no such checkpoint"),
        ({"precision": "int4", "calibration": "none.txt"}, ConfigError, "calibration: none.txt: No such file"),
        ({"source": "nowhere"}, CheckpointError, "nowhere: no such checkpoint"),
    ],
    ids=lambda given: given if isinstance(given, str) else None,
)
def test_what_cannot_be_exported_is_refused_before_anything_is_written(
    tiny: Path, tmp_path: Path, keys: dict[str, Any], kind: type[InputError], message: str
) -> None:
    stages = []
    with pytest.raises(kind) as caught:
        build_bundle(
            replace(recipe(tiny, tmp_path / "deep" / "bundle"), **keys),
            lambda what, done, total: stages.append(what),
        )
    assert message in str(caught.value) and "\n" not in str(caught.value)
    assert stages == [], "the long work had begun"
    assert list(tmp_path.iterdir()) == []


def test_columns_that_blocks_do_not_divide_are_refused_by_name(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="embed: 64 columns do not divide into blocks of 128"):
        export(tiny, tmp_path / "bundle", block_size=128)
    assert list(tmp_path.iterdir()) == []


def test_the_notes_say_what_was_not_exact_and_nothing_else(demo_gguf: Path, tmp_path: Path) -> None:
    """Of one layer: its output product has blocks with a minimum; the 4-bit head was asked for, and is no surprise."""
    checkpoint = open_checkpoint(demo_gguf)
    plan = ModelPlan("target", checkpoint, 1, 64, None, "exact", "int4")  # of the table its first 64 rows
    written = write_model(tmp_path, plan, recipe(demo_gguf, tmp_path), silent)
    assert [note.split(":")[0] for note in written.notes] == ["target o"]
