"""Recipe to bundle: checkpoints in, one complete directory out. Knows the order of things, not their making."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
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
from edge_runtime.errors import BundleError, ConfigError, VocabularyMismatch
from edge_runtime.schema import plain

from .calibration import calibrated_rounding
from .chat_template import template_for
from .checkpoint import Checkpoint, open_checkpoint
from .drafter import frequent_rows
from .model_writer import ModelPlan, Progress, WrittenModel, write_model
from .recipe import DraftRecipe, ExportRecipe, Precision
from .tokenizer import TokenizerModel, build_tokenizer_model, vocabulary_difference

TOKENIZER_FILE = "tokenizer.model"
TEMPLATE_FILE = "chat_template.jinja"
LICENCE_FILE = "GEMMA_NOTICE.txt"
LICENCE = "Gemma Terms of Use"
_NOTICE = Path(__file__).parent / "notices" / LICENCE_FILE


def build_bundle(recipe: ExportRecipe, progress: Progress, *, overwrite: bool = False) -> Manifest:
    """Export; the bundle at ``recipe.output`` is complete or untouched. Raises ``InputError`` kinds, one line each."""
    output = Path(recipe.output)
    if output.exists() and not overwrite:
        raise ConfigError(f"{output} exists; choose another output or ask for an overwrite (--overwrite)")
    if output.exists() and not (output / "bundle.json").exists() and any(output.iterdir()):
        raise ConfigError(f"{output} exists and is not a bundle; it is not overwritten")
    target = open_checkpoint(Path(recipe.source))
    tokenizer = build_tokenizer_model(target)
    draft = _draft_checkpoint(recipe, target, tokenizer)
    with _new_directory(output) as directory:
        models, notes = _write_models(directory, recipe, target, draft, tokenizer, progress)
        (directory / TOKENIZER_FILE).write_bytes(tokenizer.model)
        (directory / TEMPLATE_FILE).write_text(template_for(target), encoding="utf-8")
        shutil.copyfile(_NOTICE, directory / LICENCE_FILE)
        manifest = Manifest(
            schema_version=SCHEMA_VERSION,
            name=recipe.name or output.resolve().name,
            family=target.config.family,
            models=models,
            tokenizer=TokenizerEntry(
                TOKENIZER_FILE, tokenizer.vocab_size, tokenizer.bos_id, tokenizer.eos_ids, tokenizer.pieces_sha256
            ),
            chat_template=TEMPLATE_FILE,
            memory=_memory_needs(directory, models),
            sources=_sources(target, draft, progress),
            recipe=plain(recipe),
            notes=notes,
            licence=LICENCE,
            licence_file=LICENCE_FILE,
            exporter=f"edge-export {__version__}",
            files=_file_entries(directory, progress),
        )
        write_manifest(directory, manifest)
    return read_manifest(output)


def _write_models(
    directory: Path,
    recipe: ExportRecipe,
    target: Checkpoint,
    draft: Checkpoint | None,
    tokenizer: TokenizerModel,
    progress: Progress,
) -> tuple[dict[str, Model], tuple[str, ...]]:
    vocab_size = min(target.config.vocab_size, tokenizer.vocab_size)
    plan = ModelPlan(
        role=TARGET,
        checkpoint=target,
        num_layers=target.config.num_layers,
        vocab_size=vocab_size,
        token_ids=None,
        precision=recipe.precision,
        head_precision=recipe.head_precision or _head_default(recipe.precision),
        rounding=calibrated_rounding(recipe, target, tokenizer, progress),
    )
    written = write_model(directory, plan, recipe, progress)
    models, notes = {TARGET: written.model}, written.notes
    if recipe.draft is not None and draft is not None:
        draft_plan = _draft_plan(recipe, recipe.draft, draft, tokenizer, plan, written)
        drafted = write_model(directory, draft_plan, recipe, progress)
        models[DRAFT] = drafted.model
        notes += tuple(note for note in drafted.notes if not draft_plan.reuse)
    return models, notes


def _draft_checkpoint(recipe: ExportRecipe, target: Checkpoint, tokenizer: TokenizerModel) -> Checkpoint | None:
    """The draft's checkpoint; a second one must share every token id with the target."""
    if recipe.draft is None:
        return None
    if recipe.draft.source is None:
        if recipe.draft.layers is None and recipe.draft.vocab_rows is None:
            raise ConfigError("draft: give a source, or layers and vocab_rows to prune the target's own checkpoint")
        return target
    draft = open_checkpoint(Path(recipe.draft.source))
    different = vocabulary_difference(tokenizer.pieces, build_tokenizer_model(draft).pieces)
    if different:
        shown = ", ".join(f"{i}: {a!r} / {b!r}" for i, a, b in different[:5])
        raise VocabularyMismatch(f"draft and target do not share their vocabulary; first differing ids: {shown}")
    return draft


