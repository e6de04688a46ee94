"""Faults while clients stream: whatever happens, and whenever, four promises hold (``undisturbed``).

The real server and scheduler over an engine, a drafter and a board that fail when they are told to. Every row of the
matrix is a fault in a phase; two clients stream at once, so that a fault meets one of them and must not meet the other.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from server_runs import COMPLETIONS, EOS, VOCAB, Running, events, running, tiny_model

from edge_runtime.budget import Limits as Caps
from edge_runtime.decoder import Decoder
from edge_runtime.drafters.draft_model import DraftModel
from edge_runtime.drafters.length import FixedLength
from edge_runtime.engines.protocol import HeadOutput
from edge_runtime.scheduler.governing import Governing
from edge_runtime.scheduler.request import Limits
from edge_runtime.scheduler.scheduler import Scheduler
from edge_runtime.telemetry.monitor import Monitor
from edge_runtime.testing import (
    DraftFault,
    EngineFault,
    FakeEngine,
    FakeModel,
    FaultyDrafter,
    FaultyEngine,
    FaultySource,
)
from edge_runtime.testing.faults import (
    COPY_FAULT,
    DRAFT_FAULTS,
    FORWARD_FAULTS,
    HEAD_FAULTS,
    LIES,
    ROW_FAULTS,
    SECRET,
)

ROOT = Path(__file__).resolve().parent.parent
PATIENCE_S = 60.0
MODEL = FakeModel(vocab_size=VOCAB)
PROMPTS = ("one prompt that is longer than a chunk of it", "and another one, by somebody else who is here")
STALE_S = 0.3

Fields = dict[str, Any]
GREEDY: Fields = {"temperature": 0, "max_tokens": 24}
WIDE: Fields = {"temperature": 1.0, "top_p": 0.999, "seed": 7, "max_tokens": 24}
"""A law that the candidates do not hold, so that full rows are asked for."""


@dataclass(frozen=True)
class Told:
    """What one client was sent."""

    status: int
    text: str
    error: dict[str, Any] | None
    done: bool
    """Whether the answer was complete."""


@dataclass
class Place:
    """A server over things that fail."""

    run: Running
    engine: FaultyEngine
    drafter: FaultyDrafter
    source: FaultySource
    whole: dict[tuple[str, str], str]
    """(prompt, fields) -> the undisturbed text."""

    def ask(self, prompt: str, fields: Fields) -> Told:
        status, _, answer = self.run.ask("POST", COMPLETIONS, {"prompt": prompt, "stream": True, **fields})
        if status != 200:
            return Told(status, "", answer["error"], False)
        found = events(answer)
        done = found[-1] == "[DONE]"
        chunks = [one for one in found if one != "[DONE]"]
        error = chunks[-1].get("error")
        text = "".join(one["choices"][0]["text"] for one in chunks if one.get("choices"))
        return Told(status, text, error, done and error is None)

    def together(self, fields: Fields) -> list[Told]:
        told: dict[str, Told] = {}
        threads = [threading.Thread(target=lambda p=p: told.update({p: self.ask(p, fields)})) for p in PROMPTS]  # type: ignore[misc]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        return [told[prompt] for prompt in PROMPTS]

    def undisturbed_text(self, prompt: str, fields: Fields) -> str:
        key = (prompt, str(fields))
        if key not in self.whole:
            told = self.ask(prompt, fields)
            assert told.done, told
            self.whole[key] = told.text
        return self.whole[key]

    def status(self) -> Any:
        status, _, answer = self.run.ask("GET", "/v1/status")
        assert status == 200
        return answer


def undisturbed(
    place: Place,
    told: list[Told],
    fields: Fields,
    log: pytest.LogCaptureFixture,
    says: str,
    where: Callable[[Any], str],
) -> None:
    """After each fault: no wrong text was sent; a client has a typed error or its full answer; the next request is
    served; the reason is in status (``where``) and log, and nobody's words are."""
    for prompt, one in zip(PROMPTS, told, strict=True):
        whole = place.undisturbed_text(prompt, fields)
        if one.done:
            assert one.text == whole and one.error is None
        else:
            assert whole.startswith(one.text)
            assert one.error is not None and set(one.error) == {"message", "type", "param", "code"}
            assert one.error["type"] == "server_error" and SECRET not in one.error["message"]
    for prompt in PROMPTS:
        assert place.ask(prompt, fields).text == place.undisturbed_text(prompt, fields)
    assert says in where(place.status()) and says in log.text
    assert SECRET not in log.text and SECRET not in str(place.status())
    assert not any(prompt in log.text for prompt in PROMPTS)


