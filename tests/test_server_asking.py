"""What a request asks the scheduler for, and which ones ask for nothing that makes sense."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from server_runs import (
    CHAT,
    COMPLETIONS,
    END_OF_TURN,
    Puppet,
    Running,
    ask,
    refused,
    running,
    say,
    tiny_model,
)

from edge_runtime.reuse import Owner
from edge_runtime.sampling import SamplingParams
from edge_runtime.scheduler.request import Request
from edge_runtime.server.service import Model


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


def asked(run: Running, puppet: Puppet, path: str, **fields: Any) -> Request:
    """What the scheduler is asked for, the first of it."""
    first = len(puppet.asked)
    puppet.answer = lambda request, sink: say(sink, "ok")
    ask(run, path, **fields)
    return puppet.asked[first][0]


def test_fields_arrive(run: Running, puppet: Puppet) -> None:
    request = asked(
        run, puppet, CHAT, temperature=0.5, top_p=0.9, top_k=40, min_p=0.05, seed=7, stop=["a", "b"], max_tokens=9,
        presence_penalty=0.5, frequency_penalty=-0.5, logit_bias={"10": -100, "0": 1.5}, priority=-1, repeat_limit=20,
        speculative={"max_draft_tokens": 3}, prediction={"type": "content", "content": "hi"}, cache_salt="mine",
    )  # fmt: skip
    assert (request.params.temperature, request.params.top_p) == (0.5, 0.9)
    assert (request.params.top_k, request.params.min_p) == (40, 0.05)
    assert (request.seed, request.stops, request.max_tokens, request.priority) == (7, ("a", "b"), 9, -1)
    shaping = request.shaping
    assert (shaping.presence_penalty, shaping.frequency_penalty) == (0.5, -0.5)
    assert dict(shaping.logit_bias) == {10: -100.0, 0: 1.5}
    assert (request.max_draft_tokens, request.repeat_limit) == (3, 20)
    assert request.prediction is not None and len(request.prediction) == 2
    assert request.owner == Owner(os.getuid(), "mine", private=True)
    assert request.top_logprobs is None and request.grammar is None and request.deadline_s is None


def test_defaults(run: Running, puppet: Puppet) -> None:
    request = asked(run, puppet, CHAT)
    assert request.params == SamplingParams()
    assert (request.max_tokens, request.seed, request.stops, request.max_draft_tokens) == (None, None, (), None)
    assert asked(run, puppet, COMPLETIONS).max_tokens == 16
    assert request.owner == Owner(os.getuid())


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


@pytest.mark.parametrize("acceptance", ["lossless", "exact", "sampled"])
def test_acceptance_by_name(run: Running, puppet: Puppet, acceptance: str) -> None:
    assert asked(run, puppet, CHAT, speculative={"acceptance": acceptance}).policy == acceptance
    assert asked(run, puppet, CHAT, speculative={}).policy == "lossless"


def test_a_daemon_is_lossless(run: Running) -> None:
    assert "threshold" in refused(run, CHAT, 400, speculative={"acceptance": "threshold"})["message"]


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
        ({"stop": ["a", ""]}, "stop[1]"),
        ({"stop": "x" * 1025}, "stop"),
        ({"logit_bias": {str(token): 1 for token in range(4097)}}, "logit_bias"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            "response_format.json_schema.schema",
        ),
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


def said(*texts: str) -> list[dict[str, str]]:
    return [{"role": ("user", "assistant")[index % 2], "content": text} for index, text in enumerate(texts)]


TOOL = {"type": "function", "function": {"name": "f", "description": "x y " * 512}}


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (COMPLETIONS, {"prompt": "x y " * 512}),
        (COMPLETIONS, {"prompt": ["x", "x y " * 512]}),
        (COMPLETIONS, {"prompt": [5] * 512}),
        (COMPLETIONS, {"prompt": [[5], [5] * 512]}),
        (CHAT, {"messages": said("x y " * 512)}),
        (CHAT, {"messages": said(*["x y " * 100] * 5)}),
        (CHAT, {"tools": [TOOL]}),
    ],
)
def test_a_prompt_longer_than_the_context(run: Running, puppet: Puppet, path: str, fields: dict[str, Any]) -> None:
    error = refused(run, path, 400, **fields)
    assert error["code"] == "context_length_exceeded"
    assert error["param"] == ("messages" if path == CHAT else "prompt")
    assert re.match(r"the prompt has \d+ tokens and the context 512", error["message"])
    assert puppet.asked == []


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (COMPLETIONS, {"prompt": "x y " * 100_000}),
        (COMPLETIONS, {"prompt": ["x", "x y " * 100_000]}),
        (CHAT, {"messages": said("x y " * 100_000)}),
        (CHAT, {"messages": said(*["x y " * 1000] * 101)}),
        ("/v1/tokenize", {"prompt": "x y " * 100_000}),
        ("/v1/tokenize", {"prompt": None, "messages": said("x y " * 100_000)}),
    ],
)
def test_what_is_surely_too_long_is_not_tokenised(
    run: Running, model: Model, monkeypatch: pytest.MonkeyPatch, path: str, fields: dict[str, Any]
) -> None:
    """Whoever sends it would have the processor for seconds."""
    monkeypatch.setattr(model.tokenizer, "_model", Bounded(model.tokenizer._model, 100_000))
    error = refused(run, path, 400, **fields)
    assert error["code"] == "context_length_exceeded"
    assert error["param"] == ("messages" if "messages" in fields else "prompt")
    least = re.match(r"the prompt has at least (\d+) tokens and the context 512", error["message"])
    assert least and 512 < int(least[1]) <= 400_100


def test_a_prediction_is_not_tokenised_beyond_the_context(
    run: Running, puppet: Puppet, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model.tokenizer, "_model", Bounded(model.tokenizer._model, 100_000))
    content = "x y " * 100_000
    prediction = asked(run, puppet, CHAT, prediction={"type": "content", "content": content}).prediction
    assert prediction is not None
    assert prediction.tolist() == model.tokenizer.encode(content[:2000], bos=False)[:512]


class Bounded:
    """A sentencepiece model that is given no long text."""

    def __init__(self, inner: Any, most: int) -> None:
        self._inner, self._most = inner, most

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def EncodeAsIds(self, text: str) -> Any:
        assert len(text) <= self._most, "it was tokenised"
        return self._inner.EncodeAsIds(text)


def test_too_many_prompts_are_not_tokenised(run: Running, model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model.tokenizer, "_model", Bounded(model.tokenizer._model, -1))
    assert refused(run, COMPLETIONS, 400, prompt=["a"] * 129)["param"] == "n"


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
