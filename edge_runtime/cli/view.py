"""The daemon's status as a picture of lines. Knows what to show and in how much room, not where it comes from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.text import Text

from ..console import shown
from ..status import BudgetStatus, SlotStatus, Status

_LABEL = 11
_BAR = 24
_FULL, _PARTS = "█", " ▏▎▍▌▋▊▉"
_STATES = {"ready": "green", "loading": "yellow", "draining": "yellow", "failed": "red"}


def lines(status: Status, width: int, height: int | None = None, notice: str = "") -> list[Text]:
    """The most important first. ``height``: of a window, to which rows are cut; without one nothing is lost, and a long
    reason is longer than ``width``. ``notice``: shown ahead of it, as an error."""
    rows = list(_rows(status, width))
    if notice:
        rows.insert(1, Text(shown(notice), "red"))
    if height is None:
        return rows
    for row in rows:
        row.truncate(width, overflow="ellipsis")
        row.no_wrap = True
    return rows[:height]


def _rows(status: Status, width: int) -> Iterator[Text]:
    yield _head(status)
    if status.reason:
        yield Text(shown(status.reason), "yellow")
    model = status.model
    if model is not None:
        text = f"{model.name} ({model.family}), context {model.context}, bundle {_bytes(model.bundle_bytes)}"
        yield _row("model", text)
    speed, requests, speculation = status.speed, status.requests, status.speculation
    pairs = (("ttft", speed.ttft_ms_p50, speed.ttft_ms_p95), ("tpot", speed.tpot_ms_p50, speed.tpot_ms_p95))
    times = "  ".join(f"{name} {_number(median)}/{_number(high)} ms" for name, median, high in pairs)
    yield _row("speed", f"{speed.tokens_per_s:.1f} tok/s  {times}  (p50/p95)")
    yield _row("requests", f"{requests.running} running, {requests.waiting} of {requests.queue_limit} waiting")
    ends = ("finished", "failed", "cancelled", "refused")
    yield _row("", "  ".join(f"{end} {getattr(requests, end)}" for end in ends))
    if requests.last_failure:
        yield _row("", f"{_duration(requests.last_failure_age_s or 0.0)} ago: {requests.last_failure}")
    cached = f"{speed.cached_prompt_tokens} of them cached"
    yield _row("tokens", f"{speed.generated_tokens} made, {speed.prompt_tokens} read, {cached}")
    memory = status.memory
    used = _bar(memory.now_bytes, memory.budget_bytes, _bar_width(width)) if memory.budget_bytes else ""
    most = _bytes(memory.budget_bytes) if memory.budget_bytes else "-"
    yield _row("memory", f"{used}{_bytes(memory.now_bytes)} of {most}, peak {_bytes(memory.peak_bytes)}")
    board = status.board
    yield _row(
        "board",
        f"temperature {_number(board.temperature_c, ' °C')}  power {_watts(board.power_mw)}  "
        f"clock {_number(board.gpu_clock_mhz, ' MHz')}  state {board.throttle_state or '-'}",
    )
    if board.trouble is not None:
        yield _row("", board.trouble)
    if board.joules_per_token is not None:
        yield _row("energy", f"{board.joules_per_token:.2f} J a token")
    budget = status.budget
    if budget.reason and board.throttle_state not in (None, "unmonitored"):
        yield _row("allowed", _allowed(budget))
        yield _row("", budget.reason)
    drafter = "-" if model is None else model.drafter
    yield _row(
        "drafting",
        f"{drafter}, {'on' if speculation.running else 'off'}, K {speculation.num_draft_tokens:.1f}, acceptance "
        f"{_percent(speculation.acceptance_rate)}, length {_number(speculation.acceptance_length, digits=2)}",
    )
    if speculation.reason:
        yield _row("", speculation.reason)
    longest = max((len(source.source) for source in speculation.sources), default=0)
    for source in speculation.sources:
        kept = _percent(source.accepted_tokens / source.draft_tokens if source.draft_tokens else None)
        yield _row("", f"{source.source:<{longest}}  {source.draft_tokens} drafted, {kept} kept")
    for note in speculation.notes:
        yield _row("", note)
    if speculation.acceptance_by_position:
        yield _row("accepted", "by position in the draft")
    for place, rate in enumerate(speculation.acceptance_by_position, 1):
        yield _row(f"  {_ordinal(place)}", f"{_bar(rate, 1.0, _bar_width(width))}{_percent(rate)}")
    yield from _slots(status.slots, 0 if model is None else model.context, width)


def _allowed(budget: BudgetStatus) -> str:
    if budget.admit is False:
        return "nothing: no step runs, no request is admitted"
    k = "any K" if budget.num_draft_tokens is None else f"K <= {budget.num_draft_tokens}"
    pace = "" if not budget.pace_s else f", {1e3 * budget.pace_s:.0f} ms between steps"
    power = "" if budget.power_mw is None else f", {_watts(budget.power_mw)}"
    return f"{k}{power}{pace}"


def _ordinal(number: int) -> str:
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def _head(status: Status) -> Text:
    head = Text(f"edge-runtime {status.version}  ", "bold")
    head.append(status.state, _STATES.get(status.state, ""))
    head.append(f"  up {_duration(status.uptime_s)}", "not bold")
    return head


def _slots(slots: Sequence[SlotStatus], context: int, width: int) -> Iterator[Text]:
    for slot in slots:
        doing = "busy" if slot.busy else "free" if slot.idle_s is None else f"idle {_duration(slot.idle_s)}"
        bar = _bar(slot.tokens, context, _bar_width(width)) if context else ""
        yield _row(f"  slot {slot.slot}", f"{bar}{slot.tokens} tokens, {doing}")


def _row(label: str, text: str) -> Text:
    row = Text(f"{label:<{_LABEL}}", "cyan")
    row.append(shown(text), "default")
    return row


def _bar_width(width: int) -> int:
    """Bars give way first where there is little room."""
    return max(0, min(_BAR, width - _LABEL - 24))


def _bar(value: float, most: float, width: int) -> str:
    """With eighths of a character, and a space behind it."""
    if width < 4:
        return ""
    eighths = round(8 * width * min(max(value / most, 0.0), 1.0))
    whole, part = divmod(eighths, 8)
    return (_FULL * whole + (_PARTS[part] if part else "")).ljust(width) + " "


def _number(value: float | None, unit: str = "", digits: int = 0) -> str:
    if value is None:
        return "-"
    # Milliseconds of a fast model deserve their tenths.
    return f"{value:.{digits or (1 if abs(value) < 100 and isinstance(value, float) else 0)}f}{unit}"


def _percent(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:.0%}"


def _watts(milliwatts: int | None) -> str:
    return "-" if milliwatts is None else f"{milliwatts / 1000:.1f} W"


def _bytes(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"


def _duration(seconds: float) -> str:
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"
