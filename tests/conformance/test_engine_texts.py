"""What engines are for: a text that was drafted is the text of plain decoding, and its law is the model's."""

from __future__ import annotations

import numpy as np
import pytest
from running import Measured, feed, head_rows_of, rows_after, text
from subjects import Case

from edge_runtime.decoder import Decoder
from edge_runtime.drafters.length import FixedLength
from edge_runtime.drafters.protocol import Cacheless, DraftContext, Drafter, DraftProposal
from edge_runtime.engines.protocol import Engine, HeadRequest
from edge_runtime.sampling import Distribution, SamplingParams
from edge_runtime.session import Session
from edge_runtime.testing import ScriptedDraft, decode

GREEDY = SamplingParams(temperature=0.0)
COUNT = 24
TRIALS = 96

pytestmark = pytest.mark.writes_texts


def written(
    engine: Engine, drafter: Drafter | None = None, k: int = 0, params: SamplingParams = GREEDY, seed: int = 0
) -> Session:
    """Behind ten tokens, with what was drafted in its totals."""
    session = Session(engine.info, text(10, 1), params, max_tokens=COUNT, seed=seed, slot=1)
    decode(Decoder(engine, drafter, FixedLength(k), max_head_rows=8), session)
    return session


def parted(engine: Engine, plain: Session, other: Session) -> float | None:
    """How far the plain text's token lies above the second best where another text leaves it, in deviations."""
    tokens, found = plain.tokens, other.tokens
    place = next((i for i in range(len(tokens)) if tokens[i] != found[i]), None)
    if place is None:
        return None
    row = rows_after(engine, tokens[:place])[-1].astype(np.float64)
    best = np.sort(row)[::-1]
    return float((best[0] - best[1]) / row.std())


@pytest.mark.parametrize("k", [1, 3, 7])
def test_a_drafted_greedy_text_is_the_plain_one(case: Case, engine: Engine, measured: Measured, k: int) -> None:
    plain = written(engine)
    # What an owner's model writes behind random tokens is its own affair.
    assert case.owned or len(set(plain.generated.tolist())) > 3, "a text that repeats itself proves little"
    for wrong_every in (0, 3):
        places = range(12, 10 + COUNT, wrong_every) if wrong_every else ()
        drafted = written(engine, ScriptedDraft(plain.tokens.tolist(), wrong_at=places), k)
        gap = parted(engine, plain, drafted)
        measured("gap where greedy texts part", 0.0 if gap is None else gap, case.tolerance.near_tie)
        # A broken draft cannot make a text wrong, only slow: so whatever is right must be accepted.
        if gap is None and not wrong_every:
            assert drafted.totals.accepted == drafted.totals.drafted > COUNT // 3
        if gap is None and wrong_every:
            assert 0 < drafted.totals.accepted < drafted.totals.drafted or k == 1


@pytest.mark.parametrize("k", [1, 4])
def test_a_seed_writes_one_text_whatever_is_drafted(case: Case, engine: Engine, measured: Measured, k: int) -> None:
    params = SamplingParams(temperature=0.8, top_k=8)
    plain = written(engine, params=params, seed=5)
    drafted = written(engine, ScriptedDraft(plain.tokens.tolist(), wrong_at=[14, 15, 22]), k, params, 5)
    same = float(np.mean(drafted.generated != plain.generated))
    # Where rows hang on how many run with them, noise may tip a tie: then all behind it differs.
    measured("share of a seeded text that differs", same, 0.0 if case.tolerance.near_tie < 1e-3 else 1.0)


def test_a_session_on_a_copied_prefix_writes_what_it_writes_from_the_start(
    case: Case, engine: Engine, measured: Measured
) -> None:
    cold = written(engine)
    engine.copy_prefix(1, 2, 8)
    rows_after(engine, text(20, 8), slot=1)
    warm = Session(engine.info, text(10, 1), GREEDY, max_tokens=COUNT, slot=2, kv_len=8)
    decode(Decoder(engine), warm)
    gap = parted(engine, cold, warm)
    measured("gap where greedy texts part", 0.0 if gap is None else gap, case.tolerance.near_tie)


class Drawn(Cacheless):
    """Draws from a law that is not the model's."""

    name, max_k = "drawn", 1

    def __init__(self, law: Distribution) -> None:
        self._law, self._cumulated = law, np.cumsum(law.probs)

    def propose(self, context: DraftContext, k: int) -> DraftProposal:
        at = min(int(np.searchsorted(self._cumulated, context.uniform())), len(self._law.ids) - 1)
        return DraftProposal(self._law.ids[at : at + 1], (self._law,), self.name)


def binned(law: np.ndarray, least: float) -> np.ndarray:
    """[vocabulary] bin of each token: the likeliest first, each bin of at least that mass."""
    bins, mass, number = np.zeros(len(law), np.int64), 0.0, 0
    for token in np.argsort(-law):
        bins[token] = number
        mass += law[token]
        if mass >= least and law.sum() - mass > least:
            mass, number = 0.0, number + 1
    return bins


def test_the_law_of_a_token_behind_a_draft(engine: Engine) -> None:
    """Chi-square of what is drawn behind a fixed text, where a draft proposes by another law."""
    ids = text(10, 1)
    feed(engine, ids, 0, slot=1)
    head = engine.head(HeadRequest(9, 10))
    row, best = engine.logits(0).astype(np.float64), head.candidate_ids[0].copy()
    temperature, law = 1.0, softmax(row)
    while law.max() > 0.3:
        temperature *= 1.3
        law = softmax(row / temperature)
    flat = softmax(row[head_rows_of(engine, best)] / temperature / 2.0)
    bins = binned(law, 0.1)
    wanted = np.bincount(bins, law) * TRIALS
    decoder = Decoder(engine, Drawn(Distribution.of(best, flat)), FixedLength(1))
    params = SamplingParams(temperature=temperature)
    session = Session(engine.info, ids[:-1], params, rng=np.random.default_rng(5), slot=1)
    session.commit(ids[-1:], [0.0], 0)
    counts, accepted = np.zeros(len(wanted)), 0
    for _ in range(TRIALS):
        accepted += decoder.step(session).accepted
        counts[bins[session.generated[1]]] += 1
        session.cut(session.prompt_len + 1)
    assert 0.05 * TRIALS < accepted < 0.95 * TRIALS
    degrees = len(wanted) - 1
    assert degrees >= 2
    assert ((counts - wanted) ** 2 / wanted).sum() < degrees + 4.5 * np.sqrt(2.0 * degrees)


def softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits - logits.max())
    return np.asarray(weights / weights.sum())
