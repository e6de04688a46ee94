"""Everything too much: too many, too large, too deep, too slow, too costly, twice framed. Knows no engine.

Each attack is answered in bounded time and memory and by the status that it deserves, and the daemon serves the next.
"""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parent.parent)]

from http_daemon import CONTEXT, SLOTS, Attacked, attacked  # noqa: E402 - the tests' helpers are no package
from server_runs import CHAT, COMPLETIONS, chat, parsed, post, read_all, request  # noqa: E402
from test_text_schema_costs import COSTLY, HOSTILE  # noqa: E402

TIMEOUT_S = 4.0
"""Of reading and of writing, of this daemon."""
LONGEST_S = 600.0
"""Of any answer here: the machine may be loaded, what hangs hangs for good."""
MB = 1 << 20
MOST_MB = 700.0
"""Resident, whatever is done to it."""


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    requests: int
    found: str
    """Statuses, or figures."""
    longest_s: float


Attack = Callable[[Attacked], tuple[int, str]]
"""(requests, what was seen). Raises ``AssertionError``."""


def sent(one: Attacked, data: bytes, *, half_close: bool = False) -> tuple[int, Any]:
    """(status, body) of the first answer; 0 where the connection was dropped. What cannot be sent is not."""
    with one.run.connect() as connection:
        connection.settimeout(LONGEST_S)
        with contextlib.suppress(ConnectionError):
            connection.sendall(data)
            if half_close:
                connection.shutdown(socket.SHUT_WR)
        found = until_closed(connection)
    if not found:
        return 0, None
    status, _, body = parsed(found)
    return status, body


def until_closed(connection: socket.socket) -> bytes:
    """However it is closed: who has sent more than was read finds a connection that was reset behind its answer."""
    data = b""
    with contextlib.suppress(ConnectionError):
        while part := connection.recv(65536):
            data += part
    return data


def expect(one: Attacked, status: int | set[int], data: bytes, **options: Any) -> int:
    wanted = {status} if isinstance(status, int) else status
    found, body = sent(one, data, **options)
    assert found in wanted, (found, wanted, str(body)[:300], data[:200])
    if found >= 400:
        assert set(body["error"]) == {"message", "type", "param", "code"} and len(body["error"]["message"]) < 1200
    return found


def asked(path: str, body: Any) -> bytes:
    return post(path, body, connection="close")


# --- connections ----------------------------------------------------------------------------------


def idle_connections(one: Attacked) -> tuple[int, str]:
    with contextlib.ExitStack() as stack:
        for _ in range(1000):
            connection = stack.enter_context(one.run.connect())
            connection.sendall(request("GET", "/health"))
            assert connection.recv(65536).startswith(b"HTTP/1.1 200")
        times = sorted(one.serves() for _ in range(30))
        files = one.taken().files
        assert files > 1000
    return 1030, f"chats beside them: p50 {times[15]:.3f} s, p95 {times[28]:.3f} s; {files} files"


def slow_readers(one: Attacked) -> tuple[int, str]:
    with contextlib.ExitStack() as stack:
        for index in range(SLOTS - 1):
            connection = stack.enter_context(one.run.connect())
            body = chat(stream=True, max_tokens=CONTEXT - 200, seed=index, logprobs=True, top_logprobs=20)
            connection.sendall(post(CHAT, body))
        times = [one.serves() for _ in range(5)]
        for index in range(24):
            connection = stack.enter_context(one.run.connect())
            connection.sendall(post(CHAT, {**body, "seed": index, "n": 2}))
        one.idle()
    return SLOTS + 28, f"chats beside them: longest {max(times):.2f} s"


