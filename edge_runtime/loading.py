"""A bundle on disk becomes engines, a tokenizer and a decoder. Knows which parts there are, not how they work."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, cast

from .bundle import DRAFT, HEADS, MTP, SELF, TARGET, Manifest, read_manifest, verify_files
from .decoder import Clock, Decoder
from .drafters.chooser import Chooser
from .drafters.costs import StepCosts
from .drafters.draft_model import DraftModel
from .drafters.heads import ParallelHeads
from .drafters.length import ConfidenceLength, FixedLength, LengthPolicy, PromptLength
from .drafters.mtp import Assistant, MultiToken
from .drafters.prompt_lookup import PromptLookup
from .drafters.protocol import Drafter, NoDraft
from .drafters.self_draft import SelfDraft
from .drafters.several import Several
from .drafters.strategy import AsRequested, Beam, Strategy
from .drafters.suffix import SuffixCache
from .engines.built_needs import with_built
from .engines.engine_record import ENGINE_DIRECTORY
from .engines.opening import Backend, BuiltEngines, GraphMode, chosen_backend, open_engine
from .engines.ort_settings import OrtSettings
from .engines.protocol import Engine
from .engines.row_check import refuse_unlike_rows
from .errors import BundleError, ConfigError
from .intact import NEVER_ALTERED, Intact
from .needs import Load, needs
from .text.chat import ChatTemplate
from .text.tokenizer import Tokenizer
from .warmup import measure_costs, measure_drafter

DrafterName = Literal["auto", "none", "lookup", "suffix", "draft", "mtp", "self", "heads"]
_ROLES: dict[str, str] = {"mtp": MTP, "draft": DRAFT, "heads": HEADS, "self": SELF}
"""Drafter -> the bundle's model that it needs; the first that there is drafts where nobody chooses."""
MAX_DRAFT_TOKENS = 7
"""Default most of K. On a CPU the best K is 1 to 3; this leaves room for devices where verifying is free."""
_FREE_DRAFT_TOKENS = 31
"""The same of drafts that cost nothing to make: a copy may be long."""
_LONG_GRAMS = (12, 6)
"""Of prompt lookup: JSON, edits and dialogues repeat short grams everywhere."""
_BRANCHES = 2
"""Alternatives that a draft may set beside its chain, where the engine runs trees and the cost table says it pays."""
_CONFIDENT_TOKENS = 10
"""Most of K by the policy of that name."""
CHUNK_ROWS = 64
"""Of a forward: a chunk of a prompt, or a draft and the token before it."""
_LONGEST_DRAFT = CHUNK_ROWS - 1
"""The articles' drafts of 20 to 100 are cut to this; ``bench`` loads with more rows."""
SUFFIX_TOKENS = 1 << 17
"""Of earlier texts that a suffix cache keeps where nothing else is said."""

_LEAST_ARENA_BYTES = 64 << 20
"""Of a device, whatever the plan says: without any nothing runs."""

DEFAULT_CONTEXT = 2048
"""Most tokens unless more are asked for: a cache is memory."""


@dataclass(frozen=True, slots=True)
class LoadSettings:
    context: int | None = None
    """Tokens of prompt and answer together; the bundle's longest, at most ``DEFAULT_CONTEXT``, when ``None``."""
    slots: int = 1
    """Sessions that keep a cache, of the target and of the draft."""
    cache: Literal["as-used", "at-load"] = "as-used"
    """When the memory of these caches is paid for."""
    threads: int = 0
    deterministic: bool = False
    head: Literal["screened", "full"] = "screened"
    device: Literal["cpu", "cuda"] = "cpu"
    drafter: DrafterName = "auto"
    max_draft_tokens: int = MAX_DRAFT_TOKENS
    """Most of K; the logits buffer holds one row more."""
    rows: int = CHUNK_ROWS
    """Of a forward at most. An engine that was built for fewer keeps to those."""
    suffix_tokens: int = 0
    """Of earlier texts that ``auto`` drafts from; 0: none."""
    suffix_shared: bool = False
    """Whether one client's texts are drafted from for all clients."""
    verify_hashes: bool = True
    backend: Backend = "auto"
    """What runs the graphs; ``auto``: what they were exported for."""
    engines: Path | None = None
    """What ``edge-runtime build`` made of the bundle for TensorRT; ``None``: in the bundle itself."""
    cuda_graphs: GraphMode = "none"
    """Whether runs on a device are captured and launched again."""
    cpu_fallback: bool = False
    """On a device, whether what has no kernel there may run on the processor."""
    memory_bytes: int | None = None
    """Most for the process: what an engine's allocator on a device is held to. ``None``: not held."""


