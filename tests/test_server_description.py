"""The OpenAPI description and the daemon say the same, for every path and status, and for requests that nobody would
write: the short form of ``tests/fuzz/http_*.py``."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from described import Described
from server_runs import CHAT, COMPLETIONS, Running, chat, events, parsed, read_all, request, running, tiny_model

from edge_runtime.config import ServerConfig
from edge_runtime.errors import (
    Cancelled,
    DeadlineExceeded,
    EngineError,
    OutOfBudget,
    QueueFull,
    Stopped,
    Unavailable,
)
from edge_runtime.scheduler.request import Limits
from edge_runtime.scheduler.scheduler import Scheduler
from edge_runtime.server.app import create_app
from edge_runtime.server.service import Model

sys.path.append(str(Path(__file__).parent / "fuzz"))
from http_chats import Tally, try_chat
from http_inputs import odd_chat

ODD_CHATS = 100


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return tiny_model(tmp_path_factory.mktemp("model"), capacity=2048)


@pytest.fixture(scope="module")
def scheduler(model: Model) -> Iterator[Scheduler]:
    scheduler = Scheduler(model.served, Limits())
    scheduler.start()
    yield scheduler
    scheduler.close()


@pytest.fixture(scope="module")
def run(model: Model, scheduler: Scheduler, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    limits = ServerConfig(max_body_bytes=1 << 20, max_header_bytes=4096)
    with running(model, scheduler, tmp_path_factory.mktemp("socket"), limits) as found:
        yield found


@pytest.fixture(scope="module")
def described(run: Running) -> Described:
    return Described(run.ask("GET", "/openapi.json")[2])


def test_every_route_is_described_and_no_other(run: Running, described: Described) -> None:
    routes: dict[str, set[str]] = {}
    for route in create_app(run.service).routes:
        found: Any = route
        routes[found.path.replace(":path", "")] = {method.lower() for method in found.methods} - {"head"}
    assert routes == {path: set(methods) for path, methods in described.document["paths"].items()}


def test_head_is_get_without_a_body(run: Running, described: Described) -> None:
    """Which is why it needs no description."""
    for path in (path.format(name="tiny") for path, methods in described.document["paths"].items() if "get" in methods):
        with run.connect() as connection:
            connection.sendall(request("HEAD", path, connection="close"))
            head, _, body = read_all(connection).partition(b"\r\n\r\n")
        kind = run.ask("GET", path)[1]["content-type"]
        assert head.startswith(b"HTTP/1.1 200") and b"content-type: " + kind.encode() in head and not body


FUNCTION = {"name": "f", "parameters": {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}}
ASKED: tuple[tuple[str, str, Any], ...] = (
    ("GET", "/v1/models", None),
    ("GET", "/v1/models/tiny", None),
    ("GET", "/v1/models/other", None),
    ("GET", "/v1/status", None),
    ("GET", "/health", None),
    ("GET", "/metrics", None),
    ("GET", "/openapi.json", None),
    ("POST", "/v1/tokenize", {"prompt": "a text"}),
    ("POST", "/v1/tokenize", {"messages": chat()["messages"]}),
    ("POST", "/v1/tokenize", {}),
    ("POST", "/v1/admin/bundle", {"path": "/x"}),
    ("POST", "/v1/admin/bundle", {"path": 1}),
    ("POST", CHAT, chat(max_tokens=5)),
    ("POST", CHAT, chat(max_tokens=5, n=2, logprobs=True, top_logprobs=3, seed=1)),
    ("POST", CHAT, chat(tools=[{"type": "function", "function": FUNCTION}], tool_choice="required", max_tokens=400)),
    ("POST", CHAT, chat(model="other")),
    ("POST", CHAT, b"{"),
    ("POST", CHAT, b" " * (2 << 20)),
    ("POST", COMPLETIONS, {"prompt": "x"}),
    ("POST", COMPLETIONS, {"prompt": [[300, 301], [302]], "logprobs": 2, "max_tokens": 5}),
    ("POST", COMPLETIONS, {"prompt": [300] * 2048}),
)


@pytest.mark.parametrize("case", range(len(ASKED)))
def test_answers_are_as_described(run: Running, described: Described, case: int) -> None:
    method, path, body = ASKED[case]
    described.check(method, path, *run.ask(method, path, body))


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("more", [{}, {"logprobs": True}, {"stream_options": {"include_usage": True}, "n": 2}])
def test_events_are_as_described(run: Running, described: Described, path: str, more: dict[str, Any]) -> None:
    body = chat(stream=True, max_tokens=6, **more) if path == CHAT else {"prompt": "x", "stream": True, **more}
    if path == COMPLETIONS and "logprobs" in more:
        body["logprobs"] = 2
    status, headers, text = run.ask("POST", path, body)
    described.check("POST", path, status, headers, text)
    *told, done = events(text)
    for event in told:
        described.check_part("ChatChunk" if path == CHAT else "CompletionChunk", event)
    assert done == "[DONE]" and len(told) > 2


@pytest.mark.parametrize(
    "error",
    [EngineError("x"), QueueFull("x"), Unavailable("x"), DeadlineExceeded("x"), Cancelled("x"), Stopped("x")],
)
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_what_goes_wrong_is_as_described(
    run: Running, described: Described, monkeypatch: pytest.MonkeyPatch, error: Exception, path: str
) -> None:
    def submit(*arguments: Any) -> Any:
        raise error

    monkeypatch.setattr(run.service.standing.scheduler, "submit", submit)
    described.check("POST", path, *run.ask("POST", path, chat() if path == CHAT else {"prompt": "x"}))


def test_a_bundle_that_does_not_fit_is_as_described(run: Running, described: Described) -> None:
    async def swap(path: Path) -> None:
        raise OutOfBudget("too large")

    run.service.swap = swap
    try:
        told = run.ask("POST", "/v1/admin/bundle", {"path": "/x"})
        assert told[0] == 409
        described.check("POST", "/v1/admin/bundle", *told)
    finally:
        run.service.swap = None


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (request("GET", "/health").replace(b"1.1", b"3.0"), 505),
        (request("GET", "/health", x="y" * 5000), 431),
        (request("GET", "/health", transfer_encoding="gzip"), 501),
        (request("GET", "/health").replace(b"host", b"ho st"), 400),
    ],
)
def test_what_is_no_request_is_as_described(run: Running, described: Described, data: bytes, status: int) -> None:
    with run.connect() as connection:
        connection.sendall(data)
        found, headers, body = parsed(read_all(connection))
    assert found == status
    described.check("GET", "/health", found, headers, body)


def test_an_odd_chat_is_its_seeds_alone() -> None:
    """Whatever was made before, and done to it: so a finding can be repeated."""
    first = [repr(odd_chat(random.Random(seed))) for seed in range(300)]
    assert [repr(odd_chat(random.Random(seed))) for seed in range(300)] == first


def test_odd_chats_are_answered_as_described(
    run: Running, described: Described, caplog: pytest.LogCaptureFixture
) -> None:
    tally = Tally()
    for seed in range(ODD_CHATS):
        try_chat(run, described, odd_chat(random.Random(seed)), tally)
    assert min(tally.statuses["200"], tally.statuses["400"]) > ODD_CHATS // 10 and tally.kept > 0
    assert "Traceback" not in caplog.text
