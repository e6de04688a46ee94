"""How much of a text a drafter is fed before it drafts. Pure; knows no drafter and no engine."""

from __future__ import annotations

from dataclasses import dataclass

from .cost import CostTable

_CLEARER = 0.05
"""What knowing the whole text is hoped to add to the gain of a drafter that could do with its end."""


@dataclass(frozen=True, slots=True)
class Fed:
    """What a drafter has of a text."""

    begun: int = 0
    """The place that it was entered at."""
    upto: int = 0


@dataclass(frozen=True, slots=True)
class Feeding:
    """What it is fed before its next draft."""

    tokens: int
    window: int | None
    """See ``DraftContext``."""
    after: Fed
    """What it has then."""


def feeding(fed: Fed, length: int, table: CostTable, won_s: float, to_come: float) -> Feeding:
    """Before a draft behind ``length`` tokens: the whole of what it lacks, or where its drafter has a window that much.

    ``won_s``: seconds that drafting has won in this text. They pay for the whole of it, where the ``to_come`` tokens
    of the answer may make it worth that.
    """
    # What the draft itself begins with is part of its price.
    lacks, window = max(0, length - fed.upto - 2), table.window
    whole = lacks if not fed.begun else max(0, length - 2)
    whole_s = whole * table.catch_up_s
    if window is None or whole <= window or whole_s <= min(won_s, _CLEARER * to_come * table.plain_s):
        return Feeding(whole, None, Fed(0, length))
    if lacks > window:
        return Feeding(window, window, Fed(length - 2 - window, length))
    return Feeding(lacks, window, Fed(fed.begun, length))
