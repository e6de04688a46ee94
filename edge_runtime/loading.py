"""A bundle on disk becomes engines, a tokenizer and a decoder. Knows which parts there are, not how they work."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from .bundle import DRAFT, TARGET, Manifest, read_manifest, verify_files
from .decoder import Clock, Decoder
from .drafters.draft_model import DraftModel
from .drafters.length import FixedLength, LengthPolicy, MeasuredLength, PromptLength
from .drafters.prompt_lookup import PromptLookup
from .drafters.protocol import Drafter, NoDraft
from .engines.ort import OrtEngine, OrtSettings
from .engines.protocol import Engine
from .errors import BundleError, ConfigError, InputError, why
from .text.chat import ChatTemplate
from .text.tokenizer import Tokenizer
from .warmup import measure_costs

DrafterName = Literal["auto", "none", "lookup", "draft"]
MAX_DRAFT_TOKENS = 7
"""Default most of K. On a CPU the best K is 1 to 3; this leaves room for devices where verifying is free."""
_LONGEST_DRAFT = 63
"""A draft and the token before it are one chunk of the engine. The articles' drafts of 20 to 80 are cut to this."""

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
    verify_hashes: bool = True


@dataclass(frozen=True, slots=True)
class LoadedBundle:
    """Everything that a bundle holds, ready to run. Close it."""

    directory: Path
    manifest: Manifest
    tokenizer: Tokenizer
    target: Engine
    draft: Engine | None
    max_head_rows: int
    load_s: float

    def close(self) -> None:
        self.target.close()
        if self.draft is not None:
            self.draft.close()

    def drafters(self) -> tuple[DrafterName, ...]:
        """What ``drafter`` makes of this bundle: those that draft by themselves, then auto where it chooses."""
        return ("lookup", "auto") if self.draft is None else ("lookup", "draft", "auto")

    def drafter(self, name: DrafterName) -> Drafter:
        """Auto: the draft model where the bundle has one, prompt lookup otherwise. Raises ``ConfigError``."""
        if name == "none":
            return NoDraft()
        if name == "draft" and self.draft is None:
            raise ConfigError(_no_draft(self.manifest))
        max_k = self.max_head_rows - 1
        if self.draft is not None and name != "lookup":
            return DraftModel(self.draft, self.target.info, max_k=max_k)
        return PromptLookup(max_k=max_k)

    def chat_template(self) -> ChatTemplate:
        """Raises ``BundleError`` where there is none, or none that can be read."""
        name = self.manifest.chat_template
        if name is None:
            raise BundleError(f"bundle {self.manifest.name!r} has no chat template")
        try:
            return ChatTemplate((self.directory / name).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, InputError) as problem:
            raise BundleError(f"{self.directory / name}: {why(problem)}") from None

    def decoder(
        self,
        drafter: DrafterName = "auto",
        length: LengthPolicy | None = None,
        *,
        clock: Clock = time.perf_counter,
    ) -> Decoder:
        """``clock``: what costs are measured by, before the first text and while decoding."""
        made = self.drafter(drafter)
        if length is None:
            length = measured = MeasuredLength(made.max_k, self.target.info.min_rows)
            if made.max_k:
                draft = self.draft if isinstance(made, DraftModel) else None
                measured.prime(measure_costs(self.target, draft, made.max_k, clock))
        return Decoder(self.target, made, length, max_head_rows=self.max_head_rows, clock=clock)


LENGTH_POLICIES = ("auto", PromptLength.name)
"""What ``length_policy`` knows by name."""


def length_policy(text: str) -> LengthPolicy | None:
    """``auto`` (``None``: measured), ``prompt-length``, or a number. Raises ``ConfigError``."""
    if text == "auto":
        return None
    if text == PromptLength.name:
        return PromptLength()
    if text.isdecimal() and int(text) <= _LONGEST_DRAFT:
        return FixedLength(int(text))
    raise ConfigError(f"k: {text!r} is neither auto, {PromptLength.name} nor a number from 0 to {_LONGEST_DRAFT}")


def most_draft_tokens(text: str) -> int:
    """The largest K that the policy named by ``text`` may ask for."""
    if text == PromptLength.name:
        return _LONGEST_DRAFT
    return max(MAX_DRAFT_TOKENS, min(int(text), _LONGEST_DRAFT)) if text.isdecimal() else MAX_DRAFT_TOKENS


def load_bundle(directory: Path, settings: LoadSettings) -> LoadedBundle:
    """Raises ``BundleError`` for a missing, altered or foreign bundle, ``ConfigError`` for settings beyond it."""
    started = time.perf_counter()
    manifest = read_manifest(directory)
    longest = manifest.model(TARGET).max_context
    context = min(longest, DEFAULT_CONTEXT) if settings.context is None else settings.context
    # Before the hashes, which can take a minute: a slip in an option is told at once.
    if not 1 <= context <= longest:
        raise ConfigError(f"context of {context} tokens: bundle {manifest.name!r} holds 1 to {longest}")
    if settings.drafter == "draft" and DRAFT not in manifest.models:
        raise ConfigError(_no_draft(manifest))
    if settings.slots < 1:
        raise ConfigError(f"{settings.slots} slots: at least one")
    verify_files(directory, manifest, hashes=settings.verify_hashes)
    engine_settings = OrtSettings(
        capacity=context,
        slots=settings.slots,
        cache=settings.cache,
        max_head_rows=settings.max_draft_tokens + 1,
        threads=settings.threads,
        deterministic=settings.deterministic,
        head=settings.head,
        device=settings.device,
    )
    target = OrtEngine(directory, manifest, TARGET, engine_settings)
    draft = None
    if DRAFT in manifest.models and settings.drafter in ("auto", "draft"):
        capacity = min(engine_settings.capacity, manifest.model(DRAFT).max_context)
        # A draft may be wrong by a rounding: what it says is only ever a proposal.
        draft_settings = replace(engine_settings, capacity=capacity, max_head_rows=2, deterministic=False)
        draft = OrtEngine(directory, manifest, DRAFT, draft_settings)
    # After the engines: their load is the peak of memory, and the tokenizer need not be part of it.
    tokenizer = Tokenizer(directory / manifest.tokenizer.file)
    return LoadedBundle(
        directory=directory,
        manifest=manifest,
        tokenizer=tokenizer,
        target=target,
        draft=draft,
        max_head_rows=engine_settings.max_head_rows,
        load_s=time.perf_counter() - started,
    )


def _no_draft(manifest: Manifest) -> str:
    return f"drafter draft: bundle {manifest.name!r} has no draft model"
