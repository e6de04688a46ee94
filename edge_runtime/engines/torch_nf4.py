"""The NF4 engine: torch, transformers and bitsandbytes behind the protocol. Knows no text and no sampling.

For memory and for the first source article's recipe, not for speed: a 4-bit product here reads its weights twice. Its
caches are its own and of fixed size; a forward says where it stands, and rolling back is passing a smaller position.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..bundle import TREE_ROWS, Manifest, Model
from ..errors import ConfigError, EngineError, first_line
from ..resident import give_pages_back
from ..tree import attends, depths
from .bounds import refuse_head, refuse_path, refuse_prefix, refuse_slot, refuse_step, refuse_tokens
from .kept_rows import KeptRows
from .ort_settings import OrtSettings
from .protocol import EngineInfo, Floats, HeadOutput, HeadRequest, Ids, StepInput, StepOutput
from .token_ids import head_rows, read_token_ids
from .torch_nf4_model import Nf4Model, Sight, require_packages, try_product


class Nf4Engine:
    """Implements ``engines.protocol.Engine``."""

    def __init__(self, directory: Path, manifest: Manifest, role: str, settings: OrtSettings) -> None:
        """``settings.gpu_memory_bytes``: most that torch may allocate there, of all engines of this process.

        Raises ``BundleError`` (a file that does not load) and ``ConfigError`` (settings, packages, device).
        """
        model = manifest.model(role)
        _refuse(role, model, settings)
        torch, _ = require_packages()
        self._torch, self._settings = torch, settings
        _limit(torch, settings)
        try_product(settings.device)
        windows = [layer.window for layer in model.layers]
        self._token_ids = read_token_ids(directory, model)
        with _told():
            self._model = Nf4Model(directory / model.body, settings.device, windows, model.vocab_size)
            self._cache = _Cache(torch, model, settings)
            self._hidden = torch.zeros((settings.max_rows, model.hidden_size), device=settings.device)
            self._logits = torch.zeros((settings.max_head_rows, model.vocab_size), device=settings.device)
        self._windows = frozenset(windows)
        self._rows = 0
        """Of the last forward."""
        self._head_rows = 0
        shape = (settings.slots, settings.capacity, model.hidden_size)
        self._kept = KeptRows(shape if settings.keeps_hidden else None)
        self._info = EngineInfo(
            vocab_size=model.vocab_size,
            hidden_size=model.hidden_size,
            capacity=settings.capacity,
            slots=settings.slots,
            max_rows=settings.max_rows,
            candidates=model.candidates,
            min_rows=1,
            token_ids=self._token_ids,
            keeps_hidden=settings.keeps_hidden,
            trees=True,
        )

    @property
    def info(self) -> EngineInfo:
        return self._info

    def forward(self, step: StepInput) -> StepOutput:
        info, count = self._info, len(step.tokens)
        refuse_step(step, info)
        if step.parents is not None and not len(step.parents) == count <= TREE_ROWS:
            raise ValueError(f"a tree of {len(step.parents)} parents and {count} tokens")
        if step.hidden is not None:
            raise ValueError("this engine takes no hidden rows")
        refuse_tokens(step.tokens, self._model.tokens)
        places, sight = look(step.position, count, step.parents, self._windows)
        # A copy: torch warns of arrays that it might write to and must not.
        tokens = np.array(step.tokens, np.int64)
        with _told(), self._torch.inference_mode():
            rows = self._model.body(tokens, places, step.position, self._cache.slot(step.slot), sight)
            self._hidden[:count] = rows
            hidden: Floats = rows.cpu().numpy()
        self._rows = count
        self._kept.write(step.slot, step.position, hidden)
        return StepOutput(None if step.head is None else self.head(step.head), hidden)

    def head(self, request: HeadRequest) -> HeadOutput:
        first, stop, ids = request.first, request.stop, request.gather_ids
        refuse_head(request, self._rows, self._settings.max_head_rows)
        wanted = None if ids is None else head_rows(self._token_ids, ids, self._info.vocab_size)
        torch = self._torch
        with _told(), torch.inference_mode():
            logits = self._logits[: stop - first]
            logits[...] = self._model.logits(self._hidden[first:stop])
            values, indices = torch.topk(logits, self._info.candidates, dim=-1)
            mass = torch.logsumexp(logits * request.inverse_temperature, dim=-1)
            gathered = None
            if wanted is not None:
                places = torch.from_numpy(np.array(wanted, np.int64)).to(logits.device)
                gathered = logits.gather(1, places[:, None])[:, 0].cpu().numpy()
            best: Ids = indices.cpu().numpy()
            if self._token_ids is not None:
                best = self._token_ids[best]
            self._head_rows = stop - first
            return HeadOutput(best[:, 0], best, values.cpu().numpy(), mass.cpu().numpy(), gathered)

    def logits(self, row: int) -> Floats:
        if not 0 <= row < self._head_rows:
            raise ValueError(f"row {row} of {self._head_rows}")
        with _told():
            found: Floats = self._logits[row].cpu().numpy()
        return found

    def copy_prefix(self, source: int, target: int, count: int) -> None:
        refuse_prefix(source, target, count, self._info)
        if source == target or not count:
            return
        with _told():
            self._cache.copy(source, target, count)
        self._kept.copy_prefix(source, target, count)

    def keep_path(self, slot: int, position: int, rows: Ids) -> None:
        refuse_path(slot, position, rows, self._info)
        with _told():
            self._cache.keep(slot, position, rows)
        self._kept.keep_path(slot, position, rows)

    def forget(self, slot: int) -> None:
        refuse_slot(slot, self._info)
        self._cache.forget(slot)
        self._kept.forget(slot)

    def hidden_rows(self, slot: int) -> Floats:
        refuse_slot(slot, self._info)
        return self._kept.of(slot)

    def close(self) -> None:
        """Free the model; closing twice is harmless, any other call afterwards an error."""
        for name in ("_model", "_cache", "_hidden", "_logits"):
            self.__dict__.pop(name, None)
        if self._settings.device == "cuda":
            self._torch.cuda.empty_cache()


class _Cache:
    """Keys and values of all slots. On a CPU in numpy's memory, whose untouched pages cost nothing."""

    def __init__(self, torch: Any, model: Model, settings: OrtSettings) -> None:
        self._arrays: list[NDArray[np.generic]] = []
        self._layers: list[Any] = []
        kind = np.dtype(model.kv_dtype)
        for layer in model.layers:
            shape = (settings.slots, 2, layer.kv_heads, settings.capacity, layer.head_dim)
            if settings.device == "cuda":
                self._layers.append(torch.zeros(shape, dtype=getattr(torch, model.kv_dtype), device="cuda"))
                continue
            array = np.zeros(shape, kind) if settings.cache == "as-used" else np.full(shape, 0, kind)
            self._arrays.append(array)
            self._layers.append(torch.from_numpy(array))

    def slot(self, slot: int) -> Sequence[tuple[Any, Any]]:
        return [(layer[slot, 0], layer[slot, 1]) for layer in self._layers]

    def copy(self, source: int, target: int, count: int) -> None:
        for layer in self._layers:
            layer[target, :, :, :count] = layer[source, :, :, :count]

    def keep(self, slot: int, position: int, rows: Ids) -> None:
        sources = (position + rows).tolist()
        for layer in self._layers:
            # Indexing by a list copies first: sources and targets may overlap.
            layer[slot, :, :, position : position + len(sources)] = layer[slot][:, :, sources]

    def forget(self, slot: int) -> None:
        for array in self._arrays:
            give_pages_back(array[slot])


