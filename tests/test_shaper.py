"""The shaped law against the same law spelt out over the whole row, and the state that follows a walk."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from edge_runtime.engines.protocol import Floats, Ids
from edge_runtime.errors import EngineError, InputError
from edge_runtime.sampling import Distribution, SamplingParams, law_from_logits
from edge_runtime.shaper import Shaper, shaper_for
from edge_runtime.shaping import ShapingParams
from edge_runtime.testing import FakeGrammar, Rule

VOCAB, CANDIDATES = 64, 8
LAWS = [
    SamplingParams(temperature=0.0),
    SamplingParams(),
    SamplingParams(temperature=0.7, top_k=3),
    SamplingParams(temperature=1.3, top_k=20),
    SamplingParams(top_p=0.5),
    SamplingParams(top_p=0.95, top_k=6),
    SamplingParams(min_p=0.3),
    SamplingParams(temperature=0.8, top_k=40, top_p=0.9, min_p=0.05),
]
SHAPES = [
    ShapingParams(),
    ShapingParams(presence_penalty=1.5),
    ShapingParams(frequency_penalty=0.7),
    ShapingParams(presence_penalty=-1.0, frequency_penalty=-0.6),
    ShapingParams(logit_bias={3: 4.0, 40: -100.0, 41: 100.0}),
    ShapingParams(presence_penalty=2.0, frequency_penalty=0.4, logit_bias=dict.fromkeys(range(10, 20), 2.0)),
    ShapingParams(logit_bias=dict.fromkeys(range(64), -7.5)),
]
ANSWER = [1, 17, 17, 33]


def behind_the_answer(rule: Rule) -> FakeGrammar:
    return FakeGrammar(lambda prefix: rule(prefix) if len(prefix) >= len(ANSWER) else range(64))


GRAMMARS = {
    "none": None,
    "even": behind_the_answer(lambda prefix: range(0, 64, 2)),
    "few": behind_the_answer(lambda prefix: {1, 17, 33}),
    "one": behind_the_answer(lambda prefix: {17}),
    "rising": behind_the_answer(lambda prefix: range(prefix[-1], 64)),
}


@dataclass
class Row:
    logits: Floats
    fetched: int = 0

    @property
    def order(self) -> Ids:
        return np.argsort(-self.logits, kind="stable")[:CANDIDATES]

    @property
    def candidate_ids(self) -> Ids:
        return self.order

    @property
    def candidate_logits(self) -> Floats:
        return self.logits[self.order]

    def full(self) -> Floats:
        self.fetched += 1
        return self.logits


def rows(count: int = 12) -> list[Row]:
    rng = np.random.default_rng(3)
    made = [Row((scale * rng.standard_normal(VOCAB)).astype(np.float32)) for scale in (0.5, 2.0, 6.0, 20.0) * 3]
    # Ties, within the candidates and across their edge.
    made += [Row(np.round(row.logits)) for row in made]
    return [*made, Row(np.zeros(VOCAB, np.float32))]


def spelt_out(row: Row, shape: ShapingParams, grammar: FakeGrammar | None, params: SamplingParams) -> Distribution:
    logits = row.logits.astype(np.float64)
    for token in range(VOCAB):
        shift = shape.logit_bias.get(token, 0.0)
        if token in ANSWER:
            shift -= shape.presence_penalty + shape.frequency_penalty * ANSWER.count(token)
        logits[token] += shift
        if grammar is not None and token not in grammar.rule(tuple(ANSWER)):
            logits[token] = -np.inf
    return law_from_logits(logits, params)


def shaper(shape: ShapingParams, grammar: FakeGrammar | None) -> Shaper:
    made = Shaper(shape, grammar, VOCAB)
    for token in ANSWER:
        made.follow(token)
    return made


@pytest.mark.parametrize("params", LAWS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", GRAMMARS)
def test_the_law_is_the_one_spelt_out(params: SamplingParams, shape: ShapingParams, name: str) -> None:
    grammar = GRAMMARS[name]
    made = shaper(shape, grammar)
    for row in rows():
        wanted, found = spelt_out(row, shape, grammar, params), made.law(row, params)
        assert found.ids.tolist() == wanted.ids.tolist()
        assert found.probs == pytest.approx(wanted.probs, abs=1e-12)
        if params.greedy:
            assert made.best(row) == wanted.ids[0]


def test_the_full_row_is_fetched_only_where_the_candidates_are_not_enough() -> None:
    falling = Row(np.arange(64, 0, -1, dtype=np.float32) * np.float32(0.7))
    cases = [
        (SHAPES[0], "even", [LAWS[0], LAWS[2]]),
        (SHAPES[1], "none", [LAWS[0], LAWS[2], LAWS[6]]),
        (SHAPES[0], "one", LAWS),
    ]
    for shape, name, laws in cases:
        for params in laws:
            shaper(shape, GRAMMARS[name]).law(falling, params)
            assert falling.fetched == 0
    for row in rows():
        row.fetched = 0
        shaper(SHAPES[0], GRAMMARS["even"]).law(row, SamplingParams())
        assert row.fetched == 1


def test_nothing_that_is_masked_or_not_finite_gets_through() -> None:
    nothing = FakeGrammar(lambda prefix: ())
    for params in LAWS:
        with pytest.raises(EngineError, match="allows no token"):
            Shaper(ShapingParams(), nothing, VOCAB).law(rows()[0], params)
    with pytest.raises(EngineError, match="allows no token"):
        Shaper(ShapingParams(), nothing, VOCAB).best(rows()[0])
    # All that the grammar allows is what the model rules out.
    row = rows()[2]
    row.logits[[1, 17, 33]] = -np.inf
    for params in LAWS:
        with pytest.raises(EngineError, match="not usable"):
            shaper(ShapingParams(), GRAMMARS["few"]).law(row, params)


def test_the_state_follows_and_is_rolled_back() -> None:
    shape = ShapingParams(presence_penalty=0.5, frequency_penalty=0.25, logit_bias={2: 0.75, 9: 1.0})
    row = rows()[3]
    grammar = FakeGrammar(lambda prefix: range(len(prefix), 64))
    made, laws = Shaper(shape, grammar, VOCAB, eos_ids=[63]), []
    text = [2, 9, 2, 5, 63]
    for token in text:
        laws.append(made.law(row, SamplingParams()))
        made.follow(token)
    for length in (4, 1, 3, 0, 2):
        made.agree(np.array(text[:length], np.int64))
        found = made.law(row, SamplingParams())
        assert np.array_equal(found.ids, laws[length].ids) and np.array_equal(found.probs, laws[length].probs)
    made.agree(np.zeros(0, np.int64))
    assert made._shifts == {2: 0.75, 9: 1.0} and made._counts == {}


def test_what_is_not_shaped_has_no_shaper() -> None:
    assert shaper_for(ShapingParams(), None, VOCAB, ()) is None
    assert shaper_for(ShapingParams(presence_penalty=0.1), None, VOCAB, ()) is not None
    assert shaper_for(ShapingParams(), GRAMMARS["one"], VOCAB, ()) is not None


def test_a_biased_token_must_exist() -> None:
    for token in (-1, VOCAB):
        with pytest.raises(InputError) as caught:
            Shaper(ShapingParams(logit_bias={token: 1.0}), None, VOCAB)
        assert caught.value.param == "logit_bias"
