"""One text at a time: a prompt continued by a decoder, and what became of it. Knows no figure and no other method.

``ask`` is a whole request. ``speak`` starts every text of a prompt from the same cache: the prompt is fed once, and
what follows it is written over.
"""

from __future__ import annotations

import time
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..decoder import Clock, Decoder
from ..errors import InputError
from ..generation import Generation, GenerationResult
from ..loading import LoadedBundle
from ..reuse import Owner
from ..sampling import SamplingParams
from ..session import Session, Totals
from ..text.stream import TextStream
from .methods import PLAIN, Method, decoder_for
from .prompts import Domain

_COPIED = 4
"""Tokens of a gram that, standing in the prompt, counts as copied."""
_NGRAM = 8
"""The same of one that stood in the text before."""
LOOPING = 0.2
"""Repeat rate from which a text counts as looping: a drafter that copies is flattered by it."""


@dataclass(frozen=True, slots=True)
class Law:
    name: str
    params: SamplingParams

    def __str__(self) -> str:
        params = self.params
        filters = [f"top_k {params.top_k}"] * (params.top_k > 0) + [f"top_p {params.top_p}"] * (params.top_p < 1.0)
        return "greedy" if params.greedy else ", ".join([f"temperature {params.temperature}", *filters])


@dataclass(frozen=True, slots=True)
class Task:
    """A prompt of a domain, as tokens."""

    domain: str
    prompt: str
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Spoken:
    result: GenerationResult
    totals: Totals
    sources: dict[str, int]
    """Steps by who drafted."""

    @property
    def seconds_per_token(self) -> float:
        assert self.result.tpot_s is not None  # a text has two tokens at least
        return self.result.tpot_s


class Held:
    """The prompt that slot 0 of an engine holds; shared by the desks of one engine."""

    def __init__(self) -> None:
        self.prompt: tuple[int, ...] = ()
        self.texts = 0
        """Decoded so far."""


class Desk:
    """Decodes on one bundle, in slot 0, by whichever method."""

    def __init__(self, bundle: LoadedBundle, held: Held, clock: Clock = time.perf_counter) -> None:
        self.bundle = bundle
        self.held, self._clock = held, clock
        self._decoders: dict[Method, Decoder] = {}

    def decoder(self, method: Method) -> Decoder:
        """Always the same one: what it has learnt of costs and acceptance stays, as in a daemon."""
        if method not in self._decoders:
            self.held.prompt = ()  # making one measures what forwards cost, in this very slot
            self._decoders[method] = decoder_for(self.bundle, method, self._clock)
        return self._decoders[method]

    def speak(self, method: Method, task: Task, law: Law, round_number: int, max_tokens: int) -> Spoken:
        """A text of ``max_tokens``, ends of text ignored. The drafter starts without memory of an earlier one.

        A round's draws are the same for all methods, though each uses them up in its own way.
        """
        decoder = self.decoder(method)
        self.fill(task)
        return self._decode(decoder, self._session(method, task, law, round_number, max_tokens, len(task.ids) - 1))

    def ask(
        self,
        method: Method,
        task: Task,
        law: Law,
        round_number: int,
        max_tokens: int,
        *,
        seed: int | None = None,
        known: int = 0,
    ) -> Spoken:
        """The same with the prompt fed anew, in its time to the first token. With a ``seed``, whatever the method;
        ``known``: so many tokens at its start are in the slot, and are not fed."""
        decoder = self.decoder(method)
        self.held.prompt = ()
        return self._decode(decoder, self._session(method, task, law, round_number, max_tokens, known, seed))

    def _session(
        self, method: Method, task: Task, law: Law, number: int, max_tokens: int, kv_len: int, seed: int | None = None
    ) -> Session:
        return Session(
            self.bundle.target.info,
            task.ids,
            law.params,
            max_tokens=max_tokens,
            seed=seed,
            rng=np.random.default_rng([number, zlib.crc32(task.prompt.encode())]),
            policy=method.acceptance,
            kv_len=kv_len,
            owner=Owner(self._next_client()),
        )

    def _decode(self, decoder: Decoder, session: Session) -> Spoken:
        decoder.drafter.reset(0)
        text = TextStream(self.bundle.tokenizer.piece_bytes)
        generation = Generation(decoder, session, text, clock=self._clock)
        sources: Counter[str] = Counter()
        while generation.finish_reason is None:
            before = session.totals.steps
            generation.turn()
            if session.totals.steps > before and generation.last is not None:
                sources[generation.last.source] += 1
        return Spoken(generation.result(), session.totals, dict(sources))

    def _next_client(self) -> int:
        """A text of the same prompt by the same client could be copied: the next round would be measured on it."""
        self.held.texts += 1
        return self.held.texts

    def fill(self, task: Task) -> None:
        """Have the slot hold the prompt."""
        if self.held.prompt == task.ids:
            return
        self.held.prompt = ()
        session = Session(self.bundle.target.info, task.ids, SamplingParams(temperature=0.0), max_tokens=1)
        self.decoder(PLAIN).prefill(session)
        self.held.prompt = task.ids


def copied_share(prompt: Sequence[int], tokens: Sequence[int]) -> float:
    """Share of ``tokens`` inside a gram of 4 that stands in the prompt."""
    held = {tuple(prompt[i : i + _COPIED]) for i in range(len(prompt) - _COPIED + 1)}
    copied = np.zeros(len(tokens), np.bool_)
    for start in range(len(tokens) - _COPIED + 1):
        if tuple(tokens[start : start + _COPIED]) in held:
            copied[start : start + _COPIED] = True
    return float(copied.mean()) if len(tokens) else 0.0


def repeat_rate(tokens: Sequence[int]) -> float:
    """Share of 8-grams that occurred earlier in ``tokens``; 0 for a shorter text."""
    seen: set[tuple[int, ...]] = set()
    repeats = 0
    grams = [tuple(tokens[i : i + _NGRAM]) for i in range(len(tokens) - _NGRAM + 1)]
    for gram in grams:
        repeats += gram in seen
        seen.add(gram)
    return repeats / len(grams) if grams else 0.0


def tasks(bundle: LoadedBundle, domain: Domain, most: int) -> list[Task]:
    encode = bundle.tokenizer.encode
    return [Task(domain.domain, one.name, tuple(encode(one.text))) for one in domain.prompts[:most]]


def check_fits(bundle: LoadedBundle, domains: Sequence[Domain], prompts: int, tokens: int) -> None:
    """Raises ``InputError`` for a prompt that the context has no room for, with its text."""
    capacity = bundle.target.info.capacity
    for domain in domains:
        for task in tasks(bundle, domain, prompts):
            if len(task.ids) + tokens > capacity:
                raise InputError(
                    f"{domain.domain}: {task.prompt} has {len(task.ids)} tokens, and the context of {capacity} cannot "
                    f"hold {tokens} more: leave the domain out"
                )


def first_difference(left: Sequence[int], right: Sequence[int]) -> int | None:
    """Where two texts part; ``None``: nowhere, as far as both go."""
    pairs = zip(left, right, strict=False)
    return next((place for place, (one, other) in enumerate(pairs) if one != other), None)
