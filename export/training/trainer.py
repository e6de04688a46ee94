"""The training loop: steps, what is shown of them, and checkpoints to go on from. Knows no corpus and no command line.

A run is a function of its plan and its data; time only says when the learning rate has fallen and when it ends, and
the seconds spent are part of the state. A plan in steps instead of hours is exactly repeatable, stops included.
"""

from __future__ import annotations

import io
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from pickle import PickleError
from typing import Any

import numpy as np
import torch
from torch import Tensor

from edge_runtime.errors import ConfigError, first_line, why
from edge_runtime.files import whole

from .arrays import DAMAGED
from .batches import Batches, Cursor, Micro
from .drafter import Params, Start, TextRows, drafts
from .labels import JudgedBy, Labels
from .loss import HeadLoss, LossWeights, cosine_loss, head_loss
from .muon import State, fresh_state, update

STATE_NAME = "state.pt"


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    hours: float | None = None
    steps: int | None = None
    """Either of the two ends the run."""
    self_fed: int = 2
    """Draft steps that are trained, the first of which reads the target's own row."""
    matrix_rate: float = 3e-3
    projection_share: float = 0.04
    """Of the matrices' rate: it starts from the ridge solution, near where it should be."""
    vector_rate: float = 2e-3
    warmup_steps: int = 20
    constant_until: float = 0.4
    """Of the run; then the rate falls linearly to ``final_share``."""
    final_share: float = 0.02
    averaged: float = 0.97
    """Decay of the average of the weights, which is what is tried and kept."""
    micro_batches: int = 2
    other_rows: int | None = 2048
    """Of the head, beside a text's best ones; ``None``: all."""
    loss: LossWeights = field(default_factory=LossWeights)
    check_every_s: float = 300.0
    check_every_steps: int | None = None


@dataclass(slots=True)
class Progress:
    """What a run has come to; all of it is in its checkpoint."""

    step: int = 0
    tokens: int = 0
    elapsed_s: float = 0.0
    cursor: Cursor = field(default_factory=Cursor)
    history: list[dict[str, Any]] = field(default_factory=list)
    """One entry a check: what was shown."""


@dataclass(frozen=True, slots=True)
class Seen:
    """Of one step, by draft position."""

    cross_entropy: tuple[float, ...]
    acceptance: tuple[float, ...]


_OF_PICKLES: tuple[type[Exception], ...] = (AttributeError, IndexError, AssertionError, PickleError)
_DAMAGED = DAMAGED + _OF_PICKLES

Check = Callable[["Trainer"], dict[str, Any]]
"""Tries the averaged weights, keeps them where they are the best so far, and returns what is to be remembered."""


def stored_state(directory: Path, device: torch.device) -> dict[str, Any] | None:
    """What an earlier run left in ``directory``. Raises ``ConfigError`` where that is something else."""
    path = directory / STATE_NAME
    if not path.is_file():
        return None
    try:
        found: Any = torch.load(path, map_location=device, weights_only=True)
        if isinstance(found, dict) and {"params", "average", "optimiser", "token_ids", "progress"} <= set(found):
            return found
        problem = "parts are missing"
    except _DAMAGED as error:
        problem = first_line(error)
    raise ConfigError(f"{path}: not a checkpoint of a training run ({problem})")


