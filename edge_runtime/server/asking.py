"""A typed request to what the scheduler is asked for. Knows no HTTP and no format of answers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..engines.protocol import Ids
from ..errors import InputError, PromptTooLong
from ..sampling import SamplingParams
from ..scheduler.request import Request
from ..session import Policy
from ..shaping import ShapingParams
from ..text.grammar import Grammar
from .problems import Refusal
from .schema import MOST_CHOICES, Common, ContentPart, ResponseFormat
from .service import Model

_TOKEN_ID = re.compile(r"0|[1-9][0-9]{0,9}")


@dataclass(frozen=True, slots=True)
class Asker:
    """Who asks, and when."""

    client: int
    now_s: float
    private: bool = False
    """Whether its prompts are kept apart whatever it says."""
    may_lead: bool = False
    """Whether it may ask to be served ahead of others."""


def check_model(name: str | None, model: Model) -> None:
    """Raises ``Refusal`` for a model that is not served."""
    if name is not None and name != model.name:
        raise Refusal(
            404, "model_not_found", f"model {name[:128]!r} does not exist; this daemon serves {model.name!r}", "model"
        )


def fitting(ids: Ids, model: Model, param: str) -> Ids:
    """Raises ``PromptTooLong``."""
    if len(ids) >= model.context:
        raise PromptTooLong.of(str(len(ids)), model.context, param)
    return ids


def check_choices(prompts: int, n: int) -> None:
    """Raises ``InputError``."""
    if n * prompts > MOST_CHOICES:
        raise InputError(f"{prompts} prompts times n = {n} answers are more than {MOST_CHOICES}", "n")


def requests_of(
    asked: Common,
    prompts: Sequence[Ids],
    model: Model,
    asker: Asker,
    *,
    max_tokens: int | None,
    top_logprobs: int | None,
    grammar: Grammar | None,
) -> tuple[Request, ...]:
    """One for each choice: ``n`` for the first prompt, ``n`` for the second. Raises ``InputError``, ``Refusal``."""
    n = asked.n or 1
    check_choices(len(prompts), n)
    whole = Request(
        prompt=prompts[0],
        params=SamplingParams(
            temperature=1.0 if asked.temperature is None else asked.temperature,
            top_k=max(0, asked.top_k or 0),
            top_p=1.0 if asked.top_p is None else asked.top_p,
            min_p=asked.min_p or 0.0,
        ),
        max_tokens=max_tokens,
        stops=_stops(asked),
        seed=asked.seed,
        shaping=_shaping(asked, model),
        grammar=grammar,
        top_logprobs=top_logprobs,
        prediction=_prediction(asked, model),
        max_draft_tokens=_max_draft_tokens(asked),
        policy=_policy(asked),
        repeat_limit=asked.repeat_limit,
        client=asker.client,
        salt=asked.cache_salt or "",
        private=asker.private or asked.cache_salt is not None,
        priority=_priority(asked, asker),
        deadline_s=None if asked.timeout_ms is None else asker.now_s + asked.timeout_ms / 1000.0,
    )
    return tuple(
        replace(whole, prompt=prompt, seed=None if asked.seed is None else asked.seed + choice)
        for prompt in prompts
        for choice in range(n)
    )


def text_of(content: str | list[ContentPart] | None) -> str:
    """Parts are one text."""
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part.text for part in content)


def grammar_of(form: ResponseFormat | None, model: Model) -> Grammar | None:
    """Raises ``InputError`` for a schema that cannot be compiled."""
    if form is None or form.type == "text":
        if form is not None and form.json_schema is not None:
            raise InputError("response_format.json_schema needs type json_schema", "response_format.json_schema")
        return None
    if form.type == "json_object":
        return model.grammars.json_object()
    if form.json_schema is None or form.json_schema.schema is None:
        place = "response_format.json_schema" + ("" if form.json_schema is None else ".schema")
        raise InputError(f"{place} is required for type json_schema", place)
    return model.grammars.json_schema(form.json_schema.schema)


def _stops(asked: Common) -> tuple[str, ...]:
    return (asked.stop,) if isinstance(asked.stop, str) else tuple(asked.stop or ())


def _shaping(asked: Common, model: Model) -> ShapingParams:
    bias: dict[int, float] = {}
    for key, value in (asked.logit_bias or {}).items():
        if not _TOKEN_ID.fullmatch(key) or int(key) >= model.vocab_size:
            raise InputError(f"logit_bias: {key[:32]!r} is no token id from 0 to {model.vocab_size - 1}", "logit_bias")
        bias[int(key)] = value
    return ShapingParams(asked.presence_penalty or 0.0, asked.frequency_penalty or 0.0, bias)


def _priority(asked: Common, asker: Asker) -> int:
    """Raises ``Refusal``: whoever could be ahead of everybody would take everybody's share."""
    wish = asked.priority or 0
    if wish < 0 and not asker.may_lead:
        who = "TCP has no peer credentials" if asker.client < 0 else f"uid {asker.client} is none of these"
        text = "priority below 0 is for root, the daemon's own user and limits.priority_users of its configuration"
        raise Refusal(403, "not_allowed", f"{text}: {who}", "priority")
    return wish


def _prediction(asked: Common, model: Model) -> Ids | None:
    if asked.prediction is None:
        return None
    # A guess: what is behind a context's end is of no use to it.
    text = text_of(asked.prediction.content)[: model.context * model.tokenizer.longest_piece()]
    ids = model.tokenizer.encode(text, bos=False)
    return np.asarray(ids[: model.context], np.int64) if ids else None


def _policy(asked: Common) -> Policy:
    return "lossless" if asked.speculative is None else asked.speculative.acceptance or "lossless"


def _max_draft_tokens(asked: Common) -> int | None:
    wish = asked.speculative
    if wish is None:
        return None
    return 0 if wish.enabled is False else wish.max_draft_tokens
