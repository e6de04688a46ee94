"""Plans of real bundles, if tiny: what an engine opens, the daemon's refusal, the command."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import tiny_bundle as tiny
from click.testing import CliRunner

from edge_runtime.bundle import DRAFT, MANIFEST_NAME, TARGET, read_manifest
from edge_runtime.cli import main
from edge_runtime.config import BudgetConfig, Config, EngineConfig
from edge_runtime.engines.ort import OrtEngine, OrtSettings
from edge_runtime.errors import BundleError, OutOfBudget
from edge_runtime.loading import LoadSettings, load_of
from edge_runtime.memory import Room, shown
from edge_runtime.needs import Load, needs, opened_graphs
from edge_runtime.server.preparing import refuse_beyond, settings_of


def room(allowed: int) -> Room:
    return Room("a device", 10 * allowed, 10 * allowed, 0, allowed)


@pytest.mark.parametrize("head", ["screened", "full"])
def test_an_engine_opens_the_graphs_that_are_reckoned_with(head: str) -> None:
    manifest = read_manifest(tiny.bundle())
    target = None
    for role in (TARGET, DRAFT):
        model = manifest.model(role)
        engine = OrtEngine(tiny.bundle(), manifest, role, OrtSettings(32, head=head), target)  # type: ignore[arg-type]
        opened = {name.replace(".narrow", "") for name in engine._sessions.by_file}
        assert opened == set(opened_graphs(model, head))  # type: ignore[arg-type]
        assert opened <= {one.file for one in model.graphs}
        engine.close()


def test_what_graphs_name_is_in_their_files() -> None:
    manifest = read_manifest(tiny.bundle())
    sizes = {entry.name: entry.bytes for entry in manifest.files}
    for model in manifest.models.values():
        stored = sum(sizes[name] for name in model.weights)
        for graph in model.graphs:
            product_bytes = sum(one.values * one.bits // 8 for one in graph.products)
            assert product_bytes <= graph.stored <= stored and graph.table <= graph.stored
            assert all(0 < one.largest <= one.values for one in graph.products)
        body = next(one for one in model.graphs if one.file == model.body)
        assert body.products and body.attention_heads == 4 and body.widest == 256


def test_a_bundle_that_says_nothing_is_guessed_at() -> None:
    manifest = read_manifest(tiny.bundle())
    silent = {role: replace(model, graphs=()) for role, model in manifest.models.items()}
    assert needs(manifest, Load(64, 1)).exact
    guessed = needs(replace(manifest, models=silent), Load(64, 1))
    assert not guessed.exact and guessed.models[0].weights > 0


_SENSELESS: list[tuple[tuple[str | int, ...], object, str]] = [
    (("files", 0, "bytes"), -1, "bytes of the file"),
    (("files", 0, "bytes"), 10**40, "digits"),
    (("tokenizer", "vocab_size"), 0, "tokenizer.vocab_size"),
    (("tokenizer", "vocab_size"), 10**12, "tokenizer.vocab_size"),
    (("tokenizer", "eos_ids"), [10**9], "a token id"),
    (("tokenizer", "bos_id"), -1, "a token id"),
    (("memory", "weights"), -1, "memory.weights"),
    (("memory", "kv_per_token"), 10**40, "memory.kv_per_token"),
    (("models", "target", "layers"), [], "has no layers"),
    (("models", "target", "layers", 0, "window"), 0, "window of layer 0"),
    (("models", "target", "layers", 0, "kv_heads"), 10**40, "kv_heads of layer 0"),
    (("models", "target", "hidden_size"), -4, "target: hidden_size"),
    (("models", "target", "max_context"), 0, "target: max_context"),
    (("models", "target", "candidates"), 10**6, "target: candidates"),
    (("models", "target", "graphs", 0, "attention_heads"), 0, "attention_heads"),
    (("models", "target", "graphs", 0, "attention_heads"), -1, "attention_heads"),
    (("models", "target", "graphs", 0, "attention_heads"), 10**40, "attention_heads"),
    (("models", "target", "graphs", 0, "stored"), -1, "stored"),
    (("models", "target", "graphs", 0, "stored"), 10**40, "stored"),
    (("models", "target", "graphs", 0, "table"), 10**13, "contradicts itself"),
    (("models", "target", "graphs", 0, "widest"), -5, "widest"),
    (("models", "target", "graphs", 0, "products", 0, "bits"), 7, "contradicts itself"),
    (("models", "target", "graphs", 0, "products", 0, "values"), 10**40, "values"),
    (("models", "target", "graphs", 0, "products", 0, "largest"), 10**13, "contradicts itself"),
    (("models", "target", "graphs", 0, "products", 0, "block_size"), 0, "block_size"),
    (("models", "draft", "graphs", 0, "stored"), -1, "draft: stored"),
]


@pytest.mark.parametrize(("place", "value", "words"), _SENSELESS)
def test_figures_that_no_model_has_are_refused_in_one_line(
    tmp_path: Path, place: tuple[str | int, ...], value: object, words: str
) -> None:
    """The manifest alone: no plan has been made of it, and no file is there."""
    data = json.loads((tiny.bundle() / MANIFEST_NAME).read_text())
    inner = data
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    (tmp_path / MANIFEST_NAME).write_text(json.dumps(data))
    with pytest.raises(BundleError) as caught:
        read_manifest(tmp_path)
    assert words in str(caught.value) and len(str(caught.value)) < 300 and "\n" not in str(caught.value)


# --- the daemon's refusal --------------------------------------------------------------------------


def config(**engine: object) -> Config:
    return Config(str(tiny.bundle()), EngineConfig(**engine))  # type: ignore[arg-type]


def test_what_does_not_fit_is_refused_with_the_numbers() -> None:
    manifest, wanted = read_manifest(tiny.bundle()), config(context=4096, sessions=256)
    peak = needs(manifest, load_of(manifest, settings_of(wanted.engine))).peak
    refuse_beyond(manifest, wanted, room(peak))
    with pytest.raises(OutOfBudget) as caught:
        refuse_beyond(manifest, wanted, room(peak - 1))
    message = str(caught.value)
    assert "\n" not in message and shown(peak) in message and "256 sessions of 4096 tokens" in message
    assert "what would fit: context: " in message
    assert (caught.value.exit_code, caught.value.http_status) == (2, 409)


def test_beside_a_model_that_is_served_both_count() -> None:
    manifest, wanted = read_manifest(tiny.bundle()), config(context=512, sessions=2)
    found = needs(manifest, load_of(manifest, settings_of(wanted.engine)))
    held = 700_000_000
    refuse_beyond(manifest, wanted, room(found.beside + held), held)
    with pytest.raises(OutOfBudget, match="beside the 700 MB that are held now"):
        refuse_beyond(manifest, wanted, room(found.beside + held - 1), held)


# --- the command -----------------------------------------------------------------------------------


def run(*arguments: str):  # type: ignore[no-untyped-def]
    return CliRunner().invoke(main, ["plan", *arguments])


def test_plan_tells_each_part_and_whether_it_fits() -> None:
    result = run("--bundle", str(tiny.bundle()), "--board", "orin-nano-8", "--context", "512", "--json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert told["fits"] and told["load"]["context"] == 512 and told["load"]["sessions"] == EngineConfig().sessions
    assert [one["role"] for one in told["needs"]["models"]] == ["target", "draft"]
    assert told["peak_bytes"] <= told["allowed_bytes"] and told["left_bytes"] > 0
    shown_too = run("--bundle", str(tiny.bundle()), "--board", "orin-nano-8")
    assert shown_too.exit_code == 0 and "It fits." in shown_too.stdout and "target: KV cache" in shown_too.stdout


@pytest.mark.parametrize("name", ["[/foo]", "[bold red]x", ":smile: [x]", "a[/b"])
def test_a_name_is_printed_as_it_is(tmp_path: Path, name: str) -> None:
    """And is no markup of the tables that it stands in."""
    data = json.loads((tiny.bundle() / MANIFEST_NAME).read_text())
    (tmp_path / MANIFEST_NAME).write_text(json.dumps({**data, "name": name}))
    result = run("--bundle", str(tmp_path), "--board", "orin-nano-8")
    assert result.exit_code == 0, result.output
    assert name in result.stdout


def test_plan_of_this_machine_and_of_a_configuration(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(f"bundle: {tiny.bundle()}\nengine: {{sessions: 3, context: 100}}\nbudget: {{memory_gb: 0.1}}\n")
    result = run("--config", str(path))
    assert result.exit_code == 1, result.output
    assert "3 sessions of 100 tokens" in result.stdout and "It does not fit" in result.stdout
    assert json.loads(run("--config", str(path), "--sessions", "2", "--json").stdout)["load"]["sessions"] == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "give --bundle or --config"),
        (["--bundle", "/nowhere"], "no bundle at"),
        (["--bundle", "{tiny}", "--board", "orin-nano-9"], "did you mean 'orin-nano-"),
        (["--bundle", "{tiny}", "--context", "5000"], "holds 1 to 4096"),
        (["--bundle", "{tiny}", "--context", "0"], "--context"),
        (["--bundle", "{tiny}", "--sessions", "1000"], "--sessions"),
        (["--config", "/nowhere.yaml"], "No such file"),
    ],
)
def test_what_is_wrong_is_one_line(arguments: list[str], words: str) -> None:
    result = run(*(argument.format(tiny=tiny.bundle()) for argument in arguments))
    assert (result.exit_code, result.stdout) == (2, "") and words in result.stderr and result.stderr.count("\n") == 1


def test_what_loading_asks_for_is_what_is_planned() -> None:
    manifest = read_manifest(tiny.bundle())
    load = load_of(manifest, LoadSettings(context=100, slots=3, drafter="lookup", suffix_tokens=9, max_draft_tokens=4))
    assert load == Load(100, 3, (), head_rows=5)
    assert load_of(manifest, LoadSettings(suffix_tokens=600)) == Load(2048, 1, (DRAFT,), suffix_tokens=600)
    assert BudgetConfig().memory_bytes is None
