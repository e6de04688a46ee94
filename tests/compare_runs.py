"""Records of a comparison as they might have come out, and a bundle of fake engines to make some. Knows no test."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from edge_runtime.bench.compare.record import DomainRecord, Quality, Run
from edge_runtime.bench.prompts import DomainKind
from edge_runtime.loading import LoadedBundle
from edge_runtime.testing import FakeEngine, FakeModel

_RUN = Run(
    part="final", prompt="one", law="sampled", method="auto auto", round=0, seconds_per_token=1.0,
    plain_seconds_per_token=1.0, tokens=33, steps=16, committed=32, drafted=32, accepted=16, tried_by_position=(16, 8),
    accepted_by_position=(8, 8), draft_share=0.1, verify_share=0.8, repeat_rate=0.0, copied_share=0.0,
    drafts_scored=24, drafts_log_likelihood=-12.0, nll=2.0,
    reason="K=2: expected 1.20x", sources={"mtp": 12, "": 4}, plain_repeat_rate=0.0, plain_nll=2.0,
)  # fmt: skip


def run(speedup: float = 1.0, **changes: Any) -> Run:
    """With a plain text of a second a token beside it."""
    return dataclasses.replace(_RUN, **{"seconds_per_token": 1.0 / speedup, **changes})


def priced(speedup: float, curve: str, **changes: Any) -> Run:
    return run(speedup, part="priced", curve=curve, plain_repeat_rate=None, plain_nll=None, **changes)


def domain(name: str, kind: DomainKind, *runs: Run, quality: tuple[Quality, ...] = ()) -> DomainRecord:
    return DomainRecord(name, kind, runs, quality, ())


class Letters:
    """A tokenizer of the fake vocabulary: a character is a token."""

    def encode(self, text: str) -> list[int]:
        return [1, *(2 + ord(character) % 60 for character in text[:40])]

    def piece_bytes(self, token: int) -> bytes:
        return bytes([64 + token])


def fake_bundle(draft: FakeModel | None = None, **engine: Any) -> LoadedBundle:
    """Of a fake target and, perhaps, a fake draft."""
    options = {"capacity": 256, "max_rows": 64, **engine}
    return LoadedBundle(
        directory=Path("fake"),
        manifest=_manifest(),
        tokenizer=Letters(),  # type: ignore[arg-type]
        target=FakeEngine(FakeModel(), **options),
        drafting={} if draft is None else {"draft": FakeEngine(draft, **options)},
        max_head_rows=8,
        load_s=0.0,
    )


def _manifest() -> Any:
    """Of what pricing reads: a target of 600 bytes of layers and a head of 400, drafters that share more or less."""

    @dataclasses.dataclass
    class Entry:
        name: str
        bytes: int

    @dataclasses.dataclass
    class Model:
        weights: tuple[str, ...]
        layers: int
        vocab_size: int = 10
        hidden_input: int | None = None
        hidden_size: int = 2
        precision: str = "fp32"
        table: tuple[()] = ()
        screen: None = None

        def __post_init__(self) -> None:
            self.layers = tuple(range(self.layers))  # type: ignore[assignment]

    @dataclasses.dataclass
    class Manifest:
        files: tuple[Entry, ...]
        models: dict[str, Model]

        def model(self, role: str) -> Model:
            return self.models[role]

    files = (Entry("target", 1000), Entry("draft", 100), Entry("mtp", 10), Entry("heads", 80), Entry("pruned", 40))
    models = {
        "target": Model(("target",), 4, vocab_size=50),
        "draft": Model(("draft",), 1),
        "mtp": Model(("target", "mtp"), 1, hidden_input=2),
        "heads": Model(("target", "heads"), 0, hidden_input=2),
        "self": Model(("target",), 2, vocab_size=50),
        "pruned": Model(("target", "pruned"), 2),
    }
    return Manifest(files, models)
