"""Behind a fixed text of the real Gemma, drafts leave the law of the next token as it is: binned chi-square."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from real_engines import open_engine, prompt_ids

from edge_runtime.decoder import Decoder
from edge_runtime.drafters.draft_model import DraftModel
from edge_runtime.drafters.length import FixedLength
from edge_runtime.drafters.strategy import TopK
from edge_runtime.engines.ort import OrtEngine
from edge_runtime.engines.protocol import HeadRequest, StepInput
from edge_runtime.sampling import SamplingParams
from edge_runtime.session import Session

TEXT = "The harbour was quiet that morning. The old captain looked at the"
SAMPLED = SamplingParams(temperature=1.0)
TRIALS = 100


@pytest.fixture(scope="module")
def engines(exact_bundle: Path) -> Iterator[tuple[OrtEngine, OrtEngine]]:
    with open_engine(exact_bundle, capacity=64) as target, open_engine(exact_bundle, capacity=64) as draft:
        yield target, draft


def _bins(law: np.ndarray, least: float) -> np.ndarray:
    """[vocabulary] bin of each token: the likeliest first, each bin of at least that mass."""
    bins, mass, number = np.zeros(len(law), np.int64), 0.0, 0
    for token in np.argsort(-law):
        bins[token] = number
        mass += law[token]
        if mass >= least and law.sum() - mass > 0:
            mass, number = 0.0, number + 1
    last = law[bins == number].sum()
    return np.minimum(bins, number - 1) if last < least else bins


@pytest.mark.parametrize("seeded", [False, True], ids=["rejection", "shared-noise"])
def test_the_law_of_a_token_behind_a_draft(
    exact_bundle: Path, engines: tuple[OrtEngine, OrtEngine], seeded: bool
) -> None:
    target, draft = engines
    ids = prompt_ids(exact_bundle, TEXT)
    target.forward(StepInput(0, np.array(ids), 0, HeadRequest(len(ids) - 1, len(ids))))
    logits = target.logits(0).astype(np.float64)
    law = np.exp(logits - logits.max())
    law /= law.sum()
    bins = _bins(law, 0.12)
    wanted = np.bincount(bins, law) * TRIALS
    # The draft draws from the target's best 64 alone: much of what is right has to come from rejections.
    decoder = Decoder(target, DraftModel(draft, target.info, strategy=TopK(64)), FixedLength(1))
    session = Session(target.info, ids[:-1], SAMPLED, rng=np.random.default_rng(5), seed=0 if seeded else None)
    session.commit(ids[-1:], [0.0], 0)
    counts, accepted = np.zeros(len(wanted)), 0
    for trial in range(TRIALS):
        session.seed = 1000 + trial if seeded else None
        accepted += decoder.step(session).accepted
        counts[bins[session.generated[1]]] += 1
        session.cut(session.prompt_len + 1)
    assert 0.2 * TRIALS < accepted < 0.9 * TRIALS
    degrees = len(wanted) - 1
    assert degrees >= 3
    assert ((counts - wanted) ** 2 / wanted).sum() < degrees + 4.5 * np.sqrt(2.0 * degrees)
