"""Projections: texts decoded for real, on a clock that moves by what a board would take. Nothing here is measured.

A policy that goes by costs sees the board's, in its warm-up as in its steps, and decides by them; what it drafts is
then judged by the real target. So the acceptance is real, and the time is a curve's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import yaml

from ...bundle import TARGET, Manifest, Model
from ...engines.protocol import Engine, EngineInfo, Floats, HeadOutput, HeadRequest, Ids, StepInput, StepOutput
from ...errors import ConfigError
from ...loading import LoadedBundle
from ...schema import structure

_FILE = Path(__file__).parent.parent / "data" / "curves.yaml"


@dataclass(frozen=True, slots=True)
class Curve:
    name: str
    source: str
    rows_ms: dict[int, float]
    least_draft_share: float

    def step_s(self, rows: int) -> float:
        """Of a forward of so many rows, head included."""
        known = sorted(self.rows_ms)
        right = next((row for row in known[1:] if row >= rows), known[-1])
        left = known[known.index(right) - 1]
        slope = (self.rows_ms[right] - self.rows_ms[left]) / (right - left)
        value = self.rows_ms[left] + slope * (rows - left)
        return 1e-3 * max(value, self.rows_ms[known[0]])


def curves() -> tuple[Curve, ...]:
    data: list[Any] = yaml.safe_load(_FILE.read_text(encoding="utf-8"))
    return tuple(structure(Curve, item, ConfigError, _FILE.name) for item in data)


class VirtualClock:
    """Stands still until an engine is paid for."""

    def __init__(self) -> None:
        self._now_s = 0.0

    def __call__(self) -> float:
        return self._now_s

    def advance(self, seconds: float) -> None:
        self._now_s += seconds


class PricedEngine:
    """Implements ``engines.protocol.Engine``: another's answers at a curve's price; a forward pays for its head."""

    def __init__(self, inner: Engine, curve: Curve, clock: VirtualClock, share: float = 1.0) -> None:
        self._inner, self._curve, self._clock, self._share = inner, curve, clock, share

    def __getattr__(self, name: str) -> Any:
        # What an engine has beyond the protocol costs nothing here.
        return getattr(self._inner, name)

    @property
    def info(self) -> EngineInfo:
        return self._inner.info

    def forward(self, step: StepInput) -> StepOutput:
        output = self._inner.forward(step)
        self._clock.advance(self._share * self._curve.step_s(len(step.tokens)))
        return output

    def head(self, request: HeadRequest) -> HeadOutput:
        return self._inner.head(request)

    def logits(self, row: int) -> Floats:
        return self._inner.logits(row)

    def copy_prefix(self, source: int, target: int, count: int) -> None:
        self._inner.copy_prefix(source, target, count)

    def keep_path(self, slot: int, position: int, rows: Ids) -> None:
        self._inner.keep_path(slot, position, rows)

    def forget(self, slot: int) -> None:
        self._inner.forget(slot)

    def hidden_rows(self, slot: int) -> Floats:
        return self._inner.hidden_rows(slot)

    def close(self) -> None:
        """The inner one belongs to the bundle that it came from."""


def priced(bundle: LoadedBundle, curve: Curve, clock: VirtualClock) -> LoadedBundle:
    """The same bundle at a curve's price. Its engines are shared: close only the one it came from."""
    changes: dict[str, Any] = {}
    for field in fields(bundle):
        value = getattr(bundle, field.name)
        if _is_engine(value):
            share = draft_share(bundle.manifest, field.name, curve.least_draft_share)
            changes[field.name] = PricedEngine(value, curve, clock, share)
        elif isinstance(value, Mapping) and value and all(map(_is_engine, value.values())):
            changes[field.name] = {
                role: PricedEngine(
                    engine, curve, clock, draft_share(bundle.manifest, role, curve.least_draft_share)
                )
                for role, engine in value.items()
            }  # fmt: skip
    return replace(bundle, **changes)


def _is_engine(value: object) -> bool:
    return hasattr(value, "forward") and hasattr(value, "hidden_rows")


def draft_share(manifest: Manifest, role: str, least: float) -> float:
    """A forward of a model over one of the target, by the weights that a lone row reads; 1 for the target itself.

    Of the target's file it reads as many layers as it has, unless they are its own, and the head if it has no other.
    """
    if role == TARGET:
        return 1.0
    model, target = manifest.model(role), manifest.model(TARGET)
    sizes = {entry.name: entry.bytes for entry in manifest.files}
    head = _table_bytes(target)
    body = sum(sizes[name] for name in target.weights) - head
    if target.screen is not None:
        # A copy at half the bits lies beside the table, and it is what most rows read.
        body, head = body - head / 2, head / 2
    read = float(sum(sizes[name] for name in model.weights if name not in target.weights))
    if set(model.weights) & set(target.weights):
        # What takes the target's rows has layers of its own.
        read += body * len(model.layers) / len(target.layers) if model.hidden_input is None else 0.0
        read += head if model.vocab_size == target.vocab_size else 0.0
    return max(least, read / (body + head))


def _table_bytes(model: Model) -> float:
    if model.table:
        return float(sum(math.prod(one.shape) * (1 if one.dtype == "uint8" else 4) for one in model.table))
    return model.vocab_size * model.hidden_size * (2.0 if "16" in model.precision else 4.0)
