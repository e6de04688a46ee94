"""The daemon's configuration."""

from __future__ import annotations

from pathlib import Path
from random import Random

from edge_runtime.config import Config, read_config
from edge_runtime.errors import ConfigError

from ..examples import words
from ..judge import Judge
from ..yaml_text import edit_yaml

REFUSAL = ConfigError
NAME = "edge-runtime.yaml"
_KNOWN = words(Config)
_TEXT = """\
bundle: bundles/gemma
engine:
  context: 4096
  sessions: 2
  k: auto
  engines: engines
server:
  socket: run/edge.sock
  mode: '0660'
  tcp: 127.0.0.1:8080
limits:
  max_tokens: 256
  deadline_s: 30.5
drain_s: 5
isolation:
  prefixes: private
  private_users: [7, root]
budget:
  memory_gb: 4
  power_mw: 15000
  telemetry: sysfs
  stale_s: 3.0
"""


def seeds() -> list[bytes]:
    short = "bundle: b\nbudget: {telemetry: replay, recording: r.jsonl}\nengine:\nserver: {socket: s}\n"
    return [_TEXT.encode(), short.encode()]


def mutate(data: bytes, rng: Random) -> bytes:
    return edit_yaml(data, rng, _KNOWN)


def read(judge: Judge, path: Path) -> None:
    judge.attempt(read_config, path)
