"""Gemma 4's assistants: what they propose beside what transformers' own modules do, and which are refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from test_decoder_sampling import chi_square_excess
from tiny_bundle import tiny_pieces, tiny_tokenizer
from tiny_gemma4 import AssistantOracle, TinyAssistant, TinyGemma4, save_tiny_assistant, save_tiny_gemma4
from tiny_models import TinyConfig, save_tiny_tokenizer
from tiny_models import save_tiny as save_tiny_gemma3

from edge_runtime.bundle import Manifest, MemoryNeeds, TokenizerEntry
from edge_runtime.decoder import Decoder
from edge_runtime.drafters.length import FixedLength
from edge_runtime.drafters.mtp import Assistant
from edge_runtime.drafters.protocol import DraftContext, DraftProposal
from edge_runtime.engines.ort import OrtEngine, OrtSettings
from edge_runtime.engines.protocol import HeadRequest, StepInput
from edge_runtime.errors import InputError
from edge_runtime.sampling import SamplingParams
from edge_runtime.session import Session
from edge_runtime.testing import decode
from export.assistant import write_assistant
from export.assistant_checkpoint import open_assistant
from export.build import build_bundle
from export.checkpoint import open_checkpoint
from export.dialects.ort_ordered import OrderedHead, spell_ordered_readout
from export.gemma4 import shared_layers
from export.model_writer import ModelPlan, write_model
from export.recipe import ExportRecipe
from export.weights import Dense, WeightFile

GREEDY = SamplingParams(temperature=0.0)
CONTEXT = 640
TARGET = TinyGemma4(context=CONTEXT, per_layer=32)


@dataclass(frozen=True)
class Pair:
    target: OrtEngine
    drafter: Assistant
    engine: OrtEngine
    manifest: Manifest

    def propose(self, tokens: np.ndarray, k: int, params: SamplingParams = GREEDY) -> DraftProposal:
        hidden = self.target.hidden_rows(0)[: len(tokens) - 1]
        uniform = iter(np.random.default_rng(len(tokens)).random(k)).__next__
        return self.drafter.propose(DraftContext(tokens, 0, params, None, uniform, hidden=hidden), k)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = save_tiny_gemma4(tmp_path_factory.mktemp("target"), TARGET)
    (folder / "tokenizer.model").write_bytes(tiny_tokenizer())
    return folder


@pytest.fixture(scope="module")
def assistants(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    kinds = {"ordered": TinyAssistant(), "dense": TinyAssistant(ordered=False)}
    return {kind: save_tiny_assistant(tmp_path_factory.mktemp(kind), config) for kind, config in kinds.items()}


def export(target: Path, assistant: Path, output: Path, **keys: Any) -> Manifest:
    keys = {"precision": "fp32", "max_context": CONTEXT, "mtp_vocab_rows": 512, **keys}
    recipe = ExportRecipe(source=str(target), output=str(output), mtp=str(assistant), **keys)
    return build_bundle(recipe, silent)


def silent(what: str, done: int, total: int) -> None:
    pass


def load(output: Path, manifest: Manifest, **settings: Any) -> Pair:
    shared = {"capacity": CONTEXT, "threads": 1, **settings}
    target = OrtEngine(output, manifest, "target", OrtSettings(**shared, keeps_hidden=True))
    engine = OrtEngine(output, manifest, "mtp", OrtSettings(**shared), target)
    return Pair(target, Assistant(engine, target.info), engine, manifest)


@pytest.mark.parametrize(("kind", "deterministic", "steps"), [("ordered", False, 200), ("dense", True, 60)])
def test_proposals_are_those_of_transformers(
    target: Path, assistants: dict[str, Path], tmp_path: Path, kind: str, deterministic: bool, steps: int
) -> None:
    """With every number of accepted drafts in between, what was rejected still in the target's caches."""
    pair = load(tmp_path / "b", export(target, assistants[kind], tmp_path / "b"), deterministic=deterministic)
    random = np.random.default_rng(5)
    tokens = random.integers(3, 512, 20)
    pair.target.forward(StepInput(0, tokens[:-1], 0, None))
    proposed = []
    for step in range(steps):
        draft = pair.propose(tokens, 1 + step % 3).tokens
        proposed.append((len(tokens), tokens[-1], draft.copy()))
        pair.target.forward(StepInput(0, np.append(tokens[-1:], draft), len(tokens) - 1, None))
        tokens = np.concatenate([tokens, draft[: random.integers(len(draft) + 1)], random.integers(3, 512, 1)])
    oracle = AssistantOracle(target, assistants[kind])
    oracle.run(tokens)
    wanted = [oracle.draft(tokens[:count], len(draft))[0] for count, _, draft in proposed]
    assert [draft.tolist() for _, _, draft in proposed] == wanted
    assert len(tokens) > 5 * TARGET.window and len({token for draft in wanted for token in draft}) > 20


