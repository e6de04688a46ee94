"""Drafters that live on their target, exported and run: the graphs against numpy, and what may not be exported."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_bundle
from click.testing import CliRunner
from tiny_drafters import Oracle, random_drafter, random_heads, save
from tiny_gemma4 import TinyGemma4

from edge_runtime.bundle import HEADS, MTP, SELF, TARGET, read_manifest, verify_files
from edge_runtime.cli import main
from edge_runtime.decoder import Decoder
from edge_runtime.drafters.heads import ParallelHeads
from edge_runtime.drafters.length import FixedLength
from edge_runtime.drafters.mtp import MultiToken
from edge_runtime.drafters.protocol import DraftContext, Drafter, DraftProposal
from edge_runtime.drafters.self_draft import SelfDraft
from edge_runtime.engines.ort import OrtEngine, OrtSettings
from edge_runtime.engines.protocol import Engine, Floats, HeadRequest, Ids, StepInput
from edge_runtime.errors import BundleError, CheckpointError, ConfigError, InputError
from edge_runtime.sampling import SamplingParams, law_over_candidates
from edge_runtime.session import Session
from edge_runtime.testing import decode
from export.__main__ import main as export_main
from export.build import build_bundle
from export.checkpoint import Checkpoint, effective_norm, open_checkpoint
from export.cut import cut_graph
from export.gemma import describe
from export.heads_fit import fit_heads, fit_record
from export.live_drafters import LiveDrafters, write_live_drafters
from export.live_drafters import SelfDraft as SelfDraftPlan
from export.model_config import GemmaConfig
from export.model_writer import ModelPlan, write_model
from export.parallel_heads import load_heads, save_heads
from export.recipe import DraftRecipe, ExportRecipe, SelfDraftRecipe
from export.training.checkpoint import TrainedDrafter
from export.training.features import open_part

GREEDY = SamplingParams(temperature=0.0)
FLAT = SamplingParams(temperature=4.0)
"""Laws so even that a draft from any of them is often accepted, and often not."""
CLASSES = {MTP: MultiToken, SELF: SelfDraft, HEADS: ParallelHeads}


@cache
def target() -> Checkpoint:
    return open_checkpoint(tiny_bundle.checkpoint())


@cache
def oracle() -> Oracle:
    return Oracle(target())


@cache
def drafter(**given: Any) -> TrainedDrafter:
    return random_drafter(target(), **given)


def recipe(output: Path, **keys: Any) -> ExportRecipe:
    fixed = {"source": str(tiny_bundle.checkpoint()), "output": str(output), "precision": "fp32", "max_context": 128}
    return ExportRecipe(**{**fixed, **keys})


def silent(what: str, done: int, total: int) -> None:
    pass


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("drafters")
    return {MTP: save(folder / "mtp", drafter()), HEADS: save(folder / "heads", random_heads(target()))}


@pytest.fixture(scope="module")
def bundle(places: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With all of them, and a draft of the very layers that the self-draft has."""
    output = tmp_path_factory.mktemp("live") / "bundle"
    keys: dict[str, Any] = {"draft": DraftRecipe(layers=4), "self_draft": SelfDraftRecipe(layers=4)}
    build_bundle(recipe(output, mtp=str(places[MTP]), heads=str(places[HEADS]), **keys), silent)
    return output


@contextmanager
def engines(bundle: Path, role: str, **settings: Any) -> Iterator[tuple[OrtEngine, OrtEngine]]:
    """(target, drafter's)"""
    manifest = read_manifest(bundle)
    wanted = OrtSettings(**{"capacity": 100, "threads": 1, "keeps_hidden": True, **settings})
    owner = OrtEngine(bundle, manifest, TARGET, wanted)
    drafting = OrtEngine(bundle, manifest, role, replace(wanted, keeps_hidden=False, deterministic=False), owner)
    try:
        yield owner, drafting
    finally:
        drafting.close()
        owner.close()


def text(count: int, seed: int = 3) -> Ids:
    return np.random.default_rng(seed).integers(266, 512, count).astype(np.int64)