class Trainer:
    def __init__(
        self,
        start: Start,
        params: Params,
        embed: Tensor,
        batches: Batches,
        labels: Sequence[Labels] | None,
        plan: TrainingPlan,
        directory: Path,
    ) -> None:
        """``labels``: by part, where the plan judges by some rows of the head."""
        self.start, self.plan, self.directory = start, plan, directory
        self.params = {name: p.detach().clone().requires_grad_() for name, p in params.items()}
        self.average = {name: p.detach().clone() for name, p in params.items()}
        self.progress = Progress()
        self._optimiser: State = fresh_state(self.params)
        self._embed, self._batches, self._labels = embed, batches, labels

    def resume(self, found: dict[str, Any]) -> None:
        """From what :func:`stored_state` read. Raises ``ConfigError`` for the state of another drafter."""
        state = self.directory / STATE_NAME
        try:
            stored, known = found["params"], dict(found["progress"])
            wanted = {name: p.shape for name, p in self.params.items()}
            same_head = torch.equal(found["token_ids"], self.start.token_ids)
            same = same_head and {name: p.shape for name, p in stored.items()} == wanted
            progress = Progress(**{**known, "cursor": Cursor(**known["cursor"])})
        except (AttributeError, KeyError, TypeError, ValueError) as problem:
            raise ConfigError(f"{state}: not a checkpoint of a training run ({why(problem)})") from None
        if not same:
            raise ConfigError(f"{state} is of a drafter of another shape or head: choose another output, or remove it")
        with torch.no_grad():
            for name, p in self.params.items():
                p.copy_(stored[name])
        self.average, self._optimiser, self.progress = found["average"], found["optimiser"], progress

    def run(self, check: Check, tell: Callable[[Progress, Seen, float], None]) -> None:
        """To the end of the plan; ``tell`` hears of every step and of the share of the run that is done."""
        checked_at, last = self.progress.elapsed_s, time.monotonic()
        while self.share_done() < 1.0:
            seen = self._step()
            now = time.monotonic()
            self.progress.elapsed_s += now - last
            last = now
            tell(self.progress, seen, self.share_done())
            every = self.plan.check_every_steps
            due = self.progress.elapsed_s - checked_at >= self.plan.check_every_s
            due = due or (every is not None and self.progress.step % every == 0)
            if due or self.share_done() >= 1.0:
                self.progress.history.append(self._entry(seen) | check(self))
                self._save()
                # Neither trying nor saving is training: a slow disk must not eat up the hours.
                checked_at, last = self.progress.elapsed_s, time.monotonic()

    def share_done(self) -> float:
        plan, progress = self.plan, self.progress
        share = 0.0 if plan.steps is None else progress.step / plan.steps
        return share if plan.hours is None else max(share, progress.elapsed_s / (3600 * plan.hours))

    def _step(self) -> Seen:
        plan, progress = self.plan, self.progress
        losses = []
        for _ in range(plan.micro_batches):
            micro = self._batches.next(progress.cursor)
            losses.append(self._learn(micro, self._read(micro)))
        progress.step += 1
        with torch.no_grad():
            for p in self.params.values():
                if p.grad is not None:
                    p.grad /= plan.micro_batches
        update(self.params, self._optimiser, progress.step, self._rates())
        with torch.no_grad():
            # Early averages must not remember the start.
            decay = min(plan.averaged, progress.step / (progress.step + 9))
            for name, p in self.params.items():
                self.average[name].lerp_(p.detach(), 1 - decay)
                p.grad = None
        entropy = np.mean([loss.cross_entropy for loss in losses], axis=0)
        acceptance = np.mean([loss.acceptance for loss in losses], axis=0)
        return Seen(tuple(entropy.tolist()), tuple(acceptance.tolist()))

    def _learn(self, micro: Micro, texts: TextRows) -> HeadLoss:
        outputs = drafts(self.start, self.params, texts, self.plan.self_fed)
        judged = self._judged(micro)
        loss = head_loss(self.start, [y.detach() for y in outputs], texts.hidden, self.plan.loss, judged)
        roots: list[Tensor] = list(outputs)
        gradients: list[Tensor | None] = list(loss.gradients)
        if self.plan.loss.cosine:
            roots.append(cosine_loss(self.start, outputs, texts.hidden, self.plan.loss))
            gradients.append(None)
        torch.autograd.backward(roots, gradients)
        self.progress.tokens += len(micro.rows) * self._batches.parts[micro.part].length
        return loss

    def _judged(self, micro: Micro) -> list[JudgedBy] | None:
        if self.plan.other_rows is None or self._labels is None:
            return None
        labels, cursor = self._labels[micro.part], self.progress.cursor
        random = np.random.default_rng([cursor.epoch, cursor.index])
        return [labels.judged_by(int(row), self.plan.other_rows, random, self.start.head.device) for row in micro.rows]

    def _read(self, micro: Micro) -> TextRows:
        part, device = self._batches.parts[micro.part], self.start.head.device
        ids = torch.from_numpy(part.tokens[micro.rows].astype(np.int64)).to(device)
        hidden = torch.from_numpy(part.hidden[micro.rows].astype(np.float32)).to(device)
        return TextRows(self._embed[ids] * self.start.config.embed_scale, hidden)

    def _rates(self) -> dict[str, float]:
        plan, share = self.plan, self.share_done()
        fall = min(1.0, (1.0 - share) / (1.0 - plan.constant_until))
        scale = min(1.0, self.progress.step / plan.warmup_steps) * max(plan.final_share, fall)
        rates = {}
        for name, p in self.params.items():
            rate = plan.vector_rate if p.ndim == 1 else plan.matrix_rate
            rates[name] = scale * rate * (plan.projection_share if name == "projection" else 1.0)
        return rates

    def _entry(self, seen: Seen) -> dict[str, Any]:
        progress = self.progress
        return {
            "step": progress.step,
            "tokens": progress.tokens,
            "elapsed_s": round(progress.elapsed_s, 1),
            "cross_entropy": [round(value, 4) for value in seen.cross_entropy],
        }

    def _save(self) -> None:
        """Whole or not at all: the old one stays until the new one is on the disk."""
        progress = self.progress
        state = {
            "params": {name: p.detach() for name, p in self.params.items()},
            "average": self.average,
            "optimiser": self._optimiser,
            "token_ids": self.start.token_ids,
            "progress": {
                "step": progress.step,
                "tokens": progress.tokens,
                "elapsed_s": progress.elapsed_s,
                "cursor": {"epoch": progress.cursor.epoch, "index": progress.cursor.index},
                "history": progress.history,
            },
        }
        # In memory first: of a disk that is full torch says only that something failed.
        made = io.BytesIO()
        torch.save(state, made)
        with whole(self.directory / STATE_NAME) as partial, partial.open("wb") as out:
            out.write(made.getbuffer())
            out.flush()
            os.fsync(out.fileno())
