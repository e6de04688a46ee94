"""The power mode and the configured limits, against what the board is and what is read there. Pure, as ``checks`` is.

A configuration that names a power has chosen its mode: nothing here advises another one that it does not need.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..boards import Board, PowerMode, plain_mode_name
from ..config import BudgetConfig, Config
from ..telemetry.sample import Sample
from .finding import Check
from .machine import Machine

_IDLE_LOAD = 0.2
"""Of the accelerator: with less, what is read is what the board has without work."""
_BELOW_TRIP_C = 5.0
_WORTH_A_CAP = 1.5
"""Of the power without work: a cap below that leaves next to nothing to compute with."""
_STEP_MW = 500


def mode_checks(machine: Machine, config: Config | None) -> Iterator[Check]:
    board, sample = machine.identity.board, machine.sample
    name = None if sample is None else sample.power_mode
    if name is None:
        yield Check("power mode", "problem", "no power mode is set", "sudo nvpmodel -q; sudo nvpmodel -m ID")
        return
    mode = None if board is None else board.mode(name)
    if board is None or mode is None:
        yield Check("power mode", "ok", name)
        return
    limit = None if config is None else config.budget.power_mw
    wanted = _recommended(board, limit)
    fix = f"sudo nvpmodel -m {wanted.id}  ({wanted.name})"
    if plain_mode_name(name).startswith("MAXN"):
        yield _uncapped(name, over_current(sample), wanted, fix)
    elif limit is None and mode.gpu_mhz < wanted.gpu_mhz:
        text = f"{name} holds the accelerator at {mode.gpu_mhz:g} MHz; {wanted.name} allows {wanted.gpu_mhz:g}"
        yield Check("power mode", "advice", text, fix)
    else:
        yield Check("power mode", "ok", name)
    if limit is not None and mode.budget_w is not None and limit > 1000 * mode.budget_w:
        text = f"budget.power_mw is {limit} mW, and {name} caps the board at {mode.budget_w:g} W before that"
        lower = f"budget.power_mw: {int(1000 * mode.budget_w)} or less"
        stronger = wanted.budget_w is not None and wanted.budget_w > mode.budget_w
        yield Check("power limit", "advice", text, f"{fix}, or {lower}" if stronger else lower)


def _uncapped(name: str, events: str, wanted: PowerMode, fix: str) -> Check:
    if events:
        text = f"{name}, and over-current protection has cut in ({events}): it has no cap on power"
        return Check("power mode", "problem", text, fix)
    text = f"{name} has no cap on power: over-current protection may cut in; {wanted.name} makes more of a joule"
    return Check("power mode", "advice", text, fix)


def _recommended(board: Board, power_mw: int | None) -> PowerMode:
    """The weakest that leaves room for what is configured; without that the strongest with a cap."""
    capped = {mode.budget_w: mode for mode in board.modes if mode.budget_w is not None}
    if not capped:
        return board.default
    enough = [watts for watts in capped if power_mw is not None and 1000 * watts >= power_mw]
    if enough:
        return capped[min(enough)]
    return max(capped.values(), key=lambda mode: (mode.gpu_mhz, mode.budget_w or 0.0))


def over_current(sample: Sample | None) -> str:
    events = () if sample is None else sample.throttling.over_current_events
    return ", ".join(f"{name} {count} times" for name, count in events if count)


def limit_checks(machine: Machine, config: Config | None, recorded: Sequence[Sample]) -> Iterator[Check]:
    """``recorded``: what is to be replayed, where it could be read."""
    if config is None:
        return
    budget = config.budget
    samples = _readings(machine, budget, recorded)
    if samples is not None and budget.power_mw is not None and all(one.power_mw is None for one in samples):
        yield _blind("power limit", f"budget.power_mw is {budget.power_mw} mW", "the power", budget)
    if samples is not None and budget.temperature_c is not None and not any(one.zones for one in samples):
        limit = f"budget.temperature_c is {budget.temperature_c:g} C"
        yield _blind("temperature limit", limit, "a temperature", budget)
    if machine.sample is not None and budget.telemetry != "replay":
        yield from _beyond_the_board(machine.sample, budget)


def _readings(machine: Machine, budget: BudgetConfig, recorded: Sequence[Sample]) -> Sequence[Sample] | None:
    """Like those that the daemon will have; ``None``: that cannot be told here."""
    if budget.telemetry == "replay":
        return recorded or None
    near = () if machine.sample is None else (machine.sample,)
    if budget.telemetry == "sysfs":
        return near
    if budget.telemetry == "jtop" or (machine.jtop is not None and machine.jtop.kind == "answers"):
        return None  # whether it answers is a check of its own, and it may know what the files do not tell
    return near if machine.identity.tegra else ()


def _blind(name: str, limit: str, what: str, budget: BudgetConfig) -> Check:
    text = (
        f"{limit}, and nothing here tells {what}: the daemon goes on blindly, K <= {budget.blind_draft_tokens}, "
        f"{budget.blind_duty:.0%} of the time"
    )
    key = limit.split()[0]
    return Check(name, "problem", text, f"make it readable (edge-runtime telemetry), or take out {key}")


def _beyond_the_board(sample: Sample, budget: BudgetConfig) -> Iterator[Check]:
    """Limits that bind always, or never."""
    idle = (sample.gpu.load or 0.0) < _IDLE_LOAD
    limit_mw, limit_c, hottest = budget.power_mw, budget.temperature_c, sample.hottest
    if limit_mw is not None and sample.power_mw is not None and limit_mw <= sample.power_mw and idle:
        text = f"budget.power_mw is {limit_mw} mW, and the board draws {sample.power_mw} without work: no step can run"
        least = -(-int(_WORTH_A_CAP * sample.power_mw) // _STEP_MW) * _STEP_MW
        yield Check("power limit", "problem", text, f"budget.power_mw: {least} or more")
    if limit_c is None:
        return
    trip_c = sample.throttling.passive_trip_c
    if trip_c is not None and limit_c >= trip_c:
        text = f"budget.temperature_c is {limit_c:g} C, and the board clocks down by itself at {trip_c:g} before that"
        yield Check("temperature limit", "advice", text, f"budget.temperature_c: {trip_c - _BELOW_TRIP_C:g} or less")
    if hottest is not None and hottest.temperature_c >= limit_c and idle:
        text = f"budget.temperature_c is {limit_c:g} C, and {hottest.name} has {hottest.temperature_c:.1f} without work"
        yield Check("temperature limit", "problem", f"{text}: no step can run", "a higher one, or better cooling")
