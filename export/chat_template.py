"""The chat template of a bundle: the checkpoint's own, or its family's. Knows no tokenizer."""

from __future__ import annotations

from typing import Any

from edge_runtime.errors import CheckpointError

from .checkpoint import Checkpoint
from .safetensors_file import read_json, read_text

_MOST_CHARACTERS = 256 << 10
"""The daemon runs no longer one."""
_TURNS = """\
{%- for message in messages %}
{%- set role = 'model' if message['role'] == 'assistant' else message['role'] %}
{%- if message['role'] != ('user' if loop.index0 % 2 == 0 else 'assistant') %}
{{- raise_exception('user and assistant must take turns') }}
{%- endif %}
{{- '<start_of_turn>' + role + '\\n' }}
{{- (first_user_prefix if loop.first else '') + (message['content'] | trim) + '<end_of_turn>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<start_of_turn>model\\n' }}
{%- endif %}
"""

_GEMMA2 = (
    """\
{{- bos_token }}
{%- if messages and messages[0]['role'] == 'system' %}
{{- raise_exception('this family has no system role') }}
{%- endif %}
{%- set first_user_prefix = '' %}
"""
    + _TURNS
)

_GEMMA3 = (
    """\
{{- bos_token }}
{%- set first_user_prefix = '' %}
{%- if messages and messages[0]['role'] == 'system' %}
{%- set first_user_prefix = messages[0]['content'] + '\\n\\n' %}
{%- set messages = messages[1:] %}
{%- endif %}
"""
    + _TURNS
)

# As Google documents the turns of Gemma 4. What its checkpoints' own templates write besides (media, calls, thinking,
# and on the larger sizes an empty channel of thought ahead of an answer) differs by size and revision, and is theirs:
# a checkpoint of this family comes with its template.
_GEMMA4 = """\
{{- bos_token }}
{%- for message in messages %}
{%- set role = 'model' if message['role'] == 'assistant' else message['role'] %}
{%- if role == 'system' and not loop.first %}
{{- raise_exception('a system message comes first') }}
{%- endif %}
{{- '<|turn>' + role + '\\n' + (message['content'] | trim) + '<turn|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|turn>model\\n' }}
{%- endif %}
"""

FAMILY_TEMPLATES = {"gemma2": _GEMMA2, "gemma3": _GEMMA3, "gemma4": _GEMMA4}
"""For a checkpoint that brings none."""


def template_for(checkpoint: Checkpoint) -> str:
    """Jinja source, rendered with trim_blocks and lstrip_blocks as transformers does.

    Raises ``CheckpointError`` for a checkpoint's own template that does not parse, or that no daemon runs.
    """
    own = _own_template(checkpoint)
    if own is None:
        return FAMILY_TEMPLATES[checkpoint.config.family]
    if len(own) > _MOST_CHARACTERS:
        raise CheckpointError(
            f"{checkpoint.path}: its chat template has {len(own)} characters, over {_MOST_CHARACTERS}"
        )
    import jinja2

    try:
        jinja2.Environment(extensions=["jinja2.ext.loopcontrols"]).parse(own)
    except (jinja2.TemplateError, RecursionError) as problem:
        words = "it nests too deeply" if isinstance(problem, RecursionError) else problem
        raise CheckpointError(f"{checkpoint.path}: its chat template does not parse: {words}") from None
    return own


def _own_template(checkpoint: Checkpoint) -> str | None:
    if checkpoint.kind == "gguf":
        return _default(checkpoint.metadata.get("tokenizer.chat_template"))
    path = checkpoint.path / "chat_template.jinja"
    if path.is_file():
        return read_text(path)
    # The second is where multimodal Gemma 3 keeps it, with its image processor's.
    for name in ("tokenizer_config.json", "chat_template.json"):
        path = checkpoint.path / name
        given = _default(read_json(path).get("chat_template")) if path.is_file() else None
        if given is not None:
            return given
    return None


def _default(given: Any) -> str | None:
    """The one template, or of several named ones the default."""
    if isinstance(given, list):
        named = (item for item in given if isinstance(item, dict) and item.get("name") == "default")
        given = next(named, {}).get("template")
    return given if isinstance(given, str) and given.strip() else None
