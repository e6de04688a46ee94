"""What a client writes is told to nobody but it: a canary in every place where text may stand, looked for in log,
metrics, status and all that the process prints, whatever goes wrong."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny_bundle as tiny
from server_runs import CHAT, COMPLETIONS, VOCAB, Running, chat, request, running, tiny_model

from edge_runtime.decoder import Decoder
from edge_runtime.drafters.chooser import Chooser
from edge_runtime.drafters.costs import StepCosts
from edge_runtime.drafters.prompt_lookup import PromptLookup
from edge_runtime.drafters.several import Several
from edge_runtime.drafters.suffix import SuffixCache
from edge_runtime.engines.protocol import StepInput, StepOutput
from edge_runtime.scheduler.request import Limits
from edge_runtime.scheduler.scheduler import Scheduler
from edge_runtime.scheduler.served import Served
from edge_runtime.server.logs import OneLine, log_to_stderr
from edge_runtime.server.service import Model
from edge_runtime.testing import FakeEngine, FakeModel
from edge_runtime.text.chat import ChatTemplate

ROOT = Path(__file__).parent.parent
CANARY = "zqxwvkcanary"
TOOL = {
    "type": "function",
    "function": {"name": CANARY, "description": CANARY, "parameters": {"type": "object", "properties": {CANARY: {}}}},
}
SCHEMA = {"type": "object", "properties": {CANARY: {"const": CANARY}}, "required": [CANARY]}


class Faulty(FakeEngine):
    """Goes wrong as it is told, with the text in what it says."""

    fault: Callable[[], BaseException] | None = None

    def forward(self, step: StepInput) -> StepOutput:
        if self.fault is not None:
            raise self.fault()
        return super().forward(step)


class Kept(logging.Handler):
    """Every record of every logger: as the daemon writes it, and its message before that."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(OneLine(journal=False).format(record))
        if record.name.startswith("edge_runtime"):
            self.lines.append(record.getMessage())


@pytest.fixture
def kept() -> Iterator[Kept]:
    handler, root = Kept(), logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield handler
    root.removeHandler(handler)
    root.setLevel(level)


@pytest.fixture
def engine() -> Faulty:
    return Faulty(FakeModel(vocab_size=VOCAB, order=2), capacity=512, slots=4, max_rows=64, candidates=32)


TEMPLATE_THAT_QUOTES = "{{ raise_exception(messages[0]['content']) }}"


@pytest.fixture
def model(tmp_path: Path, engine: Faulty) -> Model:
    """With what drafts from texts, and a chooser that says why."""
    plain = tiny_model(tmp_path)
    several = Several("all", [PromptLookup(max_k=4), SuffixCache(4096, secret=b"\x00")], [])
    decoder = Decoder(engine, several, Chooser(StepCosts(), [], 4, 15), max_head_rows=32)
    served = Served("tiny", decoder, plain.served.piece_bytes, plain.served.eos_ids, engine.close)
    return replace(plain, served=served)


@pytest.fixture
def run(model: Model, tmp_path: Path) -> Iterator[Running]:
    scheduler = Scheduler(model.served, Limits())
    scheduler.start()
    with running(model, scheduler, tmp_path) as found:
        yield found
    scheduler.close()


def told(run: Running, kept: Kept, capfd: pytest.CaptureFixture[str]) -> str:
    """All but answers."""
    lines = [json.dumps(run.ask("GET", "/v1/status")[2]), run.ask("GET", "/metrics")[2], *kept.lines]
    out, err = capfd.readouterr()
    return "\n".join([*lines, out, err])


def _follows(schema: dict[str, Any]) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": CANARY, "schema": schema}}}