@dataclass(frozen=True, slots=True)
class LoadedBundle:
    """Everything that a bundle holds, ready to run. Close it."""

    directory: Path
    manifest: Manifest
    tokenizer: Tokenizer
    target: Engine
    drafting: Mapping[str, Engine]
    """Role -> engine, of what was loaded beside the target."""
    max_head_rows: int
    load_s: float
    suffix_tokens: int = 0
    suffix_shared: bool = False
    intact: Intact = NEVER_ALTERED
    """Of the weights, which are mapped."""

    def close(self) -> None:
        # The target last: its drafters may live on its device. And whatever one of them says, the others go too.
        with ExitStack() as closing:
            closing.callback(self.intact.close)
            closing.callback(self.target.close)
            for engine in self.drafting.values():
                closing.callback(engine.close)

    def drafters(self) -> tuple[DrafterName, ...]:
        """What ``drafter`` makes of this bundle: those that draft by themselves, then auto, which chooses."""
        there = [name for name, role in _ROLES.items() if role in self.drafting]
        return cast(tuple[DrafterName, ...], ("lookup", *there, "auto"))

    def drafter(self, name: DrafterName, strategy: Strategy | None = None) -> Drafter:
        """Auto is then the first of those that think, and lookup where there is none. Raises ``ConfigError``."""
        if name == "auto":
            name = cast(DrafterName, next((one for one, role in _ROLES.items() if role in self.drafting), "lookup"))
        _refuse_strategy(name, strategy)
        if name == "none":
            return NoDraft()
        max_k = self.max_head_rows - 1
        if name == "lookup":
            return PromptLookup(max_k=max_k, also=_LONG_GRAMS)
        if name == "suffix":
            return SuffixCache(self.suffix_tokens or SUFFIX_TOKENS, max_k, self.suffix_shared)
        role = _ROLES[name]
        if role not in self.drafting:
            raise ConfigError(_no_model(name, role, self.manifest))
        if isinstance(strategy, Beam) and role != DRAFT:
            raise ConfigError(f"strategy beam: only a draft model can look ahead, and {name} is none")
        return self._thinking(role, max_k, strategy or AsRequested())

    def _thinking(self, role: str, max_k: int, strategy: Strategy) -> Drafter:
        engine, target = self.drafting[role], self.target.info
        if role == DRAFT:
            return DraftModel(engine, target, max_k, strategy)
        if role == HEADS:
            return ParallelHeads(engine, target, max_k, strategy)
        if role == SELF:
            return SelfDraft(engine, target, max_k, strategy)
        kind = Assistant if self.manifest.model(role).constant_position else MultiToken
        return kind(engine, target, max_k, strategy)

    def chat_template(self) -> ChatTemplate:
        """Raises ``BundleError`` where there is none, or none that can be read."""
        name = self.manifest.chat_template
        if name is None:
            raise BundleError(f"bundle {self.manifest.name!r} has no chat template")
        return ChatTemplate.read(self.directory / name)

    def decoder(
        self,
        drafter: DrafterName = "auto",
        length: LengthPolicy | None = None,
        *,
        strategy: Strategy | None = None,
        clock: Clock = time.perf_counter,
    ) -> Decoder:
        """``length`` ``None``: by measured costs, and with ``auto`` by whoever is expected to gain most.

        ``clock``: what costs are measured by, before the first text and while decoding. Raises ``ConfigError``.
        """
        if length is not None:
            made = self.drafter(drafter, strategy)
            return Decoder(self.target, made, length, max_head_rows=self.max_head_rows, clock=clock)
        several = self._several(drafter, strategy)
        costs = StepCosts(self.target.info.min_rows)
        if several.max_k:
            k_max = self.max_head_rows - 1
            longest = _FREE_DRAFT_TOKENS if several.free else k_max
            costs.prime(measure_costs(self.target, None, k_max, clock, longest))
            for one in several.models:
                costs.prime_draft(one.name, measure_drafter(self.target, one, clock))
        models = [(one.name, one.max_k) for one in several.models]
        free_k = min(max(_FREE_DRAFT_TOKENS, self.max_head_rows - 1), self.target.info.max_rows - 1)
        chooser = Chooser(
            costs, models, self.max_head_rows - 1, free_k, branches=_BRANCHES if self.target.info.trees else 0
        )
        return Decoder(self.target, several, chooser, max_head_rows=self.max_head_rows, clock=clock)

    def _several(self, name: DrafterName, strategy: Strategy | None) -> Several:
        """What a chooser has to choose from: all that there is, or the one that is named."""
        if name != "auto" or not self.drafting:
            _refuse_strategy(name, strategy)
        if name == "none":
            return Several(NoDraft.name, (), ())
        if name not in ("auto", "lookup", "suffix"):
            one = self.drafter(name, strategy)
            return Several(one.name, (), (one,))
        free: list[Drafter] = []
        if name in ("auto", "lookup"):
            free.append(PromptLookup(max_k=_FREE_DRAFT_TOKENS, also=_LONG_GRAMS))
        if name == "suffix" or (name == "auto" and self.suffix_tokens):
            tokens = self.suffix_tokens or SUFFIX_TOKENS
            free.append(SuffixCache(tokens, _FREE_DRAFT_TOKENS, self.suffix_shared))
        if name != "auto":
            return Several(free[0].name, free, ())
        there = [one for one, role in _ROLES.items() if role in self.drafting]
        models = [self.drafter(cast(DrafterName, one), strategy) for one in there]
        return Several("auto", free, models)


