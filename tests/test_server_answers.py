"""What both endpoints answer, over a real socket, with a puppet for a scheduler: every event is the test's own."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from server_runs import (
    CHAT,
    COMPLETIONS,
    END_OF_TURN,
    EOS,
    Puppet,
    Running,
    ask,
    chat,
    events,
    parsed,
    piece,
    post,
    read_all,
    result,
    running,
    say,
    tiny_model,
)

from edge_runtime.scheduler.request import Finished, Request, Sink, Started
from edge_runtime.server.service import Model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return tiny_model(tmp_path_factory.mktemp("model"), capacity=1024)


@pytest.fixture
def puppet() -> Puppet:
    return Puppet()


@pytest.fixture
def run(model: Model, puppet: Puppet, tmp_path: Path) -> Iterator[Running]:
    with running(model, puppet, tmp_path) as found:
        yield found


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
    times = {"ttft_ms", "tpot_ms", "queued_ms"}
    assert set(answer["timings"]) == times | {"draft_n", "draft_n_accepted", "draft_by_source", "notes"}
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


# --- tools ----------------------------------------------------------------------------------------------------


FUNCTION = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}


def asked(run: Running, puppet: Puppet, path: str, **fields: Any) -> Request:
    """What the scheduler is asked for, the first of it."""
    first = len(puppet.asked)
    puppet.answer = lambda request, sink: say(sink, "ok")
    ask(run, path, **fields)
    return puppet.asked[first][0]


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
            sink(piece(text, tokens=tokens, reason=reason, top=None if request.top_logprobs is None else top))
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
