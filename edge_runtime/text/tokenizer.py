"""Text to token ids and back to bytes, by sentencepiece. Knows no model.

Sentencepiece and not ``tokenizers``: with Gemma's 262,144 pieces it loads in 0.12 s and 50 MB, against 1.4 s and
300 MB (measured), and a board with 8 GB counts both.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from ..errors import BundleError, InputError, PromptTooLong, first_line, why

GUARD = "\ufdd0"
"""Noncharacter that keeps a control piece apart (``guarded``); ``parse_special`` drops it again."""
_OPENING = re.compile(r"[<\[]")
_SPACE = "\u2581"
_BYTE_PIECE = re.compile(r"<0x([0-9A-F]{2})>")
# Gemma has 6,242 of them: one alternative for all, and a look at the vocabulary for what it finds.
_UNUSED = re.compile(r"<unused\d+>")
_AT_ONCE = 8192
_MOST_KNOWN = 16_384
"""Pieces that are remembered: some 2 MB. All of Gemma's would be 40 MB, which a long-running process comes to use."""


def guarded(text: str) -> str:
    """``text`` such that ``Tokenizer.encode(parse_special=True)`` reads all of it as ordinary text.

    For what a user wrote inside a rendered template: no control piece can be spelt without its first character.
    A U+FDD0 of the text itself is lost; Unicode reserves it for such inner use.
    """
    return _OPENING.sub(rf"\g<0>{GUARD}", text)


