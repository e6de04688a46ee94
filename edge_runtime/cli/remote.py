"""A conversation with a daemon, and what its commands send. Knows the terminal, no engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..client import Client, Completion
from ..errors import ConfigError
from .options import sampling_params, stop_strings
from .output import TextOutput

if TYPE_CHECKING:
    from ..client.options import CompletionOptions


@contextmanager
def daemon_at(socket: Path | None) -> Iterator[Client]:
    """A client that is patient with a daemon that loads or restarts, but not with one that is not there.

    Raises ``NotReachable``.
    """
    with Client(socket) as client:
        client.health()
        yield client


def asked(given: dict[str, Any]) -> CompletionOptions:
    """The sampling options of the command line as fields of a request. Raises ``InputError``."""
    sampling_params(given)  # wrong ones are told now, by the same words as elsewhere
    if given["policy"] == "threshold":
        raise ConfigError("--policy threshold needs --bundle: a daemon is always lossless")
    options: CompletionOptions = {"temperature": given["temperature"]}
    if given["policy"] != "lossless":
        options["speculative"] = {"acceptance": given["policy"]}
    if given["max_tokens"] is not None:
        options["max_tokens"] = given["max_tokens"]
    if given["top_k"]:
        options["top_k"] = given["top_k"]
    if given["top_p"] != 1.0:
        options["top_p"] = given["top_p"]
    if given["min_p"]:
        options["min_p"] = given["min_p"]
    if given["seed"] is not None:
        options["seed"] = given["seed"]
    if given["stop"]:
        options["stop"] = stop_strings(given)
    return options


class RemoteTalk:
    """One conversation. The daemon finds in its caches what it has read of it before."""

    def __init__(self, client: Client, system: str | None, options: Mapping[str, Any], context: int | None) -> None:
        self._client, self._options, self._context = client, options, context
        self._messages = [{"role": "system", "content": system}] if system else []
        self._output = TextOutput()

    def answer(self, line: str) -> None:
        """One turn, streamed to stdout. Raises ``EdgeRuntimeError``; a turn without an answer never was."""
        messages = [*self._messages, {"role": "user", "content": line}]
        interrupted, stream = False, self._client.stream_chat(messages, **self._options)
        try:
            try:
                with stream as chunks:
                    for chunk in chunks:
                        self._output.write(chunk.text)
            except KeyboardInterrupt:
                # Leaving the stream is what stops the daemon.
                interrupted = True
        finally:
            completion = stream.completion()
            if completion.text:
                self._output.write("\n")
                self._messages = [*messages, {"role": "assistant", "content": completion.text}]
        self._tell_end(completion, interrupted)

    def _tell_end(self, completion: Completion, interrupted: bool) -> None:
        if interrupted:
            click.echo("[interrupted]", err=True)
        elif completion.finish_reason == "length":
            usage = completion.usage
            full = usage is not None and usage.prompt_tokens + usage.completion_tokens == self._context
            click.echo("[the context is full: /reset]" if full else "[stopped at --max-tokens]", err=True)
