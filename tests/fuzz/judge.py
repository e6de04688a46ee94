"""The oracle: a reader reads, or refuses in one clear line. Knows no format and no fuzzer.

Whatever else comes out is a *finding*: another exception, a warning (whoever runs this makes errors of them), a message
of several lines or with control characters, seconds of processor time, memory out of proportion to the input.
"""

from __future__ import annotations

import time
import traceback
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from edge_runtime.errors import InputError

T = TypeVar("T")

LONGEST_MESSAGE = 2_200
MOST_CPU_S = 2.0
"""Of one input, none of them larger than 64 KB. Processor time: a machine that is busy elsewhere proves nothing."""
MEMORY_PER_BYTE, MEMORY_BESIDE = 64, 4 << 20
"""What a read may hold at its peak: so many bytes for each of the input, and what a module's first use costs."""
WEIGHED_EVERY, LIGHT_S = 64, 0.05
"""One input in so many, unless it takes longer than that, is read once more under tracemalloc: three times as slow, and
forty times where calls nest, for it walks the stack at each allocation."""
_ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Finding:
    kind: str
    """The exception and where it was raised, or what else was wrong: findings of one kind are counted, not kept."""
    told: str


@dataclass(slots=True)
class Judge:
    """``refusal``: the errors that a reader may end in."""

    refusal: type[Exception] | tuple[type[Exception], ...] = InputError
    findings: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    """Kind -> what was told of the first one, and its input."""
    counts: Counter[str] = field(default_factory=Counter)
    """Of inputs: read, refused; and of findings by kind."""
    slowest_s: float = 0.0
    heaviest: float = 0.0
    """Bytes of memory to a byte of input, of those that were weighed and are larger than 4 KB."""
    judged: int = 0
    told: list[str] = field(default_factory=list)
    """What the last input was refused with."""
    _input: bytes = b""
    _refused: bool = False

    def judge(self, read: Callable[[Judge, bytes], object], data: bytes) -> bool:
        """Whether one input was read to its end. Never raises but ``KeyboardInterrupt`` and the like."""
        self.judged += 1
        self._input, self._refused, self.told = data, False, []
        before = sum(self.counts.values())
        begun = time.thread_time()
        self.attempt(read, self, data)
        spent = time.thread_time() - begun
        self.slowest_s = max(self.slowest_s, spent)
        if spent > MOST_CPU_S:
            self._add(Finding("slow", f"{spent:.1f} s"))
        if self.judged % WEIGHED_EVERY == 0 and spent < LIGHT_S:
            self._weigh(read, data)
        if sum(self.counts.values()) > before:
            return False
        self.counts["refused" if self._refused else "read"] += 1
        return not self._refused

    def attempt(self, step: Callable[..., T], *given: Any) -> T | None:
        """One step of a read: its result, or ``None`` where it refused or was found wrong."""
        try:
            return step(*given)
        except self.refusal as problem:
            self._refused = True
            self.listen(str(problem))
        except RecursionError as problem:
            self._add(Finding(f"RecursionError in {_place(problem)[-60:]}", ""))
        except Exception as problem:  # noqa: BLE001  (this is what is looked for)
            self._add(Finding(f"{type(problem).__name__} in {_place(problem)}", str(problem)[:300]))
        return None

    def either(self, steps: Iterable[tuple[Callable[..., object], Any]]) -> None:
        """Readers of which an input is for one: it was refused where all of them refuse."""
        refused, read = self._refused, False
        for step, given in steps:
            self._refused = False
            self.attempt(step, given)
            read |= not self._refused
        self._refused = refused or not read

    def listen(self, message: str) -> None:
        """What a person is told."""
        self.told.append(message)
        shape = "empty" if not message.strip() else "too long" if len(message) > LONGEST_MESSAGE else ""
        if not shape and not message.isprintable():
            shape = "with control characters"
        if shape:
            self._add(Finding(f"a message {shape}", repr(message[:300])))

    def _weigh(self, read: Callable[[Judge, bytes], object], data: bytes) -> None:
        tracemalloc.start()
        try:
            self.attempt(read, self, data)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        if len(data) > 4096:
            self.heaviest = max(self.heaviest, peak / len(data))
        if peak > MEMORY_BESIDE + MEMORY_PER_BYTE * len(data):
            self._add(Finding("memory", f"{peak >> 20} MiB for {len(data)} bytes"))

    def _add(self, finding: Finding) -> None:
        self.counts[finding.kind] += 1
        self.findings.setdefault(finding.kind, (finding.told, self._input))


def _place(problem: BaseException) -> str:
    """The last line of ours on the way to it."""
    frames = traceback.extract_tb(problem.__traceback__)
    ours = [frame for frame in frames if "/tests/fuzz/" not in frame.filename and str(_ROOT) in frame.filename]
    if not ours:
        return "the harness"
    last = ours[-1]
    return f"{Path(last.filename).relative_to(_ROOT)}:{last.name}"
