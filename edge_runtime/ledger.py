"""What drafting has won and lost in one text, and so what it may still risk. Pure; knows no clock and no engine.

Estimates can be wrong: the first drafts of a text are guesses, and a text may change its nature. The ledger bounds
what wrong guesses cost: drafting may never have lost more than one plain step and 1% of plain decoding, whatever
the acceptance turns out to be. So a text starts with short drafts, and each one that is kept pays for longer ones.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .cost import CostTable, step_seconds
from .estimate import Climb


@dataclass(frozen=True, slots=True)
class Ledger:
    balance_s: float = 0.0
    """Seconds won (or lost, below 0) over plain decoding of the same tokens, as the cost table prices both."""
    plain_s: float = 0.0
    """Seconds that plain decoding would have taken so far."""
    start_steps: float = 1.0
    """Plain steps that may be lost before anything was won."""
    share: float = 0.01
    """Of ``plain_s`` that may be lost."""

    def credit_s(self, plain_step_s: float) -> float:
        """What one more step may lose."""
        return self.start_steps * plain_step_s + self.share * self.plain_s + self.balance_s

    def after(self, committed: int, step_s: float, plain_step_s: float) -> Ledger:
        """With a step of ``step_s`` that committed so many tokens."""
        plain_s = committed * plain_step_s
        balance_s = self.balance_s + plain_s - step_s
        # After every step: ``dataclasses.replace`` takes ten times as long.
        return Ledger(balance_s, self.plain_s + plain_s, self.start_steps, self.share)


def affordable_k(ledger: Ledger, table: CostTable, k_max: int, upfront_s: float = 0.0) -> int:
    """The largest K whose step, kept nothing of it, costs no more than the credit above a plain one.

    ``upfront_s``: what the draft costs before its first token.
    """
    plain_step_s = table.plain_s
    credit_s = ledger.credit_s(plain_step_s) - upfront_s
    k = 0
    while k < k_max and step_seconds(k + 1, table) - plain_step_s <= credit_s:
        k += 1
    return k


@dataclass(slots=True)
class TextState:
    """What a length policy remembers of one text; a session holds it."""

    climb: Climb = field(default_factory=Climb)
