"""The daemon's configuration: YAML into frozen dataclasses. Knows no engine; unknown keys are errors that name the
key that was meant.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from .errors import ConfigError
from .schema import structure

DEFAULT_SOCKET = "/run/edge-runtime/api.sock"


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How the bundle is loaded; a change needs a new load."""

    context: int | None = None
    """Tokens of prompt and answer together, of each session; the bundle's longest, at most 2048, when ``None``."""
    sessions: int = 4
    """Slots of the KV arena: answers made in turn, and conversations remembered."""
    threads: int = 0
    deterministic: bool = False
    head: Literal["screened", "full"] = "screened"
    device: Literal["cpu", "cuda"] = "cpu"
    drafter: Literal["auto", "none", "lookup", "draft"] = "auto"
    k: str | int = "auto"
    verify_hashes: bool = True


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Who may connect, and what one connection may cost; a change needs a restart."""

    socket: str = DEFAULT_SOCKET
    mode: str = "0660"
    """Octal, of the socket."""
    group: str | None = None
    """Owner group of the socket; ``None``: the process's own."""
    tcp: str | None = None
    """HOST:PORT as well. Off by default: TCP has no peer credentials, so everybody on it is one client."""
    max_body_bytes: int = 4 << 20
    max_header_bytes: int = 32 << 10
    max_connections: int = 1024
    read_timeout_s: float = 30.0
    """For a whole request to arrive."""
    write_timeout_s: float = 30.0
    """For a reader that does not read; then its answer is cancelled."""


@dataclass(frozen=True, slots=True)
class LimitsConfig:
    """Reloaded by SIGHUP."""

    queue: int = 64
    queue_per_client: int = 16
    running_per_client: int | None = None
    max_tokens: int | None = None
    deadline_s: float | None = None


@dataclass(frozen=True, slots=True)
class Config:
    bundle: str
    engine: EngineConfig = field(default_factory=EngineConfig)
    server: ServerConfig = field(default_factory=ServerConfig)
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    drain_s: float = 30.0
    """Seconds that running answers may still take after SIGTERM."""


def read_config(path: Path) -> Config:
    """Relative paths in it are relative to the file. Raises ``ConfigError``."""
    try:
        data: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as problem:
        raise ConfigError(f"config {path}: {problem.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as problem:
        raise ConfigError(f"config {path}: {' '.join(str(problem).split())}") from None
    config = structure(Config, data, ConfigError, str(path))
    _check(config, str(path))
    return config


def _check(config: Config, where: str) -> None:
    positive = {
        "engine.sessions": config.engine.sessions,
        "limits.queue": config.limits.queue,
        "limits.queue_per_client": config.limits.queue_per_client,
        "limits.running_per_client": config.limits.running_per_client,
        "limits.max_tokens": config.limits.max_tokens,
        "limits.deadline_s": config.limits.deadline_s,
        "server.max_body_bytes": config.server.max_body_bytes,
        "server.max_header_bytes": config.server.max_header_bytes,
        "server.max_connections": config.server.max_connections,
        "server.read_timeout_s": config.server.read_timeout_s,
        "server.write_timeout_s": config.server.write_timeout_s,
    }
    for name, value in positive.items():
        if value is not None and not 0 < value < float("inf"):
            raise ConfigError(f"{where}: {name} must be above 0, not {value}")
    if not 0 <= config.drain_s < float("inf"):
        raise ConfigError(f"{where}: drain_s must be a number of seconds, not {config.drain_s}")
    mode = config.server.mode
    if not mode or set(mode) - set("01234567") or int(mode, 8) > 0o777:
        raise ConfigError(f"{where}: server.mode must be octal as in '0660', not {mode!r}")
