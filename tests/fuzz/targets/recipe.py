"""Recipes of an export, and the checks that follow before a checkpoint is opened."""

from __future__ import annotations

from pathlib import Path
from random import Random

from edge_runtime.errors import ConfigError
from export.recipe import ExportRecipe, read_recipe

from ..examples import words
from ..judge import Judge
from ..yaml_text import edit_yaml

REFUSAL = ConfigError
NAME = "recipe.yaml"
_KNOWN = words(ExportRecipe)
_TEXT = """\
source: models/gemma
output: bundles/gemma
precision: int4
head_precision: int8
block_size: 32
max_context: 4096
draft:
  source: models/small
  precision: int8
self_draft:
  layers: 4
"""


def seeds() -> list[bytes]:
    return [_TEXT.encode(), b"{source: a, output: b, trees: true}\n"]


def mutate(data: bytes, rng: Random) -> bytes:
    return edit_yaml(data, rng, _KNOWN)


def read(judge: Judge, path: Path) -> None:
    judge.attempt(read_recipe, path)