def look(
    position: int, rows: int, parents: Ids | None, windows: frozenset[int | None]
) -> tuple[NDArray[np.int64], dict[int | None, Sight]]:
    """Where each of ``rows`` stands [rows], and what it sees, by window: itself, its ancestors, the text before."""
    known = list(range(-1, rows - 1)) if parents is None else parents.tolist()
    places = position + np.array(depths(known), np.int64)
    sees = attends(known)
    found: dict[int | None, Sight] = {}
    for window in windows:
        reach = position + rows if window is None else window
        first = max(0, position - reach + 1)
        text = places[:, None] - np.arange(first, position)[None, :] < reach
        own = sees & (places[:, None] - places[None, :] < reach)
        seen = np.concatenate([text, own], axis=1)
        found[window] = Sight(first, None if seen.all() else ~seen)
    return places, found


def _refuse(role: str, model: Model, settings: OrtSettings) -> None:
    if not 1 <= settings.capacity <= model.max_context:
        raise ConfigError(
            f"context of {settings.capacity} tokens: the {role} model of this bundle holds 1 to {model.max_context}"
        )
    if settings.deterministic:
        raise ConfigError("an nf4 bundle has no deterministic mode: its rows depend on how many of them run together")
    if model.shares is not None or model.hidden_input is not None:
        raise ConfigError(f"an nf4 bundle's {role} model must stand by itself")


def _limit(torch: Any, settings: OrtSettings) -> None:
    if settings.threads:
        # Of the process; nothing else here computes with torch.
        torch.set_num_threads(settings.threads)
    if settings.device == "cuda" and settings.gpu_memory_bytes is not None and torch.cuda.is_available():
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, settings.gpu_memory_bytes / total))


@contextmanager
def _told() -> Iterator[None]:
    """What torch raises as what an engine raises; out of memory is one of these."""
    try:
        yield
    except RuntimeError as problem:
        raise EngineError(f"torch: {first_line(problem)}") from problem