def rows(count: int) -> Floats:
    """As a target's are: by its final norm."""
    norm = effective_norm(target(), "final_norm")
    drawn: Floats = (np.random.default_rng(4).standard_normal((count, len(norm))) * norm).astype(np.float32)
    return drawn


# --- the graphs


VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "global-one-head": {"window": None, "kv_heads": 1, "rope_theta": 1e6, "rope_scale": 8.0},
    "no-qk-norm-softcap": {"qk_norm": False, "attn_softcap": 5.0, "kv_heads": 4},
    "a-width-of-its-own": {"width": 32},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_a_multi_token_graph_is_the_reference(name: str, tmp_path: Path) -> None:
    """In chunks, past its window, fed with its own rows and then again with true ones."""
    made = drafter(**VARIANTS[name])
    build_bundle(recipe(tmp_path / "b", mtp=str(save(tmp_path / "d", made))), silent)
    tokens, hidden = text(40), rows(40)
    with engines(tmp_path / "b", MTP, max_rows=16) as (_, engine):

        def run(fed: Ids, given: Floats, place: int) -> tuple[list[Floats], Floats]:
            output = engine.forward(StepInput(0, fed, place, HeadRequest(0, len(fed)), given))
            assert output.feed is not None
            return [engine.logits(row).copy() for row in range(len(fed))], output.feed.copy()

        cache, entry = oracle().entries(made, tokens[:2], hidden)[0], 0
        for size in (1, 5, 16, 3, 9):
            found, feed = run(tokens[entry + 1 : entry + size + 1], hidden[entry : entry + size], entry)
            for row in range(size):
                wanted = oracle().entry(made, cache, int(tokens[entry + 1]), hidden[entry], entry)
                assert np.abs(found[row] - wanted.logits).max() <= 1e-3 and np.std(wanted.logits) > 0.05
                assert np.abs(feed[row] - wanted.feed).max() <= 1e-3
                entry += 1
        for place in range(entry, entry + 4):  # its own rows, of tokens that it did not even choose
            wanted = oracle().entry(made, cache, int(tokens[place]), wanted.feed, place)
            found, feed = run(tokens[place : place + 1], feed[-1:], place)
            assert np.abs(found[0] - wanted.logits).max() <= 1e-3
        for place in range(entry, entry + 3):  # and the true ones over them
            wanted = oracle().entry(made, cache, int(tokens[place + 1]), hidden[place], place)
            found, _ = run(tokens[place + 1 : place + 2], hidden[place : place + 1], place)
            assert np.abs(found[0] - wanted.logits).max() <= 1e-3


def test_graphs_of_heads_are_the_reference(bundle: Path, places: dict[str, Path]) -> None:
    made = load_heads(places[HEADS])
    tokens, hidden = text(5), rows(5)
    with engines(bundle, HEADS) as (_, engine):
        assert engine.info.fan_out == 3
        request = HeadRequest(0, 15)
        head = engine.forward(StepInput(0, tokens, 0, request, hidden)).head
        assert head is not None
        for place in range(5):
            wanted = oracle().heads(made, int(tokens[place]), hidden[place])
            found = np.stack([engine.logits(3 * place + i) for i in range(3)])
            assert np.abs(found - wanted).max() <= 1e-3 and np.std(wanted) > 0.05
            assert head.argmax[3 * place] == made.token_ids[found[0].argmax()]


def test_a_self_draft_is_its_first_layers_and_leaves_the_target_alone(bundle: Path) -> None:
    """Against a draft of the same layers that has a cache of its own."""
    ids = text(30)
    with engines(bundle, SELF) as (owner, engine), engines(bundle, "draft") as (alone, draft):
        for one in (owner, alone, draft):
            one.forward(StepInput(0, ids[:20], 0, None))
        for place in range(20, 24):
            found, wanted = (
                one.forward(StepInput(0, ids[place : place + 1], place, HeadRequest(0, 1))).head
                for one in (engine, draft)
            )
            assert found is not None and wanted is not None
            assert np.abs(engine.logits(0) - draft.logits(0)).max() < 1e-4
        for one in (owner, alone):
            one.forward(StepInput(0, ids[20:], 20, HeadRequest(0, 10)))
        assert all(np.array_equal(owner.logits(row), alone.logits(row)) for row in range(10))


