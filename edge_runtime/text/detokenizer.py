"""Bytes of tokens to text as they come. Knows no tokenizer."""

from __future__ import annotations

import codecs
from collections.abc import Callable


class Detokenizer:
    """A character split over tokens is held back until it is whole; what can no longer become one shows as U+FFFD."""

    def __init__(self, piece_bytes: Callable[[int], bytes]) -> None:
        self._piece_bytes = piece_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        return self._decoder.decode(self._piece_bytes(token))

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)