def slow_writers(one: Attacked) -> tuple[int, str]:
    data = post(CHAT, chat(), padding="y" * 200)
    statuses: list[int] = []

    def drip(first: int) -> None:
        with one.run.connect() as connection, contextlib.suppress(ConnectionError):
            connection.sendall(data[:first])
            for at in range(first, len(data)):
                connection.sendall(data[at : at + 1])
                connection.settimeout(0.3)
                with contextlib.suppress(TimeoutError):
                    statuses.append(int(connection.recv(65536).split()[1]))
                    return

    threads = [threading.Thread(target=drip, args=(1 + 3 * (index % 100),)) for index in range(60)]
    for thread in threads:
        thread.start()
    times = [one.serves() for _ in range(5)]
    for thread in threads:
        thread.join(LONGEST_S)
        assert not thread.is_alive()
    assert statuses and set(statuses) == {408}, statuses
    return 65, f"{len(statuses)} times 408; chats beside them: longest {max(times):.2f} s"


def pipelined(one: Attacked) -> tuple[int, str]:
    models = request("GET", "/v1/models")
    with one.run.connect() as connection:
        connection.settimeout(LONGEST_S)
        sender = threading.Thread(
            target=connection.sendall, args=(models * 499 + request("GET", "/x", connection="close"),)
        )
        sender.start()
        answers = read_all(connection).split(b"HTTP/1.1 ")[1:]
        sender.join()
    assert [answer[:3] for answer in answers] == [b"200"] * 499 + [b"404"], len(answers)
    return 500, "500 answers in order"


# --- sizes ----------------------------------------------------------------------------------------


def headers(one: Attacked) -> tuple[int, str]:
    head = b"GET /health HTTP/1.1\r\nhost: x\r\n"
    found = [
        expect(one, 431, head + b"x: " + b"y" * (64 * MB) + b"\r\n\r\n"),
        expect(one, 431, head + b"x: y\r\n" * 200_000 + b"\r\n"),
        expect(one, 431, b"GET /" + b"x" * (8 * MB) + b" HTTP/1.1\r\nhost: x\r\n\r\n"),
        expect(one, 431, b"G" * (8 * MB)),
        expect(one, 431, head + b"x" * (8 * MB) + b": y\r\n\r\n"),
        expect(one, 415, request("POST", CHAT, b"{}", content_type="x" * 30_000, connection="close")),
        expect(one, 404, request("GET", "/" + "%00%ff" * 4000, connection="close")),
    ]
    return len(found), _statuses(found)


def bodies(one: Attacked) -> tuple[int, str]:
    large = 100 * MB
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n"
    chunk = b"100000\r\n" + b" " * MB + b"\r\n"
    found = [
        expect(one, 413, head + b"content-length: %d\r\n\r\n" % large + b" " * large),
        expect(one, 413, head + b"transfer-encoding: chunked\r\n\r\n" + chunk * 100 + b"0\r\n\r\n"),
        expect(one, 413, head + b"content-length: %d\r\n\r\n{}" % large, half_close=True),
        expect(one, {0, 400}, head + b"content-length: 1000\r\n\r\n{}", half_close=True),
        expect(one, 413, head + b"content-length: 99999999999999999\r\n\r\n{}", half_close=True),
        expect(one, 400, head + b"content-length: 2\r\n\r\n{}" + b" " * large),
        expect(one, {0, 400, 413}, head + b"transfer-encoding: chunked\r\n\r\nffffffffffffff\r\n" + b" " * large),
        expect(one, 404, head.replace(b"/v1/chat", b"/v0/chat") + b"content-length: %d\r\n\r\n" % large + b" " * large),
    ]
    return len(found), _statuses(found)


def half_bodies(one: Attacked) -> tuple[int, str]:
    """As large as they may be but for the last byte, on many connections: kept in memory only as far as one may."""
    data = request("POST", CHAT, content_type="application/json", content_length=str(4 * MB)) + b" " * (4 * MB - 1)
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(one.run.connect()) for _ in range(200)]
        for connection in held:
            with contextlib.suppress(ConnectionError):
                connection.sendall(data)
        found = [int(until_closed(connection).split()[1]) for connection in held]
    assert set(found) == {408, 429} and one.taken().peak_mb < 300, (_statuses(found), one.taken())
    return len(found), _statuses(found)


