"""What a bundle needs in memory once it is loaded. Pure: knows no file, no engine, and no device that it must fit into.

Bytes are those that stay resident in one process, its own and mapped ones. They follow from what an engine is given;
how far a process agrees is told by ``edge-runtime plan --measure``. No board has confirmed those of CUDA.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from .bundle import TARGET, GraphNeeds, Manifest, Model, Product

FLOAT = 4
_BESIDE_A_BLOCK = 8
"""Bytes that an engine on a CPU packs with a block: its scale once more, and the sum that its zero point is due."""
_PROCESS = {"cpu": 100_000_000, "cuda": 1_000_000_000}
"""Interpreter, libraries and server; with CUDA also its context, assumed."""
_TORCH = 450_000_000  # and transformers and bitsandbytes, on top
_OF_TOKENIZER = 9
"""Bytes in memory to a byte of its file."""
_GRAMMAR_PER_PIECE = 250
"""Tables that the first structured answer builds."""
_SUFFIX_PER_TOKEN = 36
_OF_WIDEST, _OF_HIDDEN = 2.5, 6.0
"""Rows of a body's activations that exist at a time, in widths of its widest product and of its hidden row."""
_LOGITS_OF_READOUT = 2.0
"""Copies of the logits that a readout makes."""
_RESCORED = 2.0
"""Copies of the rows that a screened head scores again."""
_GUESSED = 1.3
"""Memory to a byte of a weight file, where the bundle does not say what is in it."""
_WIDENED = 3
"""Memory to a byte that graphs for TensorRT store where onnxruntime runs them on a CPU: halves become floats too."""


@dataclass(frozen=True, slots=True)
class BuiltModel:
    """Bytes of one model's TensorRT engines, as the record of their build tells them."""

    role: str
    plans: int
    """Of the plan files: weights and kernels, of which the device holds a copy."""
    capacity: int
    """Tokens that a session's cache holds, however few are asked for."""
    slot: int
    """Of a session's caches; 0 where the target's are used."""
    scratch: int
    """What the larger of its graphs computes in; models that run in turn have one block."""
    logits: int
    buffers: int
    """New rows, and what host and device exchange, at both ends."""


@dataclass(frozen=True, slots=True)
class Built:
    """Engines that are there, in place of what a manifest lets expect of them."""

    where: str
    """They were built, and by what: in words."""
    models: tuple[BuiltModel, ...]

    def model(self, role: str) -> BuiltModel:
        return next(one for one in self.models if one.role == role)

    def of_context(self, context: int) -> Built:
        """Built again for a smaller one."""
        return replace(self, models=tuple(_of_context(one, context) for one in self.models))


