"""The daemon's configuration: YAML into frozen dataclasses. Knows no engine; unknown keys are errors that name the
key that was meant.
"""

from __future__ import annotations

import os
import pwd
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from .budget import Limits
from .errors import ConfigError
from .plain_yaml import read_yaml
from .schema import structure

DEFAULT_SOCKET = "/run/edge-runtime/api.sock"
LONGEST_SOCKET_PATH = 107
"""Bytes: what the kernel has room for."""
_LONGEST_DRAFT = 63
_LARGEST_UID = (1 << 32) - 1
_LONGEST_NUMBER = 10**30
_LENGTHS = ("auto", "prompt-length", "confidence")
_SECTIONS = ("engine", "server", "limits", "isolation", "budget")
_GIGABYTE = 1_000_000_000
_UNITS = {
    "_mw": "milliwatts, a whole number as in 15000",
    "_gb": "10^9 bytes, a number as in 4.5",
    "_bytes": "a whole number as in 4194304",
    "_c": "degrees Celsius, a number as in 85",
    "_s": "seconds, a number as in 2.5",
}
"""What a key is counted in, by its ending: for who gives something else."""


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
    backend: Literal["auto", "onnxruntime", "tensorrt", "reference", "nf4"] = "auto"
    """What runs the bundle's graphs; ``auto``: what they were exported for."""
    engines: str | None = None
    """Directory of what ``edge-runtime build`` made of a bundle for TensorRT; ``None``: in the bundle itself."""
    cuda_graphs: Literal["none", "captured"] = "none"
    """On a device, whether runs of few rows are captured and launched again: fewer microseconds, for more memory."""
    cpu_fallback: bool = False
    """With ``device: cuda``: what has no kernel there may run on the processor; else the bundle does not load."""


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
    priority_users: tuple[int | str, ...] = ()
    """Uids or names that may ask to be served ahead of others (``priority`` below 0), beside root and the daemon's own
    user; uids alone once it was read."""

    def may_lead(self, client: int) -> bool:
        """``client``: uid, or below 0."""
        return client in (0, os.getuid(), *self.priority_users)


@dataclass(frozen=True, slots=True)
class IsolationConfig:
    """Whose prompts may make whose answers faster. Reloaded by SIGHUP, for requests to come."""

    prefixes: Literal["shared", "private"] = "shared"
    """``shared``: a prompt starts from what any user's prompts left, in whole blocks of ``reuse.BLOCK`` tokens, unless
    either request has a ``cache_salt``. ``private``: from its own user's alone; over TCP from none without a salt."""
    private_users: tuple[int | str, ...] = ()
    """Uids or names for whom they are private whatever ``prefixes`` says; uids alone once it was read."""

    def keeps_apart(self, client: int) -> bool:
        """``client``: uid, or below 0."""
        return self.prefixes == "private" or client in self.private_users


@dataclass(frozen=True, slots=True)
class BudgetConfig:
    """What the daemon may take of its board. Reloaded by SIGHUP but for where readings come from; memory counts at the
    next load."""

    memory_gb: float | None = None
    """Most for the process, in 10^9 bytes; all of the machine's less ``reserve_gb`` when ``None``."""
    reserve_gb: float = 0.8
    """To be left available to the rest of the system: nothing is loaded into it, and below it caches are let go."""
    power_mw: int | None = None
    temperature_c: float | None = None
    stale_s: float = 3.0
    blind_draft_tokens: int = 2
    blind_duty: float = 0.5
    telemetry: Literal["auto", "jtop", "sysfs", "replay", "none"] = "auto"
    interval_s: float = 0.5
    """Between two readings."""
    recording: str | None = None
    """File of samples for ``replay``."""

    @property
    def memory_bytes(self) -> int | None:
        return None if self.memory_gb is None else int(self.memory_gb * _GIGABYTE)

    @property
    def reserve_bytes(self) -> int:
        return int(self.reserve_gb * _GIGABYTE)

    @property
    def limits(self) -> Limits:
        return Limits(self.power_mw, self.temperature_c, self.stale_s, self.blind_draft_tokens, self.blind_duty)


@dataclass(frozen=True, slots=True)
class Config:
    bundle: str
    engine: EngineConfig = field(default_factory=EngineConfig)
    server: ServerConfig = field(default_factory=ServerConfig)
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    drain_s: float = 30.0
    """Seconds that running answers may still take after SIGTERM."""
    budget: BudgetConfig = field(default_factory=BudgetConfig)
    isolation: IsolationConfig = field(default_factory=IsolationConfig)


@dataclass(frozen=True, slots=True)
class Overrides:
    """What the command line says instead of the file; relative to where it was typed."""

    bundle: Path | None = None
    socket: Path | None = None


def read_config(path: Path, overrides: Overrides = Overrides()) -> Config:
    """Relative paths in it are relative to the file; those of the result are absolute. Raises ``ConfigError``."""
    data = read_yaml(path, "config ")
    if data is None:
        raise ConfigError(f"config {path}: is empty; it needs at least 'bundle: DIRECTORY'")
    if isinstance(data, dict):
        # A section whose lines are all commented out is one of defaults.
        data = {key: value for key, value in data.items() if not (key in _SECTIONS and value is None)}
        if overrides.bundle is not None:
            data["bundle"] = str(overrides.bundle.absolute())
    config = structure(Config, data, ConfigError, f"config {path}", _UNITS)
    for name, given in (("bundle", config.bundle), ("server.socket", config.server.socket),
                        ("budget.recording", config.budget.recording),
                        ("engine.engines", config.engine.engines)):  # fmt: skip
        if given == "":
            raise ConfigError(f"config {path}: {name} is empty")
        if given is not None and not _encodes(given):
            raise ConfigError(f"config {path}: {name} holds half a surrogate pair, as no path does: {given!r}")
    place = path.absolute().parent
    socket = place / config.server.socket if overrides.socket is None else overrides.socket.absolute()
    config = replace(
        config, bundle=_tidy(str(place / config.bundle)), server=replace(config.server, socket=_tidy(str(socket)))
    )
    if config.budget.recording is not None:
        config = replace(config, budget=replace(config.budget, recording=_tidy(str(place / config.budget.recording))))
    if config.engine.engines is not None:
        config = replace(config, engine=replace(config.engine, engines=_tidy(str(place / config.engine.engines))))
    _check(config, f"config {path}")
    private, first = config.isolation.private_users, config.limits.priority_users
    return replace(
        config,
        isolation=replace(config.isolation, private_users=_uids(private, f"config {path}: isolation.private_users")),
        limits=replace(config.limits, priority_users=_uids(first, f"config {path}: limits.priority_users")),
    )


