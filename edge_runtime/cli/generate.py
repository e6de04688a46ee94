"""``edge-runtime generate``: one prompt, one answer, streamed. Knows options and output, no engine."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from ..generation import Generation, GenerationResult
from ..loading import LoadedBundle, load_bundle
from ..session import Session
from ..telemetry.meter import board_meter
from ..text.stream import TextStream
from .interrupt import ends_at_once
from .options import (
    bundle_options,
    check_drafting,
    decoder_of,
    load_settings,
    prompt_options,
    read_prompt,
    sampling_options,
    sampling_params,
    stop_strings,
)
from .output import TextOutput
from .progress import prefill_progress


@click.command()
@bundle_options
@prompt_options
@sampling_options
@click.option("--json", "as_json", is_flag=True, help="Print text, tokens, timings and acceptance as a JSON object.")
def generate(prompt: str | None, prompt_file: Path | None, as_json: bool, **given: Any) -> None:
    """Continue a prompt; the text goes to stdout as it is made."""
    text = read_prompt(prompt, prompt_file)
    params, stops = sampling_params(given), stop_strings(given)
    check_drafting(given)
    with ends_at_once():
        bundle = load_bundle(given["bundle"], load_settings(given))
    try:
        decoder = decoder_of(bundle, given)
        session = Session(
            bundle.target.info,
            bundle.tokenizer.encode(text),
            params,
            max_tokens=given["max_tokens"],
            eos_ids=bundle.manifest.tokenizer.eos_ids,
            seed=given["seed"],
            policy=given["policy"],
        )
        stream = TextStream(bundle.tokenizer.piece_bytes, stops)
        with board_meter() as meter:
            meter.start()
            with prefill_progress(session.prompt_len) as progress:
                generation = Generation(decoder, session, stream, progress=progress)
                pieces = iter(generation)
                first = next(pieces)
            output = TextOutput()
            for piece in itertools.chain((first,), pieces):
                if not as_json:
                    output.write(piece.text)
            result = replace(generation.result(), joules=meter.taken_j())
        output.write((json.dumps(_report(bundle, result)) if as_json else "") + "\n")
    finally:
        bundle.close()


def _report(bundle: LoadedBundle, result: GenerationResult) -> dict[str, Any]:
    return {
        "text": result.text,
        "tokens": result.tokens,
        "finish_reason": result.finish_reason,
        "usage": {
            "prompt_tokens": result.prompt_tokens,
            "completion_tokens": len(result.tokens),
            "energy": {"joules": result.joules, "joules_per_token": result.joules_per_token},
        },
        "timings": {
            "load_s": bundle.load_s,
            "ttft_ms": _ms(result.ttft_s),
            "tpot_ms": _ms(result.tpot_s),
            "prefill_ms": _ms(result.prefill_s),
            "draft_ms": _ms(result.draft_s),
            "verify_ms": _ms(result.verify_s),
            "overhead_ms": _ms(result.overhead_s),
        },
        "speculation": {
            "drafter": result.drafter,
            "reason": result.reason,
            "steps": result.steps,
            "drafted": result.drafted,
            "accepted": result.accepted,
            "acceptance_rate": result.acceptance_rate,
            "acceptance_length": result.acceptance_length,
            "mean_accepted_drafts": result.accepted_length,
            "acceptance_by_position": result.acceptance_by_position,
            "steps_by_num_draft_tokens": result.steps_by_drafted,
            "by_source": {
                one.source: {"steps": one.steps, "drafted": one.drafted, "accepted": one.accepted}
                for one in result.sources
            },
            "draft_mean_log_likelihood": result.drafting.mean_log_likelihood,
            "time_shares": dict(zip(("draft", "verify", "host"), result.drafting.shares or (), strict=False)),
            "notes": result.notes,
        },
        "mean_log_likelihood": result.mean_log_likelihood,
    }


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(1e3 * seconds, 3)
