"""Bias, penalties and grammars under speculation: the text and the law of plain decoding, at every draft row."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from test_decoder_sampling import SMALL, LikelyButWrong, chi_square_excess, other

from edge_runtime import verification
from edge_runtime.acceptance import gumbel_pick
from edge_runtime.cost import HeadMode
from edge_runtime.decoder import Decoder
from edge_runtime.drafters.draft_model import DraftModel
from edge_runtime.drafters.length import FixedLength
from edge_runtime.drafters.prompt_lookup import PromptLookup
from edge_runtime.drafters.protocol import Drafter
from edge_runtime.errors import EngineError, InputError
from edge_runtime.noise import gumbel
from edge_runtime.sampling import Distribution, SamplingParams, law_from_logits
from edge_runtime.session import Session, StepResult
from edge_runtime.shaping import ShapingParams
from edge_runtime.testing import FakeEngine, FakeGrammar, FakeModel, ScriptedDraft, decode

PROMPT = [5, 9, 2, 10, 5, 9, 2]
MODEL = FakeModel()
EOS = 63
GREEDY = SamplingParams(temperature=0.0)
LAWS = [
    GREEDY,
    SamplingParams(),
    SamplingParams(temperature=0.8, top_k=5),
    SamplingParams(temperature=1.2, top_p=0.9),
    SamplingParams(min_p=0.1),
]
SHAPES = {
    "nothing": ShapingParams(),
    "penalties": ShapingParams(presence_penalty=1.0, frequency_penalty=1.0),
    "rewards": ShapingParams(presence_penalty=-2.0, frequency_penalty=-1.0),
    "bias": ShapingParams(logit_bias={4: 3.0, 50: 5.0, 7: -100.0}, frequency_penalty=0.5),
}
WORDS = [[3, 4, 5], [3, 4, 6, 7, 8, 9, 10, 11, 12, 13], [20, 21, 22, 23, 24, 25, 26, 27], [20, 21, 30]]
GRAMMARS = {
    "none": None,
    # Six tokens from one half in turn with six of the other; may end after twelve.
    "halves": FakeGrammar(
        lambda prefix: [*range(len(prefix) // 6 % 2, 62, 2), *([EOS] if len(prefix) >= 12 else [])],
    ),
    "words": FakeGrammar.one_of(WORDS, EOS),
    # Pairs: what follows an even token is its successor, so that half of the text is forced.
    "pairs": FakeGrammar(lambda prefix: [prefix[-1] + 1] if len(prefix) % 2 else range(0, 60, 2)),
}


def spelt_out(
    answer: Sequence[int], params: SamplingParams, shape: ShapingParams, grammar: FakeGrammar | None, model: FakeModel,
    prompt: Sequence[int],
) -> Distribution:  # fmt: skip
    ids = np.arange(model.vocab_size)
    logits = model.logits(model.digest(np.array([*prompt, *answer])), ids).astype(np.float64)
    for token, bias in shape.logit_bias.items():
        logits[token] += bias
    for token in set(answer):
        logits[token] -= shape.presence_penalty + shape.frequency_penalty * list(answer).count(token)
    if grammar is not None:
        allowed = np.isin(ids, list(grammar.rule(tuple(answer))))
        logits[~allowed] = -np.inf
    return law_from_logits(logits, params)


def written_out(
    params: SamplingParams, seed: int, shape: ShapingParams, grammar: FakeGrammar | None, count: int = 30
) -> list[int]:
    """Plain decoding without any of the code under test."""
    answer: list[int] = []
    while len(answer) < count and EOS not in answer:
        law = spelt_out(answer, params, shape, grammar, MODEL, PROMPT)
        answer.append(gumbel_pick(law, gumbel(seed, len(PROMPT) + len(answer), law.ids)))
    return answer


def run(
    params: SamplingParams, shape: ShapingParams, grammar: FakeGrammar | None, drafter: Drafter | None = None,
    k: int = 0, head_mode: HeadMode = "batched", **options: int | None,
) -> tuple[Session, list[StepResult], FakeEngine]:  # fmt: skip
    engine = FakeEngine(MODEL)
    session = Session(
        engine.info, PROMPT, params, seed=7, max_tokens=30, eos_ids=[EOS], shaping=shape, grammar=grammar,
        **options,  # type: ignore[arg-type]
    )  # fmt: skip
    return session, decode(Decoder(engine, drafter, FixedLength(k, head_mode)), session), engine


def drafters(agreement: float) -> list[Drafter]:
    info = FakeEngine(MODEL).info
    return [DraftModel(FakeEngine(other(MODEL, agreement)), info), PromptLookup()]


@pytest.fixture(params=["as a whole", "from what is known"])
def unfiltered(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways to draw from a pure temperature law; the choice is by the size of the vocabulary."""
    monkeypatch.setattr(verification, "_MANY", 0 if request.param == "from what is known" else 1 << 30)