def test_an_ordered_head_says_what_it_scored_and_nothing_else(
    target: Path, assistants: dict[str, Path], tmp_path: Path
) -> None:
    pair = load(tmp_path / "b", export(target, assistants["ordered"], tmp_path / "b"))
    tokens = np.random.default_rng(6).integers(3, 512, 30)
    pair.target.forward(StepInput(0, tokens[:-1], 0, None))
    oracle = AssistantOracle(target, assistants["ordered"])
    oracle.run(tokens)
    _, (row,) = oracle.draft(tokens, 1)
    scored = np.flatnonzero(row > row.min())
    assert len(scored) == 4 * 512 // 32, "the others are filled with one value below"
    for gathered in (scored[7], int(row.argmin())):
        step = StepInput(0, tokens[-1:], len(tokens) - 2, None, pair.target.hidden_rows(0)[len(tokens) - 2 :][:1])
        pair.engine.forward(step)
        head = pair.engine.head(HeadRequest(0, 1, 0.7, np.array([gathered])))
        order = np.argsort(-row, kind="stable")[:64]
        assert head.argmax[0] == order[0] and np.array_equal(head.candidate_ids[0], order)
        assert np.allclose(head.candidate_logits[0], row[order], atol=1e-4)
        assert np.isclose(head.logsumexp[0], np.log(np.exp(0.7 * row[scored].astype(np.float64)).sum()), atol=1e-4)
        assert head.gathered is not None
        assert np.isclose(head.gathered[0], row[gathered], atol=1e-4) == (gathered in scored)
        assert (np.exp(head.gathered[0]) > 0.0) == (gathered in scored), "no chance of what was not scored"


def test_what_it_draws_comes_with_the_law_it_was_drawn_from(
    target: Path, assistants: dict[str, Path], tmp_path: Path
) -> None:
    params = SamplingParams(temperature=0.8)
    pair = load(tmp_path / "b", export(target, assistants["ordered"], tmp_path / "b"))
    tokens = np.random.default_rng(8).integers(3, 512, 30)
    pair.target.forward(StepInput(0, tokens[:-1], 0, None))
    oracle = AssistantOracle(target, assistants["ordered"])
    oracle.run(tokens)
    _, (row,) = oracle.draft(tokens, 1)
    proposal = pair.propose(tokens, 3, params)
    assert proposal.laws is not None and len(proposal.laws) == 3
    law = proposal.laws[0]
    weights = np.exp(row.astype(np.float64) / 0.8)
    best = np.argsort(-row, kind="stable")[: len(law.ids)]
    for token in best[:10]:
        assert np.isclose(law.prob(int(token)), weights[token] / weights[best].sum(), rtol=1e-3)


@pytest.mark.parametrize("kind", ["ordered", "dense"])
def test_text_with_it_is_the_text_without_it(
    target: Path, assistants: dict[str, Path], tmp_path: Path, kind: str
) -> None:
    manifest = export(target, assistants[kind], tmp_path / "b", precision="int8", mtp_vocab_rows=256)
    pair = load(tmp_path / "b", manifest, deterministic=True, slots=2)
    ids = np.random.default_rng(9).integers(3, 512, 12)
    plain = Session(pair.target.info, ids, GREEDY, max_tokens=40)
    decode(Decoder(pair.target), plain)
    drafted = Session(pair.target.info, ids, GREEDY, max_tokens=40, slot=1)
    steps = decode(Decoder(pair.target, pair.drafter, FixedLength(3)), drafted)
    assert drafted.tokens.tolist() == plain.tokens.tolist()
    assert sum(step.drafted for step in steps) > 40


