"""``edge-runtime chat``: a conversation whose earlier turns stay in the cache. Knows the terminal, no engine."""

from __future__ import annotations

import sys
from typing import Any

import click
import numpy as np

from ..decoder import Decoder
from ..engines.protocol import Ids
from ..errors import BundleError, InputError
from ..generation import Generation
from ..loading import LoadedBundle, length_policy, load_bundle
from ..sampling import SamplingParams
from ..session import Session, common_prefix
from ..text.chat import ChatTemplate, Message
from ..text.stream import TextStream
from .options import bundle_options, load_settings, sampling_options, sampling_params
from .progress import prefill_progress


@click.command()
@bundle_options
@click.option("--system", help="Instruction ahead of the conversation.")
@sampling_options
def chat(system: str | None, **given: Any) -> None:
    """Talk with the model: a line is a turn; /reset starts anew, /quit or end of file leaves."""
    params, length = sampling_params(given), length_policy(given["k"])
    bundle = load_bundle(given["bundle"], load_settings(given))
    try:
        talk = _Conversation(bundle, system)
        decoder = bundle.decoder(given["drafter"], length)
        click.echo(f"{bundle.manifest.name}: /reset starts anew, /quit leaves", err=True)
        while (line := _read_line()) is not None:
            if line == "/reset":
                talk = _Conversation(bundle, system)
                continue
            try:
                talk.answer(decoder, line, params, given)
            except InputError as problem:
                # A turn that cannot be taken leaves the conversation as it was.
                click.echo(f"error: {problem}", err=True)
    finally:
        bundle.close()


class _Conversation:
    """Messages, and the tokens that the cache of the slot holds."""

    def __init__(self, bundle: LoadedBundle, system: str | None) -> None:
        name = bundle.manifest.chat_template
        if name is None:
            raise BundleError(f"bundle {bundle.manifest.name!r} has no chat template")
        source = (bundle.directory / name).read_text(encoding="utf-8")
        self._bundle = bundle
        self._template = ChatTemplate(source)
        self._messages = [Message("system", system)] if system else []
        self._cached: Ids = np.zeros(0, np.int64)

    def answer(self, decoder: Decoder, line: str, params: SamplingParams, given: dict[str, Any]) -> None:
        """One turn, streamed to stdout. Raises ``InputError`` when it does not fit."""
        bundle = self._bundle
        messages = [*self._messages, Message("user", line)]
        # The template writes the begin-of-text piece itself.
        prompt = bundle.tokenizer.encode(self._template.render(messages), bos=False, parse_special=True)
        session = Session(
            bundle.target.info,
            prompt,
            params,
            max_tokens=given["max_tokens"],
            eos_ids=bundle.manifest.tokenizer.eos_ids,
            seed=given["seed"],
            policy=given["policy"],
            kv_len=common_prefix(self._cached, np.array(prompt, np.int64)),
        )
        stream = TextStream(bundle.tokenizer.piece_bytes, given["stop"])
        generation = None
        try:
            with prefill_progress(session.prompt_len - session.kv_len) as progress:
                generation = Generation(decoder, session, stream, progress=progress)
                pieces = iter(generation)
                click.echo(next(pieces).text, nl=False)
            for piece in pieces:
                click.echo(piece.text, nl=False)
        except KeyboardInterrupt:
            click.echo(" [interrupted]", nl=False)
        click.echo()
        self._cached = session.tokens[: session.kv_len].copy()
        text = "" if generation is None else generation.result().text
        self._messages = [*messages, Message("assistant", text)]


def _read_line() -> str | None:
    """The next turn, or ``None`` at the end."""
    while True:
        if sys.stdin.isatty():
            click.echo("> ", nl=False, err=True)
        line = sys.stdin.readline()
        if not line or line.strip() == "/quit":
            return None
        if line.strip():
            return line.strip()
