"""Connections that behave badly: slow, silent, half-closed, gone, too many, too large. No answer of a model matters."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from server_runs import (
    CHAT,
    WAIT_S,
    Puppet,
    Running,
    chat,
    events,
    parsed,
    piece,
    post,
    read_all,
    read_until,
    request,
    result,
    running,
    say,
    tiny_model,
)

from edge_runtime.config import ServerConfig
from edge_runtime.scheduler.request import Finished, Started
from edge_runtime.server.connection import Peer
from edge_runtime.server.service import Model

Start = Callable[..., Running]
SOON = 0.2
"""Seconds of a timeout that a test waits for."""
LIMITS = ServerConfig(max_body_bytes=4096, max_header_bytes=2048)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def puppet() -> Puppet:
    return Puppet()


@pytest.fixture
def start(model: Model, puppet: Puppet, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[Start]:
    """Whatever a client does, the log has no traceback of it."""
    with contextlib.ExitStack() as stack:

        def begin(**limits: Any) -> Running:
            return stack.enter_context(running(model, puppet, tmp_path, replace(LIMITS, **limits)))

        yield begin
    assert "Traceback" not in caplog.text


def whole(connection: socket.socket) -> tuple[int, dict[str, str], Any]:
    """What comes until the server closes."""
    return parsed(read_all(connection))


def one_response(connection: socket.socket) -> tuple[int, dict[str, str], Any]:
    """With a content-length; the connection stays."""
    head = read_until(connection, b"\r\n\r\n")
    head, _, body = head.partition(b"\r\n\r\n")
    lines = head.lower().split(b"\r\n")
    length = int(next(line.split(b": ")[1] for line in lines if line.startswith(b"content-length")))
    while len(body) < length:
        body += connection.recv(length - len(body))
    assert len(body) == length
    return parsed(head + b"\r\n\r\n" + body)


def until_hung_up(connection: socket.socket) -> None:
    """Without reading anything."""
    poll = select.poll()
    poll.register(connection, 0)
    assert poll.poll(WAIT_S * 1000), "the server never closed"


def test_slow_headers_are_given_up(start: Start) -> None:
    with start(read_timeout_s=SOON).connect() as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n")
        status, headers, body = whole(connection)
    assert status == 408
    assert headers["connection"] == "close"
    assert body["error"]["code"] == "request_timeout"


def test_a_drip_does_not_prolong_the_time(start: Start) -> None:
    """A byte now and then keeps a timeout between bytes from passing, but not one for the whole request."""
    with start(read_timeout_s=SOON).connect() as connection, contextlib.suppress(ConnectionError):
        connection.sendall(b"GET /health HTTP/1.1\r\n")
        for _ in range(10_000):
            connection.sendall(b"x: y\r\n")
            connection.settimeout(0.01)
            with contextlib.suppress(TimeoutError):
                if connection.recv(1):
                    break
        else:
            pytest.fail("never given up")


def test_a_silent_connection_is_given_up(start: Start) -> None:
    with start(read_timeout_s=SOON).connect() as connection:
        assert whole(connection)[0] == 408


def test_a_slow_body_is_given_up(start: Start, puppet: Puppet) -> None:
    with start(read_timeout_s=SOON).connect() as connection:
        connection.sendall(post("/v1/chat/completions", chat())[:-1])
        assert whole(connection)[0] == 408
    assert puppet.asked == []


def test_an_answer_may_take_longer_than_a_request(start: Start, puppet: Puppet) -> None:
    with start(read_timeout_s=1.0).connect() as connection:
        connection.sendall(post("/v1/chat/completions", chat(), connection="close"))
        puppet.wait(1)
        time.sleep(1.5)  # Not a synchronisation: the time is the test.
        say(puppet.asked[0][1], "late")
        status, _, body = whole(connection)
    assert (status, body["choices"][0]["message"]["content"]) == (200, "late")


def test_a_body_behind_its_refusal_is_read_to_its_end(start: Start) -> None:
    """And the connection goes on: a client that only listens after it has sent all gets its answer."""
    with start().connect() as connection:
        connection.sendall(request("POST", "/v1/chat/completions", b" " * 1_000_000))
        status, _, body = one_response(connection)
        assert (status, body["error"]["code"]) == (413, "request_too_large")
        connection.sendall(request("GET", "/health"))
        assert one_response(connection)[0] == 200


def test_an_idle_connection_is_let_go(model: Model, puppet: Puppet, tmp_path: Path) -> None:
    with running(model, puppet, tmp_path, LIMITS, timeout_keep_alive=SOON) as run:
        with run.connect() as connection:
            connection.sendall(request("GET", "/health"))
            assert one_response(connection)[0] == 200
            assert read_all(connection) == b""
        with run.connect() as connection:
            # The last that is heard of it is a body that nobody reads.
            head = request("POST", "/x", content_type="application/json", transfer_encoding="chunked")
            connection.sendall(head)
            assert one_response(connection)[0] == 404
            with contextlib.suppress(ConnectionError):
                connection.sendall(b"0\r\n\r\n")
            assert read_all(connection) == b""


def test_a_body_of_no_known_length_is_bounded_too(start: Start) -> None:
    with start().connect() as connection:
        head = request("POST", "/v1/chat/completions", content_type="application/json", transfer_encoding="chunked")
        connection.sendall(head)
        for _ in range(6):
            connection.sendall(b"400\r\n" + b" " * 1024 + b"\r\n")
        connection.sendall(b"0\r\n\r\n")
        status, _, body = one_response(connection)
    assert (status, body["error"]["code"]) == (413, "request_too_large")


def test_a_body_of_the_largest_size_is_taken(start: Start, puppet: Puppet) -> None:
    puppet.answer = lambda asked, sink: say(sink, "ok")
    body = post("/x", chat()).partition(b"\r\n\r\n")[2].ljust(LIMITS.max_body_bytes)
    status, _, _ = start().ask("POST", "/v1/chat/completions", body)
    assert status == 200


@pytest.mark.parametrize("end", [b"", b"\r\n\r\n"])
@pytest.mark.parametrize("size", [2048, 120_000, 3_000_000])
def test_large_headers(start: Start, size: int, end: bytes) -> None:
    """Whether they come whole in one read, or the limit is passed before their end."""
    run = start()
    with run.connect() as connection:
        # Nothing is suppressed: what a client still sends is taken, and then it reads why it was refused.
        connection.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\nx: " + b"y" * size + end)
        status, headers, body = whole(connection)
    assert (status, headers["connection"]) == (431, "close")
    assert (body["error"]["type"], body["error"]["code"]) == ("invalid_request_error", "bad_http_request")
    assert run.ask("GET", "/health")[0] == 200


def test_headers_of_the_largest_size_are_taken(start: Start) -> None:
    run = start()
    head = b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\nx: "
    room = LIMITS.max_header_bytes - len(head) - len(b"\r\n\r\n")
    for more, expected in ((0, 200), (1, 431)):
        with run.connect() as connection:
            connection.sendall(head + b"y" * (room + more) + b"\r\n\r\n")
            assert whole(connection)[0] == expected


def test_large_headers_of_a_later_request(start: Start) -> None:
    with start().connect() as connection:
        large = b"GET /health HTTP/1.1\r\nhost: x\r\nx: " + b"y" * 4096 + b"\r\n\r\n"
        connection.sendall(request("GET", "/health") + large)
        # The two may come in one read.
        said = b""
        while part := connection.recv(65536):
            said += part
        assert said.startswith(b"HTTP/1.1 200 ") and b"HTTP/1.1 431 " in said


def test_a_body_counts_not_as_headers(start: Start, puppet: Puppet) -> None:
    puppet.answer = lambda asked, sink: say(sink, "ok")
    with start().connect() as connection:
        connection.sendall(post("/v1/chat/completions", chat("x" * 200), padding="y" * 1800, connection="close"))
        assert whole(connection)[0] == 200


def test_who_is_refused_and_never_leaves_is_dropped(start: Start) -> None:
    with start(read_timeout_s=SOON).connect() as connection:
        connection.sendall(b"GARBAGE\r\n\r\n")
        until_hung_up(connection)


@pytest.mark.parametrize("version", [b"9.9", b"0.9", b"2.0"])
def test_other_versions_of_http(start: Start, version: bytes) -> None:
    with start().connect() as connection:
        connection.sendall(b"GET /health HTTP/" + version + b"\r\nhost: x\r\n\r\n")
        status, _, body = whole(connection)
    assert status == 505
    assert version.decode() in body["error"]["message"]


@pytest.mark.parametrize(
    "data",
    [
        b"nonsense\r\n\r\n",
        b"GARBAGE\r\n\r\n",
        b"GET /health HTTP/x\r\n\r\n",
        b"GET /health HTTP/1.1\r\nhost: x\r\nno header\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n1\r\nxyz",
        b"\x00\xff\xfe\r\n\r\n",
        b"GET /\xc3\xa4 HTTP/1.1\r\nhost: x\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: -5\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: " + b"9" * 5000 + b"\r\n\r\n",
        b"GET /health HTTP/1.1\r\n\r\n",
    ],
)
def test_what_is_no_http(start: Start, data: bytes) -> None:
    run = start(max_header_bytes=32768)
    with run.connect() as connection:
        connection.sendall(data)
        status, _, body = whole(connection)
    assert status in (400, 501)
    assert body["error"]["code"] == "bad_http_request"
    assert "\n" not in body["error"]["message"]
    assert "bytearray" not in body["error"]["message"] and "b'" not in body["error"]["message"]
    assert run.ask("GET", "/health")[0] == 200


def test_a_broken_chunk_behind_a_refusal(start: Start) -> None:
    run = start()
    with run.connect() as connection:
        head = request("POST", "/nowhere", content_type="application/json", transfer_encoding="chunked")
        connection.sendall(head)
        assert one_response(connection)[0] == 404
        connection.sendall(b"no chunk\r\n")
        assert read_all(connection) == b""
    assert run.ask("GET", "/health")[0] == 200


def test_words_behind_the_last_request_are_not_heard(start: Start, puppet: Puppet) -> None:
    with start().connect() as connection:
        connection.sendall(post("/v1/chat/completions", chat(), connection="close"))
        puppet.wait(1)
        connection.sendall(b"\r\nwhat else\r\n")
        say(puppet.asked[0][1], "ok")
        assert whole(connection)[0] == 200


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("how", ["close", "half", "reset"])
@pytest.mark.parametrize("when", ["queued", "started", "speaking"])
def test_a_client_that_leaves_is_cancelled(start: Start, puppet: Puppet, stream: bool, how: str, when: str) -> None:
    connection = start().connect()
    with connection:
        connection.sendall(post("/v1/chat/completions", chat(stream=stream)))
        puppet.wait(1)
        sink = puppet.asked[0][1]
        if when != "queued":
            sink(Started(0.0, 5, 0))
        if when == "speaking":
            sink(piece("He"))
        if stream and when == "speaking":
            read_until(connection, b'"He"')
        if how == "close":
            connection.close()
        elif how == "half":
            connection.shutdown(socket.SHUT_WR)
        else:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            connection.close()
        puppet.wait_cancelled(1)
    assert puppet.cancelled == {0: "the client went away"}


def test_every_choice_of_a_client_that_leaves_is_cancelled(start: Start, puppet: Puppet) -> None:
    with start().connect() as connection:
        connection.sendall(post("/v1/chat/completions", chat(n=3)))
        puppet.wait(3)
    puppet.wait_cancelled(3)


def test_a_client_that_leaves_behind_pipelined_requests_is_cancelled(start: Start, puppet: Puppet) -> None:
    """uvicorn stops reading then, and would not see it go."""
    with start().connect() as connection:
        connection.sendall(post("/v1/chat/completions", chat()))
        puppet.wait(1)
        for _ in range(3):
            connection.sendall(request("GET", "/health"))
    puppet.wait_cancelled(1)


def test_pipelined_requests_are_answered_in_order(start: Start, puppet: Puppet) -> None:
    with start().connect() as connection:
        connection.sendall(post("/v1/chat/completions", chat()) + request("GET", "/v1/models", connection="close"))
        puppet.wait(1)
        say(puppet.asked[0][1], "first")
        first, second = read_all(connection).split(b"HTTP/1.1 ")[1:]
    assert parsed(b"HTTP/1.1 " + first)[2]["choices"][0]["message"]["content"] == "first"
    assert parsed(b"HTTP/1.1 " + second)[2]["object"] == "list"


def test_a_flood_behind_a_request_is_not_kept(start: Start, puppet: Puppet) -> None:
    with start().connect() as connection:
        connection.sendall(post("/v1/chat/completions", chat()))
        puppet.wait(1)
        with contextlib.suppress(ConnectionError):
            connection.sendall(request("GET", "/health") * 1_000_000)
    puppet.wait_cancelled(1)


def test_a_connection_serves_many_requests(start: Start, puppet: Puppet) -> None:
    puppet.answer = lambda asked, sink: say(sink, "ok")
    with start().connect() as connection:
        for _ in range(5):
            connection.sendall(post("/v1/chat/completions", chat()))
            assert one_response(connection)[0] == 200
            connection.sendall(post("/v1/chat/completions", chat(stream=True)))
            assert b"[DONE]" in read_until(connection, b"0\r\n\r\n")


def test_a_reader_that_does_not_read_is_given_up(start: Start, puppet: Puppet) -> None:
    with start(write_timeout_s=SOON).connect() as connection:
        connection.sendall(post("/v1/chat/completions", chat(stream=True)))
        puppet.wait(1)
        sink = puppet.asked[0][1]
        sink(Started(0.0, 5, 0))
        for _ in range(64):
            sink(piece("y" * 65536, tokens=(300,)))
        puppet.wait_cancelled(1)


def test_a_reader_that_does_not_read_a_whole_answer_is_given_up(start: Start, puppet: Puppet) -> None:
    run = start(write_timeout_s=SOON)
    with run.connect() as connection:
        connection.sendall(post("/v1/chat/completions", chat()))
        puppet.wait(1)
        sink = puppet.asked[0][1]
        sink(Started(0.0, 5, 0))
        sink(piece("y" * 4_000_000, tokens=(300,)))
        sink(Finished(result()))
        # The server closes although most of it was never read: what the kernel held is all that is left.
        until_hung_up(connection)
        assert len(read_all(connection)) < 4_000_000


def kernel_room(size: int) -> int:
    """Writes of so many bytes that a socket takes from one side while nobody reads on the other."""
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with left, right:
        left.setblocking(False)
        for count in range(1_000_000):
            try:
                left.send(b"x" * size)
            except BlockingIOError:
                return count
    pytest.fail("it takes everything")


def test_little_unread_is_enough_to_be_given_up(start: Start, puppet: Puppet) -> None:
    """A few kilobytes more than the kernel holds; asyncio alone would wait for 64 of them."""
    with start(write_timeout_s=SOON).connect() as connection:
        connection.sendall(post("/v1/chat/completions", chat(stream=True)))
        puppet.wait(1)
        sink = puppet.asked[0][1]
        sink(Started(0.0, 5, 0))
        for _ in range(kernel_room(4096) + 4):
            sink(piece("y" * 4096, tokens=(300,)))
        puppet.wait_cancelled(1)


def test_a_slow_reader_is_a_reader(start: Start, puppet: Puppet) -> None:
    with start(write_timeout_s=WAIT_S).connect() as connection:
        connection.sendall(post("/v1/chat/completions", chat(stream=True), connection="close"))
        puppet.wait(1)
        sink = puppet.asked[0][1]
        sink(Started(0.0, 5, 0))
        for _ in range(16):
            sink(piece("y" * 65536, tokens=(300,)))
        sink(Finished(result()))
        _, _, body = whole(connection)
    got = events(body)
    assert got[-1] == "[DONE]"
    assert sum(len(one["choices"][0]["delta"].get("content", "")) for one in got[:-1]) == 16 * 65536


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("begun", [False, True])
def test_a_server_that_stops_is_not_held_by_an_answer(
    model: Model, puppet: Puppet, tmp_path: Path, caplog: pytest.LogCaptureFixture, stream: bool, begun: bool
) -> None:
    """That should have ended before, when the scheduler was drained."""
    with contextlib.ExitStack() as stack:
        with running(model, puppet, tmp_path, timeout_graceful_shutdown=SOON) as run:
            connection = stack.enter_context(run.connect())
            connection.sendall(post("/v1/chat/completions", chat(stream=stream)))
            puppet.wait(1)
            if begun:
                puppet.asked[0][1](Started(0.0, 5, 0))
                if stream:
                    read_until(connection, b"assistant")
        puppet.wait_cancelled(1)
        if not (stream and begun):
            status, _, body = whole(connection)
            assert (status, body["error"]["code"]) == (503, "unavailable")
    assert "Traceback" not in caplog.text


def test_too_many_connections(start: Start) -> None:
    run = start(max_connections=2)
    with run.connect() as first, run.connect() as second, run.connect() as third:
        for connection, expected in ((first, 200), (second, 200), (third, 503)):
            connection.sendall(request("GET", "/health"))
            status, headers, body = one_response(connection)
            assert status == expected
        assert body["error"]["code"] == "too_many_connections"
        assert headers["retry-after"] == "1"
        assert third.recv(1) == b""
        first.sendall(request("GET", "/health"))
        assert one_response(first)[0] == 200


@pytest.fixture
def uids(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of who connects next, as long as it has any."""
    given: list[int] = []
    monkeypatch.setattr("edge_runtime.server.connection._peer", lambda transport: Peer(given.pop(0), None))
    return given


