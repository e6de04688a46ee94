"""Log-probabilities beside the text that they belong to, in the formats of both endpoints. Knows no model.

Text lags behind tokens where a character or a stop string may span them. A token's log-probability goes out when its
text does, so that those of a stop string, which is never shown, never do either.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..generation import Piece
from ..text.detokenizer import Detokenizer

PieceBytes = Callable[[int], bytes]

LEAST = -9999.0
"""JSON has no -Infinity; OpenAI writes this."""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]
    """(id, log-probability) of the most probable ones."""
    offset: int
    """Characters of the answer before it."""


class LogprobLine:
    """Of one answer, from its first token to its last."""

    def __init__(self, piece_bytes: PieceBytes, eos_ids: Sequence[int]) -> None:
        self._piece_bytes, self._eos_ids = piece_bytes, frozenset(eos_ids)
        self._detokenizer = Detokenizer(piece_bytes)
        self._decoded = self._shown = 0
        self._held: list[TokenLogprob] = []

    def take(self, piece: Piece) -> list[TokenLogprob]:
        """What goes out with the piece's text. The token that ends a text is no part of it."""
        alternatives = piece.top or ((),) * len(piece.tokens)
        for token, logprob, top in zip(piece.tokens, piece.logprobs, alternatives, strict=True):
            if token not in self._eos_ids:
                self._held.append(TokenLogprob(token, logprob, tuple(top), self._decoded))
                self._decoded += len(self._detokenizer.push(token))
        self._shown += len(piece.text)
        by_itself = piece.finish_reason == "length" or (piece.finish_reason == "stop" and self._ended(piece))
        count = len(self._held) if by_itself else bisect_left([one.offset for one in self._held], self._shown)
        out, self._held = self._held[:count], self._held[count:]
        return out

    def _ended(self, piece: Piece) -> bool:
        """By an end-of-text token, and not by a stop string."""
        return bool(piece.tokens) and piece.tokens[-1] in self._eos_ids


def chat_logprobs(found: Sequence[TokenLogprob], piece_bytes: PieceBytes) -> dict[str, Any]:
    def entry(token: int, logprob: float) -> dict[str, Any]:
        data = piece_bytes(token)
        return {"token": data.decode("utf-8", "replace"), "logprob": finite(logprob), "bytes": list(data)}

    content = []
    for one in found:
        top = [entry(token, logprob) for token, logprob in one.top]
        content.append({**entry(one.token, one.logprob), "top_logprobs": top})
    return {"content": content, "refusal": None}


def completion_logprobs(found: Sequence[TokenLogprob], piece_bytes: PieceBytes) -> dict[str, Any]:
    def text(token: int) -> str:
        return piece_bytes(token).decode("utf-8", "replace")

    tops = []
    for one in found:
        # Reversed: of tokens that read the same, the more probable one stays. Then the one that was drawn.
        top = {text(token): finite(logprob) for token, logprob in reversed(one.top)}
        top = dict(sorted(top.items(), key=lambda item: -item[1]))
        top[text(one.token)] = finite(one.logprob)
        tops.append(top)
    return {
        "tokens": [text(one.token) for one in found],
        "token_logprobs": [finite(one.logprob) for one in found],
        "top_logprobs": tops,
        "text_offset": [one.offset for one in found],
    }


def finite(logprob: float) -> float:
    return max(logprob, LEAST)
