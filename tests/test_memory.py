"""The plan of memory: its sums, what it advises, the configurations of boards, and what an engine opens."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory_plans import PAIRS, shaped

from edge_runtime.boards import board_named
from edge_runtime.bundle import DRAFT, TARGET
from edge_runtime.config import read_config
from edge_runtime.loading import load_of
from edge_runtime.memory import Room, in_four_bits, plan, shown
from edge_runtime.needs import Load, needs
from edge_runtime.server.preparing import board_room, settings_of

CONFIGS = Path(__file__).parent.parent / "configs"
NINE = shaped("gemma-2-9b", "gemma-2-2b")
LOAD = Load(2048, 2, (DRAFT,), suffix_tokens=1 << 16)


def room(allowed: int) -> Room:
    return Room("a device", 10 * allowed, 10 * allowed, 0, allowed)


@pytest.mark.parametrize("name", PAIRS)
def test_the_pair_of_a_boards_configuration_fits(name: str) -> None:
    target, draft = PAIRS[name]
    board, config = board_named(name), read_config(CONFIGS / f"{name}gb.yaml")
    text = (CONFIGS / f"{name}gb.yaml").read_text(encoding="utf-8")
    assert f"--source {target}-it" in text and (draft is None or f"--draft {draft}-it" in text)
    assert f"--board {name};" in text
    manifest = shaped(target, draft)
    found = plan(manifest, load_of(manifest, settings_of(config.engine)), board_room(board, config.budget))
    assert found.fits, (shown(found.needs.peak), shown(found.room.allowed), found.changes)
    assert found.left >= config.budget.reserve_bytes >= 800_000_000
    limits = config.budget
    assert limits.power_mw is not None and limits.temperature_c is not None and limits.temperature_c < 99
    (mode,) = (mode for mode in board.modes if f"power mode {mode.name}\n" in text)
    assert mode.budget_w is not None and limits.power_mw <= 1000 * mode.budget_w


def test_the_parts_are_what_they_should_be() -> None:
    """Of 9B and 2B in 4 bits: by hand."""
    found = needs(NINE, LOAD)
    target, draft = found.models
    nine, two = 8_323_596_288, 2_024_275_968
    table = 256_000 * 3584
    assert abs(target.weights - (nine * 0.75 + table * 0.625)) < 1e-6 * nine
    assert abs(draft.weights - (two * 0.75 + 256_000 * 2304 * 0.625)) < 1e-6 * two
    assert target.kv == 42 * 2 * 8 * 256 * 2 * 2049 * 2
    assert draft.kv == 26 * 2 * 4 * 256 * 2 * 2049 * 2
    assert table * 1.125 < target.mapped < table * 1.125 + nine / 8 + table / 16 + 2e6
    assert target.logits == 8 * 256_000 * 4
    assert found.loaded == found.process + found.tokenizer + found.suffix + target.total + draft.total
    assert found.peak >= found.loaded + found.grammar and found.beside == found.peak - found.process


def test_on_an_accelerator_each_graph_has_its_own_copy() -> None:
    target = needs(NINE, replace(LOAD, device="cuda")).models[0]
    assert target.weights == sum(one.stored for one in NINE.models[TARGET].graphs if not one.file.endswith("head"))


@given(
    context=st.integers(1, 8191), sessions=st.integers(1, 63), head=st.sampled_from(["screened", "full"]),
    device=st.sampled_from(["cpu", "cuda"]), roles=st.sampled_from([(), (DRAFT,)]),
)  # fmt: skip
def test_more_of_anything_never_needs_less(
    context: int, sessions: int, head: str, device: str, roles: tuple[str, ...]
) -> None:
    load = Load(context, sessions, roles, head, device)  # type: ignore[arg-type]
    least = needs(NINE, load).peak
    for more in (
        replace(load, context=context + 1),
        replace(load, sessions=sessions + 1),
        replace(load, roles=(DRAFT,)),
        replace(load, suffix_tokens=1000),
        replace(load, head_rows=16),
    ):
        assert needs(NINE, more).peak >= least


@given(st.integers(1_000_000_000, 40_000_000_000))
def test_advice_holds(allowed: int) -> None:
    """What is said to fit does, and no larger context or number of sessions would."""
    found = plan(NINE, Load(8192, 8, (DRAFT,), suffix_tokens=1 << 17), room(allowed))
    assert found.fits == (found.needs.peak <= allowed) and bool(found.changes) != found.fits
    for change in found.changes:
        if change.what.startswith("budget."):
            continue  # a larger room, of which test_plan_refusals knows
        assert change.fits == (change.peak <= allowed)
        for key in ("context", "sessions"):
            if change.what.startswith(f"{key}: "):
                assert change.fits
                value = int(change.what.split(": ")[1])
                larger = replace(found.load, **{key: value + 1})  # type: ignore[arg-type]
                assert needs(NINE, larger).peak > allowed


def test_a_room_is_bounded_by_budget_and_by_what_is_available() -> None:
    assert Room("", 8_000, 7_000, 1_000).allowed == 6_000
    assert Room("", 8_000, 7_900, 1_000).allowed == 6_900
    assert Room("", 8_000, 7_000, 1_000, 5_000).allowed == 5_000
    assert Room("", 8_000, 500, 1_000).allowed == 0
    assert Room("", 8_000, 7_000, 1_000).budgeted == 7_000


def test_four_bits_are_reckoned_as_int4_stores_them() -> None:
    assert in_four_bits(NINE) == NINE
    eight = replace(NINE, models={TARGET: _in_eight_bits()})
    four = needs(in_four_bits(eight), replace(LOAD, roles=()))
    assert four.peak < needs(eight, replace(LOAD, roles=())).peak
    body = next(one for one in in_four_bits(eight).models[TARGET].graphs if one.file.endswith("body"))
    (product,) = body.products
    assert (product.bits, product.block_size) == (4, 32)


def _in_eight_bits():  # type: ignore[no-untyped-def]
    model = NINE.models[TARGET]
    body, *others = model.graphs
    (product,) = body.products
    wide = replace(body, products=(replace(product, bits=8),), stored=body.stored + product.values // 2)
    return replace(model, graphs=(wide, *others))