@pytest.mark.parametrize("held", ["idle", "begun", "half a body", "used"])
def test_nobody_locks_others_out_by_holding_connections(start: Start, uids: list[int], held: str) -> None:
    """Far more than there is room for, and each is let wait as long as it may."""
    run = start(max_connections=4)
    uids += [1] * 90 + [2, 2, 3]
    begins = {
        "idle": b"",
        "begun": b"GET /health HTTP/1.1\r\nhos",
        "half a body": post(CHAT, chat())[:-5],
        "used": request("GET", "/health"),
    }
    with contextlib.ExitStack() as stack:
        for _ in range(90):
            connection = stack.enter_context(run.connect())
            with contextlib.suppress(ConnectionError, AssertionError):  # of those that are dropped at once
                connection.sendall(begins[held])
                if held == "used":
                    one_response(connection)
        for _ in range(3):
            other = stack.enter_context(run.connect())
            other.sendall(request("GET", "/health"))
            assert one_response(other)[0] == 200


def test_who_has_most_connections_takes_nobody_elses(start: Start, uids: list[int], puppet: Puppet) -> None:
    """Nor does an answer give way to a newcomer."""
    run = start(max_connections=3)
    uids += [2, 1, 1, 1, 2, 3]
    with run.connect() as other, run.connect() as first, run.connect() as second:
        for connection in (other, first, second):
            connection.sendall(request("GET", "/health"))
            assert one_response(connection)[0] == 200
        for connection in (first, second):
            connection.sendall(post(CHAT, chat()))
        puppet.wait(2)
        for _ in range(3):
            with run.connect() as newcomer:
                newcomer.sendall(request("GET", "/health"))
                assert one_response(newcomer)[0] == 503
        for _, sink in puppet.asked:
            say(sink, "ok")
        for connection in (first, second):
            assert one_response(connection)[0] == 200
        other.sendall(request("GET", "/health"))
        assert one_response(other)[0] == 200


