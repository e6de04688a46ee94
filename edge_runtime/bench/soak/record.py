"""What a soak wrote down, a line of JSON each, as it came. Knows no daemon; a file whose writer was killed is read as
far as it goes.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Literal, TypeVar

import msgspec

from ...errors import ConfigError, why

SCHEMA = 1
Manner = Literal["whole", "streamed", "slow", "left"]
"""How an answer was taken: in one, as a stream, by a reader that is slow, by one that goes away."""
Outcome = Literal["right", "left", "refused", "wrong", "lost"]

T = TypeVar("T")


class Settings(msgspec.Struct, frozen=True, tag="settings"):
    schema: int
    command: str
    started: str
    machine: dict[str, str]
    bundle: str
    minutes: float
    lap_s: float
    clients: int
    sessions: int
    threads: int
    board: str
    telemetry: str
    limit_c: float
    seed: int


class Answer(msgspec.Struct, frozen=True, tag="answer"):
    """One request, however it ended."""

    began_s: float
    """Since the soak began, as all moments here."""
    ended_s: float
    kind: str
    script: str
    turn: int
    manner: Manner
    outcome: Outcome
    why: str = ""
    code: str = ""
    """Of a refusal."""
    ttft_s: float | None = None
    tpot_s: float | None = None
    tokens: int = 0


class Happening(msgspec.Struct, frozen=True, tag="event"):
    """Something that was done to the daemon, until it was itself again."""

    began_s: float
    ended_s: float
    what: str
    went_well: bool
    note: str = ""


class Checkpoint(msgspec.Struct, frozen=True, tag="checkpoint"):
    """The daemon at rest, behind one lap."""

    at_s: float
    lap: int
    anonymous_held: int
    """Bytes, with what its caches remember;"""
    anonymous: int
    """and once they were let go."""
    files: int
    """Open descriptors."""
    threads: int
    processor_s: float
    """Since its start, of all its threads,"""
    waited_s: float
    """and that they waited for a processor."""
    busy_slots: int
    waiting: int
    errors: tuple[str, ...]
    """Lines of its log since the last one that nothing here asked for."""


class Probe(msgspec.Struct, frozen=True, tag="probe"):
    """An answer that is made while nobody else asks, the caches empty."""

    at_s: float
    lap: int
    ttft_s: float
    tpot_s: float
    processor_s: float
    """Of all the daemon's threads, for the whole answer,"""
    waited_s: float
    """and what they waited for a processor."""

    @property
    def had(self) -> float:
        """Share of the time in which it wanted a processor and had one: below 1 where others use the machine."""
        return share_had(self.processor_s, self.waited_s)


def share_had(processor_s: float, waited_s: float) -> float:
    """Of the time in which a processor was wanted."""
    wanted_s = processor_s + waited_s
    return processor_s / wanted_s if wanted_s > 0.0 else 1.0


class Look(msgspec.Struct, frozen=True, tag="board"):
    at_s: float
    die_c: float
    """Of the plant itself."""
    state: str
    tokens: int
    """Since the start of the daemon."""
    beyond: bool
    """Whether the air alone makes it too hot, so that no governor could keep the limit."""
    had: float = 1.0
    """As of ``Probe``, of all the daemon's threads since the look before; 1 where they wanted none."""


class End(msgspec.Struct, frozen=True, tag="end"):
    at_s: float
    why: str
    """``complete``, or what ended it early."""


Line = Settings | Answer | Happening | Checkpoint | Probe | Look | End


class Record:
    """Lines of a file that nobody else writes. Each is with the system once it was added."""

    def __init__(self, path: Path) -> None:
        """Raises ``ConfigError``."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("wb", buffering=0)
        except OSError as problem:
            raise ConfigError(f"{path} cannot be written: {why(problem)}") from None

    def add(self, line: Line) -> None:
        self._file.write(msgspec.json.encode(line) + b"\n")

    def __enter__(self) -> Record:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


def read_lines(path: Path) -> tuple[Line, ...]:
    """All, the settings first; a last line that was cut off is left out. Raises ``ConfigError``."""
    decoder = msgspec.json.Decoder(Line)
    lines: list[Line] = []
    try:
        with path.open("rb") as file:
            for number, text in enumerate(file, 1):
                if not text.endswith(b"\n"):
                    break
                try:
                    lines.append(decoder.decode(text))
                except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                    raise ConfigError(f"{path}, line {number}: not a line of a soak's record") from None
    except OSError as problem:
        raise ConfigError(f"{path} cannot be read: {why(problem)}") from None
    if not lines or not isinstance(lines[0], Settings) or lines[0].schema != SCHEMA:
        raise ConfigError(f"{path}: not the record of a soak of schema {SCHEMA}")
    return tuple(lines)


def of(kind: type[T], lines: Iterable[Line]) -> list[T]:
    return [line for line in lines if isinstance(line, kind)]
