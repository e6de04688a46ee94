"""A bundle, loaded and warmed up for the scheduler. Knows no socket and no request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from ..boards import Board
from ..bundle import Manifest, read_manifest
from ..config import BudgetConfig, Config, EngineConfig, LimitsConfig
from ..decoder import Decoder
from ..drafters.strategy import strategy_named
from ..engines.protocol import Engine, HeadRequest, StepInput
from ..errors import OutOfBudget
from ..generation import Generation
from ..loading import LoadedBundle, LoadSettings, length_policy, load_bundle, load_of, most_draft_tokens
from ..memory import IDLE_SYSTEM_BYTES, Room, plan, shown
from ..resident import give_back, machine_memory
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
        backend=engine.backend,
        engines=None if engine.engines is None else Path(engine.engines),
        cuda_graphs=engine.cuda_graphs,
        cpu_fallback=engine.cpu_fallback,
    )


def limits_of(limits: LimitsConfig) -> Limits:
    return Limits(
        queue=limits.queue,
        queue_per_client=limits.queue_per_client,
        running_per_client=limits.running_per_client,
        max_tokens=limits.max_tokens,
        deadline_s=limits.deadline_s,
    )


def machine_room(budget: BudgetConfig, root: Path = Path("/")) -> Room | None:
    """What this machine has now; ``None`` where it does not tell. ``root``: where its file system begins."""
    memory = machine_memory(root)
    if memory is None:
        return None
    return Room("this machine", memory.total, memory.available, budget.reserve_bytes, budget.memory_bytes)


def board_room(board: Board, budget: BudgetConfig) -> Room:
    available = board.ram_bytes - IDLE_SYSTEM_BYTES
    return Room(board.title, board.ram_bytes, available, budget.reserve_bytes, budget.memory_bytes)


def refuse_beyond(manifest: Manifest, config: Config, room: Room, beside: int = 0) -> int:
    """Most bytes of this process that the bundle may be loaded with. ``beside``: those that it has with a model that
    stays until this one is there.

    Raises ``OutOfBudget`` with the numbers.
    """
    load = load_of(manifest, settings_of(config.engine), Path(config.bundle))
    left = replace(room, budget=max(0, room.budgeted - beside)) if beside else room
    found = plan(manifest, load, left)
    wanted = found.needs.beside if beside else found.needs.peak
    if wanted <= left.allowed:
        # A process that is there already counts once.
        return left.allowed + (found.needs.process if beside else 0)
    held = f" beside the {shown(beside)} that are held now" if beside else ""
    fitting = ", ".join(f"{one.what} ({shown(one.peak)})" for one in found.changes if one.fits)
    advice = "" if beside else f"; what would fit: {fitting or 'a smaller model, or a larger board'}"
    raise OutOfBudget(
        f"{config.bundle}: {load.sessions} sessions of {load.context} tokens need {shown(wanted)} of memory{held}, and "
        f"{shown(left.allowed)} may be taken: {shown(room.budgeted)} are budgeted, {shown(room.available)} available, "
        f"{shown(room.reserve)} of these in reserve{advice}"
    )


def prepare(config: Config, beside: int = 0) -> Model:
    """Load, measure costs, make a first text. Takes seconds to minutes. Raises ``EdgeError``; nothing is then left.

    ``beside``: see ``refuse_beyond``.
    """
    room, most = machine_room(config.budget), config.budget.memory_bytes
    if room is not None:
        most = refuse_beyond(read_manifest(Path(config.bundle)), config, room, beside)
    loaded = load_bundle(Path(config.bundle), replace(settings_of(config.engine), memory_bytes=most))
    try:
        # Ahead of all that is smaller, which then fits into what this has left.
        _run_widest(loaded.target, loaded.target.info.max_rows, loaded.max_head_rows)
        for role, one in loaded.drafting.items():
            rows = one.info.max_rows if loaded.manifest.model(role).feeds_chunks else 1
            _run_widest(one, rows, max(2, one.info.fan_out))
        engine = config.engine
        strategy = strategy_named(engine.strategy)
        decoder = loaded.decoder(engine.drafter, length_policy(str(engine.k)), strategy=strategy)
        served = Served(
            name=loaded.manifest.name,
            decoder=decoder,
            piece_bytes=loaded.tokenizer.piece_bytes,
            eos_ids=loaded.manifest.tokenizer.eos_ids,
            close=lambda: _let_go(loaded),
            forget=lambda slots: _forget(loaded, decoder, slots),
            altered=loaded.intact.problem,
        )
        _warm_up(loaded, served)
        loaded.intact.guard()
        return Model.of(loaded, served)
    except BaseException:
        _let_go(loaded)
        raise


def _let_go(loaded: LoadedBundle) -> None:
    """A daemon that is reloaded many times must not grow by it."""
    loaded.close()
    give_back()


def _forget(loaded: LoadedBundle, decoder: Decoder, slots: Sequence[int]) -> None:
    for slot in slots:
        decoder.drafter.reset(slot)
        for engine in (loaded.target, *loaded.drafting.values()):
            engine.forget(slot)
    give_back()


def _run_widest(engine: Engine, rows: int, head_rows: int) -> None:
    """What it computes in grows with the widest forward and readout so far: here, and then no more."""
    info = engine.info
    count = min(rows, info.capacity)
    width = info.hidden_input
    hidden = None if width is None else np.zeros((count, width), np.float32)
    engine.forward(StepInput(0, np.zeros(count, np.int64), 0, None, hidden))
    engine.head(HeadRequest(0, min(head_rows, count * info.fan_out)))


def _warm_up(loaded: LoadedBundle, served: Served) -> None:
    """A real answer, so that the first client meets nothing that is done for the first time. Raises ``EdgeError``."""
    info = loaded.target.info
    prompt = loaded.tokenizer.encode(_WARM_UP)[: max(1, info.capacity - _WARM_UP_TOKENS)]
    session = Session(info, prompt, SamplingParams(temperature=0.0), max_tokens=_WARM_UP_TOKENS)
    for _ in Generation(served.decoder, session, TextStream(served.piece_bytes)):
        pass
    served.decoder.drafter.reset(session.slot)
