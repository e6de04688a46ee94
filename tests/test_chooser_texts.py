"""From text to text: what a model is worth is found out, and kept. Acceptance and costs are told, nothing decoded."""

from __future__ import annotations

import random
from statistics import mean

import pytest
from choosing import told_costs

from edge_runtime.choice import TextMemory
from edge_runtime.cost import CostTable, step_seconds
from edge_runtime.drafters.chooser import Ask, Chooser
from edge_runtime.session import StepResult, StepTimes

CPU = CostTable(
    body_s=(0.0159, 0.0190, 0.0235, 0.0280, 0.0320, 0.0360),
    head_s=(0.0079, 0.0088, 0.0115, 0.0137, 0.0156, 0.0176),
    draft_s=0.0024,
)
"""The 270M's, on two cores."""
FED_S = 0.00035
WINDOW = 12
TOKENS = 64


class Texts:
    """One chooser with one model, over many texts."""

    def __init__(self, seed: int, prompt: int = 30) -> None:
        self._random, self._prompt = random.Random(seed), prompt
        costs = told_costs(CPU, {"mtp": (CPU.draft_s, FED_S)}, window=WINDOW)
        self._chooser = Chooser(costs, [("mtp", 5)], 5, 15)

    def gain(self, acceptance: float) -> float:
        """Of one sampled text over plain decoding."""
        memory, spent, made, begun, fed = TextMemory(), 0.0, 0, 0, 0
        while made < TOKENS:
            length = self._prompt + made
            plan = self._chooser.choose(Ask(5, length, length, TOKENS - made, greedy=False), (), memory)
            caught_up = 0
            if plan.k:
                # As the drafter's cache does it.
                if (plan.window is None and begun) or (plan.window is not None and length - 2 - fed > plan.window):
                    begun = fed = 0 if plan.window is None else length - 2 - plan.window
                caught_up, fed = max(0, length - fed - 2), length
            accepted = 0
            while accepted < plan.k and self._random.random() < acceptance:
                accepted += 1
            count = min(accepted + 1, TOKENS - made)
            made += count
            fed += accepted if plan.k else 0
            result = self._result(plan.k, accepted, count, caught_up, made == TOKENS)
            spent += result.times.total_s
            self._chooser.observe(plan, result, length, memory)
        return TOKENS * step_seconds(0, CPU) / spent

    def _result(self, k: int, accepted: int, count: int, caught_up: int, ended: bool) -> StepResult:
        times = StepTimes(k * CPU.draft_s, caught_up * FED_S, CPU.body(k + 1), CPU.head(k + 1), 0.0)
        return StepResult(
            tokens=(7,) * count,
            logprobs=(0.0,) * count,
            k=k,
            drafted=k,
            accepted=accepted,
            kind="accepted" if accepted == k else "rejected",
            rows=k + 1,
            head_mode="batched",
            head_calls=((k + 1, times.head_s),),
            caught_up=caught_up,
            source="mtp" if k else "",
            reason="",
            times=times,
            finish_reason="length" if ended else None,
        )


def always_one(acceptance: float) -> float:
    """The gain of K = 1 at every step, the end of the prompt included."""
    step_s = step_seconds(1, CPU)
    return TOKENS * step_seconds(0, CPU) / (TOKENS * step_s / (1.0 + acceptance) + WINDOW * FED_S)


@pytest.mark.parametrize("prompt", [30, 3000])
@pytest.mark.parametrize("acceptance", [0.42, 0.6])
def test_a_model_that_pays_a_little_is_not_given_up_after_some_bad_luck(acceptance: float, prompt: int) -> None:
    """Each of its texts may begin badly; what others showed must neither park it for good nor take long to recover.
    Nor must a long prompt, of which it needs the end."""
    found = []
    for seed in range(8):
        texts = Texts(seed, prompt)
        for one in (0.15, 0.15, *[acceptance] * 6):
            texts.gain(one)
        found += [texts.gain(acceptance) for _ in range(10)]
    assert mean(found) > 0.95 * always_one(acceptance)


@pytest.mark.parametrize("prompt", [30, 100, 3000])
@pytest.mark.parametrize("acceptance", [0.1, 0.3, 0.42])
def test_no_text_loses_more_than_a_plain_step_and_a_percent(acceptance: float, prompt: int) -> None:
    """What it is fed included."""
    found = []
    for seed in range(8):
        texts = Texts(seed, prompt)
        found += [texts.gain(acceptance) for _ in range(12)]
    assert min(found) > TOKENS / (TOKENS + 1.0 + 0.01 * TOKENS)
    assert mean(found) > 0.985
