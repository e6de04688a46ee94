"""Gemma 3 270M against transformers in float32 with the same weights: the figures that the project states."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from export_runs import EXACT, ExportRun
from real_engines import open_engine, prompt_ids

from edge_runtime.bench.corpus import SAMPLE_TOKENS, sample_text
from edge_runtime.bundle import read_manifest
from edge_runtime.engines.protocol import HeadRequest, StepInput
from export.checkpoint import Checkpoint, open_checkpoint
from export.parity import Parity, measure_parity, parity_prompts
from export.reference import Reference

Export = Callable[..., ExportRun]


@pytest.fixture(scope="module")
def checkpoint(demo_gguf: Path) -> Checkpoint:
    return open_checkpoint(demo_gguf)


@pytest.fixture(scope="module")
def measured(
    checkpoint: Checkpoint, reference: Reference, real_export: Export
) -> Callable[..., tuple[Parity, ExportRun]]:
    once = copy.copy(reference)
    known: dict[bytes, np.ndarray] = {}

    def logits(ids: np.ndarray) -> np.ndarray:
        """The sample is read once for all precisions: it takes longer than what is compared with it."""
        if len(ids) < SAMPLE_TOKENS:
            return reference.logits(ids)
        key = ids.tobytes()
        if key not in known:
            known[key] = reference.logits(ids)
            known[key].flags.writeable = False
        return known[key]

    once.logits = logits  # type: ignore[method-assign]

    def measure(*options: str, **given: Any) -> tuple[Parity, ExportRun]:
        run = real_export(*options)
        manifest = read_manifest(run.output)
        return measure_parity(run.output, manifest, checkpoint, threads=1, reference=once, **given), run

    return measure


def test_fp32_writes_what_transformers_writes(measured: Callable[..., tuple[Parity, ExportRun]]) -> None:
    """64 of 64 greedy tokens, in English and code; on all ten prompts by ``edge-export parity``."""
    some = parity_prompts()[::5]
    found, _ = measured("--precision", "fp32", greedy_prompts=some)
    assert [(run.name, run.equal) for run in found.greedy] == [(prompt.name, 64) for prompt in some]
    assert found.max_abs_logit_error <= 1e-3
    assert found.top1_agreement == 1.0
    assert abs(found.nll_bundle - found.nll_reference) < 1e-4


@pytest.mark.parametrize("head", ["screened", "full"])
def test_exact_blocks_keep_the_likelihood(
    measured: Callable[..., tuple[Parity, ExportRun]], head: str, record_property: Callable[[str, object], None]
) -> None:
    found, _ = measured(*EXACT, head=head)
    record_property(f"nll_exact_{head}", found.nll_bundle)
    assert abs(found.nll_bundle - found.nll_reference) <= 0.02
    assert found.mean_kl < 0.01 and found.top1_agreement > 0.95


def test_int4_is_calibrated(
    measured: Callable[..., tuple[Parity, ExportRun]], record_property: Callable[[str, object], None]
) -> None:
    """The best four bits on offer; by how much calibration makes them so, ``edge-export quality`` prints."""
    found, _ = measured("--precision", "int4")
    record_property("int4_calibrated", f"NLL {found.nll_bundle:.4f}, KL {found.mean_kl:.4f}")
    assert found.nll_bundle - found.nll_reference < 0.2


def test_the_screen_misses_nothing_of_the_sample(exact_bundle: Path) -> None:
    """On every row of the text: the same argmax as the full head up to near-ties, and its best eight."""
    ids = np.array(prompt_ids(exact_bundle, sample_text())[:256], np.int64)
    rows: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {"full": [], "screened": []}
    for way, seen in rows.items():
        with open_engine(exact_bundle, head=way, deterministic=True) as engine:
            for start in range(0, len(ids), 8):
                chunk = ids[start : start + 8]
                head = engine.forward(StepInput(0, chunk, start, HeadRequest(0, len(chunk)))).head
                assert head is not None
                seen += [(head.candidate_ids[r].copy(), head.candidate_logits[r].copy()) for r in range(len(chunk))]
    for (full_ids, full_logits), (ids_, _) in zip(rows["full"], rows["screened"], strict=True):
        assert full_ids[0] == ids_[0] or full_logits[0] - full_logits[1] < 0.25
        assert set(full_ids[:8]) <= set(ids_[:16])


@pytest.mark.parametrize("temperature", [1.0, 0.1, 0.02, 0.01])
def test_the_log_sum_exp_holds_at_low_temperatures(exact_bundle: Path, temperature: float) -> None:
    """A coarse logit above the exact maximum neither overflows nor drowns the rest."""
    ids = np.array(prompt_ids(exact_bundle, sample_text())[:64], np.int64)
    with open_engine(exact_bundle) as engine:
        for start in range(0, 64, 8):
            request = HeadRequest(0, 8, inverse_temperature=1.0 / temperature)
            head = engine.forward(StepInput(0, ids[start : start + 8], start, request)).head
            assert head is not None
            for row in range(8):
                tempered = engine.logits(row).astype(np.float64) / temperature
                peak = tempered.max()
                wanted = peak + np.log(np.exp(tempered - peak).sum())
                assert abs(head.logsumexp[row] - wanted) < 2e-6 * abs(wanted) + 1e-4


@pytest.mark.parametrize("options", [EXACT, ("--precision", "fp32"), ("--precision", "int4")], ids=" ".join)
def test_export_holds_one_tensor_at_a_time(demo_gguf: Path, real_export: Export, options: tuple[str, ...]) -> None:
    """Anonymous memory: the largest tensor as it is stored (the table, 178 MB) and 300 MB. An export in four bits
    writes the whole model in eight first, which is what it is calibrated on."""
    largest = open_checkpoint(demo_gguf).tensor("embed").raw_blocks(0, 262144)
    assert largest is not None
    assert real_export(*options).peak_anonymous <= largest.nbytes + 300_000_000
