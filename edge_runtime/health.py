"""What is worth a word about how drafting went. Pure; the one place that knows the marks.

They are those of the source articles: acceptance below one half, drafts that the target finds unlikely (a mean
log-likelihood below -0.8), and more than half of the time spent on drafting.
"""

from __future__ import annotations

from dataclasses import dataclass

LEAST_ACCEPTANCE = 0.5
LEAST_LOG_LIKELIHOOD = -0.8
MOST_DRAFTING = 0.5
_ENOUGH_DRAFTS = 32
"""Drafted tokens below which a rate says nothing."""
_ENOUGH_STEPS = 16


@dataclass(frozen=True, slots=True)
class Drafted:
    """Sums over some steps of decoding."""

    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    scored: int = 0
    """Drafts that the target gave a likelihood."""
    log_likelihood: float = 0.0
    """Sum over them."""
    draft_s: float = 0.0
    verify_s: float = 0.0
    host_s: float = 0.0
    """Neither: sampling, acceptance, the loop."""

    @property
    def acceptance_rate(self) -> float | None:
        return self.accepted / self.drafted if self.drafted else None

    @property
    def mean_log_likelihood(self) -> float | None:
        """Per draft, under the target."""
        return self.log_likelihood / self.scored if self.scored else None

    @property
    def shares(self) -> tuple[float, float, float] | None:
        """Of the time: drafting, verifying, neither."""
        total = self.draft_s + self.verify_s + self.host_s
        return None if total <= 0.0 else (self.draft_s / total, self.verify_s / total, self.host_s / total)


def notes(seen: Drafted) -> tuple[str, ...]:
    """A line for each mark that is missed, where enough was seen to say so."""
    found = []
    rate, likelihood, shares = seen.acceptance_rate, seen.mean_log_likelihood, seen.shares
    if rate is not None and seen.drafted >= _ENOUGH_DRAFTS and rate < LEAST_ACCEPTANCE:
        found.append(f"acceptance {rate:.0%}, below {LEAST_ACCEPTANCE:.0%}: shorter drafts or another drafter may help")
    if likelihood is not None and seen.scored >= _ENOUGH_DRAFTS and likelihood < LEAST_LOG_LIKELIHOOD:
        mark = f"{likelihood:.2f}, below {LEAST_LOG_LIKELIHOOD}"
        found.append(f"mean log-likelihood of drafts {mark}: the drafter is off its domain")
    if shares is not None and seen.steps >= _ENOUGH_STEPS and shares[0] > MOST_DRAFTING:
        found.append(f"{shares[0]:.0%} of the time goes into drafting, above {MOST_DRAFTING:.0%}: the drafter is dear")
    return tuple(found)