class Tokenizer:
    """Raises ``BundleError`` for a file that is no sentencepiece model.

    A space is spelt U+2581 inside, so that a U+2581 of the text comes back as a space. All Gemma tokenizers do this.
    """

    _last: ClassVar[Tokenizer | None] = None
    _lock = threading.Lock()

    def __init__(self, path: Path) -> None:
        import sentencepiece

        self._model: Any = sentencepiece.SentencePieceProcessor()
        try:
            data = path.read_bytes()
            self._model.LoadFromSerializedProto(data)
        except (OSError, RuntimeError, UnicodeDecodeError) as problem:  # the last: of a message that quotes the file
            raise BundleError(f"{path}: not a tokenizer model: {first_line(problem)}") from None
        self._sha256 = hashlib.sha256(data).digest()
        self._path = path
        self.vocab_size: int = self._model.GetPieceSize()
        self.bos_id: int = self._model.bos_id()
        if self.bos_id < 0:
            raise BundleError(f"{path}: names no begin-of-text piece")
        self._specials: re.Pattern[str] | None = None
        self._bytes: dict[int, bytes] = {}
        self._longest = 0

    @classmethod
    def shared(cls, path: Path) -> Tokenizer:
        """The last one that was made here, if its file held the same as ``path``. Raises ``BundleError``.

        A daemon swaps bundles of one family, and what is made anew for each (262,144 pieces as objects, a grammar's
        tables) leaves Python's memory in pieces: 2 MB for three swaps, measured.
        """
        with cls._lock:
            if cls._last is None or not cls._last.is_of(path):
                cls._last = None  # not two at a time, where nobody else holds it
                cls._last = cls(path)
            return cls._last

    def is_of(self, path: Path) -> bool:
        """Whether ``path`` holds what this one was made of."""
        try:
            return hashlib.sha256(path.read_bytes()).digest() == self._sha256
        except OSError:
            return False

    def encode(
        self, text: str, *, bos: bool = True, parse_special: bool = False, context: int | None = None
    ) -> list[int]:
        """Token ids. ``parse_special`` reads control pieces such as ``<start_of_turn>`` as one token (a rendered
        template); without it they are ordinary text, so that what a user types cannot open a turn.

        With a ``context`` of so many tokens, a text whose length alone says that it has more is not read: raises
        ``PromptTooLong``. Raises ``InputError`` for text with half a surrogate pair, which no UTF-8 can hold.
        """
        if context is not None and len(text) > context:
            said = len(text) - text.count(GUARD) if parse_special else len(text)
            least = -(-said // self.longest_piece())
            if least > context:
                raise PromptTooLong.of(f"at least {least}", context)
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as problem:
            raise InputError(
                f"text: character {problem.start} is half a surrogate pair, or a byte that is not UTF-8"
            ) from None
        ids = [self.bos_id] if bos else []
        if not parse_special:
            return ids + list(self._model.EncodeAsIds(text))
        for part, special in self._split(text):
            ids += [special] if special is not None else list(self._model.EncodeAsIds(part.replace(GUARD, "")))
        return ids

    def longest_piece(self) -> int:
        """Characters of a text that one token can stand for. Gemma's tokenizers take a text as it is: none is dropped
        before it is cut into pieces."""
        if not self._longest:
            firsts = range(0, self.vocab_size, _AT_ONCE)
            parts = (range(first, min(first + _AT_ONCE, self.vocab_size)) for first in firsts)
            self._longest = max(len(piece) for part in parts for piece in self._pieces(list(part)))
        return self._longest

    def control_id(self, piece: str) -> int | None:
        """The id of a control piece, ``None`` for any other text."""
        token = int(self._model.PieceToId(piece))
        return token if self.is_control(token) and self._pieces([token]) == [piece] else None

    def piece_bytes(self, token: int) -> bytes:
        """What a token adds to the text; nothing for control tokens. Raises ``IndexError`` for no id of the model."""
        known = self._bytes.get(token)
        if known is None:
            if len(self._bytes) >= _MOST_KNOWN:
                self._bytes.clear()
            known = self._bytes[token] = self._piece_bytes(token)
        return known

    def all_piece_bytes(self) -> Iterator[bytes]:
        """``piece_bytes`` of every id in order, remembering none."""
        for first in range(0, self.vocab_size, _AT_ONCE):
            ids = list(range(first, min(first + _AT_ONCE, self.vocab_size)))
            for token, piece, control in zip(ids, self._pieces(ids), self._model.IsControl(ids), strict=True):
                special = control or (piece.startswith("<") and piece.endswith(">"))
                yield self._piece_bytes(token) if special else piece.replace(_SPACE, " ").encode("utf-8")

    def _pieces(self, ids: list[int]) -> list[str]:
        """Raises ``BundleError``: a damaged file may hold pieces that are no text, which are not looked at before."""
        try:
            found: list[str] = self._model.IdToPiece(ids)
        except UnicodeDecodeError as problem:
            raise BundleError(f"{self._path}: a piece of the tokenizer is no text: {why(problem)}") from None
        return found

    def is_control(self, token: int) -> bool:
        return bool(self._model.IsControl(token))

    def _piece_bytes(self, token: int) -> bytes:
        model = self._model
        if model.IsControl(token) or model.IsUnknown(token):
            return b""
        piece = self._pieces([token])[0]
        if model.IsByte(token):
            match = _BYTE_PIECE.fullmatch(piece)
            return bytes([int(match.group(1), 16)]) if match else b""
        return piece.replace(_SPACE, " ").encode("utf-8")

    def _split(self, text: str) -> Iterator[tuple[str, int | None]]:
        """Ordinary parts with ``None``, control pieces with their id."""
        if self._specials is None:
            self._specials = self._control_pattern()
        at = 0
        for match in self._specials.finditer(text):
            token = self.control_id(match.group())
            if token is None:
                continue
            if match.start() > at:
                yield text[at : match.start()], None
            yield match.group(), token
            at = match.end()
        if at < len(text):
            yield text[at:], None

    def _control_pattern(self) -> re.Pattern[str]:
        everything = list(range(self.vocab_size))
        controls = [i for i, control in zip(everything, self._model.IsControl(everything), strict=True) if control]
        named = [piece for piece in self._pieces(controls) if not _UNUSED.fullmatch(piece)]
        # What ``guarded`` cannot keep apart is never special. Longest first: an alternation takes the first that fits.
        named = sorted(filter(_OPENING.match, named), key=len, reverse=True)
        return re.compile("|".join([*map(re.escape, named), _UNUSED.pattern]))
