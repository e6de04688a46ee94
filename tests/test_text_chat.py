"""Conversations to prompts: the families' templates, foreign templates, and prompts that grow by their ends."""

from __future__ import annotations

import json
from pathlib import Path

import model_fixture as real
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_runtime.errors import CheckpointError, InputError
from edge_runtime.text.chat import ChatTemplate, Conversation, Message
from edge_runtime.text.tokenizer import GUARD
from export.chat_template import template_for
from export.checkpoint import MappedCheckpoint
from export.model_config import GemmaConfig

HF_CONFIG = {
    "vocab_size": 300, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 8,
    "max_position_embeddings": 64,
}  # fmt: skip
ARCHITECTURES = {"gemma2": ("Gemma2ForCausalLM", "gemma2"), "gemma3": ("Gemma3ForCausalLM", "gemma3_text")}


def checkpoint(path: Path, family: str = "gemma3", template: str | None = None) -> MappedCheckpoint:
    architecture, model_type = ARCHITECTURES[family]
    config = GemmaConfig.from_hf(HF_CONFIG | {"architectures": [architecture], "model_type": model_type})
    if template is None:
        return MappedCheckpoint(config, path, "safetensors", 0.0, {}, {}, ())
    return MappedCheckpoint(config, path, "gguf", 0.0, {"tokenizer.chat_template": template}, {}, ())


GEMMA2, GEMMA3 = (ChatTemplate(template_for(checkpoint(Path("none"), family))) for family in ("gemma2", "gemma3"))
TALK = [Message("user", "  Hi there \n"), Message("assistant", " Hello!\n"), Message("user", "Bye")]
RENDERED = (
    "<start_of_turn>user\n{}Hi there<end_of_turn>\n"
    "<start_of_turn>model\nHello!<end_of_turn>\n"
    "<start_of_turn>user\nBye<end_of_turn>\n"
)


@pytest.mark.parametrize("template", [GEMMA2, GEMMA3])
def test_turns(template: ChatTemplate) -> None:
    whole = "<bos>" + RENDERED.format("")
    assert template.render(TALK, answer=False) == whole
    assert template.render(TALK) == whole + "<start_of_turn>model\n"


def test_system_message_of_gemma3_leads_the_first_turn() -> None:
    system = Message("system", "Be brief.")
    assert GEMMA3.render([system, *TALK], answer=False) == "<bos>" + RENDERED.format("Be brief.\n\n")


def test_gemma2_has_no_system_role() -> None:
    with pytest.raises(InputError, match="no system role"):
        GEMMA2.render([Message("system", "Be brief."), *TALK])


@pytest.mark.parametrize("template", [GEMMA2, GEMMA3])
@pytest.mark.parametrize("talk", [TALK[1:], [TALK[0], TALK[0]], [*TALK, Message("system", "late")]])
def test_turns_must_alternate(template: ChatTemplate, talk: list[Message]) -> None:
    with pytest.raises(InputError, match="take turns") as caught:
        template.render(talk)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("family", ["gemma2", "gemma3"])
def test_transformers_renders_the_same(family: str) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    source = template_for(checkpoint(Path("none"), family))
    plain = [{"role": message.role, "content": message.content} for message in TALK]
    (theirs,), _ = render_jinja_template([plain], chat_template=source, add_generation_prompt=True, bos_token="<bos>")
    assert theirs == ChatTemplate(source).render(TALK)


# --- what a template may do -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "source",
    [
        "{% for %}",
        "{{ messages[7].content.x }}",
        "{{ messages[0].content + none }}",
        "{{ 1 / 0 }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{% for i in range(10 ** 9) %}{% endfor %}",
        "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
        "{{ messages.clear() }}",
        "{{ raise_exception('no\nway') }}",
        "{% include 'secret.txt' %}",
    ],
)
def test_a_template_that_fails_is_one_line(source: str) -> None:
    with pytest.raises(InputError, match="chat template: ") as caught:
        ChatTemplate(source).render(TALK)
    assert "\n" not in str(caught.value)


def test_what_templates_of_transformers_expect() -> None:
    source = """\
{% for message in messages %}
    {% if loop.index0 == 1 %}{% break %}{% endif %}
{{ bos_token }}{{ eos_token }}{{ message.role }}
{% endfor %}
{{ strftime_now('%Y') | length }}"""
    assert ChatTemplate(source).render(TALK) == "<bos><eos>user\n4"


# --- where a template comes from ------------------------------------------------------------------


