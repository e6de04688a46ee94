"""Is a warm answer the cold one, token by token? On the real Gemma, where that is promised exactly: in fp32, and with
8-bit weights in the deterministic mode. Elsewhere a chunk that begins at another place may turn a near-tie over.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from real_engines import open_engine, prompt_ids
from scheduling import GREEDY, Reader

from edge_runtime.bench.corpus import prompts
from edge_runtime.decoder import Decoder
from edge_runtime.drafters.length import FixedLength
from edge_runtime.drafters.prompt_lookup import PromptLookup
from edge_runtime.engines.ort import OrtEngine
from edge_runtime.sampling import SamplingParams
from edge_runtime.scheduler.request import Limits, Request
from edge_runtime.scheduler.scheduler import Scheduler
from edge_runtime.scheduler.served import Served

COUNT = 12


@pytest.fixture(scope="module")
def engine(request: pytest.FixtureRequest) -> Iterator[OrtEngine]:
    bundle = request.getfixturevalue("fp32_bundle" if request.param == "fp32" else "exact_bundle")
    with open_engine(bundle, slots=3, capacity=1024, deterministic=request.param == "deterministic") as engine:
        yield engine


@pytest.fixture(scope="module")
def system(exact_bundle: Path) -> list[int]:
    """A prefix of several chunks."""
    ids = [token for prompt in prompts() for token in prompt_ids(exact_bundle, prompt.text)]
    return ids[:150]


def answers(engine: OrtEngine, asked: list[Request], k: int) -> list[Reader]:
    """One after the other by one scheduler, to which every slot is empty at first."""
    served = Served("real", Decoder(engine, PromptLookup(), FixedLength(k), max_head_rows=8), _no_text, (), _stay)
    scheduler = Scheduler(served, Limits())
    scheduler.start()
    readers = []
    for one in asked:
        scheduler.submit(served, [(one, reader := Reader())])
        reader.wait()
        readers.append(reader)
    scheduler.close()
    return readers


def _no_text(token: int) -> bytes:
    return b"."


def _stay() -> None:
    """The next test uses the engine too."""


@pytest.mark.parametrize(
    ("engine", "params", "k"),
    [("fp32", GREEDY, 3), ("deterministic", SamplingParams(temperature=0.8, top_k=32), 0)],
    ids=["fp32-greedy", "deterministic-seeded"],
    indirect=["engine"],
)
def test_warm_equals_cold(engine: OrtEngine, system: list[int], params: SamplingParams, k: int) -> None:
    """A repeated prefix, in a slot of its own; a branch of it; and the conversation that goes on with the answer."""

    def wanted(prompt: list[int]) -> Request:
        return Request(np.array(prompt), params, COUNT, seed=None if params.greedy else 7)

    def cold(prompt: list[int]) -> list[int]:
        (reader,) = answers(engine, [wanted(prompt)], k)
        assert reader.begun.cached_tokens == 0
        return reader.tokens

    first, branch = [*system, *system[7:20]], [*system[:111], *system[40:71]]
    told = cold(first)
    chat = [*first, *told, *system[90:100]]
    warm = answers(engine, [wanted(text) for text in (first, branch, first, chat)], k)
    assert [reader.begun.cached_tokens for reader in warm] == [0, 111, 162, 163 + COUNT - 1]
    assert [reader.tokens for reader in warm] == [told, cold(branch), told, cold(chat)]
