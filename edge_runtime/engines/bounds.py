"""What callers of any engine may not ask for. Knows no engine."""

from __future__ import annotations

from collections.abc import Sequence

from .protocol import EngineInfo, HeadRequest, Ids, StepInput


def refuse_step(step: StepInput, info: EngineInfo) -> None:
    """A slot, a number of rows or a position out of range. Raises ``ValueError``."""
    count = len(step.tokens)
    if not (0 <= step.slot < info.slots and 1 <= count <= info.max_rows):
        raise ValueError(f"slot {step.slot} of {info.slots}, {count} rows of at most {info.max_rows}")
    if not 0 <= step.position <= info.capacity - count:
        raise ValueError(f"tokens [{step.position}, {step.position + count}) leave a slot of {info.capacity}")


def refuse_lanes(steps: Sequence[StepInput], info: EngineInfo, most_head_rows: int) -> None:
    """Lanes that share a slot, are more or longer than fit, or ask for what lanes do not do. Raises ``ValueError``."""
    for step in steps:
        refuse_step(step, info)
        if step.parents is not None or step.hidden is not None:
            raise ValueError("no trees and no hidden rows in lanes")
        if step.head is not None:
            refuse_head(step.head, len(step.tokens), most_head_rows)
    slots = [step.slot for step in steps]
    if not 1 <= len(slots) <= info.lanes or len(set(slots)) < len(slots):
        raise ValueError(f"slots {slots}: 1 to {info.lanes} of them, all different")
    rows = sum(max(len(step.tokens), info.min_rows) for step in steps)
    heads = [max(step.head.stop - step.head.first, info.min_rows) for step in steps if step.head is not None]
    # A lone step is padded whatever it asked for.
    if len(steps) > 1 and (rows > info.max_rows or sum(heads) > most_head_rows):
        most = f"at most {info.max_rows} and {most_head_rows}"
        raise ValueError(f"{rows} rows and {sum(heads)} head rows of {len(steps)} lanes: {most}")


def refuse_tokens(tokens: Ids, rows: int) -> None:
    """Ids that an embedding of ``rows`` rows has none for. Raises ``ValueError``."""
    if int(tokens.min()) < 0 or int(tokens.max()) >= rows:
        raise ValueError(f"a token id is outside the {rows} rows of the embedding")


def refuse_slot(slot: int, info: EngineInfo) -> None:
    """Raises ``ValueError``."""
    if not 0 <= slot < info.slots:
        raise ValueError(f"slot {slot} of {info.slots}")


def refuse_prefix(source: int, target: int, count: int, info: EngineInfo) -> None:
    """Raises ``ValueError``."""
    if not (0 <= source < info.slots and 0 <= target < info.slots and 0 <= count <= info.capacity):
        raise ValueError(f"{count} entries of slot {source} into slot {target}: {info.slots} of {info.capacity}")


def refuse_path(slot: int, position: int, rows: Ids, info: EngineInfo) -> None:
    """Rows of a path that do not rise, or that leave the slot. Raises ``ValueError``."""
    refuse_slot(slot, info)
    known = rows.tolist()
    if any(one >= other for one, other in zip([-1, *known[:-1]], known, strict=True)):
        raise ValueError("the rows of a path do not rise")
    if not 0 <= position <= info.capacity - (known[-1] + 1 if known else 0):
        raise ValueError(f"rows of a path from {position} on leave a slot of {info.capacity}")


def refuse_head(request: HeadRequest, rows: int, most: int) -> None:
    """Rows that the last forward did not make, of which there are ``rows``, or more than ``most`` at a time; ids to
    gather that are not one for each of them. Raises ``ValueError``.
    """
    count = request.stop - request.first
    if not 0 <= request.first < request.stop <= rows or count > most:
        raise ValueError(f"head rows [{request.first}, {request.stop}) of {rows}, at most {most} of them")
    if request.gather_ids is not None and len(request.gather_ids) != count:
        raise ValueError(f"{len(request.gather_ids)} ids to gather from {count} head rows")
