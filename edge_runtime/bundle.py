"""The bundle: a directory that export writes and the runtime reads; its manifest is all that the two share.

Knows files, hashes and shapes; knows neither how weights are made nor how an engine runs them.
A bundle is complete or absent: export writes into a temporary directory beside it and renames.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from .errors import BundleError, ConfigError, why
from .files import Progress, check_ordinary, descriptor_sha256, read_text_at_most
from .graph_data import leads_out
from .schema import plain, structure
from .soundness import refuse_commands, refuse_unsound

SCHEMA_VERSION, MANIFEST_NAME = 1, "bundle.json"
TARGET, DRAFT, SELF, MTP, HEADS = "target", "draft", "self", "mtp", "heads"
"""Roles; the last three live on their target: its own first layers, a multi-token drafter, parallel heads."""

_MOST_BYTES = 16 << 20  # of a manifest: of 60 layers it has half a megabyte
_ITEM_BYTES = {"float32": 4, "float16": 2, "int8": 1}

TREE_ROWS = 64  # at most, of a forward that is a tree


def tree_bias(window: int | None) -> str:
    """Input of a body that runs trees, [1, 1, rows, total]: 0 for the entries that a row of such a layer sees, else
    the least float32."""
    return "attention_bias" if window is None else f"attention_bias_{window}"


MOST_LANES = 16
"""Of one graph: each has an attention of its own in every layer."""


def lane_input(name: str, lane: int) -> str:
    """Input or output of a body with lanes (``Lanes``) that is one lane's, by its name in the body for one session."""
    return f"{name}.lane{lane}"


@dataclass(frozen=True, slots=True)
class FileEntry:
    name: str
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class KvLayer:
    """The cache of one layer: two buffers [1, kv_heads, capacity, head_dim]."""

    kv_heads: int
    head_dim: int
    window: int | None
    """Tokens a sliding layer looks back, ``None`` for a global layer."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """One line of the I/O table. A symbolic dimension is a string: rows, capacity, gathered."""

    graph: Literal["stem", "body", "lanes", "head", "readout", "screen", "rescore", "lookup"]
    direction: Literal["in", "out"]
    name: str
    dtype: str
    shape: tuple[int | str, ...]


@dataclass(frozen=True, slots=True)
class MappedTensor:
    """An initializer that several graphs name: the engine maps it once and hands it to all of them."""

    name: str
    file: str
    offset: int
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Screen:
    """A second way through the head: a coarse 4-bit table finds the best rows, the exact one scores them again.

    It reads half the bytes. What comes out is one consistent row: the exact logits of the rescored ids, which hold the
    argmax and the candidates, and the coarse ones of all others.
    """

    head: str
    readout: str
    rescored: int
    """Rows that are scored again."""


@dataclass(frozen=True, slots=True)
class Lookup:
    """Token ids -> rows of a table that only is looked up, which the body takes as its input ``per_layer``.

    It runs on the host whatever the device: the table is as large as the rest of the model, and a step reads a few rows
    of it from the mapped file.
    """

    graph: str
    width: int
    """Of a row."""


@dataclass(frozen=True, slots=True)
class Lanes:
    """The body once more, for one step of several sessions: each row meets the matrices once, and each session its own
    cache. ``Model.io`` shows its first lane; the others are alike (``lane_input``)."""

    graph: str
    count: int
    """Sessions of a step at most."""


@dataclass(frozen=True, slots=True)
class EmbeddingTable:
    """[rows, columns] that the host looks tokens up in, from the mapped file: row of token i = values[i] * scale.

    float32 or float16 as they stand; int8 with a scale for every ``block_size`` values of a row: values = quants *
    scales, quants [rows, columns] int8 at ``offset``, scales [rows, columns / block_size] at ``scales_offset``.
    """

    file: str
    offset: int
    dtype: Literal["float32", "float16", "int8"]
    rows: int
    columns: int
    scale: float
    """What a model multiplies its embeddings by."""
    block_size: int | None = None
    """Of int8 alone, as are the next two."""
    scales_offset: int | None = None
    scales_dtype: Literal["float32", "float16"] | None = None

    @property
    def bytes(self) -> int:
        """Of the values, and of the scales."""
        values = self.rows * self.columns * _ITEM_BYTES[self.dtype]
        if self.block_size is None:
            return values
        return values + self.rows * (self.columns // self.block_size) * _ITEM_BYTES[self.scales_dtype or "float32"]


@dataclass(frozen=True, slots=True)
class Product:
    """Matrices of one format that a graph multiplies by: an engine that packs them holds copies of its own."""

    bits: int
    """8 or 4 in blocks, 32 or 16 where each value is a float."""
    block_size: int | None
    """Values that share a scale."""
    values: int
    """Rows x columns, of all of them."""
    largest: int
    """Values of the largest of them."""


@dataclass(frozen=True, slots=True)
class GraphNeeds:
    """What of a graph costs memory where it runs."""

    file: str
    stored: int
    """Bytes of weight files that it names."""
    table: int
    """Of these the bytes of ``Model.table`` that it gathers rows of: one mapping for all graphs."""
    products: tuple[Product, ...]
    widest: int
    """Columns of the widest product's result."""
    attention_heads: int
    """0: it attends to nothing."""


