"""What sources are kept by, and what is thought of one that nobody has seen. Pure."""

from __future__ import annotations

from bisect import bisect_right

from edge_runtime.estimate import AcceptanceEstimate

from ..session import PREDICTION

_CLASSES = (2, 3, 4, 8, 16)
"""Least agreeing tokens of each class of evidence."""
_PRIORS = (0.3, 0.4, 0.5, 0.6, 0.75, 0.85)
"""Acceptance that is assumed before anything was seen, without evidence and by its class."""
_PRIOR, _PREDICTED = 0.6, 0.8
"""The same of drafters that find nothing but think, and of a client's prediction."""
_BESIDE = 0.25
"""Share of rejections that alternatives are assumed to catch."""
_SAMPLED = 0.8
"""Share of it where the target draws."""


def key_of(source: str, evidence: int | None, greedy: bool) -> str:
    """Of a source, by how much it has to go by (``None``: nothing that could be counted), greedy or sampled."""
    found = "" if evidence is None else f"/{bisect_right(_CLASSES, evidence)}"
    return f"{source}{found}" if greedy else f"{source}{found} sampled"


def first_estimate(source: str, evidence: int | None, greedy: bool) -> AcceptanceEstimate:
    """Before anything was seen."""
    prior = _PREDICTED if source == PREDICTION else _PRIOR
    if "+" in source:
        prior += _BESIDE * (1.0 - prior)
    if evidence is not None:
        prior = _PRIORS[bisect_right(_CLASSES, evidence)]
    return AcceptanceEstimate(prior_mean=prior if greedy else prior * _SAMPLED, keep=0.99, fade=0.999)


def blank(estimate: AcceptanceEstimate) -> AcceptanceEstimate:
    """The same prior, and nothing seen."""
    return AcceptanceEstimate(prior_mean=estimate.prior_mean, keep=0.99, fade=0.999)
