"""Structured output: every answer parses and satisfies its schema, whatever a model and its drafts do."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from typing import Any

import jsonschema
import model_fixture as real
import numpy as np
import pytest
from grammar_walks import INTEGER, PADDED, REAL_EOS, STRING, Walk, Words, gemma, obj, tiny
from random_schemas import random_schema
from tiny_bundle import tiny_tokenizer

from edge_runtime.errors import InputError
from edge_runtime.text.grammar import Grammar

SCHEMAS: dict[str, Any] = {
    "any object": {"type": "object"},
    "anything": {},
    "flat": obj("name age", name=STRING, age=INTEGER, ok={"type": "boolean"}),
    "optional": obj(a=STRING, b=INTEGER, c={"type": "null"}),
    "open": obj("a", additional=INTEGER, a=STRING, b=STRING),
    "nested": obj("a", a=obj("b", b={"type": "array", "items": obj("c", c={"type": "number"}), "maxItems": 3})),
    "enum": {"enum": ["red", "gr\"een\n", 1, 2.5, None, {"a": [1, "é"]}]},
    "const": obj("kind", kind={"const": "x\\y"}, v=STRING),
    "any of": {"anyOf": [obj("s", s=STRING), obj("i", i=INTEGER), {"type": "null"}]},
    "one of": {"oneOf": [STRING, INTEGER]},
    "all of": {"allOf": [obj("a", additional=True, a=STRING), obj("b", additional=True, b=INTEGER)]},
    "types": {"type": ["string", "integer", "null"]},
    "lengths": obj("s", s={"type": "string", "minLength": 2, "maxLength": 5}),
    "pattern": obj("s", s={"type": "string", "pattern": "^[a-z]{2,4}-[0-9]+$"}),
    "pattern inside": obj("s", s={"type": "string", "pattern": "b"}),
    "range": obj("i", i={"type": "integer", "minimum": -3, "maximum": 12}, n={"type": "number", "exclusiveMinimum": 0}),
    "multiple": obj("i", i={"type": "integer", "multipleOf": 7}),
    "items": {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 4},
    "tuple": {"type": "array", "prefixItems": [STRING, INTEGER], "items": False, "minItems": 2},
    "properties at most": {"type": "object", "additionalProperties": INTEGER, "minProperties": 1, "maxProperties": 2},
    "pattern properties": {"type": "object", "patternProperties": {"^n_": INTEGER}, "additionalProperties": False},
    "list node": {
        "$defs": {"node": obj("v next", v=INTEGER, next={"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]})},
        "$ref": "#/$defs/node",
    },
    "odd names": obj('a"b c/d', **{'a"b': INTEGER, "c/d": INTEGER, "~é": INTEGER}),
    "notes": {"$schema": "https://json-schema.org/draft/2020-12/schema", **obj(a={**INTEGER, "default": 1})},
}  # fmt: skip
DATE = obj("d", d={"type": "string", "format": "date"}, u={"type": "string", "format": "uuid"})


def compiled(kind: str, name: str) -> tuple[Grammar, Words]:
    compiler, words, _ = tiny() if kind == "tiny" else gemma()
    return compiler.json_schema(SCHEMAS[name]), words


@pytest.mark.parametrize("name", SCHEMAS)
@pytest.mark.parametrize(("kind", "walks"), [("tiny", 12), ("gemma", 2)])
def test_every_answer_parses_and_satisfies_its_schema(kind: str, walks: int, name: str) -> None:
    grammar, words = compiled(kind, name)
    validator = jsonschema.Draft202012Validator(SCHEMAS[name])
    for seed in range(walks):
        text = Walk(grammar, words, random.Random(f"{name} {seed}")).answer(most=60)
        validator.validate(json.loads(text))


def test_what_is_not_refused_is_kept() -> None:
    compiler, words, _ = tiny()
    kept = 0
    for seed in range(400):
        schema = random_schema(random.Random(seed))
        try:
            grammar = compiler.json_schema(schema)
        except InputError:
            continue
        kept += 1
        text = Walk(grammar, words, random.Random(seed)).answer(most=40)
        jsonschema.Draft202012Validator(schema).validate(json.loads(text))
    assert kept > 200


def test_formats_are_kept() -> None:
    compiler, words, _ = tiny()
    grammar = compiler.json_schema(DATE)
    for seed in range(5):
        said = json.loads(Walk(grammar, words, random.Random(seed)).answer(most=30))
        assert jsonschema.FormatChecker().conforms(said["d"], "date")


@pytest.mark.parametrize("name", ["any object", "open", "any of", "pattern inside", "list node", "lengths"])
@pytest.mark.parametrize("kind", ["tiny", "gemma"])
def test_after_a_rollback_nothing_remembers(kind: str, name: str) -> None:
    grammar, words = compiled(kind, name)
    for seed in range(3):
        walk = Walk(grammar, words, random.Random(seed))
        for _ in range(40):
            if not walk.ended:
                walk.step(hurry=False)
            if walk.chance.random() < 0.4:
                back = walk.chance.randint(0, len(walk.tokens))
                walk.state.rollback(back)
                del walk.tokens[len(walk.tokens) - back :]
            fresh = walk.replay()
            assert np.array_equal(walk.state.allowed(), fresh.allowed())
            assert walk.state.forced(8) == fresh.forced(8)


@pytest.mark.parametrize("name", SCHEMAS)
def test_one_token_and_all_tokens_agree(name: str) -> None:
    grammar, words = compiled("tiny", name)
    walk = Walk(grammar, words, random.Random(name))
    while not walk.ended and len(walk.tokens) < 30:
        allowed = walk.state.allowed().copy()
        assert [walk.state.allows(token) for token in range(len(allowed))] == allowed.tolist()
        assert not walk.state.allows(-1) and not walk.state.allows(len(allowed))
        assert not allowed[-PADDED:].any()
        walk.step(hurry=False)


def test_the_end_of_a_text() -> None:
    compiler, _, tokenizer = gemma()
    state = compiler.choice(["ab", "abc"]).start()
    a, b, c = (tokenizer.encode(letter, bos=False)[0] for letter in "abc")
    assert not state.allowed()[list(REAL_EOS)].any()
    assert state.valid_prefix([a, b, 106, 1, c]) == 4
    state.accept(a)
    state.accept(b)
    assert state.allowed()[list(REAL_EOS)].all() and state.allows(c)  # may end
    state.accept(c)
    assert np.flatnonzero(state.allowed()).tolist() == list(REAL_EOS)  # must
    assert state.valid_prefix([106, 1, a]) == 2 and state.forced(4) == []
    state.accept(106)
    assert np.flatnonzero(state.allowed()).tolist() == list(REAL_EOS)
    state.rollback(2)
    assert state.allows(c) and state.allows(1)
    state.rollback(2)
    assert state.valid_prefix([a, b, c, 1]) == 4
    with pytest.raises(ValueError, match="take back"):
        state.rollback(1)


def test_a_token_that_is_not_allowed_changes_nothing() -> None:
    compiler, _, tokenizer = gemma()
    state = compiler.json_object().start()
    before = state.allowed().copy()
    for token in (tokenizer.encode("x", bos=False)[0], 1, -1, 1 << 40):
        with pytest.raises(ValueError, match="not allowed"):
            state.accept(token)
    assert np.array_equal(state.allowed(), before)


def test_answers_share_a_grammar_and_nothing_else() -> None:
    compiler, _, tokenizer = tiny()
    grammar = compiler.json_object()
    one, other = grammar.start(), grammar.start()
    for token in tokenizer.encode('{"a', bos=False):
        one.accept(token)
    assert not other.allows(tokenizer.encode("a", bos=False)[0])
    assert other.allows(tokenizer.encode("{", bos=False)[0])


def test_what_is_certain_is_known_ahead() -> None:
    compiler, words, tokenizer = gemma()
    state = compiler.json_schema(obj("name", name=STRING)).start()
    forced = state.forced(16)
    assert words.text(forced) == '{"name":'
    assert state.forced(2) == forced[:2] and state.forced(0) == []
    # The spelling that the tokenizer chooses, hence the one that a model knows.
    assert tokenizer.encode('{"name": "x"}', bos=False)[: len(forced)] == forced


def test_what_is_certain_is_looked_up_once_and_not_at_each_of_its_tokens() -> None:
    """A schema may hold 128 KB of certain text, and the library spells all of it each time that it is asked."""
    grammar = tiny()[0].json_schema({"const": "abcdefgh " * 4000})
    state, once_s = grammar.start(), cpu_s(lambda: grammar.start().forced(1))

    def answer() -> None:
        for _ in range(4):
            forced = state.forced(16)
            assert len(forced) == 16 and state.valid_prefix(forced) == 16
            for token in forced:
                assert state.allowed().sum() == 1
                state.accept(token)

    assert cpu_s(answer) < 16 * once_s


def cpu_s(do: Callable[[], object]) -> float:
    begun_s = time.process_time()
    do()
    return time.process_time() - begun_s


def test_blanks_do_not_go_on() -> None:
    compiler, words, tokenizer = gemma()
    state = compiler.json_schema(obj("a", a=INTEGER, b=INTEGER)).start()
    for token in tokenizer.encode('{"a": 1', bos=False):
        state.accept(token)
    spelt = [words.piece_bytes(int(token)) for token in np.flatnonzero(state.allowed())]
    assert not [piece for piece in spelt if not piece.strip()]


def test_regular_expressions_and_choices() -> None:
    compiler, words, _ = tiny()
    texts = {Walk(compiler.choice(["yes", 'n"/o', "é\n"]), words, random.Random(i)).answer(9) for i in range(20)}
    assert texts == {"yes", 'n"/o', "é\n"}
    for seed in range(5):
        text = Walk(compiler.regex(r"a/[0-9]{2}\.b|c"), words, random.Random(seed)).answer(9)
        assert text == "c" or (text[:2], text[4:]) == ("a/", ".b")


def test_every_piece_is_known_at_once() -> None:
    for tokenizer in (real.load_tokenizer(tiny_tokenizer()), real.tokenizer()):
        everything = list(tokenizer.all_piece_bytes())
        assert len(everything) == tokenizer.vocab_size
        sample = range(0, tokenizer.vocab_size, 97)
        assert [everything[token] for token in [*range(600), *sample] if token < len(everything)] == [
            tokenizer.piece_bytes(token) for token in [*range(600), *sample] if token < len(everything)
        ]


def test_where_a_text_is_certain_its_spelling_is() -> None:
    compiler, words, _ = gemma()
    grammar = compiler.json_schema(SCHEMAS["flat"])
    walk = Walk(grammar, words, random.Random(5))
    while not walk.ended and len(walk.tokens) < 60:
        allowed = walk.state.allowed().copy()
        forced = walk.state.forced(1)
        assert not forced or np.flatnonzero(allowed).tolist() == forced
        near = [*np.flatnonzero(allowed)[:50].tolist(), *range(217, 480), *range(236_740, 236_900)]
        assert [walk.state.allows(token) for token in near] == allowed[near].tolist()
        walk.step(hurry=False)