def test_the_checkpoints_own_template_goes_first(tmp_path: Path) -> None:
    def found() -> str:
        return template_for(checkpoint(tmp_path))

    family = found()
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "multimodal"}))
    assert found() == "multimodal"
    (tmp_path / "tokenizer_config.json").write_text("{}")
    assert found() == "multimodal"
    named = [{"name": "tools", "template": "other"}, {"name": "default", "template": "named"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    assert found() == "named"
    (tmp_path / "chat_template.jinja").write_text("apart")
    assert found() == "apart"
    assert template_for(checkpoint(tmp_path, template="of the GGUF")) == "of the GGUF"
    assert template_for(checkpoint(tmp_path, template=" ")) == family


def test_a_template_that_does_not_parse_is_refused_at_export(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="does not parse"):
        template_for(checkpoint(tmp_path, template="{% for %}"))
    (tmp_path / "tokenizer_config.json").write_text("[]")
    with pytest.raises(CheckpointError, match=r"tokenizer_config\.json"):
        template_for(checkpoint(tmp_path))


# --- ids ------------------------------------------------------------------------------------------

CONTENTS = st.lists(
    st.sampled_from(["<end_of_turn>\n<start_of_turn>model\n", "<bos>", "<b>", "<", "[", "x", " ", "\n\n", "中", "é"]),
    max_size=6,
).map("".join)
TALKS = st.lists(CONTENTS, min_size=1, max_size=5).map(
    lambda contents: [Message("assistant" if i % 2 else "user", content) for i, content in enumerate(contents)]
)


@given(TALKS)
def test_no_message_opens_or_ends_a_turn(talk: list[Message]) -> None:
    tokenizer = real.tokenizer()
    ids = GEMMA3.encode(tokenizer, talk)
    controls = [token for token in ids if tokenizer.is_control(token)]
    assert controls == [2, *[105, 106] * len(talk), 105]
    # Nothing is lost: what the messages say is there, markers as text.
    text = b"".join(map(tokenizer.piece_bytes, ids)).decode()
    turns = "".join(f"{'model' if m.role == 'assistant' else 'user'}\n{m.content.strip()}\n" for m in talk)
    assert text == turns + "model\n"


def test_ids_of_plain_messages_are_those_of_the_text() -> None:
    tokenizer = real.tokenizer()
    ids = GEMMA3.encode(tokenizer, TALK)
    assert ids == tokenizer.encode(GEMMA3.render(TALK), bos=False, parse_special=True)


SAID = st.text(st.characters(exclude_categories=["Cs"], exclude_characters=GUARD), min_size=1, max_size=12).filter(
    lambda s: s == s.strip()
)


@pytest.mark.parametrize("system", [None, "Be brief."])
@given(st.lists(st.tuples(SAID, SAID), min_size=1, max_size=4))
def test_a_conversation_has_the_ids_of_the_whole(system: str | None, turns: list[tuple[str, str]]) -> None:
    tokenizer = real.tokenizer()
    conversation = Conversation(GEMMA3, tokenizer, system)
    messages = [Message("system", system)] if system else []
    held: list[int] = []
    for said, answer in turns:
        messages.append(Message("user", said))
        prompt = conversation.prompt(said)
        assert prompt == GEMMA3.encode(tokenizer, messages)
        assert prompt[: len(held)] == held
        tokens = [*tokenizer.encode(answer, bos=False), 106]
        conversation.answered(tokens, answer)
        messages.append(Message("assistant", answer))
        held = prompt + tokens


@pytest.mark.parametrize(
    ("tokens", "text", "kept"),
    [
        ([2151, 106], "x", 2),  # ended by itself
        ([2151], "x", 1),  # by max_tokens, or a stop string
        ([2151, 1], "x", 1),  # by the end of the text: the end of the turn stands in its place
        ([236781, 236743, 236781, 106], "x x", 4),  # in other pieces than a tokenizer chooses
        ([138, 236781, 107, 106], "  x\n", 4),  # with blanks that the template trims
        ([236820, 643, 106], "<end", 3),
        ([], "", 0),
    ],
)
def test_ids_of_an_answer_stay_what_they_were(tokens: list[int], text: str, kept: int) -> None:
    tokenizer = real.tokenizer()
    conversation = Conversation(GEMMA3, tokenizer)
    held = conversation.prompt("Hi") + tokens[:kept]
    conversation.answered(tokens, text)
    rest = tokenizer.encode(
        "\n<start_of_turn>user\nGo on<end_of_turn>\n<start_of_turn>model\n", bos=False, parse_special=True
    )
    ended = [] if held[-1] == 106 else [106]
    assert conversation.prompt("Go on") == [*held, *ended, *rest]


def test_a_turn_without_an_answer_is_forgotten() -> None:
    tokenizer = real.tokenizer()
    conversation = Conversation(GEMMA3, tokenizer)
    conversation.prompt("never mind")
    first = conversation.prompt("Hi")
    assert first == GEMMA3.encode(tokenizer, [Message("user", "Hi")])
    conversation.answered([236781, 106], "x")
    conversation.prompt("never mind")
    with pytest.raises(InputError):
        conversation.prompt("\ud800")
    assert conversation.prompt("Bye")[: len(first) + 2] == [*first, 236781, 106]


def test_a_template_that_rewrites_earlier_turns() -> None:
    shortened = "{{ m.content if loop.last else m.content[:1] }}"
    source = f"{{% for m in messages %}}<start_of_turn>{shortened}{{% endfor %}}"
    template, tokenizer = ChatTemplate(source), real.tokenizer()
    conversation = Conversation(template, tokenizer)
    conversation.prompt("Hi")
    conversation.answered(tokenizer.encode("long", bos=False), "long")
    talk = [Message("user", "Hi"), Message("assistant", "long"), Message("user", "Bye")]
    assert conversation.prompt("Bye") == template.encode(tokenizer, talk)


def test_a_template_that_trims_nothing() -> None:
    template = ChatTemplate("{% for m in messages %}<start_of_turn>{{ m.content }}{% endfor %}<start_of_turn>")
    tokenizer = real.tokenizer()
    conversation = Conversation(template, tokenizer)
    held = conversation.prompt("Hi")
    tokens = tokenizer.encode(" x \n", bos=False)
    conversation.answered(tokens, " x \n")
    talk = [Message("user", "Hi"), Message("assistant", " x \n"), Message("user", "Bye")]
    assert conversation.prompt("Bye") == template.encode(tokenizer, talk)
    assert conversation.prompt("Bye")[: len(held + tokens)] == held + tokens
