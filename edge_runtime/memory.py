"""What a device has, whether what a bundle needs fits into it, and what to change where it does not. Pure: knows no
file and no engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from .bundle import TARGET, GraphNeeds, Manifest, Model, Product
from .needs import FLOAT, Load, Needs, needs, stored_bytes

IDLE_SYSTEM_BYTES = 500_000_000
"""Of a board that was not looked at: what a system without a desktop holds before anything is loaded. Assumed."""
RESERVE_BYTES = 800_000_000
"""What stays available to the system unless the configuration says otherwise."""
_GIGABYTE = 1e9
FREE_MEMORY = "free memory"
"""What a change begins with that is no setting."""
_TENTH = 100_000_000
"""Of a gigabyte: to which settings are advised."""


@dataclass(frozen=True, slots=True)
class Room:
    """What a device has."""

    name: str
    total: int
    available: int
    """Before the bundle is loaded."""
    reserve: int = RESERVE_BYTES
    """To be left available."""
    budget: int | None = None
    """Most for this process, as configured."""

    @property
    def budgeted(self) -> int:
        return max(0, self.total - self.reserve) if self.budget is None else self.budget

    @property
    def allowed(self) -> int:
        return min(self.budgeted, max(0, self.available - self.reserve))

    @property
    def most(self) -> int:
        """What could be available if nothing else ran."""
        return max(self.available, self.total - IDLE_SYSTEM_BYTES)


@dataclass(frozen=True, slots=True)
class Change:
    """One setting that would make it fit, or bring it nearer; or what else would."""

    what: str
    peak: int
    fits: bool


@dataclass(frozen=True, slots=True)
class Plan:
    load: Load
    needs: Needs
    room: Room
    changes: tuple[Change, ...]
    """Only where it does not fit."""

    @property
    def fits(self) -> bool:
        return self.needs.peak <= self.room.allowed

    @property
    def left(self) -> int:
        """Available to the system once it is loaded; negative: not even there."""
        return self.room.available - self.needs.peak


def plan(manifest: Manifest, load: Load, room: Room) -> Plan:
    """Before anything is loaded."""
    found = Plan(load, needs(manifest, load), room, ())
    return found if found.fits else replace(found, changes=tuple(_changes(manifest, load, room)))


# What to change


def _changes(manifest: Manifest, load: Load, room: Room) -> Iterator[Change]:
    def change(what: str, of: Manifest, how: Load) -> Change:
        peak = needs(of, how).peak
        return Change(what, peak, peak <= room.allowed)

    peak = needs(manifest, load).peak
    more, wasted = _more_room(peak, room), peak + room.reserve > room.available
    # What was budgeted on purpose is the last to be touched, what others take or a reserve keeps is the first.
    if more is not None and wasted:
        yield more
    context = _largest(1, load.context, lambda n: needs(manifest, load.of_context(n)).peak <= room.allowed)
    if context is not None:
        # Engines hold what they were built for, however little is asked of them.
        again = "" if load.built is None else f", and edge-runtime build --rebuild --context {context}"
        yield change(f"context: {context}{again}", manifest, load.of_context(context))
    sessions = _largest(1, load.sessions, lambda n: needs(manifest, replace(load, sessions=n)).peak <= room.allowed)
    if sessions is not None:
        yield change(f"sessions: {sessions}", manifest, replace(load, sessions=sessions))
    if load.roles:
        yield change("drafter: lookup (no drafter of the bundle)", manifest, replace(load, roles=()))
    other: Literal["screened", "full"] = "full" if load.head == "screened" else "screened"
    if manifest.models[TARGET].screen is not None and needs(manifest, replace(load, head=other)).peak < peak:
        yield change(f"head: {other}", manifest, replace(load, head=other))
    if load.suffix_tokens:
        yield change("suffix_tokens: 0", manifest, replace(load, suffix_tokens=0))
    smaller = in_four_bits(manifest)
    least = replace(load.of_context(min(load.context, 256)), sessions=1, roles=(), suffix_tokens=0)
    if smaller != manifest:
        # What is to be exported again is yet to be built.
        yield change("a bundle of precision int4", smaller, replace(load, built=None))
        least = replace(least, built=None)
    yield change(f"all of these: one session of {least.context} tokens, no drafter", smaller, least)
    if more is not None and not wasted:
        yield more


def _more_room(peak: int, room: Room) -> Change | None:
    """Where it is not the device that is too small but what the configuration, or other programs, leave of it."""
    reserve = min(room.reserve, RESERVE_BYTES)
    capped = room.budget is not None and peak > room.budget
    settings = [f"budget.memory_gb: {_gigabytes_up(peak)} or more"] if capped else []
    if peak + reserve <= room.available:
        if peak + room.reserve > room.available:
            settings.append(f"budget.reserve_gb: {_gigabytes_down(room.available - peak)} or less")
        return Change(" and ".join(settings), peak, True) if settings else None
    if peak + reserve <= room.most:
        if peak + room.reserve > room.most:
            settings.append(f"budget.reserve_gb: {_gigabytes_down(reserve)}")
        else:
            reserve = room.reserve
        there = f"{shown(room.available)} of {shown(room.total)} available, {shown(peak + reserve)} wanted"
        return Change(" and ".join([f"{FREE_MEMORY}: {there}", *settings]), peak, True)
    return None


def _gigabytes_up(size: int) -> str:
    return f"{-(-size // _TENTH) / 10:.1f}"


def _gigabytes_down(size: int) -> str:
    return f"{size // _TENTH / 10:.1f}"


def _largest(low: int, high: int, fits: Callable[[int], bool]) -> int | None:
    """The largest number in [low, high] that ``fits``, where smaller ones do too; ``None``: not even ``low``."""
    if low > high or not fits(low):
        return None
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def in_four_bits(manifest: Manifest) -> Manifest:
    """The same models with the products of their bodies in blocks of four bits, as ``int4`` stores them."""

    def of_model(model: Model) -> Model:
        heads = {model.head, *((model.screen.head,) if model.screen else ())}
        return replace(model, graphs=tuple(one if one.file in heads else _in_four_bits(one) for one in model.graphs))

    return replace(manifest, models={role: of_model(model) for role, model in manifest.models.items()})


def _in_four_bits(graph: GraphNeeds) -> GraphNeeds:
    wide = [of for of in graph.products if of.bits > 4]
    if not wide:
        return graph
    kept = tuple(of for of in graph.products if of.bits <= 4)
    values = sum(of.values for of in wide)
    scales = sum(FLOAT * of.values // of.block_size for of in wide if of.block_size)
    before = scales + sum(stored_bytes(of, of.values) for of in wide)
    after = values // 2 + values // 32 * FLOAT + values // 64
    made = Product(4, 32, values, max(of.largest for of in wide))
    return replace(graph, products=(*kept, made), stored=max(graph.table, graph.stored - before + after))


def shown(size: float) -> str:
    return f"{size / _GIGABYTE:.2f} GB" if abs(size) >= _GIGABYTE else f"{size / 1e6:.0f} MB"