LENGTH_POLICIES = ("auto", PromptLength.name, ConfidenceLength.name)
"""What ``length_policy`` knows by name."""


def length_policy(text: str, longest: int = _LONGEST_DRAFT) -> LengthPolicy | None:
    """``auto`` (``None``: measured), another policy by name, or a number. Raises ``ConfigError``."""
    if text == "auto":
        return None
    if text == PromptLength.name:
        return PromptLength()
    if text == ConfidenceLength.name:
        return ConfidenceLength()
    if text.isdecimal() and int(text) <= longest:
        return FixedLength(int(text))
    known = ", ".join(LENGTH_POLICIES)
    raise ConfigError(f"k: {text!r} is neither {known} nor a number from 0 to {longest}")


def most_draft_tokens(text: str, longest: int = _LONGEST_DRAFT) -> int:
    """The largest K that the policy named by ``text`` may ask for."""
    if text == PromptLength.name:
        return _LONGEST_DRAFT
    if text == ConfidenceLength.name:
        return _CONFIDENT_TOKENS
    return max(MAX_DRAFT_TOKENS, min(int(text), longest)) if text.isdecimal() else MAX_DRAFT_TOKENS


def load_of(manifest: Manifest, settings: LoadSettings, directory: Path | None = None) -> Load:
    """What is loaded, as a plan of memory reckons with it: from engines that are built, where ``directory``, the
    bundle's, holds some or the settings name them.

    Raises ``ConfigError`` for settings beyond the bundle.
    """
    longest = manifest.model(TARGET).max_context
    context = min(longest, DEFAULT_CONTEXT) if settings.context is None else settings.context
    if not 1 <= context <= longest:
        raise ConfigError(f"context of {context} tokens: bundle {manifest.name!r} holds 1 to {longest}")
    needed = _ROLES.get(settings.drafter)
    if needed is not None and needed not in manifest.models:
        raise ConfigError(_no_model(settings.drafter, needed, manifest))
    if settings.slots < 1:
        raise ConfigError(f"{settings.slots} slots: at least one")
    roles = [role for role in _ROLES.values() if role in manifest.models]
    if settings.drafter != "auto":
        roles = [] if needed is None else [needed]
    backend = chosen_backend(manifest, TARGET, settings.backend)
    load = Load(
        context=context,
        sessions=settings.slots,
        roles=tuple(roles),
        head=settings.head,
        device="cuda" if backend == "tensorrt" else settings.device,
        rows=settings.rows,
        head_rows=settings.max_draft_tokens + 1,
        suffix_tokens=settings.suffix_tokens if settings.drafter in ("auto", "suffix") else 0,
    )
    if backend != "tensorrt" or directory is None:
        return load
    return with_built(load, manifest, directory, settings.engines or directory / ENGINE_DIRECTORY)