@dataclass(frozen=True, slots=True)
class Model:
    """One engine of the bundle."""

    body: str
    """Graph: token ids and past K/V -> hidden rows after the final norm, and present K/V."""
    head: str
    """Graph: hidden rows -> logits, which stay in a buffer of the engine."""
    readout: str
    """Graph: logits -> argmax, candidates, log-sum-exp, gathered logits; "" where the head reads out itself."""
    screen: Screen | None
    weights: tuple[str, ...]
    table: tuple[MappedTensor, ...]
    """The block-coded embedding, read row by row by body and readout; empty where it is dense."""
    precision: str
    accuracy_level: int
    """MatMulNBits: 0 for none, 1 = fp32 activations, 4 = 8-bit activations."""
    vocab_size: int
    """Rows of the head."""
    token_ids: str | None
    """File of int64 little-endian [vocab_size]: head row -> token id; ``None`` when they are equal."""
    hidden_size: int
    candidates: int
    max_context: int
    kv_dtype: Literal["float32", "float16"]
    layers: tuple[KvLayer, ...]
    io: tuple[Tensor, ...]
    shares: tuple[int, ...] | None = None
    """Of a drafter without a cache of its own: the target's layer behind each of ``layers``."""
    hidden_input: int | None = None
    """Width of the target's hidden rows that the body takes beside token ids; ``None``: takes none.

    Its body has the input ``hidden_in`` [1, rows, hidden_input] and, where it feeds itself, the output ``feed`` of
    the same shape.
    """
    constant_position: bool = False
    """The queries of all drafts of a step stand at the last token's place and write no cache (Gemma 4 assistants)."""
    fan_out: int = 1
    """Hidden rows that the body makes of each token, one behind the other: of parallel heads, one for each head."""
    centroids: int | None = None
    """Groups of tokens that the head scores in place of tokens: its readout takes the hidden row, scores the tokens of
    the best groups, and knows no others. ``None``: the head scores tokens."""

    stem: str | None = None
    """Graph of the first layers, where a self-draft runs them alone: the body goes on from what it hands over."""
    narrow: dict[str, str] = field(default_factory=dict)
    """Graph -> the same with each window one less: before 1.24, onnxruntime's attention on a CPU looks one further."""
    lookup: Lookup | None = None
    """What each token says to every layer (Gemma 4's E models)."""
    lanes: Lanes | None = None
    """A second body, which an engine runs in place of the first where steps of several sessions are run as one."""
    graphs: tuple[GraphNeeds, ...] = ()
    """Of each graph of its own but the ``narrow`` ones, which are as their twins; none in bundles of old."""
    dialect: Literal["ort", "tensorrt", "nf4"] = "ort"
    """Whose operators its graphs are spelt in. One of TensorRT has two graphs: a body that takes embeddings and hands
    out only the new keys and values, and a head that reads its logits out itself (docs/tensorrt.md). One of nf4 has no
    graph: ``body`` and ``head`` are the file of its weights, and transformers knows the rest (docs/gpu.md)."""
    embedding: EmbeddingTable | None = None
    """What the host looks up for a body that takes embeddings; ``None``: the body takes token ids."""

    @property
    def trees(self) -> bool:
        """Whether rows of one forward may be alternatives."""
        return any(line.graph == "body" and line.name == "position_ids" for line in self.io)

    @property
    def feeds_chunks(self) -> bool:
        """Whether it has a cache of its own, which a prompt fills chunk by chunk."""
        return self.shares is None and bool(self.layers)

    @property
    def head_rows(self) -> int:
        """Width of what the head hands to its readout."""
        return self.vocab_size if self.centroids is None else self.centroids

    @property
    def kv_bytes_per_token(self) -> int:
        """Of a cache of its own."""
        if self.shares is not None:
            return 0
        item = 4 if self.kv_dtype == "float32" else 2
        return sum(2 * layer.kv_heads * layer.head_dim * item for layer in self.layers)


@dataclass(frozen=True, slots=True)
class TokenizerEntry:
    file: str
    vocab_size: int
    bos_id: int
    eos_ids: tuple[int, ...]
    pieces_sha256: str
    """Over the id -> piece table, so that two bundles can be compared without their files."""


