"""The ONNX Runtime engine. Knows bound buffers and sessions, neither tokens' meaning nor sampling.

Three sessions per model: body (ids -> hidden rows), head (hidden rows -> logits), readout (logits -> a few numbers).
They hand each other buffers by address, so cutting the graph costs a few microseconds and no copy. Every shape T has
one cached binding per slot; a step writes three small host arrays and runs.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..bundle import TARGET, TREE_ROWS, Manifest, Model
from ..errors import ConfigError, EngineError, first_line
from .bounds import refuse_head, refuse_lanes, refuse_path, refuse_prefix, refuse_slot, refuse_step, refuse_tokens
from .even_rows import even, parts_of
from .ort_bindings import Bindings, BoundReadout
from .ort_lanes import LaneBindings
from .ort_memory import Arrays, bind_host
from .ort_replay import Replays
from .ort_session import Sessions, map_table, open_sessions, refuse_missing_provider
from .ort_settings import OrtSettings as OrtSettings
from .protocol import EngineInfo, Floats, HeadOutput, HeadRequest, Ids, LanesOutput, StepInput, StepOutput
from .token_ids import head_rows, read_token_ids

if TYPE_CHECKING:
    import onnxruntime


@dataclass(frozen=True, slots=True)
class _Read:
    """Rows that were read out together, of which the first ``pad`` are nobody's."""

    readout: BoundReadout
    first_logits: int
    pad: int
    count: int


