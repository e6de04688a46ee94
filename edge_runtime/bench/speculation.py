"""Speculative against plain decoding of one bundle, on the same prompts in turn. Knows no table and no peer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from ..generation import GenerationResult
from ..telemetry.meter import Meter
from .corpus import Prompt, prompts
from .methods import DEFAULT, PLAIN
from .stats import Ratio, paired_ratio
from .texts import Desk, Law, Task, repeat_rate

NO_METER = Meter()


@dataclass(frozen=True, slots=True)
class PromptFigures:
    """One prompt under one law; the generations are the last round's."""

    prompt: str
    law: str
    plain: GenerationResult
    speculative: GenerationResult
    speedup: Ratio
    """Of speculative over plain, seconds per token."""
    repeat_rate: float
    """Share of 8-grams that stood in the text before: a text that loops flatters a drafter that copies."""
    overhead: float
    """Share of a speculative step spent outside engines."""
    first_look: Ratio | None = None
    """Of a prompt that seemed slow and was measured again (``look_again``)."""
    joules_per_token: tuple[float, float] | None = None
    """Of the whole board, plain and speculative, prompt included; ``None`` where its power is not read."""


def compare_plain(
    desk: Desk,
    texts: Sequence[Prompt],
    laws: Sequence[Law],
    *,
    rounds: int,
    max_tokens: int,
    meter: Meter = NO_METER,
    progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> tuple[PromptFigures, ...]:
    """Each round decodes plain and speculative back to back, in alternating order, ends of text ignored.

    A seed for each round makes both write the same text.
    """
    for method in (PLAIN, DEFAULT):
        desk.decoder(method)  # measures costs, the first time
    figures = []
    for number, (prompt, law) in enumerate((p, one) for one in laws for p in texts):
        progress("plain against speculative", number, len(texts) * len(laws))
        task = Task("", prompt.name, tuple(desk.bundle.tokenizer.encode(prompt.text)))
        seconds: dict[bool, list[float]] = {False: [], True: []}
        joules: dict[bool, list[float]] = {False: [], True: []}
        results: dict[bool, GenerationResult] = {}
        for round_number in range(rounds):
            order = (False, True) if round_number % 2 == 0 else (True, False)
            for drafting in order:
                method = DEFAULT if drafting else PLAIN
                meter.start()
                result = desk.ask(method, task, law, round_number, max_tokens, seed=round_number).result
                result = replace(result, joules=meter.taken_j())
                assert result.tpot_s is not None
                if result.joules_per_token is not None:
                    joules[drafting].append(result.joules_per_token)
                seconds[drafting].append(result.tpot_s)
                results[drafting] = result
        figures.append(
            PromptFigures(
                prompt=prompt.name,
                law=law.name,
                plain=results[False],
                speculative=results[True],
                speedup=paired_ratio(seconds[False], seconds[True]),
                repeat_rate=repeat_rate(results[True].tokens),
                overhead=overhead_share(results[True]),
                joules_per_token=_medians(joules[False], joules[True]),
            )
        )
    return tuple(figures)


def _medians(plain: Sequence[float], speculative: Sequence[float]) -> tuple[float, float] | None:
    return (median(plain), median(speculative)) if plain and speculative else None


def look_again(
    desk: Desk,
    figures: Sequence[PromptFigures],
    laws: Sequence[Law],
    *,
    below: float,
    rounds: int,
    max_tokens: int,
    meter: Meter = NO_METER,
    progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> tuple[PromptFigures, ...]:
    """``figures``, those with a median ``below`` measured anew and longer.

    The least of many noisy medians is low by selection alone; fresh rounds of what was selected are not.
    """
    known = {prompt.name: prompt for prompt in prompts()}
    by_name = {law.name: law for law in laws}
    slow = [figure for figure in figures if figure.speedup.median < below]
    found = list(figures)
    for number, figure in enumerate(slow):
        progress("a second look", number, len(slow))
        prompt, law = known[figure.prompt], by_name[figure.law]
        (again,) = compare_plain(desk, (prompt,), (law,), rounds=rounds, max_tokens=max_tokens, meter=meter)
        found[found.index(figure)] = replace(again, first_look=figure.speedup)
    return tuple(found)


def overhead_share(result: GenerationResult) -> float:
    total = result.draft_s + result.verify_s + result.overhead_s
    return result.overhead_s / total if total > 0.0 else 0.0