@pytest.mark.usefixtures("unfiltered")
@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.7])
@pytest.mark.parametrize("name", GRAMMARS)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_draw_from_what_is_known_is_a_draw_from_the_whole_law(temperature: float, name: str, shape: str) -> None:
    params = SamplingParams(temperature=temperature)
    wanted = written_out(params, 7, SHAPES[shape], GRAMMARS[name])
    for drafter in (None, *drafters(0.8)):
        session, _, _ = run(params, SHAPES[shape], GRAMMARS[name], drafter, 3)
        assert session.generated.tolist() == wanted


def test_a_draw_from_what_is_known_seldom_needs_the_full_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "_MANY", 0)
    model = FakeModel(scale=6.0)
    engine = FakeEngine(model, candidates=16)
    session = Session(engine.info, PROMPT, SamplingParams(), seed=7, top_logprobs=None)
    steps = decode(Decoder(engine), session)
    assert len(engine.rows_of("logits")) < 0.3 * len(steps)


@pytest.mark.parametrize("params", LAWS, ids=str)
@pytest.mark.parametrize("name", GRAMMARS)
@pytest.mark.parametrize("shape", SHAPES)
def test_shaped_texts_are_those_of_plain_decoding(params: SamplingParams, name: str, shape: str) -> None:
    grammar = GRAMMARS[name]
    wanted = written_out(params, 7, SHAPES[shape], grammar)
    plain, _, _ = run(params, SHAPES[shape], grammar, max_draft_tokens=0)
    assert plain.generated.tolist() == wanted
    assert plain.finish_reason == ("stop" if wanted[-1] == EOS else "length")
    for agreement, k, head_mode in ((1.0, 4, "batched"), (0.7, 3, 2), (-1.0, 2, 1)):
        for drafter in drafters(agreement):
            session, _, _ = run(params, SHAPES[shape], grammar, drafter, k, head_mode)  # type: ignore[arg-type]
            assert session.generated.tolist() == wanted
            assert session.logprobs.tolist() == plain.logprobs.tolist()


def test_shapes_change_the_text() -> None:
    """Companion: what has no effect proves nothing."""
    texts = {
        (name, shape): tuple(written_out(GREEDY, 7, SHAPES[shape], GRAMMARS[name]))
        for name, shape in itertools.product(("none", "halves"), SHAPES)
    }
    assert len(set(texts.values())) == len(texts)


@pytest.mark.parametrize("k", [1, 3, 6])
@pytest.mark.parametrize("params", [LAWS[0], LAWS[2]], ids=str)
def test_a_draft_of_the_shaped_text_is_fully_accepted(k: int, params: SamplingParams) -> None:
    """Row by row the law knows the drafts before it: one penalty too early or too late would reject."""
    for shape, name in itertools.product(SHAPES.values(), ("none", "halves")):
        wanted = written_out(params, 7, shape, GRAMMARS[name])
        draft = ScriptedDraft([*PROMPT, *wanted])
        session, _, _ = run(params, shape, GRAMMARS[name], draft, k)
        assert session.generated.tolist() == wanted
        assert session.totals.accepted == session.totals.drafted > 0


