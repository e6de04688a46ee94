"""The daemon's configuration: what it says when it is wrong, where its paths lead, and the files in configs/."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from edge_runtime.boards import BOARDS
from edge_runtime.budget import Limits
from edge_runtime.config import (
    BudgetConfig,
    Config,
    EngineConfig,
    IsolationConfig,
    LimitsConfig,
    Overrides,
    ServerConfig,
    read_config,
)
from edge_runtime.errors import ConfigError
from edge_runtime.server.preparing import limits_of, settings_of

CONFIGS = Path(__file__).parent.parent / "configs"


def written(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "daemon.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def problem_of(tmp_path: Path, text: str | bytes) -> str:
    with pytest.raises(ConfigError) as caught:
        read_config(written(tmp_path, text))
    message = str(caught.value)
    assert "\n" not in message and str(tmp_path) in message and len(message) < 1000
    return message


def test_defaults(tmp_path: Path) -> None:
    config = read_config(written(tmp_path, "bundle: b\n"))
    assert config == Config(str(tmp_path / "b"), EngineConfig(), ServerConfig(), LimitsConfig())
    assert config.server.tcp is None and config.server.mode == "0660"


def test_every_key_can_be_said(tmp_path: Path) -> None:
    text = """
bundle: /b
engine: {context: 100, sessions: 2, threads: 3, deterministic: true, head: full, device: cuda, drafter: lookup, k: 3,
         strategy: greedy, suffix_tokens: 1024, suffix_shared: true, verify_hashes: false, backend: reference,
         engines: /e, cuda_graphs: captured, cpu_fallback: true}
server: {socket: /s, mode: "0600", group: g, tcp: "[::1]:80", max_body_bytes: 1024, max_header_bytes: 2048,
         max_connections: 5, read_timeout_s: 1, write_timeout_s: 2.5}
limits: {queue: 1, queue_per_client: 2, running_per_client: 3, max_tokens: 4, deadline_s: 5, priority_users: [8, root]}
budget: {memory_gb: 1.5, reserve_gb: 0.25, power_mw: 15000, temperature_c: 80, stale_s: 2, blind_draft_tokens: 1,
         blind_duty: 0.25, telemetry: replay, interval_s: 0.1, recording: /r}
