"""Drafters that live on their target: from a recipe's keys to models of its bundle. Knows no tokenizer's making.

All of them reuse what the target has stored: its embedding and rotary tables, and a self-draft all of its first layers.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edge_runtime.bundle import HEADS, MTP, SELF, Model, Source, file_sha256
from edge_runtime.errors import CheckpointError, ConfigError

from .assistant import kept_rows, refuse_misfit, write_assistant
from .assistant_checkpoint import AssistantCheckpoint, is_assistant, open_assistant
from .checkpoint import Checkpoint
from .drafter import frequent_rows
from .gemma import describe
from .gemma4 import shared_layers
from .graph import Graph
from .model_writer import ModelPlan, Progress, Weights, WrittenModel, stem_io
from .multi_token import describe_multi_token, drafter_checkpoint
from .parallel_heads import FittedHeads, HeadsConfig, describe_heads, heads_checkpoint, load_heads
from .precision import refuse_mixed
from .recipe import ExportRecipe
from .tokenizer import TokenizerModel
from .training.checkpoint import RECORD_NAME, WEIGHTS_NAME, DrafterConfig, TrainedDrafter, load_drafter
from .writing import write_model

_HEAD = ("head",)


@dataclass(frozen=True, slots=True, eq=False)
class SelfDraft:
    layers: int
    token_ids: NDArray[np.int64] | None


@dataclass(frozen=True, slots=True, eq=False)
class Assistant:
    checkpoint: AssistantCheckpoint
    shares: tuple[int, ...]
    """Caches of the target that it looks at."""
    token_ids: NDArray[np.int64] | None


@dataclass(frozen=True, slots=True, eq=False)
class LiveDrafters:
    """What a recipe asks for, opened and found to fit."""

    self_draft: SelfDraft | None
    mtp: TrainedDrafter | None
    assistant: Assistant | None
    heads: FittedHeads | None
    places: dict[str, Path]
    """Of what was trained, by role."""

    def sources(self) -> tuple[Source, ...]:
        kinds = {MTP: "edge_mtp" if self.assistant is None else "gemma4_assistant", HEADS: "edge_heads"}
        return tuple(Source(place.name, _weights_sha256(place), kinds[role]) for role, place in self.places.items())


def choose_live_drafters(recipe: ExportRecipe, target: Checkpoint, tokenizer: TokenizerModel) -> LiveDrafters:
    """Raises ``CheckpointError`` and ``ConfigError``, one line each, before anything is written."""
    half = recipe.in_half
    for role, wanted in ((MTP, recipe.mtp), (HEADS, recipe.heads)):
        if wanted is not None:
            refuse_mixed(role, recipe.trained_precision, "int8", half)
    mtp, assistant, heads = None, None, None
    places: dict[str, Path] = {}
    if recipe.mtp is not None:
        place = places[MTP] = Path(recipe.mtp)
        if is_assistant(place):
            assistant = _choose_assistant(recipe, place, target, tokenizer)
        else:
            mtp = load_drafter(place)
            _refuse_other_target("mtp", place, mtp, mtp.config.backbone_hidden_size, target, tokenizer)
    if recipe.heads is not None:
        place = places[HEADS] = Path(recipe.heads)
        heads = load_heads(place)
        _refuse_other_target("heads", place, heads, heads.config.hidden_size, target, tokenizer)
    return LiveDrafters(_choose_self_draft(recipe, target, tokenizer), mtp, assistant, heads, places)


def write_live_drafters(
    directory: Path,
    chosen: LiveDrafters,
    plan: ModelPlan,
    target: WrittenModel,
    recipe: ExportRecipe,
    progress: Progress,
) -> tuple[dict[str, Model], tuple[str, ...]]:
    """``plan`` is the target's."""
    # One kind of activations and caches in a bundle.
    recipe = replace(recipe, half=target.model.kv_dtype == "float16")
    models: dict[str, Model] = {}
    notes: list[str] = []
    stored: list[tuple[ModelPlan, WrittenModel]] = []
    for wanted in _plans(chosen, plan, target, recipe):
        heads = [done.weights[_HEAD] for known, done in stored if _same_head(known, wanted)]
        one = replace(wanted, reuse={**wanted.reuse, _HEAD: heads[0]}) if heads else wanted
        whole = one.stem_of is not None and one.token_ids is None
        written = _stem_model(one, target) if whole else write_model(directory, one, recipe, progress)
        models[one.role] = written.model
        # What is the target's own was noted with the target.
        notes += [note for note in written.notes if note.split(" ", 1)[1] not in _told(target)]
        stored.append((one, written))
    if chosen.assistant is not None:
        of = chosen.assistant
        written = write_assistant(directory, of.checkpoint, target, of.shares, of.token_ids, recipe, progress)
        models[MTP] = written.model
        notes += written.notes
    for role, place in chosen.places.items():
        if (place / RECORD_NAME).is_file():
            # How it was made goes with it.
            shutil.copyfile(place / RECORD_NAME, directory / f"{role}.{RECORD_NAME}")
    return models, tuple(notes)


def _stem_model(plan: ModelPlan, target: WrittenModel) -> WrittenModel:
    """The target itself, left behind its stem: there is nothing to write."""
    assert plan.graph is not None
    of = target.model
    other = tuple(line for line in of.io if line.graph not in ("stem", "body"))
    layers = plan.graph.kv_layers
    model = replace(of, body=str(of.stem), stem=None, shares=plan.shares, layers=layers, io=stem_io(of) + other)
    return WrittenModel(model, (), target.weights)


def _told(target: WrittenModel) -> set[str]:
    return {note.split(" ", 1)[1] for note in target.notes}


