"""The texts that figures stand on: the same for benchmarks, parity and tests. Knows no tokenizer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import yaml

_DATA = Path(__file__).parent / "data"
SAMPLE_START, SAMPLE_TOKENS = 3000, 400
"""The sample for likelihoods: this many tokens after this character of the GPL-3."""


@dataclass(frozen=True, slots=True)
class Prompt:
    name: str
    text: str
    kind: Literal["open", "copy"] = "open"
    """Copy: the answer repeats its prompt (retrieval, edits, records), which a drafter that copies lives on."""


def prompts(kind: Literal["open", "copy"] | None = None) -> tuple[Prompt, ...]:
    """All, or those of a kind."""
    data = yaml.safe_load((_DATA / "prompts.yaml").read_text(encoding="utf-8"))
    known = tuple(Prompt(**item) for item in data)
    return tuple(prompt for prompt in known if kind is None or prompt.kind == kind)


def sample_text() -> str:
    """The GPL-3 from ``SAMPLE_START`` on."""
    return (_DATA / "gpl-3.txt").read_text(encoding="utf-8")[SAMPLE_START:]