def test_a_target_in_two_graphs_is_the_target_by_the_bit_and_is_loaded_once(bundle: Path, tmp_path: Path) -> None:
    build_bundle(recipe(tmp_path / "whole"), silent)
    ids = text(30)
    with engines(bundle, SELF) as (cut, engine):
        whole = OrtEngine(tmp_path / "whole", read_manifest(tmp_path / "whole"), TARGET, cut._settings)
        for start, stop in ((0, 20), (20, 21), (21, 30)):
            for one in (cut, whole):
                one.forward(StepInput(0, ids[start:stop], start, HeadRequest(stop - start - 1, stop - start)))
            assert np.array_equal(cut.logits(0), whole.logits(0))
        whole.close()
        assert engine._sessions.body is cut._sessions.stem and engine._sessions.head is cut._sessions.head
    models = read_manifest(bundle).models
    assert models[SELF].body == models[TARGET].stem == "target.stem.onnx"
    assert not list(bundle.glob("self.*")), "there is nothing to store"


@pytest.mark.parametrize(
    ("keys", "wanted"),
    [
        ({}, [False] * 5),  # what each token says to every layer crosses any cut
        ({"per_layer": 0}, [True, True, False, False, False]),  # and so does what the last layers borrow
        ({"per_layer": 0, "shared": 0}, [True] * 5),
    ],
)
def test_a_body_is_cut_only_where_the_stream_alone_crosses(keys: dict[str, int], wanted: list[bool]) -> None:
    tiny = TinyGemma4(**keys)
    tables = {"hidden_size_per_layer_input": tiny.per_layer, "vocab_size_per_layer_input": tiny.vocab}
    config = GemmaConfig.from_hf({"model_type": "gemma4_text", **tiny.text(), **tables})
    assert [cut_graph(describe(config), layers) is not None for layers in range(1, 6)] == wanted


def test_a_self_draft_of_a_body_that_cannot_be_cut_has_graphs_of_its_own(tmp_path: Path) -> None:
    wanted, of = recipe(tmp_path), target()
    plan = ModelPlan(TARGET, of, 6, 512, None, "fp32", "fp32")
    written = write_model(tmp_path, plan, wanted, silent)
    chosen = LiveDrafters(SelfDraftPlan(4, None), None, None, None, {})
    models, notes = write_live_drafters(tmp_path, chosen, plan, written, wanted, silent)
    assert models[SELF].body == "self.body.onnx" and models[SELF].weights == ("target.weights",) and not notes
    manifest = replace(read_manifest(tiny_bundle.bundle()), models={TARGET: written.model, **models})
    owner, ids = OrtEngine(tmp_path, manifest, TARGET, OrtSettings(capacity=50, threads=1)), text(9)
    engine = OrtEngine(tmp_path, manifest, SELF, OrtSettings(capacity=50, threads=1), owner)
    owner.forward(StepInput(0, ids[:8], 0, None))
    own = engine.forward(StepInput(0, ids[8:], 8, HeadRequest(0, 1))).hidden.copy()
    engine.forward(StepInput(0, ids, 0, HeadRequest(8, 9)))  # over the same caches, and the same again
    assert np.abs(engine.forward(StepInput(0, ids[8:], 8, HeadRequest(0, 1))).hidden - own).max() < 1e-4
    for one in (engine, owner):
        one.close()


def test_engines_say_what_they_take(bundle: Path) -> None:
    with engines(bundle, MTP) as (owner, engine):
        assert (owner.info.keeps_hidden, engine.info.hidden_input) == (True, owner.info.hidden_size)
        for hidden in (None, rows(2), rows(1)[:, :5]):
            with pytest.raises(ValueError, match="1 tokens need hidden rows of 64"):
                engine.forward(StepInput(0, text(1), 0, None, hidden))
        with pytest.raises(ValueError, match="takes no hidden rows"):
            owner.forward(StepInput(0, text(1), 0, None, rows(1)))
        with pytest.raises(ValueError, match="keeps no hidden rows"):
            engine.hidden_rows(0)
        manifest, settings = read_manifest(bundle), OrtSettings(capacity=50, threads=1)
        with pytest.raises(ValueError, match="shares 1 slots of 100, not 1 of 50"):
            OrtEngine(bundle, manifest, SELF, settings, owner)
        with pytest.raises(ValueError, match="needs the engine that owns them"):
            OrtEngine(bundle, manifest, SELF, settings)


