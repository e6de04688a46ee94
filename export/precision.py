"""From a precision's name to how each matrix is stored. Knows tensors and block formats, no graph and no bundle."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from edge_runtime.errors import CheckpointError, ConfigError

from .checkpoint import TensorSource
from .device_weights import store_columns
from .gguf_blocks import BlockWeights, carry
from .quantize import int4, int8, to_float16
from .recipe import ExportRecipe, Precision
from .weights import Blocks, Columns, Dense, Quantiser, Stored, WeightFile, store_blocks, store_dense

Floats = NDArray[np.float32]
Rounding = Callable[[Floats], BlockWeights]


def store_product(
    file: WeightFile,
    sources: Sequence[TensorSource],
    precision: Precision,
    recipe: ExportRecipe,
    *,
    table: bool = False,
    row_ids: NDArray[np.int64] | None = None,
    rounding: Rounding | None = None,
) -> tuple[Stored, ...]:
    """Store the stacked rows of ``sources``; several parts where their block formats differ.

    ``table``: the embedding, which is also the head; its rows are gathered and so never transposed.
    ``rounding`` replaces the rounding of int4 (calibrated weights, say).
    """
    if precision in ("fp32", "fp16"):
        dtype = "float32" if precision == "fp32" else "float16"
        convert = to_float16 if precision == "fp16" else _as_is
        return (store_dense(file, sources, convert, dtype, transposed=not table, row_ids=row_ids),)
    if precision == "exact":
        floats = [source.name for source in sources if source.raw_blocks(0, 1) is None]
        if len(floats) == len(sources):
            return (store_dense(file, sources, _as_is, "float32", transposed=not table, row_ids=row_ids),)
        if floats:
            raise CheckpointError(f"exact: {floats[0]} is stored as floats and its neighbours as blocks")
        runs = groupby(sources, key=_carried_layout)
        return tuple(store_blocks(file, list(run), _carry, row_ids) for _, run in runs)
    _refuse_ragged(sources, recipe.scale_block)
    quantise = _rounded(rounding or rounding_of(precision, recipe))
    return (store_blocks(file, sources, quantise, row_ids),)


def store_for_device(
    file: WeightFile,
    sources: Sequence[TensorSource],
    precision: Precision,
    recipe: ExportRecipe,
    *,
    table: bool = False,
    row_ids: NDArray[np.int64] | None = None,
    rounding: Rounding | None = None,
) -> Dense | Columns:
    """As ``store_product``, in the layouts of the TensorRT dialect: fp32, fp16 or int4."""
    if precision == "int4":
        _refuse_ragged(sources, recipe.scale_block)
        return store_columns(file, sources, _rounded(rounding or rounding_of(precision, recipe)), row_ids)
    (part,) = store_product(file, sources, precision, recipe, table=table, row_ids=row_ids)
    assert isinstance(part, Dense), "floats"
    return part


def refuse_mixed(role: str, precision: Precision, head_precision: Precision, half: bool) -> None:
    """Floats of another width than the activations would need a second graph. Raises ``ConfigError``."""
    if "fp32" in (precision, head_precision) and half:
        raise ConfigError(f"{role}: fp32 weights do not go with half: true")
    if head_precision == "fp16" and not half:
        raise ConfigError(f"{role}: a head in fp16 needs half: true")


def rounding_of(precision: Precision, recipe: ExportRecipe, importance: Floats | None = None) -> Rounding:
    """``importance`` [K]: mean square of each input, from calibration."""
    if precision == "int8":
        return lambda rows: int8(rows, recipe.scale_block)
    return lambda rows: int4(rows, recipe.scale_block, symmetric=recipe.without_zero_points, importance=importance)


def _as_is(rows: Floats) -> Floats:
    return rows


def _rounded(rounding: Rounding) -> Quantiser:
    return lambda source, start, stop: rounding(source.rows(start, stop))


def _carry(source: TensorSource, start: int, stop: int) -> BlockWeights:
    raw = source.raw_blocks(start, stop)
    assert raw is not None
    return carry(source.kind, raw, source.shape[1])


def _carried_layout(source: TensorSource) -> tuple[int, int, bool]:
    part = _carry(source, 0, 1)
    return part.bits, part.block_size, part.zero_points is not None


def _refuse_ragged(sources: Sequence[TensorSource], block_size: int) -> None:
    for source in sources:
        if source.shape[1] % block_size:
            raise CheckpointError(f"{source.name}: {source.shape[1]} columns do not divide into blocks of {block_size}")


def cuda_notes(stored: Iterable[Sequence[Stored]]) -> Iterator[str]:
    """Which products miss onnxruntime's way to multiply several rows by 4- or 8-bit weights as they are, on CUDA.

    Beside it there is a fast way for one row; more rows first expand the whole matrix, so that verifying a draft costs
    several plain steps. The conditions are those of its full build (compact ones take blocks of 32).
    """
    missed: dict[str, int] = {}
    for parts in stored:
        reasons = {reason for part in parts if isinstance(part, Blocks) for reason in _slow_on_cuda(part)}
        for reason in reasons:
            missed[reason] = missed.get(reason, 0) + 1
    for reason, count in sorted(missed.items()):
        yield f"{count} products are slow on CUDA for several rows at once: {reason}"


def _slow_on_cuda(part: Blocks) -> Iterator[str]:
    step = 64 if part.bits == 4 else 32
    if part.block_size not in (64, 128):
        yield f"blocks of {part.block_size}, not 64 or 128 (block_size)"
    if part.zero_points is not None:
        yield "zero points (symmetric: true has none)"
    if part.rows % step:
        yield f"rows that are no multiple of {step}"
    if part.columns % part.block_size:
        yield "columns that do not divide into blocks"


def precision_notes(precision: Precision, stored: Mapping[str, Sequence[Stored]]) -> Iterator[str]:
    """What an ``exact`` export could not carry exactly, one line a kind of weight."""
    if precision != "exact":
        return
    inexact: dict[str, float] = {}
    for name, parts in stored.items():
        for part in parts:
            error = getattr(part, "max_error", 0.0)
            if error > 0.0:
                kind = name.split(".")[-1]
                inexact[kind] = max(inexact.get(kind, 0.0), error)
    for kind, error in sorted(inexact.items()):
        yield f"{kind}: blocks with a minimum carried in 8 bits, off by at most {error:.2e}"