@dataclass(frozen=True, slots=True)
class MemoryNeeds:
    """Bytes, for the plan that is made before loading."""

    weights: int
    kv_per_token: int
    logits_per_row: int


@dataclass(frozen=True, slots=True)
class Source:
    """Where the weights came from."""

    name: str
    sha256: str | None
    kind: str


@dataclass(frozen=True, slots=True)
class Manifest:
    schema_version: int
    name: str
    family: str
    models: dict[str, Model]
    """By role: target, and perhaps draft, self, mtp, heads."""
    tokenizer: TokenizerEntry
    chat_template: str | None
    memory: MemoryNeeds
    sources: tuple[Source, ...]
    recipe: dict[str, Any]
    notes: tuple[str, ...]
    """What the export wants its reader to know: what was not exact, for one."""
    licence: str
    licence_file: str
    exporter: str
    files: tuple[FileEntry, ...]

    def model(self, role: str) -> Model:
        try:
            return self.models[role]
        except KeyError:
            raise BundleError(f"bundle {self.name!r} has no {role} model (it has {', '.join(self.models)})") from None


def file_sha256(path: Path, progress: Progress = None) -> str:
    """Hex digest; ``progress`` is told the bytes of each chunk."""
    with path.open("rb", buffering=0) as stream:
        return descriptor_sha256(stream.fileno(), progress)


def write_manifest(directory: Path, manifest: Manifest) -> None:
    text = json.dumps(plain(manifest), indent=1, ensure_ascii=False)
    (directory / MANIFEST_NAME).write_text(text + "\n", encoding="utf-8")


def read_manifest(directory: Path) -> Manifest:
    """The manifest alone, its files unchecked. Raises ``BundleError``."""
    path = directory / MANIFEST_NAME
    if not os.path.isdir(directory):  # Path.is_dir raises for a name that is too long
        raise BundleError(f"no bundle at {directory}")
    try:
        check_ordinary(path, "")
        data = json.loads(read_text_at_most(path, _MOST_BYTES, ""))
    except (ConfigError, ValueError, RecursionError) as problem:
        if isinstance(problem.__context__, FileNotFoundError):
            raise BundleError(f"{directory} is not a bundle: it has no {MANIFEST_NAME}") from None
        raise BundleError(f"{path} cannot be read: {why(problem).removeprefix(f'{path}: ')}") from None
    _refuse_version(path, data.get("schema_version") if isinstance(data, dict) else None)
    # Not of what it was made of: paths that somebody gave, and that nothing prints.
    refuse_commands(path, "it", {key: value for key, value in data.items() if key not in ("recipe", "sources")})
    manifest = structure(Manifest, data, BundleError, str(path))
    refuse_unsound(path, manifest)
    return manifest


def _refuse_version(path: Path, version: object) -> None:
    reads = f"this runtime reads {SCHEMA_VERSION}"
    if version is None:
        raise BundleError(f"{path} names no schema version ({reads})")
    # Not ==, for which True and 1.0 are 1 as well.
    if type(version) is not int or version < SCHEMA_VERSION:
        raise BundleError(f"{path}: schema version {version!r}, but {reads}; export the bundle again")
    if version > SCHEMA_VERSION:
        raise BundleError(f"{path}: schema version {version}, but {reads}; update edge-runtime")


def verify_files(directory: Path, manifest: Manifest, *, hashes: bool = True, progress: Progress = None) -> None:
    """Size and, if asked, sha256 of every file. Raises ``BundleError`` with the first that is wrong."""
    for problem in file_problems(directory, manifest, hashes=hashes, progress=progress):
        raise BundleError(problem)


def size_problems(directory: Path, manifest: Manifest) -> tuple[str, ...]:
    """A line for each file that is missing or of another size; none for a manifest alone, of which plans are made."""
    there = any((directory / entry.name).exists() for entry in manifest.files)
    return tuple(file_problems(directory, manifest, hashes=False)) if there else ()


def file_problems(
    directory: Path, manifest: Manifest, *, hashes: bool = True, progress: Progress = None
) -> Iterator[str]:
    """One line for each file that is missing, altered, or not the whole of what would be read."""
    for entry in manifest.files:
        path = directory / entry.name
        try:
            if not path.is_file():
                yield f"{path}: missing from the bundle"
            elif (size := path.stat().st_size) != entry.bytes:
                yield f"{path}: {size} bytes, but the manifest says {entry.bytes}"
            elif hashes and (found := file_sha256(path, progress)) != entry.sha256:
                yield f"{path}: sha256 {found[:16]}..., but the manifest says {entry.sha256[:16]}..."
            elif reason := leads_out(path, {one.name for one in manifest.files}):
                yield f"{path}: {reason}"
        except OSError as problem:
            yield f"{path}: {why(problem)}"
