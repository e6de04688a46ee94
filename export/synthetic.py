"""Checkpoints of a published shape with random weights, for plans and costs that are to be tried. Knows no bundle.

Written as a GGUF, block by block: 4 bits (Q4_0) and an embedding of 8 (Q8_0), which an ``exact`` export carries over as
they are. A text of such a model means nothing; what it costs is what the real one costs.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from edge_runtime.errors import ConfigError, did_you_mean, why
from edge_runtime.files import whole

from .checkpoint import GGUF_NAMES, expected_shapes
from .gguf_blocks import KINDS, row_bytes
from .model_config import GemmaConfig

_ALIGNMENT = 32
_CHUNK_BYTES = 4 << 20
_UNSIGNED, _SIGNED, _FLOAT, _STRING, _ARRAY = 4, 5, 6, 8, 9
_CONTROLS = ("<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<start_of_turn>", "<end_of_turn>")
_NORMAL, _UNKNOWN, _CONTROL, _BYTE = 1, 2, 3, 6
_SCALE = np.float16(2.0**-9)
"""Of all blocks: sums over thousands of columns stay finite."""

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Shape:
    """Of a published model."""

    family: str
    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    context: int
    window: int


SHAPES: dict[str, Shape] = {
    "gemma-2-2b": Shape("gemma2", 26, 2304, 9216, 8, 4, 256, 256_000, 8192, 4096),
    "gemma-2-9b": Shape("gemma2", 42, 3584, 14336, 16, 8, 256, 256_000, 8192, 4096),
    "gemma-3-270m": Shape("gemma3", 18, 640, 2048, 4, 1, 256, 262_144, 32768, 512),
    "gemma-3-1b": Shape("gemma3", 26, 1152, 6912, 4, 1, 256, 262_144, 32768, 512),
    "gemma-3-4b": Shape("gemma3", 34, 2560, 10240, 8, 4, 256, 262_144, 131_072, 1024),
    "gemma-3-12b": Shape("gemma3", 48, 3840, 15360, 16, 8, 256, 262_144, 131_072, 1024),
    "gemma-3-27b": Shape("gemma3", 62, 5376, 21504, 32, 16, 128, 262_144, 131_072, 1024),
}
"""By the configurations that were published with them."""


def shape_named(name: str) -> Shape:
    """Raises ``ConfigError``."""
    if name not in SHAPES:
        raise ConfigError(f"no shape {name!r}{did_you_mean(name, SHAPES)}: there are {', '.join(SHAPES)}")
    return SHAPES[name]


def config_of(name: str, shape: Shape) -> GemmaConfig:
    return GemmaConfig.from_gguf(_metadata(shape), name)


def write_synthetic(path: Path, name: str, shape: Shape, progress: Progress, seed: int = 0) -> None:
    """One tensor after the other, a chunk at a time. Raises ``ConfigError``."""
    tensors = [(_gguf_name(key), of) for key, of in expected_shapes(config_of(name, shape)).items()]
    sizes = [_bytes(key, of) for key, of in tensors]
    random = np.random.default_rng(seed)
    if path.exists():
        raise ConfigError(f"{path}: File exists")
    try:
        with whole(path) as partial, partial.open("wb") as file:
            _write_header(file, _metadata(shape) | _tokenizer(shape.vocab), tensors, sizes)
            done = 0
            for (key, of), size in zip(tensors, sizes, strict=True):
                file.write(bytes(-file.tell() % _ALIGNMENT))
                for chunk in _chunks(random, _kind(key, of), size):
                    file.write(chunk)
                done += size
                progress(f"write {name}", done, sum(sizes))
    except OSError as problem:
        raise ConfigError(f"{path}: {why(problem)}") from None


def _metadata(shape: Shape) -> dict[str, Any]:
    sizes = {
        "vocab_size": shape.vocab,
        "context_length": shape.context,
        "embedding_length": shape.hidden,
        "block_count": shape.layers,
        "feed_forward_length": shape.ffn,
        "attention.head_count": shape.heads,
        "attention.head_count_kv": shape.kv_heads,
        "attention.key_length": shape.head_dim,
        "attention.value_length": shape.head_dim,
        "attention.sliding_window": shape.window,
    }
    known: dict[str, Any] = {f"{shape.family}.{key}": value for key, value in sizes.items()}
    return {
        "general.architecture": shape.family,
        **known,
        f"{shape.family}.attention.layer_norm_rms_epsilon": 1e-6,
    }


def _tokenizer(vocab: int) -> dict[str, Any]:
    """Control pieces, bytes, characters, and made-up words up to the size of the real one."""
    pieces = [*_CONTROLS, *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", *map(chr, range(0x21, 0x7F))]
    kinds = [_UNKNOWN if piece == "<unk>" else _CONTROL for piece in _CONTROLS] + [_BYTE] * 256
    pieces += [f"\u2581w{i:06d}" for i in range(vocab - len(pieces))]
    kinds += [_NORMAL] * (vocab - len(kinds))
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.scores": [-float(i) for i in range(vocab)],
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.add_space_prefix": 0,
    }


def _write_header(
    file: BinaryIO, metadata: dict[str, Any], tensors: list[tuple[str, tuple[int, ...]]], sizes: list[int]
) -> None:
    file.write(b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata)))
    for key, value in metadata.items():
        file.write(_string(key) + _value(value))
    offset = 0
    for (key, of), size in zip(tensors, sizes, strict=True):
        inner_first = tuple(reversed(of))
        file.write(_string(key) + struct.pack(f"<I{len(of)}QIQ", len(of), *inner_first, _type(key, of), offset))
        offset += size + -size % _ALIGNMENT


def _value(value: Any) -> bytes:
    if isinstance(value, str):
        return struct.pack("<I", _STRING) + _string(value)
    if isinstance(value, int):
        return struct.pack("<II", _UNSIGNED, value)
    if isinstance(value, float):
        return struct.pack("<If", _FLOAT, value)
    head = struct.pack("<I", _ARRAY)
    if isinstance(value[0], str):
        return head + struct.pack("<IQ", _STRING, len(value)) + b"".join(map(_string, value))
    dtype, kind = ("<i4", _SIGNED) if isinstance(value[0], int) else ("<f4", _FLOAT)
    return head + struct.pack("<IQ", kind, len(value)) + np.array(value, dtype).tobytes()


def _string(text: str) -> bytes:
    data = text.encode("utf-8")
    return struct.pack("<Q", len(data)) + data


def _gguf_name(canonical: str) -> str:
    if canonical in ("embed", "final_norm"):
        return "token_embd.weight" if canonical == "embed" else "output_norm.weight"
    _, layer, part = canonical.split(".")
    stored = next(name for name, own in GGUF_NAMES.items() if own == part)
    return f"blk.{layer}.{stored}.weight"


def _kind(key: str, of: tuple[int, ...]) -> str:
    if len(of) == 1:
        return "F32"
    return "Q8_0" if key == "token_embd.weight" else "Q4_0"


def _type(key: str, of: tuple[int, ...]) -> int:
    return KINDS[_kind(key, of)].type_id


def _bytes(key: str, of: tuple[int, ...]) -> int:
    return row_bytes(_kind(key, of), of[-1]) * (of[0] if len(of) > 1 else 1)


def _chunks(random: np.random.Generator, kind: str, size: int) -> Iterator[bytes | memoryview]:
    if kind == "F32":
        # A GGUF holds norms as the factors that they are.
        yield np.ones(size // 4, "<f4").tobytes()
        return
    block = KINDS[kind].nbytes
    blocks = size // block
    while blocks:
        count = min(blocks, _CHUNK_BYTES // block)
        made = random.integers(0, 256, (count, block), np.uint8)
        made[:, :2] = np.frombuffer(_SCALE.tobytes(), np.uint8)
        yield made.data
        blocks -= count
