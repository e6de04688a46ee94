"""The chat template of a bundle: the checkpoint's own, or its family's. Knows no tokenizer."""

from __future__ import annotations

import json
from typing import Any

from .checkpoint import Checkpoint

_TURNS = """\
{%- for message in messages %}
{%- set role = 'model' if message['role'] == 'assistant' else message['role'] %}
{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
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


def template_for(checkpoint: Checkpoint) -> str:
    """Jinja source, rendered with trim_blocks and lstrip_blocks as transformers does."""
    own = _own_template(checkpoint)
    if own:
        return own
    return _GEMMA2 if checkpoint.config.family == "gemma2" else _GEMMA3


def _own_template(checkpoint: Checkpoint) -> str | None:
    if checkpoint.kind == "gguf":
        given: Any = checkpoint.metadata.get("tokenizer.chat_template")
        return given if isinstance(given, str) else None
    path = checkpoint.path / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    path = checkpoint.path / "tokenizer_config.json"
    if not path.is_file():
        return None
    try:
        given = json.loads(path.read_text(encoding="utf-8")).get("chat_template")
    except (ValueError, AttributeError):
        return None
    return given if isinstance(given, str) else None
