"""Muon for matrices and Adam for vectors. Knows no model.

Muon (Keller Jordan, 2024): the momentum of a matrix is replaced by the nearest orthogonal one, found by a few
Newton-Schulz rounds, so that every direction learns alike. Few steps are all that a CPU has, and it makes the most of
them. Written functionally: the state is a mapping of tensors, which a checkpoint stores as it is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

_MOMENTUM = 0.95
_BETAS, _EPS = (0.9, 0.99), 1e-8
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_ROUNDS = 4

State = dict[str, Tensor]


def fresh_state(params: Mapping[str, Tensor]) -> State:
    state: State = {}
    for name, p in params.items():
        state[f"{name}/mean"] = torch.zeros_like(p)
        if p.ndim == 1:
            state[f"{name}/square"] = torch.zeros_like(p)
    return state


def update(params: Mapping[str, Tensor], state: State, step: int, rates: Mapping[str, float]) -> None:
    """One step in place, by the gradients that the parameters hold; ``step`` counts from 1, ``rates`` are by name."""
    with torch.no_grad():
        for name, p in params.items():
            if p.grad is None:
                continue
            mean = state[f"{name}/mean"]
            if p.ndim == 1:
                _adam(p, p.grad, mean, state[f"{name}/square"], step, rates[name])
                continue
            mean.lerp_(p.grad, 1 - _MOMENTUM)
            ahead = p.grad.lerp(mean, _MOMENTUM)
            p.add_(orthogonal(ahead), alpha=-rates[name] * math.sqrt(max(1.0, p.shape[0] / p.shape[1])))


def orthogonal(matrix: Tensor) -> Tensor:
    """Singular values that were not tiny near 1, the singular vectors as they are.

    The rounds are polynomials of the same small Gram matrix, so they are multiplied up there, and the matrix itself,
    which may be three times as long as it is wide, is touched twice.
    """
    a, b, c = _COEFFICIENTS
    x = matrix.T if matrix.shape[0] > matrix.shape[1] else matrix
    x = x / (x.norm() + 1e-7)
    gram, one = x @ x.T, torch.eye(len(x), device=x.device)
    product = one
    for i in range(_ROUNDS):
        factor = a * one + b * gram + c * (gram @ gram)
        product = factor @ product if i else factor
        if i + 1 < _ROUNDS:
            gram = factor @ gram @ factor
    x = product @ x
    return x.T if matrix.shape[0] > matrix.shape[1] else x


def _adam(p: Tensor, grad: Tensor, mean: Tensor, square: Tensor, step: int, rate: float) -> None:
    mean.lerp_(grad, 1 - _BETAS[0])
    square.lerp_(grad.square(), 1 - _BETAS[1])
    scale = math.sqrt(1 - _BETAS[1] ** step) / (1 - _BETAS[0] ** step)
    p.addcdiv_(mean, square.sqrt().add_(_EPS), value=-rate * scale)
