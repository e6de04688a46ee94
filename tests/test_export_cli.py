"""``edge-export`` as a user meets it: what it prints, how it exits, and that every mistake costs one line."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import gguf
import pytest
import yaml
from click.testing import CliRunner, Result
from export_runs import ROOT
from tiny_models import TinyConfig, save_tiny_checkpoint

from edge_runtime.bundle import read_manifest
from export.__main__ import main
from export.recipe import DraftRecipe, ExportRecipe

TINY = TinyConfig(layers=2)
FAST = ("--precision", "int8", "--max-context", "128")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_checkpoint(tmp_path_factory.mktemp("tiny"), TINY)


@pytest.fixture(scope="module")
def bundle(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Not to be altered."""
    output = tmp_path_factory.mktemp("exported") / "bundle"
    done("export", "--source", tiny, "--output", output, *FAST)
    return output


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def done(*arguments: object) -> str:
    result = run(*arguments)
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout


def refused(*arguments: object) -> str:
    """The one line."""
    result = run(*arguments)
    assert isinstance(result.exception, SystemExit), repr(result.exception)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1 and result.stderr.endswith("\n")
    return result.stderr


def test_options_alone_export(bundle: Path, tiny: Path, tmp_path: Path) -> None:
    printed = done("export", "--source", tiny, "--output", tmp_path / "b", *FAST)
    assert f"{tmp_path / 'b'}: target: gemma3, 2 layers, 512 head rows, int8\n" in printed
    assert "1024 bytes of cache a token, Gemma Terms of Use" in printed
    assert read_manifest(tmp_path / "b").files == read_manifest(bundle).files


def test_a_recipe_exports_and_options_win_over_it(tiny: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    given = {"source": str(tiny), "output": str(tmp_path / "b"), "precision": "int8", "max_context": 64}
    recipe.write_text(yaml.safe_dump(given | {"draft": {"layers": 1, "vocab_rows": 100}}))
    printed = done("export", recipe, "--precision", "fp32", "--output", tmp_path / "c")
    assert f"{tmp_path / 'c'}: draft: gemma3, 1 layers, 128 head rows, fp32\n" in printed
    model = read_manifest(tmp_path / "c").models["target"]
    assert (model.precision, model.max_context) == ("fp32", 64)
    assert not (tmp_path / "b").exists()


def test_draft_options_make_a_draft(tiny: Path, tmp_path: Path) -> None:
    done("export", "--source", tiny, "--output", tmp_path / "b", *FAST, "--layers", 1, "--vocab-rows", 64)
    draft = read_manifest(tmp_path / "b").models["draft"]
    assert (len(draft.layers), draft.vocab_size) == (1, 64)


def test_the_recipe_to_start_from_is_one(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(done("recipe"))
    assert "path/to/model.gguf: no such checkpoint" in refused("export", tmp_path / "recipe.yaml")


def test_every_key_is_explained_with_its_default() -> None:
    printed = done("recipe", "--explain")
    for prefix, cls in (("", ExportRecipe), ("draft.", DraftRecipe)):
        for key in fields(cls):
            (line,) = (line for line in printed.splitlines() if line.startswith(f"{prefix}{key.name}  "))
            assert "(default: " in line
            assert f"{line}\n    {key.metadata['help']}\n" in printed


def test_the_help_of_an_export_says_what_is_allowed_and_what_is_the_default() -> None:
    printed = " ".join(done("export", "--help").split())
    for words in ("[exact|fp32|fp16|int8|int4]", "4|1", "32|64|128", "FILE|builtin|none"):
        assert words in printed
    for default in ("exact", "4", "32; tensorrt: 64", "4096", "builtin", "onnxruntime"):
        assert f"[default: {default}]" in printed


def test_every_option_names_a_key() -> None:
    keys = {key.name for key in fields(ExportRecipe)} | {key.name for key in fields(DraftRecipe)}
    options = {option.name for option in main.commands["export"].params} - {"recipe", "draft_source", "overwrite"}
    assert options <= keys


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("precison: exact", "unknown key 'precison' (did you mean 'precision'?)"),
        ("head_precison: int8", "unknown key 'head_precison' (did you mean 'head_precision'?)"),
        ("draft: {vocabrows: 64}", "draft: unknown key 'vocabrows' (did you mean 'vocab_rows'?)"),
        ("zzz: 1", "unknown key 'zzz'\n"),
        ("precision: exat", "precision must be exact, fp32, fp16, int8 or int4, not 'exat' (did you mean 'exact'?)\n"),
        ("head_precision: zzz", "head_precision must be exact, fp32, fp16, int8 or int4, not 'zzz'\n"),
        ("draft: {precision: q8}", "draft.precision must be exact, fp32, fp16, int8 or int4, not 'q8'"),
        ("block_size: 48", "block_size must be 32, 64 or 128, not 48\n"),
        ("draft: 7", ": draft: expected object | null, got int\n"),
        ("name: [", "not YAML: "),
        ("name: 2025-13-45", "not YAML: "),
        ("name: " + "[" * 5000, "nested too deeply"),
        ("layers: 3", "unknown key 'layers' (it belongs into draft: or self_draft:)"),
    ],
)
def test_a_wrong_recipe_is_refused_by_key(tiny: Path, tmp_path: Path, line: str, wanted: str) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(f"source: {tiny}\noutput: {tmp_path / 'b'}\n{line}\n")
    printed = refused("export", recipe)
    assert str(recipe) in printed and wanted in printed


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ((), "give a recipe file or --source"),
        (("--source", "x"), "give a recipe file or --output"),
        (("none.yaml",), "none.yaml: No such file or directory"),
        ((".",), ".: Is a directory"),
        (("/dev/zero",), "/dev/zero: more than 256 KiB"),
        (("--source", "", "--output", "y"), "'--source': it is empty"),
        (("--source", "x", "--output", ""), "'--output': it is empty"),
        (("--precision", "int5", "--source", "x", "--output", "y"), "--precision': 'int5' is not one of 'exact', "),
        (("--accuracy-level", "3", "--source", "x", "--output", "y"), "accuracy_level"),
        (("--max-context", "many"), "Invalid value for '--max-context': 'many' is not a valid integer"),
        (("--precison", "exact"), "No such option '--precison'"),
        (("a.yaml", "b.yaml"), "Got unexpected extra argument (b.yaml)"),
        (("--source",), "Option '--source' requires an argument"),
    ],
    ids=lambda given: given if isinstance(given, str) else None,
)
def test_wrong_options_are_one_line(options: tuple[str, ...], wanted: str) -> None:
    assert wanted in refused("export", *options)


