"""Decodes what a plan says, and notes what became of it. Knows no figure, no table and no file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ...bundle import MANIFEST_NAME, TARGET, file_sha256
from ...loading import LoadedBundle
from ...needs import weights_read
from ...telemetry.meter import Meter
from ..corpus import SAMPLE_TOKENS, sample_text
from ..methods import DEFAULT, PLAIN
from ..prompts import Domain
from ..reading import read
from ..texts import Desk, Held, Law, Spoken, Task, check_fits, repeat_rate, tasks
from .plan import Cell, Group, Plan, Which, prompt_of
from .record import Answer, BundleFacts, Sample

Progress = Callable[[str, int, int], None]
_EVERY = 1 << 10
"""More prompts than a domain has."""


@dataclass(frozen=True, slots=True)
class Episode:
    """One domain in one round."""

    answers: tuple[Answer, ...]
    samples: tuple[Sample, ...]
    """Texts to look at, of the first round."""


class Bench:
    """Bundles with one plan for all of them. The meter is somebody else's to close, as the bundles are."""

    def __init__(self, bundles: Mapping[Which, LoadedBundle], plan: Plan, meter: Meter) -> None:
        self._plan, self._meter = plan, meter
        self._desks = {which: Desk(bundle, Held()) for which, bundle in bundles.items()}
        self._tasks = {
            (which, domain.domain): tasks(bundle, domain, _EVERY)
            for which, bundle in bundles.items()
            for domain in plan.domains
        }

    def check_fits(self) -> None:
        """Raises ``InputError`` for a prompt that the context has no room for, with its text."""
        for desk in self._desks.values():
            check_fits(desk.bundle, self._plan.domains, _EVERY, self._plan.tokens)

    def warm_up(self, progress: Progress = lambda what, done, total: None) -> dict[Cell, float]:
        """A text of each cell that counts nowhere; seconds that it took. What forwards cost is measured before it."""
        plan = self._plan
        seconds: dict[Cell, float] = {}
        for number, cell in enumerate(plan.cells):
            progress("warm-up", number, len(plan.cells))
            task = self._task(plan.domains[0], 0, cell.bundle)
            self._desks[cell.bundle].decoder(cell.method)
            seconds[cell] = _whole_s(self._ask(cell, task, plan.laws[-1], 0))
        return seconds

    def episode(self, number: int, domain: Domain) -> Episode:
        answers: list[Answer] = []
        samples: list[Sample] = []
        for law in self._plan.laws:
            for group in self._plan.groups(number):
                for cell in group.cells:
                    task = self._task(domain, number, cell.bundle)
                    self._meter.start()
                    spoken = self._ask(cell, task, law, number)
                    answers.append(answer_of(spoken, group, cell, task, law, number, self._meter.taken_j()))
                    if number == 0 and group.part == "rounds" and cell.method in (PLAIN, DEFAULT):
                        text = spoken.result.text
                        samples.append(Sample(domain.domain, law.name, cell.bundle, cell.method.label, text))
        return Episode(tuple(answers), tuple(samples))

    def facts(self, head: Literal["screened", "full"]) -> dict[Which, BundleFacts]:
        """Of each bundle, its likelihood of one and the same text among them. ``head``: that they were loaded with."""
        return {which: bundle_facts(desk.bundle, head) for which, desk in self._desks.items()}

    def _task(self, domain: Domain, number: int, which: Which) -> Task:
        return self._tasks[which, domain.domain][prompt_of(domain, number)]

    def _ask(self, cell: Cell, task: Task, law: Law, number: int) -> Spoken:
        return self._desks[cell.bundle].ask(cell.method, task, law, number, self._plan.tokens)


def _whole_s(spoken: Spoken) -> float:
    result = spoken.result
    assert result.ttft_s is not None and result.tpot_s is not None  # a text has two tokens at least
    return result.ttft_s + result.tpot_s * (len(result.tokens) - 1)


def answer_of(
    spoken: Spoken, group: Group, cell: Cell, task: Task, law: Law, number: int, joules: float | None
) -> Answer:
    result, totals = spoken.result, spoken.totals
    assert result.ttft_s is not None and result.mean_log_likelihood is not None
    return Answer(
        part=group.part,
        domain=task.domain,
        prompt=task.prompt,
        law=law.name,
        round=number,
        group=group.number,
        bundle=cell.bundle,
        method=cell.method.label,
        prompt_tokens=result.prompt_tokens,
        tokens=len(result.tokens),
        whole_s=_whole_s(spoken),
        ttft_s=result.ttft_s,
        tpot_s=spoken.seconds_per_token,
        steps=totals.steps,
        draft_s=totals.draft_s,
        verify_s=totals.verify_s,
        overhead_s=totals.overhead_s,
        committed=totals.committed,
        drafted=totals.drafted,
        accepted=totals.accepted,
        tried_by_position=tuple(totals.tried_by_position),
        accepted_by_position=tuple(totals.accepted_by_position),
        repeat_rate=repeat_rate(result.tokens),
        nll=-result.mean_log_likelihood,
        joules=joules,
        sources=spoken.sources,
        reason=result.reason,
    )


def bundle_facts(bundle: LoadedBundle, head: Literal["screened", "full"]) -> BundleFacts:
    """Slot 0 is written to."""
    manifest = bundle.manifest
    target = manifest.model(TARGET)
    ids: Sequence[int] = bundle.tokenizer.encode(sample_text())[: min(SAMPLE_TOKENS + 1, bundle.target.info.capacity)]
    return BundleFacts(
        name=manifest.name,
        sha256=file_sha256(bundle.directory / MANIFEST_NAME),
        precision=target.precision,
        file_bytes=sum(entry.bytes for entry in manifest.files),
        read_bytes=weights_read(manifest, head),
        nll=read(bundle.target, ids[:1], ids[1:], bundle.max_head_rows).nll,
        nll_tokens=len(ids) - 1,
        load_s=bundle.load_s,
    )
