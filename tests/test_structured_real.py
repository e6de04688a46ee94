"""Structured output of the real Gemma: every answer parses, and drafts change nothing. A base model, which left to
itself would write no JSON: that it does is the grammar's doing, at every K.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from real_engines import open_engine

from edge_runtime.bundle import read_manifest
from edge_runtime.decoder import Decoder
from edge_runtime.drafters.length import FixedLength
from edge_runtime.drafters.prompt_lookup import PromptLookup
from edge_runtime.engines.ort import OrtEngine
from edge_runtime.sampling import SamplingParams
from edge_runtime.session import Session
from edge_runtime.testing import decode
from edge_runtime.text.grammar import Grammar
from edge_runtime.text.llguidance_grammar import GrammarCompiler
from edge_runtime.text.tokenizer import Tokenizer

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "sensor": {"type": "string", "maxLength": 12},
        "state": {"enum": ["open", "closed", "unknown"]},
        "readings": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "maxItems": 3},
        "alarm": {"type": "boolean"},
    },
    "required": ["sensor", "state", "readings", "alarm"],
    "additionalProperties": False,
}
PROMPT = 'The valve is described as {"sensor": "valve-a", "state": "open"} and its record is:\n'
LAWS = {"greedy": SamplingParams(temperature=0.0), "sampled": SamplingParams(temperature=1.0, top_k=64)}


@pytest.fixture(scope="module")
def engine(exact_bundle: Path) -> Iterator[OrtEngine]:
    with open_engine(exact_bundle, deterministic=True) as engine:
        yield engine


@pytest.fixture(scope="module")
def tokenizer(exact_bundle: Path) -> Tokenizer:
    return Tokenizer(exact_bundle / read_manifest(exact_bundle).tokenizer.file)


@pytest.fixture(scope="module")
def grammar(exact_bundle: Path, engine: OrtEngine, tokenizer: Tokenizer) -> Grammar:
    eos_ids = read_manifest(exact_bundle).tokenizer.eos_ids
    return GrammarCompiler(tokenizer, eos_ids, engine.info.vocab_size).json_schema(SCHEMA)


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("seed", [1, 2])
def test_every_answer_parses_and_is_the_same_at_any_k(
    exact_bundle: Path, engine: OrtEngine, tokenizer: Tokenizer, grammar: Grammar, law: str, seed: int
) -> None:
    answers = []
    for k in (0, 1, 3, 7):
        session = Session(
            engine.info,
            tokenizer.encode(PROMPT),
            LAWS[law],
            max_tokens=120,
            eos_ids=read_manifest(exact_bundle).tokenizer.eos_ids,
            seed=seed,
            grammar=grammar,
            max_draft_tokens=k,
        )
        decode(Decoder(engine, PromptLookup(), FixedLength(k), max_head_rows=8), session)
        assert session.finish_reason == "stop"
        assert (session.totals.accepted > 0) == (k > 0)  # forced tokens are drafts
        answers.append(b"".join(map(tokenizer.piece_bytes, session.generated.tolist())).decode())
    assert len(set(answers)) == 1
    jsonschema.validate(json.loads(answers[0]), SCHEMA)
