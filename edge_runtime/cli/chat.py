"""``edge-runtime chat``: a conversation whose earlier turns stay in the cache, here or in a daemon. Knows the terminal,
no engine.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import click
import numpy as np
from click.core import ParameterSource

from ..client import ConnectionLost, EdgeRuntimeError
from ..decoder import Decoder, Progress
from ..engines.protocol import Ids
from ..errors import ConfigError, EdgeError, InputError, did_you_mean
from ..generation import Generation
from ..loading import LoadedBundle, load_bundle
from ..parameters import Place
from ..sampling import SamplingParams
from ..session import Session, common_prefix
from ..text.chat import ChatTemplate, Conversation
from ..text.stream import TextStream
from .interrupt import Interrupt, ends_at_once
from .lines import Lines
from .options import (
    as_text,
    check_drafting,
    decoder_of,
    engine_options,
    load_settings,
    sampling_options,
    sampling_params,
    socket_option,
    stop_strings,
)
from .output import TextOutput
from .progress import prefill_progress
from .remote import RemoteTalk, asked, daemon_at

_RESET, _QUIT = "/reset", "/quit"
_COMMAND = re.compile(r"/\w+")
_LEAVE = f"{_QUIT} or Ctrl-D leaves"


_ENGINE_OPTIONS = ("context", "threads", "deterministic", "head", "device", "backend", "drafter", "k",
                   "strategy", "no_verify", "cpu_fallback", "cuda_graph")  # fmt: skip
"""Of loading, which a daemon has done."""


class _Talk(Protocol):
    def answer(self, line: str) -> Any:
        """One turn, streamed to stdout. Raises ``EdgeError``."""
        ...


@click.command()
@click.option("--bundle", metavar="DIR", type=Place(),
              help="Bundle to run here; without it the daemon answers.")  # fmt: skip
@socket_option
@engine_options
@click.option("--system", metavar="TEXT", help="Instruction ahead of the conversation.")
@sampling_options
@click.pass_context
def chat(said: click.Context, /, bundle: Path | None, socket: Path | None, system: str | None, **given: Any) -> None:
    """Talk with an instruct model: a line is a turn. The daemon answers, or with --bundle this very process.

    /reset starts anew, /quit or the end of the input leaves, Ctrl-C ends an answer early. Only answers go to stdout.
    """
    given["stop"] = stop_strings(given)
    system = None if system is None else as_text(system)
    if bundle is None:
        own = [name for name in _ENGINE_OPTIONS if said.get_parameter_source(name) is ParameterSource.COMMANDLINE]
        if own:
            raise ConfigError(f"--{own[0].replace('_', '-')} needs --bundle: a daemon has loaded its own already")
        _talk_with_daemon(socket, system, given)
    elif socket is not None:
        raise ConfigError("give either --bundle or --socket")
    else:
        _talk_with_bundle(system, {**given, "bundle": bundle})


def _talk_with_daemon(socket: Path | None, system: str | None, given: dict[str, Any]) -> None:
    options = asked(given)
    with daemon_at(socket) as client:
        model = client.status().model
        if model is None:
            # Told why, or waited for.
            client.models()
            model = client.status().model
        name, room = ("the daemon", None) if model is None else (model.name, model.context)
        _converse(lambda: RemoteTalk(client, system, options, room), name)


def _talk_with_bundle(system: str | None, given: dict[str, Any]) -> None:
    params = sampling_params(given)
    check_drafting(given)
    with ends_at_once():
        bundle = load_bundle(given["bundle"], load_settings(given))
    try:
        template = bundle.chat_template()
        decoder = decoder_of(bundle, given)
        _converse(lambda: Talk(bundle, template, decoder, system, params, given), bundle.manifest.name)
    finally:
        bundle.close()


def _converse(start: Callable[[], _Talk], name: str) -> None:
    """Until the input ends. A turn that cannot be taken leaves the conversation as it was."""
    lines, talk = Lines(), start()
    if lines.typed:
        click.echo(f"{name}: {_RESET} starts anew, Ctrl-C ends an answer early, {_LEAVE}", err=True)
    while True:
        try:
            line = lines.read()
        except KeyboardInterrupt:
            if not lines.typed:
                raise
            click.echo(f"\n{_LEAVE}", err=True)
            continue
        if line is None or line == _QUIT:
            return
        try:
            if line == _RESET:
                talk = start()
            elif _COMMAND.fullmatch(line):
                raise InputError(f"no command {line!r}{did_you_mean(line, (_RESET, _QUIT))}")
            else:
                talk.answer(as_text(line))
        except EdgeError as problem:
            if not _next_turn_may_do(problem):
                raise
            click.echo(f"error: {problem}", err=True)


def _next_turn_may_do(problem: EdgeError) -> bool:
    """A turn that was wrong, or one that a daemon refused or left behind; not a daemon that is not there."""
    answered = isinstance(problem, EdgeRuntimeError) and problem.status is not None
    return answered or isinstance(problem, InputError | ConnectionLost)


class Talk:
    """One conversation, and the tokens of it that the cache of the slot holds."""

    def __init__(
        self,
        bundle: LoadedBundle,
        template: ChatTemplate,
        decoder: Decoder,
        system: str | None,
        params: SamplingParams,
        given: dict[str, Any],
    ) -> None:
        self._bundle, self._decoder, self._params, self._given = bundle, decoder, params, given
        self._conversation = Conversation(template, bundle.tokenizer, system)
        # Now and not in every turn: a system message that the template refuses.
        self._conversation.prompt("-")
        self._output = TextOutput()
        self.cached: Ids = np.zeros(0, np.int64)

    def answer(self, line: str) -> Session:
        """One turn, streamed to stdout. Raises ``InputError`` when it does not fit."""
        session = self._session(self._conversation.prompt(line))
        stream = TextStream(self._bundle.tokenizer.piece_bytes, self._given["stop"])
        with Interrupt() as interrupt:
            text = self._stream(session, stream, interrupt)
        # Whatever ended the turn, the cache is as far as the session says.
        self.cached = session.tokens[: session.kv_len].copy()
        if len(session.generated):
            self._output.write("\n")
            self._conversation.answered(session.generated.tolist(), text)
        if session.finish_reason is None:
            click.echo("[interrupted]", err=True)
        elif session.finish_reason == "length":
            full = session.length == self._bundle.target.info.capacity
            click.echo(f"[the context is full: {_RESET}]" if full else "[stopped at --max-tokens]", err=True)
        return session

    def _session(self, prompt: list[int]) -> Session:
        given = self._given
        return Session(
            self._bundle.target.info,
            prompt,
            self._params,
            max_tokens=given["max_tokens"],
            eos_ids=self._bundle.manifest.tokenizer.eos_ids,
            seed=given["seed"],
            policy=given["policy"],
            kv_len=common_prefix(self.cached, np.array(prompt, np.int64)),
        )

    def _stream(self, session: Session, stream: TextStream, interrupt: Interrupt) -> str:
        """The text as far as it went."""
        with prefill_progress(session.prompt_len - session.kv_len) as bar:
            generation = Generation(self._decoder, session, stream, progress=_watched(bar, interrupt))
            pieces = iter(generation)
            try:
                first = next(pieces)
            except KeyboardInterrupt:
                return ""
        for piece in itertools.chain((first,), pieces):
            self._output.write(piece.text)
            if interrupt.asked:
                break
        return generation.result().text


def _watched(bar: Progress | None, interrupt: Interrupt) -> Progress:
    """A prefill's callback that also ends it when asked to."""

    def progress(done: int, total: int) -> None:
        if bar is not None:
            bar(done, total)
        interrupt.check()

    return progress