def _of_context(model: BuiltModel, context: int) -> BuiltModel:
    capacity = min(context, model.capacity)
    return replace(model, capacity=capacity, slot=-(-model.slot * capacity // model.capacity))


@dataclass(frozen=True, slots=True)
class Load:
    """How a bundle is loaded, as far as it costs memory."""

    context: int
    sessions: int
    roles: tuple[str, ...] = ()
    """Of the drafters."""
    head: Literal["screened", "full"] = "screened"
    device: Literal["cpu", "cuda"] = "cpu"
    rows: int = 64
    """Of a prefill chunk."""
    head_rows: int = 8
    """Rows that the target's logits are held of."""
    suffix_tokens: int = 0
    built: Built | None = None
    """Of a bundle for TensorRT."""
    not_built: str | None = None
    """Why it is reckoned from its manifest, in words."""

    def of_context(self, context: int) -> Load:
        return replace(self, context=context, built=None if self.built is None else self.built.of_context(context))


@dataclass(frozen=True, slots=True)
class ModelNeeds:
    """Bytes of one engine."""

    role: str
    weights: int
    """That nothing else could use: packed, or on the device."""
    mapped: int
    """Pages of its files, which the kernel may take back and must then read again."""
    kv: int
    hidden: int
    """Rows that are kept behind the entries of the cache, for drafters."""
    scratch: int
    logits: int
    packing: int
    """More than ``weights`` while these are packed: a matrix is there twice for a moment."""

    @property
    def total(self) -> int:
        return self.weights + self.mapped + self.kv + self.hidden + self.scratch + self.logits


@dataclass(frozen=True, slots=True)
class Needs:
    models: tuple[ModelNeeds, ...]
    process: int
    tokenizer: int
    suffix: int
    grammar: int
    """Not before the first structured answer."""
    looked_up: int
    """Tables of which a step reads a few rows: mapped, and not counted."""
    exact: bool
    """``False``: a guess from its size: the bundle does not say what its graphs need, or an engine is yet to be built
    of them."""

    @property
    def loaded(self) -> int:
        """After loading and its warm-up; nothing but ``grammar`` comes on top."""
        return self.process + self.tokenizer + self.suffix + sum(one.total for one in self.models)

    @property
    def loading(self) -> int:
        """Peak before the tokenizer is there and anything has run."""
        engines = sum(one.total - one.scratch - one.logits for one in self.models)
        return self.process + engines + max(one.packing for one in self.models)

    @property
    def peak(self) -> int:
        return max(self.loading, self.loaded + self.grammar)

    @property
    def beside(self) -> int:
        """The peak of one more bundle in a process that is there already."""
        return self.peak - self.process


def needs(manifest: Manifest, load: Load) -> Needs:
    sizes = {entry.name: entry.bytes for entry in manifest.files}
    by_file = {one.file: one for model in manifest.models.values() for one in model.graphs}
    known = {role: model for role, model in manifest.models.items() if role in (TARGET, *load.roles)}
    keeps = any(model.hidden_input is not None for model in known.values())
    opened: set[str] = set()
    tables: set[tuple[object, ...]] = set()
    models, looked_up = [], 0
    for role in (TARGET, *load.roles):
        model = known[role]
        files = [name for name in opened_graphs(model, load.head) if name not in opened]
        opened.update(files)
        graphs = [by_file[name] for name in files if name in by_file and not _is_lookup(model, name)]
        looked_up += sum(by_file[name].stored for name in files if name in by_file and _is_lookup(model, name))
        looked_up += model.embedding.bytes if model.embedding is not None and role == TARGET else 0
        if load.built is not None:
            models.append(_as_built(model, load.built, load, role, keeps))
            continue
        fresh_table = bool(model.table) and model.table not in tables
        tables.add(model.table)
        weights, mapped = _weights(model, graphs, load, sizes, fresh_table)
        models.append(
            ModelNeeds(
                role=role,
                weights=weights,
                mapped=mapped + 2 * sum(sizes[name] for name in files if model.dialect != "nf4"),
                kv=_cache(model, load),
                hidden=load.sessions * load.context * model.hidden_size * FLOAT if keeps and role == TARGET else 0,
                scratch=_scratch(model, graphs, load, role),
                logits=_head_rows(model, load, role) * model.head_rows * FLOAT,
                packing=_packing(graphs),
            )
        )
    return Needs(
        models=tuple(models),
        process=_PROCESS[load.device] + (_TORCH if manifest.model(TARGET).dialect == "nf4" else 0),
        tokenizer=_OF_TOKENIZER * sizes[manifest.tokenizer.file],
        suffix=_SUFFIX_PER_TOKEN * load.suffix_tokens,
        grammar=_GRAMMAR_PER_PIECE * manifest.tokenizer.vocab_size,
        looked_up=looked_up,
        exact=load.built is not None or all(model.graphs and model.dialect == "ort" for model in known.values()),
    )


def _as_built(model: Model, built: Built, load: Load, role: str, keeps: bool) -> ModelNeeds:
    """The pages of a plan's file are let go of as soon as the device has it: they are not counted."""
    one = built.model(role)
    loaded = (TARGET, *load.roles)
    shared = max(other.scratch for other in built.models if other.role in loaded) if role == TARGET else 0
    return ModelNeeds(
        role=role,
        weights=one.plans,
        mapped=0,
        kv=load.sessions * one.slot,
        hidden=load.sessions * one.capacity * model.hidden_size * FLOAT if keeps and role == TARGET else 0,
        scratch=shared + one.buffers,
        logits=one.logits,
        packing=0,
    )


def opened_graphs(model: Model, head: Literal["screened", "full"]) -> tuple[str, ...]:
    """Files of the graphs that an engine of this model runs."""
    screen = model.screen if head == "screened" else None
    files = [screen.head if screen else model.head, model.stem, model.body]
    files += [screen.readout if screen else model.readout, model.lookup.graph if model.lookup else None]
    return tuple(dict.fromkeys(name for name in files if name))


def weights_read(manifest: Manifest, head: Literal["screened", "full"]) -> int | None:
    """Bytes of the target's matrices, scales included, each of which a step of one row reads once; what it gathers a
    few rows of is not in it. ``None``: the bundle does not say what its graphs multiply by."""
    model = manifest.model(TARGET)
    files = set(opened_graphs(model, head))
    products = [of for one in model.graphs if one.file in files for of in one.products]
    scales = sum(FLOAT * of.values // of.block_size for of in products if of.block_size is not None)
    return sum(stored_bytes(of, of.values) for of in products) + scales or None


def _is_lookup(model: Model, name: str) -> bool:
    return model.lookup is not None and model.lookup.graph == name


def _weights(
    model: Model, graphs: Sequence[GraphNeeds], load: Load, sizes: dict[str, int], fresh_table: bool
) -> tuple[int, int]:
    """(unshareable, mapped) bytes."""
    if model.dialect == "tensorrt":
        stored = sum(one.stored for one in graphs) or sum(sizes[name] for name in model.weights)
        return stored if load.device == "cuda" else _WIDENED * stored, 0
    if not model.graphs:
        return int(_GUESSED * sum(sizes[name] for name in model.weights)) if fresh_table or not model.table else 0, 0
    if load.device == "cuda" or model.dialect == "nf4":
        # Each session has its own copy there, tables included.
        return sum(one.stored for one in graphs), 0
    products = [of for one in graphs for of in one.products]
    packed = sum(_packed(of) for of in products)
    mapped = sum(one.stored - one.table for one in graphs) - sum(stored_bytes(of, of.values) for of in products)
    table = sum(tensor_bytes(tensor.dtype, tensor.shape) for tensor in model.table) if fresh_table else 0
    return packed, mapped + table


def _packing(graphs: Sequence[GraphNeeds]) -> int:
    """Graphs are opened in order, and what comes after a large matrix may make more room than it took."""
    sofar = most = 0
    for one in graphs:
        sofar += sum(_packed(of) for of in one.products)
        most = max(most, sofar + max((stored_bytes(of, of.largest) for of in one.products), default=0))
    return max(0, most - sofar)


def tensor_bytes(dtype: str, shape: tuple[int, ...]) -> int:
    size = 1 if dtype == "uint8" else FLOAT
    for length in shape:
        size *= length
    return size


def _packed(of: Product) -> int:
    if of.block_size is None:
        return of.values * FLOAT
    return stored_bytes(of, of.values) + _BESIDE_A_BLOCK * of.values // of.block_size


def stored_bytes(of: Product, values: int) -> int:
    return values * of.bits // 8


def _cache(model: Model, load: Load) -> int:
    # One entry more, for the padded row of the deterministic mode.
    return model.kv_bytes_per_token * (min(load.context, model.max_context) + 1) * load.sessions


def _head_rows(model: Model, load: Load, role: str) -> int:
    return load.head_rows if role == TARGET else max(2, model.fan_out)


def _scratch(model: Model, graphs: Sequence[GraphNeeds], load: Load, role: str) -> int:
    """What exists at a time while a prefill chunk, a verification and its readout run."""
    rows, row = max(load.rows, 2) if model.feeds_chunks else 1, model.hidden_size * FLOAT
    widest = max((one.widest for one in graphs if one.attention_heads), default=0) * FLOAT
    heads = max((one.attention_heads for one in graphs), default=0)
    body = int(rows * (_OF_WIDEST * widest + _OF_HIDDEN * row))
    scores = heads * rows * (min(load.context, model.max_context) + 1) * FLOAT
    # What a tree or a window is told by: two inputs at most.
    sight = 2 * rows * (load.context + 1) * FLOAT if model.trees else 0
    read = _head_rows(model, load, role)
    logits = int(read * model.head_rows * FLOAT * _LOGITS_OF_READOUT)
    screened = model.screen is not None and load.head == "screened"
    rescored = int(read * model.screen.rescored * row * _RESCORED) if screened and model.screen else 0
    # torch makes floats of a matrix before it multiplies by it.
    largest = max((of.largest for one in graphs for of in one.products), default=0) * (model.dialect == "nf4")
    return body + scores + sight + logits + rescored + FLOAT * largest
