"""The programs that clients use, unchanged: the ``openai`` package and ``curl``, against a real scheduler.

And the crowd: hundreds of clients that leave at any moment take no slot with them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from server_runs import WAIT_S, Running, chat, events, parsed, post, read_all, running, tiny_model

from edge_runtime.scheduler.request import Limits
from edge_runtime.scheduler.scheduler import Scheduler
from edge_runtime.server.service import Model

SLOTS, CONTEXT = 4, 1024
SAID: Any = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return tiny_model(tmp_path_factory.mktemp("model"), slots=SLOTS, capacity=CONTEXT)


@pytest.fixture(scope="module")
def scheduler(model: Model) -> Iterator[Scheduler]:
    scheduler = Scheduler(model.served, Limits(queue=256, queue_per_client=256))
    scheduler.start()
    yield scheduler
    scheduler.close()


@pytest.fixture(scope="module")
def run(model: Model, scheduler: Scheduler, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(model, scheduler, tmp_path_factory.mktemp("socket")) as found:
        yield found


@pytest.fixture
def client(run: Running) -> Iterator[openai.OpenAI]:
    """As the conventions for local servers have it."""
    http_client: Any = httpx.Client(transport=httpx.HTTPTransport(uds=run.path))
    with openai.OpenAI(
        base_url="http://localhost/v1", api_key="none", http_client=http_client, max_retries=0, timeout=WAIT_S
    ) as found:
        yield found


# --- the openai package ---------------------------------------------------------------------------


def test_a_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="tiny", messages=SAID, temperature=0, max_tokens=12)
    assert answer.usage is not None
    (choice,) = answer.choices
    assert choice.finish_reason == "length" and answer.usage.completion_tokens == 12
    assert choice.message.content
    assert answer.usage.prompt_tokens_details is not None
    assert answer.model_extra is not None and answer.model_extra["timings"]["ttft_ms"] > 0


def test_a_stream_says_the_same(client: openai.OpenAI) -> None:
    fields: Any = {"model": "tiny", "messages": SAID, "seed": 5, "max_tokens": 40}
    whole = client.chat.completions.create(**fields)
    stream = client.chat.completions.create(**fields, stream=True, stream_options={"include_usage": True})
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason
    assert chunks[-1].choices == [] and chunks[-1].usage is not None and whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_a_seed_gives_one_text_however_it_is_drafted_for(client: openai.OpenAI) -> None:
    texts = set()
    for wish in ({"enabled": False}, {"max_draft_tokens": 1}, {"enabled": True}):
        answer = client.chat.completions.create(
            model="tiny", messages=SAID, seed=3, max_tokens=60, extra_body={"speculative": wish}
        )
        texts.add(answer.choices[0].message.content)
    assert len(texts) == 1


def test_completions(client: openai.OpenAI) -> None:
    fields: Any = {"model": "tiny", "prompt": "abc", "temperature": 0, "max_tokens": 9}
    whole = client.completions.create(**fields, logprobs=2)
    assert whole.choices[0].logprobs is not None
    assert "".join(whole.choices[0].logprobs.tokens or []) == whole.choices[0].text
    chunks = list(client.completions.create(**fields, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text


def test_log_probabilities(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="tiny", messages=SAID, temperature=0, max_tokens=8, logprobs=True, top_logprobs=3
    )
    assert answer.choices[0].logprobs is not None
    content = answer.choices[0].logprobs.content or []
    assert len(content) == 8
    # A fake model writes bytes that are no character, too.
    spelt = b"".join(bytes(entry.bytes or []) for entry in content).decode("utf-8", "replace")
    assert spelt == answer.choices[0].message.content
    for entry in content:
        assert len(entry.top_logprobs) == 3
        assert entry.top_logprobs[0].logprob == max(other.logprob for other in entry.top_logprobs)
        # Greedy: the token itself is the most probable one.
        assert entry.top_logprobs[0].token == entry.token


def test_several_choices(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="tiny", messages=SAID, n=3, seed=1, max_tokens=20)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert len({choice.message.content for choice in answer.choices}) == 3
    alone = client.chat.completions.create(model="tiny", messages=SAID, seed=1, max_tokens=20)
    assert alone.choices[0].message.content == answer.choices[0].message.content


def test_structured_output_parses(client: openai.OpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {"kind": {"enum": ["a", "b"]}, "count": {"type": "integer", "minimum": 0, "maximum": 9}},
        "required": ["kind", "count"],
        "additionalProperties": False,
    }
    form: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    answer = client.chat.completions.create(model="tiny", messages=SAID, response_format=form, seed=2)
    found = json.loads(answer.choices[0].message.content or "")
    assert set(found) == {"kind", "count"} and found["kind"] in ("a", "b") and 0 <= found["count"] <= 9
    assert answer.choices[0].finish_reason == "stop"


def test_a_function_is_called(client: openai.OpenAI) -> None:
    parameters = {"type": "object", "properties": {"on": {"type": "boolean"}}, "required": ["on"]}
    parameters["additionalProperties"] = False
    tool: Any = {"type": "function", "function": {"name": "light", "description": "", "parameters": parameters}}
    fields: Any = {"model": "tiny", "messages": SAID, "tools": [tool], "tool_choice": "required", "seed": 4}
    answer = client.chat.completions.create(**fields, parallel_tool_calls=False)
    (choice,) = answer.choices
    (call,) = choice.message.tool_calls or []
    assert choice.finish_reason == "tool_calls"
    function: Any = call.function  # type: ignore[union-attr]
    assert function.name == "light" and json.loads(function.arguments)["on"] in (True, False)
    # And its result goes back as the package wrote it.
    said = [*SAID, choice.message, {"role": "tool", "tool_call_id": call.id, "content": "done"}]
    after: Any = client.chat.completions.create(model="tiny", messages=said, max_tokens=5, tools=[tool])
    assert after.choices[0].finish_reason in ("length", "stop")


def test_models(client: openai.OpenAI) -> None:
    assert [one.id for one in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").owned_by == "edge-runtime"


def test_errors_have_the_types_of_the_package(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as wrong:
        client.chat.completions.create(model="tiny", messages=SAID, n=0)
    assert wrong.value.param == "n"
    with pytest.raises(openai.NotFoundError) as unknown:
        client.chat.completions.create(model="gpt-4o", messages=SAID)
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError, match="temprature"):
        client.chat.completions.create(model="tiny", messages=SAID, extra_body={"temprature": 1})
    with pytest.raises(openai.BadRequestError) as long:
        client.completions.create(model="tiny", prompt="x" * CONTEXT)
    assert (long.value.code, long.value.param) == ("context_length_exceeded", "prompt")


def test_a_deadline_passes(client: openai.OpenAI) -> None:
    with pytest.raises(openai.APIStatusError) as late:
        client.chat.completions.create(model="tiny", messages=SAID, max_tokens=900, extra_body={"timeout_ms": 1})
    assert late.value.status_code == 504


def test_a_stream_may_be_left(client: openai.OpenAI, scheduler: Scheduler) -> None:
    with client.chat.completions.create(model="tiny", messages=SAID, max_tokens=900, stream=True) as stream:
        next(iter(stream))
    all_free(scheduler)


def test_the_asynchronous_client(run: Running) -> None:
    async def ask() -> tuple[str, str]:
        transport = httpx.AsyncHTTPTransport(uds=run.path)
        http_client: Any = httpx.AsyncClient(transport=transport)
        async with openai.AsyncOpenAI(
            base_url="http://localhost/v1", api_key="none", http_client=http_client, max_retries=0
        ) as client:
            whole = await client.chat.completions.create(model="tiny", messages=SAID, seed=9, max_tokens=30)
            stream = await client.chat.completions.create(
                model="tiny", messages=SAID, seed=9, max_tokens=30, stream=True
            )
            text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
        return whole.choices[0].message.content or "", text

    whole, streamed = asyncio.run(ask())
    assert whole and whole == streamed


def test_the_package_with_its_own_http_library(run: Running) -> None:
    """From version 3 on it brings one along."""
    library: Any = pytest.importorskip("httpx2")
    http_client = library.Client(transport=library.HTTPTransport(uds=run.path))
    with openai.OpenAI(base_url="http://localhost/v1", api_key="none", http_client=http_client) as client:
        stream = client.chat.completions.create(model="tiny", messages=SAID, seed=9, max_tokens=30, stream=True)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in stream)


# --- curl -----------------------------------------------------------------------------------------


def curl(run: Running, *arguments: str) -> tuple[int, str]:
    """(status, body)"""
    command = ["curl", "-sS", "--max-time", str(WAIT_S), "--unix-socket", run.path, "-w", "\n%{http_code}", *arguments]
    if shutil.which("curl") is None:
        pytest.skip("no curl")
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    body, _, status = done.stdout.rpartition("\n")
    return int(status), body


JSON = ("-H", "Content-Type: application/json")


def test_curl(run: Running) -> None:
    assert curl(run, "http://localhost/health") == (200, '{"status":"ok"}')
    status, body = curl(run, *JSON, "-d", json.dumps(chat(max_tokens=5)), "http://x/v1/chat/completions")
    assert (status, json.loads(body)["object"]) == (200, "chat.completion")


def test_curl_streams(run: Running) -> None:
    data = json.dumps(chat(max_tokens=5, stream=True))
    status, body = curl(run, "-N", *JSON, "-d", data, "http://localhost/v1/chat/completions")
    assert (status, events(body)[-1]) == (200, "[DONE]")


def test_curl_without_a_content_type_is_told(run: Running) -> None:
    status, body = curl(run, "-d", json.dumps(chat()), "http://localhost/v1/chat/completions")
    assert (status, json.loads(body)["error"]["param"]) == (415, "Content-Type")


def test_curl_sends_more_than_is_read(run: Running, tmp_path: Path) -> None:
    file = tmp_path / "large"
    file.write_bytes(b" " * (run.service.config.server.max_body_bytes + 1_000_000))
    status, body = curl(run, *JSON, "--data-binary", f"@{file}", "http://localhost/v1/chat/completions")
    assert (status, json.loads(body)["error"]["code"]) == (413, "request_too_large")


# --- the crowd ------------------------------------------------------------------------------------


def all_free(scheduler: Scheduler) -> None:
    deadline = time.monotonic() + WAIT_S
    while True:
        snapshot = scheduler.snapshot()
        if not snapshot.running and not snapshot.requests.waiting and not any(slot.busy for slot in snapshot.slots):
            return
        assert time.monotonic() < deadline, snapshot
        time.sleep(0.01)


def leave(run: Running, seed: int) -> None:
    """Send all of a request or a part, read some of the answer or none, and go in one of three ways."""
    dice = random.Random(seed)
    patient = dice.random() < 0.3
    fields = {"max_tokens": 400, "stream": patient or dice.random() < 0.5, "n": dice.choice([1, 1, 2]), "seed": seed}
    data = post("/v1/chat/completions", chat("x" * dice.randrange(200), **fields))
    with run.connect() as connection, contextlib.suppress(ConnectionError):
        connection.sendall(data if patient or dice.random() < 0.9 else data[: dice.randrange(len(data))])
        if patient:
            assert connection.recv(1)
        elif dice.random() < 0.7:
            connection.settimeout(dice.choice([0.001, 0.01, 0.1]))
            with contextlib.suppress(TimeoutError):
                for _ in range(dice.randrange(1, 20)):
                    connection.recv(dice.choice([1, 100, 10_000]))
        how = dice.randrange(3)
        if how == 1:
            connection.shutdown(socket.SHUT_WR)
        elif how == 2:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")


def test_a_crowd_that_leaves_takes_no_slot(run: Running, scheduler: Scheduler) -> None:
    before = scheduler.snapshot().requests

    def some(first: int) -> None:
        for seed in range(first, first + 50):
            leave(run, seed)

    threads = [threading.Thread(target=some, args=(1000 * index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(5 * WAIT_S)
        assert not thread.is_alive()
    all_free(scheduler)
    requests = scheduler.snapshot().requests
    ended = (requests.finished, requests.failed, requests.cancelled, requests.refused)
    # Those who had seen the first of their answer; of the others, some were gone before they had asked.
    assert requests.cancelled - before.cancelled >= 50
    assert requests.received == sum(ended)
    # The daemon is as it was.
    with run.connect() as connection:
        connection.sendall(post("/v1/chat/completions", chat(max_tokens=5, seed=1), connection="close"))
        assert parsed(read_all(connection))[0] == 200


def test_a_crowd_that_stays_is_served(run: Running, scheduler: Scheduler) -> None:
    """More clients than slots; every one gets the text that it gets alone."""

    def text(seed: int) -> str:
        body = chat(max_tokens=30, seed=seed, stream=True)
        status, _, answer = run.ask("POST", "/v1/chat/completions", body)
        assert status == 200
        *chunks, done = events(answer)
        assert done == "[DONE]"
        return "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)

    alone = [text(seed) for seed in range(12)]
    together: dict[int, str] = {}
    threads = [
        threading.Thread(target=lambda seed=seed: together.update({seed: text(seed)}))  # type: ignore[misc]
        for seed in range(12)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert [together[seed] for seed in range(12)] == alone
    assert len(set(alone)) == 12
    all_free(scheduler)


def test_a_full_queue(model: Model, tmp_path: Path) -> None:
    """Of a scheduler that was never started, so that nothing leaves it."""
    scheduler = Scheduler(model.served, Limits(queue=2, queue_per_client=2))
    with running(model, scheduler, tmp_path) as run, contextlib.ExitStack() as stack:
        for _ in range(SLOTS + 2):
            connection = stack.enter_context(run.connect())
            connection.sendall(post("/v1/chat/completions", chat()))
        deadline = time.monotonic() + WAIT_S
        while scheduler.snapshot().requests.waiting < SLOTS + 2:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        status, headers, body = run.ask("POST", "/v1/chat/completions", chat())
        assert (status, body["error"]["type"]) == (429, "rate_limit_error")
        assert int(headers["retry-after"]) >= 1
