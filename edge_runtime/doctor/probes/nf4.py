"""bitsandbytes: 4-bit products (nf4), with the settings of the engine: blocks of 64, scales that are not packed again.

Its wheels may hold no code for a board's accelerator. They import well all the same, and fail when the first kernel is
launched.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..outcome import Product, Request
from .matrices import Matrix, columns_of, float_matrix
from .telling import Absent, Teller, run_as_probe
from .torch_floats import copies_of, measure, torch_for

_SMALL = 256
_SEED = 7
_BLOCK = 64


def probe(request: Request, teller: Teller) -> None:
    teller.stage("import")
    torch = torch_for(request.device, teller)
    try:
        import bitsandbytes
    except ModuleNotFoundError as problem:
        if problem.name != "bitsandbytes":
            raise
        raise Absent("bitsandbytes") from None
    teller.versions(bitsandbytes=bitsandbytes.__version__)
    teller.stage("first kernel")
    small = _measure(torch, request, (_SMALL, _SMALL), 2, 0.0)
    if not small.right:
        teller.product(small)
    teller.launched()
    for shape in request.shapes:
        teller.stage(f"nf4 products of {shape[0]} x {shape[1]}")
        teller.product(_measure(torch, request, shape, request.rows, request.measure_s))


def _measure(torch: Any, request: Request, shape: tuple[int, int], rows: int, budget_s: float) -> Product:
    import bitsandbytes
    from bitsandbytes import functional

    inner, outer = shape
    activations = torch.float16 if request.device == "cuda" else torch.float32
    values = float_matrix(_SEED, inner, outer, "float32").stored[0]
    weights = torch.from_numpy(np.ascontiguousarray(values.T)).to(request.device, activations)
    packed, state = functional.quantize_4bit(weights, blocksize=_BLOCK, quant_type="nf4", compress_statistics=False)
    columns = columns_of(outer)
    # The reference is what it unpacks to by itself, in float64 on the processor.
    unpacked = functional.dequantize_4bit(packed, state)[torch.from_numpy(columns).to(request.device)]
    stored = (packed.cpu().numpy(), state.absmax.cpu().numpy())
    matrix = Matrix(inner, outer, stored, unpacked.float().cpu().numpy().T, columns)
    copies = [packed.clone() for _ in range(copies_of(matrix, request, budget_s))]

    def multiply(copy: int, given: Any) -> Any:
        return bitsandbytes.matmul_4bit(given, copies[copy].t(), quant_state=state)

    return measure(request, "nf4", matrix, multiply, rows, budget_s)


if __name__ == "__main__":
    run_as_probe(probe)
