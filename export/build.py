"""Recipe to bundle: checkpoints in, one complete directory out. Knows the order of things, not their making."""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edge_runtime import __version__
from edge_runtime.bundle import (
    DRAFT,
    SCHEMA_VERSION,
    TARGET,
    FileEntry,
    Manifest,
    MemoryNeeds,
    Model,
    Source,
    TokenizerEntry,
    file_sha256,
    read_manifest,
    write_manifest,
)
from edge_runtime.errors import ConfigError, VocabularyMismatch
from edge_runtime.schema import plain

from .calibration import calibrated_rounding, calibration_ids
from .chat_template import template_for
from .checkpoint import Checkpoint, open_checkpoint
from .drafter import frequent_rows
from .live_drafters import LiveDrafters, choose_live_drafters, write_live_drafters
from .model_writer import ModelPlan, Progress, WrittenModel
from .output import free_place, new_directory
from .recipe import NF4, DraftRecipe, ExportRecipe
from .tokenizer import TokenizerModel, build_tokenizer_model, vocabulary_difference
from .writing import refuse_engine, write_model

TOKENIZER_FILE = "tokenizer.model"
TEMPLATE_FILE = "chat_template.jinja"
LICENCE_FILE = "GEMMA_NOTICE.txt"
LICENCE = "Gemma Terms of Use"
_NOTICE = Path(__file__).parent / "notices" / LICENCE_FILE


def exporter() -> str:
    """Version and a digest of this package: the same recipe makes the same bundle only by the same code and weights."""
    digest = hashlib.sha256()
    package = Path(__file__).parent
    for path in sorted([*package.rglob("*.py"), *package.rglob("*.safetensors")]):
        digest.update(path.read_bytes())
    return f"edge-export {__version__} {digest.hexdigest()[:12]}"


def build_bundle(recipe: ExportRecipe, progress: Progress, *, overwrite: bool = False) -> Manifest:
    """Export; the bundle at ``recipe.output`` is complete or untouched. Raises ``InputError`` kinds, one line each."""
    place = free_place(Path(recipe.output), overwrite=overwrite)
    name = recipe.name or place.name
    if not name.isprintable():
        raise ConfigError(f"name: {name!r} holds characters that cannot be shown, and no bundle may be named so")
    # Everything that can be refused is refused here: what follows takes minutes for a large model.
    target = open_checkpoint(Path(recipe.source))
    if recipe.max_context > target.config.max_position:
        raise ConfigError(
            f"max_context: {recipe.max_context}, but the checkpoint holds {target.config.max_position} tokens"
        )
    refuse_engine(recipe, target)
    tokenizer = build_tokenizer_model(target)
    template = template_for(target)
    draft = _choose_draft(recipe, target, tokenizer)
    living = choose_live_drafters(recipe, target, tokenizer)
    text = calibration_ids(recipe, tokenizer)
    with new_directory(place) as directory:
        models, notes = _write_models(directory, recipe, target, draft, living, tokenizer, text, progress)
        (directory / TOKENIZER_FILE).write_bytes(tokenizer.model)
        (directory / TEMPLATE_FILE).write_text(template, encoding="utf-8")
        shutil.copyfile(_NOTICE, directory / LICENCE_FILE)
        manifest = Manifest(
            schema_version=SCHEMA_VERSION,
            name=name,
            family=target.config.family,
            models=models,
            tokenizer=TokenizerEntry(
                TOKENIZER_FILE, tokenizer.vocab_size, tokenizer.bos_id, tokenizer.eos_ids, tokenizer.pieces_sha256
            ),
            chat_template=TEMPLATE_FILE,
            memory=_memory_needs(directory, models),
            sources=_sources(target, draft, progress) + living.sources(),
            recipe=plain(recipe),
            notes=notes,
            licence=LICENCE,
            licence_file=LICENCE_FILE,
            exporter=exporter(),
            files=_file_entries(directory, progress),
        )
        write_manifest(directory, manifest)
    return read_manifest(place)


@dataclass(frozen=True, slots=True)
class _Draft:
    """What becomes the draft."""

    checkpoint: Checkpoint
    layers: int
    token_ids: NDArray[np.int64] | None
    """[R] rising, of a reduced head."""


def _choose_draft(recipe: ExportRecipe, target: Checkpoint, tokenizer: TokenizerModel) -> _Draft | None:
    """A second checkpoint must share every token id with the target."""
    wanted = recipe.draft
    if wanted is None:
        return None
    checkpoint = target
    if wanted.source is not None:
        checkpoint = open_checkpoint(Path(wanted.source))
        refuse_engine(recipe, checkpoint)
        different = vocabulary_difference(tokenizer.pieces, build_tokenizer_model(checkpoint).pieces)
        if different:
            shown = ", ".join(f"{i}: {a!r} / {b!r}" for i, a, b in different[:5])
            raise VocabularyMismatch(f"draft and target do not share their vocabulary; first differing ids: {shown}")
    elif wanted.layers is None and wanted.vocab_rows is None:
        raise ConfigError("draft: give a source, or layers and vocab_rows to prune the target's own checkpoint")
    depth = checkpoint.config.num_layers
    layers = depth if wanted.layers is None else wanted.layers
    if not 1 <= layers <= depth:
        raise ConfigError(f"draft.layers: {layers}, but the checkpoint has {depth}")
    full = min(checkpoint.config.vocab_size, tokenizer.vocab_size)
    if wanted.vocab_rows is None:
        return _Draft(checkpoint, layers, None)
    if not 1 <= wanted.vocab_rows <= full:
        raise ConfigError(f"draft.vocab_rows: {wanted.vocab_rows}, but the vocabulary has {full}")
    corpus = None if wanted.frequency_corpus is None else Path(wanted.frequency_corpus)
    return _Draft(checkpoint, layers, frequent_rows(wanted.vocab_rows, full, tokenizer, corpus))


