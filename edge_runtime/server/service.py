"""What the HTTP app serves, as the daemon hands it over. Knows no HTTP and no process.

The daemon makes one ``Service``, gives it to ``app.create_app`` and replaces its ``standing`` as things change; every
request reads the standing once, so that a model that is swapped while it is served cannot change half of an answer.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from ..config import Config
from ..errors import Unavailable
from ..loading import LoadedBundle
from ..scheduler.request import Request, Sink, Ticket
from ..scheduler.served import Served
from ..scheduler.snapshot import Snapshot
from ..text.chat import ChatTemplate
from ..text.llguidance_grammar import GrammarCompiler
from ..text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Sequence

State = Literal["loading", "ready", "draining", "failed"]
Swap = Callable[[Path], Awaitable[None]]
"""Serve the bundle of this directory from now on. Returns once it is served; an ``EdgeError`` leaves the old one."""


class Turns(Protocol):
    """What the app asks of a ``Scheduler``. Thread-safe; none of these waits for the engine."""

    def submit(self, served: Served, asked: Sequence[tuple[Request, Sink]]) -> list[Ticket]:
        """All or none. Raises ``InputError`` and ``Unavailable``."""
        ...

    def cancel(self, ticket: Ticket, reason: str = ...) -> None: ...

    def snapshot(self) -> Snapshot: ...


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """One model that is served, and what is told of it."""

    served: Served
    tokenizer: Tokenizer
    template: ChatTemplate | None
    grammars: GrammarCompiler
    family: str
    directory: Path
    bundle_bytes: int
    context: int
    """Tokens of a slot."""
    vocab_size: int
    drafter: str
    load_s: float
    created_s: int
    """Unix time of the bundle, as OpenAI's ``created``."""

    @property
    def name(self) -> str:
        return self.served.name

    @staticmethod
    def of(loaded: LoadedBundle, served: Served) -> Model:
        manifest, info = loaded.manifest, loaded.target.info
        return Model(
            served=served,
            tokenizer=loaded.tokenizer,
            template=loaded.chat_template() if manifest.chat_template else None,
            grammars=GrammarCompiler(loaded.tokenizer, served.eos_ids, info.vocab_size),
            family=manifest.family,
            directory=loaded.directory,
            bundle_bytes=sum(entry.bytes for entry in manifest.files),
            context=info.capacity,
            vocab_size=info.vocab_size,
            drafter=served.decoder.drafter.name,
            load_s=loaded.load_s,
            created_s=int(loaded.directory.stat().st_mtime),
        )


@dataclass(frozen=True, slots=True)
class Standing:
    """The service at one moment."""

    state: State
    reason: str = ""
    """Why it is not ready; when it is, what the last reload could not do, or nothing."""
    model: Model | None = None
    """There whenever the state is ``ready`` or ``draining``."""
    scheduler: Turns | None = None
    """With the model."""


@dataclass(slots=True, eq=False)
class Service:
    config: Config
    standing: Standing = Standing("loading", "the model is being loaded")
    """Replaced as a whole, from any thread."""
    swap: Swap | None = None
    """``None``: the bundle cannot be swapped."""
    started_s: float = 0.0
    """On ``clock``."""
    clock: Callable[[], float] = time.monotonic

    def ready(self) -> tuple[Model, Turns]:
        """What a request is answered by. Raises ``Unavailable`` with the reason."""
        standing = self.standing
        if standing.state != "ready" or standing.model is None or standing.scheduler is None:
            raise Unavailable(f"{standing.state}: {standing.reason}" if standing.reason else standing.state)
        return standing.model, standing.scheduler
