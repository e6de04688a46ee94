"""Accept, commit, roll back: whatever drafts and however much, the text is the one that follows from the definitions.

Two answers are made in turn on one decoder, with everything that a request may ask for, every drafter, any policy of K,
engines that fail, caches that lose their end, budgets that come and go.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
from any_examples import examples
from every_drafter import MAKERS, chosen, policy_of
from hypothesis import given, note
from hypothesis import strategies as st
from plain_text import EOS, PIECES, VOCAB, Asked, Right, characters, pairs, right_answer, words

from edge_runtime.budget import Budget
from edge_runtime.decoder import Decoder
from edge_runtime.errors import EngineError
from edge_runtime.generation import Generation, Piece
from edge_runtime.reuse import Owner
from edge_runtime.sampling import SamplingParams
from edge_runtime.session import Session
from edge_runtime.shaping import ShapingParams
from edge_runtime.testing import FakeEngine, FakeGrammar, FakeModel
from edge_runtime.text.stream import TextStream

GREEDY = SamplingParams(temperature=0.0)
READS_ROWS = ("mtp", "assistant", "heads", "self", "auto")
STOPS = ("ab", "a", "ba", "中", "é", " ", "cd", "\ufffd", "zz")
tokens = st.integers(0, VOCAB - 1)


@dataclass(frozen=True)
class Setting:
    """An engine, who drafts for it, and what befalls them."""

    drafter: str
    policy: str
    k: int
    capacity: int
    max_rows: int
    min_rows: int
    candidates: int
    head_rows: int
    agreement: float
    faults: bool
    seed: int


settings_of = st.builds(
    Setting,
    drafter=st.sampled_from([*MAKERS, "auto"]),
    policy=st.sampled_from(["fixed", "random", "random", "confidence", "prompt-length"]),
    k=st.integers(1, 8),
    capacity=st.integers(6, 48),
    max_rows=st.sampled_from([2, 3, 5, 16]),
    min_rows=st.integers(1, 2),
    candidates=st.sampled_from([2, 4, VOCAB]),
    head_rows=st.sampled_from([1, 3, 16]),
    agreement=st.sampled_from([1.0, 0.8, 0.5, -1.0]),
    faults=st.booleans(),
    seed=st.integers(0, 2**20),
)


@st.composite
def asked_of(draw: st.DrawFn, model: FakeModel, capacity: int) -> Asked:
    prompt = tuple(draw(st.lists(tokens, min_size=1, max_size=capacity - 1)))
    if draw(st.booleans()) and len(prompt) > 3:
        prompt = prompt[:3] * (len(prompt) // 3)
    wanted = draw(st.none() | st.integers(1, 30))
    sampled = draw(st.booleans())
    params = SamplingParams(
        draw(st.sampled_from([0.4, 1.0, 1.6])),
        top_k=draw(st.sampled_from([0, 0, 2, 7])),
        top_p=draw(st.sampled_from([1.0, 1.0, 0.7])),
        min_p=draw(st.sampled_from([0.0, 0.0, 0.1])),
    )
    some = draw(st.lists(st.lists(st.integers(0, VOCAB - 2), min_size=1, max_size=10), min_size=1, max_size=4))
    return Asked(
        model,
        prompt,
        limit=min(capacity, len(prompt) + (wanted or capacity)),
        params=params if sampled else GREEDY,
        seed=draw(st.integers(0, 99)) if sampled else None,
        shaping=ShapingParams(
            draw(st.sampled_from([0.0, 0.0, 1.0, -0.5])),
            draw(st.sampled_from([0.0, 0.0, 0.5])),
            draw(st.dictionaries(tokens, st.sampled_from([-100.0, -2.0, 3.0]), max_size=2)),
        ),
        rule=draw(st.sampled_from([None, None, characters, pairs, words(some)])),
        eos=draw(st.sampled_from([(EOS,), (EOS,), (EOS, 22, 21)])),
        stops=tuple(draw(st.lists(st.sampled_from(STOPS), max_size=2))),
        repeat_limit=draw(st.sampled_from([None, None, 6, 9])),
        top_logprobs=draw(st.sampled_from([None, None, 0, 2])),
    )


def begun(decoder: Decoder, asked: Asked, right: Right, slot: int, cached: int, chance: random.Random) -> Generation:
    guess = [token if chance.random() < 0.9 else chance.randrange(VOCAB) for token in right.tokens]
    session = Session(
        decoder.target.info, asked.prompt, asked.params, max_tokens=max(1, asked.limit - len(asked.prompt)),
        eos_ids=asked.eos, seed=asked.seed, slot=slot, kv_len=cached, shaping=asked.shaping,
        grammar=None if asked.rule is None else FakeGrammar(asked.rule, VOCAB), top_logprobs=asked.top_logprobs,
        prediction=chance.choice([None, None, guess]), max_draft_tokens=chance.choice([None, None, None, 0, 2]),
        repeat_limit=asked.repeat_limit, owner=Owner(slot),
    )  # fmt: skip
    return Generation(decoder, session, TextStream(PIECES.__getitem__, asked.stops))


def disturb(decoder: Decoder, engines: Sequence[FakeEngine], made: Generation, chance: random.Random) -> None:
    """What may happen between two turns."""
    dice = chance.random()
    if dice < 0.1:
        chance.choice(engines).fail_after = chance.randrange(4)
    elif dice < 0.15:
        made.session.kv_len = chance.randrange(made.session.kv_len + 1)
    elif dice < 0.2:
        decoder.drafter.reset(made.session.slot)
    elif dice < 0.25:
        decoder.govern(Budget("warm", "cut", max_draft_tokens=chance.choice([None, 0, 1, 3])))


def check(asked: Asked, right: Right, made: Generation, pieces: list[Piece]) -> None:
    """So far, and at the end as a whole."""
    found = [token for piece in pieces for token in piece.tokens]
    assert found == right.tokens[: len(found)]
    logprobs = [one for piece in pieces for one in piece.logprobs]
    assert logprobs == pytest.approx(right.logprobs[: len(found)], abs=2e-4)
    if asked.top_logprobs is not None:
        top = [one for piece in pieces for one in piece.top or ()]
        wanted = right.top[: len(found)]
        assert [[token for token, _ in one] for one in top] == [[token for token, _ in one] for one in wanted]
        for one, other in zip(top, wanted, strict=True):
            assert [logprob for _, logprob in one] == pytest.approx([logprob for _, logprob in other], abs=2e-4)
    session, text = made.session, "".join(piece.text for piece in pieces)
    assert right.text.startswith(text)
    assert 0 <= session.kv_len <= session.length <= session.limit <= decoder_capacity(made)
    engine = made._decoder.target
    assert isinstance(engine, FakeEngine)
    fed = session.tokens[: session.kv_len]
    assert engine.cache[session.slot, : len(fed)].tolist() == fed.tolist()
    digest = 0
    for place, token in enumerate(fed.tolist() if engine.model.order is None else ()):
        digest = engine.model.extend(digest, token)
        assert engine.digests[session.slot][place] == digest
    if made.finish_reason is not None:
        result = made.result()
        assert (text, result.text, result.finish_reason) == (right.text, right.text, right.finish_reason)
        assert list(result.tokens) == found == right.tokens == session.generated.tolist()
        assert len(session.logprobs) == len(found), "usage counts what was sent"
        assert session.kv_len <= len(asked.prompt) + len(found)
        assert "\ufffd" not in text or asked.rule is not characters or not whole(found, asked.eos)
        assert result.accepted <= result.drafted and result.predicted_accepted <= result.predicted


def whole(answer: list[int], eos: tuple[int, ...]) -> bool:
    """Whether the model's bytes are characters."""
    data = b"".join(PIECES[token] for token in answer if token not in eos)
    return "\ufffd" not in data.decode("utf-8", "replace")


