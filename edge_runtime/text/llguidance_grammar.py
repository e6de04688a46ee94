"""Grammars by llguidance. Knows no engine and no request.

JSON comes in one spelling, ``{"a": 1, "b": [2, 3]}``, as Python writes it and models read it: no other blanks are
allowed, so that none can go on for ever, and what a schema leaves no choice about is known ahead (``forced``).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from itertools import islice
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from .grammar import Grammar
from .json_schema import checked
from .message import Tool
from .schema_parts import Schema
from .tokenizer import Tokenizer
from .tools import checked_tools

_SPELLING = {
    "item_separator": ", ",
    "key_separator": ": ",
    "whitespace_flexible": False,
    "lenient": False,
    "coerce_one_of": False,
}
_SLICES = [r'[^"\\\x00-\x1F\x7F]+']
"""Tokens whose place in a grammar is looked up together. This one set is what any JSON string may hold: with it a mask
inside a string costs 0.1 ms and not 5. The library's three others would take 40 MB more for strings of bounded length.
"""
_LEXER_STATES = 20_000
"""Some 20 MB; a regular expression that needs more fails its request."""
_ANSWER = "response_format"

_FREE = r"""
start: TEXT | calls
TEXT: /(.|\n)*/ & ~/\[?\{"name":(.|\n)*/
"""
_STRICT = "start: calls\n"


class GrammarCompiler:
    """Grammars for one model's tokens. Safe to call from several threads.

    Made at once; the library's tables (for Gemma 3 some 2 s and 65 MB, measured) are built by the first grammar, and
    shared by all, those of the next model with the same ``Tokenizer.shared`` too.
    """

    def __init__(self, tokenizer: Tokenizer, eos_ids: Sequence[int], vocab_size: int) -> None:
        """``vocab_size``: rows of the head; those that are no piece are never allowed."""
        self._eos_ids, self._vocab_size = tuple(eos_ids), vocab_size
        self._tables = _Tables.of(tokenizer, self._eos_ids, vocab_size)

    def json_object(self) -> Grammar:
        """Any JSON object."""
        return self.json_schema({"type": "object"})

    def json_schema(self, schema: object, param: str = _ANSWER) -> Grammar:
        """What satisfies ``schema``, properties in its order. Raises ``InputError`` in one line, see
        ``json_schema.checked``."""
        source = json.dumps({"grammars": [{"json_schema": _spelt(checked(schema, "schema", param))}]})
        return self._compile(source, "schema", param)

    def regex(self, pattern: str, param: str = _ANSWER) -> Grammar:
        """The whole answer, by the syntax of Rust's ``regex``. Raises ``InputError``."""
        return self._compile(
            json.dumps({"grammars": [{"lark_grammar": f"start: /{_slashed(pattern)}/"}]}), "regex", param
        )

    def choice(self, texts: Sequence[str], param: str = _ANSWER) -> Grammar:
        """One of some texts. Raises ``InputError``."""
        if not texts or not all(texts):
            raise InputError("choice: needs texts, none of them empty", param)
        alternatives = " | ".join(map(_quoted, texts))
        return self._compile(json.dumps({"grammars": [{"lark_grammar": f"start: {alternatives}"}]}), "choice", param)

    def tool_calls(self, tools: Sequence[Tool], *, text: bool, parallel: bool) -> Grammar:
        """Calls of ``tools`` as ``tools.CallReader`` reads them: one, or with ``parallel`` a list of them too. With
        ``text`` also any text that does not begin as a call does. Raises ``InputError``.
        """
        if not tools:
            raise InputError("tools: there are none to call", "tools")
        rules = [_FREE if text else _STRICT]
        # The opening is one lexeme: after a bracket of its own the free text would win, being longer.
        several = r' | "[{\"name\": " named "}" (", " call)* "]"' if parallel else ""
        rules += [f"calls: call{several}", r'call: "{\"name\": " named "}"']
        rules += ["named: " + " | ".join(f"named{index}" for index in range(len(tools)))]
        for index, (name, schema) in enumerate(checked_tools(tools)):
            opening = _quoted(f'"{name}", "parameters": ')
            rules += [f"named{index}: {opening} given{index}", f"given{index}: %json {json.dumps(_spelt(schema))}"]
        return self._compile(json.dumps({"grammars": [{"lark_grammar": "\n".join(rules)}]}), "tools", "tools")

    def _compile(self, source: str, what: str, param: str) -> Grammar:
        import llguidance

        matcher = llguidance.LLMatcher(self._tables.built(), source, log_level=0, limits=_limits())
        problem = matcher.get_error()
        if not problem:
            # Some mistakes show only when the first token is asked for.
            first = matcher.deep_copy()
            first.compute_bitmask()
            problem = first.get_error() and "nothing satisfies it"
        if problem:
            raise InputError(f"{what}: {_one_line(problem)}", param)
        return _CompiledGrammar(matcher, self._eos_ids, self._vocab_size, param)


class _Tables:
    """What the library needs to know of a vocabulary; the last one is kept for the next compiler of the same."""

    _last: ClassVar[_Tables | None] = None
    _lock = threading.Lock()

    def __init__(self, tokenizer: Tokenizer, eos_ids: tuple[int, ...], vocab_size: int) -> None:
        self._of = (tokenizer, eos_ids, vocab_size)
        self._made: Any = None
        self._making = threading.Lock()

    @classmethod
    def of(cls, tokenizer: Tokenizer, eos_ids: tuple[int, ...], vocab_size: int) -> _Tables:
        with cls._lock:
            last = cls._last
            if last is None or last._of[0] is not tokenizer or last._of[1:] != (eos_ids, vocab_size):
                last = cls._last = cls(tokenizer, eos_ids, vocab_size)
            return last

    def built(self) -> Any:
        with self._making:
            if self._made is None:
                import llguidance

                tokenizer, eos_ids, vocab_size = self._of
                known: Any = _Vocabulary(tokenizer, eos_ids, vocab_size)
                self._made = llguidance.LLTokenizer(known, n_vocab=vocab_size, eos_token=list(eos_ids), slices=_SLICES)
                known.tokens = ()
            return self._made


class _Vocabulary:
    """What the library asks of a tokenizer, by the names that it uses."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, eos_ids: Sequence[int], vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id = eos_ids[0]
        self.special_token_ids: list[int] = []
        self.tokens: Sequence[bytes] = self._pieces(vocab_size)

    def __call__(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, bos=False)

    def _pieces(self, vocab_size: int) -> list[bytes]:
        tokens: list[bytes] = []
        for token, piece in enumerate(islice(self._tokenizer.all_piece_bytes(), vocab_size)):
            tokens.append(piece or f"<special {token}>".encode())
            if not piece:
                self.special_token_ids.append(token)
        # Rows of the head that are no piece: special, and named by no grammar.
        padding = range(len(tokens), vocab_size)
        self.special_token_ids += padding
        return tokens + [f"<special {token}>".encode() for token in padding]


class _CompiledGrammar:
    def __init__(self, matcher: Any, eos_ids: tuple[int, ...], vocab_size: int, param: str) -> None:
        self._matcher, self._eos_ids, self._vocab_size, self._param = matcher, eos_ids, vocab_size, param

    def start(self) -> _State:
        return _State(self._matcher.deep_copy(), self._eos_ids, self._vocab_size, self._param)


class _State:
    """Implements ``grammar.GrammarState``. The end of the text is kept here: to the library it is a token like others,
    and a grammar that is complete swallows any number of them."""

    def __init__(self, matcher: Any, eos_ids: tuple[int, ...], vocab_size: int, param: str) -> None:
        self._matcher, self._eos_ids, self._param = matcher, eos_ids, param
        self._ended = 0
        """End-of-text tokens accepted."""
        self._certain: list[int] | None = None
        """What must come next, empty where there is a choice; ``None``: the library is not asked yet. It spells all of
        it each time (64 KB: 17 ms), hence once a stretch and not once a token."""
        self._said = 0
        """How many of those were accepted since."""
        self._bits = np.zeros(-(-vocab_size // 32), np.uint32)
        """[ceil(vocab_size / 32)] as the library writes it, one bit a token"""
        self._unpacked = np.zeros((len(self._bits) * 4, 8), np.bool_)
        self._allowed: NDArray[np.bool_] = self._unpacked.reshape(-1)[:vocab_size]

    def allowed(self) -> NDArray[np.bool_]:
        if self._ended:
            self._allowed[:] = False
            self._allowed[list(self._eos_ids)] = True
            return self._allowed
        if self._certain is not None and self._said < len(self._certain):
            self._allowed[:] = False
            self._allowed[self._certain[self._said]] = True
            return self._allowed
        self._matcher.unsafe_compute_mask_ptr(self._bits.ctypes.data, self._bits.nbytes)
        self._check()
        np.take(_BITS, self._bits.view(np.uint8), axis=0, out=self._unpacked, mode="clip")
        return self._allowed

    def allows(self, token: int) -> bool:
        if self._ended or self._matcher.is_stopped():
            self._check()
            return token in self._eos_ids
        # As ``allowed``: where a spelling is forced, the others of the same text are not allowed.
        forced = self._ahead(1)
        fits = bool(token == forced[0] if forced else self._is_row(token) and self._matcher.validate_tokens([token]))
        self._check()
        return fits

    def forced(self, most: int) -> list[int]:
        if self._ended or most < 1:
            return []
        return self._ahead(most)

    def _ahead(self, most: int) -> list[int]:
        if self._certain is None:
            certain: list[int] = self._matcher.compute_ff_tokens()
            self._check()
            self._certain, self._said = certain, 0
        return self._certain[self._said : self._said + most]

    def valid_prefix(self, tokens: list[int]) -> int:
        count = 0
        for token in tokens:
            if not self.allows(token):
                break
            self._take(token)
            count += 1
        self.rollback(count)
        return count

    def accept(self, token: int) -> None:
        if not self.allows(token):
            raise ValueError(f"token {token} is not allowed here")
        self._take(token)

    def _take(self, token: int) -> None:
        if token in self._eos_ids:
            self._ended += 1
            return
        if not self._matcher.consume_token(token):
            self._check()
        self._said += 1
        if self._certain is not None and self._said >= len(self._certain):
            self._certain = None

    def _is_row(self, token: int) -> bool:
        return 0 <= token < len(self._allowed)

    def rollback(self, count: int) -> None:
        ends = min(count, self._ended)
        self._ended -= ends
        if count > ends and not self._matcher.rollback(count - ends):
            raise ValueError(f"cannot take back {count} tokens")
        self._said -= count - ends
        if self._said < 0:
            self._certain = None

    def _check(self) -> None:
        """Raises ``InputError`` for a grammar that outgrew its limits on the way; this state is of no use then."""
        if self._matcher.is_error():
            raise InputError(f"the grammar got too complex: {_one_line(self._matcher.get_error())}", self._param)


_BITS: NDArray[np.bool_] = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little") != 0
"""[256, 8] the bits of a byte"""


def _limits() -> Any:
    import llguidance

    # Its longer messages hold the text that was generated.
    return llguidance.LLParserLimits(max_lexer_states=_LEXER_STATES, verbose_errors=False)


def _spelt(schema: Schema) -> Schema:
    return schema | {"x-guidance": _SPELLING}


def _quoted(text: str) -> str:
    """A literal of the library's grammars, which are spelt as JSON is."""
    return json.dumps(text, ensure_ascii=False)


def _slashed(pattern: str) -> str:
    return pattern.replace("/", "\\/")


def _one_line(problem: str) -> str:
    return " ".join(problem.replace("<non-verbose/>", "").split())
