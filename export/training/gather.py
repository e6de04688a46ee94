"""Makes the features: natural texts as they are and texts drawn from the target, with the target's rows on both.

Knows no drafter. Four parts, in the order in which they are wanted: what is held out first, then natural and drawn
texts in turn, so that whatever is there when time is up is a fair mixture. Beside them the statistics that the ridge
solution of the projection needs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from edge_runtime.files import whole
from export.tokenizer import TokenizerModel

from .arrays import read_array, read_arrays
from .corpus import Ids, Segments
from .features import Part, open_part
from .layer import rms_norm
from .target import TorchTarget

NATURAL, DRAWN, HELD_NATURAL, HELD_DRAWN = "natural", "drawn", "held-natural", "held-drawn"
STATISTICS_NAME, FREQUENCY_NAME = "start.npz", "frequency.npy"

_PROMPT_LENGTHS = (32, 8, 64, 16, 96)
_HEAD_ROWS_AT_ONCE = 128
_RANK_OFFSET = 2000.0

ProgressCall = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class GatherPlan:
    tokens: int
    """To train on, natural and drawn."""
    drawn_share: float = 0.4
    natural_length: int = 512
    drawn_length: int = 256
    held_tokens: int = 8192
    """Of each kind."""
    drawn_rows: int = 65_536
    """Tokens that texts to train on are drawn from, the most frequent ones: the whole head would take most of the time.
    Held-out texts are drawn from all."""
    batch_tokens: int = 2048
    drawn_batch: int = 64
    statistics_tokens: int = 32_768


@dataclass(frozen=True, slots=True)
class Gathering:
    """What gathering works on."""

    directory: Path
    target: TorchTarget
    tokenizer: TokenizerModel
    segments: Segments
    plan: GatherPlan
    seed: int
    made_from: dict[str, Any]
    progress: ProgressCall

    def run(self, stop_at_s: float) -> None:
        """Until all is there, or ``time.monotonic()`` passes ``stop_at_s`` and each part has something."""
        plan, length = self.plan, self.plan.natural_length
        vocab_size = self.target.config.vocab_size
        # Of the whole corpus: what is trained on is too little to say which rows a head needs.
        with whole(self.directory / FREQUENCY_NAME) as partial:
            np.save(partial, np.bincount(self.segments.train.ravel(), minlength=vocab_size))
        held = max(1, plan.held_tokens // length)
        self._natural(self.part(HELD_NATURAL, held, length), self.segments.held, held)
        drawn_held = self.part(HELD_DRAWN, max(1, plan.held_tokens // plan.drawn_length), plan.drawn_length)
        while drawn_held.done < drawn_held.size:
            self._draw(drawn_held, self.segments.held, self._rows(vocab_size))
        natural = self.part(NATURAL, self._natural_rows(), length)
        drawn = self.part(DRAWN, max(1, int(plan.tokens * plan.drawn_share) // plan.drawn_length), plan.drawn_length)
        rows = self._rows(plan.drawn_rows)
        while natural.done < natural.size or drawn.done < drawn.size:
            self._tell(natural, drawn)
            if time.monotonic() >= stop_at_s and natural.done and drawn.done:
                break
            # Whichever lags behind its own plan.
            if natural.done * drawn.size <= drawn.done * natural.size and natural.done < natural.size:
                self._natural(natural, self.segments.train, min(natural.size, natural.done + self._batch()))
            else:
                self._draw(drawn, self.segments.train, rows)
        self._tell(natural, drawn)

    def part(self, name: str, rows: int, length: int) -> Part:
        made_from = {**self.made_from, "corpus": self.segments.digest, "seed": self.seed, "kind": name}
        width = self.target.config.hidden_size
        return open_part(self.directory / name, rows, length, width, made_from, held=name.startswith("held"))

    def _natural_rows(self) -> int:
        wanted = int(self.plan.tokens * (1 - self.plan.drawn_share)) // self.plan.natural_length
        return max(1, min(wanted, len(self.segments.train)))

    def _batch(self) -> int:
        return max(1, self.plan.batch_tokens // self.plan.natural_length)

    def _tell(self, natural: Part, drawn: Part) -> None:
        done = natural.done * natural.length + drawn.done * drawn.length
        self.progress("features", done, natural.size * natural.length + drawn.size * drawn.length)

    def _natural(self, part: Part, segments: Ids, stop: int) -> None:
        while part.done < min(stop, part.size):
            first = part.done % len(segments)
            rows = segments[first : min(first + self._batch(), first + stop - part.done)]
            ids = torch.from_numpy(rows).to(self.target.device)
            with torch.inference_mode():
                found = self.target.hidden(ids)
                if part.normaliser is None:
                    self._learn_start(ids, found.hidden, found.before_last)
                part.append(rows, _numpy(found.hidden), *self._laws(part, found.hidden))

    def _draw(self, part: Part, segments: Ids, rows: Tensor) -> None:
        batch = part.done // self.plan.drawn_batch
        # By the batch and not by what came before: a run that was stopped draws the same texts.
        random = np.random.default_rng([self.seed, len(part.directory.name), batch])
        generator = torch.Generator(self.target.device).manual_seed(int(random.integers(1 << 62)))
        count = min(self.plan.drawn_batch, part.size - part.done)
        length = min(_PROMPT_LENGTHS[batch % len(_PROMPT_LENGTHS)], part.length // 2)
        picked = segments[random.integers(len(segments), size=count)]
        # A begin-of-text id and a cut of the text that starts anywhere.
        starts = random.integers(1, picked.shape[1] - length + 1, size=count)
        prompts = np.stack([row[at : at + length - 1] for row, at in zip(picked, starts, strict=True)])
        prompts = np.concatenate([picked[:, :1], prompts], axis=1)
        with torch.inference_mode():
            given = torch.from_numpy(prompts).to(self.target.device)
            ids, hidden = self.target.draw(given, part.length, rows, generator)
            part.append(_numpy(ids), _numpy(hidden), *self._laws(part, hidden))

    def _rows(self, count: int) -> Tensor:
        seen = read_array(self.directory / FREQUENCY_NAME, (self.target.config.vocab_size,))
        ids = frequent_ids(count, seen, self.tokenizer)
        return torch.from_numpy(ids[~np.isin(ids, self.tokenizer.control_ids)]).to(self.target.device)

    def _laws(self, part: Part, hidden: Tensor) -> tuple[Any, ...]:
        """Log-sum-exp and argmax over the whole vocabulary of the rows as they are stored."""
        if part.normaliser is None:
            return ()
        flat = hidden.flatten(0, 1).to(torch.float16).to(torch.float32)
        sums, best = [], []
        for chunk in flat.split(_HEAD_ROWS_AT_ONCE):
            logits = self.target.logits(chunk, self.target.embed)
            sums.append(logits.logsumexp(-1))
            best.append(logits.argmax(-1))
        shape = hidden.shape[:2]
        return _numpy(torch.cat(sums).view(shape)), _numpy(torch.cat(best).view(shape))

    def _learn_start(self, ids: Tensor, hidden: Tensor, before_last: Tensor) -> None:
        """Normal equations of [embedding; row] -> the stream that enters the target's last layer one token later."""
        path = self.directory / STATISTICS_NAME
        known = read_arrays(path, ("gram", "cross", "count")) if path.is_file() else {}
        if known and known["count"] >= self.plan.statistics_tokens:
            return
        config = self.target.config
        embedded = self.target.embed[ids[:, 1:]] * config.embed_scale
        ones = torch.ones(config.hidden_size, device=self.target.device)
        given = torch.cat([rms_norm(embedded, ones, config.rms_eps), hidden[:, :-1] / self.target.final_norm], dim=-1)
        x, y = given.flatten(0, 1), before_last[:, 1:].flatten(0, 1)
        new = {"gram": _numpy(x.T @ x).astype(np.float64), "cross": _numpy(x.T @ y).astype(np.float64)}
        new["count"] = np.array(len(x))
        with whole(path) as partial:
            np.savez(partial, **{name: value + known.get(name, 0) for name, value in new.items()})


