"""A bundle, loaded and warmed up for the scheduler. Knows no socket and no request."""

from __future__ import annotations

from pathlib import Path

from ..config import Config, EngineConfig, LimitsConfig
from ..drafters.strategy import strategy_named
from ..generation import Generation
from ..loading import LoadedBundle, LoadSettings, length_policy, load_bundle, most_draft_tokens
from ..resident import give_back
from ..sampling import SamplingParams
from ..scheduler.request import Limits
from ..scheduler.served import Served
from ..session import Session
from ..text.stream import TextStream
from .service import Model

_WARM_UP = "The quick brown fox jumps over the lazy dog. The quick brown fox"
_WARM_UP_TOKENS = 8


def settings_of(engine: EngineConfig) -> LoadSettings:
    """Raises ``ConfigError``."""
    k = str(engine.k)
    length_policy(k)
    strategy_named(engine.strategy)
    return LoadSettings(
        context=engine.context,
        slots=engine.sessions,
        cache="at-load",
        threads=engine.threads,
        deterministic=engine.deterministic,
        head=engine.head,
        device=engine.device,
        drafter=engine.drafter,
        suffix_tokens=engine.suffix_tokens,
        suffix_shared=engine.suffix_shared,
        max_draft_tokens=most_draft_tokens(k),
        verify_hashes=engine.verify_hashes,
    )


def limits_of(limits: LimitsConfig) -> Limits:
    return Limits(
        queue=limits.queue,
        queue_per_client=limits.queue_per_client,
        running_per_client=limits.running_per_client,
        max_tokens=limits.max_tokens,
        deadline_s=limits.deadline_s,
    )


def prepare(config: Config) -> Model:
    """Load, measure costs, make a first text. Takes seconds to minutes. Raises ``EdgeError``; nothing is then left."""
    loaded = load_bundle(Path(config.bundle), settings_of(config.engine))
    try:
        engine = config.engine
        strategy = strategy_named(engine.strategy)
        decoder = loaded.decoder(engine.drafter, length_policy(str(engine.k)), strategy=strategy)
        served = Served(
            name=loaded.manifest.name,
            decoder=decoder,
            piece_bytes=loaded.tokenizer.piece_bytes,
            eos_ids=loaded.manifest.tokenizer.eos_ids,
            close=lambda: _let_go(loaded),
        )
        _warm_up(loaded, served)
        return Model.of(loaded, served)
    except BaseException:
        _let_go(loaded)
        raise


def _let_go(loaded: LoadedBundle) -> None:
    """A daemon that is reloaded many times must not grow by it."""
    loaded.close()
    give_back()


def _warm_up(loaded: LoadedBundle, served: Served) -> None:
    """A real answer, so that the first client meets nothing that is done for the first time. Raises ``EdgeError``."""
    info = loaded.target.info
    prompt = loaded.tokenizer.encode(_WARM_UP)[: max(1, info.capacity - _WARM_UP_TOKENS)]
    session = Session(info, prompt, SamplingParams(temperature=0.0), max_tokens=_WARM_UP_TOKENS)
    for _ in Generation(served.decoder, session, TextStream(served.piece_bytes)):
        pass
    served.decoder.drafter.reset(session.slot)