@contextmanager
def placed(folder: Path, caps: Caps | None = None, altered: Callable[[], str] = lambda: "") -> Iterator[Place]:
    engine = FaultyEngine(MODEL, capacity=256, slots=3, max_rows=16, candidates=16)
    drafter = FaultyDrafter(DraftModel(FakeEngine(replace(MODEL, agreement=0.8), capacity=256, slots=3), engine.info))
    made = tiny_model(folder)
    decoder = Decoder(engine, drafter, FixedLength(3))
    served = replace(made.served, decoder=decoder, close=engine.close, eos_ids=(EOS,), altered=altered)
    model = replace(made, served=served)
    source = FaultySource(time.monotonic)
    with Monitor(source, 0.02, STALE_S) as monitor:
        governing = Governing(caps or Caps(), monitor)
        scheduler = Scheduler(model.served, Limits(), governing=governing)
        scheduler.start()
        try:
            with running(model, scheduler, folder) as run:
                yield Place(run, engine, drafter, source, {})
        finally:
            scheduler.close()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with placed(tmp_path_factory.mktemp("faults")) as found:
        for prompt in PROMPTS:
            for fields in (GREEDY, WIDE):
                found.undisturbed_text(prompt, fields)
        yield found


def _last_failure(status: Any) -> str:
    return str(status["requests"]["last_failure"])


# --- the engine ---------------------------------------------------------------------------------------

PREFILL, FIRST, VERIFY, LATE = ("prefill", 0), ("first token", 0), ("verify", 3), ("verify", 9)
ROWS = [
    *((fault, phase, GREEDY) for fault in FORWARD_FAULTS for phase in (PREFILL, ("prefill", 2), ("verify", 8))),
    *((fault, phase, GREEDY) for fault in HEAD_FAULTS for phase in (FIRST, VERIFY, LATE)),
    *((fault, phase, WIDE) for fault in ROW_FAULTS for phase in (FIRST, VERIFY)),
]


IDS = [f"{fault.at}: {fault.name}, {phase[0]} {phase[1]}" for fault, phase, _ in ROWS]


@pytest.mark.parametrize(("fault", "phase", "fields"), ROWS, ids=IDS)
def test_an_engine_that_fails_once(
    place: Place, caplog: pytest.LogCaptureFixture, fault: EngineFault, phase: tuple[str, int], fields: Fields
) -> None:
    # New slots: the whole prompt is fed.
    forget(place)
    place.engine.inject(fault, phase[1])
    told = place.together(fields)
    assert place.engine.happened == 1 and [one.done for one in told].count(False) == 1, "it met one, and one alone"
    undisturbed(place, told, fields, caplog, fault.says, _last_failure)


def forget(place: Place) -> None:
    """Other texts in all slots."""
    for count in range(3):
        assert place.ask(f"{count} something else entirely, and as long {count}", {**GREEDY, "max_tokens": 1}).done


@pytest.mark.parametrize("fault", [FORWARD_FAULTS[1], HEAD_FAULTS[2]], ids=lambda fault: fault.name)
def test_an_engine_that_fails_for_a_while(place: Place, caplog: pytest.LogCaptureFixture, fault: EngineFault) -> None:
    place.engine.inject(fault, lasting=True)
    failed = [one for _ in range(3) for one in place.together(GREEDY)]
    assert not any(one.done for one in failed) and all(one.text == "" for one in failed)
    place.engine.heal()
    undisturbed(place, failed[-2:], GREEDY, caplog, fault.says, _last_failure)
    assert place.status()["requests"]["last_failure_age_s"] < PATIENCE_S


