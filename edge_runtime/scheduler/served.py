"""A model as the scheduler sees it. Knows no file and no template."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..decoder import Decoder


def _unaltered() -> str:
    """Nobody writes into what has no files."""
    return ""


def _keep_all(slots: Sequence[int]) -> None:
    """Nothing of it can be given back."""


@dataclass(frozen=True, slots=True, eq=False)
class Served:
    """Ready to decode: its engines are loaded, its costs measured."""

    name: str
    decoder: Decoder
    piece_bytes: Callable[[int], bytes]
    """What a token adds to the text."""
    eos_ids: tuple[int, ...]
    close: Callable[[], None]
    """Frees the engines; called on the engine's thread, once no answer needs them."""
    forget: Callable[[Sequence[int]], None] = _keep_all
    """Gives the memory behind the entries of these slots back; on the engine's thread. Nobody holds them."""
    altered: Callable[[], str] = _unaltered
    """What of its files was changed while it is served, in one line; empty while all is as it was checked. Asked around
    every turn, from any thread."""
