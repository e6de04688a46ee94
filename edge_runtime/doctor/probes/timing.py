"""How long something takes on a machine that is not alone. Knows not what."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

Clock = Callable[[], float]
_LEAST_ROUNDS, _MOST_ROUNDS = 5, 50
_LONGEST = 4.0
"""Of ``budget_s``: after that the least number of rounds is given up too, since a probe's time is limited."""


def time_each(
    runs: Sequence[Callable[[], object]], budget_s: float, clock: Clock = time.perf_counter
) -> tuple[float, ...]:
    """[runs] seconds of each. They take turns, so that what else goes on here meets all of them alike.

    The lower quartile of the rounds: noise only ever adds, and the very least may be a single stroke of luck.
    """
    for run in runs:
        run()  # the first of a kind allocates, chooses and compiles
    began_s = clock()
    seconds: list[list[float]] = [[] for _ in runs]
    for done in range(_MOST_ROUNDS):
        spent_s = clock() - began_s
        if (done >= _LEAST_ROUNDS and spent_s > budget_s) or (done and spent_s > _LONGEST * budget_s):
            break
        for place, run in enumerate(runs):
            started = clock()
            run()
            seconds[place].append(clock() - started)
    return tuple(sorted(one)[len(one) // 4] for one in seconds)


def best_of(run: Callable[[], object], budget_s: float, clock: Clock = time.perf_counter) -> float:
    """Seconds of the quickest run: for what has a ceiling, such as a copy."""
    run()
    least, began_s = float("inf"), clock()
    while clock() - began_s < budget_s:
        started = clock()
        run()
        least = min(least, clock() - started)
    return least