isolation: {prefixes: private, private_users: [7, root]}
drain_s: 0
"""
    engine = EngineConfig(100, 2, 3, True, "full", "cuda", "lookup", 3, "greedy", 1024, True, False, "reference", "/e",
                          "captured", True)  # fmt: skip
    server = ServerConfig("/s", "0600", "g", "[::1]:80", 1024, 2048, 5, 1.0, 2.5)
    budget = BudgetConfig(1.5, 0.25, 15000, 80.0, 2.0, 1, 0.25, "replay", 0.1, "/r")
    limits = LimitsConfig(1, 2, 3, 4, 5.0, (8, 0))
    isolation = IsolationConfig("private", (7, 0))
    assert read_config(written(tmp_path, text)) == Config("/b", engine, server, limits, 0.0, budget, isolation)
    assert (budget.memory_bytes, budget.reserve_bytes) == (1_500_000_000, 250_000_000)
    assert budget.limits == Limits(15000, 80.0, 2.0, 1, 0.25)


def test_who_is_kept_apart() -> None:
    assert not any(IsolationConfig().keeps_apart(client) for client in (-1, 0, 7))
    assert all(IsolationConfig("private").keeps_apart(client) for client in (-1, 0, 7))
    assert [IsolationConfig(private_users=(7,)).keeps_apart(client) for client in (-1, 0, 7)] == [False, False, True]


def test_who_may_be_ahead_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getuid", lambda: 50)
    assert [client for client in (-1, 0, 1, 7, 50) if LimitsConfig().may_lead(client)] == [0, 50]
    assert [client for client in (-1, 0, 1, 7, 50) if LimitsConfig(priority_users=(7,)).may_lead(client)] == [0, 7, 50]


def test_paths_are_relative_to_the_file_and_overrides_to_where_one_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "configs").mkdir()
    path = written(tmp_path / "configs", "bundle: ../b\nserver: {socket: run/s}\n")
    monkeypatch.chdir(tmp_path)
    for name in (path, path.relative_to(tmp_path)):
        config = read_config(name)
        assert (config.bundle, config.server.socket) == (f"{tmp_path}/b", f"{tmp_path}/configs/run/s")
    config = read_config(path, Overrides(Path("here"), Path("s.sock")))
    assert (config.bundle, config.server.socket) == (f"{tmp_path}/here", f"{tmp_path}/s.sock")
    config = read_config(path, Overrides(Path("./x/../here"), Path("configs/../s.sock")))
    assert (config.bundle, config.server.socket) == (f"{tmp_path}/here", f"{tmp_path}/s.sock")
    # A bundle on the command line need not stand in the file as well.
    assert read_config(written(tmp_path, "drain_s: 1\n"), Overrides(bundle=Path("b"))).bundle == f"{tmp_path}/b"


def test_a_path_through_a_link_leads_where_the_system_says(tmp_path: Path) -> None:
    (tmp_path / "far" / "configs").mkdir(parents=True)
    (tmp_path / "near").symlink_to(tmp_path / "far" / "configs")
    written(tmp_path / "near", "bundle: ../b\n")
    assert read_config(tmp_path / "near" / "daemon.yaml").bundle == f"{tmp_path}/near/../b"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("# nothing\n", "is empty"),
        ("[]\n", ": expected object, got array"),
        ("just words\n", "object"),
        ("drain_s: 1\n", ": bundle is missing"),
        ("bundle: 3\n", "bundle"),
        ("bundel: b\n", "unknown key 'bundel' (did you mean 'bundle'?)"),
        ("budget: {[1, 2]: 1}\n", "line 1: a key must be a word"),
        ("bundle: b\n? {a: 1}\n: 2\n", "line 2: a key must be a word"),
        ("bundle: ''\n", "bundle is empty"),
        ("bundle: b\nserver: {socket: ''}\n", "server.socket is empty"),
        ("bundle: b\nbudget: {telemetry: replay, recording: ''}\n", "budget.recording is empty"),
        ("bundle: b\npower_mw: 15000\n", "unknown key 'power_mw' (it belongs into budget:)"),
        ("bundle: b\nlimits: {sessions: 2}\n", "limits: unknown key 'sessions' (it belongs into engine:)"),
        ("engine: {bundle: b}\n", "engine: unknown key 'bundle' (it belongs to the top, into no section)"),
        ("bundle: b\nbudget: {power_mw: 15e3}\n", "budget.power_mw: expected int | null, got str (milliwatts, a whole"),
        ("bundle: b\nbudget: {power_mw: 15.5e+3}\n", "got float (milliwatts, a whole number as in 15000)"),
        ("bundle: b\nbudget: {power_mw: 15 W}\n", "got str (milliwatts, a whole number as in 15000)"),
        ("bundle: b\nbudget: {memory_gb: 4 GB}\n", "got str (10^9 bytes, a number as in 4.5)"),
        ("bundle: b\nbudget: {temperature_c: 85 C}\n", "got str (degrees Celsius, a number as in 85)"),
        ("bundle: b\nlimits: {deadline_s: 5m}\n", "got str (seconds, a number as in 2.5)"),
        ("bundle: b\nengine: {sessions: 0x" + "f" * 6000 + "}\n", "engine.sessions must be from 1 to 256"),
        ("bundle: 0x" + "f" * 6000 + "\n", "bundle"),
        ("bundle: b\nengine: {sesions: 2}\n", "unknown key 'sesions' (did you mean 'sessions'?)"),
        ("bundle: b\nlimits: {queue_per_cliend: 2}\n", "did you mean 'queue_per_client'"),
        ("bundle: b\nserver: {sockets: x}\n", "did you mean 'socket'"),
        ("bundle: b\n3: x\n", "unknown key 3"),
        ("bundle: b\nengine: fast\n", "engine"),
        ("bundle: b\nengine: {sessions: two}\n", ": engine.sessions: expected int, got str"),
        ("bundle: b\nengine: {sessions: 2.5}\n", "engine.sessions"),
        ("bundle: b\nengine: {sessions: true}\n", "engine.sessions"),
        ("bundle: b\nengine: {deterministic: 1}\n", "engine.deterministic"),
        ("bundle: b\nengine: {head: half}\n", "engine.head must be screened or full, not 'half'"),
        ("bundle: b\nengine: {head: ful}\n", "not 'ful' (did you mean 'full'?)"),
        ("bundle: b\nserver: {mode: 0660}\n", "server.mode"),
        ("bundle: b\nserver: {mode: '0990'}\n", "server.mode must be octal"),
        ("bundle: b\nserver: {mode: '07777'}\n", "server.mode must be octal"),
        ("bundle: b\nserver: {mode: ''}\n", "server.mode must be octal"),
        ("bundle: b\nengine: {sessions: 0}\n", "engine.sessions must be from 1 to 256, not 0"),
        ("bundle: b\nengine: {sessions: 257}\n", "engine.sessions must be from 1"),
        ("bundle: b\nengine: {context: 0}\n", "engine.context must be from 2 to 16777216, not 0"),
        ("bundle: b\nengine: {threads: -1}\n", "engine.threads must be from 0"),
        ("bundle: b\nengine: {k: many}\n", "engine.k must be"),
        ("bundle: b\nengine: {k: 64}\n", "engine.k must be"),
        ("bundle: b\nengine: {k: -1}\n", "engine.k must be"),
        ("bundle: b\nengine: {k: ²}\n", "engine.k must be"),
        ("bundle: b\nlimits: {queue: 0}\n", "limits.queue must be"),
        ("bundle: b\nlimits: {max_tokens: -4}\n", "limits.max_tokens must be"),
        ("bundle: b\nlimits: {deadline_s: .inf}\n", "limits.deadline_s must be from 0.001 to 1000000, not inf"),
        ("bundle: b\nlimits: {deadline_s: .nan}\n", "limits.deadline_s must be"),
        ("bundle: b\ndrain_s: -1\n", "drain_s must be"),
        ("bundle: b\nisolation: {prefixes: privat}\n", "not 'privat' (did you mean 'private'?)"),
        ("bundle: b\nisolation: {private_users: [-1]}\n", "a uid is from 0 to 4294967294, not -1"),
        ("bundle: b\nisolation: {private_users: [nosuchuser]}\n", "no user 'nosuchuser' on this machine"),
        ('bundle: b\nisolation: {private_users: ["\\0"]}\n', "isolation.private_users: no user"),
        ("bundle: b\nisolation: {private_users: ada}\n", "isolation.private_users: expected array, got str"),
        ("bundle: b\nlimits: {priority_users: [nosuchuser]}\n", "limits.priority_users: no user 'nosuchuser' on this"),
        ("bundle: b\nbudget: {memory: 3}\n", "unknown key 'memory' (did you mean 'memory_gb'?)"),
        ("bundle: b\nbudget: {memory_gb: 0}\n", "budget.memory_gb must be from 0.1 to 1024, not 0"),
        ("bundle: b\nbudget: {memory_gb: .nan}\n", "budget.memory_gb must be"),
        ("bundle: b\nbudget: {reserve_gb: -1}\n", "budget.reserve_gb must be"),
        ("bundle: b\nbudget: {power_mw: 15}\n", "budget.power_mw must be from 1000 to 1000000, not 15"),
        ("bundle: b\nbudget: {temperature_c: 120}\n", "budget.temperature_c must be from 30 to 105, not 120"),
        ("bundle: b\nbudget: {blind_duty: 0}\n", "budget.blind_duty must be from 0.01 to 1, not 0"),
        ("bundle: b\nbudget: {blind_draft_tokens: 99}\n", "budget.blind_draft_tokens must be"),
        ("bundle: b\nbudget: {interval_s: 0}\n", "budget.interval_s must be"),
        ("bundle: b\nbudget: {interval_s: 5}\n", "budget.stale_s (3) must be longer than budget.interval_s (5)"),
        ("bundle: b\nbudget: {telemetry: smc}\n", "budget.telemetry must be auto, jtop, sysfs, replay or none"),
        ("bundle: b\nbudget: {telemetry: none, power_mw: 15000}\n", "budget.power_mw cannot be held"),
        ("bundle: b\nbudget: {telemetry: none, temperature_c: 80}\n", "budget.temperature_c cannot be held"),
        ("bundle: b\nbudget: {telemetry: replay}\n", "budget.recording: FILE go together"),
        ("bundle: b\nbudget: {recording: x}\n", "budget.recording: FILE go together"),
        ('bundle: b\nbudget: {telemetry: replay, recording: "a\\0b"}\n', "null character"),
        ("bundle: b\ndrain_s: .nan\n", "drain_s must be"),
        ("bundle: b\ndrain_s: soon\n", "drain_s"),
        ("bundle: b\nserver: {max_body_bytes: 10}\n", "server.max_body_bytes must be"),
        (f"bundle: b\nserver: {{socket: /{'x' * 107}}}\n", "107 bytes"),
        ('bundle: b\nserver: {socket: "a\\0b"}\n', "null character"),
        ("bundle: b\nserver: {tcp: 8080}\n", "server.tcp"),
        ("bundle: b\nserver: {tcp: localhost}\n", "HOST:PORT"),
        ("bundle: b\nserver: {tcp: ':80'}\n", "HOST:PORT"),
        ("bundle: b\nserver: {tcp: 'localhost:65536'}\n", "HOST:PORT"),
        ("bundle: b\nserver: {tcp: '::1:80'}\n", "HOST:PORT"),
        ("bundle: b\nserver: {tcp: 'a..b:80'}\n", "HOST:PORT"),
        (f"bundle: b\nserver: {{tcp: '{'a' * 70}:80'}}\n", "HOST:PORT"),
        ("bundle: b\nserver: {tcp: 'a\\0b:80'}\n".replace("'", '"'), "HOST:PORT"),
        (f"bundle: b\nserver: {{tcp: 'localhost:{'8' * 5000}'}}\n", "HOST:PORT"),
        ("bundle: b\nbundle: c\n", "'bundle' stands twice"),
        ("bundle: b\nengine:\n  k: 1\n  k: 2\n", "line 4: 'k' stands twice"),
        ("bundle: [b\n", "line"),
        ("bundle: b\n\tengine: 1\n", "line"),
        ("bundle: !!python/object/apply:os.system [ls]\n", "python/object"),
        ("bundle: 2025-13-45\n", "month"),
        (b"bundle: \xff\n", "invalid start byte"),
        (b"bundle: \x01\n", "not allowed"),
        ("bundle: " + "9" * 5000 + "\n", "digits"),
        ("bundle: " + "[" * 5000 + "\n", ""),
        ("bundle: b\nengine: &a {k: 1}\nserver: *a\n", "line 3: aliases"),
        ("bundle: b\nbase: &a {k: 1}\nengine: {<<: *a}\n", "aliases"),
        ("bundle: b\nengine: {k: 1, <<: {k: 2}}\n", "line 2: merges (<<) are not supported"),
        ("bundle: b  " + "#" * (1 << 20), "more than 256 KiB"),
    ],
)
def test_what_is_wrong_is_one_line(tmp_path: Path, text: str | bytes, words: str) -> None:
    assert words in problem_of(tmp_path, text)


def test_a_bomb_of_aliases_is_refused_before_it_grows(tmp_path: Path) -> None:
    lines = ["bundle: b", "a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 30)]
    assert "aliases" in problem_of(tmp_path, "\n".join(lines))


@pytest.mark.parametrize(("name", "words"), [("none.yaml", "No such file"), (".", "Is a directory")])
def test_a_file_that_is_none(tmp_path: Path, name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read_config(tmp_path / name)


def test_a_section_with_all_its_lines_commented_out_has_defaults(tmp_path: Path) -> None:
    config = read_config(written(tmp_path, "bundle: b\nengine:\nserver:\n  # mode: x\nlimits:\n"))
    assert (config.engine, config.limits) == (EngineConfig(), LimitsConfig())


# --- the files that users start from --------------------------------------------------------------


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_files_in_configs_are_read(path: Path) -> None:
    config = read_config(path)
    settings = settings_of(config.engine)
    assert (settings.slots, settings.context) == (config.engine.sessions, config.engine.context)
    assert limits_of(config.limits).queue == config.limits.queue
    assert config.drain_s < 60  # TimeoutStopSec of the unit


def test_there_is_a_file_for_each_board_and_the_readme_names_it() -> None:
    names = {path.stem for path in CONFIGS.glob("*.yaml")}
    assert names == {"desktop", *(f"{board.name}gb" for board in BOARDS)}
    readme = (CONFIGS / "README.md").read_text(encoding="utf-8")
    assert all(f"`{name}.yaml`" in readme for name in names)


def test_the_desktop_file_shows_every_key_with_its_default() -> None:
    """What it has commented out says the defaults, or an example where there is none."""
    text = (CONFIGS / "desktop.yaml").read_text(encoding="utf-8")
    prose = [line for line in text.splitlines() if re.match("# (For|The) ", line)]
    keys = [re.sub(r"^(\s*)# ", r"\1", line) for line in text.splitlines() if line not in prose]
    said = yaml.safe_load("\n".join(keys))
    assert set(said) == set(Config.__dataclass_fields__)
    for section, cls in (("engine", EngineConfig), ("server", ServerConfig), ("limits", LimitsConfig),
                         ("budget", BudgetConfig), ("isolation", IsolationConfig)):  # fmt: skip
        assert set(said[section]) == set(cls.__dataclass_fields__)
        for key, value in said[section].items():
            default = getattr(cls(), key)
            has_none = default is None or default == ()
            assert value == default or has_none or key == "socket", key
            # An example is not to be taken for what happens without the line.
            (line,) = (line for line in text.splitlines() if re.match(rf"  (# )?{key}:", line))
            assert ("default: " in line) == has_none, key
    assert said["drain_s"] == Config("b").drain_s
