"""While memory runs out: caches go first, then new requests; what runs goes on, and nothing ends."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scheduling import MODEL, PATIENCE_S, GatedEngine, Reader, cold, request, running, serve

from edge_runtime.errors import Unavailable
from edge_runtime.pressure import NO_PRESSURE, Pressure, next_pressure
from edge_runtime.resident import give_pages_back, resident
from edge_runtime.testing import FakeEngine

RESERVE = 800


def looks(*available: int) -> list[str]:
    pressure, levels = NO_PRESSURE, []
    for one in available:
        pressure = next_pressure(pressure, one, RESERVE)
        levels.append(pressure.level)
    return levels


def test_caches_first_then_requests_and_back_with_a_margin() -> None:
    assert looks(5000, 800, 799, 799, 799) == ["none", "none", "evict", "shed", "shed"]
    assert looks(799, 900, 999, 1000) == ["evict", "evict", "evict", "none"]
    assert looks(799, 700, 999, 700, 1000, 999) == ["evict", "shed", "shed", "shed", "none", "none"]


def test_the_reason_has_the_numbers() -> None:
    pressure = next_pressure(NO_PRESSURE, 300_000_000, 800_000_000)
    assert "300 MB" in pressure.reason and "800 MB" in pressure.reason and pressure.lets_go


@given(st.lists(st.integers(0, 2000), max_size=30))
def test_it_never_sheds_before_it_evicts_nor_while_enough_is_there(available: list[int]) -> None:
    levels = ["none", *looks(*available)]
    for before, after, one in zip(levels, levels[1:], available, strict=False):
        assert after != "shed" or before != "none"
        assert after == "none" or one < 1.25 * RESERVE
        assert before != "none" or after == "none" or one < RESERVE


EVICT = Pressure("evict", "memory runs out")
SHED = Pressure("shed", "memory runs out", 7.0)


def test_under_pressure_idle_slots_forget_and_running_answers_go_on() -> None:
    engine = GatedEngine(slots=2)
    served = serve(engine)
    forgotten: list[int] = []

    def forget(slots: list[int]) -> None:
        forgotten.extend(slots)
        for slot in slots:
            engine.forget(slot)

    served = replace(served, forget=forget)
    with running(served) as scheduler:
        first, second = Reader(), Reader()
        scheduler.submit(served, [(request([1, 2, 3], 1), first)])
        engine.wait_inside()
        engine.let_last()
        first.wait()
        scheduler.submit(served, [(request([7, 8, 9, 10], 6), second)])
        engine.wait_inside()
        scheduler.press(EVICT)
        engine.open()
        assert second.tokens == cold([7, 8, 9, 10], 6)
        (idle,) = forgotten
        assert [call.slot for call in engine.calls if call.kind == "forget"] == [idle]
        assert scheduler.snapshot().slots[idle].tokens == 0
        # What was forgotten is computed again, to the same answer.
        third = Reader()
        scheduler.submit(served, [(request([1, 2, 3, 4], 5), third)])
        assert third.tokens == cold([1, 2, 3, 4], 5) and third.begun.cached_tokens == 0


def test_an_idle_daemon_forgets_at_once() -> None:
    engine = FakeEngine(MODEL, slots=2)
    forgotten: list[int] = []
    served = replace(serve(engine), forget=forgotten.extend)
    with running(served) as scheduler:
        reader = Reader()
        scheduler.submit(served, [(request([1, 2, 3], 2), reader)])
        reader.wait()
        end_s = time.monotonic() + PATIENCE_S
        while any(slot.busy for slot in scheduler.snapshot().slots):
            assert time.monotonic() < end_s
        scheduler.press(EVICT)
        while any(slot.tokens for slot in scheduler.snapshot().slots):
            assert time.monotonic() < end_s
    assert len(forgotten) == 1


def test_shedding_refuses_new_requests_with_a_time_to_come_back() -> None:
    served = serve()
    with running(served) as scheduler:
        scheduler.press(SHED)
        with pytest.raises(Unavailable, match="memory runs out") as caught:
            scheduler.submit(served, [(request([1, 2]), Reader())])
        assert (caught.value.http_status, caught.value.retry_after_s) == (503, 7.0)
        scheduler.press(NO_PRESSURE)
        reader = Reader()
        scheduler.submit(served, [(request([1, 2], 3), reader)])
        assert reader.tokens == cold([1, 2], 3)


def test_a_failure_to_give_back_ends_nobody() -> None:
    def forget(slots: object) -> None:
        raise RuntimeError("no")

    served = replace(serve(), forget=forget)
    with running(served) as scheduler:
        for _ in range(2):
            reader = Reader()
            scheduler.submit(served, [(request([1, 2, 3], 3), reader)])
            assert reader.tokens == cold([1, 2, 3], 3)
            scheduler.press(EVICT)


def test_pages_that_are_given_back_cost_nothing_and_read_as_zeros() -> None:
    array = np.full((64, 1 << 18), 1.0, np.float32)
    beside = np.ones(5, np.float32)
    before = resident().anonymous
    give_pages_back(array)
    assert before - resident().anonymous > 0.9 * array.nbytes
    assert not array[1:-1].any() and beside.all()
    array[...] = 2.0
    assert array.min() == 2.0
    give_pages_back(beside)
    assert beside.all()