def test_a_token_that_stands_for_no_text_is_never_drafted(tmp_path: Path) -> None:
    """Padding of the vocabulary: the target could not even embed it."""
    import onnxruntime

    random = np.random.default_rng(3)
    table = random.normal(size=(64, 32)).astype(np.float32)
    order = random.permutation(64).reshape(8, 8)
    with WeightFile(tmp_path / "w") as file:
        stored = Dense(64, 32, file.append(table[order.reshape(-1)]), False)
    model = spell_ordered_readout(32, 32, OrderedHead(order, stored, best=8, tokens=20))
    onnx.save(model, tmp_path / "readout.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "readout.onnx"))
    hidden = random.normal(size=(3, 32)).astype(np.float32)
    feeds = {"logits": random.normal(size=(3, 8)).astype(np.float32), "hidden": hidden}
    feeds |= {"inverse_temperature": np.array(1.0, np.float32), "gather_rows": np.array([[19], [20], [5]])}
    argmax, ids, logits, total, gathered = session.run(
        ["argmax", "candidate_ids", "candidate_logits", "logsumexp", "gathered"], feeds
    )
    real = hidden @ table[:20].T
    assert np.array_equal(argmax, real.argmax(axis=1))
    assert (ids[:, :20] < 20).all() and (np.exp(logits[:, 20:]) == 0.0).all()
    assert np.allclose(total, np.log(np.exp(real.astype(np.float64)).sum(axis=1)), atol=1e-5)
    assert np.allclose(gathered[[0, 2], 0], real[[0, 2], [19, 5]], atol=1e-5) and np.exp(gathered[1, 0]) == 0.0


def _other_width(folder: Path, target: Path) -> Path:
    return save_tiny_assistant(folder, TinyAssistant(backbone=32))


def _other_vocabulary(folder: Path, target: Path) -> Path:
    return save_tiny_assistant(folder, TinyAssistant(vocab=256))


def _other_pieces(folder: Path, target: Path) -> Path:
    save_tiny_assistant(folder, TinyAssistant())
    save_tiny_tokenizer(folder)
    return folder


def _other_heads(folder: Path, target: Path) -> Path:
    return save_tiny_assistant(folder, TinyAssistant(kv_heads=1))


def _no_order(folder: Path, target: Path) -> Path:
    from safetensors.numpy import load_file, save_file

    save_tiny_assistant(folder, TinyAssistant())
    (file,) = folder.glob("*.safetensors")
    tensors = load_file(file)
    tensors["masked_embedding.token_ordering"][3] = 7
    tensors["masked_embedding.token_ordering"][5] = 7
    save_file(tensors, file)
    return folder


def _no_assistant(folder: Path, target: Path) -> Path:
    return target


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (_other_width, "reads hidden rows of 32, and those of target0 have 64"),
        (_other_vocabulary, "has 256 tokens, and target0 has 512"),
        (_other_pieces, "do not share their vocabulary; first differences: 4:"),
        (_other_heads, "differ in the heads of their sliding_attention layers"),
        (_no_order, "masked_embedding.token_ordering does not name every token once"),
        (_no_assistant, "mtp"),
    ],
)
def test_an_assistant_of_another_model_is_refused_by_name(
    target: Path, tmp_path: Path, make: Callable[[Path, Path], Path], message: str
) -> None:
    assistant = make(tmp_path / "assistant", target)
    with pytest.raises(InputError, match=message) as caught:
        export(target, assistant, tmp_path / "b")
    assert "\n" not in str(caught.value) and not (tmp_path / "b").exists()