# --- drafting


class Watched:
    """Every law that a drafter draws from is the reference's, behind the very text, whatever was accepted before."""

    def __init__(self, inner: Drafter, role: str, draft: Engine) -> None:
        self.inner, self.role, self.draft = inner, role, draft
        self.name, self.max_k = inner.name, inner.max_k
        self.compared = 0

    def warm(self, context: DraftContext) -> int:
        return self.inner.warm(context)

    def propose(self, context: DraftContext, k: int) -> DraftProposal:
        proposal = self.inner.propose(context, k)
        assert proposal.laws is not None and len(proposal.tokens) == min(k, self.max_k)
        for law, (ids, logits) in zip(proposal.laws, self._said(context, proposal.tokens.tolist()), strict=True):
            best = np.argsort(-logits, kind="stable")[:64]
            wanted = law_over_candidates(ids[best], logits[best], context.params)
            # Those at the edge of the candidates may be others by a rounding.
            for one in ids[best[:32]].tolist():
                assert abs(law.prob(one) - wanted.prob(one)) < 1e-3
            self.compared += 1
        return proposal

    def observe(self, slot: int, accepted: int) -> None:
        self.inner.observe(slot, accepted)

    def reset(self, slot: int) -> None:
        self.inner.reset(slot)

    def _said(self, context: DraftContext, drafted: list[int]) -> Iterator[tuple[Ids, Floats]]:
        """(token ids, logits) of each drafted token."""
        tokens, count = context.tokens, len(context.tokens)
        if self.role == SELF:
            fed, place = tokens, 0
            for token in drafted:
                self.draft.forward(StepInput(0, fed, place, HeadRequest(len(fed) - 1, len(fed))))
                yield np.arange(512), self.draft.logits(0).copy()
                fed, place = np.array([token], np.int64), place + len(fed)
            return
        assert context.hidden is not None
        if self.role == HEADS:
            made = random_heads(target())
            for logits in oracle().heads(made, int(tokens[-1]), context.hidden[count - 2])[: len(drafted)]:
                yield made.token_ids, logits
            return
        known, output = oracle().entries(drafter(), tokens, context.hidden)
        for i, token in enumerate(drafted):
            yield drafter().token_ids, output.logits
            output = oracle().entry(drafter(), known, token, output.feed, count - 1 + i)


@pytest.mark.parametrize("role", CLASSES)
def test_drafts_are_drawn_from_the_references_laws(bundle: Path, role: str) -> None:
    with engines(bundle, role) as (owner, engine), engines(bundle, "draft") as (_, draft):
        watched = Watched(CLASSES[role](engine, owner.info, max_k=3), role, draft)
        session = Session(owner.info, text(6), FLAT, rng=np.random.default_rng(2), max_tokens=36)
        decode(Decoder(owner, watched, FixedLength(3)), session)
        assert watched.compared > 30 and 0 < session.totals.accepted < session.totals.drafted


@pytest.mark.parametrize("role", CLASSES)
def test_greedy_and_seeded_texts_are_those_of_plain_decoding(bundle: Path, role: str) -> None:
    with engines(bundle, role, deterministic=True) as (owner, engine):

        def answer(drafting: Drafter | None, k: int, params: SamplingParams) -> list[int]:
            seed = None if params.greedy else 5
            session = Session(owner.info, text(5), params, seed=seed, max_tokens=32)
            decode(Decoder(owner, drafting, FixedLength(k)), session)
            assert drafting is None or session.totals.drafted > 10
            return session.generated.tolist()

        for params in (GREEDY, FLAT):
            plain = answer(None, 0, params)
            for k in (1, 3):
                assert answer(CLASSES[role](engine, owner.info, max_k=3), k, params) == plain