def decoder_capacity(made: Generation) -> int:
    return made._decoder.target.info.capacity


@st.composite
def cases(draw: st.DrawFn) -> tuple[Setting, list[Asked]]:
    setting = draw(settings_of)
    # A model that looks at its last tokens alone goes round in circles; hidden rows say nothing of such a one.
    order = None if setting.drafter in READS_ROWS else draw(st.sampled_from([None, 1, 2]))
    model = FakeModel(VOCAB, setting.seed, order, draw(st.sampled_from([1.0, 3.0, 8.0])))
    asked = [draw(asked_of(model, setting.capacity)) for _ in range(draw(st.integers(1, 4)))]
    if len(asked) > 1 and draw(st.booleans()):
        asked[-1] = replace(asked[-1], prompt=asked[0].prompt)
        asked[-1] = replace(asked[-1], limit=max(asked[-1].limit, len(asked[-1].prompt) + 1))
    return setting, asked


@examples(120)
@given(cases())
def test_any_text_is_the_one_that_follows_from_the_definitions(case: tuple[Setting, list[Asked]]) -> None:
    setting, wanted = case
    chance = random.Random(setting.seed)
    target = FakeEngine(
        wanted[0].model, capacity=setting.capacity, slots=2, max_rows=setting.max_rows, min_rows=setting.min_rows,
        candidates=setting.candidates, keeps_hidden=True, trees=setting.min_rows == 1,
    )  # fmt: skip
    near = replace(wanted[0].model, agreement=setting.agreement)
    if setting.drafter == "auto":
        drafter, length = chosen(target, near, setting.seed)
        decoder = Decoder(target, drafter, length, max_head_rows=setting.head_rows)
    elif setting.drafter == "trees" and not target.info.trees:
        return
    else:
        single = MAKERS[setting.drafter](target, near, setting.seed)
        policy = policy_of(setting.policy, setting.k, setting.seed)
        decoder = Decoder(target, single, policy, max_head_rows=setting.head_rows)
    waiting = list(wanted)
    running: dict[int, tuple[Asked, Right, Generation, list[Piece]]] = {}
    held: dict[int, list[int]] = {0: [], 1: []}
    turns = 0
    while waiting or running:
        free = [slot for slot in held if slot not in running]
        if waiting and free and (not running or chance.random() < 0.5):
            asked, slot = waiting.pop(0), chance.choice(free)
            right = right_answer(asked)
            note(f"{slot}: {right}")
            shared = _shared(held[slot], asked.prompt[:-1])
            made = begun(decoder, asked, right, slot, shared, chance)
            running[slot] = asked, right, made, []
        slot = chance.choice(sorted(running))
        asked, right, made, pieces = running[slot]
        if setting.faults:
            disturb(decoder, [target], made, chance)
        turns += 1
        assert turns < 1000, "no end"
        try:
            piece = made.turn()
        except EngineError:
            continue
        pieces += [] if piece is None else [piece]
        check(asked, right, made, pieces)
        if made.finish_reason is not None:
            held[slot] = made.session.tokens[: made.session.kv_len].tolist()
            del running[slot]


def _shared(held: list[int], prompt: Sequence[int]) -> int:
    count = 0
    while count < min(len(held), len(prompt)) and held[count] == prompt[count]:
        count += 1
    return count
