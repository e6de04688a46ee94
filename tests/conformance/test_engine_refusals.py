"""What an engine refuses, and that it goes on as if nothing had happened."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from running import feed, rows_after, text
from subjects import Bundles, Case, Wanted

from edge_runtime.engines.protocol import Engine, HeadRequest, StepInput
from edge_runtime.errors import EngineError

Wrong = Callable[[Engine], object]


def step(slot: int = 0, count: int = 1, position: int = 0, **keys: Any) -> Wrong:
    return lambda engine: engine.forward(StepInput(slot, text(count), position, None, **keys))


BEYOND: dict[str, Wrong] = {
    "slot -1": step(-1),
    "a slot too many": lambda engine: step(engine.info.slots)(engine),
    "no token": step(count=0),
    "a row too many": lambda engine: step(count=engine.info.max_rows + 1)(engine),
    "position -1": step(position=-1),
    "a position too many": lambda engine: step(position=engine.info.capacity)(engine),
    "a row behind the last entry": lambda engine: step(count=2, position=engine.info.capacity - 1)(engine),
    "hidden rows that are not taken": step(hidden=np.zeros((1, 5), np.float32)),
    "a head row of -1": lambda engine: engine.head(HeadRequest(-1, 1)),
    "no head row": lambda engine: engine.head(HeadRequest(1, 1)),
    "a head row that was not run": lambda engine: engine.head(HeadRequest(0, 5)),
    "too few ids to gather": lambda engine: engine.head(HeadRequest(0, 2, 1.0, np.zeros(1, np.int64))),
    "an id to gather that is none": lambda engine: engine.head(HeadRequest(0, 1, 1.0, np.array([1 << 40]))),
    "a prefix from nowhere": lambda engine: engine.copy_prefix(engine.info.slots, 0, 1),
    "a prefix to nowhere": lambda engine: engine.copy_prefix(0, -1, 1),
    "a negative prefix": lambda engine: engine.copy_prefix(0, 1, -1),
    "a prefix beyond a slot": lambda engine: engine.copy_prefix(0, 1, engine.info.capacity + 1),
    "forgetting no slot": lambda engine: engine.forget(engine.info.slots),
    "a path of no slot": lambda engine: engine.keep_path(engine.info.slots, 0, np.arange(1)),
    "a path that does not rise": lambda engine: engine.keep_path(0, 0, np.array([1, 0])),
    "a path beyond a slot": lambda engine: engine.keep_path(0, engine.info.capacity, np.arange(1)),
    "rows of no slot": lambda engine: engine.hidden_rows(engine.info.slots),
}


def refusal(name: str, engine: Engine) -> str:
    try:
        BEYOND[name](engine)
    except ValueError as problem:
        return str(problem)
    raise AssertionError(f"{name}: not refused")


def test_what_is_out_of_range_is_refused_and_changes_nothing(engine: Engine) -> None:
    """All at once: a suite of a thousand tests is one that nobody runs."""
    ids = text(8)
    feed(engine, ids[:4], 0)
    wanted = rows_after(engine, ids[4:], 4)
    for name in BEYOND:
        feed(engine, ids[:4], 0)
        assert re.fullmatch(".+", refusal(name, engine)), f"{name}: not in one line"
        assert np.array_equal(rows_after(engine, ids[4:], 4), wanted), f"{name}: changed what came after"


def test_no_tree_where_none_are_run(engine: Engine) -> None:
    wrong = np.array([-1, -1]) if not engine.info.trees else np.array([-1])
    with pytest.raises(ValueError, match="tree"):
        engine.forward(StepInput(0, text(2), 0, None, parents=wrong))


def test_a_token_that_is_none_is_a_typed_error(engine: Engine) -> None:
    """Whether the host or the device finds it; what comes after is right again."""
    ids = text(8)
    feed(engine, ids[:4], 0)
    wanted = rows_after(engine, ids[4:], 4)
    for token in (1 << 40, -(1 << 40)):
        feed(engine, ids[:4], 0)
        with pytest.raises((ValueError, EngineError)):
            feed(engine, np.array([token]), 4)
    assert np.array_equal(rows_after(engine, ids[4:], 4), wanted)


def test_closing_twice_is_harmless(case: Case, bundles: Bundles) -> None:
    engine = case.opener(bundles, Wanted(slots=2))
    feed(engine, text(4), 0)
    engine.close()
    engine.close()
    with pytest.raises(Exception, match=r"\w"):
        feed(engine, text(4), 0)


def test_two_engines_of_one_model_are_apart(fresh: Engine, engine: Engine) -> None:
    ids = text(20)
    rows_after(engine, ids[:12])
    wanted = rows_after(engine, ids[12:], 12)
    rows_after(fresh, text(20, 5))
    rows_after(engine, ids[:12])
    rows_after(fresh, text(20, 6))
    assert np.array_equal(rows_after(engine, ids[12:], 12), wanted)