# Of both endpoints; no text of any reaches a line that somebody else reads.
ANSWERED: dict[str, dict[str, Any]] = {
    "text": {},
    "stream": {"stream": True, "stream_options": {"include_usage": True}},
    "whose": dict.fromkeys(("user", "safety_identifier", "prompt_cache_key", "cache_salt"), CANARY),
    "metadata": {"metadata": {CANARY: CANARY}},
    "stop": {"stop": [CANARY, CANARY[:3]]},
    "prediction": {"prediction": {"type": "content", "content": CANARY * 4}},
    "schema": _follows(SCHEMA),
    "log-probabilities": {"logprobs": 1},
}
REFUSED: dict[str, dict[str, Any]] = {
    "a field that nobody knows": {CANARY: CANARY},
    "a wrong type": {"temperature": CANARY},
    "a wrong word": {"service_tier": CANARY},
    "a bias of no token": {"logit_bias": {CANARY: 1}},
    "another model": {"model": CANARY},
    "a schema that is none": _follows({"type": CANARY}),
    "a schema that leads nowhere": _follows({"$ref": f"#/$defs/{CANARY}"}),
    "an expression that is none": _follows({"type": "string", "pattern": f"({CANARY}"}),
    "nothing satisfies it": _follows({"enum": [], "title": CANARY}),
}
CHATS: dict[str, dict[str, Any]] = {
    "tools": {"tools": [TOOL], "tool_choice": "required"},
    "a tool that is none of these": {
        "tools": [TOOL],
        "tool_choice": {"type": "function", "function": {"name": f"{CANARY}x"}},
    },
    "a tool twice": {"tools": [TOOL, TOOL]},
    "a tool with a wrong name": {"tools": [{**TOOL, "function": {"name": f"{CANARY} {CANARY}"}}]},
    "a tool with a wrong schema": {
        "tools": [{**TOOL, "function": {"name": "a", "parameters": {"$ref": f"#/{CANARY}"}}}]
    },
    "an answer of no tool": {"messages": [{"role": "tool", "content": CANARY, "name": CANARY}]},
    "arguments that are none": {
        "messages": [
            {"role": "user", "content": CANARY},
            {
                "role": "assistant",
                "tool_calls": [
                    {"id": CANARY, "type": "function", "function": {"name": CANARY, "arguments": "{" + CANARY}}
                ],
            },
        ]
    },
    "no role": {"messages": [{"role": CANARY, "content": CANARY}]},
    "a picture": {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": CANARY}}]}]},
}
BODIES = {
    "no JSON": f'{{"prompt": "{CANARY}"'.encode(),
    "half a character": f'{{"prompt": "{CANARY}'.encode() + b"\xff",
    "half a pair": f'{{"prompt": "{CANARY}\\ud800"}}'.encode(),
    "a key twice": f'{{"{CANARY}": 1, "{CANARY}": 2}}'.encode(),
    "too deep": b"[" * 99999 + CANARY.encode(),
    "a number": f'{{"prompt": "{CANARY}", "temperature": 1e999}}'.encode(),
}


def test_answers_and_refusals(run: Running, kept: Kept, capfd: pytest.CaptureFixture[str]) -> None:
    seen = []
    for fields in (*ANSWERED.values(), *REFUSED.values()):
        for path, body in ((CHAT, chat(f"{CANARY} {CANARY}")), (COMPLETIONS, {"prompt": CANARY * 3})):
            more = {"logprobs": True, "top_logprobs": 2} if path == CHAT and "logprobs" in fields else fields
            seen.append(run.ask("POST", path, {"max_tokens": 24, **body, **more})[0])
    for fields in CHATS.values():
        seen.append(run.ask("POST", CHAT, {"max_tokens": 24, **chat(CANARY), **fields})[0])
    for path in (CHAT, COMPLETIONS, "/v1/tokenize"):
        seen += [run.ask("POST", path, body)[0] for body in BODIES.values()]
        seen.append(run.ask("POST", path, {"prompt": CANARY * 999, **(chat(CANARY * 999) if path == CHAT else {})})[0])
    assert seen.count(200) == 2 * len(ANSWERED) + 1 and set(seen) == {200, 400, 404}
    assert CANARY not in told(run, kept, capfd)


def test_paths_headers_and_what_is_no_http(run: Running, kept: Kept, capfd: pytest.CaptureFixture[str]) -> None:
    for method, path in (("GET", f"/{CANARY}"), ("GET", f"/v1/models/{CANARY}"), ("GET", f"/health?q={CANARY}"),
                         (CANARY, "/health"), ("POST", f"/v1/chat/{CANARY}")):  # fmt: skip
        run.ask(method, path)
    for headers in ({"authorization": f"Bearer {CANARY}"}, {"content_type": CANARY}, {"content_encoding": CANARY},
                    {"x_forwarded_for": CANARY}, {"cookie": CANARY}, {"content_length": CANARY}):  # fmt: skip
        run.ask("POST", COMPLETIONS, {"prompt": CANARY}, **headers)
    for data in (
        CANARY.encode(),
        f"GET /{CANARY} HTTP/9.9\r\n\r\n".encode(),
        f"GET / HTTP/1.1\r\n{CANARY}\r\n\r\n".encode(),
        request("POST", COMPLETIONS, CANARY.encode(), content_length="3"),
    ):
        with run.connect() as connection:
            connection.sendall(data)
            connection.shutdown(1)
            while connection.recv(65536):
                pass
    assert CANARY not in told(run, kept, capfd)


def test_no_client_fills_the_log(run: Running, capfd: pytest.CaptureFixture[str]) -> None:
    loggers = [logging.getLogger(name) for name in ("edge_runtime", "uvicorn", "asyncio")]
    before = [(one.handlers, one.propagate, one.level) for one in loggers]
    log_to_stderr({})
    try:
        for data in (
            b"nonsense\r\n\r\n",
            request("GET", "/health", upgrade="websocket", connection="upgrade, close"),
            request("GET", "/health", upgrade="h2c", connection="upgrade, close"),
            request("GET", "/nowhere", connection="close"),
            request("CONNECT", "x:1", connection="close"),
            request("POST", CHAT, b"{", connection="close"),
            request("POST", CHAT, b"{}", content_length="9"),
        ):
            with run.connect() as connection:
                connection.sendall(data)
                connection.shutdown(1)
                while connection.recv(65536):
                    pass
    finally:
        for one, (handlers, propagate, level) in zip(loggers, before, strict=True):
            one.handlers, one.propagate = handlers, propagate
            one.setLevel(level)
    assert capfd.readouterr() == ("", "")


# An ``EngineError`` is none of these: its words are the engine's own, are told, and hold nothing of a request.
FAULTS: dict[str, Callable[[], BaseException]] = {
    "a bug": lambda: KeyError(CANARY),
    "a bug behind a bug": lambda: _caused(ValueError(CANARY), KeyError(f"{CANARY} {CANARY}")),
    "an operating system's": lambda: OSError(5, CANARY, f"/{CANARY}"),
    "no memory": lambda: MemoryError(CANARY),
}


def _caused(problem: Exception, cause: Exception) -> Exception:
    problem.__cause__ = cause
    return problem


@pytest.mark.parametrize("name", FAULTS)
def test_what_goes_wrong(
    name: str, run: Running, engine: Faulty, kept: Kept, capfd: pytest.CaptureFixture[str]
) -> None:
    """In an engine, in a reader of answers, in what a request is prepared by, in a tokenizer and a template."""
    fault = FAULTS[name]
    engine.fault = fault
    for stream in (False, True):
        assert run.ask("POST", CHAT, chat(CANARY, stream=stream))[0] in (200, 500)
    engine.fault = None
    model = run.service.standing.model
    assert model is not None

    def fails(*_: object, **__: object) -> Any:
        raise fault()

    class Fails:
        def __getattr__(self, name: str) -> Any:
            return fails

    parts: list[dict[str, Any]] = [{"tokenizer": Fails()}, {"template": Fails()}, {"grammars": Fails()}]
    for broken in (replace(model, **part) for part in (*parts, {"template": ChatTemplate(TEMPLATE_THAT_QUOTES)})):
        run.service.standing = replace(run.service.standing, model=broken)
        run.ask("POST", CHAT, chat(CANARY, response_format={"type": "json_object"}))
        run.ask("POST", COMPLETIONS, {"prompt": CANARY})
    run.service.standing = replace(run.service.standing, model=model)
    assert run.ask("POST", COMPLETIONS, {"prompt": CANARY, "max_tokens": 2})[0] == 200
    found = told(run, kept, capfd)
    assert CANARY not in found and "Error" in found


_LOADS = """
import sys
from pathlib import Path
from edge_runtime.loading import LoadSettings, load_bundle
load_bundle(Path(sys.argv[1]), LoadSettings()).close()
"""


_GENERATE = ["-m", "edge_runtime", "generate", "--prompt", "x", "--max-tokens", "1", "--bundle"]


@pytest.mark.parametrize("program", [["-c", _LOADS], _GENERATE])
def test_the_library_under_us_keeps_nothing_and_sends_nothing(program: list[str], tmp_path: Path) -> None:
    """By default onnxruntime does both, from 1.29 on. What it would send lies in a database below the home first."""
    told = {"CI", "ORT_DISABLE_TELEMETRY", "XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME"}
    environment = {name: value for name, value in os.environ.items() if name not in told} | {"HOME": str(tmp_path)}
    command = [sys.executable, *program, str(tiny.bundle())]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.rglob("*")) == []


def test_what_asyncio_says_of_a_call_that_fails(kept: Kept) -> None:
    """It quotes what the call was given, and an error that nobody asked for: pieces of an answer, here."""

    async def fails(text: str) -> None:
        raise ValueError(text)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_debug(True)
        loop.slow_callback_duration = 0.0
        loop.call_soon({}.__getitem__, CANARY)
        loop.call_soon(time.sleep, 0.001)
        loop.call_soon(str.join, CANARY, 3)
        left = asyncio.create_task(fails(CANARY), name=CANARY)
        await asyncio.sleep(0.05)
        assert left.done()
        del left
        pending = asyncio.create_task(asyncio.sleep(60, CANARY))
        await asyncio.sleep(0)
        del pending

    asyncio.run(main())
    gc.collect()
    lines = "\n".join(kept.lines)
    assert "Exception in callback dict.__getitem__ [KeyError" in lines
    assert "Task exception was never retrieved [ValueError" in lines
    assert CANARY not in lines