def test_wrong_commands_are_one_line() -> None:
    assert "no command 'exprot'" in refused("exprot")
    assert "Missing argument 'BUNDLE'" in refused("check")
    assert "Missing option '--reference'" in refused("parity", "x")


@pytest.mark.parametrize("kind", ["bundle", "file", "other directory"])
def test_an_output_that_exists_is_left_alone(tiny: Path, bundle: Path, tmp_path: Path, kind: str) -> None:
    output = tmp_path / "b"
    if kind == "bundle":
        shutil.copytree(bundle, output)
    elif kind == "file":
        output.write_text("mine")
    else:
        output.mkdir()
        (output / "mine").write_text("mine")
    export = ("export", "--source", tiny, "--output", output, "--precision", "fp32", "--max-context", 128)
    assert f"{output} exists; choose another output or ask for an overwrite (--overwrite)" in refused(*export)
    if kind != "bundle":
        assert f"{output} exists and is not a bundle; it is not overwritten" in refused(*export, "--overwrite")
        assert (output if kind == "file" else output / "mine").read_text() == "mine"
        return
    done("check", output)
    done(*export, "--overwrite")
    assert read_manifest(output).models["target"].precision == "fp32"
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_a_place_that_cannot_be_written_is_one_line(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    output = tmp_path / "file" / "b"
    assert f"{output} cannot be written: " in refused("export", "--source", tiny, "--output", output, *FAST)
    output = tmp_path / ("x" * 300)
    assert "cannot be written: File name too long" in refused("export", "--source", tiny, "--output", output, *FAST)


def _llama_gguf(path: Path) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def test_checkpoints_that_cannot_be_read_are_one_line(tiny: Path, demo_gguf: Path, tmp_path: Path) -> None:
    def message(source: Path) -> str:
        return refused("export", "--source", source, "--output", tmp_path / "out" / "b", *FAST)

    with demo_gguf.open("rb") as file:
        head = file.read(8 << 20)
    broken = tmp_path / "broken.gguf"
    for damaged in (b"", b"GGUF", head[:1000], head, b"\0" * 100, b"GGUF" + b"\xff" * 100):
        broken.write_bytes(damaged)
        assert f"{broken}: " in message(broken)
    assert f"{tmp_path / 'none.gguf'}: no such checkpoint" in message(tmp_path / "none.gguf")
    assert f"{tmp_path / 'config.json'}: cannot be read: " in message(tmp_path)
    _llama_gguf(tmp_path / "llama.gguf")
    assert "GGUF architecture llama is not supported (gemma2 and gemma3 are)" in message(tmp_path / "llama.gguf")
    other = tmp_path / "other"
    shutil.copytree(tiny, other)
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"architectures": ["LlamaForCausalLM"]}))
    assert "architecture LlamaForCausalLM is not supported (Gemma 2, 3 and 4 are)" in message(other)
    (other / "config.json").write_text(json.dumps(config))
    (other / "tokenizer.model").unlink()
    assert f"{other}: no tokenizer.model and no tokenizer.json" in message(other)
    assert not (tmp_path / "out").exists()


