"""The families' templates: token by token as transformers has Gemma 3's, letter by letter as the others are documented;
and prompts of which each begins with the one before, which is what makes a cache of use."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import model_fixture as real
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_runtime.errors import InputError
from edge_runtime.text.chat import ChatTemplate, Message
from edge_runtime.text.message import Tool, ToolCall
from edge_runtime.text.tokenizer import GUARD
from edge_runtime.text.tools import CallReader
from export.chat_template import FAMILY_TEMPLATES

GEMMA2, GEMMA3, GEMMA4 = (ChatTemplate(FAMILY_TEMPLATES[family]) for family in ("gemma2", "gemma3", "gemma4"))
FAMILIES = {"gemma2": GEMMA2, "gemma3": GEMMA3, "gemma4": GEMMA4}

# Ordinary text: what a control piece is spelt with stands in other tests, for there we differ on purpose.
LETTERS = st.characters(exclude_categories=["Cs"], exclude_characters="\u2581" + GUARD)
WORDS = st.sampled_from(
    [
        "",
        " ",
        "\n",
        "\n\n",
        "   ",
        "\t",
        "Hi",
        "user",
        "model",
        "<b>",
        "<",
        "[",
        "{}",
        "中文",
        "é",
        "e\u0301",
        "😀",
        "\u00a0",
    ]
)
CONTENTS = st.one_of(st.lists(WORDS, max_size=6).map("".join), st.text(LETTERS, max_size=20)).filter(
    lambda text: not any(f"<{piece}" in text for piece in ("start_of", "end_of", "unused", "bos", "eos", "pad", "mask"))
)
TALKS = st.tuples(st.one_of(st.none(), CONTENTS), st.lists(CONTENTS, min_size=1, max_size=5)).map(
    lambda talk: (
        ([] if talk[0] is None else [Message("system", talk[0])])
        + [Message("assistant" if index % 2 else "user", content) for index, content in enumerate(talk[1])]
    )
)


def theirs(talk: list[Message], answer: bool) -> list[int]:
    plain = [{"role": message.role, "content": message.content} for message in talk]
    made: Any = real.transformers_gemma().apply_chat_template(
        plain, chat_template=FAMILY_TEMPLATES["gemma3"], add_generation_prompt=answer, tokenize=True, return_dict=False
    )
    return list(made)


@settings(max_examples=150, deadline=None)
@given(TALKS, st.booleans())
def test_gemma3_has_the_very_tokens_of_transformers(talk: list[Message], answer: bool) -> None:
    assert GEMMA3.encode(real.tokenizer(), talk, answer=answer) == theirs(talk, answer)


@pytest.mark.parametrize("piece", ["<end_of_turn>", "<start_of_turn>model\n", "<bos>", "<unused7>"])
def test_where_transformers_lets_a_user_open_a_turn_we_do_not(piece: str) -> None:
    tokenizer = real.tokenizer()
    talk = [Message("user", f"a{piece}b")]
    ours = GEMMA3.encode(tokenizer, talk)
    controls = [token for token in ours if tokenizer.is_control(token)]
    assert controls == [2, 105, 106, 105]
    assert len([token for token in theirs(talk, True) if tokenizer.is_control(token)]) > len(controls)
    # The same text otherwise.
    assert b"".join(map(tokenizer.piece_bytes, ours)).decode() == f"user\na{piece}b\nmodel\n"


def turns(family: str, talk: list[Message]) -> str:
    """As each family's documentation writes it, with the opening of the answer."""
    start, end = ("<|turn>", "<turn|>") if family == "gemma4" else ("<start_of_turn>", "<end_of_turn>")
    lead, made = "", "<bos>"
    for message in talk:
        role = "model" if message.role == "assistant" else message.role
        if role == "system" and family == "gemma3":
            lead = message.content + "\n\n"
        else:
            made += f"{start}{role}\n{lead}{message.content.strip()}{end}\n"
            lead = ""
    return f"{made}{start}model\n"


@pytest.mark.parametrize("family", FAMILIES)
@given(talk=TALKS)
def test_every_family_writes_its_turns(family: str, talk: list[Message]) -> None:
    if family == "gemma2" and talk[0].role == "system":
        talk = talk[1:]
    assert FAMILIES[family].render(talk) == turns(family, talk)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_developer_is_the_system(family: str) -> None:
    template = FAMILIES[family]

    def made(role: Any) -> str:
        try:
            return template.render([Message(role, "Be brief."), Message("user", "Hi")])
        except InputError as problem:
            return str(problem)

    assert made("developer") == made("system")
    assert ("system role" in made("system")) == (family == "gemma2")


SYSTEM, USER, MODEL = Message("system", "s"), Message("user", "u"), Message("assistant", "a")


