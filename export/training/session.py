"""From a target and a corpus to a trained drafter in a directory: the order of things. Knows no command line.

DIR/features/      texts and the target's rows on them; a later run uses what is there
DIR/state.pt       everything a stopped run goes on from
DIR/best/          the best drafter so far, by held-out acceptance: what is exported
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from edge_runtime import __version__
from edge_runtime.bundle import file_sha256
from edge_runtime.errors import ConfigError
from edge_runtime.files import replace_text
from edge_runtime.text.tokenizer import Tokenizer
from export.checkpoint import Checkpoint
from export.safetensors_file import read_json
from export.tokenizer import TokenizerModel, build_tokenizer_model

from .arrays import read_array
from .batches import Batches
from .checkpoint import save_drafter
from .corpus import SOURCES_NAME, Segments, corpus_files, read_segments
from .drafter import start_from, trained
from .evaluate import Acceptance, held_acceptance
from .features import Part, read_part
from .gather import (
    DRAWN,
    FREQUENCY_NAME,
    HELD_DRAWN,
    HELD_NATURAL,
    NATURAL,
    Gathering,
    GatherPlan,
    frequent_ids,
    projection_start,
)
from .labels import labels_of
from .target import TorchTarget, target_checkpoint
from .trainer import STATE_NAME, Progress, Seen, Trainer, TrainingPlan, stored_state

FEATURES_NAME, BEST_NAME = "features", "best"
NOTICE = Path(__file__).parent.parent / "notices" / "GEMMA_NOTICE.txt"
_FEATURES_SHARE = 0.5
"""Of the hours, at most: what has been gathered by then is trained on."""


@dataclass(frozen=True, slots=True)
class Wanted:
    target: Path
    corpus: tuple[Path, ...]
    output: Path
    plan: TrainingPlan
    gather: GatherPlan
    features: Path | None = None
    """Of another run of the same target; ``None``: gathered, or gone on with, in the output."""
    head_rows: int = 16_384
    micro_tokens: int = 1024
    share: float = 1.0
    """Of the features: the data-scaling check trains on less."""
    checked_texts: int = 8
    """Held-out texts of each kind that a check reads; the last one reads all."""
    seed: int = 0
    device: str = "cpu"


@dataclass(frozen=True, slots=True)
class Shown:
    """Who hears of what."""

    progress: Callable[[str, int, int], None] = lambda what, done, total: None
    line: Callable[[str], None] = lambda text: None


@dataclass(slots=True)
class _Run:
    wanted: Wanted
    checkpoint: Checkpoint
    shown: Shown
    parts: dict[str, Part] = field(default_factory=dict)
    embed: Any = None
    record: dict[str, Any] = field(default_factory=dict)

    def check(self, trainer: Trainer) -> dict[str, Any]:
        last = trainer.share_done() >= 1.0
        texts = None if last else self.wanted.checked_texts
        found = {name: self._tried(trainer, name, texts) for name in (HELD_DRAWN, HELD_NATURAL)}
        for name, acceptance in found.items():
            self.shown.line(
                f"step {trainer.progress.step}, {trainer.progress.tokens} tokens: {name}: {told(acceptance)}"
            )
        entry = {name: asdict(acceptance) for name, acceptance in found.items()}
        length = found[HELD_DRAWN].sampled_length
        # The last check reads more texts than the others: its figure is not on their scale, but the rate has fallen
        # and the average settled, so that only a run that went wrong would end worse.
        known = max((item["length"] for item in trainer.progress.history if "length" in item), default=-1.0)
        if length >= known or (last and length >= 0.97 * known):
            self._keep(trainer, entry)
        return entry | {"length": length}

    def _tried(self, trainer: Trainer, name: str, texts: int | None) -> Acceptance:
        return held_acceptance(trainer.start, trainer.average, self.embed, self.parts[name], texts=texts)

    def _keep(self, trainer: Trainer, entry: dict[str, Any]) -> None:
        place = self.wanted.output / BEST_NAME
        new = place.with_name(f".{BEST_NAME}.new")
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(parents=True)
        progress = trainer.progress
        trained_on = {
            "steps": progress.step,
            "tokens_seen": progress.tokens,
            "hours": round(progress.elapsed_s / 3600, 3),
            "held_out": entry,
        }
        save_drafter(new, trained(trainer.start, trainer.average, self.record | {"training": trained_on}))
        shutil.copyfile(NOTICE, new / NOTICE.name)
        old = place.with_name(f".{BEST_NAME}.old")
        shutil.rmtree(old, ignore_errors=True)
        if place.exists():
            place.rename(old)
        new.rename(place)
        shutil.rmtree(old, ignore_errors=True)


def train_drafter(wanted: Wanted, shown: Shown) -> Path:
    """Where the best drafter is. Raises an ``InputError`` for whatever was given that cannot be trained on."""
    _in_order(wanted)
    checkpoint = target_checkpoint(wanted.target)
    tokenizer = build_tokenizer_model(checkpoint)
    target = TorchTarget(checkpoint, wanted.device)
    run = _Run(wanted, checkpoint, shown)
    gathered = _features(wanted, target, tokenizer, shown)
    run.parts = {name: read_part(gathered / name) for name in (NATURAL, DRAWN, HELD_NATURAL, HELD_DRAWN)}
    batches = Batches([run.parts[NATURAL], run.parts[DRAWN]], wanted.micro_tokens, wanted.seed, wanted.share)
    state = stored_state(wanted.output, target.device)
    token_ids = frequent_ids(wanted.head_rows, read_array(gathered / FREQUENCY_NAME), tokenizer)
    if state is not None and len(state["token_ids"]) == wanted.head_rows:
        # Another corpus would ask for another head; the drafter keeps the one that it began with.
        token_ids = state["token_ids"].cpu().numpy()
    start, params = start_from(target, token_ids, projection_start(gathered).to(target.device))
    run.embed, target.layers = target.embed, []
    labels = None
    if wanted.plan.other_rows is not None:
        labels = [labels_of(start, part, wanted.output) for part in batches.parts]
    trainer = Trainer(start, params, target.embed, batches, labels, wanted.plan, wanted.output)
    run.record = _record(run, batches, gathered / SOURCES_NAME)
    if state is not None:
        trainer.resume(state)
        shown.line(f"going on at step {trainer.progress.step}")
    else:
        untrained = held_acceptance(start, params, run.embed, run.parts[HELD_DRAWN], texts=wanted.checked_texts)
        shown.line(f"untrained: {HELD_DRAWN}: {told(untrained)}")

    def tell(progress: Progress, seen: Seen, share: float) -> None:
        accepted = "/".join(f"{value:.2f}" for value in seen.acceptance)
        news = f"{progress.tokens} tokens, loss {seen.cross_entropy[0]:.2f}, accepts {accepted}"
        shown.progress(f"training: step {progress.step}, {news}", int(1000 * share), 1000)

    trainer.run(run.check, tell)
    return wanted.output / BEST_NAME


def told(acceptance: Acceptance) -> str:
    """One line of figures."""

    def positions(values: Sequence[float]) -> str:
        return " ".join(f"{value:.3f}" for value in values)

    sampled, greedy = positions(acceptance.sampled), positions(acceptance.greedy)
    return f"sampled {sampled}, greedy {greedy} by position (n {acceptance.rows}, head covers {acceptance.covered:.3f})"


def _in_order(wanted: Wanted) -> None:
    if wanted.features is None and not wanted.corpus:
        raise ConfigError("give a corpus, or the features of another run")
    if wanted.plan.hours is None and wanted.plan.steps is None:
        raise ConfigError("a training run needs hours or steps")
    if wanted.features is None:
        corpus_files(wanted.corpus)
    if wanted.head_rows < 64 or not 0 < wanted.share <= 1:
        raise ConfigError("a head has at least 64 rows, and a share is above 0 and at most 1")
    shortest = wanted.plan.self_fed + 8
    if min(wanted.gather.natural_length, wanted.gather.drawn_length, wanted.gather.tokens) < shortest:
        raise ConfigError(f"texts of fewer than {shortest} tokens teach nothing")
    wanted.output.mkdir(parents=True, exist_ok=True)


def _features(wanted: Wanted, target: TorchTarget, tokenizer: TokenizerModel, shown: Shown) -> Path:
    if wanted.features is not None:
        return wanted.features
    directory = wanted.output / FEATURES_NAME
    if (wanted.output / STATE_NAME).is_file():
        return directory
    directory.mkdir(exist_ok=True)
    _copy_sources(wanted.corpus, directory)
    segments = _segments(wanted, tokenizer)
    hours = wanted.plan.hours
    stop_at_s = float("inf") if hours is None else time.monotonic() + 3600 * hours * _FEATURES_SHARE
    made_from = {"target": target.config.name, "layers": target.config.num_layers}
    gathering = Gathering(directory, target, tokenizer, segments, wanted.gather, wanted.seed, made_from, shown.progress)
    gathering.run(stop_at_s)
    return directory


def _copy_sources(corpus: Sequence[Path], directory: Path) -> None:
    """Beside the features, so that whoever trains on them can say what they are."""
    found = {path.name: read_json(path / SOURCES_NAME) for path in corpus if (path / SOURCES_NAME).is_file()}
    replace_text(directory / SOURCES_NAME, json.dumps(found, indent=1) + "\n")


def _segments(wanted: Wanted, tokenizer: TokenizerModel) -> Segments:
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "tokenizer.model"
        path.write_bytes(tokenizer.model)
        reader = Tokenizer(path)
    length = wanted.gather.natural_length
    return read_segments(wanted.corpus, lambda text: reader.encode(text, bos=False), reader.bos_id, length, wanted.seed)


def _record(run: _Run, batches: Batches, sources: Path) -> dict[str, Any]:
    wanted, source = run.wanted, run.checkpoint.path
    return {
        "made_by": f"edge-export train-drafter {__version__}, torch {metadata.version('torch')}",
        "target": {"name": run.checkpoint.config.name, "sha256": file_sha256(source) if source.is_file() else None},
        "corpora": read_json(sources) if sources.is_file() else {},
        "features": {name: part.made_from | {"done": part.done} for name, part in run.parts.items()},
        "tokens": batches.tokens,
        "seed": wanted.seed,
        "device": wanted.device,
        "plan": asdict(wanted.plan),
        "head": "rows of the target's embedding, by frequency in the texts trained on",
        "licence": "a derivative of the target, under the target's terms (GEMMA_NOTICE.txt)",
    }
