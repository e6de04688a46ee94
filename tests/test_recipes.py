"""Recipes that ship are recipes that read, and every key says what it does."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from edge_runtime.errors import ConfigError
from export.recipe import DraftRecipe, ExportRecipe, SelfDraftRecipe, explain, read_recipe

SHIPPED = sorted((Path(__file__).parent.parent / "export" / "recipes").glob("*.yaml"))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_recipes_read(path: Path) -> None:
    assert read_recipe(path).output.startswith("bundles/")


def test_every_key_is_explained() -> None:
    explained = {key: text for key, _, text in explain()}
    wanted = {key.name for key in fields(ExportRecipe)} | {f"draft.{key.name}" for key in fields(DraftRecipe)}
    wanted |= {f"self_draft.{key.name}" for key in fields(SelfDraftRecipe)}
    assert set(explained) == wanted
    assert all(len(text) > 15 for text in explained.values())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("source: a\noutput: b\nprecison: int4", r"unknown key 'precison' \(did you mean 'precision'\?\)"),
        ("source: a\noutput: b\ndraft: {layer: 3}", r"draft: unknown key 'layer' \(did you mean 'layers'\?\)"),
        ("source: a", "output"),
        ("source: a\noutput: b\nprecision: int5", "precision"),
        ("source: a\noutput: b\nmax_context: many", "max_context"),
        ("source: a\noutput: b\nmax_context: 0", "max_context"),
        ("source: a\noutput: b\ncandidates: 0", "candidates"),
        ("source: a\noutput: b\nself_draft: {}", "self_draft.layers is missing"),
        ("source: a\noutput: b\nself_draft: {layers: 2, rows: 3}", "self_draft: unknown key 'rows'"),
        ("source: a\noutput: b\nmtp: {source: d}", "mtp"),
        ("source: a\noutput: b\nmtp_vocab_rows: 0", "mtp_vocab_rows"),
        ("source: a\noutput: b\ndrafter_precision: int4", "drafter_precision must be"),
        ("- a\n- b", "mapping"),
        ("a: [", "not YAML"),
        ("", "mapping"),
    ],
)
def test_a_wrong_recipe_names_the_key(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        read_recipe(path)
    assert "\n" not in str(caught.value)


def test_a_missing_recipe_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_recipe(tmp_path / "none.yaml")