def load_bundle(directory: Path, settings: LoadSettings) -> LoadedBundle:
    """Raises ``BundleError`` for a missing, altered or foreign bundle, ``ConfigError`` for settings beyond it or beyond
    what this machine can promise."""
    started = time.perf_counter()
    manifest = read_manifest(directory)
    # Before the hashes, which can take a minute: a slip in an option is told at once.
    backend = chosen_backend(manifest, TARGET, settings.backend, str(directory))
    on_device = settings.device == "cuda" or backend == "tensorrt"
    if not on_device and (settings.cuda_graphs == "captured" or settings.cpu_fallback):
        raise ConfigError("CUDA graphs and cpu_fallback are about device cuda, and this is cpu")
    load = load_of(manifest, settings, directory)
    roles = load.roles
    intact = _held(directory, manifest, (TARGET, *roles), settings.verify_hashes)
    engine_settings = OrtSettings(
        capacity=load.context,
        slots=load.sessions,
        cache=settings.cache,
        max_rows=load.rows,
        max_head_rows=load.head_rows,
        threads=settings.threads,
        deterministic=settings.deterministic,
        head=settings.head,
        device=settings.device,
        gpu_memory_bytes=_arena_bytes(manifest, load, settings),
        cpu_fallback=settings.cpu_fallback,
        cuda_graph=settings.cuda_graphs == "captured",
        keeps_hidden=any(manifest.model(role).hidden_input is not None for role in roles),
    )
    built = BuiltEngines(settings.engines, settings.cuda_graphs, settings.verify_hashes)
    with ExitStack() as opened:
        opened.callback(intact.close)
        verify_files(directory, manifest, hashes=settings.verify_hashes)
        target = open_engine(directory, manifest, TARGET, backend, engine_settings, built=built)
        opened.callback(target.close)
        if settings.deterministic:
            refuse_unlike_rows(target, load.head_rows)
        drafting: dict[str, Engine] = {}
        for role in roles:
            drafting[role] = _draft_engine(directory, manifest, role, backend, engine_settings, target, built)
            opened.callback(drafting[role].close)
        if load.device == "cuda":
            _let_pages_go(directory, manifest)
        # After the engines: their load is the peak of memory, and the tokenizer need not be part of it.
        tokenizer = Tokenizer.shared(directory / manifest.tokenizer.file)
        opened.pop_all()
    return LoadedBundle(
        directory=directory,
        manifest=manifest,
        tokenizer=tokenizer,
        target=target,
        drafting=drafting,
        max_head_rows=engine_settings.max_head_rows,
        load_s=time.perf_counter() - started,
        suffix_tokens=settings.suffix_tokens,
        suffix_shared=settings.suffix_shared,
        intact=intact,
    )


def _held(directory: Path, manifest: Manifest, roles: Sequence[str], hashes: bool) -> Intact:
    """Weights, held open from before they are checked. Raises ``BundleError``."""
    names = {name for role in roles for name in manifest.model(role).weights}
    return Intact(directory, [entry for entry in manifest.files if entry.name in names], hashes=hashes)


def _arena_bytes(manifest: Manifest, load: Load, settings: LoadSettings) -> int | None:
    """What the budget leaves for activations. Sessions run one after another, and each has an arena of its own."""
    if settings.memory_bytes is None or load.device == "cpu":
        return None
    planned = needs(manifest, load)
    if manifest.model(TARGET).dialect != "ort":
        # One allocator for all that the device holds: torch's, or ours of plans, buffers and scratch.
        held = planned.process + planned.tokenizer + planned.suffix + sum(one.hidden for one in planned.models)
    else:
        held = planned.loaded - sum(one.scratch for one in planned.models)
    return max(_LEAST_ARENA_BYTES, settings.memory_bytes - held)


def _let_pages_go(directory: Path, manifest: Manifest) -> None:
    """The device has copies: what the kernel keeps of the files only crowds out what is allocated there next."""
    for name in {name for model in manifest.models.values() for name in model.weights}:
        handle = os.open(directory / name, os.O_RDONLY)
        try:
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(handle)


def _draft_engine(
    directory: Path,
    manifest: Manifest,
    role: str,
    backend: Backend,
    settings: OrtSettings,
    target: Engine,
    built: BuiltEngines,
) -> Engine:
    model = manifest.model(role)
    # What shares the target's cache has as much of it; others may hold less.
    capacity = settings.capacity if model.shares is not None else min(settings.capacity, model.max_context)
    # A draft may be wrong by a rounding: what it says is only ever a proposal.
    own = replace(
        settings, capacity=capacity, max_head_rows=max(2, model.fan_out), deterministic=False, keeps_hidden=False
    )
    return open_engine(directory, manifest, role, backend, own, target, built)


def _refuse_strategy(drafter: str, strategy: Strategy | None) -> None:
    """Nothing is ignored in silence. Raises ``ConfigError``."""
    if drafter not in _ROLES and strategy is not None and not isinstance(strategy, AsRequested):
        raise ConfigError(f"strategy {strategy.name}: drafter {drafter} has no model that picks tokens")


def _no_model(drafter: str, role: str, manifest: Manifest) -> str:
    return f"drafter {drafter}: bundle {manifest.name!r} has no {role} model"
