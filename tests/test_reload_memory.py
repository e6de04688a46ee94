"""Does a daemon grow by what it swaps in, or by what it does? On the real Gemma: a small one would not show it."""

from __future__ import annotations

import multiprocessing
import threading
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from real_engines import without_draft

from edge_runtime.config import Config, EngineConfig
from edge_runtime.engines.protocol import HeadRequest, StepInput
from edge_runtime.generation import Generation
from edge_runtime.resident import resident
from edge_runtime.sampling import SamplingParams
from edge_runtime.server.preparing import prepare
from edge_runtime.session import Session
from edge_runtime.text.stream import TextStream
from edge_runtime.verification import Row

# Two threads, as many as a pool needs to be one; those that a machine chooses by itself are bound to its cores, and
# wait for other workers there.
ENGINE = EngineConfig(sessions=2, context=512, threads=2, verify_hashes=False)


@pytest.fixture
def alone(exact_bundle: Path, tmp_path: Path) -> Path:
    """The target, and nothing that drafts for it."""
    return without_draft(exact_bundle, tmp_path / "alone")


def test_a_model_that_was_let_go_leaves_nothing(alone: Path) -> None:
    """Each is loaded in a thread of its own, as the daemon does: glibc keeps an arena for each of them."""
    config = Config(bundle=str(alone), engine=ENGINE)
    left: list[int] = []

    def load_and_let_go() -> None:
        prepare(config).served.close()

    for _ in range(3):
        thread = threading.Thread(target=load_and_let_go)
        thread.start()
        thread.join()
        left.append(resident().anonymous)
    assert left[-1] - left[0] < 40e6, left  # two swaps, 20 MB each


def grown(bundle: Path, engine: EngineConfig) -> int:
    """Bytes of its own that a process takes beyond those it has once it is loaded: by long prompts, in both slots,
    greedy and drawn, and with whole rows asked for in each way there is."""
    model = prepare(Config(str(bundle), engine))
    served, target = model.served, model.served.decoder.target
    prompt = np.array(model.tokenizer.encode("The licence says that " * 60), np.int64)[:200]
    # The last one is so flat that its tokens lie behind all candidates.
    laws = (SamplingParams(temperature=0.0), SamplingParams(temperature=1.0), SamplingParams(temperature=2.0))

    def answer(slot: int, params: SamplingParams) -> None:
        session = Session(target.info, prompt, params, slot=slot, max_tokens=12, top_logprobs=2)
        for _ in Generation(served.decoder, session, TextStream(served.piece_bytes)):
            pass
        served.decoder.drafter.reset(slot)

    loaded = resident().anonymous
    for number, params in enumerate(laws):
        answer(number % 2, params)
    # By chance, and seldom: a draft that is nearly certain is refused, and what takes its place is hard to draw.
    head = target.forward(StepInput(0, prompt[:4], 0, HeadRequest(0, 4))).head
    assert head is not None
    rows = [Row(target, head, index, 1.0, served.decoder.scratch) for index in range(4)]
    for row in rows:
        row.residual(0.5, row.argmax, None)
        row.draw(1.0 - 1e-12)
    more = resident().anonymous - loaded
    served.close()
    return more


LONGEST = replace(ENGINE, drafter="lookup", k=15)


@pytest.mark.parametrize("engine", [ENGINE, LONGEST], ids=["chosen", "longest"])
def test_after_loading_nothing_grows(alone: Path, engine: EngineConfig) -> None:
    """All of it was paid for at load. In a process of its own: what other tests have freed would blur it."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
        more = process.submit(grown, alone, engine).result()
    assert more < 8e6, more
