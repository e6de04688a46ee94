"""The multi-token drafter that comes along for the demo's model: whose it is, and that it still says what it learnt."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from real_engines import open_engine, prompt_ids

from edge_runtime.engines.protocol import HeadRequest, StepInput
from export.checkpoint import open_checkpoint
from export.demo import DRAFTER, SHA256
from export.graph import Graph
from export.training.checkpoint import load_drafter
from export.training.reference import ReferenceCache, reference_step

PROSE = (
    "The lighthouse keeper climbed the stairs every evening at dusk. From the gallery he could see the whole bay, the "
    "fishing boats coming home and, on clear nights, the lamps of the town on the other side of the water. He had kept "
    "the light for thirty years, and in all that time it had failed only once, during the great storm, when the wind "
    "broke two panes of the lantern and the rain put out the flame before he could reach it."
)


def test_it_is_small_and_says_where_it_comes_from() -> None:
    drafter = load_drafter(DRAFTER)
    assert drafter.record["target"]["sha256"] == SHA256
    assert drafter.record["corpora"] and drafter.ties_head
    assert sum(path.stat().st_size for path in DRAFTER.iterdir()) < 8e6
    assert (DRAFTER / "GEMMA_NOTICE.txt").read_text(encoding="utf-8").startswith("Gemma is provided under")


def test_it_accepts_on_plain_prose(exact_bundle: Path, demo_gguf: Path) -> None:
    """Sum of min(p, q) over one text: what rejection sampling at temperature 1 keeps of its first drafts."""
    drafter, ids = load_drafter(DRAFTER), prompt_ids(exact_bundle, PROSE)[:64]
    embed = open_checkpoint(demo_gguf).tensor(Graph.EMBED)
    head = np.concatenate([embed.rows(int(token), int(token) + 1) for token in drafter.token_ids])
    kept, cache = [], ReferenceCache()
    with open_engine(exact_bundle, capacity=64, max_head_rows=64, head="full") as target:
        count = len(ids)
        hidden = target.forward(StepInput(0, np.array(ids), 0, HeadRequest(0, count))).hidden.copy()
        for entry in range(count - 1):
            token = ids[entry + 1]
            embedding = embed.rows(token, token + 1)[0]
            said = reference_step(drafter, cache, embedding, hidden[entry], entry, head).logits
            wanted = _law(target.logits(entry + 1))[drafter.token_ids]
            kept.append(np.minimum(_law(said), wanted).sum())
    assert np.mean(kept[8:]) > 0.30


def _law(logits: np.ndarray) -> np.ndarray:
    law = np.exp(logits.astype(np.float64) - logits.max())
    return law / law.sum()
