"""Trees through the real engine: a row of a branch says what it would say in a text of its own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tiny_models import TinyConfig, export_tiny, run_in_chunks, save_tiny, tiny_engine

from edge_runtime.decoder import Decoder
from edge_runtime.drafters.draft_model import DraftModel
from edge_runtime.drafters.length import FixedLength
from edge_runtime.engines.protocol import HeadRequest, StepInput
from edge_runtime.errors import ConfigError
from edge_runtime.sampling import SamplingParams
from edge_runtime.session import Session
from edge_runtime.testing import decode
from export.checkpoint import open_checkpoint
from export.reference import Reference

CONFIGS = {
    "gemma3": TinyConfig(),
    "gemma2": TinyConfig("gemma2", layers=4),
}
GREEDY = SamplingParams(temperature=0.0)
PARENTS = np.array([-1, 0, 1, 0, 3, 1, -1])
"""Two texts that part behind the first token, a third behind the second, and one that never had it."""


@pytest.fixture(scope="module", params=CONFIGS)
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TinyConfig]:
    folder = tmp_path_factory.mktemp(request.param)
    return save_tiny(folder, CONFIGS[request.param]), CONFIGS[request.param]


def _ids(config: TinyConfig, count: int = 48) -> np.ndarray:
    return np.random.default_rng(7).integers(3, config.vocab, count).astype(np.int64)


def test_a_chain_is_what_it_is_without_trees(tiny: tuple[Path, TinyConfig], tmp_path: Path) -> None:
    source, config = tiny
    ids = _ids(config)
    assert len(ids) > 4 * config.window
    wanted = Reference(open_checkpoint(source)).logits(ids)
    bundle = export_tiny(tmp_path, source, precision="fp32", trees=True)
    engine = tiny_engine(*bundle, max_rows=48, max_head_rows=48)
    assert engine.info.trees and not tiny_engine(*bundle, deterministic=True).info.trees
    for sizes in ([48], [5, 1, 3, 7, 2, 11], [1]):
        assert np.abs(run_in_chunks(engine, ids, sizes) - wanted).max() <= 1e-3


@pytest.mark.parametrize("before", [3, 40])
def test_each_branch_is_a_text(tiny: tuple[Path, TinyConfig], tmp_path: Path, before: int) -> None:
    source, config = tiny
    ids, tree = _ids(config)[:before], np.array([5, 9, 11, 8, 7, 6, 4])
    engine = tiny_engine(*export_tiny(tmp_path, source, precision="fp32", trees=True), max_rows=48, max_head_rows=48)
    plain = tiny_engine(*export_tiny(tmp_path / "plain", source, precision="fp32"), max_rows=48, max_head_rows=48)
    engine.forward(StepInput(0, ids, 0, None))
    engine.forward(StepInput(0, tree, before, HeadRequest(0, len(tree)), parents=PARENTS))
    found = np.stack([engine.logits(row).copy() for row in range(len(tree))])
    for row in range(len(tree)):
        path = [row]
        while PARENTS[path[0]] >= 0:
            path.insert(0, int(PARENTS[path[0]]))
        wanted = run_in_chunks(plain, np.concatenate([ids, tree[path]]), [before + len(path)])[-1]
        assert np.abs(found[row] - wanted).max() <= 1e-4, path
    # The path 0, 3, 4 is kept: the text goes on as if it had never been a tree.
    engine.keep_path(0, before, np.array([0, 3, 4]))
    engine.forward(StepInput(0, ids[:3], before + 3, HeadRequest(0, 3)))
    text = np.concatenate([ids, tree[[0, 3, 4]], ids[:3]])
    assert np.abs(engine.logits(2) - run_in_chunks(plain, text, [len(text)])[-1]).max() <= 1e-4


def test_greedy_text_with_alternatives_is_plain_text(tiny: tuple[Path, TinyConfig], tmp_path: Path) -> None:
    source, config = tiny
    bundle = export_tiny(tmp_path, source, precision="fp32", trees=True)
    engine = tiny_engine(*bundle, capacity=64, max_head_rows=16)
    texts = []
    for branches in (None, 0, 4):
        drafter = None if branches is None else DraftModel(tiny_engine(*bundle, capacity=64), engine.info)
        decoder = Decoder(engine, drafter, FixedLength(3, branches=branches or 0))
        session = Session(engine.info, _ids(config, 20), GREEDY, max_tokens=40)
        decode(decoder, session)
        texts.append(session.generated.tolist())
        assert branches is None or session.totals.accepted == session.totals.drafted
    assert texts[0] == texts[1] == texts[2]


def test_what_runs_no_trees_says_so(tiny: tuple[Path, TinyConfig], tmp_path: Path) -> None:
    source, _ = tiny
    engine = tiny_engine(*export_tiny(tmp_path, source, precision="fp32"))
    with pytest.raises(ValueError, match="without trees"):
        engine.forward(StepInput(0, np.array([1, 2]), 0, None, parents=np.array([-1, -1])))
    with pytest.raises(ValueError, match="no trees"):
        engine.keep_path(0, 0, np.array([1]))
    with pytest.raises(ConfigError, match="trees: not with half"):
        export_tiny(tmp_path / "half", source, precision="fp16", trees=True)
