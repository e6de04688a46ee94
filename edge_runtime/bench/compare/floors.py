"""What the default policy has to reach, held against what was found. Pure; a floor that is missed is said.

Named policies are reported and bound by nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..stats import Ratio
from .figures import DEFAULT_LABEL, best_fixed, by_prompt, cell, chosen, looping, speedup
from .record import DomainRecord, Floor, Part, Run

NEVER_BELOW = 0.97
COPYING = 1.5
OPEN_SAMPLED = 1.0
OF_THE_BEST = 0.97
PRICED_FLAT, PRICED_STEEP = 1.3, 0.97


def floors(domains: Sequence[DomainRecord], laws: Sequence[str]) -> list[Floor]:
    return [
        _never_below(domains),
        _copying(domains, laws),
        _open_sampled(domains),
        _of_the_best(domains, laws),
        _priced_open(domains),
        _priced_steep(domains, laws),
    ]


def _never_below(domains: Sequence[DomainRecord]) -> Floor:
    claim = f"on no prompt below {NEVER_BELOW}"
    found = by_prompt(domains)
    if not found:
        return _unmeasured(claim)
    worst = min(found, key=lambda one: one.speedup.median)
    below = sum(one.speedup.median < NEVER_BELOW for one in found)
    again = sum(one.first_look is not None for one in found)
    words = (
        f"worst {worst.speedup} ({worst.prompt}, {worst.law}); {below} of {len(found)} below, {again} measured again"
    )
    return _floor(claim, words, below == 0)


def _copying(domains: Sequence[DomainRecord], laws: Sequence[str]) -> Floor:
    claim = f"at least {COPYING} on copying tasks"
    copying = [domain for domain in domains if domain.kind == "copy"]
    found = [words for law in laws if (words := _copying_under(copying, law)) is not None]
    if not found:
        return _unmeasured(claim)
    return _floor(claim, "; ".join(words for words, _ in found), all(worst >= COPYING for _, worst in found))


def _copying_under(domains: Sequence[DomainRecord], law: str) -> tuple[str, float] | None:
    """All of them, the worst, and how much was copied at all: a task that was not solved copies nothing."""
    together = cell(_straight(_default_runs(domains, law, None)))
    if together is None:
        return None
    name, worst = min(_cells(domains, [law], None), key=lambda one: one[1].median)
    words = f"{law} {together.speedup} ({together.copied_share:.0%} of tokens copied), worst {worst} ({name})"
    return words, worst.median


def _open_sampled(domains: Sequence[DomainRecord]) -> Floor:
    claim = f"at least {OPEN_SAMPLED:.1f} on open sampled text"
    return _pooled(claim, [domain for domain in domains if domain.kind == "open"], None, OPEN_SAMPLED)


def _of_the_best(domains: Sequence[DomainRecord], laws: Sequence[str]) -> Floor:
    claim = "in each domain within 3% of the best fixed drafter and K"
    found = [(f"{domain.domain}, {law}", best) for domain in domains for law in laws
             if (best := best_fixed(domain, law)) is not None]  # fmt: skip
    looping_everywhere = sum(best.loops for _, best in found)
    found = [(name, best) for name, best in found if not best.loops]
    if not found:
        return _unmeasured(claim)
    name, worst = min(found, key=lambda one: one[1].default_over_it.median)
    behind = sum(best.default_over_it.median < OF_THE_BEST for _, best in found)
    words = f"worst {worst.default_over_it} of {worst.method} ({name}); {behind} of {len(found)} further away"
    if looping_everywhere:
        words += f", {looping_everywhere} more where a text loops on every prompt"
    return _floor(claim, words, behind == 0)


def _priced_open(domains: Sequence[DomainRecord]) -> Floor:
    claim = f"priced by the flat curve, at least {PRICED_FLAT} on open sampled text"
    return _pooled(claim, [domain for domain in domains if domain.kind == "open"], "flat", PRICED_FLAT)


def _priced_steep(domains: Sequence[DomainRecord], laws: Sequence[str]) -> Floor:
    claim = f"priced by the steep curve, at least {PRICED_STEEP} in each domain"
    found = _cells(domains, laws, "steep")
    if not found:
        return _unmeasured(claim)
    name, worst = min(found, key=lambda one: one[1].median)
    return _floor(claim, f"worst {worst} ({name})", worst.median >= PRICED_STEEP)


def _pooled(claim: str, domains: Sequence[DomainRecord], curve: str | None, floor: float) -> Floor:
    """Of all open domains together, the worst one beside it."""
    runs = _straight(_default_runs(domains, "sampled", curve))
    if not runs:
        return _unmeasured(claim)
    name, worst = min(_cells(domains, ["sampled"], curve), key=lambda one: one[1].median)
    found = speedup(runs)
    return _floor(claim, f"{found}, {len(runs)} texts; worst domain {worst} ({name})", found.median >= floor)


def _cells(domains: Sequence[DomainRecord], laws: Sequence[str], curve: str | None) -> list[tuple[str, Ratio]]:
    """The default in each domain under each law, texts that loop left out."""
    cells = [(f"{domain.domain}, {law}", _straight(_default_runs([domain], law, curve)))
             for domain in domains for law in laws]  # fmt: skip
    return [(name, speedup(runs)) for name, runs in cells if runs]


def _default_runs(domains: Sequence[DomainRecord], law: str, curve: str | None) -> list[Run]:
    part: Part = "final" if curve is None else "priced"
    return chosen(domains, law=law, method=DEFAULT_LABEL, parts=(part,), curve=curve)


def _straight(runs: Sequence[Run]) -> list[Run]:
    return [run for run in runs if not looping(run)]


def _floor(claim: str, found: str, met: bool) -> Floor:
    return Floor(claim, found, "met" if met else "MISSED")


def _unmeasured(claim: str) -> Floor:
    return Floor(claim, "nothing to judge by", "not measured")
