"""``edge-runtime complete``: what ``generate`` does, by a daemon. Knows options and output, no engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from ..client import Completion
from ..schema import plain
from .options import prompt_options, read_prompt, sampling_options, socket_option
from .output import TextOutput
from .remote import asked, daemon_at

_UP_TO_THE_CONTEXT = 1 << 30
"""OpenAI's default is 16, which is no answer to a person."""


@click.command()
@socket_option
@prompt_options
@sampling_options
@click.option("--json", "as_json", is_flag=True, help="Print text, usage and timings as a JSON object.")
def complete(socket: Path | None, prompt: str | None, prompt_file: Path | None, as_json: bool, **given: Any) -> None:
    """Continue a prompt by the daemon's model; the text goes to stdout as it is made."""
    text, options, output = read_prompt(prompt, prompt_file), asked(given), TextOutput()
    options.setdefault("max_tokens", _UP_TO_THE_CONTEXT)
    with daemon_at(socket) as client, client.stream_complete(text, **options) as chunks:
        for chunk in chunks:
            if not as_json:
                output.write(chunk.text)
    output.write((json.dumps(_report(chunks.completion())) if as_json else "") + "\n")


def _report(completion: Completion) -> dict[str, Any]:
    return {
        "text": completion.text,
        "finish_reason": completion.finish_reason,
        "model": completion.model,
        "usage": plain(completion.usage),
        "timings": plain(completion.timings),
    }
