"""Does a daemon grow by what it swaps in, or by what it does? On the real Gemma: a small one would not show it."""

from __future__ import annotations

import multiprocessing
import threading
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np

from edge_runtime.config import Config, EngineConfig
from edge_runtime.generation import Generation
from edge_runtime.resident import resident
from edge_runtime.sampling import SamplingParams
from edge_runtime.server.preparing import prepare
from edge_runtime.session import Session
from edge_runtime.text.stream import TextStream


def test_a_model_that_was_let_go_leaves_nothing(exact_bundle: Path) -> None:
    """Each is loaded in a thread of its own, as the daemon does: glibc keeps an arena for each of them."""
    config = Config(bundle=str(exact_bundle), engine=EngineConfig(sessions=2, context=512, verify_hashes=False))
    left: list[int] = []

    def load_and_let_go() -> None:
        prepare(config).served.close()

    for _ in range(4):
        thread = threading.Thread(target=load_and_let_go)
        thread.start()
        thread.join()
        left.append(resident().anonymous)
    assert left[-1] - left[0] < 60e6, left


def grown(bundle: Path) -> int:
    """Bytes of its own that a process takes beyond those it has once it is loaded: by long prompts, in both slots,
    greedy and drawn, with full rows fetched."""
    model = prepare(Config(str(bundle), EngineConfig(sessions=2, context=512, verify_hashes=False)))
    served, target = model.served, model.served.decoder.target
    prompt = np.array(model.tokenizer.encode("The licence says that " * 60), np.int64)[:200]
    laws = (SamplingParams(temperature=0.0), SamplingParams(temperature=1.0))

    def answer(slot: int, params: SamplingParams) -> None:
        session = Session(target.info, prompt, params, slot=slot, max_tokens=12)
        for _ in Generation(served.decoder, session, TextStream(served.piece_bytes)):
            pass
        served.decoder.drafter.reset(slot)

    loaded = resident().anonymous
    for slot in (0, 1):
        for params in laws:
            answer(slot, params)
    more = resident().anonymous - loaded
    served.close()
    return more


def test_after_loading_nothing_grows(exact_bundle: Path) -> None:
    """All of it was paid for at load. In a process of its own: what other tests have freed would blur it."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as alone:
        more = alone.submit(grown, exact_bundle).result()
    assert more < 8e6, more
