"""The wire format of protocol buffers, as far as small ONNX graphs need it. Knows no message.

The light runtime has neither ``onnx`` nor ``protobuf``. A message is a list of fields; one that is not understood is
handed on as it is. Source of the format: https://protobuf.dev/programming-guides/encoding
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

Field = tuple[int, "int | bytes"]
"""Number, and a varint or what is length-delimited; fixed ones are kept as ``Fixed``."""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class Fixed(bytes):
    """Four or eight bytes that are no length-delimited field."""


def fixed32(value: float) -> Fixed:
    return Fixed(struct.pack("<f", value))


def encode(fields: list[Field]) -> bytes:
    """Negative integers as their 64 bits."""
    parts = []
    for number, value in fields:
        if isinstance(value, Fixed):
            parts += [_varint(number << 3 | (_FIXED32 if len(value) == 4 else _FIXED64)), value]
        elif isinstance(value, bytes):
            parts += [_varint(number << 3 | _BYTES), _varint(len(value)), value]
        else:
            parts += [_varint(number << 3 | _VARINT), _varint(value & (1 << 64) - 1)]
    return b"".join(parts)


def decode(data: bytes) -> Iterator[Field]:
    """Raises ``ValueError`` where it is no message."""
    at = 0
    while at < len(data):
        key, at = _read_varint(data, at)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            value, at = _read_varint(data, at)
            yield number, value
            continue
        if kind == _BYTES:
            size, at = _read_varint(data, at)
        elif kind in (_FIXED32, _FIXED64):
            size = 4 if kind == _FIXED32 else 8
        else:
            raise ValueError(f"wire type {kind} at byte {at}")
        if at + size > len(data):
            raise ValueError("a message that is cut off")
        yield number, data[at : at + size] if kind == _BYTES else Fixed(data[at : at + size])
        at += size


def texts(data: bytes, number: int) -> tuple[str, ...]:
    """All strings of one field."""
    return tuple(value.decode() for found, value in decode(data) if found == number and isinstance(value, bytes))


def unpacked(data: bytes) -> list[int]:
    """Varints in a row."""
    values, at = [], 0
    while at < len(data):
        value, at = _read_varint(data, at)
        values.append(value)
    return values


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise ValueError("a message that is cut off")
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
