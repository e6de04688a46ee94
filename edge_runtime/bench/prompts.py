"""What ``compare`` decodes: domains of prompts, each with a note of what it measures. Knows no tokenizer."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from ..errors import ConfigError, did_you_mean
from ..schema import structure

_FILE = Path(__file__).parent / "data" / "domains.yaml"

DomainKind = Literal["open", "copy"]
"""Open: the model writes by itself. Copy: most of the answer stands in the prompt."""


@dataclass(frozen=True, slots=True)
class DomainPrompt:
    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Domain:
    domain: str
    kind: DomainKind
    measures: str
    prompts: tuple[DomainPrompt, ...]


def domains() -> tuple[Domain, ...]:
    data: list[Any] = yaml.safe_load(_FILE.read_text(encoding="utf-8"))
    return tuple(structure(Domain, item, ConfigError, _FILE.name) for item in data)


def chosen_domains(names: tuple[str, ...]) -> tuple[Domain, ...]:
    """Those of ``names``, all for none, in the file's order. Raises ``ConfigError``."""
    known = {domain.domain: domain for domain in domains()}
    for name in names:
        if name not in known:
            raise ConfigError(f"domains: {name!r} is none of {', '.join(known)}{did_you_mean(name, known)}")
    return tuple(domain for name, domain in known.items() if not names or name in names)


def prompts_sha256() -> str:
    """Of the file: figures on other prompts are other figures."""
    return hashlib.sha256(_FILE.read_bytes()).hexdigest()
