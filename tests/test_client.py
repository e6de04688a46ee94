"""``edge_runtime.client``: what it sends, what it makes of answers, and when it asks again."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from scripted_server import Exchange, Script, scripted_server

from edge_runtime.client import (
    AsyncClient,
    Client,
    Completion,
    ConnectionLost,
    EdgeRuntimeError,
    Health,
    Model,
    NotReachable,
    Timings,
    ToolCall,
    Usage,
)
from edge_runtime.client.options import ChatOptions, CompletionOptions
from edge_runtime.client.retry import Patience
from edge_runtime.schema import plain
from edge_runtime.server.schema import ChatRequest, CompletionRequest, field_names
from edge_runtime.status import (
    BoardStatus,
    BudgetStatus,
    MemoryStatus,
    ModelStatus,
    RequestStatus,
    SlotStatus,
    SpeculationStatus,
    SpeedStatus,
    Status,
)

STATUS = Status(
    state="ready",
    reason="",
    version="0.1.0",
    uptime_s=3.5,
    model=ModelStatus("m", "gemma3", "/b", 10, 2048, "draft_model", 1.5),
    requests=RequestStatus(1, 2, 64, 3, 4, 5, 6, 7),
    slots=(SlotStatus(0, True, 12, None), SlotStatus(1, False, 0, 3.0)),
    speculation=SpeculationStatus(True, "measured", 2.0, 1, 2, 3, 0.5, 1.5, (0.9, 0.5)),
    speed=SpeedStatus(10.0, 1.0, 2.0, 3.0, 4.0, 5, 6, 7),
    memory=MemoryStatus(1, 2, 3),
    board=BoardStatus(),
    budget=BudgetStatus(),
)
USAGE = {
    "prompt_tokens": 3,
    "completion_tokens": 2,
    "total_tokens": 5,
    "prompt_tokens_details": {"cached_tokens": 1},
    "completion_tokens_details": {"accepted_prediction_tokens": 4, "rejected_prediction_tokens": 5},
}
TIMINGS = {"ttft_ms": 1.0, "tpot_ms": None, "queued_ms": 0.5, "draft_n": 2, "draft_n_accepted": 1}
CHAT = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 7,
    "model": "m",
    "choices": [
        {"index": 0, "message": {"role": "assistant", "content": "Hi", "refusal": None}, "finish_reason": "stop"}
    ],
    "usage": USAGE,
    "timings": TIMINGS,
    "something_new": {"of": "a newer daemon"},
}


def delta(content: str | None = None, index: int = 0, reason: str | None = None, **more: Any) -> dict[str, Any]:
    choice = {"index": index, "delta": {"content": content, **more}, "finish_reason": reason}
    return {"id": "chatcmpl-1", "created": 7, "model": "m", "choices": [choice], "usage": None}


LAST = {"id": "chatcmpl-1", "created": 7, "model": "m", "choices": [], "usage": USAGE, "timings": TIMINGS}


def error(message: str, kind: str = "invalid_request_error", **more: Any) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": None, "code": None, **more}}


def answering(body: Any, status: int = 200, **headers: str) -> Script:
    def script(exchange: Exchange) -> None:
        while True:
            exchange.request()
            exchange.answer(body, status, **headers)

    return script


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "s"


class Both:
    """Runs a call by the blocking and by the asynchronous client: whatever holds of one holds of the other."""

    def __init__(self, path: Path, patience_s: float) -> None:
        self._path, self._patience_s = path, patience_s

    def blocking(self, call: Callable[[Client], Any]) -> Any:
        with Client(self._path, patience_s=self._patience_s) as client:
            return call(client)

    def concurrent(self, call: Callable[[Any], Any]) -> Any:
        async def run() -> Any:
            async with AsyncClient(self._path, patience_s=self._patience_s) as client:
                return await call(client)

        return asyncio.run(run())


KINDS = ["blocking", "concurrent"]


def outcome(
    kind: str, path: Path, scripts: Sequence[Script], call: Callable[[Any], Any], patience_s: float = 30.0
) -> Any:
    with scripted_server(path, scripts):
        return getattr(Both(path, patience_s), kind)(call)


# --- answers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_chat(kind: str, path: Path) -> None:
    asked: list[Any] = []

    def script(exchange: Exchange) -> None:
        asked.append(exchange.request())
        exchange.answer(CHAT)

    done = outcome(kind, path, [script], lambda client: client.chat("Hello", max_tokens=3, stop=["x"]))
    body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 3, "stop": ["x"]}
    assert asked == [("POST /v1/chat/completions", body)]
    assert (done.text, done.finish_reason, done.model, done.id, done.created) == ("Hi", "stop", "m", "chatcmpl-1", 7)
    assert done.usage == Usage(3, 2, 1, 4, 5)
    assert done.timings == Timings(1.0, None, 0.5, 2, 1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_completion_with_several_choices_and_logprobs(kind: str, path: Path) -> None:
    logprobs = {"tokens": ["a", "b"], "token_logprobs": [-1.0, -2.0], "top_logprobs": [{"a": -1.0, "c": -3.0}, None]}
    choices = [
        {"index": 0, "text": "ab", "finish_reason": "length", "logprobs": logprobs},
        {"index": 1, "text": "c", "finish_reason": "stop", "logprobs": None},
    ]
    body = {"id": "cmpl-1", "model": "m", "created": 7, "choices": choices, "usage": USAGE}
    done = outcome(kind, path, [answering(body)], lambda client: client.complete("x", n=2, logprobs=2))
    assert [choice.text for choice in done.choices] == ["ab", "c"]
    first = done.choices[0].logprobs
    assert [(one.token, one.logprob) for one in first] == [("a", -1.0), ("b", -2.0)]
    assert [(one.token, one.logprob) for one in first[0].top_logprobs] == [("a", -1.0), ("c", -3.0)]
    assert done.choices[1].logprobs is None


@pytest.mark.parametrize("kind", KINDS)
def test_tool_calls_and_chat_logprobs(kind: str, path: Path) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    entry = {"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": [{"token": "b", "logprob": -1, "bytes": []}]}
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": None, "tool_calls": [call]},
        "finish_reason": "tool_calls",
        "logprobs": {"content": [entry], "refusal": None},
    }
    done = outcome(kind, path, [answering({"choices": [choice]})], lambda client: client.chat([]))
    assert (done.text, done.finish_reason, done.usage) == ("", "tool_calls", None)
    assert done.tool_calls == (ToolCall("c1", "f", '{"a": 1}'),)
    (logprob,) = done.choices[0].logprobs
    assert (logprob.token, logprob.bytes, logprob.top_logprobs[0].token) == ("a", (97,), "b")


@pytest.mark.parametrize("kind", KINDS)
def test_status_models_and_health(kind: str, path: Path) -> None:
    assert outcome(kind, path, [answering(plain(STATUS))], lambda client: client.status()) == STATUS
    swapping = answering(plain(STATUS))
    assert outcome(kind, path, [swapping], lambda client: client.swap_bundle(Path("/b"))) == STATUS
    newer = {**plain(STATUS), "fan_rpm": 3}
    assert outcome(kind, path, [answering(newer)], lambda client: client.status()) == STATUS
    models = {"object": "list", "data": [{"id": "m", "object": "model", "created": 3, "owned_by": "o"}]}
    assert outcome(kind, path, [answering(models)], lambda client: client.models()) == (Model("m", 3, "o"),)
    assert outcome(kind, path, [answering({"status": "ok"})], lambda client: client.health()) == Health(True, "ready")
    loading = answering(error("loading: the model is being loaded", "unavailable_error"), 503, retry_after="1")
    health = outcome(kind, path, [loading], lambda client: client.health())
    assert health == Health(False, "loading", "the model is being loaded")
    health = outcome(kind, path, [answering(b"busy", 503)], lambda client: client.health())
    assert (health.ready, health.state) == (False, "not ready")


# --- streams --------------------------------------------------------------------------------------


async def listed(stream: Any) -> list[Any]:
    async with stream as chunks:
        return [chunk async for chunk in chunks]


def streamed(kind: str, path: Path, script: Script) -> tuple[list[Any], Completion]:
    with scripted_server(path, [script]):
        if kind == "blocking":
            with Client(path) as client, client.stream_chat("Hi", n=2) as chunks:
                return list(chunks), chunks.completion()

        async def run() -> tuple[list[Any], Completion]:
            async with AsyncClient(path) as client:
                stream = client.stream_chat("Hi", n=2)
                return await listed(stream), stream.completion()

        return asyncio.run(run())


# U+2028 and U+0085 end a line for Python, and are text in JSON and in server-sent events.
HARD = "one\u2028two\u0085three\x0bfour \U0001f600 \\n\n"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sizes", [1, 7, 1 << 20])
def test_a_stream_however_it_is_cut(kind: str, path: Path, sizes: int) -> None:
    asked: list[Any] = []
    events = [delta("", role="assistant"), delta("a"), delta("x", index=1), delta(HARD), delta(None, reason="stop")]
    events += [delta(None, index=1, reason="length"), LAST]

    def script(exchange: Exchange) -> None:
        asked.append(exchange.request())
        exchange.stream(*events, sizes=sizes)

    chunks, done = streamed(kind, path, script)
    assert asked[0][1]["stream"] is True and asked[0][1]["stream_options"] == {"include_usage": True}
    assert [(chunk.index, chunk.text) for chunk in chunks][:4] == [(0, ""), (0, "a"), (1, "x"), (0, HARD)]
    assert [choice.text for choice in done.choices] == ["a" + HARD, "x"]
    assert [choice.finish_reason for choice in done.choices] == ["stop", "length"]
    assert done.usage == Usage(3, 2, 1, 4, 5) and done.timings == Timings(1.0, None, 0.5, 2, 1)


@pytest.mark.parametrize("kind", KINDS)
def test_tool_calls_come_in_parts(kind: str, path: Path) -> None:
    def part(index: int, arguments: str, **more: Any) -> dict[str, Any]:
        return delta(tool_calls=[{"index": index, **more, "function": {"arguments": arguments, **more}}])

    def script(exchange: Exchange) -> None:
        exchange.request()
        first, second = {"id": "c1", "name": "f"}, {"id": "c2", "name": "g"}
        exchange.stream(part(0, "", **first), part(0, '{"a"'), part(0, ": 1}"), part(1, "{}", **second))

    _, done = streamed(kind, path, script)
    assert done.tool_calls == (ToolCall("c1", "f", '{"a": 1}'), ToolCall("c2", "g", "{}"))


@pytest.mark.parametrize("kind", KINDS)
def test_leaving_a_stream_closes_the_connection(kind: str, path: Path) -> None:
    left = threading.Event()

    def script(exchange: Exchange) -> None:
        exchange.request()
        exchange.stream(delta("a"), done=False)
        exchange.until_left()
        left.set()

    with scripted_server(path, [script, answering({"data": []})]):
        if kind == "blocking":
            with Client(path) as client:
                with client.stream_chat("Hi") as chunks:
                    assert next(iter(chunks)).text == "a"
                assert left.wait(60)
                assert chunks.completion().finish_reason is None
                client.models()  # and the client is as good as before
            return

        async def run() -> None:
            async with AsyncClient(path) as client:
                async with client.stream_chat("Hi") as chunks:
                    async for chunk in chunks:
                        assert chunk.text == "a"
                        break
                assert await asyncio.to_thread(left.wait, 60)
                await client.models()

        asyncio.run(run())


@pytest.mark.parametrize("kind", KINDS)
def test_a_loop_that_is_left_may_be_taken_up_again(kind: str, path: Path) -> None:
    def script(exchange: Exchange) -> None:
        exchange.request()
        exchange.stream(*map(delta, "abcd"), sizes=60)

    with scripted_server(path, [script]):
        if kind == "blocking":
            with Client(path) as client, client.stream_chat("Hi") as chunks:
                assert next(iter(chunks)).text == "a"
                for chunk in chunks:
                    assert chunk.text == "b"
                    break
                assert [chunk.text for chunk in chunks] == ["c", "d"]
            return

        async def run() -> None:
            async with AsyncClient(path) as client, client.stream_chat("Hi") as chunks:
                assert (await anext(aiter(chunks))).text == "a"
                async for chunk in chunks:
                    assert chunk.text == "b"
                    break
                assert [chunk.text async for chunk in chunks] == ["c", "d"]

        asyncio.run(run())


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_within_a_stream(kind: str, path: Path) -> None:
    def script(exchange: Exchange) -> None:
        exchange.request()
        exchange.stream(delta("a"), error("out of time", "timeout_error", code="deadline_exceeded"), done=False)
        exchange.until_left()

    with pytest.raises(EdgeRuntimeError, match=r"^out of time$") as caught:
        streamed(kind, path, script)
    assert (caught.value.type, caught.value.code, caught.value.status) == ("timeout_error", "deadline_exceeded", None)


# --- asking again ---------------------------------------------------------------------------------


def refused(exchange: Exchange) -> None:
    exchange.request()
    exchange.reset()


def loading(exchange: Exchange) -> None:
    exchange.request()
    exchange.answer(error("loading: the model is being loaded", "unavailable_error"), 503, retry_after="0")


def served(exchange: Exchange) -> None:
    exchange.request()
    exchange.answer(CHAT)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("first", [[refused], [refused, refused, refused], [loading, loading], [refused, loading]])
def test_what_was_not_answered_is_asked_again(kind: str, path: Path, first: list[Script]) -> None:
    assert outcome(kind, path, [*first, served], lambda client: client.chat("Hi")).text == "Hi"


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_is_asked_for_again_until_it_begins(kind: str, path: Path) -> None:
    def script(exchange: Exchange) -> None:
        exchange.request()
        exchange.stream(delta("a"))

    with scripted_server(path, [refused, loading, script]):
        if kind == "blocking":
            with Client(path) as client, client.stream_chat("Hi") as chunks:
                assert [chunk.text for chunk in chunks] == ["a"]
        else:

            async def run() -> list[Any]:
                async with AsyncClient(path) as client:
                    return await listed(client.stream_chat("Hi"))

            assert [chunk.text for chunk in asyncio.run(run())] == ["a"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ending", ["reset", "end"])
def test_what_has_begun_is_never_asked_again(kind: str, path: Path, ending: str) -> None:
    def script(exchange: Exchange) -> None:
        exchange.request()
        exchange.stream(delta("a"), done=False)
        if ending == "reset":
            exchange.reset()
        else:
            exchange.send(b"0\r\n\r\n")

    def blocking() -> None:
        with Client(path) as client, client.stream_chat("Hi") as chunks:
            list(chunks)

    async def concurrent() -> None:
        async with AsyncClient(path) as client:
            await listed(client.stream_chat("Hi"))

    with scripted_server(path, [script]) as server:
        with pytest.raises(ConnectionLost, match="middle of an answer"):
            blocking() if kind == "blocking" else asyncio.run(concurrent())
        assert server.seen == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_kept_connection_of_a_daemon_that_was_restarted(kind: str, path: Path) -> None:
    """Even without patience: the daemon that answers now was never asked."""

    def once(exchange: Exchange) -> None:
        served(exchange)
        exchange.request()
        exchange.reset()

    def both(client: Any) -> Any:
        if kind == "blocking":
            return [client.chat("Hi").text, client.chat("Hi").text]

        async def run() -> list[str]:
            return [(await client.chat("Hi")).text, (await client.chat("Hi")).text]

        return run()

    assert outcome(kind, path, [once, served], both, patience_s=0.0) == ["Hi", "Hi"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_refusal_is_told_once(kind: str, path: Path) -> None:
    body = error("temperature: too hot", param="temperature", code="invalid_value")
    with scripted_server(path, [answering(body, 400)]) as server:
        with pytest.raises(EdgeRuntimeError, match=r"^temperature: too hot$") as caught:
            getattr(Both(path, 30.0), kind)(lambda client: client.chat("Hi", temperature=9.0))
        assert server.seen == 1
    problem = caught.value
    assert (problem.status, problem.param, problem.code) == (400, "temperature", "invalid_value")
    assert (problem.type, problem.exit_code) == ("invalid_request_error", 2)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"<html>", 502, "HTTP status 502"),
        (b"", 500, "HTTP status 500"),
        (b'{"error": "x"}', 500, "HTTP status 500"),
        (b"[]", 404, "HTTP status 404"),
        (error("queue full", "rate_limit_error"), 429, "queue full"),
        (b"no json", 200, "no JSON"),
        (b"[" * 100_000, 200, "no JSON"),
        (b"[" * 100_000, 500, "HTTP status 500"),
        (b"{}", 200, "not understood"),
        (b'{"choices": 3}', 200, "not understood"),
    ],
)
def test_answers_that_are_none(kind: str, path: Path, body: Any, status: int, words: str) -> None:
    with pytest.raises(EdgeRuntimeError, match=words) as caught:
        outcome(kind, path, [answering(body, status)], lambda client: client.chat("Hi"))
    assert caught.value.status == (None if status == 200 else status)


@pytest.mark.parametrize("kind", KINDS)
def test_patience_ends(kind: str, path: Path) -> None:
    with pytest.raises(EdgeRuntimeError, match="loading: the model") as caught:
        outcome(kind, path, [answering(error("loading: the model is loaded"), 503, retry_after="7")],
                lambda client: client.chat("Hi"), 5.0)  # fmt: skip
    assert (caught.value.status, caught.value.retry_after_s) == (503, 7.0)
    words = rf"no daemon answers at {path} .*: start it with 'edge-runtime serve"
    with pytest.raises(NotReachable, match=words) as gone:
        getattr(Both(path, 0.0), kind)(lambda client: client.chat("Hi"))
    assert gone.value.exit_code == 2 and "\n" not in str(gone.value)


@pytest.mark.parametrize("kind", KINDS)
def test_a_request_that_is_no_json(kind: str, path: Path) -> None:
    for options in ({"stop": object()}, {"stop": "\ud800"}):
        with pytest.raises(EdgeRuntimeError, match="no JSON"):
            getattr(Both(path, 0.0), kind)(lambda client, options=options: client.chat("Hi", **options))


@pytest.mark.parametrize("kind", KINDS)
def test_waiting_for_a_daemon(kind: str, path: Path) -> None:
    def wait(client: Any) -> Any:
        return client.wait_until_ready(30.0)

    outcome(kind, path, [refused, loading, loading, answering({"status": "ok"})], wait)
    with pytest.raises(EdgeRuntimeError, match="failed: out of memory"):
        outcome(kind, path, [answering(error("failed: out of memory"), 503)], wait)

    def hurry(client: Any) -> Any:
        return client.wait_until_ready(0.0)

    with pytest.raises(EdgeRuntimeError, match="loading, and was not ready within 0 s: the model is being loaded"):
        outcome(kind, path, [loading], hurry)
    with pytest.raises(NotReachable):
        getattr(Both(path, 0.0), kind)(hurry)


def test_a_daemon_that_comes_late(path: Path) -> None:
    """The client is there first, and waits."""
    asked = threading.Event()
    results: list[str] = []

    class Watched(Patience):
        def wait_s(self, now_s: float, retry_after_s: float | None = None) -> float | None:
            asked.set()
            return super().wait_s(now_s, retry_after_s)

    from edge_runtime.client import blocking

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocking, "Patience", Watched)

        def run() -> None:
            with Client(path, patience_s=60.0) as client:
                results.append(client.chat("Hi").text)

        thread = threading.Thread(target=run)
        thread.start()
        assert asked.wait(60)
        with scripted_server(path, [served]):
            thread.join(60)
    assert results == ["Hi"]


def test_patience_doubles_up_to_a_second_and_obeys_the_daemon() -> None:
    patience = Patience(10.0, 100.0)
    assert [patience.wait_s(100.0) for _ in range(7)] == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    assert patience.wait_s(100.0, 3.0) == 3.0
    assert patience.wait_s(108.0, 3.0) is None  # it would be too late
    assert patience.wait_s(109.0) == 1.0 and patience.wait_s(109.1) is None
    assert Patience(0.0, 100.0).wait_s(100.0) is None


# --- the library ----------------------------------------------------------------------------------


def test_where_the_daemon_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("EDGE_RUNTIME_SOCKET", raising=False)
    assert Client().socket == "/run/edge-runtime/api.sock"
    monkeypatch.setenv("EDGE_RUNTIME_SOCKET", "/elsewhere")
    assert Client().socket == AsyncClient().socket == "/elsewhere"
    assert Client(tmp_path / "s").socket == str(tmp_path / "s")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("name", "words"), [("x" * 200, "too long"), ("a/b", "Not a directory"), (".", "refused")])
def test_paths_where_no_daemon_can_be(kind: str, tmp_path: Path, name: str, words: str) -> None:
    (tmp_path / "a").write_text("")
    with pytest.raises(NotReachable, match=words):
        getattr(Both(tmp_path / name, 0.0), kind)(lambda client: client.models())
    with pytest.raises(NotReachable, match="no path"):
        Client("a\0b")


def test_the_options_are_the_fields_of_the_server() -> None:
    """Those that the client sets itself left out."""
    own = {"stream", "stream_options", "messages", "prompt"}
    assert set(ChatOptions.__annotations__) == set(field_names(ChatRequest)) - own
    assert set(CompletionOptions.__annotations__) == set(field_names(CompletionRequest)) - own


_IMPORTS = """
import json, sys
import edge_runtime.client
print(json.dumps(sorted({name.split(".")[0] for name in sys.modules})))
"""


def test_httpx_and_msgspec_are_enough() -> None:
    done = subprocess.run([sys.executable, "-c", _IMPORTS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    loaded = set(json.loads(done.stdout))
    assert {"httpx", "msgspec"} <= loaded
    assert not loaded & {"numpy", "yaml", "onnxruntime", "jinja2", "sentencepiece", "starlette", "uvicorn"}


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_needs_its_with_statement(kind: str, path: Path) -> None:
    def use(client: Any) -> Any:
        stream = client.stream_chat("Hi")
        if kind == "blocking":
            return next(iter(stream))

        async def run() -> Any:
            iterator: AsyncIterator[Any] = aiter(stream)
            return await anext(iterator)

        return run()

    with pytest.raises(RuntimeError, match="with statement"):
        getattr(Both(path, 0.0), kind)(use)