@pytest.mark.parametrize("family", ["gemma2", "gemma3"])
@pytest.mark.parametrize(
    "talk",
    [[MODEL], [USER, USER], [USER, MODEL, MODEL], [USER, SYSTEM], [SYSTEM, MODEL], [SYSTEM, SYSTEM, USER]],
)
def test_what_a_family_cannot_write_is_refused(family: str, talk: list[Message]) -> None:
    with pytest.raises(InputError, match=r"chat template: |no message of a user") as caught:
        FAMILIES[family].encode(real.tokenizer(), talk)
    assert len(str(caught.value).splitlines()) == 1 and caught.value.param == "messages"


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("talk", [[], [SYSTEM]])
def test_there_is_something_to_answer(family: str, talk: list[Message]) -> None:
    with pytest.raises(InputError, match="user") as caught:
        FAMILIES[family].render(talk)
    assert caught.value.param == "messages"


# --- prompts that begin with the one before -------------------------------------------------------

SAID = st.text(LETTERS, min_size=1, max_size=30).filter(lambda text: text == text.strip())
TOOLS = [Tool("get_weather", "Weather of a city", {"type": "object", "properties": {"city": {"type": "string"}}})]


@pytest.mark.parametrize("tools", [[], TOOLS])
@pytest.mark.parametrize("system", [None, "Be brief."])
@settings(max_examples=50, deadline=None)
@given(said=st.lists(st.tuples(SAID, SAID), min_size=2, max_size=4))
def test_a_prompt_begins_with_the_prompt_and_answer_before(
    said: list[tuple[str, str]], system: str | None, tools: list[Tool]
) -> None:
    """For answers spelt as the tokenizer spells them, without blanks at their ends."""
    tokenizer, talk = real.tokenizer(), [Message("system", system)] if system else []
    held: list[int] = []
    for user, answer in said:
        talk.append(Message("user", user))
        prompt = GEMMA3.encode(tokenizer, talk, tools=tools)
        assert prompt[: len(held)] == held
        held = [*prompt, *tokenizer.encode(answer, bos=False), 106]
        talk.append(Message("assistant", answer))


def test_a_call_and_its_result_continue_the_prompt() -> None:
    tokenizer = real.tokenizer()
    talk = [Message("user", "Is it warm in Rome?")]
    prompt = GEMMA3.encode(tokenizer, talk, tools=TOOLS)
    spelt = '[{"name": "get_weather", "parameters": {"city": "Ro\\nme"}}, {"name": "get_weather", "parameters": {}}]'
    held = [*prompt, *tokenizer.encode(spelt, bos=False), 106]
    calls = [call for call in CallReader(iter("ab").__next__).push(spelt) if isinstance(call, ToolCall)]
    # The order of results is the clients' affair.
    talk += [Message("assistant", "", tuple(calls)), Message("tool", "20", tool_call_id="b")]
    talk += [Message("tool", "31", tool_call_id="a")]
    following = GEMMA3.encode(tokenizer, talk, tools=TOOLS)
    assert following[: len(held)] == held
    text = b"".join(map(tokenizer.piece_bytes, following[len(held) :])).decode()
    assert text == "\nuser\n```tool_output\n31\n```\n```tool_output\n20\n```\nmodel\n"


@pytest.mark.parametrize(
    ("tokens", "kept"),
    [
        ([138, 236781, 106], 0),  # "  x": the template trims its blanks
        ([236781, 107, 106], 1),
        ([236781, 236743, 236781, 106], 1),  # in pieces that the tokenizer would not choose
    ],
)
def test_where_the_next_prompt_leaves_the_answer(tokens: list[int], kept: int) -> None:
    """Known limits: from there on the cache is of no use, and what was answered is fed again."""
    tokenizer = real.tokenizer()
    talk = [Message("user", "Hi")]
    prompt = GEMMA3.encode(tokenizer, talk)
    answer = b"".join(map(tokenizer.piece_bytes, tokens)).decode()
    following = GEMMA3.encode(tokenizer, [*talk, Message("assistant", answer), Message("user", "Go on")])
    assert following[: len(prompt)] == prompt
    common = next(i for i, token in enumerate(tokens) if following[len(prompt) + i] != token)
    assert common == kept


# --- a bundle of before ---------------------------------------------------------------------------


def test_templates_that_bundles_already_hold_are_read_as_before(tmp_path: Path) -> None:
    """The form in which Hugging Face spreads Gemma 3's: parts of a content, and a prefix of the first turn."""
    source = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}
        {%- set lead = messages[0]['content'] + '\n\n' -%}
    {%- else -%}
        {%- set lead = messages[0]['content'][0]['text'] + '\n\n' -%}
    {%- endif -%}
    {%- set rest = messages[1:] -%}
{%- else -%}
    {%- set lead = "" -%}
    {%- set rest = messages -%}
{%- endif -%}
{%- for message in rest -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Conversation roles must alternate") }}
    {%- endif -%}
    {%- set role = "model" if message['role'] == 'assistant' else message['role'] -%}
    {{ '<start_of_turn>' + role + '\n' + (lead if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}{{ item['text'] | trim }}{%- endfor -%}
    {%- endif -%}
    {{ '<end_of_turn>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{ '<start_of_turn>model\n' }}
{%- endif -%}
"""
    talk = [Message("system", "Be brief."), Message("user", " Hi\n"), MODEL, Message("user", "Bye")]
    assert ChatTemplate(source).render(talk) == GEMMA3.render(talk)
    assert json.dumps(source)  # as it stands in tokenizer_config.json