class OrtEngine:
    """Implements ``engines.protocol.Engine``."""

    def __init__(
        self, directory: Path, manifest: Manifest, role: str, settings: OrtSettings, target: OrtEngine | None = None
    ) -> None:
        """``target``: whose caches a model with ``shares`` writes to; both must hold equal slots.

        Raises ``BundleError`` (a graph that does not load) and ``ConfigError`` (settings beyond the bundle).
        """
        model = manifest.model(role)
        if model.dialect != "ort":
            raise ConfigError(other_dialect(manifest, str(directory)))
        _refuse(role, model, settings)
        if model.shares is not None and target is not None:
            _refuse_other_slots(role, settings, target.info)
        self._model, self._settings = model, settings
        self._token_ids = read_token_ids(directory, model)
        self._arrays: Arrays = Arrays(model, settings, None if target is None else target._arrays)
        self._info = EngineInfo(
            vocab_size=model.vocab_size,
            hidden_size=model.hidden_size,
            capacity=settings.capacity,
            slots=settings.slots,
            max_rows=settings.max_rows,
            candidates=model.candidates,
            min_rows=2 if settings.deterministic else 1,
            token_ids=self._token_ids,
            hidden_input=model.hidden_input,
            keeps_hidden=settings.keeps_hidden,
            fan_out=model.fan_out,
            lanes=model.lanes.count if settings.lanes and model.lanes else 0,
            # Whether rows are the same bits whatever stands beside them was shown for chains only.
            trees=model.trees and settings.device == "cpu" and not settings.deterministic,
        )
        self.ran_s = 0.0
        """Seconds that graphs ran so far: what is beside them is ours."""
        self._cuda = settings.device == "cuda"
        self._replays = Replays(settings)
        self._table = {} if self._cuda else _shared_table(directory, model, settings, target)
        known = None if target is None else target._sessions
        self._sessions: Sessions = open_sessions(directory, model, settings, self._table, known)
        screen = model.screen if settings.head == "screened" else None
        self._bindings = Bindings(model, screen, self._arrays, self._sessions)
        # A gather of coded rows reads whatever lies there for an id that is none (measured with onnxruntime 1.23 on).
        self._embedded = manifest.models.get(TARGET, model).vocab_size
        self._lanes = LaneBindings(model, self._arrays, self._sessions.body) if settings.lanes else None
        self._reads: list[_Read] = []
        """Of ``logits``: what was read out last."""
        self._rows = 0
        """Of hidden rows that the last forward made."""

    @property
    def info(self) -> EngineInfo:
        return self._info

    def forward(self, step: StepInput) -> StepOutput:
        if self._lanes is not None:
            return self.forward_lanes((step,)).steps[0]
        count = len(step.tokens)
        info = self._info
        refuse_step(step, info)
        refuse_tokens(step.tokens, self._embedded)
        if step.parents is not None and not (info.trees and len(step.parents) == count <= TREE_ROWS):
            raise ValueError("no tree, or an engine without trees")
        parts = self._parts(step)
        if len(parts) > 1:
            return self._in_parts(step, parts)
        rows = self._padded(count)
        arrays = self._arrays
        # A padded row writes garbage K/V behind the last token, where the next forward writes anyway.
        arrays.ids[0, :count] = step.tokens
        arrays.ids[0, count:rows] = 0
        arrays.seqlens_k[0] = step.position + rows - 1
        arrays.total_length[0] = step.position + rows
        replay = self._replays.get(step.slot, rows)
        if replay is not None:
            # A graph keeps what it read on the host: the bound on all lengths, then, and seqlens_k says the length.
            arrays.total_length[0] = info.capacity + 1
        self._take_hidden(step.hidden, count, rows)
        biases = arrays.sight.look(step.position, rows, step.parents, arrays.position_ids)
        for run in self._bindings.forward(step.slot, rows):
            for name in run.biases:
                bind_host(run.binding.bind_input, name, biases[name], biases[name].shape)
            self._run(run.session, run.binding, run.pushed, replay)
        hidden = arrays.hidden.host(rows * info.fan_out)[: count * info.fan_out]
        arrays.kept.write(step.slot, step.position, hidden)
        return self._output(step, hidden)

    def _in_parts(self, step: StepInput, parts: Sequence[StepInput]) -> StepOutput:
        """As one forward, whose rows lie one behind the other."""
        hidden, feeds = [], []
        for part in parts:
            output = self.forward(part)
            hidden.append(output.hidden.copy())
            feeds.append(None if output.feed is None else output.feed.copy())
        rows = self._arrays.hidden.host(len(step.tokens) * self._info.fan_out)
        rows[:] = np.concatenate(hidden)
        told = [feed for feed in feeds if feed is not None]
        if told and self._arrays.feed is not None:
            self._arrays.feed.host(len(step.tokens))[:] = np.concatenate(told)
        return self._output(step, rows)

    def _output(self, step: StepInput, hidden: Floats) -> StepOutput:
        arrays, self._rows = self._arrays, len(hidden)
        head = None if step.head is None else self.head(step.head)
        feed = arrays.feed.host(len(step.tokens)) if self._bindings.feeds and arrays.feed is not None else None
        return StepOutput(head, hidden, feed)

    def _parts(self, step: StepInput) -> list[StepInput]:
        # What the parts are cut by is the processor's.
        return parts_of(step) if self._info.min_rows > 1 and not self._cuda else [step]

    def _padded(self, count: int) -> int:
        return even(count) if self._info.min_rows > 1 else count

    def forward_lanes(self, steps: Sequence[StepInput]) -> LanesOutput:
        """As ``LanesEngine``. Raises ``ValueError`` for an engine without lanes."""
        if self._lanes is None:
            raise ValueError("an engine without lanes")
        info, arrays = self._info, self._arrays
        refuse_lanes(steps, info, self._settings.max_head_rows)
        before, lasts = self._run_before(steps)
        counts = [self._padded(len(step.tokens)) for step in lasts]
        firsts = [0, *itertools.accumulate(counts)]
        for step, first, count in zip(lasts, firsts, counts, strict=False):
            refuse_tokens(step.tokens, self._embedded)
            arrays.ids[0, first : first + count] = 0
            arrays.ids[0, first : first + len(step.tokens)] = step.tokens
        slots = tuple(step.slot for step in lasts)
        self._run(self._sessions.body, self._lanes.bind(slots, [step.position for step in lasts], counts), ())
        hidden = arrays.hidden.host(firsts[-1])
        for step, first in zip(lasts, firsts, strict=False):
            arrays.kept.write(step.slot, step.position, hidden[first : first + len(step.tokens)])
        if any(map(len, before)):
            spans = itertools.pairwise(firsts)
            lanes = [np.concatenate((rows, hidden[a:b])) for rows, (a, b) in zip(before, spans, strict=True)]
            firsts = [0, *itertools.accumulate(map(len, lanes))]
            hidden = arrays.hidden.host(firsts[-1])
            hidden[:] = np.concatenate(lanes)
        # Behind the last lane's own rows there is nothing that anybody may read.
        self._rows = firsts[-2] + len(steps[-1].tokens)
        own = [hidden[first : first + len(step.tokens)] for step, first in zip(steps, firsts, strict=False)]
        heads = self._lane_heads(steps, hidden, firsts)
        outputs = tuple(StepOutput(head, rows) for head, rows in zip(heads, own, strict=True))
        return LanesOutput(outputs, tuple(firsts[:-1]))

    def _run_before(self, steps: Sequence[StepInput]) -> tuple[list[Floats], list[StepInput]]:
        """The last part of each step, and the rows of those before it, which are run now."""
        parts = [self._parts(step) for step in steps]
        none: Floats = np.zeros((0, self._info.hidden_size), np.float32)
        before = [
            np.concatenate([none, *(self.forward_lanes((part,)).steps[0].hidden.copy() for part in more[:-1])])
            for more in parts
        ]
        return before, [more[-1] for more in parts]

    def _lane_heads(self, steps: Sequence[StepInput], hidden: Floats, firsts: Sequence[int]) -> list[HeadOutput | None]:
        """One head for the rows of all lanes; readouts one by one, since each lane has its temperature."""
        picked, start = self._arrays.picked, 0
        assert picked is not None  # it goes with lanes
        spans: list[tuple[int, int, int] | None] = []
        for step, begin in zip(steps, firsts, strict=False):
            if step.head is None:
                spans.append(None)
                continue
            first, stop, pad = self._head_rows(step.head)
            picked.host(stop - first, start)[:] = hidden[begin + first : begin + stop]
            spans.append((start, stop - first, pad))
            start += stop - first
        self._reads.clear()
        if start:
            self._run(self._sessions.head, self._bindings.picked_head(start), ())
        found: list[HeadOutput | None] = []
        for step, span in zip(steps, spans, strict=True):
            if step.head is None or span is None:
                found.append(None)
                continue
            first, count, pad = span
            found.append(self._read(step.head, self._bindings.picked_readout(first, count), first, pad))
        return found

    def _head_rows(self, request: HeadRequest) -> tuple[int, int, int]:
        """(first, stop, rows before the first that was asked for): the deterministic mode pads an odd number with a
        neighbour, which may be a row that is nobody's."""
        first, stop = request.first, request.stop
        if stop - first == self._padded(stop - first):
            return first, stop, 0
        return (first - 1, stop, 1) if first > 0 else (first, stop + 1, 0)

    def head(self, request: HeadRequest) -> HeadOutput:
        refuse_head(request, self._rows, self._settings.max_head_rows)
        first, stop, pad = self._head_rows(request)
        count = stop - first
        self._run(self._sessions.head, self._bindings.head(first, count), (), self._replays.get(first, count, "head"))
        self._reads.clear()
        return self._read(request, self._bindings.readout(first, count), 0, pad)

    def _read(self, request: HeadRequest, readout: BoundReadout, first_logits: int, pad: int) -> HeadOutput:
        """Logits from ``first_logits`` on, of which the first ``pad`` rows are nobody's."""
        arrays, count = self._arrays, request.stop - request.first
        arrays.inverse_temperature[...] = request.inverse_temperature
        if request.gather_ids is not None:
            rows = head_rows(self._token_ids, request.gather_ids, self._info.vocab_size)
            arrays.gather_rows[pad : pad + len(rows), 0] = rows
        self._run(self._sessions.readout, readout.binding, ("inverse_temperature", "gather_rows"))
        self._reads.append(_Read(readout, first_logits, pad, count))
        return readout.cut(pad, count, request.gather_ids is not None)

    def logits(self, row: int) -> Floats:
        for read in self._reads:
            if row < read.count:
                break
            row -= read.count
        else:
            raise ValueError("a row that the last head did not read out")
        index = read.pad + row
        logits: Floats = self._arrays.logits.host(1, read.first_logits + index)[0]
        readout = read.readout
        if readout.rescored_rows is not None and readout.rescored_logits is not None:
            logits = logits.copy()
            logits[readout.rescored_rows[index]] = readout.rescored_logits[index]
        return logits

    def copy_prefix(self, source: int, target: int, count: int) -> None:
        refuse_prefix(source, target, count, self._info)
        if source != target and count:
            self._arrays.copy_prefix(source, target, count)

    def keep_path(self, slot: int, position: int, rows: Ids) -> None:
        if not self._info.trees:
            raise ValueError("this engine runs no trees")
        refuse_path(slot, position, rows, self._info)
        self._arrays.keep_path(slot, position, rows)

    def forget(self, slot: int) -> None:
        refuse_slot(slot, self._info)
        self._arrays.forget(slot)

    def hidden_rows(self, slot: int) -> Floats:
        refuse_slot(slot, self._info)
        return self._arrays.kept.of(slot)

    def close(self) -> None:
        """Free the sessions; closing twice is harmless, any other call afterwards an error."""
        for name in ("_lanes", "_reads", "_bindings", "_sessions", "_table", "_arrays"):
            self.__dict__.pop(name, None)

    def _take_hidden(self, given: Floats | None, count: int, rows: int) -> None:
        place = self._arrays.hidden_in
        if place is None:
            if given is not None:
                raise ValueError("this engine takes no hidden rows")
            return
        if given is None or given.shape != (count, place.shape[2]):
            shape = None if given is None else given.shape
            raise ValueError(f"{count} tokens need hidden rows of {place.shape[2]}, not {shape}")
        place[0, :count] = given
        place[0, count:rows] = 0.0

    def _run(
        self,
        session: onnxruntime.InferenceSession,
        binding: onnxruntime.IOBinding,
        pushed: tuple[str, ...],
        options: onnxruntime.RunOptions | None = None,
    ) -> None:
        if self._cuda:
            for name in pushed:
                self._arrays.push(name)
        started = time.perf_counter()
        try:
            session.run_with_iobinding(binding, options)
            self.ran_s += time.perf_counter() - started
        except Exception as problem:  # onnxruntime raises its own classes, unrelated to each other
            raise EngineError(f"onnxruntime: {first_line(problem)}") from problem


