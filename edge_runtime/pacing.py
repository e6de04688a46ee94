"""How long a loop waits behind a step, and whether it may take one. Pure; knows no clock, no engine and no governor."""

from __future__ import annotations

import math

from .budget import Budget
from .cost import paced_seconds

_GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0
"""Multiples of it spread evenly over [0, 1), however few there are."""


def pace_s(seconds: float, rows: int, drafts: int, budget: Budget) -> float:
    """Seconds to wait behind a step (or a chunk of a prompt) of ``seconds`` that fed ``rows`` and drafted ``drafts``.

    The longer of the waits that its power and the duty ask for; 0 without limits. It may be long where hardly
    anything is allowed: a loop that waits asks again when the budget changes, and ``math.inf`` is until then.
    """
    if not budget.run:
        return math.inf
    whole_s = seconds / budget.duty if budget.duty > 0.0 else math.inf
    power = budget.power
    if power is not None:
        joules = power.joules(seconds, rows, drafts)
        whole_s = max(whole_s, paced_seconds(seconds, joules, power.idle_w, power.allowed_w))
    return whole_s - seconds


def uneven(wait_s: float, turn: int) -> float:
    """The wait behind the ``turn``-th step: longer or shorter by up to a half, the same in the mean of a few turns.

    Sensors read at moments. Steps and waits that are all alike may meet them in step, and then what is read is never
    the mean: the power of half a minute may be read a tenth too low.
    """
    return wait_s * (0.5 + turn * _GOLDEN % 1.0)


def most_drafts(k: int, budget: Budget) -> int:
    """K as far as the budget goes."""
    return k if budget.max_draft_tokens is None else min(k, budget.max_draft_tokens)
