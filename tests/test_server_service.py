"""Errors as clients see them, the state of the service, its metrics and its description."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from server_runs import (
    CHAT,
    COMPLETIONS,
    WAIT_S,
    Puppet,
    Running,
    ask,
    chat,
    events,
    listening,
    piece,
    post,
    read_all,
    read_until,
    refused,
    running,
    say,
    tiny_model,
)

from edge_runtime.config import Config, ServerConfig
from edge_runtime.errors import (
    BundleError,
    Cancelled,
    DeadlineExceeded,
    EngineError,
    InputError,
    PromptTooLong,
    QueueFull,
    Stopped,
    Unavailable,
)
from edge_runtime.scheduler.request import Failed, Request, Sink, Started
from edge_runtime.server.connection import Peer
from edge_runtime.server.service import Model, Service, Standing


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def puppet() -> Puppet:
    return Puppet()


@pytest.fixture
def run(model: Model, puppet: Puppet, tmp_path: Path) -> Iterator[Running]:
    with running(model, puppet, tmp_path) as found:
        yield found


STRANGER = Peer(54321, 1)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (InputError("stop: no", "stop"), 400, "invalid_value"),
        (PromptTooLong("the prompt has 9 tokens"), 400, "context_length_exceeded"),
        (QueueFull("64 requests wait", 2.5), 429, "queue_full"),
        (Unavailable("draining", 7.0), 503, "unavailable"),
    ],
)
def test_what_the_scheduler_refuses(
    run: Running, puppet: Puppet, stream: bool, error: Any, status: int, code: str
) -> None:
    puppet.refusal = error
    found, headers, body = run.ask("POST", CHAT, chat(stream=stream))
    assert (found, body["error"]["code"], body["error"]["message"]) == (status, code, str(error))
    assert body["error"]["param"] == getattr(error, "param", None)
    if isinstance(error, Unavailable):
        assert headers["retry-after"] == {2.5: "3", 7.0: "7"}[error.retry_after_s]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("error", "status"),
    [
        (DeadlineExceeded("5 ms were not enough"), 504),
        (Cancelled("the client left"), 499),
        (Stopped("the daemon stops"), 503),
        (EngineError("out of memory"), 500),
        (Unavailable("too hot"), 503),
    ],
)
def test_an_answer_that_never_began(run: Running, puppet: Puppet, stream: bool, error: Any, status: int) -> None:
    puppet.answer = lambda request, sink: sink(Failed(error))
    assert refused(run, CHAT, status, stream=stream)["message"] == str(error)
    assert ("retry-after" in run.ask("POST", CHAT, chat(stream=stream))[1]) is (status == 503)


def test_a_stream_that_breaks_off(run: Running, puppet: Puppet) -> None:
    def answer(request: Request, sink: Sink) -> None:
        sink(Started(0.0, 5, 0))
        sink(piece("He"))
        sink(Failed(EngineError("out of memory")))

    puppet.answer = answer
    status, _, body = run.ask("POST", CHAT, chat(stream=True))
    *_, text, error = events(body)
    assert (status, text["choices"][0]["delta"]) == (200, {"content": "He"})
    assert error == {"error": {"message": "out of memory", "type": "server_error", "param": None, "code": None}}


@pytest.mark.parametrize("stream", [False, True])
def test_one_choice_that_fails_ends_them_all(run: Running, puppet: Puppet, stream: bool) -> None:
    with run.connect() as connection:
        connection.sendall(post(CHAT, chat(n=3, stream=stream), connection="close"))
        puppet.wait(3)
        for _, sink in puppet.asked:
            sink(Started(0.0, 5, 0))
        if stream:
            read_until(connection, b"assistant")
        puppet.asked[1][1](Failed(EngineError("out of memory")))
        assert b"out of memory" in read_all(connection)
    puppet.wait_cancelled(3)


def test_paths_and_methods(run: Running) -> None:
    status, _, body = run.ask("GET", "/v1/model")
    assert (status, body["error"]["code"]) == (404, "unknown_path")
    assert "did you mean '/v1/models'" in body["error"]["message"]
    assert run.ask("GET", "/v1/models/")[0] == 404
    assert run.ask("GET", "/health/")[0] == 404
    status, headers, body = run.ask("GET", CHAT)
    assert (status, body["error"]["code"], headers["allow"]) == (405, "method_not_allowed", "POST")


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, "/v1/tokenize"])
def test_an_unknown_model(run: Running, path: str) -> None:
    error = refused(run, path, 404, model="gpt-4o") if path != "/v1/tokenize" else None
    if error is None:
        status, _, body = run.ask("POST", path, {"prompt": "x", "model": "gpt-4o"})
        assert status == 404
        error = body["error"]
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert "'tiny'" in error["message"]


def test_models(run: Running, model: Model) -> None:
    listed = run.ask("GET", "/v1/models")[2]
    assert (listed["object"], [one["id"] for one in listed["data"]]) == ("list", ["tiny"])
    assert run.ask("GET", "/v1/models/tiny")[2] == listed["data"][0]
    assert run.ask("GET", "/v1/models/tiny/x")[0] == 404


def test_a_model_without_a_template(model: Model, puppet: Puppet, tmp_path: Path) -> None:
    with running(replace(model, template=None), puppet, tmp_path) as run:
        assert refused(run, CHAT, 400)["param"] == "messages"


@pytest.mark.parametrize("body", [{}, {"prompt": "x", "messages": [{"role": "user", "content": "x"}]}])
def test_tokenize_needs_one_of_two(run: Running, body: Any) -> None:
    assert run.ask("POST", "/v1/tokenize", body)[0] == 400


@pytest.mark.parametrize("state", ["loading", "draining", "failed"])
def test_a_service_that_is_not_ready(tmp_path: Path, state: Any) -> None:
    config = Config(bundle="b", server=ServerConfig(socket="x"))
    with listening(Service(config, Standing(state, "because")), str(tmp_path / "api.sock")) as run:
        for method, path, body in (("GET", "/health", None), ("POST", CHAT, chat()), ("GET", "/v1/models", None)):
            status, headers, answer = run.ask(method, path, body)
            assert (status, answer["error"]["code"], headers["retry-after"]) == (503, "unavailable", "1")
            assert "because" in answer["error"]["message"]
        status, _, told = run.ask("GET", "/v1/status")
        assert (status, told["state"], told["reason"], told["model"]) == (200, state, "because", None)
        text = run.ask("GET", "/metrics")[2]
        assert f'edge_runtime_state{{state="{state}"}} 1.0' in text
        # A wrong body is told first: it will still be wrong when the model is there.
        assert run.ask("POST", CHAT, chat(n=0))[0] == 400


def test_status(run: Running, model: Model) -> None:
    told = run.ask("GET", "/v1/status")[2]
    assert (told["state"], told["reason"], told["model"]["name"]) == ("ready", "", "tiny")
    assert told["speculation"]["acceptance_by_position"] == [0.8, 0.6]
    assert told["board"]["power_mw"] is None and told["memory"]["now_bytes"] > 0


def test_metrics(run: Running, puppet: Puppet) -> None:
    puppet.answer = lambda request, sink: say(sink, "secret")
    ask(run, CHAT, messages=[{"role": "user", "content": "secret"}])
    puppet.answer = lambda request, sink: sink(Failed(EngineError("x")))
    refused(run, CHAT, 500)
    status, headers, text = run.ask("GET", "/metrics")
    assert (status, headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert "secret" not in text
    found = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    for name, value in {
        "num_requests_running": 1.0,
        "num_requests_waiting": 2.0,
        "spec_decode_num_drafts_total": 5.0,
        "spec_decode_num_draft_tokens_total": 10.0,
        "spec_decode_num_accepted_tokens_total": 7.0,
        'spec_decode_num_accepted_tokens_per_pos_total{position="1"}': 3.0,
        "prompt_tokens_total": 30.0,
        "generation_tokens_total": 20.0,
        "prefix_cache_queries_total": 30.0,
        "prefix_cache_hits_total": 10.0,
        "kv_slots_used": 1.0,
        'request_success_total{finished_reason="stop"}': 1.0,
        'request_success_total{finished_reason="error"}': 1.0,
        "time_to_first_token_seconds_count": 1.0,
        "time_per_output_token_seconds_count": 1.0,
        "e2e_request_latency_seconds_count": 1.0,
    }.items():
        assert float(found[f"edge_runtime_{name}"]) == value, name
    assert not any("power" in name or "temperature" in name for name in found)


def test_a_bundle_is_swapped(run: Running, tmp_path: Path) -> None:
    asked_for: list[Path] = []

    async def swap(path: Path) -> None:
        await asyncio.sleep(0)
        asked_for.append(path)
        if path.name == "broken":
            raise BundleError(f"no bundle at {path}")

    assert run.ask("POST", "/v1/admin/bundle", {"path": "/bundles/new"})[0] == 404
    run.service.swap = swap
    status, _, told = run.ask("POST", "/v1/admin/bundle", {"path": "/bundles/new"})
    assert (status, told["state"], asked_for) == (200, "ready", [Path("/bundles/new")])
    status, _, body = run.ask("POST", "/v1/admin/bundle", {"path": "/bundles/broken"})
    assert (status, body["error"]["message"]) == (400, "no bundle at /bundles/broken")
    for wrong in ({"path": "new"}, {"path": ""}, {}, {"path": "/a\0b"}, {"pth": "/x"}):
        assert run.ask("POST", "/v1/admin/bundle", wrong)[0] == 400
    assert len(asked_for) == 2


def test_only_its_own_user_swaps_a_bundle(run: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge_runtime.server.connection._peer", lambda transport: STRANGER)
    status, _, body = run.ask("POST", "/v1/admin/bundle", {"path": "/x"})
    assert (status, body["error"]["type"]) == (403, "permission_error")
    assert str(STRANGER.uid) in body["error"]["message"]


def test_tcp_is_one_client_without_rights(model: Model, puppet: Puppet, tmp_path: Path) -> None:
    async def swap(path: Path) -> None:
        pytest.fail("nobody may ask for this")

    puppet.answer = lambda request, sink: say(sink, "ok")
    config = Config(bundle="b", server=ServerConfig(socket="x"))
    service = Service(config, Standing("ready", "", model, puppet), swap=swap)
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as tcp:
        tcp.bind(("127.0.0.1", 0))
        host, port = tcp.getsockname()
        with listening(service, str(tmp_path / "api.sock"), tcp):
            connection = http.client.HTTPConnection(host, port, timeout=WAIT_S)
            refused = ((CHAT, chat(priority=-1)), ("/v1/admin/bundle", {"path": "/x"}))
            for path, body, expected in ((CHAT, chat(), 200), *((*one, 403) for one in refused)):
                connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
                with connection.getresponse() as response:
                    response.read()
                assert response.status == expected
            connection.close()
    assert puppet.asked[0][0].client == -1


def test_a_bug_is_one_line_too(run: Running, puppet: Puppet, caplog: pytest.LogCaptureFixture) -> None:
    puppet.refusal = ZeroDivisionError("secret")  # type: ignore[assignment]
    status, _, body = run.ask("POST", CHAT, chat())
    assert (status, body["error"]["type"]) == (500, "server_error")
    assert "secret" not in json.dumps(body)


def test_the_description_names_every_path_and_field(run: Running) -> None:
    told = run.ask("GET", "/openapi.json")[2]
    assert told["openapi"].startswith("3.1")
    assert {CHAT, COMPLETIONS, "/v1/models", "/v1/models/{name}", "/health", "/metrics"} <= set(told["paths"])
    fields = told["components"]["schemas"]["ChatRequest"]
    assert {"messages", "stream", "speculative", "top_k", "timeout_ms"} <= set(fields["properties"])
    assert fields["additionalProperties"] is False
    assert "Wins over max_tokens" in json.dumps(fields["properties"]["max_completion_tokens"])
    references = set(_references(told))
    assert references <= {f"#/components/schemas/{name}" for name in told["components"]["schemas"]}


def _references(data: Any) -> Iterator[str]:
    if isinstance(data, dict):
        if isinstance(data.get("$ref"), str):
            yield data["$ref"]
        for value in data.values():
            yield from _references(value)
    elif isinstance(data, list):
        for value in data:
            yield from _references(value)