def left_behind(one: Attacked) -> tuple[int, str]:
    """What is costly to prepare, and nobody waits for."""
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "integer", "multipleOf": 99_991}}}
    for _ in range(200):
        with one.run.connect() as connection:
            connection.sendall(asked(CHAT, chat(max_tokens=1, response_format=wanted)))
    begun_s = time.monotonic()
    while sent(one, asked(CHAT, chat(max_tokens=1)))[0] == 429:  # until it has seen them leave
        time.sleep(0.05)
    return 201, f"a chat behind them: {time.monotonic() - begun_s:.2f} s"


def small_chunks(one: Attacked) -> tuple[int, str]:
    """A body of one byte a chunk; others are served meanwhile."""
    head = request("POST", CHAT, content_type="application/json", transfer_encoding="chunked", connection="close")
    statuses: list[int] = []
    data = head + b"1\r\n \r\n" * (3 * MB) + b"0\r\n\r\n"
    sender = threading.Thread(target=lambda: statuses.append(sent(one, data)[0]))
    sender.start()
    times = [one.serves()]
    while sender.is_alive():
        times.append(one.serves())
    assert statuses[0] in (0, 400, 408), statuses
    return 1 + len(times), f"{statuses[0]}; chats beside it: longest {max(times):.2f} s"


def deep_json(one: Attacked) -> tuple[int, str]:
    depth = 100_000
    texts = [b"[" * depth, b"[" * depth + b"]" * depth, b'{"a":' * depth + b"1" + b"}" * depth]
    texts += [b'{"prompt":' + text + b"}" for text in texts]
    texts += [b'{"prompt":' + b"[" * 900 + b"]" * 900 + b"}"]
    found = [expect(one, 400, request("POST", COMPLETIONS, text, connection="close")) for text in texts]
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": "HERE"}}
    ahead, _, behind = json.dumps(chat(response_format=wanted)).encode().partition(b'"HERE"')
    for inner in (b'{"items":' * 900 + b"{}" + b"}" * 900, b'{"enum":[' + b"[" * 300 + b"]" * 300 + b"]}"):
        found.append(expect(one, 400, request("POST", CHAT, ahead + inner + behind, connection="close")))
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "[" * depth}}
    talk = [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [call]}]
    talk += [{"role": "tool", "tool_call_id": "a", "content": "x"}]
    found.append(expect(one, 400, asked(CHAT, {"messages": talk})))
    return len(found), _statuses(found)


def large_requests(one: Attacked) -> tuple[int, str]:
    many = 100_000
    found = [
        expect(one, 400, asked(COMPLETIONS, {"prompt": "x", "stop": [f"s{index}" for index in range(10_000)]})),
        expect(one, 400, asked(COMPLETIONS, {"prompt": "x", "stop": "s" * MB})),
        expect(one, 200, asked(COMPLETIONS, {"prompt": "x", "stop": ["a" * 1023 + chr(98 + i) for i in range(16)]})),
        expect(one, 400, asked(COMPLETIONS, {"prompt": [[]] * 1_000_000})),
        expect(one, 400, asked(COMPLETIONS, {"prompt": ["x"] * 500_000})),
        expect(one, 400, asked(COMPLETIONS, {"prompt": [1] * 1_000_000})),
        expect(one, 400, asked(COMPLETIONS, {"prompt": "x" * 4_000_000})),
        expect(one, 400, asked(CHAT, {"messages": [{"role": "user", "content": "x"}] * many})),
        expect(one, 400, asked(CHAT, {"messages": [{"role": "user", "content": [{"text": "x"}] * many}]})),
        expect(one, 200, asked(CHAT, chat(max_tokens=1, metadata={f"k{index}": "" for index in range(many)}))),
        expect(one, 400, asked(CHAT, chat(**{f"k{index}": "" for index in range(many)}))),
        expect(one, 400, asked(CHAT, chat(**{"k" * MB: ""}))),
        expect(one, 400, asked(CHAT, chat(max_tokens=1, logit_bias={str(index): 1 for index in range(5000)}))),
        expect(one, 404, asked(CHAT, chat(model="m" * MB))),
        expect(one, 400, asked(CHAT, chat(temperature=10**400))),
        expect(one, 400, request("POST", COMPLETIONS, b'{"prompt":"x","seed":' + b"9" * MB + b"}", connection="close")),
    ]
    return len(found), _statuses(found)