@pytest.mark.parametrize("name", ["self", "mtp", "heads"])
def test_the_command_line_drafts_with_them(bundle: Path, name: str) -> None:
    def run(*options: str) -> dict[str, Any]:
        arguments = ["generate", "--bundle", str(bundle), "--threads", "1", "--prompt", "Hi", "--json", *options]
        result = CliRunner().invoke(main, [*arguments, "--max-tokens", "24", "--deterministic"])
        assert (result.exit_code, result.stderr) == (0, "")
        told: dict[str, Any] = json.loads(result.stdout)
        return told

    told = run("--drafter", name, "--k", "2")
    assert told["text"] == run("--drafter", "none")["text"]
    assert told["speculation"]["drafter"] == name and told["speculation"]["drafted"] > 10
    refused = CliRunner().invoke(
        main, ["generate", "--bundle", str(tiny_bundle.bundle()), "--drafter", name, "--prompt", "x"]
    )
    assert refused.exit_code == 2 and f"has no {name} model" in refused.stderr


# --- the bundle


def test_what_the_target_stores_is_not_stored_again(bundle: Path) -> None:
    manifest = read_manifest(bundle)
    verify_files(bundle, manifest)
    models, sizes = manifest.models, {entry.name: entry.bytes for entry in manifest.files}
    assert set(models) == {TARGET, "draft", SELF, MTP, HEADS}
    assert models[SELF].shares == (0, 1, 2, 3) and models[SELF].weights == ("target.weights",)
    assert models[SELF].table == models[TARGET].table
    # One reduced head for two drafters, and no embedding and no rotary table of their own.
    head = 128 * 64 * 4
    assert head < sizes["mtp.weights"] < head + 4 * 60_000 and sizes["heads.weights"] < 4 * 3 * (64 * 128 + 2 * 64 * 40)
    assert "mtp.weights" in models[HEADS].weights
    own = sum(model.kv_bytes_per_token for role, model in models.items() if role in (TARGET, "draft", MTP))
    assert models[SELF].kv_bytes_per_token == models[HEADS].kv_bytes_per_token == 0
    assert manifest.memory.kv_per_token == own + 4 * 64, "and the hidden rows that are kept"
    assert json.loads((bundle / "mtp.record.json").read_text()) == {"seed": 0}
    assert [(one.name, one.kind) for one in manifest.sources[1:]] == [("mtp", "edge_mtp"), ("heads", "edge_heads")]


def test_eight_bits_and_a_reduced_head_of_a_self_draft(places: dict[str, Path], tmp_path: Path) -> None:
    keys: dict[str, Any] = {"mtp": str(places[MTP]), "self_draft": SelfDraftRecipe(layers=2, vocab_rows=65)}
    manifest = build_bundle(recipe(tmp_path / "b", precision="int8", **keys), silent)
    models = manifest.models
    assert models[MTP].precision == "int8" and models[SELF].vocab_size == 128 and models[SELF].screen is None
    with engines(tmp_path / "b", SELF) as (owner, engine):
        owner.forward(StepInput(0, text(9), 0, None))
        head = engine.forward(StepInput(0, text(1), 9, HeadRequest(0, 1))).head
        assert head is not None and np.isfinite(head.logsumexp[0])
    # 8 bits for the matrices, and a scale in 32 bits for every 32 of them.
    assert (tmp_path / "b" / "mtp.weights").stat().st_size < 0.4 * 4 * (60_000 + 128 * 64)


def _with(directory: Path, made: Any) -> str:
    return str(save(directory / "d", made))