def other_dialect(manifest: Manifest, place: str) -> str:
    """What is said of a bundle whose graphs are for TensorRT, where there is no engine of its own yet, or are none."""
    if manifest.model(TARGET).dialect == "nf4":
        return f"bundle {manifest.name!r} is for torch and bitsandbytes (backend nf4), not for ONNX Runtime"
    return (
        f"bundle {manifest.name!r} holds graphs for TensorRT: `edge-runtime build {place}` makes an engine of them on "
        "the board; backend reference tries them on this CPU, slowly"
    )


def _refuse(role: str, model: Model, settings: OrtSettings) -> None:
    """What the bundle or the machine cannot do."""
    if not 1 <= settings.capacity <= model.max_context:
        raise ConfigError(
            f"context of {settings.capacity} tokens: the {role} model of this bundle holds 1 to {model.max_context}"
        )
    if settings.threads > (most := 4 * (os.cpu_count() or 1)):
        raise ConfigError(f"{settings.threads} threads: at most {most} on this machine")
    if settings.lanes and (model.lanes is None or settings.device != "cpu"):
        raise ConfigError(
            "steps of several sessions at once need a bundle exported with `lanes: N` in its recipe, and the CPU"
        )
    refuse_missing_provider(settings.device)
    if settings.device == "cuda" and model.kv_dtype != "float16":
        # CUDA has no float32 attention over a cache: the CPU would run it, and copy the cache every step.
        raise ConfigError(f"device 'cuda' needs a bundle with half: true or precision fp16, not a {role} in float32")


def _refuse_other_slots(role: str, settings: OrtSettings, target: EngineInfo) -> None:
    if (settings.slots, settings.capacity) != (target.slots, target.capacity):
        wanted = f"{target.slots} slots of {target.capacity}"
        raise ValueError(f"the {role} model shares {wanted}, not {settings.slots} of {settings.capacity}")


def _shared_table(
    directory: Path, model: Model, settings: OrtSettings, target: OrtEngine | None
) -> dict[str, onnxruntime.OrtValue]:
    """The target's mapping where it is of the same bytes."""
    if target is not None and model.table and model.table == target._model.table:
        return target._table
    return map_table(directory, model, settings)
