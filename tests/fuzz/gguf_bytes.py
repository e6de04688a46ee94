"""GGUF files as parts that can be made, taken apart and spoilt one by one. Knows the format, and nothing of its reader.

What is taken apart here need not be valid: what cannot be read any further is kept as it is.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, field
from random import Random

from .hostile import EDGES, FLOATS, WORDS, edit_bytes, number

STRING, ARRAY = 8, 9
SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<B", 10: "<Q", 11: "<q", 12: "<d"}
BLOCKS = {0: (1, 4), 1: (1, 2), 30: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34),
          10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210)}  # fmt: skip
"""Type -> values and bytes of a block."""
PLAIN = (0, 1, 30)
"""Floats: of these vectors are made too."""
VOCAB = 12
"""Entries of the tables that a seed has."""


@dataclass(slots=True)
class Text:
    """A string behind its length, which need not be that of the string."""

    data: bytes
    claimed: int | None = None

    def packed(self) -> bytes:
        return struct.pack("<Q", (len(self.data) if self.claimed is None else self.claimed) % (1 << 64)) + self.data


@dataclass(slots=True)
class Meta:
    key: Text
    kind: int
    body: bytes
    """The value as the file has it."""


@dataclass(slots=True)
class Tensor:
    name: Text
    dims: list[int]
    kind: int
    offset: int
    claimed_dims: int | None = None

    def packed(self) -> bytes:
        count = len(self.dims) if self.claimed_dims is None else self.claimed_dims
        sizes = b"".join(struct.pack("<Q", size % (1 << 64)) for size in self.dims)
        rest = struct.pack("<IQ", self.kind % (1 << 32), self.offset % (1 << 64))
        return self.name.packed() + struct.pack("<I", count % (1 << 32)) + sizes + rest

    def nbytes(self) -> int:
        values, nbytes = BLOCKS.get(self.kind, (1, 4))
        total = 1
        for size in self.dims:
            total *= size
        return total // values * nbytes


@dataclass(slots=True)
class Parts:
    metas: list[Meta] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    tail: bytes = b""
    """Padding and data, or all that could not be taken apart."""
    magic: bytes = b"GGUF"
    version: int = 3
    tensor_count: int | None = None
    meta_count: int | None = None
    alignment: int = 32
    whole: bool = True

    def packed(self) -> bytes:
        tensors = len(self.tensors) if self.tensor_count is None else self.tensor_count
        metas = len(self.metas) if self.meta_count is None else self.meta_count
        head = self.magic + struct.pack("<IQQ", self.version % (1 << 32), tensors % (1 << 64), metas % (1 << 64))
        head += b"".join(one.key.packed() + struct.pack("<I", one.kind % (1 << 32)) + one.body for one in self.metas)
        head += b"".join(one.packed() for one in self.tensors)
        return head + (b"\0" * (-len(head) % self.alignment) if self.whole else b"") + self.tail


def scalar(kind: int, value: float) -> bytes:
    """Cut to the bits of its kind."""
    layout = SCALARS[kind]
    if kind in (6, 12):
        return struct.pack(layout, value if kind == 12 or abs(value) < 3e38 else math.inf)
    size = struct.calcsize(layout)
    return (int(value) % (1 << 8 * size)).to_bytes(size, "little")


def strings(words: list[bytes], claimed: int | None = None) -> bytes:
    """The body of an array of strings."""
    count = len(words) if claimed is None else claimed
    return struct.pack("<IQ", STRING, count % (1 << 64)) + b"".join(Text(word).packed() for word in words)


def numbers(kind: int, values: list[float], claimed: int | None = None) -> bytes:
    """The body of an array of numbers."""
    count = len(values) if claimed is None else claimed
    return struct.pack("<IQ", kind, count % (1 << 64)) + b"".join(scalar(kind, value) for value in values)


def taken_apart(data: bytes) -> Parts:
    """As far as it goes."""
    parts = Parts(magic=data[:4])
    at = 24
    try:
        parts.version, tensor_count, meta_count = struct.unpack_from("<IQQ", data, 4)
        for _ in range(meta_count):
            key, behind = _text(data, at)
            kind = struct.unpack_from("<I", data, behind)[0]
            end = _value_end(data, behind + 4, kind)
            parts.metas.append(Meta(key, kind, data[behind + 4 : end]))
            at = end
        for _ in range(tensor_count):
            name, behind = _text(data, at)
            count = struct.unpack_from("<I", data, behind)[0]
            if count > 8:
                raise ValueError
            dims = list(struct.unpack_from(f"<{count}Q", data, behind + 4))
            kind, offset = struct.unpack_from("<IQ", data, behind + 4 + 8 * count)
            parts.tensors.append(Tensor(name, dims, kind, offset))
            at = behind + 16 + 8 * count
        parts.tail = data[at + -at % 32 :]
    except (struct.error, ValueError):
        parts.whole = False
        parts.tail = data[at:]
        parts.tensor_count, parts.meta_count = struct.unpack_from("<QQ", data, 8) if len(data) >= 24 else (0, 0)
    return parts


def _text(data: bytes, at: int) -> tuple[Text, int]:
    size = struct.unpack_from("<Q", data, at)[0]
    if at + 8 + size > len(data):
        raise ValueError
    return Text(data[at + 8 : at + 8 + size]), at + 8 + size


def _value_end(data: bytes, at: int, kind: int, depth: int = 0) -> int:
    if kind == STRING:
        return _text(data, at)[1]
    if kind != ARRAY:
        end = at + struct.calcsize(SCALARS[kind]) if kind in SCALARS else len(data) + 1
    else:
        inner, count = struct.unpack_from("<IQ", data, at)
        end = at + 12
        if depth > 3 or count > len(data):
            raise ValueError
        if inner in SCALARS:
            end += count * struct.calcsize(SCALARS[inner])
        else:
            for _ in range(count):
                end = _value_end(data, end, inner, depth + 1)
    if end > len(data):
        raise ValueError
    return end


def spoilt(data: bytes, rng: Random) -> bytes:
    """One to three parts of a file changed into what a reader may trip over."""
    if rng.randrange(8) == 0:
        return edit_bytes(data, rng)
    parts = taken_apart(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        choice = rng.randrange(16)
        if choice < 6 and parts.metas:
            _spoil_meta(parts, rng)
        elif choice < 13 and parts.tensors:
            _spoil_tensor(parts, rng)
        elif choice == 13:
            _spoil_head(parts, rng)
        elif choice == 14:
            parts.tail = parts.tail[: rng.randrange(len(parts.tail) + 1)] if rng.randrange(2) else parts.tail * 2
        else:
            parts.tail = edit_bytes(parts.tail, rng)
    out = parts.packed()
    return out[: rng.randrange(len(out) + 1)] if rng.randrange(24) == 0 else out


def _spoil_head(parts: Parts, rng: Random) -> None:
    choice = rng.randrange(5)
    if choice == 0:
        parts.version = rng.choice((0, 1, 2, 3, 4, 0x03000000, 1 << 31))
    elif choice <= 2:
        parts.tensor_count = number(rng, len(parts.tensors))
    elif choice == 3:
        parts.meta_count = number(rng, len(parts.metas))
    else:
        parts.alignment = rng.choice((1, 8, 64))


def _spoil_meta(parts: Parts, rng: Random) -> None:
    metas = parts.metas
    at = rng.randrange(len(metas))
    one = metas[at]
    choice = rng.randrange(9)
    if choice == 0:
        del metas[at]
    elif choice == 1:
        metas.insert(rng.randrange(len(metas) + 1), Meta(Text(one.key.data), one.kind, one.body))
    elif choice == 2:
        one.key = Text(rng.choice(metas).key.data) if rng.randrange(2) else _word(rng)
    elif choice == 3:
        one.key = Text(one.key.data, number(rng, len(one.key.data)))
    elif choice == 4:
        one.kind = rng.choice((*SCALARS, STRING, ARRAY, 13, 255, 1 << 31))
    elif choice == 5:
        metas.append(
            Meta(Text(rng.choice((b"general.alignment", b"split.count", b"general.name"))), 4, scalar(4, number(rng)))
        )
    elif choice == 6 and one.kind in SCALARS:
        one.body = scalar(one.kind, rng.choice(FLOATS) if one.kind in (6, 12) else number(rng))
    elif choice == 7 and len(one.body) >= 12:
        place = 4 if one.kind == ARRAY else 0
        size = number(rng, int.from_bytes(one.body[place : place + 8], "little"))
        one.body = one.body[:place] + struct.pack("<Q", size % (1 << 64)) + one.body[place + 8 :]
    else:
        one.kind, one.body = _value(rng)


def _value(rng: Random) -> tuple[int, bytes]:
    choice = rng.randrange(6)
    if choice == 0:
        return STRING, _word(rng).packed()
    if choice == 1:
        return ARRAY, strings([_word(rng).data for _ in range(rng.choice((0, 1, 3, 50)))])
    if choice == 2:
        kind = rng.choice(tuple(SCALARS))
        sizes: tuple[float, ...] = FLOATS if kind in (6, 12) else EDGES
        return ARRAY, numbers(kind, [rng.choice(sizes) for _ in range(rng.choice((0, 1, 2, VOCAB, 48)))])
    if choice == 3:
        depth = rng.choice((1, 2, 3, 4, 60))
        return ARRAY, struct.pack("<IQ", ARRAY, rng.choice((1, 1, 2, 1 << 32))) * depth + numbers(4, [1.0])
    kind = rng.choice(tuple(SCALARS))
    return kind, scalar(kind, rng.choice((*FLOATS, math.nan, math.inf)) if kind in (6, 12) else number(rng))


def _word(rng: Random) -> Text:
    word = rng.choice(WORDS).encode("utf-8", "surrogatepass")
    return Text(word if rng.randrange(4) else rng.randbytes(rng.randrange(1, 9)))


def _spoil_tensor(parts: Parts, rng: Random) -> None:
    tensors = parts.tensors
    at = rng.randrange(len(tensors))
    one = tensors[at]
    choice = rng.randrange(10)
    if choice == 0:
        del tensors[at]
    elif choice == 1:
        tensors.insert(
            at, Tensor(_word(rng) if rng.randrange(2) else Text(one.name.data), list(one.dims), one.kind, one.offset)
        )
    elif choice == 2:
        one.name = rng.choice((_word(rng), Text(b"output.weight"), Text(rng.choice(tensors).name.data)))
    elif choice == 3:
        one.name = Text(one.name.data, number(rng, len(one.name.data)))
    elif choice == 4 and one.dims:
        one.dims[rng.randrange(len(one.dims))] = number(rng, one.dims[0])
    elif choice == 5:
        one.dims = [rng.choice((1, 2, 32, 1 << 16, 1 << 32, 1 << 63)) for _ in range(rng.randrange(6))]
    elif choice == 6:
        one.claimed_dims = number(rng, len(one.dims))
    elif choice == 7:
        one.kind = rng.choice((*BLOCKS, 4, 5, 9, 15, 16, 20, 24, 31, 39, 40, 1 << 31))
    elif choice == 8:
        other = rng.choice(tensors)
        one.offset = rng.choice((other.offset, other.offset + 32, other.offset + other.nbytes() - 32))
    else:
        one.offset = number(rng, one.offset) // 32 * 32 if rng.randrange(2) else number(rng, one.offset)


def spoilt_metadata(data: bytes, rng: Random, prefix: bytes) -> bytes:
    """Values alone, of keys that begin so; lengths and counts stay right."""
    parts = taken_apart(data)
    found = [one for one in parts.metas if one.key.data.startswith(prefix)]
    for one in rng.sample(found, min(len(found), rng.choice((1, 1, 2)))):
        if one.kind in SCALARS and rng.randrange(2):
            one.body = scalar(one.kind, rng.choice(FLOATS) if one.kind in (6, 12) else number(rng, 2))
        elif one.kind == ARRAY and rng.randrange(2):
            one.body = _spoilt_array(one.body, rng)
        else:
            one.kind, one.body = _value(rng)
    return parts.packed()


def _spoilt_array(body: bytes, rng: Random) -> bytes:
    """One entry changed, or the last one gone."""
    kind, count = struct.unpack_from("<IQ", body)
    if kind in SCALARS:
        width = struct.calcsize(SCALARS[kind])
        values = [body[12 + width * i : 12 + width * (i + 1)] for i in range(count)]
        spoilt_one = scalar(kind, rng.choice((*FLOATS, math.nan, math.inf)) if kind in (6, 12) else number(rng, 1))
    else:
        values, at = [], 12
        for _ in range(count):
            end = _value_end(body, at, kind)
            values.append(body[at:end])
            at = end
        spoilt_one = (_word(rng) if rng.randrange(2) or not values else Text(rng.choice(values)[8:])).packed()
    if values and rng.randrange(4):
        values[rng.randrange(len(values))] = spoilt_one
    elif values:
        values.pop()
    return struct.pack("<IQ", kind, len(values)) + b"".join(values)
