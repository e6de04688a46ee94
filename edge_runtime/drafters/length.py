"""How many tokens to draft, by a rule with a name; none of them knows what a step costs, or when not to draft.

That is what a chooser is for (``chooser.py``), which the default is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from edge_runtime.cost import HeadMode
from edge_runtime.estimate import Task, climbed, fixed_length, prompt_length
from edge_runtime.ledger import TextState

from ..session import GRAMMAR, StepResult


@dataclass(frozen=True, slots=True)
class LengthPlan:
    k: int
    head_mode: HeadMode
    reason: str
    stop_below: float = 0.0
    """See ``DraftContext``."""
    source: str = ""
    """Who is to draft, where several could."""
    key: str = ""
    """What the estimate of that is kept by."""
    weight: float = 1.0
    """Trials that the step counts as."""
    branches: int = 0
    """Most alternatives beside the chain, where drafter and engine know such."""
    window: int | None = None
    """See ``DraftContext``."""


class LengthPolicy(Protocol):
    @property
    def name(self) -> str: ...

    def plan(self, k_max: int, prompt_tokens: int, kv_len: int, text: TextState) -> LengthPlan:
        """K in 0..``k_max``, which is what context, request and drafter leave. Called once before each step, and where
        a prediction drafts once more for that, with a ``text`` of its own.

        ``text`` is what this policy remembers of the text; it may write to it.
        """
        ...

    def observe(self, result: StepResult, kv_len: int, text: TextState) -> None:
        """After the step, with ``kv_len`` as it was planned with."""
        ...


class FixedLength:
    name = "fixed"

    def __init__(self, k: int, head_mode: HeadMode = "batched", stop_below: float = 0.0, branches: int = 0) -> None:
        if k < 0:
            raise ValueError(f"k must be >= 0, not {k}")
        self._k, self._head_mode, self._stop_below, self._branches = k, head_mode, stop_below, branches
        self._reason = f"fixed K={k}"

    def plan(self, k_max: int, prompt_tokens: int, kv_len: int, text: TextState) -> LengthPlan:
        k = fixed_length(self._k, k_max)
        return LengthPlan(k, self._head_mode, self._reason, self._stop_below, branches=self._branches)

    def observe(self, result: StepResult, kv_len: int, text: TextState) -> None:
        pass


class PromptLength:
    """Of the first source article: shorter drafts behind longer prompts."""

    name = "prompt-length"

    def __init__(self, task: Task = "general") -> None:
        self._task: Task = task

    def plan(self, k_max: int, prompt_tokens: int, kv_len: int, text: TextState) -> LengthPlan:
        k = prompt_length(prompt_tokens, k_max, self._task)
        return LengthPlan(k, "batched", f"K={k} for a prompt of {prompt_tokens} tokens ({self._task})")

    def observe(self, result: StepResult, kv_len: int, text: TextState) -> None:
        pass


class ConfidenceLength:
    """Of the second source article: longer drafts while more of them is kept, and none goes on that doubts itself."""

    name = "confidence"

    def __init__(self, stop_below: float = 0.4) -> None:
        self._stop_below = stop_below

    def plan(self, k_max: int, prompt_tokens: int, kv_len: int, text: TextState) -> LengthPlan:
        k = fixed_length(text.climb.k, k_max)
        return LengthPlan(k, "batched", f"K={k}, by what was kept of drafts so far", self._stop_below)

    def observe(self, result: StepResult, kv_len: int, text: TextState) -> None:
        if result.drafted and result.source != GRAMMAR:
            text.climb = climbed(text.climb, result.accepted)