def test_a_corpus_ranks_the_rows_of_a_dense_head(target: Path, assistants: dict[str, Path], tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\u0151\u0150" * 50, encoding="utf-8")
    tokens = [tiny_pieces().index(piece) for piece in tiny_pieces() if piece[0] in ("\u0150", "\u0151")]
    kept = {}
    for name, given in (("with", str(corpus)), ("without", None)):
        manifest = export(target, assistants["dense"], tmp_path / name, mtp_vocab_rows=128, mtp_frequency_corpus=given)
        model = manifest.model("mtp")
        assert model.vocab_size == 128 and model.token_ids is not None
        kept[name] = set(np.fromfile(tmp_path / name / model.token_ids, "<i8").tolist())
    assert set(tokens) and set(tokens) <= kept["with"] and not set(tokens) & kept["without"]
    with pytest.raises(InputError, match=r"mtp_frequency_corpus: none\.txt: No such file"):
        export(target, assistants["dense"], tmp_path / "b", mtp_frequency_corpus="none.txt")


def test_no_other_family_has_assistants(assistants: dict[str, Path], tmp_path: Path) -> None:
    gemma3 = save_tiny_gemma3(tmp_path / "gemma3", TinyConfig(context=CONTEXT, layers=2))
    (gemma3 / "tokenizer.model").write_bytes(tiny_tokenizer())
    with pytest.raises(InputError, match="is an assistant of Gemma 4, and gemma3 is of gemma3"):
        export(gemma3, assistants["ordered"], tmp_path / "b")


def small_pair(folder: Path) -> Pair:
    """32 tokens, of which the assistant scores 16."""
    checkpoint = open_checkpoint(save_tiny_gemma4(folder / "target", TinyGemma4(vocab=32)))
    assistant = open_assistant(save_tiny_assistant(folder / "assistant", TinyAssistant(vocab=32, centroids=8)))
    recipe = ExportRecipe(source="", output="", precision="fp32", max_context=64)
    output = folder / "b"
    output.mkdir()
    written = write_model(output, ModelPlan("target", checkpoint, 6, 32, None, "fp32", "fp32"), recipe, silent)
    shares = shared_layers(checkpoint.config)
    models = {"target": written.model}
    models["mtp"] = write_assistant(output, assistant, written, shares, None, recipe, silent).model
    tokenizer = TokenizerEntry("", 32, 2, (1,), "")
    manifest = Manifest(1, "small", "gemma4", models, tokenizer, None, MemoryNeeds(0, 0, 0), (), {}, (), "", "", "", ())
    return load(output, manifest, capacity=64)


def test_two_sampled_tokens_follow_the_targets_joint_law(tmp_path: Path) -> None:
    """32 x 32 texts through the real engines, which transformers' own speculative sampling would bend."""
    pair, params = small_pair(tmp_path), SamplingParams(temperature=3.0)
    prompt = np.random.default_rng(4).integers(3, 32, 12)
    every = np.arange(32)

    def law(token: int, position: int) -> np.ndarray:
        pair.target.forward(StepInput(0, np.array([token]), position, HeadRequest(0, 1)))
        weights = np.exp(pair.target.logits(0).astype(np.float64) / params.temperature)
        return weights / weights.sum()

    pair.target.forward(StepInput(0, prompt, 0, None))
    first = law(int(prompt[-1]), 11)
    wanted = {(one, two): first[one] * chance for one in every for two, chance in enumerate(law(one, 12))}
    decoder, rng = Decoder(pair.target, pair.drafter, FixedLength(2, 1)), np.random.default_rng(11)
    counts: Counter[tuple[int, ...]] = Counter()
    accepted: Counter[int] = Counter()
    for _ in range(500):
        # Room for two drafts and the bonus behind them.
        session = Session(pair.target.info, prompt, params, rng=rng, max_tokens=3, kv_len=11)
        accepted[decoder.step(session).accepted] += 1
        if len(session.generated) < 2:
            decoder.step(session)
        counts[tuple(session.generated[:2].tolist())] += 1
    assert chi_square_excess(counts, wanted) < 4.0
    assert min(accepted[count] for count in (0, 1, 2)) > 12