def projection_start(directory: Path, ridge: float = 1e-3) -> Tensor:
    """[B, 2 B]: the ridge solution; ``ridge`` is relative to the mean square of an input."""
    known = read_arrays(directory / STATISTICS_NAME, ("gram", "cross"))
    gram, cross = known["gram"], known["cross"]
    gram[np.diag_indices(len(gram))] += ridge * np.trace(gram) / len(gram)
    return torch.from_numpy(np.linalg.solve(gram, cross).T.astype(np.float32))


def frequent_ids(count: int, seen: Ids, tokenizer: TokenizerModel) -> Ids:
    """[count] the most frequent token ids by how often they were ``seen`` [vocab], rising; end-of-text ids are among
    them, other control pieces come last.

    Ids of Gemma's vocabulary are roughly by frequency, which ranks what a corpus leaves open. Of 3.7 million tokens
    (measured) this weight of it covers .893 of the target's law with 16,384 rows, ten times as much .862.
    """
    vocab_size = len(seen)
    score = seen / max(1, seen.sum()) + 0.05 / (np.arange(vocab_size) + _RANK_OFFSET)
    score[[i for i in tokenizer.control_ids if i < vocab_size]] = -1.0
    score[list(tokenizer.eos_ids)] = np.inf
    best: Ids = np.argsort(-score, kind="stable")[: min(count, vocab_size)].astype(np.int64)
    return np.sort(best)


def _numpy(values: Tensor) -> Any:
    return values.cpu().numpy()