@pytest.mark.parametrize("k", [0, 3])
def test_forced_tokens_are_free_drafts(k: int) -> None:
    wanted = written_out(GREEDY, 7, SHAPES["nothing"], GRAMMARS["words"])
    session, steps, _ = run(GREEDY, SHAPES["nothing"], GRAMMARS["words"], drafters(0.5)[0], k)
    assert session.generated.tolist() == wanted
    forced = [step for step in steps if step.source == "grammar"]
    assert forced and all(step.accepted == step.drafted for step in forced)
    assert len(steps) < len(wanted) - 2
    # No drafts at all where the request wants none.
    session, steps, engine = run(GREEDY, SHAPES["nothing"], GRAMMARS["words"], drafters(0.5)[0], 3, max_draft_tokens=0)
    assert session.generated.tolist() == wanted
    assert {step.drafted for step in steps} == {0} and max(engine.rows_of("head")) == 1
    session, steps, _ = run(GREEDY, SHAPES["nothing"], GRAMMARS["words"], drafters(0.5)[0], 3, max_draft_tokens=2)
    assert session.generated.tolist() == wanted
    assert max(step.drafted for step in steps) == 2


def test_a_draft_ends_at_the_first_token_that_the_grammar_forbids() -> None:
    wanted = written_out(GREEDY, 7, SHAPES["nothing"], GRAMMARS["halves"])
    for place in (1, 2, 3, 4, 5, 7, 8):  # 6 is the bonus of the first step, and never drafted
        # The scripted mistake is of the other half, so it is never allowed.
        draft = ScriptedDraft([*PROMPT, *wanted], wrong_at=[len(PROMPT) + place])
        session, steps, _ = run(GREEDY, SHAPES["nothing"], GRAMMARS["halves"], draft, 5)
        assert session.generated.tolist() == wanted
        assert session.totals.drafted - session.totals.accepted == 1, "it counts as a rejected draft"
        (refused,) = [step for step in steps if step.accepted < step.drafted]
        assert refused.rows == refused.drafted, "but costs no row"


@pytest.mark.parametrize("fail_after", range(12))
def test_a_failure_in_the_middle_of_a_walk_leaves_no_trace(fail_after: int) -> None:
    """Head by head, so that some drafts of the step were accepted already."""
    for params, name in itertools.product((GREEDY, LAWS[2]), ("none", "halves", "words")):
        shape = SHAPES["penalties"]
        wanted = written_out(params, 7, shape, GRAMMARS[name])
        engine = FakeEngine(MODEL)
        session = Session(
            engine.info, PROMPT, params, seed=7, max_tokens=30, eos_ids=[EOS], shaping=shape, grammar=GRAMMARS[name]
        )
        decoder = Decoder(engine, ScriptedDraft([*PROMPT, *wanted]), FixedLength(4, 1))
        engine.fail_after = fail_after
        failed = 0
        while session.finish_reason is None:
            try:
                decoder.advance(session)
            except EngineError:
                failed += 1
        assert session.generated.tolist() == wanted
        assert session.totals.accepted == session.totals.drafted
        assert failed == (engine.fail_after is None)


@pytest.mark.parametrize("name", GRAMMARS)
def test_cut_takes_the_shaping_back(name: str) -> None:
    shape = SHAPES["penalties"]
    wanted = written_out(GREEDY, 7, shape, GRAMMARS[name])
    session, _, engine = run(GREEDY, shape, GRAMMARS[name], ScriptedDraft([*PROMPT, *wanted]), 4)
    for left in (len(wanted), 5, 2, 0, 3):
        session.cut(len(PROMPT) + left)
        session.finish_reason = None
        decoder = Decoder(engine, ScriptedDraft([*PROMPT, *wanted]), FixedLength(4))
        if left < len(wanted):
            decode(decoder, session)
        assert session.generated.tolist() == wanted