def test_a_context_beyond_the_checkpoint_is_refused(tiny: Path, tmp_path: Path) -> None:
    printed = refused("export", "--source", tiny, "--output", tmp_path / "b", "--max-context", 4096)
    assert "max_context: 4096, but the checkpoint holds 128 tokens" in printed


def test_vocabularies_that_differ_are_refused_with_the_first_ids(tiny: Path, tmp_path: Path) -> None:
    text = "other words altogether: quartz, jackdaw, sphinx, vow\n" * 3 + "pack my box with five dozen liquor jugs " * 9
    other = save_tiny_checkpoint(tmp_path / "other", TinyConfig(layers=2, vocab=320), text=text)
    printed = refused("export", "--source", tiny, "--output", tmp_path / "b", *FAST, "--draft", other)
    pieces = [_pieces(path / "tokenizer.model") for path in (tiny, other)]
    differing = [i for i, (a, b) in enumerate(zip(*pieces, strict=False)) if a != b]
    i = differing[0]
    assert f"do not share their vocabulary; first differing ids: {i}: {pieces[0][i]!r} / {pieces[1][i]!r}, " in printed
    assert not (tmp_path / "b").exists()


def _pieces(path: Path) -> list[str]:
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
    return [processor.IdToPiece(i) for i in range(processor.GetPieceSize())]


def test_check_tells_intact_from_damaged(bundle: Path, tmp_path: Path) -> None:
    printed = done("check", bundle)
    assert printed.startswith(f"{bundle}: intact, ") and printed.count("\n") == 1
    for entry in read_manifest(bundle).files:
        damaged = tmp_path / entry.name
        shutil.copytree(bundle, damaged)
        data = bytearray((damaged / entry.name).read_bytes())
        data[len(data) // 2] ^= 1
        (damaged / entry.name).write_bytes(data)
        assert f"{damaged / entry.name}: sha256 " in refused("check", damaged)
        (damaged / entry.name).unlink()
        assert f"{damaged / entry.name}: missing from the bundle" in refused("check", damaged)
    assert f"no bundle at {tmp_path / 'none'}" in refused("check", tmp_path / "none")
    (tmp_path / "empty").mkdir()
    assert "is not a bundle: it has no bundle.json" in refused("check", tmp_path / "empty")


def test_parity_of_a_tiny_bundle_prints_figures(tiny: Path, bundle: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("The licenses for most software are designed to take away your freedom. " * 3)
    common = ("parity", bundle, "--reference", tiny, "--text", text, "--no-greedy")
    found = json.loads(done(*common, "--json"))
    assert found["tokens"] > 50 and found["top1_agreement"] > 0.9 and found["mean_kl"] < 0.05
    assert found["twin"] is None and "top-1 agreement" in done(*common)
    assert "no such checkpoint" in refused("parity", bundle, "--reference", tmp_path / "none")
    # Damage is told before the reference is made, and what only looks like weights is no figure.
    damaged = Path(shutil.copytree(bundle, tmp_path / "damaged"))
    weights = damaged / "target.weights"
    data = bytearray(weights.read_bytes())
    data[len(data) // 2] ^= 255
    weights.write_bytes(data)
    assert "target.weights: sha256" in refused("parity", damaged, "--reference", tiny)
    weights.unlink()
    assert "target.weights: missing" in refused("parity", damaged, "--reference", tiny)
    assert "none.txt" in refused("parity", bundle, "--reference", tiny, "--text", tmp_path / "none.txt")


def test_the_program_itself_fails_in_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "export", "export", "--source", "none.gguf", "--output", str(tmp_path / "b")]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == "error: none.gguf: no such checkpoint\n"


def test_the_list_of_commands_cuts_no_sentence() -> None:
    shown = CliRunner().invoke(main, ["--help"], terminal_width=80).output
    assert "..." not in shown.partition("Commands:")[2].replace("(gemma-2-9b, ...)", "")
    assert "in closed form." in " ".join(shown.split())


# --- the end --------------------------------------------------------------------------------------

_WORKING = """
import sys, tempfile, time
from export.__main__ import main
@main.command("work")
def work():
    with tempfile.TemporaryDirectory(dir=sys.argv[2]):
        print("ready", flush=True)
        time.sleep(600)
sys.argv[1:1] = ["work"]
main(["work"])
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_ends_any_command_leaves_no_folder_behind(tmp_path: Path, number: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", _WORKING, str(tmp_path)], stdout=subprocess.PIPE, cwd=ROOT) as running:
        assert running.stdout is not None and running.stdout.readline() == b"ready\n"
        assert len(list(tmp_path.iterdir())) == 1
        running.send_signal(number)
        assert running.wait(120.0) == 128 + number
    assert list(tmp_path.iterdir()) == []
