"""A Gemma 4 assistant as a model of its target's bundle. Knows how it is written, not how it drafts.

It embeds with its target's table, reads its target's hidden rows and caches, and has none of its own. Its head is
either dense, of which the most frequent rows are kept, or ordered by centroids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray

from edge_runtime.bundle import MTP, Model
from edge_runtime.errors import CheckpointError, VocabularyMismatch

from .assistant_checkpoint import AssistantCheckpoint, ReorderedTensor
from .checkpoint import Checkpoint, TensorSource, effective_norm
from .dialects.ort import Spelling, spell_body, spell_head
from .dialects.ort_ordered import OrderedHead, spell_ordered_readout
from .dialects.ort_readout import spell_readout
from .drafter import frequent_rows
from .gemma4 import describe_assistant, shared_layers
from .gemma4_config import KINDS
from .graph import Graph, Linear
from .model_writer import (
    SPARE_POSITIONS,
    Progress,
    Weights,
    WrittenModel,
    io_table,
    store_ropes,
    vector_names,
    weight_files,
)
from .needs import needs_of
from .precision import precision_notes, refuse_mixed, store_product
from .recipe import ExportRecipe, Precision
from .tokenizer import TokenizerModel, build_tokenizer_model, vocabulary_difference
from .weights import Stored, WeightFile

_CENTROIDS, _TABLE, _HEAD = ("centroids",), ("table",), ("head",)


def refuse_misfit(assistant: AssistantCheckpoint, target: Checkpoint, tokenizer: TokenizerModel) -> None:
    """Raises ``CheckpointError`` and ``VocabularyMismatch`` for an assistant of another target."""
    text, of = assistant.config.text, target.config
    name = f"mtp: {text.name}"
    if of.family != "gemma4":
        raise CheckpointError(f"{name} is an assistant of Gemma 4, and {of.name} is of {of.family}")
    if assistant.config.backbone_size != of.hidden_size:
        widths = f"{assistant.config.backbone_size}, and those of {of.name} have {of.hidden_size}"
        raise CheckpointError(f"{name} reads hidden rows of {widths}")
    if text.vocab_size not in (of.vocab_size, tokenizer.vocab_size):
        raise VocabularyMismatch(f"{name} has {text.vocab_size} tokens, and {of.name} has {of.vocab_size}")
    if any((assistant.weights.path / file).is_file() for file in ("tokenizer.model", "tokenizer.json")):
        different = vocabulary_difference(tokenizer.pieces, build_tokenizer_model(assistant.weights).pieces)
        if different:
            shown = ", ".join(f"{i}: {a!r} / {b!r}" for i, a, b in different[:5])
            raise VocabularyMismatch(f"{name} and {of.name} do not share their vocabulary; first differences: {shown}")
    shares = shared_layers(of)
    if len(shares) != len(KINDS):
        raise CheckpointError(f"{name} looks at layers of two kinds, and {of.name} has one")
    for layer in text.layers:
        ours = layer.shape
        assert ours is not None and ours.donor is not None
        theirs = of.layers[shares[ours.donor]].shape
        if theirs is None or (ours.kv_heads, ours.head_dim) != (theirs.kv_heads, theirs.head_dim):
            raise CheckpointError(f"{name} and {of.name} differ in the heads of their {KINDS[ours.donor]} layers")


def kept_rows(
    assistant: AssistantCheckpoint, tokenizer: TokenizerModel, recipe: ExportRecipe
) -> NDArray[np.int64] | None:
    """[R] rising, of a dense head; ``None`` for an ordered one, which reads no more than its best groups."""
    if assistant.ordering is not None:
        return None
    real = min(assistant.config.text.vocab_size, tokenizer.vocab_size)
    corpus = None if recipe.mtp_frequency_corpus is None else Path(recipe.mtp_frequency_corpus)
    return frequent_rows(min(recipe.mtp_vocab_rows, real), real, tokenizer, corpus, "mtp_frequency_corpus")


def write_assistant(
    directory: Path,
    assistant: AssistantCheckpoint,
    target: WrittenModel,
    shares: tuple[int, ...],
    token_ids: NDArray[np.int64] | None,
    recipe: ExportRecipe,
    progress: Progress,
) -> WrittenModel:
    """``shares``: the target's caches that it looks at; ``token_ids``: the rows of its head, where that is dense."""
    precision = recipe.trained_precision
    half = target.model.kv_dtype == "float16"
    refuse_mixed(MTP, precision, precision, half)
    graph = describe_assistant(assistant.config, tuple(target.model.layers[layer] for layer in shares))
    with WeightFile(directory / f"{MTP}.weights") as file:
        weights = _store(file, graph, assistant, token_ids, precision, recipe, progress)
        spelling = Spelling(
            weights={**weights, (Graph.EMBED,): target.weights[(Graph.EMBED,)]},
            norms={name: effective_norm(assistant.weights, name) for name in vector_names(graph)},
            ropes=store_ropes(file, graph, recipe.max_context + SPARE_POSITIONS),
            accuracy_level=recipe.accuracy_level,
            half=half,
        )
    head = _head(assistant, graph, spelling, token_ids, target.model.vocab_size, recipe.candidates)
    graphs = {"body": spell_body(graph, spelling), "head": head.scores, "readout": head.readout}
    for name, proto in graphs.items():
        onnx.save(proto, directory / f"{MTP}.{name}.onnx")
    if token_ids is not None:
        token_ids.astype("<i8").tofile(directory / f"{MTP}.token_ids")
    model = Model(
        body=f"{MTP}.body.onnx",
        head=f"{MTP}.head.onnx",
        readout=f"{MTP}.readout.onnx",
        screen=None,
        weights=weight_files(spelling),
        table=target.model.table,
        precision=precision,
        accuracy_level=recipe.accuracy_level if precision == "int8" else 0,
        vocab_size=target.model.vocab_size if token_ids is None else len(token_ids),
        token_ids=None if token_ids is None else f"{MTP}.token_ids",
        hidden_size=graph.hidden_size,
        candidates=head.candidates,
        max_context=recipe.max_context,
        kv_dtype=target.model.kv_dtype,
        layers=graph.kv_layers,
        io=tuple(line for name, proto in graphs.items() for line in io_table(name, proto)),
        shares=shares,
        hidden_input=assistant.config.backbone_size,
        constant_position=True,
        centroids=assistant.config.centroids,
        graphs=needs_of(MTP, graphs, target.model.table),
    )
    notes = precision_notes(precision, {"+".join(names): parts for names, parts in weights.items()})
    return WrittenModel(model, tuple(f"{MTP} {note}" for note in notes), weights)


