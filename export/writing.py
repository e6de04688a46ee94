"""From a plan to the files of one model, for the engine that the recipe names. Knows no graph and no weights."""

from __future__ import annotations

from pathlib import Path

from edge_runtime.errors import ConfigError

from . import model_writer, nf4_file, trt_writer
from .checkpoint import Checkpoint
from .model_writer import ModelPlan, Progress, WrittenModel
from .recipe import NF4, TENSORRT, ExportRecipe


def refuse_engine(recipe: ExportRecipe, checkpoint: Checkpoint) -> None:
    """Raises ``ConfigError`` for a checkpoint whose graph the engine's dialect cannot spell."""
    if recipe.engine == TENSORRT and checkpoint.config.family == "gemma4":
        raise ConfigError(
            f"engine: tensorrt: {checkpoint.path} is a Gemma 4, whose graph is not spelt for it yet; "
            "Gemma 2 and 3 are, and onnxruntime runs all of them"
        )
    if recipe.engine == NF4 and checkpoint.config.family == "gemma4":
        raise ConfigError(f"engine: nf4: {checkpoint.path} is a Gemma 4, which that engine does not run; 2 and 3 are")


def write_model(directory: Path, plan: ModelPlan, recipe: ExportRecipe, progress: Progress) -> WrittenModel:
    writers = {TENSORRT: trt_writer.write_model, NF4: nf4_file.write_nf4_model}
    write = writers.get(recipe.engine, model_writer.write_model)
    return write(directory, plan, recipe, progress)
