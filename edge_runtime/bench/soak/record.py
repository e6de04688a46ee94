"""What a soak wrote down, a line of JSON each, as it came. Knows no daemon; a file whose writer was killed is read as
far as it goes.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Annotated, Literal, TypeVar

import msgspec

from ...errors import ConfigError, why
from ..records import Count, Share, Spent

SCHEMA = 1
_MOST_LINE, _MOST_BYTES = 1 << 20, 1 << 30
"""Bytes. A day makes some 80 MB."""
Celsius = Annotated[float, msgspec.Meta(ge=-300.0, le=1e4)]
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
    minutes: Spent
    lap_s: Spent
    clients: Count
    sessions: Count
    threads: Count
    board: str
    telemetry: str
    limit_c: Celsius
    seed: int


class Answer(msgspec.Struct, frozen=True, tag="answer"):
    """One request, however it ended."""

    began_s: Spent
    """Since the soak began, as all moments here."""
    ended_s: Spent
    kind: str
    script: str
    turn: Count
    manner: Manner
    outcome: Outcome
    why: str = ""
    code: str = ""
    """Of a refusal."""
    ttft_s: Spent | None = None
    tpot_s: Spent | None = None
    tokens: Count = 0


class Happening(msgspec.Struct, frozen=True, tag="event"):
    """Something that was done to the daemon, until it was itself again."""

    began_s: Spent
    ended_s: Spent
    what: str
    went_well: bool | None
    """``None``: the soak ended in the middle of it."""
    note: str = ""


class Checkpoint(msgspec.Struct, frozen=True, tag="checkpoint"):
    """The daemon at rest, behind one lap."""

    at_s: Spent
    lap: Count
    anonymous_held: Count
    """Bytes, with what its caches remember;"""
    anonymous: Count
    """and once they were let go."""
    files: Count
    """Open descriptors."""
    threads: Count
    processor_s: Spent
    """Since its start, of all its threads,"""
    waited_s: Spent
    """and that they waited for a processor."""
    busy_slots: Count
    waiting: Count
    errors: tuple[str, ...]
    """Lines of its log since the last one that nothing here asked for."""


class Probe(msgspec.Struct, frozen=True, tag="probe"):
    """An answer that is made while nobody else asks, the caches empty."""

    at_s: Spent
    lap: Count
    ttft_s: Spent
    tpot_s: Spent
    processor_s: Spent
    """Of all the daemon's threads, for the whole answer,"""
    waited_s: Spent
    """and what they waited for a processor."""

    @property
    def had(self) -> float:
        """Share of the time in which it wanted a processor and had one: below 1 where others use the machine."""
        return share_had(self.processor_s, self.waited_s)


def share_had(processor_s: float, waited_s: float) -> float:
    """Of the time in which a processor was wanted. What a thread waited that has ended since is not known any more, so
    that less may have been waited than before."""
    wanted_s = processor_s + max(0.0, waited_s)
    return processor_s / wanted_s if wanted_s > 0.0 else 1.0


class Look(msgspec.Struct, frozen=True, tag="board"):
    at_s: Spent
    die_c: Celsius
    """Of the plant itself."""
    state: str
    tokens: Count
    """Since the start of the daemon."""
    beyond: bool
    """Whether the air alone makes it too hot, so that no governor could keep the limit."""
    had: Share = 1.0
    """As of ``Probe``, of all the daemon's threads since the look before; 1 where they wanted none."""


class End(msgspec.Struct, frozen=True, tag="end"):
    at_s: Spent
    why: str
    """``complete``, or what ended it early."""


Line = Settings | Answer | Happening | Checkpoint | Probe | Look | End


class Record:
    """Lines of a file that nobody else writes. Each is with the system once it was added."""

    def __init__(self, path: Path) -> None:
        """Raises ``ConfigError``."""
        self._path, self._whole = path, 0
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("wb", buffering=0)
        except OSError as problem:
            raise ConfigError(f"{path} cannot be written: {why(problem)}") from None

    def add(self, line: Line) -> None:
        """Whole or not at all: where a disk is full, what comes later does not follow half a line. Raises
        ``OSError``."""
        data = memoryview(msgspec.json.encode(line) + b"\n")
        try:
            done = 0
            while done < len(data):
                done += self._file.write(data[done:])
        except OSError as problem:
            with suppress(OSError):
                self._file.truncate(self._whole)
                self._file.seek(self._whole)
            problem.filename = str(self._path)
            raise
        self._whole += len(data)

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
    size = 0
    try:
        with path.open("rb") as file:
            while (text := file.readline(_MOST_LINE)).endswith(b"\n"):
                size += len(text)
                lines.append(_line(decoder, text, f"{path}, line {len(lines) + 1}"))
                if size > _MOST_BYTES:
                    raise ConfigError(f"{path}: more than {_MOST_BYTES >> 20} MiB")
    except OSError as problem:
        raise ConfigError(f"{path} cannot be read: {why(problem)}") from None
    if len(text) == _MOST_LINE:
        raise ConfigError(f"{path}, line {len(lines) + 1}: longer than any of a soak's record")
    if not lines or not isinstance(lines[0], Settings) or lines[0].schema != SCHEMA:
        raise ConfigError(f"{path}: not the record of a soak of schema {SCHEMA}")
    rests = [line.at_s for line in of(Checkpoint, lines)]
    if len(of(Settings, lines)) > 1 or any(later <= before for before, later in pairwise(rests)):
        raise ConfigError(f"{path}: records of two soaks do not go together")
    return tuple(lines)


def _line(decoder: msgspec.json.Decoder[Line], text: bytes, where: str) -> Line:
    try:
        return decoder.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise ConfigError(f"{where}: not a line of a soak's record") from None


def of(kind: type[T], lines: Iterable[Line]) -> list[T]:
    return [line for line in lines if isinstance(line, kind)]
