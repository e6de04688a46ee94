"""torch: a first product, and products in float16 on the accelerator (float32 on a processor)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from ..outcome import Accelerator, Copy, Device, Kind, Product, Request
from .matrices import Matrix, difference, float_matrix, rows_of
from .telling import Absent, Teller, run_as_probe
from .timing import best_of, time_each

_SMALL = 256
_SEED = 7
TOLERANCES: dict[Kind, float] = {"float32": 1e-4, "float16": 1e-2, "nf4": 1e-2}

Multiply = Callable[[int, Any], Any]
"""(copy of the matrix, rows) -> product"""


def probe(request: Request, teller: Teller) -> None:
    teller.stage("import")
    torch = torch_for(request.device, teller)
    kind: Kind = "float16" if request.device == "cuda" else "float32"
    teller.stage("first kernel")
    small = _measure(request, kind, (_SMALL, _SMALL), 2, 0.0)
    if not small.right:
        teller.product(small)
    teller.launched()
    for shape in request.shapes:
        teller.stage(f"{kind} products of {shape[0]} x {shape[1]}")
        teller.product(_measure(request, kind, shape, request.rows, request.measure_s))
    if request.device == "cuda":
        teller.stage("copies on the device")
        teller.copy(_device_copy(torch, request))


def torch_for(device: Device, teller: Teller) -> Any:
    """The package, once it is known to see the device. Raises ``Absent``."""
    try:
        import torch
    except ModuleNotFoundError as problem:
        if problem.name != "torch":
            raise
        raise Absent("torch") from None
    teller.versions(torch=torch.__version__)
    if device == "cpu":
        return torch
    if torch.version.cuda is None:
        raise Absent(f"torch with CUDA ({torch.__version__} is built for the processor alone)")
    # Where a driver is missing or refuses, this says why; is_available() would only say no.
    torch.cuda.init()
    found = torch.cuda.get_device_properties(0)
    free, total = torch.cuda.mem_get_info()
    teller.accelerator(Accelerator(found.name, f"{found.major}.{found.minor}", free, total))
    teller.note(f"torch {torch.__version__} holds code for {', '.join(torch.cuda.get_arch_list())}")
    return torch


def copies_of(matrix: Matrix, request: Request, budget_s: float) -> int:
    """As many matrices as one run multiplies by: torch on a processor reckons longer than it reads."""
    return matrix.copies if budget_s and request.device == "cuda" else 1


def measure(request: Request, kind: Kind, matrix: Matrix, multiply: Multiply, rows: int, budget_s: float) -> Product:
    """``multiply`` is handed rows on the device, in the type of the activations."""
    import torch

    activations = torch.float16 if request.device == "cuda" else torch.float32
    given = torch.from_numpy(rows_of(_SEED, rows, matrix.inner)).to(request.device, activations)
    copies = copies_of(matrix, request, budget_s)

    def run(count: int) -> None:
        for copy in range(copies):
            multiply(copy, given[:count])
        if request.device == "cuda":
            torch.cuda.synchronize()

    def off(count: int) -> float | None:
        result = multiply(0, given[:count]).float().cpu().numpy()
        return difference(matrix, given[:count].float().cpu().numpy(), result)

    with torch.inference_mode():
        seconds = time_each([functools.partial(run, count) for count in range(1, rows + 1)], budget_s)
        found = [off(count) for count in range(1, rows + 1)]
    worst = None if None in found else max(one for one in found if one is not None)
    return Product(
        kind, request.device, matrix.inner, matrix.outer, matrix.weight_bytes, tuple(one / copies for one in seconds),
        worst, TOLERANCES[kind],
    )  # fmt: skip


def _measure(request: Request, kind: Kind, shape: tuple[int, int], rows: int, budget_s: float) -> Product:
    import torch

    matrix = float_matrix(_SEED, *shape, kind)
    stored = torch.from_numpy(np.array(matrix.stored[0])).to(request.device)
    copies = [stored.clone() for _ in range(copies_of(matrix, request, budget_s))]
    return measure(request, kind, matrix, lambda copy, given: given @ copies[copy], rows, budget_s)


def _device_copy(torch: Any, request: Request) -> Copy:
    source = torch.zeros(request.copy_bytes, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)

    def run() -> None:
        target.copy_(source)
        torch.cuda.synchronize()

    return Copy("device to device, torch", request.copy_bytes, best_of(run, request.measure_s))


if __name__ == "__main__":
    run_as_probe(probe)
