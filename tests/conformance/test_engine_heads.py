"""What is read out of a row says what the row of logits says, in whatever groups it is asked for."""

from __future__ import annotations

import numpy as np
import pytest
from running import HEAD_ROWS, Measured, apart, feed, head_rows_of, kept, read_rows, rows_after, text, token_of_rows
from subjects import Case

from edge_runtime.engines.protocol import Engine, HeadRequest

TEMPERATURES = (0.3, 0.7, 1.0, 2.5)


def test_shapes_and_types(engine: Engine) -> None:
    info = engine.info
    assert info.vocab_size >= info.candidates >= 1 and info.capacity >= info.max_rows >= info.min_rows
    assert info.token_ids is None or info.token_ids.shape == (info.vocab_size,)
    rows_after(engine, text(4))
    for count in (1, 2, HEAD_ROWS):
        output = feed(engine, text(count, 1), 4, head=HeadRequest(0, count))
        head = output.head
        assert head is not None and head.gathered is None
        assert (head.argmax.shape, head.argmax.dtype) == ((count,), np.int64)
        assert (head.candidate_ids.shape, head.candidate_ids.dtype) == ((count, info.candidates), np.int64)
        assert (head.candidate_logits.shape, head.candidate_logits.dtype) == ((count, info.candidates), np.float32)
        assert (head.logsumexp.shape, head.logsumexp.dtype) == ((count,), np.float32)
        assert output.hidden.shape == (count * info.fan_out, info.hidden_size) and output.hidden.dtype == np.float32
        row = engine.logits(count - 1)
        assert (row.shape, row.dtype) == ((info.vocab_size,), np.float32)
        for array in (head.candidate_logits, head.logsumexp, output.hidden, row):
            assert np.isfinite(array).all()
    assert feed(engine, text(2, 1), 4).head is None


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_what_is_read_out_is_the_row(case: Case, engine: Engine, measured: Measured, temperature: float) -> None:
    info, count, rng = engine.info, HEAD_ROWS, np.random.default_rng(3)
    rows_after(engine, text(20))
    wanted = token_of_rows(engine, rng.integers(0, info.vocab_size, count))
    head = feed(engine, text(count, 2), 20, head=HeadRequest(0, count, 1.0 / temperature, wanted)).head
    assert head is not None and head.gathered is not None
    head = kept(head)
    for row in range(count):
        logits = engine.logits(row).astype(np.float64)
        scale, scaled = logits.std(), logits / temperature
        ids = head_rows_of(engine, head.candidate_ids[row])
        assert len(set(ids.tolist())) == info.candidates
        # Equal ones may come in any order.
        best = np.sort(logits)[::-1][: info.candidates]
        measured("candidates", float(np.abs(head.candidate_logits[row] - best).max() / scale), case.tolerance.readout)
        own = np.abs(logits[ids] - head.candidate_logits[row]).max()
        measured("candidates' ids", float(own / scale), case.tolerance.readout)
        assert np.all(np.diff(head.candidate_logits[row]) <= 0)
        top = float(logits.max() - logits[head_rows_of(engine, head.argmax[row : row + 1])[0]])
        measured("argmax", top / scale, case.tolerance.readout)
        assert head.argmax[row] == head.candidate_ids[row, 0]
        lse = scaled.max() + np.log(np.exp(scaled - scaled.max()).sum())
        allowed = max(case.tolerance.readout, 2e-6 * abs(lse))
        measured("log-sum-exp", abs(float(head.logsumexp[row]) - lse), allowed)
        assert head.gathered is not None
        at = head_rows_of(engine, wanted[row : row + 1])[0]
        measured("gathered", float(abs(head.gathered[row] - logits[at]) / scale), case.tolerance.readout)


def test_a_head_in_groups_is_the_head_at_once(case: Case, engine: Engine, measured: Measured) -> None:
    """Verification that stops early asks row by row, in order; nothing that was asked before may show."""
    rows_after(engine, text(20))
    feed(engine, text(HEAD_ROWS, 2), 20)
    wanted = kept(engine.head(HeadRequest(0, HEAD_ROWS, 0.7)))
    full = np.stack([engine.logits(row).copy() for row in range(HEAD_ROWS)])
    for size in (1, 3):
        for first in range(0, HEAD_ROWS, size):
            stop = min(first + size, HEAD_ROWS)
            head = engine.head(HeadRequest(first, stop, 0.7))
            found = np.stack([engine.logits(row).copy() for row in range(stop - first)])
            measured("a head in groups", apart(found, full[first:stop]), case.tolerance.rows)
            spread = float(np.abs(head.logsumexp - wanted.logsumexp[first:stop]).max() / full.std())
            measured("log-sum-exp in groups", spread, max(case.tolerance.rows, case.tolerance.readout))
    again = kept(engine.head(HeadRequest(0, HEAD_ROWS, 0.7)))
    assert np.array_equal(again.candidate_logits, wanted.candidate_logits)
    assert np.array_equal(again.logsumexp, wanted.logsumexp)


def test_a_temperature_is_of_its_request_alone(engine: Engine) -> None:
    feed(engine, text(4), 0)
    plain = kept(engine.head(HeadRequest(0, 4)))
    warm = kept(engine.head(HeadRequest(0, 4, 0.5)))
    assert not np.allclose(plain.logsumexp, warm.logsumexp)
    assert np.array_equal(plain.candidate_logits, warm.candidate_logits), "candidates are at temperature 1"
    assert np.array_equal(engine.head(HeadRequest(0, 4)).logsumexp, plain.logsumexp)


def test_a_forward_for_the_cache_alone_reads_out_later(engine: Engine) -> None:
    """Prefill has no head, and its last rows are read all the same."""
    ids = text(10)
    feed(engine, ids, 0)
    wanted = read_rows(engine, 10)
    head = feed(engine, ids, 0, head=HeadRequest(9, 10)).head
    assert head is not None
    assert head_rows_of(engine, head.argmax[:1])[0] == wanted[9].argmax()
    assert engine.logits(0).shape == wanted[9].shape


def test_gathered_ids_are_of_the_head(engine: Engine) -> None:
    ids = engine.info.token_ids
    feed(engine, text(2), 0)
    if ids is None:
        return
    missing = next(token for token in range(int(ids[-1])) if token not in ids)
    for wrong in (missing, int(ids[-1]) + 1):
        with pytest.raises(ValueError, match="head"):
            engine.head(HeadRequest(0, 1, 1.0, np.array([wrong])))
    head = engine.head(HeadRequest(0, 1, 1.0, ids[-1:]))
    assert head.gathered is not None and head.gathered[0] == engine.logits(0)[-1]
    assert set(head.candidate_ids[0].tolist()) <= set(ids.tolist()) and head.argmax[0] in ids
