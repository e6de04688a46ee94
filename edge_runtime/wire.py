"""The wire format of protocol buffers, as far as small ONNX graphs need it. Knows no message.

The light runtime has neither ``onnx`` nor ``protobuf``. A message is a list of fields; one that is not understood is
handed on as it is. Source of the format: https://protobuf.dev/programming-guides/encoding
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

Field = tuple[int, "int | bytes"]
"""Number, and a varint or what is length-delimited; fixed ones are kept as ``Fixed``."""

_VARINT, _FIXED64, BYTES, _FIXED32 = 0, 1, 2, 5
_MOST_FIELDS = (1 << 29) - 1
_CUT_OFF = "a message that is cut off"


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
            parts += [_varint(number << 3 | BYTES), _varint(len(value)), value]
        else:
            parts += [_varint(number << 3 | _VARINT), _varint(value & (1 << 64) - 1)]
    return b"".join(parts)


def decode(data: bytes) -> Iterator[Field]:
    """Raises ``ValueError`` where it is no message."""
    for number, kind, value, end in spans(data, 0, len(data)):
        if kind == _VARINT:
            yield number, value
        else:
            yield number, data[value:end] if kind == BYTES else Fixed(data[value:end])


def spans(data: bytes, at: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
    """Number, wire type, and a varint or where a value begins; and where it ends: of the message in ``data[at:stop]``,
    of which nothing is copied. Raises ``ValueError``."""
    while at < stop:
        key, at = _read_varint(data, at, stop)
        number, kind = key >> 3, key & 7
        # Others cut it to 32 bits, and would take for a known field what is none here.
        if not 0 < number <= _MOST_FIELDS:
            raise ValueError(f"field {number} at byte {at}")
        if kind == _VARINT:
            value, at = _read_varint(data, at, stop)
            yield number, kind, value, at
            continue
        if kind == BYTES:
            size, at = _read_varint(data, at, stop)
        elif kind in (_FIXED32, _FIXED64):
            size = 4 if kind == _FIXED32 else 8
        else:
            raise ValueError(f"wire type {kind} at byte {at}")
        if at + size > stop:
            raise ValueError(_CUT_OFF)
        yield number, kind, at, at + size
        at += size


def texts(data: bytes, number: int) -> tuple[str, ...]:
    """All strings of one field."""
    return tuple(value.decode() for found, value in decode(data) if found == number and isinstance(value, bytes))


def unpacked(data: bytes) -> list[int]:
    """Varints in a row."""
    values, at = [], 0
    while at < len(data):
        value, at = _read_varint(data, at, len(data))
        values.append(value)
    return values


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_varint(data: bytes, at: int, stop: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= stop or shift > 63:
            raise ValueError(_CUT_OFF)
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