def _write_models(
    directory: Path,
    recipe: ExportRecipe,
    target: Checkpoint,
    draft: _Draft | None,
    living: LiveDrafters,
    tokenizer: TokenizerModel,
    text: NDArray[np.int64] | None,
    progress: Progress,
) -> tuple[dict[str, Model], tuple[str, ...]]:
    with calibrated_rounding(directory, recipe, target, text, progress) as rounding:
        plan = ModelPlan(
            role=TARGET,
            checkpoint=target,
            num_layers=target.config.num_layers,
            vocab_size=min(target.config.vocab_size, tokenizer.vocab_size),
            token_ids=None,
            precision=recipe.precision,
            head_precision=recipe.head_precision or recipe.head_default(recipe.precision),
            rounding=rounding,
            cut_after=None if living.self_draft is None else living.self_draft.layers,
        )
        written = write_model(directory, plan, recipe, progress)
    models, notes = {TARGET: written.model}, written.notes
    if recipe.draft is not None and draft is not None:
        draft_plan = _draft_plan(recipe, recipe.draft, draft, tokenizer, plan, written)
        draft_recipe = replace(recipe, precision=draft_plan.precision)
        # A pruned draft of the target's precision is the target's own weights.
        draft_text = None if _all_reused(draft_plan) else calibration_ids(draft_recipe, tokenizer)
        with calibrated_rounding(directory, draft_recipe, draft.checkpoint, draft_text, progress) as rounding:
            drafted = write_model(directory, replace(draft_plan, rounding=rounding), recipe, progress)
        models[DRAFT] = drafted.model
        notes += tuple(note for note in drafted.notes if not draft_plan.reuse)
    if recipe.engine == NF4:  # whose recipes name none
        return models, notes
    alive, more = write_live_drafters(directory, living, plan, written, recipe, progress)
    return models | alive, notes + more


def _draft_plan(
    recipe: ExportRecipe,
    wanted: DraftRecipe,
    draft: _Draft,
    tokenizer: TokenizerModel,
    target_plan: ModelPlan,
    target: WrittenModel,
) -> ModelPlan:
    checkpoint = draft.checkpoint
    precision = wanted.precision or recipe.precision
    head_precision = wanted.head_precision or (
        recipe.head_default(precision) if wanted.precision else target_plan.head_precision
    )
    same = checkpoint is target_plan.checkpoint
    reuse = dict(target.weights) if same and precision == target_plan.precision else {}
    for name in ("embed", "screen"):
        reuse.pop((name,), None)
        if same and head_precision == target_plan.head_precision and (name,) in target.weights:
            reuse[(name,)] = target.weights[(name,)]
    full = min(checkpoint.config.vocab_size, tokenizer.vocab_size)
    return ModelPlan(
        role=DRAFT,
        checkpoint=checkpoint,
        num_layers=draft.layers,
        vocab_size=full if draft.token_ids is None else len(draft.token_ids),
        token_ids=draft.token_ids,
        precision=precision,
        head_precision=head_precision,
        reuse=reuse,
        embedding=target.model.embedding if same else None,
    )


def _all_reused(plan: ModelPlan) -> bool:
    """Whether the body of ``plan`` is stored already."""
    return any(name[0].startswith("layers.0.") for name in plan.reuse)


def _memory_needs(directory: Path, models: dict[str, Model]) -> MemoryNeeds:
    weights = {name for model in models.values() for name in model.weights}
    # The target keeps its hidden rows, once, where any drafter reads them.
    kept = max((4 * (model.hidden_input or 0) for model in models.values()), default=0)
    return MemoryNeeds(
        weights=sum((directory / name).stat().st_size for name in weights),
        kv_per_token=sum(model.kv_bytes_per_token for model in models.values()) + kept,
        logits_per_row=4 * max(model.vocab_size for model in models.values()),
    )


def _sources(target: Checkpoint, draft: _Draft | None, progress: Progress) -> tuple[Source, ...]:
    if draft is None or draft.checkpoint is target:
        return (_source(target, progress),)
    return _source(target, progress), _source(draft.checkpoint, progress)


def _source(checkpoint: Checkpoint, progress: Progress) -> Source:
    sha256 = None
    if checkpoint.path.is_file():
        size, done = checkpoint.path.stat().st_size, 0

        def count(more: int) -> None:
            nonlocal done
            done += more
            progress("hash source", done, size)

        sha256 = file_sha256(checkpoint.path, count)
    return Source(checkpoint.config.name, sha256, checkpoint.kind)


def _file_entries(directory: Path, progress: Progress) -> tuple[FileEntry, ...]:
    paths = sorted(directory.iterdir())
    total, done = sum(path.stat().st_size for path in paths), 0

    def count(more: int) -> None:
        nonlocal done
        done += more
        progress("hash", done, total)

    return tuple(FileEntry(path.name, path.stat().st_size, file_sha256(path, count)) for path in paths)
