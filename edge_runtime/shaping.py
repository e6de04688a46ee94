"""What a request does to the logits before its law is made: bias, penalties, a grammar. Knows no engine.

The order of OpenAI and vLLM: bias and penalties change logits, a grammar forbids tokens, then temperature and the
filters of ``sampling``. The state of a shaper follows the committed text; drafts are judged by it row by row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .errors import InputError


@dataclass(frozen=True, slots=True)
class ShapingParams:
    """Raises ``InputError`` naming the parameter."""

    presence_penalty: float = 0.0
    """In [-2, 2]: taken from the logit of every token that the answer has."""
    frequency_penalty: float = 0.0
    """In [-2, 2]: taken once for each time."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Token id -> [-100, 100], added. -100 and 100 are as good as a ban and a must, and no more than that."""

    def __post_init__(self) -> None:
        for name in ("presence_penalty", "frequency_penalty"):
            if not -2.0 <= getattr(self, name) <= 2.0:
                raise InputError(f"{name} must be in [-2, 2], not {getattr(self, name)}", name)
        for token, bias in self.logit_bias.items():
            if not -100.0 <= bias <= 100.0:
                raise InputError(f"logit_bias of token {token} must be in [-100, 100], not {bias}", "logit_bias")

    @property
    def idle(self) -> bool:
        """Whether it changes nothing."""
        return not (self.presence_penalty or self.frequency_penalty or self.logit_bias)
