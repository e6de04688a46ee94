"""Where one request ends and the next begins: whoever thinks otherwise than the daemon gets no answer to what is hidden
in a body. And messages about what a client sent are short, however much it was."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from server_runs import CHAT, Puppet, Running, chat, parsed, read_all, request, running, say, tiny_model

from edge_runtime.server.service import Model

HIDDEN = b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n"
CHUNKED = b"transfer-encoding: chunked\r\n"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def puppet() -> Puppet:
    return Puppet(answer=lambda asked, sink: say(sink, "ok"))


@pytest.fixture
def run(model: Model, puppet: Puppet, tmp_path: Path) -> Iterator[Running]:
    with running(model, puppet, tmp_path) as found:
        yield found


@pytest.mark.parametrize(
    "framing",
    [
        b"content-length: 5\r\n" + CHUNKED + b"\r\n0\r\n\r\n",
        CHUNKED + b"content-length: 5\r\n\r\n0\r\n\r\n",
        CHUNKED + b"content-length: 0\r\n\r\n0\r\n\r\n",
        CHUNKED + CHUNKED + b"\r\n0\r\n\r\n",
        b"transfer-encoding: xchunked\r\ncontent-length: 0\r\n\r\n",
        b"transfer-encoding: identity, chunked\r\n\r\n0\r\n\r\n",
        b"transfer-encoding : chunked\r\n\r\n0\r\n\r\n",
        b"transfer-encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
        b"content-length: 0\r\ncontent-length: 38\r\n\r\n",
        b"content-length: 0, 38\r\n\r\n",
        b"content-length: +0\r\n\r\n",
        b"content-length: 0x0\r\n\r\n",
        b"host: y\r\n\r\n",
        b"x: a\0b\r\n\r\n",
        CHUNKED + b"\r\n0x0\r\n\r\n",
        CHUNKED + b"\r\n-0\r\n\r\n",
    ],
)
@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
def test_a_request_in_a_body_is_not_answered(run: Running, framing: bytes, version: bytes) -> None:
    with run.connect() as connection:
        connection.sendall(b"POST /health HTTP/" + version + b"\r\nhost: x\r\n" + framing + HIDDEN)
        told = read_all(connection)
    # What a chunk begins with is read behind a head that was right, and was answered.
    assert told.split()[1] in (b"400", b"405", b"501"), told
    assert b'"object":"list"' not in told
    assert run.ask("GET", "/health")[0] == 200


def test_a_transfer_coding_of_http_1_0_is_refused(run: Running) -> None:
    with run.connect() as connection:
        connection.sendall(b"POST /health HTTP/1.0\r\n" + CHUNKED + b"\r\n0\r\n\r\n" + HIDDEN)
        status, _, body = parsed(read_all(connection))
    assert (status, body["error"]["code"]) == (400, "bad_http_request")


LONG = "k" * 20_000
CALLED = {"name": LONG, "arguments": "x"}


def formatted(schema: Any) -> Any:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}


@pytest.mark.parametrize(
    "sent",
    [
        {"body": chat(**{LONG: 1})},
        {"body": chat(model=LONG)},
        {"body": {"messages": [{"role": "user", "content": "x", LONG: 1}]}},
        {"body": chat(response_format={"type": LONG})},
        {"body": chat(response_format=LONG)},
        {"body": chat(tool_choice={"type": "function", "function": {"name": LONG}})},
        {"body": {"messages": [{"role": "tool", "tool_call_id": LONG, "content": "x"}]}},
        {"body": {"messages": [{"role": "assistant", "tool_calls": [{"id": LONG, "function": CALLED}]}]}},
        {"body": chat(response_format=formatted({LONG: LONG}))},
        {"body": chat(response_format=formatted({"$ref": LONG}))},
        {"body": chat(response_format=formatted({"pattern": "(" * 20_000}))},
        {"body": chat(), "content_type": LONG},
        {"body": chat(), "content_encoding": LONG},
        {"path": f"/{LONG}", "body": chat()},
    ],
)
def test_a_message_is_short_whatever_was_sent(run: Running, sent: dict[str, Any]) -> None:
    given = {"path": CHAT, **sent}
    status, _, body = run.ask("POST", given.pop("path"), given.pop("body"), **given)
    assert status in (400, 404, 415)
    for word in ("message", "param"):
        assert len(body["error"][word] or "") < 1200 and "\n" not in (body["error"][word] or "")


def test_a_body_may_be_cut_anywhere(run: Running, puppet: Puppet) -> None:
    """Inside a character of four bytes, and byte by byte."""
    data = '{"messages": [{"role": "user", "content": "\U0001f600é"}]}'.encode()
    with run.connect() as connection:
        for byte in request("POST", CHAT, data, connection="close"):
            connection.sendall(bytes([byte]))
        assert parsed(read_all(connection))[0] == 200
    assert len(puppet.asked) == 1