def test_connections_beyond_any_number_are_dropped(start: Start) -> None:
    run = start(max_connections=1)
    with contextlib.ExitStack() as stack:
        kept = [stack.enter_context(run.connect()) for _ in range(80)]
        kept[0].sendall(request("GET", "/health"))
        assert one_response(kept[0])[0] == 200
        with contextlib.suppress(ConnectionError):
            assert kept[-1].recv(1) == b""


def test_the_client_is_the_uid_of_the_socket(start: Start, puppet: Puppet) -> None:
    puppet.answer = lambda asked, sink: say(sink, "ok")
    start().ask("POST", "/v1/chat/completions", chat())
    assert puppet.asked[0][0].client == os.getuid()


@pytest.mark.parametrize("host", ["localhost", "example.org:8080", "unix", "[::1]", "x" * 200])
def test_any_host(start: Start, host: str) -> None:
    assert start().ask("GET", "/health", host=host)[0] == 200


def test_http_1_0(start: Start) -> None:
    with start().connect() as connection:
        connection.sendall(b"GET /health HTTP/1.0\r\n\r\n")
        assert whole(connection)[0] == 200


def test_expectations_are_met(start: Start, puppet: Puppet) -> None:
    puppet.answer = lambda asked, sink: say(sink, "ok")
    data = post("/v1/chat/completions", chat(), expect="100-continue", connection="close")
    head, _, body = data.partition(b"\r\n\r\n")
    with start().connect() as connection:
        connection.sendall(head + b"\r\n\r\n")
        assert read_until(connection, b"\r\n\r\n").startswith(b"HTTP/1.1 100")
        connection.sendall(body)
        assert whole(connection)[0] == 200


def test_a_websocket_is_an_ordinary_request(start: Start) -> None:
    status, _, _ = start().ask("GET", "/health", upgrade="websocket", sec_websocket_key="x")
    assert status == 200
