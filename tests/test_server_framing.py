"""Where one request ends and the next begins: whoever thinks otherwise than the daemon gets no answer to what is hidden
in a body. And messages about what a client sent are short, however much it was."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from server_runs import CHAT, Puppet, Running, chat, parsed, read_all, read_until, request, running, say, tiny_model

from edge_runtime.config import ServerConfig
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


@pytest.mark.parametrize(
    ("path", "framing"),
    [
        (CHAT, {"transfer_encoding": "chunked"}),
        (CHAT, {"content_length": "20000000"}),
        (CHAT, {"content_length": "20000000", "content_type": "text/plain"}),
        ("/nowhere", {"content_length": "20000000"}),
        ("/nowhere", {"transfer_encoding": "chunked"}),
    ],
)
def test_who_sends_all_before_it_reads_hears_why_it_was_refused(
    run: Running, path: str, framing: dict[str, str]
) -> None:
    """On its last request too: a socket that is closed with bytes unread fails whoever still sends."""
    given = {"content_type": "application/json", "connection": "close", **framing}
    chunk = b"100000\r\n" + b" " * 0x100000 + b"\r\n" if "transfer_encoding" in framing else b" " * 1_000_000
    with run.connect() as connection:
        connection.sendall(request("POST", path, **given))
        for _ in range(20):
            connection.sendall(chunk)
        if "transfer_encoding" in framing:
            connection.sendall(b"0\r\n\r\n")
        status, headers, _ = parsed(read_all(connection))
    assert status in (404, 413, 415) and headers["connection"] == "close"


def test_who_was_answered_and_goes_on_sending_is_dropped(model: Model, puppet: Puppet, tmp_path: Path) -> None:
    with running(model, puppet, tmp_path, ServerConfig(read_timeout_s=0.2)) as run, run.connect() as connection:
        connection.sendall(request("POST", "/nowhere", content_length="1000", connection="close"))
        assert parsed(read_all(connection))[0] == 404

        def go_on() -> None:
            for _ in range(100_000):
                connection.sendall(b" ")
                time.sleep(0.001)

        with pytest.raises(ConnectionError):
            go_on()


def test_a_body_in_chunks_of_a_byte_is_refused_before_it_holds_up_others(run: Running) -> None:
    """The time is not measured; the parser takes a second for what one read of a socket may hold of them."""
    head = request("POST", CHAT, content_type="application/json", transfer_encoding="chunked")
    with run.connect() as connection, contextlib.suppress(ConnectionError):
        connection.sendall(head)
        for _ in range(3000):
            connection.sendall(b"1\r\n \r\n" * 1000)
        pytest.fail("all of it was read")
    with run.connect() as connection:
        connection.sendall(head + b"1\r\n \r\n" * 5000)
        status, _, body = parsed(read_until(connection, b"}}"))
    assert (status, body["error"]["code"]) == (400, "bad_http_request") and "chunks" in body["error"]["message"]


def test_a_body_in_small_chunks_is_taken(run: Running) -> None:
    text = json.dumps(chat()).encode().ljust(3000)
    for size in (1, 100):
        chunks = b"".join(
            b"%x\r\n%s\r\n" % (len(text[at : at + size]), text[at : at + size]) for at in range(0, len(text), size)
        )
        head = request("POST", CHAT, content_type="application/json", transfer_encoding="chunked", connection="close")
        with run.connect() as connection:
            connection.sendall(head + chunks + b"0\r\n\r\n")
            assert parsed(read_all(connection))[0] == 200