def test_a_copy_of_a_prefix_that_fails(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    forget(place)
    assert place.ask(PROMPTS[0], GREEDY).done
    # A text of its own behind the same start: it is copied, for the slot that has it keeps it.
    other = PROMPTS[0][:30] + " goes on otherwise"
    place.engine.inject(COPY_FAULT)
    copied = place.ask(other, GREEDY)
    place.engine.heal()
    assert place.engine.happened == 1 and not copied.done and copied.text == ""
    told = place.together(GREEDY)
    undisturbed(place, told, GREEDY, caplog, COPY_FAULT.says, _last_failure)
    assert place.ask(other, GREEDY).done


@pytest.mark.parametrize("when", ["between two steps", "within a step"])
def test_a_model_that_was_altered_says_no_word_more(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, when: str
) -> None:
    """Nothing is served then: the daemon ends, with the reason, and is started anew."""
    places: list[Place] = []
    seen, alters_at = [0], [1 << 30]

    def altered() -> str:
        """It is asked before and behind each turn: where nothing ran since the last time, before one."""
        engine = places[0].engine
        ran, forwards = len(engine.calls) > seen[0], len(engine.calls)
        if engine.happened or (forwards >= alters_at[0] and not ran):
            alters_at[0] = 0
            return "target.weights was written to"
        seen[0] = forwards
        return ""

    with placed(tmp_path, altered=altered) as place:
        places.append(place)
        whole = {prompt: place.undisturbed_text(prompt, GREEDY) for prompt in PROMPTS}
        if when == "between two steps":
            alters_at[0] = len(place.engine.calls) + 14  # in the middle of both answers
        if when == "within a step":
            # What is computed from then on is another model's.
            place.engine.inject(EngineFault("another model", "head", spoils=_another_word), 8)
        told = place.together(GREEDY)
        if when == "between two steps":
            assert len(place.engine.calls) == seen[0], "what was cut off would end the process"
        for prompt, one in zip(PROMPTS, told, strict=True):
            assert not one.done and whole[prompt].startswith(one.text) and one.error is not None
            assert one.error["type"] == "server_error" and "target.weights was written to" in one.error["message"]
        status = place.status()
        assert (status["state"], "target.weights was written to" in status["reason"]) == ("failed", True)
        assert place.run.ask("GET", "/health")[0] == 503
        refused = place.ask(PROMPTS[0], GREEDY)
        assert refused.status == 503 and refused.text == ""
        assert "the model cannot be served any more" in caplog.text and "target.weights" in caplog.text


def _another_word(head: HeadOutput) -> HeadOutput:
    return replace(head, argmax=(head.argmax + 1) % VOCAB)


# --- drafters -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", DRAFT_FAULTS, ids=lambda fault: f"{fault.at}: {fault.name}")
def test_a_drafter_that_fails_costs_no_answer(
    place: Place, caplog: pytest.LogCaptureFixture, fault: DraftFault
) -> None:
    place.drafter.inject(fault)
    try:
        told = place.together(GREEDY)
        assert place.drafter.happened and all(one.done for one in told)
        undisturbed(place, told, GREEDY, caplog, fault.says, lambda status: status["speculation"]["reason"])
    finally:
        place.drafter.heal()
    assert place.ask(PROMPTS[0], GREEDY).done
    assert not place.status()["speculation"]["reason"].startswith("K=0: draft_model failed"), "and it is asked again"


# --- the board ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def capped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Far from its limits, as far as it can see."""
    with placed(tmp_path_factory.mktemp("capped"), Caps(power_mw=60_000, temperature_c=90.0, stale_s=STALE_S)) as found:
        yield found


def _until(holds: Callable[[], object]) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end_s, "it never came"
        time.sleep(0.01)


def _gone(source: FaultySource) -> None:
    source.gone = True


def _frozen(source: FaultySource) -> None:
    source.frozen_s = time.monotonic()


def _raising(source: FaultySource) -> None:
    source.raises = OSError(5, "Input/output error")


BOARDS: dict[str, Callable[[FaultySource], None]] = {"gone": _gone, "frozen": _frozen, "raising": _raising}


@pytest.mark.parametrize("phase", ["idle", "streaming"])
@pytest.mark.parametrize("name", BOARDS)
def test_a_board_that_says_nothing_new(capped: Place, caplog: pytest.LogCaptureFixture, name: str, phase: str) -> None:
    caplog.set_level(logging.INFO)
    _until(lambda: capped.status()["board"]["power_mw"] == 9000)
    assert capped.status()["board"]["trouble"] is None
    streaming = threading.Thread(target=capped.together, args=(GREEDY,))
    if phase == "streaming":
        streaming.start()
    BOARDS[name](capped.source)
    try:
        _until(lambda: capped.status()["board"]["trouble"])
        _until(lambda: capped.status()["board"]["power_mw"] is None)
        _until(lambda: capped.status()["board"]["throttle_state"] == "stale")
        told = capped.together(GREEDY)
        assert all(one.done for one in told)
        says = "was read for more than"
        undisturbed(capped, told, GREEDY, caplog, says, lambda status: status["budget"]["reason"])
    finally:
        capped.source.gone, capped.source.frozen_s, capped.source.raises = False, None, None
        if phase == "streaming":
            streaming.join(PATIENCE_S)
    _until(lambda: capped.status()["board"]["throttle_state"] != "stale")


@pytest.mark.parametrize("name", LIES)
def test_a_board_that_lies(capped: Place, name: str) -> None:
    """Whatever it says, status can be told, and answers come as they are."""
    whole = [capped.undisturbed_text(prompt, GREEDY) for prompt in PROMPTS]
    capped.source.lie = LIES[name]
    try:
        _until(lambda: capped.status()["board"]["trouble"])
        assert [one.text for one in capped.together(GREEDY)] == whole
        board = capped.status()["board"]
        assert board["power_mw"] in (None, 9000) and board["temperature_c"] in (None, 60.0)
        assert board["gpu_clock_mhz"] in (None, 600)
        status, _, _ = capped.run.ask("GET", "/metrics")
        assert status == 200
    finally:
        capped.source.lie = None
    _until(lambda: capped.status()["board"]["trouble"] is None)


# --- clocks -------------------------------------------------------------------------------------------


def test_the_wall_clock_may_jump(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Back and forth by years, at every look: deadlines and paces go by another clock."""
    whole = [place.undisturbed_text(prompt, GREEDY) for prompt in PROMPTS]
    looks = iter(range(1 << 30))
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 3e8 * (-1) ** next(looks))
    told = place.together({**GREEDY, "timeout_ms": 60_000})
    assert [one.text for one in told] == whole and all(one.done for one in told)
    assert place.status()["uptime_s"] < 1e6


CALENDAR = {
    "edge_runtime/server/completions.py", "edge_runtime/server/chat.py",  # "created" of an answer
    "edge_runtime/text/sandbox.py",  # strftime_now of a chat template
    "edge_runtime/server/logs.py",  # the time of a line
}  # fmt: skip


_WALL = re.compile(r"\btime\.(?:time|time_ns|gmtime|localtime)\b|\bdatetime\.(?:now|utcnow)\b|CLOCK_REALTIME")


def test_only_what_is_shown_comes_from_the_wall_clock() -> None:
    found = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "edge_runtime").rglob("*.py")
        if _WALL.search(path.read_text(encoding="utf-8"))
    }
    # When a measurement was made.
    assert {name for name in found if not name.startswith(("edge_runtime/bench/", "edge_runtime/cli/"))} == CALENDAR
