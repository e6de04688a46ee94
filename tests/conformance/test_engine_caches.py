"""Positional forward: what stands in a slot is what was written there last, and nothing else is seen."""

from __future__ import annotations

import numpy as np
import pytest
from running import Measured, apart, feed, read_rows, rows_after, text
from subjects import Case

from edge_runtime.engines.protocol import Engine, HeadRequest, StepInput

COUNT = 40
"""Tokens: past the window of the tiny models many times over."""
CHUNKS = [5, 1, 3, 7, 2, 1, 1, 11]


def fits(engine: Engine, sizes: list[int]) -> list[int]:
    return [min(size, engine.info.max_rows) for size in sizes]


def test_chunked_is_whole(case: Case, engine: Engine, measured: Measured) -> None:
    ids = text(COUNT)
    wanted = rows_after(engine, ids)
    for sizes in ([1], [2], fits(engine, CHUNKS)):
        measured("chunked = whole", apart(rows_after(engine, ids, size=sizes), wanted), case.tolerance.rows)
    assert wanted.std() > 0.05, "a model whose logits are all alike proves nothing"


def test_a_row_knows_all_that_stands_before_it_and_nothing_behind(
    case: Case, engine: Engine, measured: Measured
) -> None:
    """Companion of all tests here: an engine that ignored its cache would pass them."""
    ids = text(COUNT)
    wanted = rows_after(engine, ids)
    for changed in (0, COUNT // 2, COUNT - 2):
        other = ids.copy()
        other[changed] = (other[changed] + 7) % 64
        found = rows_after(engine, other)
        # What stands before it may be off by as much as any other way to compute it.
        if changed:
            measured("rows before a change", apart(found[:changed], wanted[:changed]), case.tolerance.rows)
        assert apart(found[-8:], wanted[-8:]) > 2 * case.tolerance.rows, f"the last rows know nothing of {changed}"


def test_a_row_knows_its_place(case: Case, engine: Engine) -> None:
    """The same text a token further on is another text; so is a text with two tokens exchanged."""
    ids = text(12)
    wanted = rows_after(engine, ids)[-1:]
    swapped = ids.copy()
    swapped[[3, 6]] = ids[[6, 3]]
    assert ids[3] != ids[6]
    for other in (np.concatenate([text(1, 5), ids]), swapped):
        assert apart(rows_after(engine, other)[-1:], wanted) > 2 * case.tolerance.rows


def test_the_same_step_twice_gives_the_same_bits(engine: Engine) -> None:
    """Rollback is a smaller position: nothing has to be trimmed for it, and nothing is added up."""
    ids = text(COUNT)
    rows_after(engine, ids[:20])
    wanted = rows_after(engine, ids[20:28], 20, size=8)
    for _ in range(2):
        assert np.array_equal(rows_after(engine, ids[20:28], 20, size=8), wanted)
    feed(engine, ids[:5], 20)
    assert np.array_equal(rows_after(engine, ids[20:28], 20, size=8), wanted)


@pytest.mark.parametrize("drafted", [1, 2, 5, 8])
def test_a_rejected_draft_leaves_no_trace(engine: Engine, drafted: int) -> None:
    ids, wrong = text(COUNT), text(8, 9)
    feed(engine, ids[:12], 0)
    wanted = rows_after(engine, ids[12:16], 12, size=2)
    # Verified at once and rejected whole; then partly accepted, and what was rejected lies behind.
    feed(engine, ids[:12], 0)
    feed(engine, wrong[:drafted], 12)
    assert np.array_equal(rows_after(engine, ids[12:16], 12, size=2), wanted)
    feed(engine, np.concatenate([ids[12:14], wrong[: min(drafted, 6)]]), 12)
    feed(engine, ids[12:14], 12)
    assert np.array_equal(rows_after(engine, ids[14:16], 14, size=2), wanted[2:])


def test_garbage_far_behind_is_not_seen(engine: Engine) -> None:
    """A slot that was full before: what is left of that text must not matter."""
    info, ids = engine.info, text(20)
    engine.forget(1)
    wanted = rows_after(engine, ids, slot=1, size=4)
    rows_after(engine, text(info.capacity, 4), slot=1)
    assert np.array_equal(rows_after(engine, ids, slot=1, size=4), wanted)


def test_the_last_entry_is_an_entry(case: Case, engine: Engine, measured: Measured) -> None:
    capacity = engine.info.capacity
    ids = text(capacity)
    wanted = rows_after(engine, ids)[-3:]
    feed(engine, ids[:-3], 0) if capacity - 3 <= engine.info.max_rows else rows_after(engine, ids[:-3])
    found = [rows_after(engine, ids[place : place + 1], place)[0] for place in range(capacity - 3, capacity)]
    measured("the last entries of a slot", apart(np.stack(found), wanted), case.tolerance.rows)


def test_slots_are_apart(engine: Engine) -> None:
    texts = [text(COUNT, seed) for seed in range(engine.info.slots)]
    alone = [rows_after(engine, ids, slot=slot, size=4) for slot, ids in enumerate(texts)]
    found: list[list[np.ndarray]] = [[] for _ in texts]
    for start in range(0, COUNT, 4):
        for slot, ids in enumerate(texts):
            found[slot].append(rows_after(engine, ids[start : start + 4], start, slot))
    for slot, wanted in enumerate(alone):
        assert np.array_equal(np.concatenate(found[slot]), wanted)


def test_a_copied_prefix_goes_on_as_its_source(engine: Engine) -> None:
    ids, last = text(COUNT), engine.info.slots - 1
    rows_after(engine, ids[:24])
    rows_after(engine, ids[::-1], slot=last)
    engine.copy_prefix(0, last, 20)
    wanted = rows_after(engine, ids[20:28], 20, size=4)
    assert np.array_equal(rows_after(engine, ids[20:28], 20, last, size=4), wanted)
    # From then on they are apart, both ways.
    rows_after(engine, ids[::-1], slot=0)
    assert np.array_equal(rows_after(engine, ids[20:28], 20, last, size=4), wanted)
    rows_after(engine, ids[:24])
    rows_after(engine, ids[::-1], slot=last)
    assert np.array_equal(rows_after(engine, ids[20:28], 20, size=4), wanted)


def test_nothing_copied_and_a_slot_into_itself(engine: Engine) -> None:
    ids = text(COUNT)
    rows_after(engine, ids[:20])
    wanted = rows_after(engine, ids[20:24], 20)
    engine.copy_prefix(1, 0, 0)
    engine.copy_prefix(0, 0, 20)
    assert np.array_equal(rows_after(engine, ids[20:24], 20), wanted)


def test_one_entry_too_few_shows(case: Case, engine: Engine) -> None:
    """Companion of the copied prefix."""
    ids = text(COUNT)
    engine.forget(1)
    rows_after(engine, ids[:20])
    engine.copy_prefix(0, 1, 19)
    wanted = rows_after(engine, ids[20:24], 20)
    assert apart(rows_after(engine, ids[20:24], 20, 1), wanted) > 2 * case.tolerance.rows


def test_a_forgotten_slot_begins_anew_and_no_other_is(engine: Engine) -> None:
    ids = text(COUNT)
    rows_after(engine, ids[:20])
    beside = rows_after(engine, ids[20:24], 20)
    wanted = rows_after(engine, text(20, 3), slot=1, size=4)
    engine.forget(1)
    assert np.array_equal(rows_after(engine, text(20, 3), slot=1, size=4), wanted)
    engine.forget(1)
    assert np.array_equal(rows_after(engine, ids[20:24], 20), beside)


def test_hidden_rows_stand_behind_their_entries(engine: Engine) -> None:
    if not engine.info.keeps_hidden:
        with pytest.raises(ValueError, match="keeps no hidden rows"):
            engine.hidden_rows(0)
        return
    ids, width, made = text(20), engine.info.hidden_size, []
    engine.forget(1)
    for start, stop in ((0, 8), (8, 9), (9, 20)):
        output = feed(engine, ids[start:stop], start, head=HeadRequest(0, 1))
        assert output.hidden.shape == (stop - start, width) and output.hidden.dtype == np.float32
        made.append(output.hidden.copy())
    wanted = np.concatenate(made)
    rows = engine.hidden_rows(0)
    assert rows.shape == (engine.info.capacity, width)
    assert np.array_equal(rows[:20], wanted) and np.isfinite(wanted).all() and wanted.std() > 0
    engine.copy_prefix(0, 1, 15)
    feed(engine, ids[:5], 8)
    assert np.array_equal(engine.hidden_rows(1)[:15], wanted[:15])
    assert np.array_equal(engine.hidden_rows(0)[:8], wanted[:8])
    assert not np.array_equal(engine.hidden_rows(0)[8:13], wanted[8:13])


def test_a_kept_path_is_a_text(case: Case, engine: Engine, measured: Measured) -> None:
    """Where trees are run. Elsewhere a chain that is kept whole stays as it is, or is refused."""
    ids, other = text(COUNT), text(8, 9)
    rows_after(engine, ids[:12])
    if not engine.info.trees:
        wanted = rows_after(engine, ids[12:20], 12, size=4)
        feed(engine, ids[12:16], 12)
        try:
            engine.keep_path(0, 12, np.arange(4))
        except ValueError:
            return
        assert np.array_equal(rows_after(engine, ids[16:20], 16, size=4), wanted[4:])
        return
    wanted = rows_after(engine, ids[12:20], 12)
    # 0 and 1 are a chain that goes wrong; 2, 3 and 4 are the text, of which 4 follows 3.
    tokens = np.array([other[0], other[1], ids[12], ids[13], ids[14]])
    engine.forward(StepInput(0, tokens, 12, HeadRequest(4, 5), parents=np.array([-1, 0, -1, 2, 3])))
    measured("a branch of a tree", apart(read_rows(engine, 5)[4][None], wanted[2:3]), case.tolerance.rows)
    engine.keep_path(0, 12, np.array([2, 3, 4]))
    measured("behind a kept path", apart(rows_after(engine, ids[15:20], 15), wanted[3:]), case.tolerance.rows)