def _check(config: Config, where: str) -> None:
    engine, server, limits = config.engine, config.server, config.limits
    ranges: dict[str, tuple[float | None, float, float]] = {
        "engine.context": (engine.context, 2, 1 << 24),
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
    _check_ranges(ranges, where)
    _check_budget(config.budget, where)
    if not (engine.k in _LENGTHS or (_number(engine.k) is not None)):
        named = ", ".join(_LENGTHS)
        raise ConfigError(f"{where}: engine.k must be {named} or a number from 0 to {_LONGEST_DRAFT}, not {engine.k!r}")
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


def _check_ranges(ranges: dict[str, tuple[float | None, float, float]], where: str) -> None:
    for name, (value, low, high) in ranges.items():
        # Not the other way round: NaN is in no range.
        if value is not None and not low <= value <= high:
            raise ConfigError(f"{where}: {name} must be from {_shown(low)} to {_shown(high)}, not {_given(value)}")


def _uids(users: tuple[int | str, ...], key: str) -> tuple[int, ...]:
    return tuple(_uid(user, key) for user in users)


def _uid(user: int | str, key: str) -> int:
    """Raises ``ConfigError``."""
    if isinstance(user, int):
        if not 0 <= user < _LARGEST_UID:
            raise ConfigError(f"{key}: a uid is from 0 to {_LARGEST_UID - 1}, not {_given(user)}")
        return user
    try:
        return pwd.getpwnam(user).pw_uid
    except (KeyError, ValueError, UnicodeEncodeError):
        raise ConfigError(f"{key}: no user {user!r} on this machine; a number is taken as a uid") from None


def _check_budget(budget: BudgetConfig, where: str) -> None:
    ranges: dict[str, tuple[float | None, float, float]] = {
        "budget.memory_gb": (budget.memory_gb, 0.1, 1024),
        "budget.reserve_gb": (budget.reserve_gb, 0, 1024),
        "budget.power_mw": (budget.power_mw, 1000, 1_000_000),
        "budget.temperature_c": (budget.temperature_c, 30, 105),
        "budget.stale_s": (budget.stale_s, 0.1, 600),
        "budget.blind_draft_tokens": (budget.blind_draft_tokens, 0, _LONGEST_DRAFT),
        "budget.blind_duty": (budget.blind_duty, 0.01, 1),
        "budget.interval_s": (budget.interval_s, 0.05, 60),
    }
    _check_ranges(ranges, where)
    if budget.stale_s <= budget.interval_s:
        raise ConfigError(
            f"{where}: budget.stale_s ({budget.stale_s:g}) must be longer than budget.interval_s "
            f"({budget.interval_s:g}), or every reading is too old"
        )
    for name, limit in (("power_mw", budget.power_mw), ("temperature_c", budget.temperature_c)):
        if limit is not None and budget.telemetry == "none":
            raise ConfigError(f"{where}: budget.{name} cannot be held with budget.telemetry: none")
    if (budget.telemetry == "replay") != (budget.recording is not None):
        raise ConfigError(f"{where}: budget.telemetry: replay and budget.recording: FILE go together")
    if budget.recording is not None and "\0" in budget.recording:
        raise ConfigError(f"{where}: a path holds a null character")


def host_and_port(text: str, where: str) -> tuple[str, int]:
    """``HOST:PORT`` or ``[IPv6]:PORT``. Raises ``ConfigError``."""
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        host = ""
    is_port = port.isascii() and port.isdecimal() and len(port) <= 5 and int(port) <= 65535
    if not (colon and is_port and _is_host(host)):
        raise ConfigError(f"{where}: server.tcp must be HOST:PORT as in 127.0.0.1:8080, not {text[:300]!r}")
    return host, int(port)


def _is_host(name: str) -> bool:
    """Whether a resolver takes it at all: a part that is empty or too long is an error of Python's, and no answer."""
    try:
        return bool(name) and b"\0" not in name.encode("idna")
    except UnicodeError:
        return False


def _encodes(path: str) -> bool:
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        return False
    return True


def _tidy(path: str) -> str:
    """Without ``..``, for logs: where it is the same place, which it is not behind a symbolic link."""
    if "\0" in path:
        return path
    tidy = os.path.normpath(path)
    return tidy if os.path.realpath(tidy) == os.path.realpath(path) else path


def _given(value: float) -> str:
    """Python writes no number of thousands of digits."""
    return "a longer number" if isinstance(value, int) and abs(value) > _LONGEST_NUMBER else f"{value}"


def _shown(bound: float) -> str:
    return str(int(bound)) if bound == int(bound) else str(bound)


def _number(k: str | int) -> int | None:
    """``k`` where it is a number that may be."""
    text = str(k)
    return int(text) if text.isascii() and text.isdecimal() and int(text) <= _LONGEST_DRAFT else None