REFUSED: dict[str, tuple[Any, type[InputError], str]] = {
    "no layers": (lambda d: {"self_draft": SelfDraftRecipe(layers=0)}, ConfigError, "self_draft.layers: 0, but"),
    "all layers": (lambda d: {"self_draft": SelfDraftRecipe(layers=6)}, ConfigError, "1 to 5 draft"),
    "no rows": (
        lambda d: {"self_draft": SelfDraftRecipe(layers=2, vocab_rows=0)}, ConfigError, "self_draft.vocab_rows: 0",
    ),
    "no text": (
        lambda d: {"self_draft": SelfDraftRecipe(layers=2, vocab_rows=64, frequency_corpus="none.txt")},
        ConfigError, "self_draft.frequency_corpus: none.txt: No such file",
    ),
    "no drafter": (lambda d: {"mtp": "nowhere"}, CheckpointError, "nowhere"),
    "no heads": (lambda d: {"heads": "nowhere"}, CheckpointError, "nowhere"),
    "heads for mtp": (lambda d: {"mtp": _with(d, random_heads(target()))}, CheckpointError, "no trained drafter"),
    "mtp for heads": (lambda d: {"heads": _with(d, drafter())}, CheckpointError, "no parallel heads"),
    "another width": (
        lambda d: {"mtp": _with(d, drafter(backbone_hidden_size=32, width=32))},
        CheckpointError, "reads hidden rows of 32, and those of the target have 64",
    ),
    "another scale": (lambda d: {"mtp": _with(d, drafter(embed_scale=3.0))}, CheckpointError, "scales embeddings by 3"),
    "another cap": (lambda d: {"mtp": _with(d, drafter(final_softcap=30.0))}, CheckpointError, "caps logits at 30"),
    "another vocabulary": (
        lambda d: {"mtp": _with(d, drafter(vocab_size=600))}, CheckpointError, "is of a vocabulary of 600",
    ),
    "half": (
        lambda d: {"mtp": _with(d, drafter()), "precision": "fp16", "drafter_precision": "fp32"},
        ConfigError, "mtp: fp32 weights do not go with half: true",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_drafter_that_does_not_fit_is_refused_by_name(name: str, tmp_path: Path) -> None:
    keys, kind, message = REFUSED[name]
    with pytest.raises(kind) as caught:
        build_bundle(recipe(tmp_path / "out" / "bundle", **keys(tmp_path)), silent)
    assert message in str(caught.value) and "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("role", "changes", "message"),
    [
        (MTP, {"hidden_input": 32}, "the mtp model reads hidden rows of 32"),
        (TARGET, {"hidden_input": 64}, "the target model reads hidden rows"),
        (SELF, {"shares": [0, 1, 2]}, "cannot share 3 layers"),
        (TARGET, {"shares": [0, 1, 2, 3, 4, 5]}, "cannot share 6 layers"),
        (SELF, {"shares": [0, 1, 2, 6]}, "shares layers that the target lacks"),
        (SELF, {"kv_dtype": "float16"}, "shares layers that the target lacks"),
        (SELF, {"layers": [{"kv_heads": 1, "head_dim": 32, "window": 8}] * 4}, "layer 0 of the target is not"),
        (HEADS, {"fan_out": 0}, "fan_out must be from 1"),
    ],
)
def test_a_manifest_whose_drafter_would_read_foreign_memory_is_refused(
    bundle: Path, tmp_path: Path, role: str, changes: dict[str, Any], message: str
) -> None:
    data = json.loads((bundle / "bundle.json").read_text())
    data["models"][role] |= changes
    (tmp_path / "bundle.json").write_text(json.dumps(data))
    with pytest.raises(BundleError, match=message):
        read_manifest(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: a.pop("heads.1.up"), "tensor heads.1.up is missing"),
        (lambda a: a.update({"heads.3.up": a["heads.0.up"]}), "tensor heads.3.up is .*, not known"),
        (lambda a: a.update(out_scale=np.ones(3, np.float32)), r"tensor out_scale is \[3\], not \[64\]"),
        (lambda a: a["embed_norm"].fill(np.nan), "tensor embed_norm has values that are not finite"),
    ],
)
def test_heads_whose_tensors_do_not_fit_are_refused(tmp_path: Path, change: Any, message: str) -> None:
    made = random_heads(target())
    tensors = {name: values.copy() for name, values in made.tensors.items()}
    change(tensors)
    save(tmp_path / "d", replace(made, tensors=tensors))
    with pytest.raises(CheckpointError, match=message):
        load_heads(tmp_path / "d")


# --- heads that were fitted


