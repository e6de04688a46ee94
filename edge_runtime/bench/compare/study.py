"""The order of things: what is decoded beside what, domain by domain. Knows no table, no file and no option.

Methods take turns within a round, and a plain text stands beside every few of them: what else the machine does meets
both. The search looks at every fixed choice once; its best are then measured anew, for the least of many noisy figures
is low, and the largest high, by selection alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from ...loading import LoadedBundle
from ..methods import DEFAULT, PLAIN, Method
from ..prompts import Domain
from ..reading import Reading, read
from ..texts import Desk, Held, Law, Spoken, Task, copied_share, repeat_rate, tasks
from .costs import step_costs
from .figures import by_prompt, ranking
from .floors import NEVER_BELOW
from .pricing import Curve, VirtualClock, priced
from .quality import judged
from .record import DomainRecord, Part, Quality, Run, Sample, StepCosts

Progress = Callable[[str, int, int], None]

GROUP = 3
"""Methods that share a plain text."""
_SEARCH_ROUND = 1000
"""The first of its rounds: what is searched and what is measured are not the same sampled texts."""
_LONGER = 3
"""Times as many rounds for a prompt that seemed slow."""


@dataclass(frozen=True, slots=True)
class Plan:
    laws: tuple[Law, ...]
    named: tuple[Method, ...]
    fixed: tuple[Method, ...]
    """Searched; none leaves the search out."""
    curves: tuple[Curve, ...]
    rounds: int = 5
    """Of the default and of the best fixed ones."""
    named_rounds: int = 2
    finalists: int = 3
    priced_rounds: int = 2
    """Of the default under a law that draws; everything else is priced once."""
    prompts: int = 3
    """Per domain."""
    tokens: int = 64

    def texts(self, domains: Sequence[Domain]) -> int:
        """How many are decoded, second looks left out."""
        total = 0
        for law in self.laws:
            named = len(applicable(self.named, law))
            total += self.named_rounds * _beside(named) + _beside(len(self.fixed))
            total += self.rounds * _beside(1 + (self.finalists if self.fixed else 0))
            default = 1 if law.params.greedy else self.priced_rounds
            total += len(self.curves) * (default + len(applicable(self.priced_methods(), law)))
        return total * sum(min(self.prompts, len(domain.prompts)) for domain in domains)

    def priced_methods(self) -> tuple[Method, ...]:
        """Beside the default: each drafter with the length that goes by costs, which are the curve's."""
        return tuple(method for method in self.named if replace(method, drafter=DEFAULT.drafter) == DEFAULT)


def _beside(methods: int) -> int:
    return methods + -(-methods // GROUP)


def applicable(methods: Iterable[Method], law: Law) -> tuple[Method, ...]:
    return tuple(method for method in methods if method.differs(law.params.greedy))


@dataclass(slots=True)
class _Found:
    """Of one domain, so far."""

    runs: list[Run] = field(default_factory=list)
    quality: list[Quality] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)


