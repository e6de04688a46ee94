"""What both endpoints answer, over a real socket, with a puppet for a scheduler: every event is the test's own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from server_runs import (
    END_OF_TURN,
    EOS,
    Puppet,
    Running,
    chat,
    events,
    listening,
    parsed,
    piece,
    post,
    read_all,
    read_until,
    result,
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
    Unavailable,
)
from edge_runtime.scheduler.request import Failed, Finished, Request, Sink, Started
from edge_runtime.server.connection import Peer
from edge_runtime.server.service import Model, Service, Standing

STRANGER = Peer(54321, 1)
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


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


def ask(run: Running, path: str, **fields: Any) -> Any:
    """The JSON of an answer, or the events of a stream."""
    body = {"messages": chat()["messages"], **fields} if path == CHAT else {"prompt": "x", **fields}
    status, headers, answer = run.ask("POST", path, body)
    assert status == 200, answer
    if not fields.get("stream"):
        return answer
    assert headers["content-type"] == "text/event-stream; charset=utf-8"
    return events(answer)


def refused(run: Running, path: str, status: int, **fields: Any) -> dict[str, Any]:
    body = {"messages": chat()["messages"], **fields} if path == CHAT else {"prompt": "x", **fields}
    found, _, answer = run.ask("POST", path, body)
    assert found == status, answer
    error: dict[str, Any] = answer["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert "\n" not in error["message"]
    return error


def asked(run: Running, puppet: Puppet, path: str, **fields: Any) -> Request:
    """What the scheduler is asked for, the first of it."""
    first = len(puppet.asked)
    puppet.answer = lambda request, sink: say(sink, "ok")
    ask(run, path, **fields)
    return puppet.asked[first][0]


def test_a_chat(run: Running, puppet: Puppet) -> None:
    puppet.answer = lambda request, sink: say(sink, "Hello", cached=3)
    answer = ask(run, CHAT)
    assert answer["object"] == "chat.completion"
    assert answer["id"].startswith("chatcmpl-")
    assert answer["model"] == "tiny"
    assert answer["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hello", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    usage = answer["usage"]
    # The token that ended the text was made too.
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (5, 6, 11)
    assert usage["prompt_tokens_details"] == {"cached_tokens": 3}
    assert set(answer["timings"]) == {"ttft_ms", "tpot_ms", "queued_ms", "draft_n", "draft_n_accepted"}
    assert answer["timings"]["queued_ms"] == 1.0


def test_a_chat_as_a_stream(run: Running, puppet: Puppet) -> None:
    puppet.answer = lambda request, sink: say(sink, "Hey")
    *chunks, done = ask(run, CHAT, stream=True)
    assert done == "[DONE]"
    assert len({(chunk["id"], chunk["created"], chunk["object"], chunk["model"]) for chunk in chunks}) == 1
    assert chunks[0]["object"] == "chat.completion.chunk"
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas == [{"role": "assistant", "content": ""}, *({"content": letter} for letter in "Hey"), {}]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * 4 + ["stop"]
    assert not any("usage" in chunk for chunk in chunks)
    assert chunks[-1]["timings"]["queued_ms"] == 1.0


def test_a_completion(run: Running, puppet: Puppet) -> None:
    puppet.answer = lambda request, sink: say(sink, "Hello", reason="length")
    answer = ask(run, COMPLETIONS)
    assert (answer["object"], answer["id"][:5]) == ("text_completion", "cmpl-")
    assert answer["choices"] == [{"index": 0, "text": "Hello", "logprobs": None, "finish_reason": "length"}]


def test_a_completion_as_a_stream(run: Running, puppet: Puppet) -> None:
    puppet.answer = lambda request, sink: say(sink, "Hey")
    *chunks, done = ask(run, COMPLETIONS, stream=True)
    assert done == "[DONE]"
    assert [chunk["choices"][0]["text"] for chunk in chunks] == ["H", "e", "y", ""]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, None, "stop"]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_usage_of_a_stream(run: Running, puppet: Puppet, path: str) -> None:
    puppet.answer = lambda request, sink: say(sink, "Hey", cached=2)
    *chunks, last, done = ask(run, path, stream=True, stream_options={"include_usage": True}, n=2)
    assert done == "[DONE]"
    assert [chunk["usage"] for chunk in chunks] == [None] * len(chunks)
    assert last["choices"] == []
    # Two answers to one prompt.
    usage = last["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (5, 8, 13)
    assert usage["prompt_tokens_details"] == {"cached_tokens": 2}


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_predictions_are_counted(run: Running, puppet: Puppet, path: str) -> None:
    def answer(request: Request, sink: Sink) -> None:
        sink(Started(0.0, 5, 0))
        sink(piece("ab"))
        sink(Finished(result("ab", predicted=10, predicted_accepted=4, drafted=12, accepted=5)))

    puppet.answer = answer
    got = ask(run, path, prediction={"type": "content", "content": "abcd"}, n=2)
    assert got["usage"]["completion_tokens_details"] == {
        "accepted_prediction_tokens": 8,
        "rejected_prediction_tokens": 12,
    }
    assert (got["timings"]["draft_n"], got["timings"]["draft_n_accepted"]) == (24, 10)


def test_choices_come_interleaved(run: Running, puppet: Puppet) -> None:
    with run.connect() as connection:
        connection.sendall(post(CHAT, chat(n=3, stream=True), connection="close"))
        puppet.wait(3)
        sinks = [sink for _, sink in puppet.asked]
        for sink in sinks:
            sink(Started(0.0, 5, 0))
        for letter in "xy":
            for index in (2, 0, 1):
                sinks[index](piece(f"{letter}{index}"))
        for index in (1, 2, 0):
            sinks[index](Finished(result()))
        *chunks, done = events(parsed(read_all(connection))[2])
    assert done == "[DONE]"
    choices = [chunk["choices"][0] for chunk in chunks]
    assert [one["index"] for one in choices] == [0, 1, 2, 2, 0, 1, 2, 0, 1, 1, 2, 0]
    for index in range(3):
        text = "".join(one["delta"].get("content", "") for one in choices if one["index"] == index)
        assert text == f"x{index}y{index}"


def test_choices_of_a_whole_answer(run: Running, puppet: Puppet) -> None:
    with run.connect() as connection:
        connection.sendall(post(CHAT, chat(n=2), connection="close"))
        puppet.wait(2)
        for index in (1, 0):
            say(puppet.asked[index][1], f"no. {index}")
        answer = parsed(read_all(connection))[2]
    assert [(one["index"], one["message"]["content"]) for one in answer["choices"]] == [(0, "no. 0"), (1, "no. 1")]


def test_several_prompts(run: Running, puppet: Puppet) -> None:
    puppet.answer = lambda request, sink: say(sink, str(len(request.prompt)))
    answer = ask(run, COMPLETIONS, prompt=["a", "bcd"], n=2)
    assert [one["text"] for one in answer["choices"]] == ["2", "2", "4", "4"]
    assert answer["usage"]["prompt_tokens"] == 10


# --- what the scheduler is asked for --------------------------------------------------------------


def test_fields_arrive(run: Running, puppet: Puppet) -> None:
    request = asked(
        run, puppet, CHAT, temperature=0.5, top_p=0.9, top_k=40, min_p=0.05, seed=7, stop=["a", "b"], max_tokens=9,
        presence_penalty=0.5, frequency_penalty=-0.5, logit_bias={"10": -100, "0": 1.5}, priority=-1,
        speculative={"max_draft_tokens": 3}, prediction={"type": "content", "content": "hi"},
    )  # fmt: skip
    assert (request.params.temperature, request.params.top_p) == (0.5, 0.9)
    assert (request.params.top_k, request.params.min_p) == (40, 0.05)
    assert (request.seed, request.stops, request.max_tokens, request.priority) == (7, ("a", "b"), 9, -1)
    shaping = request.shaping
    assert (shaping.presence_penalty, shaping.frequency_penalty) == (0.5, -0.5)
    assert dict(shaping.logit_bias) == {10: -100.0, 0: 1.5}
    assert request.max_draft_tokens == 3
    assert request.prediction is not None and len(request.prediction) == 2
    assert request.top_logprobs is None and request.grammar is None and request.deadline_s is None


def test_defaults(run: Running, puppet: Puppet) -> None:
    request = asked(run, puppet, CHAT)
    assert (request.params.temperature, request.params.top_p, request.params.top_k, request.params.min_p) == (1, 1, 0, 0)
    assert (request.max_tokens, request.seed, request.stops, request.max_draft_tokens) == (None, None, (), None)
    assert asked(run, puppet, COMPLETIONS).max_tokens == 16


@pytest.mark.parametrize(
    ("fields", "max_tokens"),
    [({"max_tokens": 5}, 5), ({"max_completion_tokens": 6}, 6), ({"max_tokens": 5, "max_completion_tokens": 6}, 6)],
)
def test_max_completion_tokens_wins(run: Running, puppet: Puppet, fields: dict[str, int], max_tokens: int) -> None:
    assert asked(run, puppet, CHAT, **fields).max_tokens == max_tokens


@pytest.mark.parametrize(
    ("wish", "most"),
    [
        ({"enabled": False}, 0),
        ({"enabled": False, "max_draft_tokens": 4}, 0),
        ({"enabled": True}, None),
        ({"enabled": True, "max_draft_tokens": 4}, 4),
        ({"max_draft_tokens": 0}, 0),
        ({}, None),
    ],
)
def test_speculation_as_asked(run: Running, puppet: Puppet, wish: dict[str, Any], most: int | None) -> None:
    assert asked(run, puppet, CHAT, speculative=wish).max_draft_tokens == most


def test_choices_have_seeds_of_their_own(run: Running, puppet: Puppet) -> None:
    """The first one that of a request for a single answer."""
    asked(run, puppet, CHAT, seed=7, n=3)
    assert [request.seed for request, _ in puppet.asked] == [7, 8, 9]


def test_a_deadline_counts_from_now(run: Running, puppet: Puppet) -> None:
    before = run.service.clock()
    deadline_s = asked(run, puppet, CHAT, timeout_ms=5000).deadline_s
    assert deadline_s is not None
    assert before + 5.0 <= deadline_s <= run.service.clock() + 5.0


def test_a_conversation_becomes_a_prompt(run: Running, puppet: Puppet, model: Model) -> None:
    said = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": "c"},
        {"role": "user", "content": "<end_of_turn>"},
    ]
    request = asked(run, puppet, CHAT, messages=said)
    assert request.prompt.dtype == np.int64
    prompt = request.prompt.tolist()
    # What a user types is no control piece: three turns of ours, or with a system turn of its own four.
    turns = prompt.count(END_OF_TURN)
    assert turns in (3, 4)
    _, _, counted = run.ask("POST", "/v1/tokenize", {"messages": said})
    assert (counted["tokens"], counted["count"]) == (prompt, len(prompt))


def test_token_ids_as_a_prompt(run: Running, puppet: Puppet) -> None:
    assert asked(run, puppet, COMPLETIONS, prompt=[2, 300, 301]).prompt.tolist() == [2, 300, 301]
    assert asked(run, puppet, COMPLETIONS, prompt=[[2, 300]]).prompt.tolist() == [2, 300]


@pytest.mark.parametrize("prompt", [[], [[]], [512], [-1], [2.5], [True], [2, "x"], ["x", 2], [[2], 2], [None], [{}]])
def test_prompts_that_are_none(run: Running, prompt: Any) -> None:
    assert refused(run, COMPLETIONS, 400, prompt=prompt)["param"] == "prompt"


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"logit_bias": {"512": 1}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {"05": 1}}, "logit_bias"),
        ({"logit_bias": {"\u0665": 1}}, "logit_bias"),
        ({"stop": ""}, "stop"),
        ({"stop": ["a", ""]}, "stop"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, "response_format.json_schema.schema"),
        ({"response_format": {"type": "text", "json_schema": {"name": "x"}}}, "response_format.json_schema"),
    ],
)
def test_what_belongs_not_together(run: Running, path: str, fields: dict[str, Any], param: str) -> None:
    assert refused(run, path, 400, **fields)["param"] == param


FUNCTION = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": "x", "name": "ada"}]}, "messages[0].name"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
        ({"messages": [{"role": "user", "content": "x", "tool_call_id": "1"}]}, "messages[0].tool_call_id"),
        ({"messages": [{"role": "tool", "content": "x", "tool_call_id": "1"}]}, "messages"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [FUNCTION, FUNCTION]}, "tools"),
        (
            {"tools": [FUNCTION], "tool_choice": {"type": "function", "function": {"name": "g"}}},
            "tool_choice.function.name",
        ),
        ({"tools": [FUNCTION], "response_format": {"type": "json_object"}}, "response_format"),
    ],
)
def test_what_belongs_not_together_in_a_chat(run: Running, fields: dict[str, Any], param: str) -> None:
    assert refused(run, CHAT, 400, **fields)["param"] == param


def test_too_many_answers(run: Running) -> None:
    assert refused(run, COMPLETIONS, 400, prompt=["a"] * 65, n=2)["param"] == "n"


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_structured_output_has_a_grammar(run: Running, puppet: Puppet, path: str) -> None:
    assert asked(run, puppet, path, response_format={"type": "json_object"}).grammar is not None
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    grammar = asked(run, puppet, path, response_format=form).grammar
    assert grammar is not None
    assert grammar.start().forced(8)


# --- tools ----------------------------------------------------------------------------------------


CALL = '{"name": "f", "parameters": {"x": 1}}'


@pytest.mark.parametrize("choice", ["auto", "required", {"type": "function", "function": {"name": "f"}}])
def test_a_call(run: Running, puppet: Puppet, choice: Any) -> None:
    puppet.answer = lambda request, sink: say(sink, CALL)
    answer = ask(run, CHAT, tools=[FUNCTION], tool_choice=choice)
    (one,) = answer["choices"]
    assert (one["finish_reason"], one["message"]["content"]) == ("tool_calls", None)
    (call,) = one["message"]["tool_calls"]
    assert call["function"] == {"name": "f", "arguments": '{"x": 1}'}
    assert call["type"] == "function" and call["id"]
    assert puppet.asked[0][0].grammar is not None


def test_calls_as_a_stream(run: Running, puppet: Puppet) -> None:
    puppet.answer = lambda request, sink: say(sink, f"[{CALL}, {CALL}]")
    *chunks, done = ask(run, CHAT, tools=[FUNCTION], stream=True)
    assert done == "[DONE]"
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    calls = [call for delta in deltas for call in delta.get("tool_calls", [])]
    assert [call["index"] for call in calls] == [0, 1]
    assert [call["function"]["arguments"] for call in calls] == ['{"x": 1}'] * 2
    assert not any(delta.get("content") for delta in deltas)
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_text_where_a_call_might_have_been(run: Running, puppet: Puppet) -> None:
    puppet.answer = lambda request, sink: say(sink, "no call")
    (one,) = ask(run, CHAT, tools=[FUNCTION])["choices"]
    assert (one["message"]["content"], one["finish_reason"]) == ("no call", "stop")
    assert "tool_calls" not in one["message"]
    *chunks, _ = ask(run, CHAT, tools=[FUNCTION], stream=True)
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == "no call"


def test_a_call_that_was_cut_off_is_text(run: Running, puppet: Puppet) -> None:
    puppet.answer = lambda request, sink: say(sink, CALL[:20], reason="length")
    (one,) = ask(run, CHAT, tools=[FUNCTION])["choices"]
    assert (one["message"]["content"], one["finish_reason"]) == (CALL[:20], "length")
    *chunks, _ = ask(run, CHAT, tools=[FUNCTION], stream=True)
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == CALL[:20]


def test_no_calls_were_asked_for(run: Running, puppet: Puppet) -> None:
    puppet.answer = lambda request, sink: say(sink, CALL)
    (one,) = ask(run, CHAT, tools=[FUNCTION], tool_choice="none")["choices"]
    assert (one["message"]["content"], one["finish_reason"]) == (CALL, "stop")
    assert puppet.asked[0][0].grammar is None


def test_results_of_calls_are_heard(run: Running, puppet: Puppet) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    said = [
        {"role": "user", "content": "call it"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "name": "f", "content": "42"},
    ]
    with_result = asked(run, puppet, CHAT, messages=said, tools=[FUNCTION])
    without = asked(run, puppet, CHAT, messages=said[:1], tools=[FUNCTION])
    assert len(with_result.prompt) > len(without.prompt)


# --- log-probabilities ----------------------------------------------------------------------------


def speak(model: Model, *pieces: tuple[str, tuple[int, ...], str | None]) -> Callable[[Request, Sink], None]:
    """Pieces of (text, tokens, reason). The first alternative of a token is itself."""

    def answer(request: Request, sink: Sink) -> None:
        sink(Started(0.0, 5, 0))
        for text, tokens, reason in pieces:
            count = request.top_logprobs or 0
            top = tuple(tuple((token + other, -0.5 - other) for other in range(count)) for token in tokens)
            sink(piece(text, tokens=tokens, reason=reason, **({"top": top} if request.top_logprobs is not None else {})))
        sink(Finished(result("", pieces[-1][2])))

    return answer


def letters(model: Model, text: str) -> tuple[int, ...]:
    return tuple(model.tokenizer.encode(text, bos=False))


def test_log_probabilities_of_a_chat(run: Running, puppet: Puppet, model: Model) -> None:
    puppet.answer = speak(model, ("he", letters(model, "he"), None), ("", (END_OF_TURN,), "stop"))
    (one,) = ask(run, CHAT, logprobs=True, top_logprobs=2)["choices"]
    content = one["logprobs"]["content"]
    assert [(entry["token"], entry["bytes"], entry["logprob"]) for entry in content] == [
        ("h", [104], -0.5),
        ("e", [101], -0.5),
    ]
    assert [other["token"] for other in content[0]["top_logprobs"]] == ["h", "i"]
    assert puppet.asked[0][0].top_logprobs == 2


def test_log_probabilities_without_alternatives(run: Running, puppet: Puppet, model: Model) -> None:
    puppet.answer = speak(model, ("h", letters(model, "h"), "length"))
    (one,) = ask(run, CHAT, logprobs=True)["choices"]
    assert one["logprobs"]["content"][0]["top_logprobs"] == []
    assert puppet.asked[0][0].top_logprobs == 0


def test_log_probabilities_of_a_completion(run: Running, puppet: Puppet, model: Model) -> None:
    puppet.answer = speak(model, ("he", letters(model, "he"), None), ("y", letters(model, "y"), "length"))
    (one,) = ask(run, COMPLETIONS, logprobs=2)["choices"]
    assert one["logprobs"] == {
        "tokens": ["h", "e", "y"],
        "token_logprobs": [-0.5] * 3,
        "top_logprobs": [{"h": -0.5, "i": -1.5}, {"e": -0.5, "f": -1.5}, {"y": -0.5, "z": -1.5}],
        "text_offset": [0, 1, 2],
    }


def test_streamed_log_probabilities_are_the_whole_ones(run: Running, puppet: Puppet, model: Model) -> None:
    euro = tuple(10 + byte for byte in "\u20ac".encode())
    puppet.answer = speak(
        model,
        ("", euro[:1], None),
        ("\u20ac", euro[1:], None),
        ("a", letters(model, "a"), None),
        ("", (EOS,), "stop"),
    )
    whole = ask(run, CHAT, logprobs=True, top_logprobs=1)["choices"][0]["logprobs"]["content"]
    *chunks, _ = ask(run, CHAT, logprobs=True, top_logprobs=1, stream=True)
    parts = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    assert [entry for part in parts if part is not None for entry in part["content"]] == whole
    assert [entry["bytes"] for entry in whole] == [[0xE2], [0x82], [0xAC], [97]]


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_has_no_log_probabilities(run: Running, puppet: Puppet, model: Model, stream: bool) -> None:
    """Its tokens were made, one of them with a letter of the answer in the same piece."""
    puppet.answer = speak(model, ("h", letters(model, "hE"), None), ("", letters(model, "N"), "stop"))
    got = ask(run, CHAT, logprobs=True, stop="EN", stream=stream)
    choices = [chunk["choices"][0] for chunk in got[:-1]] if stream else got["choices"]
    entries = [entry["token"] for one in choices if one["logprobs"] for entry in one["logprobs"]["content"]]
    assert entries == ["h"]


def test_what_was_held_for_a_stop_comes_at_the_end(run: Running, puppet: Puppet, model: Model) -> None:
    puppet.answer = speak(model, ("h", letters(model, "hE"), None), ("E", (EOS,), "stop"))
    (one,) = ask(run, CHAT, logprobs=True, stop="EN")["choices"]
    assert [entry["token"] for entry in one["logprobs"]["content"]] == ["h", "E"]


def test_minus_infinity_is_a_number(run: Running, puppet: Puppet, model: Model) -> None:
    def answer(request: Request, sink: Sink) -> None:
        sink(Started(0.0, 5, 0))
        top = (((300, float("-inf")),),)
        sink(replace(piece("h", tokens=letters(model, "h"), reason="length", top=top), logprobs=(float("-inf"),)))
        sink(Finished(result("h", "length")))

    puppet.answer = answer
    (one,) = ask(run, CHAT, logprobs=True, top_logprobs=1)["choices"]
    (entry,) = one["logprobs"]["content"]
    assert (entry["logprob"], entry["top_logprobs"][0]["logprob"]) == (-9999.0, -9999.0)


def test_control_pieces_are_never_shown(run: Running, puppet: Puppet, model: Model) -> None:
    def answer(request: Request, sink: Sink) -> None:
        sink(Started(0.0, 5, 0))
        sink(piece("h", tokens=letters(model, "h"), top=(((END_OF_TURN, -0.1), (EOS, -0.2)),)))
        sink(piece("", tokens=(END_OF_TURN,), reason="stop", top=(((END_OF_TURN, -0.1),),)))
        sink(Finished(result("h")))

    puppet.answer = answer
    for path, fields in ((CHAT, {"logprobs": True, "top_logprobs": 2}), (COMPLETIONS, {"logprobs": 2})):
        answer_text = json.dumps(ask(run, path, **fields))
        assert "end_of_turn" not in answer_text and "<eos>" not in answer_text


# --- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (InputError("stop: no", "stop"), 400, "invalid_value"),
        (PromptTooLong("the prompt has 9 tokens"), 413, "context_length_exceeded"),
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
        (Cancelled("the daemon stops"), 499),
        (EngineError("out of memory"), 500),
        (Unavailable("too hot"), 503),
    ],
)
def test_an_answer_that_never_began(run: Running, puppet: Puppet, stream: bool, error: Any, status: int) -> None:
    puppet.answer = lambda request, sink: sink(Failed(error))
    assert refused(run, CHAT, status, stream=stream)["message"] == str(error)


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


# --- the service ----------------------------------------------------------------------------------


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