def _choose_assistant(recipe: ExportRecipe, place: Path, target: Checkpoint, tokenizer: TokenizerModel) -> Assistant:
    assistant = open_assistant(place)
    refuse_misfit(assistant, target, tokenizer)
    return Assistant(assistant, shared_layers(target.config), kept_rows(assistant, tokenizer, recipe))


def _weights_sha256(place: Path) -> str | None:
    weights = place / WEIGHTS_NAME
    return file_sha256(weights) if weights.is_file() else None


def _choose_self_draft(recipe: ExportRecipe, target: Checkpoint, tokenizer: TokenizerModel) -> SelfDraft | None:
    wanted = recipe.self_draft
    if wanted is None:
        return None
    depth = target.config.num_layers
    if not 1 <= wanted.layers < depth:
        raise ConfigError(f"self_draft.layers: {wanted.layers}, but the checkpoint has {depth}: 1 to {depth - 1} draft")
    if wanted.vocab_rows is None:
        return SelfDraft(wanted.layers, None)
    full = min(target.config.vocab_size, tokenizer.vocab_size)
    if not 1 <= wanted.vocab_rows <= full:
        raise ConfigError(f"self_draft.vocab_rows: {wanted.vocab_rows}, but the vocabulary has {full}")
    corpus = None if wanted.frequency_corpus is None else Path(wanted.frequency_corpus)
    return SelfDraft(
        wanted.layers, frequent_rows(wanted.vocab_rows, full, tokenizer, corpus, "self_draft.frequency_corpus")
    )


def _refuse_other_target(
    key: str,
    place: Path,
    drafter: TrainedDrafter | FittedHeads,
    width: int,
    target: Checkpoint,
    tokenizer: TokenizerModel,
) -> None:
    """What the drafter took for granted of its target and this one does not have."""
    config: DrafterConfig | HeadsConfig = drafter.config
    if width != target.config.hidden_size:
        raise CheckpointError(
            f"{key}: {place} reads hidden rows of {width}, and those of the target have {target.config.hidden_size}"
        )
    if config.vocab_size != target.config.vocab_size or int(drafter.token_ids[-1]) >= tokenizer.vocab_size:
        raise CheckpointError(f"{key}: {place} is of a vocabulary of {config.vocab_size}, not of the target's")
    if not math.isclose(config.embed_scale, target.config.embed_scale, rel_tol=1e-5):
        raise CheckpointError(f"{key}: {place} scales embeddings by {config.embed_scale}, which the target does not")
    if config.final_softcap != target.config.final_softcap:
        raise CheckpointError(f"{key}: {place} caps logits at {config.final_softcap}, which the target does not")
    told = drafter.record.get("target")
    wanted = told.get("sha256") if isinstance(told, dict) else None
    if isinstance(wanted, str) and target.path.is_file() and file_sha256(target.path) != wanted:
        name = told.get("name") if isinstance(told, dict) else None
        raise CheckpointError(f"{key}: {place} was made for another target ({name}): its sha256 is not {target.path}'s")


def _plans(chosen: LiveDrafters, plan: ModelPlan, target: WrittenModel, recipe: ExportRecipe) -> Iterator[ModelPlan]:
    if chosen.self_draft is not None:
        yield _self_plan(chosen.self_draft, plan, target)
    embedding: Weights = {(Graph.EMBED,): target.weights[(Graph.EMBED,)]}
    if chosen.mtp is not None:
        path = Path(str(recipe.mtp))
        own = drafter_checkpoint(chosen.mtp, path, plan.checkpoint)
        yield ModelPlan(
            role=MTP,
            checkpoint=own,
            num_layers=1,
            vocab_size=len(chosen.mtp.token_ids),
            token_ids=chosen.mtp.token_ids,
            precision=recipe.trained_precision,
            head_precision=plan.head_precision if chosen.mtp.ties_head else recipe.trained_precision,
            reuse=embedding,
            ropes=target.ropes,
            graph=describe_multi_token(own),
            embedding=target.model.embedding,
        )
    if chosen.heads is not None:
        yield ModelPlan(
            role=HEADS,
            checkpoint=heads_checkpoint(chosen.heads, Path(str(recipe.heads)), plan.checkpoint),
            num_layers=0,
            vocab_size=len(chosen.heads.token_ids),
            token_ids=chosen.heads.token_ids,
            precision=recipe.trained_precision,
            head_precision=plan.head_precision,
            reuse=embedding,
            graph=describe_heads(chosen.heads.config),
        )


def _self_plan(wanted: SelfDraft, plan: ModelPlan, target: WrittenModel) -> ModelPlan:
    graph = describe(plan.checkpoint.config, wanted.layers)
    return ModelPlan(
        role=SELF,
        checkpoint=plan.checkpoint,
        num_layers=wanted.layers,
        vocab_size=plan.vocab_size if wanted.token_ids is None else len(wanted.token_ids),
        token_ids=wanted.token_ids,
        precision=plan.precision,
        head_precision=plan.head_precision,
        reuse=target.weights,
        ropes=target.ropes,
        graph=graph,
        shares=tuple(range(len(graph.kv_layers))),
        stem_of=target.model if target.model.stem is not None else None,
        embedding=target.model.embedding,
    )


def _same_head(left: ModelPlan, right: ModelPlan) -> bool:
    """Whether two reduced heads are the same bytes."""
    if left.token_ids is None or right.token_ids is None or left.head_precision != right.head_precision:
        return False
    own = "head" in left.checkpoint.names() or "head" in right.checkpoint.names()
    return not own and np.array_equal(left.token_ids, right.token_ids)