class Study:
    """One bundle under study and the plain one that it is measured against, which may be the same."""

    def __init__(self, subject: LoadedBundle, plain: LoadedBundle, plan: Plan) -> None:
        self._plan = plan
        held = Held()
        self._subject = Desk(subject, held)
        self._plain = self._subject if plain is subject else Desk(plain, Held())
        self._priced: dict[str, Desk] = {}
        for curve in plan.curves:
            clock = VirtualClock()
            self._priced[curve.name] = Desk(priced(subject, curve, clock), held, clock)

    def step_costs(self, most_k: int) -> tuple[StepCosts, ...]:
        """Of the bundle under study, on the real clock."""
        self._subject.held.prompt = ()
        return step_costs(self._subject.bundle.target, most_k)

    def domain(self, domain: Domain, progress: Progress = lambda what, done, total: None) -> DomainRecord:
        plan, found = self._plan, _Found()
        finalists: tuple[Method, ...] = ()
        known = tasks(self._subject.bundle, domain, plan.prompts)
        steps = [(law, part) for law in plan.laws for part in ("named", "search", "final", "priced")]
        for number, (law, part) in enumerate(steps):
            progress(f"{domain.domain}, {law.name}: {part}", number, len(steps))
            if part == "named":
                self._named(found, known, law)
            elif part == "search":
                finalists = self._search(found, known, law)
            elif part == "final":
                self._final(found, known, law, finalists)
                self._again(found, domain, known, law)
            else:
                self._project(found, known, law)
        return DomainRecord(domain.domain, domain.kind, tuple(found.runs), tuple(found.quality), tuple(found.samples))

    def _named(self, found: _Found, tasks: Sequence[Task], law: Law) -> None:
        methods = applicable(self._plan.named, law)
        for task in tasks:
            for number in range(self._plan.named_rounds if methods else 0):
                self._round(found, "named", methods, task, law, number)

    def _search(self, found: _Found, tasks: Sequence[Task], law: Law) -> tuple[Method, ...]:
        """The best fixed choices by one text of each prompt."""
        before = len(found.runs)
        for number, task in enumerate(tasks if self._plan.fixed else ()):
            self._round(found, "search", self._plan.fixed, task, law, _SEARCH_ROUND + number)
        by_label = {method.label: method for method in self._plan.fixed}
        return tuple(by_label[label] for label in ranking(found.runs[before:])[: self._plan.finalists])

    def _final(self, found: _Found, tasks: Sequence[Task], law: Law, finalists: Sequence[Method]) -> None:
        for task in tasks:
            for number in range(self._plan.rounds):
                self._round(found, "final", (DEFAULT, *finalists), task, law, number)

    def _again(self, found: _Found, domain: Domain, tasks: Sequence[Task], law: Law) -> None:
        """Prompts on which the default seemed too slow, longer."""
        record = DomainRecord(domain.domain, domain.kind, tuple(found.runs), (), ())
        slow = {one.prompt for one in by_prompt([record])
                if one.law == law.name and one.speedup.median < NEVER_BELOW}  # fmt: skip
        for task in tasks:
            if task.prompt in slow:
                for number in range(_LONGER * self._plan.rounds):
                    self._round(found, "again", (DEFAULT,), task, law, self._plan.rounds + number)

    def _round(self, found: _Found, part: Part, methods: Sequence[Method], task: Task, law: Law, number: int) -> None:
        """Each method once, in an order that turns with the rounds; plain before or after each group by turns."""
        turned = [*methods[number % len(methods) :], *methods[: number % len(methods)]]
        for start in range(0, len(turned), GROUP):
            group = turned[start : start + GROUP]
            plain_first = (number + start // GROUP) % 2 == 0
            plain = self._speak(PLAIN, task, law, number) if plain_first else None
            spoken = [(method, self._speak(method, task, law, number)) for method in group]
            plain = plain or self._speak(PLAIN, task, law, number)
            found.runs += [run_of(part, task, law, method, number, one, plain) for method, one in spoken]
            if part in ("named", "final") and number == 0:
                self._look_at(found, task, law, plain, spoken)

    def _look_at(
        self, found: _Found, task: Task, law: Law, plain: Spoken, spoken: Sequence[tuple[Method, Spoken]]
    ) -> None:
        """Have the target read the texts, and keep some."""
        theirs = self._read(task, plain)
        for method, one in spoken:
            ours = theirs if one.result.tokens == plain.result.tokens else self._read(task, one)
            greedy = law.params.greedy
            found.quality.append(judged(ours, theirs, task, law.name, method.label, one, plain, greedy=greedy))
            if method == DEFAULT or method.lossy:
                found.samples.append(Sample(task.prompt, law.name, method.label, one.result.text))
            if method == DEFAULT:
                found.samples.append(Sample(task.prompt, law.name, PLAIN.label, plain.result.text))

    def _project(self, found: _Found, tasks: Sequence[Task], law: Law) -> None:
        plan = self._plan
        default = [(DEFAULT, number) for number in range(1 if law.params.greedy else plan.priced_rounds)]
        others = [(method, 0) for method in applicable(plan.priced_methods(), law)]
        for curve in plan.curves:
            for task in tasks:
                for method, number in (*default, *others):
                    one = self._priced[curve.name].speak(method, task, law, number, plan.tokens)
                    found.runs.append(priced_run(task, law, method, number, one, curve))

    def _speak(self, method: Method, task: Task, law: Law, number: int) -> Spoken:
        desk = self._plain if method == PLAIN else self._subject
        return desk.speak(method, task, law, number, self._plan.tokens)

    def _read(self, task: Task, spoken: Spoken) -> Reading:
        bundle = self._plain.bundle
        return read(bundle.target, task.ids, spoken.result.tokens, bundle.max_head_rows)


def run_of(part: Part, task: Task, law: Law, method: Method, number: int, one: Spoken, plain: Spoken) -> Run:
    return _run(
        part, task, law, method, number, one, plain.seconds_per_token,
        plain_repeat_rate=repeat_rate(plain.result.tokens), plain_nll=_nll(plain),
    )  # fmt: skip


def priced_run(task: Task, law: Law, method: Method, number: int, one: Spoken, curve: Curve) -> Run:
    return _run("priced", task, law, method, number, one, curve.step_s(1), curve=curve.name)


def _run(
    part: Part, task: Task, law: Law, method: Method, number: int, one: Spoken, plain_s: float, **more: object
) -> Run:
    result, totals = one.result, one.totals
    step_s = totals.draft_s + totals.verify_s + totals.overhead_s
    return Run(
        part=part,
        prompt=task.prompt,
        law=law.name,
        method=method.label,
        round=number,
        seconds_per_token=one.seconds_per_token,
        plain_seconds_per_token=plain_s,
        tokens=len(result.tokens),
        steps=totals.steps,
        committed=totals.committed,
        drafted=totals.drafted,
        accepted=totals.accepted,
        tried_by_position=tuple(totals.tried_by_position),
        accepted_by_position=tuple(totals.accepted_by_position),
        draft_share=totals.draft_s / step_s,
        verify_share=totals.verify_s / step_s,
        repeat_rate=repeat_rate(result.tokens),
        copied_share=copied_share(task.ids, result.tokens),
        drafts_scored=totals.scored,
        drafts_log_likelihood=totals.draft_log_likelihood,
        nll=_nll(one),
        reason=result.reason,
        sources=one.sources,
        **more,  # type: ignore[arg-type]
    )


def _nll(spoken: Spoken) -> float:
    assert spoken.result.mean_log_likelihood is not None  # there is a text
    return -spoken.result.mean_log_likelihood
