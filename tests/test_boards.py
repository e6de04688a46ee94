"""The table of boards: one entry each, and what can be looked up in it."""

from __future__ import annotations

import pytest

from edge_runtime.boards import AGX_RAILS, BOARDS, Board, board_named, board_of_part, jetpack_of
from edge_runtime.errors import ConfigError


def test_names_and_parts_are_told_apart() -> None:
    assert [board.name for board in BOARDS] == [
        "orin-nano-4", "orin-nano-8", "orin-nx-8", "orin-nx-16", "agx-orin-32", "agx-orin-64",
    ]  # fmt: skip
    parts = [part for board in BOARDS for part in board.parts]
    assert len(set(parts)) == len(parts)
    assert all(board_of_part(part) is board for board in BOARDS for part in board.parts)
    assert board_of_part("P3767-0005") is board_named("orin-nano-8")
    assert board_of_part("p3448-0000") is None


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.name)
def test_a_board_agrees_with_itself(board: Board) -> None:
    assert board.ram_bytes < board.module_bytes < 1.3 * board.ram_bytes
    assert [mode.id for mode in board.modes] == list(range(len(board.modes)))
    assert board.default in board.modes
    assert board.fastest.gpu_mhz == max(mode.gpu_mhz for mode in board.modes)
    assert {mode.budget_w for mode in board.modes if "MAXN" in mode.name} == {None}
    assert all(mode.budget_w for mode in board.modes if "MAXN" not in mode.name)
    assert board.total_rails == (("VDD_IN",) if board.name.startswith("orin") else AGX_RAILS)


def test_a_mode_goes_by_its_name_whatever_the_release_calls_it() -> None:
    agx, nano = board_named("agx-orin-64"), board_named("orin-nano-8")
    assert agx.mode("30W") is agx.mode("MODE_30W") is agx.modes[2]
    assert nano.mode("15w") is nano.mode("MODE_15W") is nano.modes[0]
    assert nano.mode("50W") is None


def test_an_unknown_board_is_told_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"no board 'orin-nano8' \(did you mean 'orin-nano-8'\?\): there are orin-na"):
        board_named("orin-nano8")


@pytest.mark.parametrize(
    ("l4t", "version"),
    [("36.3.0", "6.0"), ("36.4.0", "6.1"), ("36.4.3", "6.2"), ("36.5.2", "6.2"), ("39.2", "7.2"), ("39.1", None),
     ("35.4.1", None), ("", None)],
)  # fmt: skip
def test_a_release_of_jetpack_goes_by_its_l4t(l4t: str, version: str | None) -> None:
    found = jetpack_of(l4t)
    assert (found and found.version) == version
