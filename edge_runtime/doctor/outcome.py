"""What a probe is asked, what it tells line by line, and how it ended. Knows no process and no engine.

A probe may end at any moment, by itself or not; what it told before that counts all the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Literal

Ending = Literal["finished", "absent", "failed", "crashed", "hung", "stuck", "memory"]
"""``absent``: its package is not installed. ``crashed``: by a signal, or without a word. ``hung``: past its time.
``stuck``: and even SIGKILL did not end it. ``memory``: past its memory, or ended by the system."""
Device = Literal["cpu", "cuda"]
Kind = Literal["float32", "float16", "int8", "int4", "nf4"]
FLOATS: tuple[Kind, ...] = ("float16", "float32")


@dataclass(frozen=True, slots=True)
class Request:
    """Of one probe."""

    device: Device = "cpu"
    shapes: tuple[tuple[int, int], ...] = ()
    """(inner, outer) of the products to measure."""
    rows: int = 8
    """Most rows of a product: 1 to this many are measured."""
    block_size: int = 64
    """Values that share a scale."""
    measure_s: float = 1.0
    """For one product at all its rows, or for one copy: about so long."""
    copy_bytes: int = 128 << 20
    """Of the buffer that is copied."""
    environment: dict[str, str] = field(default_factory=dict)
    """Beside what the doctor itself runs in."""
    bundle: str | None = None
    """Directory of a bundle, of whose target one layer is compared; a made-up layer where there is none."""


@dataclass(frozen=True, slots=True)
class Accelerator:
    """As the probe's own library sees it."""

    name: str
    compute: str
    """Compute capability: ``8.7``."""
    free_bytes: int
    total_bytes: int | None = None
    """``None``: not told."""
    multiprocessors: int | None = None


@dataclass(frozen=True, slots=True)
class Product:
    """Rows x [inner, outer], its weights read from memory and not from a cache."""

    kind: Kind
    device: Device
    inner: int
    outer: int
    weight_bytes: int
    seconds: tuple[float, ...]
    """[rows] of 1, 2, ... rows."""
    difference: float | None
    """Largest |difference| from float64 on the same weights, over the largest |value|; ``None``: not finite."""
    tolerance: float

    @property
    def right(self) -> bool:
        return self.difference is not None and self.difference <= self.tolerance


@dataclass(frozen=True, slots=True)
class Copy:
    """Of a buffer; each byte is read once and written once."""

    what: str
    size_bytes: int
    seconds: float

    @property
    def gb_s(self) -> float:
        """Of what memory moves: twice the buffer."""
        return 2e-9 * self.size_bytes / self.seconds


@dataclass(frozen=True, slots=True)
class LayerResult:
    """One layer, against the same layer computed another way on the processor."""

    what: str
    against: str
    difference: float | None
    """Largest |difference|; ``None``: not finite."""
    largest: float
    """Largest |value| of the reference."""
    tolerance: float
    """Of ``difference / largest``."""
    of_bundle: bool
    seconds: tuple[float, ...] = ()
    """[rows] of 1, 2, ... rows."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line that a probe tells: one of its fields."""

    stage: str | None = None
    """What it does from now on."""
    versions: dict[str, str] | None = None
    accelerator: Accelerator | None = None
    launched_s: float | None = None
    """Since its start, when the first result was there and right."""
    product: Product | None = None
    copy: Copy | None = None
    layer: LayerResult | None = None
    note: str | None = None
    absent: str | None = None
    """Package that is not installed."""
    failed: str | None = None
    finished: bool = False


@dataclass(frozen=True, slots=True)
class Told:
    """All that one probe has told."""

    versions: dict[str, str] = field(default_factory=dict)
    accelerator: Accelerator | None = None
    launched_s: float | None = None
    products: tuple[Product, ...] = ()
    copies: tuple[Copy, ...] = ()
    layers: tuple[LayerResult, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    probe: str
    ended: Ending
    stage: str
    """The last one: where it ended."""
    said: str
    """What went wrong, in its own words: an exception, or the end of its stderr; empty where nothing did."""
    seconds: float
    signal: str | None = None
    """``SIGSEGV``, where one ended it."""
    told: Told = field(default_factory=Told)


def told(lines: tuple[Line, ...]) -> Told:
    """Figures without a time, and layers without a size, are none: they become notes."""
    versions: dict[str, str] = {}
    for line in lines:
        versions |= line.versions or {}
    accelerators = [line.accelerator for line in lines if line.accelerator is not None]
    launches = [line.launched_s for line in lines if line.launched_s is not None]
    products = [line.product for line in lines if line.product is not None]
    copies = [line.copy for line in lines if line.copy is not None]
    layers = [line.layer for line in lines if line.layer is not None]
    notes = [line.note for line in lines if line.note is not None]
    notes += [f"{one.kind} of {one.inner} x {one.outer}: no time was measured" for one in products if not _timed(one)]
    notes += [f"{one.what}: no time was measured" for one in copies if not one.seconds > 0.0]
    return Told(
        versions,
        accelerators[-1] if accelerators else None,
        launches[0] if launches else None,
        tuple(one for one in products if _timed(one)),
        tuple(one for one in copies if one.seconds > 0.0),
        tuple(one if all(second > 0.0 for second in one.seconds) else replace(one, seconds=()) for one in layers),
        tuple(notes),
    )


def _timed(product: Product) -> bool:
    return bool(product.seconds) and all(0.0 < one < math.inf for one in product.seconds)
