"""The deterministic mode: how a forward is cut, and whether an engine that cannot keep its promise is found out."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import tiny_bundle as tiny
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import TinyConfig, export_tiny, save_tiny, tiny_engine

from edge_runtime.engines.even_rows import WITHOUT_BLOCKS, even, parts_of
from edge_runtime.engines.ort import OrtEngine
from edge_runtime.engines.protocol import HeadRequest, StepInput, StepOutput
from edge_runtime.engines.row_check import refuse_unlike_rows
from edge_runtime.errors import ConfigError
from edge_runtime.loading import LoadSettings, load_bundle
from edge_runtime.testing import FakeCall, FakeEngine


@given(st.integers(0, 200), st.integers(1, 80))
def test_no_part_has_keys_on_both_sides_of_where_attention_changes(position: int, count: int) -> None:
    step = StepInput(0, np.arange(count, dtype=np.int64), position, None)
    parts = parts_of(step)
    assert np.concatenate([part.tokens for part in parts]).tolist() == step.tokens.tolist()
    assert [part.position for part in parts] == [position + int(part.tokens[0]) for part in parts]
    for part in parts:
        # A row at p sees p + 1 keys by itself; with the last row, padded, it is run over all of these.
        last = part.position + even(len(part.tokens))
        for keys in (16, 32, 64):
            lone = range(part.position + 2, last + 1)  # keys of each row, were it run alone and padded
            assert all((own <= keys) == (last <= keys) for own in lone)


def test_one_part_is_the_step_itself() -> None:
    step = StepInput(1, np.arange(40, dtype=np.int64), 64, HeadRequest(0, 40))
    assert parts_of(step) == [step]


def test_hidden_rows_go_with_their_tokens() -> None:
    hidden = np.arange(20 * 3, dtype=np.float32).reshape(20, 3)
    parts = parts_of(StepInput(0, np.arange(20, dtype=np.int64), 10, HeadRequest(0, 20), hidden))
    assert [len(part.tokens) for part in parts] == [5, 15]
    assert all(part.head is None for part in parts)
    for part in parts:
        assert part.hidden is not None
        assert part.hidden[:, 0].tolist() == (3.0 * part.tokens).tolist()


class Unlike(FakeEngine):
    """What it says of a row is another one where so many keys are seen and the number of rows is odd."""

    keys, part = range(0), ""

    def forward(self, step: StepInput) -> StepOutput:
        output = super().forward(step)
        if len(step.tokens) % 2 == 0 or step.position + len(step.tokens) not in self.keys:
            return output
        if self.part == "hidden":
            return replace(output, hidden=output.hidden + np.float32(1))
        assert output.head is not None
        return replace(output, head=replace(output.head, **{self.part: getattr(output.head, self.part) + 1}))


@pytest.mark.parametrize("keys", [range(1, 17), range(65, 129)])
@pytest.mark.parametrize("part", ["hidden", "candidate_ids", "candidate_logits", "logsumexp", "gathered"])
def test_an_engine_that_cannot_keep_the_promise_is_refused(keys: range, part: str) -> None:
    engine = Unlike(min_rows=2)
    engine.keys, engine.part = keys, part
    with pytest.raises(ConfigError, match=r"mode cannot be had here: on this processor a row of .* other"):
        refuse_unlike_rows(engine, 16)


def test_a_load_in_that_mode_looks_and_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    forward = OrtEngine.forward

    def unlike(engine: OrtEngine, step: StepInput) -> StepOutput:
        output = forward(engine, step)
        return replace(output, hidden=output.hidden + np.float32(len(step.tokens) % 2))

    said: list[str | None] = []
    made = onnxruntime.InferenceSession

    def session(*given: Any, **more: Any) -> Any:
        said.append(os.environ.get(WITHOUT_BLOCKS))
        return made(*given, **more)

    monkeypatch.setattr(onnxruntime, "InferenceSession", session)
    monkeypatch.setattr(OrtEngine, "forward", unlike)
    settings = LoadSettings(context=128, threads=1)
    load_bundle(tiny.bundle_without_draft(), settings).close()
    assert said and not any(said)
    said.clear()
    with pytest.raises(ConfigError, match="the deterministic mode cannot be had here"):
        load_bundle(tiny.bundle_without_draft(), replace(settings, deterministic=True))
    assert said and set(said) == {"1"}


@pytest.mark.parametrize(
    ("capacity", "max_rows", "head_rows"), [(128, 16, 16), (20, 16, 16), (128, 2, 16), (128, 16, 1)]
)
def test_one_that_keeps_it_passes_whatever_its_sizes(capacity: int, max_rows: int, head_rows: int) -> None:
    engine = FakeEngine(capacity=capacity, max_rows=max_rows, min_rows=2)
    refuse_unlike_rows(engine, head_rows)
    assert engine.calls[-1] == FakeCall("forget", 0, 0, 0), "what was fed to look is nobody's prefix"


def test_the_library_knows_the_word_by_which_attention_goes_without_blocks() -> None:
    """It hears of no other, and a release may rename it: caches are seldom so small that rows would tell."""
    files = (Path(onnxruntime.__file__).parent / "capi").glob("*onnxruntime*.so*")
    assert any(WITHOUT_BLOCKS.encode() in path.read_bytes() for path in files)


@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_rows_of_a_bundle_are_the_same_in_any_company(tmp_path: Path, precision: str) -> None:
    """Of few layers and heads of 256: where a head is narrow, attention never changes its ways. The odd sizes of the
    buffers are those that a padded row just fits into."""
    checkpoint = save_tiny(tmp_path / "checkpoint", TinyConfig(layers=2, heads=2, kv_heads=1, head_dim=256))
    made = export_tiny(tmp_path / "bundle", checkpoint, precision=precision, calibration="none")
    engine = tiny_engine(*made, max_rows=33, max_head_rows=33, deterministic=True)
    ids = np.random.default_rng(5).integers(3, 500, 99)

    def rows(size: int) -> list[tuple[bytes, bytes]]:
        found: list[tuple[bytes, bytes]] = []
        for start in range(0, len(ids), size):
            part = ids[start : start + size]
            output = engine.forward(StepInput(0, part, start, HeadRequest(0, len(part), 0.8, part)))
            assert output.head is not None
            full = [engine.logits(row).tobytes() for row in range(len(part))]
            found += [(output.hidden[row].tobytes(), text) for row, text in enumerate(full)]
        return found

    pairs = rows(2)
    assert [size for size in (1, 3, 7, 16, 17, 33) if rows(size) != pairs] == []
    engine.close()
    assert WITHOUT_BLOCKS not in os.environ
