"""The daemon's configuration: YAML into frozen dataclasses. Knows no engine; unknown keys are errors that name the
key that was meant.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from .errors import ConfigError
from .schema import structure

DEFAULT_SOCKET = "/run/edge-runtime/api.sock"
LONGEST_SOCKET_PATH = 107
"""Bytes: what the kernel has room for."""
_MOST_BYTES = 1 << 20
_LONGEST_DRAFT = 63
_LENGTHS = ("auto", "prompt-length", "confidence")
_SECTIONS = ("engine", "server", "limits")


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
    drafter: Literal["auto", "none", "lookup", "suffix", "draft", "mtp", "self", "heads"] = "auto"
    k: str | int = "auto"
    strategy: str = "as-requested"
    """How a drafter picks its tokens."""
    suffix_tokens: int = 1 << 17
    """Of earlier texts that are drafted from, some 40 bytes each; 0: none."""
    suffix_shared: bool = False
    """Whether one client's texts are drafted from for all clients, who can then tell by the speed what others wrote."""
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


@dataclass(frozen=True, slots=True)
class Overrides:
    """What the command line says instead of the file; relative to where it was typed."""

    bundle: Path | None = None
    socket: Path | None = None


def read_config(path: Path, overrides: Overrides = Overrides()) -> Config:
    """Relative paths in it are relative to the file; those of the result are absolute. Raises ``ConfigError``."""
    data = _read_yaml(path)
    if isinstance(data, dict):
        # A section whose lines are all commented out is one of defaults.
        data = {key: value for key, value in data.items() if not (key in _SECTIONS and value is None)}
        if overrides.bundle is not None:
            data["bundle"] = str(overrides.bundle.absolute())
    config = structure(Config, data, ConfigError, f"config {path}")
    place = path.absolute().parent
    socket = place / config.server.socket if overrides.socket is None else overrides.socket.absolute()
    config = replace(
        config, bundle=_tidy(str(place / config.bundle)), server=replace(config.server, socket=_tidy(str(socket)))
    )
    _check(config, f"config {path}")
    return config


def _read_yaml(path: Path) -> Any:
    import yaml

    class Loader(yaml.SafeLoader):
        """Without what a configuration has no use for and a reader trips over: aliases, which can make gigabytes of
        a few lines, and keys that stand twice, of which one would win in silence."""

        def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
            if self.check_event(yaml.AliasEvent):
                event: Any = self.peek_event()  # type: ignore[no-untyped-call]
                raise ConfigError(f"line {event.start_mark.line + 1}: aliases (*name) are not supported")
            return super().compose_node(parent, index)

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            seen = set()
            for key, _ in node.value:
                if key.value in seen:
                    raise ConfigError(f"line {key.start_mark.line + 1}: {key.value!r} stands twice")
                if isinstance(key.value, str):
                    seen.add(key.value)
            return super().construct_mapping(node, deep)

    try:
        with path.open("rb") as file:
            text = file.read(_MOST_BYTES + 1)
        if len(text) > _MOST_BYTES:
            raise ConfigError(f"more than {_MOST_BYTES >> 20} MiB")
        data = yaml.load(text, Loader)
    except OSError as problem:
        raise ConfigError(f"config {path}: {problem.strerror}") from None
    except RecursionError:
        raise ConfigError(f"config {path}: nested too deeply") from None
    except (yaml.YAMLError, UnicodeDecodeError, ValueError, ConfigError) as problem:
        raise ConfigError(f"config {path}: {' '.join(str(problem).split())}") from None
    if data is None:
        raise ConfigError(f"config {path}: is empty; it needs at least 'bundle: DIRECTORY'")
    return data


def _check(config: Config, where: str) -> None:
    engine, server, limits = config.engine, config.server, config.limits
    ranges: dict[str, tuple[float | None, float, float]] = {
        "engine.context": (engine.context, 1, 1 << 24),
        "engine.sessions": (engine.sessions, 1, 256),
        "engine.threads": (engine.threads, 0, 1024),
        "engine.suffix_tokens": (engine.suffix_tokens or None, 512, 1 << 26),
        "limits.queue": (limits.queue, 1, 65536),
        "limits.queue_per_client": (limits.queue_per_client, 1, 65536),
        "limits.running_per_client": (limits.running_per_client, 1, 256),
        "limits.max_tokens": (limits.max_tokens, 1, 1 << 24),
        "limits.deadline_s": (limits.deadline_s, 0.001, 1e6),
        "server.max_body_bytes": (server.max_body_bytes, 1024, 1 << 30),
        "server.max_header_bytes": (server.max_header_bytes, 1024, 1 << 20),
        "server.max_connections": (server.max_connections, 1, 65536),
        "server.read_timeout_s": (server.read_timeout_s, 0.001, 1e6),
        "server.write_timeout_s": (server.write_timeout_s, 0.001, 1e6),
        "drain_s": (config.drain_s, 0, 1e6),
    }
    for name, (value, low, high) in ranges.items():
        # Not the other way round: NaN is in no range.
        if value is not None and not low <= value <= high:
            raise ConfigError(f"{where}: {name} must be from {_shown(low)} to {_shown(high)}, not {value}")
    if not (engine.k in _LENGTHS or (_number(engine.k) is not None)):
        named = ", ".join(_LENGTHS)
        raise ConfigError(
            f"{where}: engine.k must be {named} or a number from 0 to {_LONGEST_DRAFT}, not {engine.k!r}"
        )
    mode = server.mode
    if not mode or set(mode) - set("01234567") or int(mode, 8) > 0o777:
        raise ConfigError(f"{where}: server.mode must be octal as in '0660', not {mode!r}")
    if len(server.socket.encode("utf-8", "surrogateescape")) > LONGEST_SOCKET_PATH:
        raise ConfigError(
            f"{where}: server.socket is longer than the {LONGEST_SOCKET_PATH} bytes of a socket's path: {server.socket}"
        )
    if "\0" in server.socket + config.bundle:
        raise ConfigError(f"{where}: a path holds a null character")
    if server.tcp is not None:
        host_and_port(server.tcp, where)


def host_and_port(text: str, where: str) -> tuple[str, int]:
    """``HOST:PORT`` or ``[IPv6]:PORT``. Raises ``ConfigError``."""
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        host = ""
    if not (host and colon and port.isascii() and port.isdecimal() and int(port) <= 65535):
        raise ConfigError(f"{where}: server.tcp must be HOST:PORT as in 127.0.0.1:8080, not {text!r}")
    return host, int(port)


def _tidy(path: str) -> str:
    """Without ``..``, for logs: where it is the same place, which it is not behind a symbolic link."""
    if "\0" in path:
        return path
    tidy = os.path.normpath(path)
    return tidy if os.path.realpath(tidy) == os.path.realpath(path) else path


def _shown(bound: float) -> str:
    return str(int(bound)) if bound == int(bound) else str(bound)


def _number(k: str | int) -> int | None:
    """``k`` where it is a number that may be."""
    text = str(k)
    return int(text) if text.isascii() and text.isdecimal() and int(text) <= _LONGEST_DRAFT else None