def context_limit(one: Attacked) -> tuple[int, str]:
    found = []
    for count, wanted in ((CONTEXT - 1, 200), (CONTEXT, 400), (CONTEXT + 1, 400), (100 * CONTEXT, 400)):
        status, body = sent(one, asked(COMPLETIONS, {"prompt": [300] * count, "max_tokens": 50}))
        assert status == wanted, (count, status)
        if wanted == 200:
            assert body["usage"]["completion_tokens"] == 1 and body["choices"][0]["finish_reason"] in ("length", "stop")
        else:
            assert body["error"]["code"] == "context_length_exceeded", body
        # One token a character and the one that begins a text.
        text = expect(one, wanted, asked(COMPLETIONS, {"prompt": "x" * (count - 1), "max_tokens": 50}))
        found += [status, text]
    return len(found), _statuses(found)


def unicode(one: Attacked) -> tuple[int, str]:
    texts = [
        "a" + "\u0301" * 1000,
        "\u202e" * 1000,
        "\u200f\u2067" * 500,
        "\U0001f469\u200d\U0001f52c" * 300,
        "\0" * 900,
    ]
    texts += ["\ufdd0" * 900, "\ufeff\uffff\U0010ffff", "\r\n\u2028\x85" * 500, "<start_of_turn>" * 100]
    found = [expect(one, 200, asked(CHAT, chat(text, max_tokens=2))) for text in texts]
    for escape in (b"\\ud83d", b"\\udc00x", b"\\ude00\\ud83d", b"\\ud83d\\ud83d"):
        for body in (b'{"prompt":"' + escape + b'"}', b'{"prompt":"x","' + escape + b'":1}'):
            found.append(expect(one, 400, request("POST", COMPLETIONS, body, connection="close")))
    for broken in (b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf8\x88\x80\x80\x80", b"\xc0\xaf"):
        found.append(
            expect(one, 400, request("POST", COMPLETIONS, b'{"prompt":"' + broken + b'"}', connection="close"))
        )
    text = json.dumps(chat("\U0001f600é", max_tokens=2), ensure_ascii=False).encode()
    with one.run.connect() as connection:
        for byte in request("POST", CHAT, text, connection="close"):
            connection.sendall(bytes([byte]))
        found.append(parsed(read_all(connection))[0])
    assert found[-1] == 200
    return len(found), _statuses(found)


def schemas(one: Attacked) -> tuple[int, str]:
    found = []
    for schema in [*HOSTILE.values(), *COSTLY.values()]:
        wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        found.append(expect(one, {200, 400}, asked(CHAT, chat(max_tokens=8, response_format=wanted))))
        parameters = {"type": "object", "properties": {"a": schema}}
        tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
        found.append(expect(one, {200, 400}, asked(CHAT, chat(max_tokens=8, tools=[tool], tool_choice="required"))))
    return len(found), _statuses(found)


def smuggling(one: Attacked) -> tuple[int, str]:
    """Whatever the second one thinks of where the first one ends, no request inside a body is answered."""
    hidden = b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n"
    post_ = b"POST /health HTTP/1.1\r\nhost: x\r\n"
    shapes = [
        b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n" + hidden,
        b"transfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n0\r\n\r\n" + hidden,
        b"transfer-encoding: xchunked\r\ncontent-length: 0\r\n\r\n" + hidden,
        b"transfer-encoding: chunked\r\ntransfer-encoding: identity\r\n\r\n0\r\n\r\n" + hidden,
        b"transfer-encoding: identity, chunked\r\n\r\n0\r\n\r\n" + hidden,
        b"transfer-encoding : chunked\r\n\r\n0\r\n\r\n" + hidden,
        b"transfer-encoding: \x0bchunked\r\n\r\n0\r\n\r\n" + hidden,
        b"content-length: 0\r\ncontent-length: 38\r\n\r\n" + hidden,
        b"content-length: +0\r\n\r\n" + hidden,
        b"content-length: 0x0\r\n\r\n" + hidden,
        b"content-length: 0,38\r\n\r\n" + hidden,
        b"x: a\0b\r\n\r\n" + hidden,
        b"host: y\r\n\r\n" + hidden,
        b"transfer-encoding: chunked\r\n\r\n0x0\r\n\r\n" + hidden,
        b"transfer-encoding: chunked\r\n\r\n1\r\naXX0\r\n\r\n" + hidden,
    ]
    found = []
    for shape in shapes:
        with one.run.connect() as connection:
            connection.sendall(post_ + shape)
            told = until_closed(connection)
        assert b'"object":"list"' not in told, shape
        found.append(int(told.split()[1]) if told else 0)
        assert found[-1] in (400, 405, 501), (shape, told[:200])
    with one.run.connect() as connection:
        connection.sendall(b"POST /health HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n" + hidden)
        told = read_all(connection)
    assert told.startswith(b"HTTP/1.1 400") and b'"object":"list"' not in told, told[:200]
    return len(shapes) + 1, _statuses([*found, 400])


def _statuses(found: list[int]) -> str:
    return ", ".join(f"{status}: {found.count(status)}" for status in sorted(set(found)))


ATTACKS: dict[str, Attack] = {
    "1,000 idle connections": idle_connections,
    "readers that do not read": slow_readers,
    "writers of a byte now and then": slow_writers,
    "pipelined requests": pipelined,
    "giant headers": headers,
    "bodies of 100 MB": bodies,
    "half a body on 200 connections": half_bodies,
    "costly ones whose clients leave": left_behind,
    "chunks of a byte": small_chunks,
    "JSON of 100,000 levels": deep_json,
    "large requests": large_requests,
    "prompts at the context's end": context_limit,
    "odd Unicode": unicode,
    "schemas that explode": schemas,
    "requests in bodies": smuggling,
}


def limits(names: list[str] | None = None) -> Iterator[str]:
    """Lines of a table, as they come. Raises ``AssertionError``."""
    timeouts = {"read_timeout_s": TIMEOUT_S, "write_timeout_s": TIMEOUT_S}
    yield f"{'attack':32} {'requests':>8} {'s':>7} {'peak MB':>8} {'after MB':>8} {'files':>6}  found"
    with attacked(**timeouts) as one:
        one.serves()
        before = one.taken()
        yield f"{'before':32} {1:8} {'':7} {before.peak_mb:8.0f} {before.rss_mb:8.0f} {before.files:6}"
        for name in names or ATTACKS:
            one.forget_peak()
            begun_s = time.monotonic()
            count, found = ATTACKS[name](one)
            taken_s = time.monotonic() - begun_s
            one.serves()
            one.idle()
            after = one.taken()
            figures = f"{count:8} {taken_s:7.2f} {after.peak_mb:8.0f} {after.rss_mb:8.0f} {after.files:6}"
            yield f"{name:32} {figures}  {found}"
            assert after.peak_mb < MOST_MB, "it took too much memory"
            assert "Traceback" not in one.said(), one.said()[-4000:]


if __name__ == "__main__":
    for line in limits(sys.argv[1:] or None):
        print(line, flush=True)