class Features:
    """Texts that the target drew, and its rows on them."""

    def __init__(self, engine: OrtEngine, texts: int, seed: int) -> None:
        self.done, length = texts, 48
        self.tokens = np.zeros((texts, length), np.int32)
        self.hidden = np.zeros((texts, length, engine.info.hidden_size), np.float16)
        self.best = np.zeros((texts, length), np.int32)
        for i in range(texts):
            session = Session(engine.info, text(2, seed + i), SamplingParams(), seed=seed + i, max_tokens=length - 1)
            decode(Decoder(engine), session)
            self.tokens[i] = session.tokens[:length]
            self.hidden[i] = engine.hidden_rows(0)[:length]
            self.best[i] = (engine.hidden_rows(0)[:length] @ oracle().embed.T).argmax(axis=1)


def test_fitted_heads_know_more_than_chance(bundle: Path, tmp_path: Path) -> None:
    with engines(bundle, MTP) as (owner, _):
        fitted_to, held = Features(owner, 16, 100), Features(owner, 4, 500)
    every = np.arange(266, 512)
    fitted = fit_record(fit_heads(target(), [fitted_to], every, 2), target(), [fitted_to], {"held": held})
    (tmp_path / "d").mkdir()
    save_heads(tmp_path / "d", fitted)
    loaded = load_heads(tmp_path / "d")
    assert loaded.record["tokens"] == 16 * 48 and loaded.config.heads == 2

    def nll(row_of: int) -> list[float]:
        """Of the text's own tokens by each head, which is given the row ``row_of`` places off."""
        found: list[list[float]] = [[], []]
        for tokens, hidden in zip(held.tokens, held.hidden.astype(np.float32), strict=True):
            for place in range(2, 42):
                for i, logits in enumerate(oracle().heads(loaded, int(tokens[place + 1]), hidden[place + row_of])):
                    if tokens[place + 2 + i] >= 266:
                        shifted = logits - logits.max()
                        found[i].append(float(np.log(np.exp(shifted).sum()) - shifted[tokens[place + 2 + i] - 266]))
        return [float(np.mean(one)) for one in found]

    first, second = loaded.record["held_out"]["held"]
    assert first > 0.1 > 1.0 / len(every) and first > second
    right, wrong = nll(0), nll(-1)
    assert right[0] < np.log(len(every)) - 0.5, right
    assert right[0] < right[1] + 0.05 and right[0] < wrong[0]
    with pytest.raises(ConfigError, match="too few to fit"):
        fit_heads(target(), [some_of(fitted_to, 2)], every, 2)


def test_heads_are_fitted_from_the_command_line(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name in ("natural", "held-natural"):
        part = open_part(tmp_path / "f" / name, 12, 48, 64, {"target": "tiny"}, held=name != "natural")
        tokens = rng.integers(266, 512, (12, 48))
        told = () if name == "natural" else (np.zeros((12, 48), np.float32), tokens)
        part.append(tokens, rng.standard_normal((12, 48, 64)).astype(np.float32), *told)

    def run(features: str, output: str) -> Any:
        arguments = ["fit-heads", "--target", str(tiny_bundle.checkpoint()), "--features", str(tmp_path / features)]
        arguments += ["--output", str(tmp_path / output), "--heads", "2", "--rows", "128"]
        return CliRunner().invoke(export_main, arguments)

    done = run("f", "heads")
    assert done.exit_code == 0 and "held-natural: agrees" in done.stdout
    assert {path.name for path in (tmp_path / "heads").iterdir()} >= {"record.json", "GEMMA_NOTICE.txt"}
    assert load_heads(tmp_path / "heads").config.heads == 2
    for features, output, message in (("f", "heads", "exists"), ("none", "other", "no features there")):
        refused = run(features, output)
        assert refused.exit_code == 2 and message in refused.stderr and not (tmp_path / "other").exists()


def some_of(features: Features, texts: int) -> Features:
    fewer = object.__new__(Features)
    fewer.tokens, fewer.hidden, fewer.best, fewer.done = features.tokens, features.hidden, features.best, texts
    return fewer