def _draft_plan(
    recipe: ExportRecipe,
    wanted: DraftRecipe,
    checkpoint: Checkpoint,
    tokenizer: TokenizerModel,
    target_plan: ModelPlan,
    target: WrittenModel,
) -> ModelPlan:
    config = checkpoint.config
    layers = config.num_layers if wanted.layers is None else wanted.layers
    if not 1 <= layers <= config.num_layers:
        raise ConfigError(f"draft.layers: {layers}, but the checkpoint has {config.num_layers}")
    precision = wanted.precision or recipe.precision
    head_precision = wanted.head_precision or (
        _head_default(precision) if wanted.precision else target_plan.head_precision
    )
    full = min(config.vocab_size, tokenizer.vocab_size)
    token_ids: NDArray[np.int64] | None = None
    if wanted.vocab_rows is not None:
        if not 1 <= wanted.vocab_rows <= full:
            raise ConfigError(f"draft.vocab_rows: {wanted.vocab_rows}, but the vocabulary has {full}")
        corpus = None if wanted.frequency_corpus is None else Path(wanted.frequency_corpus)
        token_ids = frequent_rows(wanted.vocab_rows, full, tokenizer, corpus)
    same = checkpoint is target_plan.checkpoint
    reuse = dict(target.weights) if same and precision == target_plan.precision else {}
    if same and head_precision == target_plan.head_precision:
        reuse[("embed",)] = target.weights[("embed",)]
    return ModelPlan(
        role=DRAFT,
        checkpoint=checkpoint,
        num_layers=layers,
        vocab_size=full if token_ids is None else len(token_ids),
        token_ids=token_ids,
        precision=precision,
        head_precision=head_precision,
        reuse=reuse,
    )


def _head_default(precision: Precision) -> Precision:
    # The table is a third of a small model and the most sensitive matrix of it: 4 bits cost quality there first.
    return "int8" if precision == "int4" else precision


def _memory_needs(directory: Path, models: dict[str, Model]) -> MemoryNeeds:
    weights = {name for model in models.values() for name in model.weights}
    return MemoryNeeds(
        weights=sum((directory / name).stat().st_size for name in weights),
        kv_per_token=sum(model.kv_bytes_per_token for model in models.values()),
        logits_per_row=4 * max(model.vocab_size for model in models.values()),
    )


def _sources(target: Checkpoint, draft: Checkpoint | None, progress: Progress) -> tuple[Source, ...]:
    if draft is None or draft is target:
        return (_source(target, progress),)
    return _source(target, progress), _source(draft, progress)


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


@contextmanager
def _new_directory(output: Path) -> Iterator[Path]:
    """A directory beside ``output`` that takes its place when the block ends well, and is gone when it does not."""
    output.parent.mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix=f".{output.name}.", suffix=".tmp", dir=output.parent))
    try:
        yield directory
        directory.chmod(0o755)
        for path in directory.iterdir():
            _sync(path)
        _sync(directory)
        if output.exists():
            old = directory.with_suffix(".old")
            output.rename(old)
            directory.rename(output)
            shutil.rmtree(old)
        else:
            directory.rename(output)
        _sync(output.parent)
    except OSError as problem:
        raise BundleError(f"{output} cannot be written: {problem.strerror or problem}") from problem
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _sync(path: Path) -> None:
    """To the disk: after the rename a power cut must find the files whole."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
