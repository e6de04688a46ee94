"""Everything a request may ask for, at once and at random: plain decoding's text, at whatever K and with faults."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from choosing import told_costs
from test_cost import BOARD, CPU
from test_decoder import RandomLength

from edge_runtime import verification
from edge_runtime.decoder import Decoder
from edge_runtime.drafters.chooser import Chooser
from edge_runtime.drafters.costs import StepCosts
from edge_runtime.drafters.draft_model import DraftModel
from edge_runtime.drafters.length import FixedLength, LengthPolicy
from edge_runtime.drafters.prompt_lookup import PromptLookup
from edge_runtime.drafters.protocol import Drafter, NoDraft
from edge_runtime.drafters.several import Several
from edge_runtime.errors import EngineError
from edge_runtime.generation import Generation, GenerationResult, Piece
from edge_runtime.sampling import SamplingParams
from edge_runtime.session import Session
from edge_runtime.shaping import ShapingParams
from edge_runtime.testing import FakeEngine, FakeGrammar, FakeModel
from edge_runtime.text.grammar import Grammar
from edge_runtime.text.stream import TextStream

EOS = 31


def grammars(chance: random.Random) -> Grammar | None:
    words = [[chance.randrange(31) for _ in range(chance.randrange(1, 12))] for _ in range(4)]
    modulus = chance.randrange(2, 5)
    return chance.choice(
        [
            None,
            None,
            FakeGrammar.one_of(words, EOS, 32),
            FakeGrammar(lambda prefix: [t for t in range(32) if (t + len(prefix)) % modulus == 0 or t == EOS], 32),
            FakeGrammar(lambda prefix: [prefix[-1]] if len(prefix) % 4 == 3 else range(32), 32),
        ]
    )


def options(chance: random.Random) -> dict[str, object]:
    greedy = chance.random() < 0.4
    bias = {chance.randrange(32): chance.uniform(-4, 4) for _ in range(chance.randrange(3))}
    return {
        "params": SamplingParams(
            0.0 if greedy else chance.choice([0.5, 1.0, 1.5]),
            top_k=chance.choice([0, 0, 3, 12]),
            top_p=chance.choice([1.0, 1.0, 0.8]),
            min_p=chance.choice([0.0, 0.0, 0.1]),
        ),
        "shaping": ShapingParams(chance.choice([0.0, 1.0, -0.5]), chance.choice([0.0, 0.5, -0.2]), bias),
        "grammar": grammars(chance),
        "top_logprobs": chance.choice([None, 0, 3]),
        "repeat_limit": chance.choice([None, 6, 12]),
        "max_tokens": chance.randrange(1, 40),
        "seed": chance.randrange(1 << 30),
        "eos_ids": [EOS],
    }


def run(
    model: FakeModel, prompt: Sequence[int], asked: dict[str, object], stops: Sequence[str], drafter: Drafter,
    length: LengthPolicy | Chooser, engine: FakeEngine, chance: random.Random | None = None,
) -> tuple[list[Piece], GenerationResult]:  # fmt: skip
    session = Session(engine.info, prompt, **asked)  # type: ignore[arg-type]
    decoder = Decoder(engine, drafter, length, max_head_rows=3)
    made = Generation(decoder, session, TextStream(lambda token: bytes([64 + token]), stops))
    pieces = []
    while made.finish_reason is None:
        if chance is not None and chance.random() < 0.1:
            engine.fail_after = chance.randrange(4)
        if chance is not None and chance.random() < 0.05:
            session.kv_len = chance.randrange(session.kv_len + 1)
        try:
            piece = made.turn()
        except EngineError:
            continue
        pieces += [piece] if piece is not None else []
    return pieces, made.result()


def flat(pieces: list[Piece]) -> list[object]:
    return [
        (token, logprob, piece.top[i] if piece.top else None)
        for piece in pieces
        for i, (token, logprob) in enumerate(zip(piece.tokens, piece.logprobs, strict=True))
    ]


@pytest.mark.parametrize("case", range(200))
def test_any_request_is_plain_decoding(case: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(case)
    monkeypatch.setattr(verification, "_MANY", chance.choice([0, 1 << 30]))
    model = FakeModel(32, seed=case, order=chance.choice([None, 1, 2]), scale=chance.choice([1.0, 3.0]))
    prompt = [chance.randrange(32) for _ in range(chance.randrange(1, 20))]
    asked = options(chance)
    plain_engine = FakeEngine(model, candidates=4)
    wanted, result = run(model, prompt, asked, (), NoDraft(), FixedLength(0), plain_engine)
    stops = ()
    if len(result.text) > 6 and chance.random() < 0.3:
        stops = (result.text[4:6],)
        wanted, result = run(model, prompt, asked, stops, NoDraft(), FixedLength(0), FakeEngine(model, candidates=4))
    assert not result.drafted or asked["grammar"] is not None
    edited = [token if chance.random() < 0.9 else chance.randrange(32) for token in result.tokens]
    for drafting in range(3):
        rows = chance.choice([2, 5, 16])
        engine = FakeEngine(model, candidates=4, max_rows=rows, min_rows=chance.choice([1, 2]))
        other = FakeModel(32, case, model.order, model.scale, chance.choice([1.0, 0.7, -1.0]))
        drafter = [NoDraft(), PromptLookup(2, 1), DraftModel(FakeEngine(other, max_rows=4), engine.info)][drafting]
        length = chance.choice([FixedLength(chance.randrange(6), chance.choice(["batched", 1, 2])), RandomLength()])
        if chance.random() < 0.4:
            free = [PromptLookup(2, 1)] if drafting < 2 else [PromptLookup()]
            models = [drafter] if drafting == 2 else []
            # Also one that was told nothing, and finds out.
            costs = told_costs(chance.choice([BOARD, CPU]), {"draft_model": (0.0, 0.0)})
            costs = costs if chance.random() < 0.7 else StepCosts()
            length = Chooser(costs, [(one.name, 5) for one in models], 5, 15)
            drafter = Several("auto", free, models)
        prediction = chance.choice([None, edited])
        cap = chance.choice([None, None, 0, 2])
        more = {**asked, "prediction": prediction, "max_draft_tokens": cap}
        found, drafted = run(model, prompt, more, stops, drafter, length, engine, chance)
        assert flat(found) == flat(wanted)
        assert (drafted.text, drafted.tokens, drafted.finish_reason) == (
            result.text,
            result.tokens,
            result.finish_reason,
        )
        assert drafted.predicted_accepted <= drafted.predicted <= drafted.drafted
        assert cap is None or len(drafted.steps_by_drafted) <= cap + 1
