"""What a bundle needs, what a device has, and whether the one fits into the other. Pure: knows no file and no engine.

Bytes are those that stay resident in one process, its own and mapped ones. They follow from what an engine is given;
how far a process agrees is told by ``edge-runtime plan --measure``. No board has confirmed those of CUDA.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from .bundle import TARGET, GraphNeeds, Manifest, Model, Product

IDLE_SYSTEM_BYTES = 500_000_000
"""Of a board that was not looked at: what a system without a desktop holds before anything is loaded. Assumed."""
RESERVE_BYTES = 800_000_000
"""What stays available to the system unless the configuration says otherwise."""
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
_GIGABYTE = 1e9
FREE_MEMORY = "free memory"
"""What a change begins with that is no setting."""
_TENTH = 100_000_000
"""Of a gigabyte: to which settings are advised."""


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
    """``False``: a guess from its size: the bundle does not say what its graphs need, or an engine is built of them."""

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


@dataclass(frozen=True, slots=True)
class Room:
    """What a device has."""

    name: str
    total: int
    available: int
    """Before the bundle is loaded."""
    reserve: int = RESERVE_BYTES
    """To be left available."""
    budget: int | None = None
    """Most for this process, as configured."""

    @property
    def budgeted(self) -> int:
        return max(0, self.total - self.reserve) if self.budget is None else self.budget

    @property
    def allowed(self) -> int:
        return min(self.budgeted, max(0, self.available - self.reserve))

    @property
    def most(self) -> int:
        """What could be available if nothing else ran."""
        return max(self.available, self.total - IDLE_SYSTEM_BYTES)


@dataclass(frozen=True, slots=True)
class Change:
    """One setting that would make it fit, or bring it nearer; or what else would."""

    what: str
    peak: int
    fits: bool


@dataclass(frozen=True, slots=True)
class Plan:
    load: Load
    needs: Needs
    room: Room
    changes: tuple[Change, ...]
    """Only where it does not fit."""

    @property
    def fits(self) -> bool:
        return self.needs.peak <= self.room.allowed

    @property
    def left(self) -> int:
        """Available to the system once it is loaded; negative: not even there."""
        return self.room.available - self.needs.peak


def plan(manifest: Manifest, load: Load, room: Room) -> Plan:
    """Before anything is loaded."""
    found = Plan(load, needs(manifest, load), room, ())
    return found if found.fits else replace(found, changes=tuple(_changes(manifest, load, room)))


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
        exact=all(model.graphs and model.dialect == "ort" for model in known.values()),
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
    return sum(_stored(of, of.values) for of in products) + scales or None


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
    mapped = sum(one.stored - one.table for one in graphs) - sum(_stored(of, of.values) for of in products)
    table = sum(tensor_bytes(tensor.dtype, tensor.shape) for tensor in model.table) if fresh_table else 0
    return packed, mapped + table


def _packing(graphs: Sequence[GraphNeeds]) -> int:
    """Graphs are opened in order, and what comes after a large matrix may make more room than it took."""
    sofar = most = 0
    for one in graphs:
        sofar += sum(_packed(of) for of in one.products)
        most = max(most, sofar + max((_stored(of, of.largest) for of in one.products), default=0))
    return max(0, most - sofar)


def tensor_bytes(dtype: str, shape: tuple[int, ...]) -> int:
    size = 1 if dtype == "uint8" else FLOAT
    for length in shape:
        size *= length
    return size


def _packed(of: Product) -> int:
    if of.block_size is None:
        return of.values * FLOAT
    return _stored(of, of.values) + _BESIDE_A_BLOCK * of.values // of.block_size


def _stored(of: Product, values: int) -> int:
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


# What to change


def _changes(manifest: Manifest, load: Load, room: Room) -> Iterator[Change]:
    def change(what: str, of: Manifest, how: Load) -> Change:
        peak = needs(of, how).peak
        return Change(what, peak, peak <= room.allowed)

    peak = needs(manifest, load).peak
    more, wasted = _more_room(peak, room), peak + room.reserve > room.available
    # What was budgeted on purpose is the last to be touched, what others take or a reserve keeps is the first.
    if more is not None and wasted:
        yield more
    context = _largest(1, load.context, lambda n: needs(manifest, replace(load, context=n)).peak <= room.allowed)
    if context is not None:
        yield change(f"context: {context}", manifest, replace(load, context=context))
    sessions = _largest(1, load.sessions, lambda n: needs(manifest, replace(load, sessions=n)).peak <= room.allowed)
    if sessions is not None:
        yield change(f"sessions: {sessions}", manifest, replace(load, sessions=sessions))
    if load.roles:
        yield change("drafter: lookup (no drafter of the bundle)", manifest, replace(load, roles=()))
    other: Literal["screened", "full"] = "full" if load.head == "screened" else "screened"
    if manifest.models[TARGET].screen is not None and needs(manifest, replace(load, head=other)).peak < peak:
        yield change(f"head: {other}", manifest, replace(load, head=other))
    if load.suffix_tokens:
        yield change("suffix_tokens: 0", manifest, replace(load, suffix_tokens=0))
    smaller = in_four_bits(manifest)
    if smaller != manifest:
        yield change("a bundle of precision int4", smaller, load)
    least = replace(load, context=min(load.context, 256), sessions=1, roles=(), suffix_tokens=0)
    yield change(f"all of these: one session of {least.context} tokens, no drafter", smaller, least)
    if more is not None and not wasted:
        yield more


def _more_room(peak: int, room: Room) -> Change | None:
    """Where it is not the device that is too small but what the configuration, or other programs, leave of it."""
    reserve = min(room.reserve, RESERVE_BYTES)
    capped = room.budget is not None and peak > room.budget
    settings = [f"budget.memory_gb: {_gigabytes_up(peak)} or more"] if capped else []
    if peak + reserve <= room.available:
        if peak + room.reserve > room.available:
            settings.append(f"budget.reserve_gb: {_gigabytes_down(room.available - peak)} or less")
        return Change(" and ".join(settings), peak, True) if settings else None
    if peak + reserve <= room.most:
        if peak + room.reserve > room.most:
            settings.append(f"budget.reserve_gb: {_gigabytes_down(reserve)}")
        else:
            reserve = room.reserve
        there = f"{shown(room.available)} of {shown(room.total)} available, {shown(peak + reserve)} wanted"
        return Change(" and ".join([f"{FREE_MEMORY}: {there}", *settings]), peak, True)
    return None


def _gigabytes_up(size: int) -> str:
    return f"{-(-size // _TENTH) / 10:.1f}"


def _gigabytes_down(size: int) -> str:
    return f"{size // _TENTH / 10:.1f}"


def _largest(low: int, high: int, fits: Callable[[int], bool]) -> int | None:
    """The largest number in [low, high] that ``fits``, where smaller ones do too; ``None``: not even ``low``."""
    if low > high or not fits(low):
        return None
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def in_four_bits(manifest: Manifest) -> Manifest:
    """The same models with the products of their bodies in blocks of four bits, as ``int4`` stores them."""

    def of_model(model: Model) -> Model:
        heads = {model.head, *((model.screen.head,) if model.screen else ())}
        return replace(model, graphs=tuple(one if one.file in heads else _in_four_bits(one) for one in model.graphs))

    return replace(manifest, models={role: of_model(model) for role, model in manifest.models.items()})


def _in_four_bits(graph: GraphNeeds) -> GraphNeeds:
    wide = [of for of in graph.products if of.bits > 4]
    if not wide:
        return graph
    kept = tuple(of for of in graph.products if of.bits <= 4)
    values = sum(of.values for of in wide)
    before = sum(_stored(of, of.values) + (FLOAT * of.values // of.block_size if of.block_size else 0) for of in wide)
    after = values // 2 + values // 32 * FLOAT + values // 64
    made = Product(4, 32, values, max(of.largest for of in wide))
    return replace(graph, products=(*kept, made), stored=max(graph.table, graph.stored - before + after))


def shown(size: float) -> str:
    return f"{size / _GIGABYTE:.2f} GB" if abs(size) >= _GIGABYTE else f"{size / 1e6:.0f} MB"
