"""Draft models of a bundle: pruned from the target, or a checkpoint of their own with the same vocabulary."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from export_runs import ExportRun
from real_engines import open_engine, prompt_ids
from tiny_models import TinyConfig, save_tiny, save_tiny_checkpoint

from edge_runtime.bench.corpus import prompts
from edge_runtime.bundle import read_manifest
from edge_runtime.decoder import Decoder
from edge_runtime.drafters.draft_model import DraftModel
from edge_runtime.drafters.length import FixedLength
from edge_runtime.drafters.protocol import DraftContext
from edge_runtime.loading import LoadSettings, load_bundle
from edge_runtime.sampling import SamplingParams
from edge_runtime.session import Session
from edge_runtime.testing import decode
from export.build import build_bundle
from export.checkpoint import open_checkpoint
from export.drafter import frequent_rows
from export.recipe import DraftRecipe, ExportRecipe
from export.tokenizer import build_tokenizer_model

Export = Callable[..., ExportRun]
GREEDY = SamplingParams(temperature=0.0)
SAMPLED = SamplingParams(temperature=1.0, top_k=64, top_p=0.95)


@pytest.fixture(scope="module")
def pruned(real_export: Export) -> Path:
    return real_export("--precision", "exact", "--layers", "14", "--vocab-rows", "32768").output


@pytest.mark.parametrize(("params", "seed"), [(GREEDY, None), (SAMPLED, 7)], ids=["greedy", "seeded"])
def test_a_model_drafting_for_itself_is_accepted(exact_bundle: Path, params: SamplingParams, seed: int | None) -> None:
    """Every draft, where both run in the deterministic mode; else all but those at near-ties."""
    given = {"deterministic": True}
    with open_engine(exact_bundle, **given) as target, open_engine(exact_bundle, "draft", **given) as engine:
        decoder = Decoder(target, DraftModel(engine, target.info), FixedLength(3), max_head_rows=4)
        for prompt in prompts("open")[:2]:
            session = Session(target.info, prompt_ids(exact_bundle, prompt.text), params, max_tokens=32, seed=seed)
            steps = decode(decoder, session)
            assert sum(step.drafted for step in steps) > 20
            assert all(step.accepted == step.drafted for step in steps)


def test_a_pruned_draft_is_the_target_s_bytes(pruned: Path) -> None:
    manifest = read_manifest(pruned)
    sizes = {entry.name: entry.bytes for entry in manifest.files}
    draft = manifest.model("draft")
    assert set(draft.weights) == {"target.weights", "draft.weights"}
    # The reduced head and two rotary tables, and nothing of layers, embedding or screen again.
    assert sizes["draft.weights"] < 32768 * 640 * 1.2 + 10_000_000
    assert (draft.vocab_size, len(draft.layers), draft.screen) == (32768, 14, None)


def test_a_pruned_draft_leaves_the_text_as_it_is(pruned: Path) -> None:
    bundle = load_bundle(pruned, LoadSettings(drafter="draft", deterministic=True, threads=1))
    try:
        text = prompts("open")[0].text
        texts, accepted = [], 0
        for decoder in (bundle.decoder("none"), *(bundle.decoder("draft", FixedLength(k)) for k in (1, 3))):
            session = Session(bundle.target.info, bundle.tokenizer.encode(text), GREEDY, max_tokens=40)
            accepted += sum(step.accepted for step in decode(decoder, session))
            texts.append(session.generated.tolist())
        assert texts[0] == texts[1] == texts[2]
        assert accepted > 0
    finally:
        bundle.close()


def test_frequent_rows_follow_the_corpus(demo_gguf: Path, tmp_path: Path, exact_bundle: Path) -> None:
    tokenizer = build_tokenizer_model(open_checkpoint(demo_gguf))
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("压缩空气储能系统的效率取决于热管理。" * 20, encoding="utf-8")
    rows = frequent_rows(1000, 262144, tokenizer, corpus)
    assert len(rows) == 1024 and np.all(np.diff(rows) > 0)
    wanted = prompt_ids(exact_bundle, "压缩空气储能系统的效率取决于热管理。")[1:]
    assert set(wanted) <= set(rows.tolist())
    assert set(tokenizer.eos_ids) <= set(rows.tolist())
    assert not set(rows.tolist()) & (set(tokenizer.control_ids) - set(tokenizer.eos_ids))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_checkpoint(tmp_path_factory.mktemp("target"), TinyConfig())


def _tiny_bundle(target: Path, output: Path, draft: DraftRecipe) -> Path:
    recipe = ExportRecipe(source=str(target), output=str(output), precision="int8", max_context=128, draft=draft)
    build_bundle(recipe, lambda what, done, total: None)
    return output


def _steps(bundle: Path, k: int, params: SamplingParams, seed: int | None) -> tuple[list[int], int, int]:
    """Text, drafted and accepted tokens; K = 0 is plain decoding."""
    settings = {"capacity": 128, "threads": 1, "deterministic": True}
    with open_engine(bundle, **settings) as target, open_engine(bundle, "draft", **settings) as engine:
        decoder = Decoder(target, DraftModel(engine, target.info), FixedLength(k))
        session = Session(target.info, [2, 40, 77, 300], params, max_tokens=60, seed=seed)
        steps = decode(decoder, session)
    return session.generated.tolist(), sum(s.drafted for s in steps), sum(s.accepted for s in steps)


@pytest.mark.parametrize(("params", "seed"), [(GREEDY, None), (SAMPLED, 7)], ids=["greedy", "seeded"])
def test_a_checkpoint_of_its_own_drafts(tiny: Path, tmp_path: Path, params: SamplingParams, seed: int | None) -> None:
    """Another architecture, the same vocabulary: the text is the target's, and the draft is mostly wrong."""
    other = save_tiny(tmp_path / "other", TinyConfig("gemma2", layers=2, hidden=128, kv_heads=1), seed=5)
    shutil.copy(tiny / "tokenizer.model", other)
    bundle = _tiny_bundle(tiny, tmp_path / "b", DraftRecipe(source=str(other)))
    manifest = read_manifest(bundle)
    assert [source.kind for source in manifest.sources] == ["safetensors"] * 2
    assert manifest.model("draft").weights == ("draft.weights",), "nothing is shared with another model"
    plain = _steps(bundle, 0, params, seed)[0]
    for k in (1, 3):
        text, drafted, accepted = _steps(bundle, k, params, seed)
        assert text == plain and accepted < drafted