@pytest.mark.parametrize(
    "params", [SamplingParams(), SamplingParams(temperature=0.7, top_k=4), SamplingParams(temperature=1.5, top_p=0.85)],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("kind", ["half", "one-hot", "foreign"])
@pytest.mark.parametrize("shape", ["penalties", "grammar"])
def test_unseeded_texts_follow_the_shaped_law(
    params: SamplingParams, kind: str, shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A draw that the grammar refuses must not bend the law: its row is decided against the draft's own law."""
    monkeypatch.setattr(verification, "_MANY", 0)
    grammar = (
        FakeGrammar(lambda prefix: [(len(prefix) * 3 + i) % 6 for i in range(4)], 6) if shape == "grammar" else None
    )
    shaping = ShapingParams() if grammar else ShapingParams(presence_penalty=1.0, logit_bias={2: 1.0})
    prompt = [1, 2, 3, 1]
    engine = FakeEngine(SMALL, candidates=3)
    draft = DraftModel(FakeEngine(other(SMALL, 0.6), candidates=3), engine.info)
    drafter = {"half": draft, "one-hot": PromptLookup(2, 1), "foreign": LikelyButWrong()}[kind]
    decoder = Decoder(engine, drafter, FixedLength(2, 1))
    chances: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(3):
        longer = {}
        for text, chance in chances.items():
            law = spelt_out(text, params, shaping, grammar, SMALL, prompt)
            for token, prob in zip(law.ids.tolist(), law.probs.tolist(), strict=True):
                longer[(*text, token)] = chance * prob
        chances = longer
    rng = np.random.default_rng(11)
    counts: Counter[tuple[int, ...]] = Counter()
    for _ in range(1500):
        session = Session(engine.info, prompt, params, rng=rng, max_tokens=3, shaping=shaping, grammar=grammar)
        while session.finish_reason is None:
            decoder.step(session)  # the first token is drafted too
        counts[tuple(session.generated.tolist())] += 1
    assert chi_square_excess(counts, chances) < 4.0


def test_threshold_keeps_to_the_grammar() -> None:
    for name in ("halves", "words", "pairs"):
        engine = FakeEngine(MODEL)
        session = Session(
            engine.info, PROMPT, GREEDY, max_tokens=30, eos_ids=[EOS], policy="threshold", threshold=0.1,
            grammar=GRAMMARS[name], shaping=SHAPES["penalties"],
        )  # fmt: skip
        decode(Decoder(engine, drafters(0.6)[0], FixedLength(3)), session)
        answer = session.generated.tolist()
        grammar = GRAMMARS[name]
        assert grammar is not None
        assert all(token in grammar.rule(tuple(answer[:place])) for place, token in enumerate(answer))


def test_the_end_comes_only_where_the_grammar_allows_it() -> None:
    eager = ShapingParams(logit_bias={EOS: 100.0})
    session, _, _ = run(GREEDY, eager, GRAMMARS["halves"], drafters(1.0)[0], 3)
    assert len(session.generated) == 13 and session.generated[-1] == EOS and session.finish_reason == "stop"


def test_a_request_may_cap_its_drafts() -> None:
    wanted, _, _ = run(GREEDY, SHAPES["nothing"], None)
    for cap in (0, 1, 2, 9):
        engine, draft_engine = FakeEngine(MODEL), FakeEngine(MODEL)
        session = Session(engine.info, PROMPT, GREEDY, max_tokens=30, eos_ids=[EOS], max_draft_tokens=cap)
        steps = decode(Decoder(engine, DraftModel(draft_engine, engine.info), FixedLength(4)), session)
        assert session.tokens.tolist() == wanted.tokens.tolist()
        assert max(step.drafted for step in steps) == min(cap, 4)
        assert bool(draft_engine.calls) == (cap > 0), "not even caught up with"
    with pytest.raises(InputError) as caught:
        Session(engine.info, PROMPT, GREEDY, max_draft_tokens=-1)
    assert caught.value.param == "max_draft_tokens"
