"""Speculative against plain decoding of one bundle, on the same prompts in turn. Knows no table and no peer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from ..decoder import Decoder
from ..generation import Generation, GenerationResult
from ..loading import LoadedBundle
from ..sampling import SamplingParams
from ..session import Session
from ..telemetry.meter import Meter
from ..text.stream import TextStream
from .corpus import Prompt, prompts
from .stats import Ratio, paired_ratio

_NGRAM = 8
NO_METER = Meter()


@dataclass(frozen=True, slots=True)
class Case:
    """A law to decode under; a seed per round makes plain and speculative write the same text."""

    name: str
    params: SamplingParams


@dataclass(frozen=True, slots=True)
class PromptFigures:
    """One prompt under one law; the generations are the last round's."""

    prompt: str
    case: str
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
    bundle: LoadedBundle,
    speculative: Decoder,
    texts: Sequence[Prompt],
    cases: Sequence[Case],
    *,
    rounds: int,
    max_tokens: int,
    meter: Meter = NO_METER,
    progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> tuple[PromptFigures, ...]:
    """Each round decodes plain and speculative back to back, in alternating order, ends of text ignored."""
    plain = bundle.decoder("none")
    figures = []
    for number, (prompt, case) in enumerate((p, c) for c in cases for p in texts):
        progress("plain against speculative", number, len(texts) * len(cases))
        seconds: dict[bool, list[float]] = {False: [], True: []}
        joules: dict[bool, list[float]] = {False: [], True: []}
        results: dict[bool, GenerationResult] = {}
        for round_number in range(rounds):
            order = (False, True) if round_number % 2 == 0 else (True, False)
            for drafting in order:
                decoder = speculative if drafting else plain
                meter.start()
                result = generate_once(bundle, decoder, prompt.text, case.params, round_number, max_tokens)
                result = replace(result, joules=meter.taken_j())
                assert result.tpot_s is not None
                if result.joules_per_token is not None:
                    joules[drafting].append(result.joules_per_token)
                seconds[drafting].append(result.tpot_s)
                results[drafting] = result
        figures.append(
            PromptFigures(
                prompt=prompt.name,
                case=case.name,
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
    bundle: LoadedBundle,
    speculative: Decoder,
    figures: Sequence[PromptFigures],
    cases: Sequence[Case],
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
    laws = {case.name: case for case in cases}
    slow = [figure for figure in figures if figure.speedup.median < below]
    found = list(figures)
    for number, figure in enumerate(slow):
        progress("a second look", number, len(slow))
        (again,) = compare_plain(
            bundle,
            speculative,
            (known[figure.prompt],),
            (laws[figure.case],),
            rounds=rounds,
            max_tokens=max_tokens,
            meter=meter,
        )
        found[found.index(figure)] = replace(again, first_look=figure.speedup)
    return tuple(found)


def generate_once(
    bundle: LoadedBundle,
    decoder: Decoder,
    prompt: str,
    params: SamplingParams,
    seed: int,
    max_tokens: int,
    on_text: Callable[[str], None] = lambda text: None,
) -> GenerationResult:
    ids = bundle.tokenizer.encode(prompt)
    session = Session(bundle.target.info, ids, params, max_tokens=max_tokens, eos_ids=(), seed=seed)
    generation = Generation(decoder, session, TextStream(bundle.tokenizer.piece_bytes))
    for piece in generation:
        on_text(piece.text)
    return generation.result()


def overhead_share(result: GenerationResult) -> float:
    total = result.draft_s + result.verify_s + result.overhead_s
    return result.overhead_s / total if total > 0.0 else 0.0


def repeat_rate(tokens: Sequence[int]) -> float:
    """Share of 8-grams that occurred earlier in ``tokens``; 0 for a shorter text."""
    seen: set[tuple[int, ...]] = set()
    repeats = 0
    grams = [tuple(tokens[i : i + _NGRAM]) for i in range(len(tokens) - _NGRAM + 1)]
    for gram in grams:
        repeats += gram in seen
        seen.add(gram)
    return repeats / len(grams) if grams else 0.0