@pytest.mark.parametrize(("params", "seed"), [(GREEDY, None), (SAMPLED, 7)], ids=["greedy", "seeded"])
def test_a_copy_of_the_target_is_always_accepted(
    tiny: Path, tmp_path: Path, params: SamplingParams, seed: int | None
) -> None:
    copy = Path(shutil.copytree(tiny, tmp_path / "copy"))
    bundle = _tiny_bundle(tiny, tmp_path / "b", DraftRecipe(source=str(copy)))
    plain = _steps(bundle, 0, params, seed)[0]
    text, drafted, accepted = _steps(bundle, 3, params, seed)
    assert text == plain and 0 < accepted == drafted


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_a_reduced_head_proposes_its_own_token_ids(tiny: Path, tmp_path: Path, params: SamplingParams) -> None:
    bundle = _tiny_bundle(tiny, tmp_path / "b", DraftRecipe(layers=3, vocab_rows=128))
    kept = set(np.fromfile(bundle / "draft.token_ids", "<i8").tolist())
    assert len(kept) == 128
    random = np.random.default_rng(0)
    settings = {"capacity": 128, "threads": 1}
    with open_engine(bundle, **settings) as target, open_engine(bundle, "draft", **settings) as engine:
        drafter = DraftModel(engine, target.info)
        seen = set()
        for _ in range(20):
            # Also tokens that the head lacks: they may stand in the text, for the embedding is whole.
            text = random.integers(3, 512, 10).astype(np.int64)
            proposal = drafter.propose(DraftContext(text, 0, params, None, random.random), 4)
            seen |= set(proposal.tokens.tolist())
        assert seen <= kept and len(seen) > 10