@dataclass(frozen=True, slots=True, eq=False)
class _Head:
    scores: onnx.ModelProto
    """Hidden rows to the scores of tokens, or of centroids."""
    readout: onnx.ModelProto
    candidates: int


def _head(
    assistant: AssistantCheckpoint,
    graph: Graph,
    spelling: Spelling,
    token_ids: NDArray[np.int64] | None,
    tokens: int,
    candidates: int,
) -> _Head:
    weights = spelling.weights
    spelling = replace(spelling, weights={(Graph.EMBED,): weights[_CENTROIDS if token_ids is None else _HEAD]})
    if token_ids is not None:
        rows, count = len(token_ids), min(candidates, len(token_ids))
        return _Head(spell_head(graph, spelling, rows), spell_readout(rows, count, token_ids), count)
    assert assistant.ordering is not None
    (table,) = weights[_TABLE]
    ordered = OrderedHead(assistant.ordering, table, assistant.config.best_centroids, tokens)
    count = min(candidates, ordered.scored)
    scores = spell_head(graph, spelling, len(assistant.ordering))
    return _Head(scores, spell_ordered_readout(count, graph.hidden_size, ordered), count)


def _store(
    file: WeightFile,
    graph: Graph,
    assistant: AssistantCheckpoint,
    token_ids: NDArray[np.int64] | None,
    precision: Precision,
    recipe: ExportRecipe,
    progress: Progress,
) -> Weights:
    checkpoint, stored = assistant.weights, dict[tuple[str, ...], tuple[Stored, ...]]()
    embed = checkpoint.tensor(Graph.EMBED)
    products = {op.weights: [checkpoint.tensor(n) for n in op.weights] for op in graph.body if isinstance(op, Linear)}
    total = sum(4 * int(np.prod(source.shape)) for sources in [*products.values(), [embed]] for source in sources)
    done = 0

    def step(sources: Sequence[TensorSource]) -> None:
        nonlocal done
        done += sum(4 * int(np.prod(source.shape)) for source in sources)
        checkpoint.release()
        progress(MTP, min(done, total), total)

    for names, sources in products.items():
        stored[names] = store_product(file, sources, precision, recipe)
        step(sources)
    if assistant.ordering is None:
        stored[_HEAD] = store_product(file, [embed], precision, recipe, table=True, row_ids=token_ids)
    else:
        stored[_CENTROIDS] = store_product(file, [checkpoint.tensor("centroids")], precision, recipe, table=True)
        ordered = ReorderedTensor(embed, assistant.ordering.reshape(-1))
        stored[_TABLE] = store_product(file, [ordered], precision, recipe, table=True)
    step([embed])
    return stored
