"""From a request to the generation that answers it. Knows neither queue nor thread."""

from __future__ import annotations

from dataclasses import replace

from ..errors import InputError
from ..generation import Generation
from ..session import Session
from ..text.stream import TextStream
from .request import Request
from .served import Served


def check(served: Served, request: Request, max_tokens: int | None) -> None:
    """Whatever the model would refuse, before anything has begun. Raises ``InputError``, ``PromptTooLong``."""
    if not -2 <= request.priority <= 2:
        raise InputError(f"priority must be in [-2, 2], not {request.priority}", "priority")
    TextStream(served.piece_bytes, request.stops)
    # A grammar was compiled, and so checked, by whoever made it.
    _session(served, replace(request, grammar=None), max_tokens, 0, 0)


def generation(served: Served, request: Request, max_tokens: int | None, slot: int, cached: int) -> Generation:
    """``cached`` tokens of the prompt are in the slot."""
    session = _session(served, request, max_tokens, slot, cached)
    return Generation(served.decoder, session, TextStream(served.piece_bytes, request.stops))


def _session(served: Served, request: Request, max_tokens: int | None, slot: int, cached: int) -> Session:
    return Session(
        served.decoder.target.info,
        request.prompt,
        request.params,
        max_tokens=max_tokens,
        eos_ids=served.eos_ids,
        seed=request.seed,
        policy=request.policy,
        slot=slot,
        kv_len=cached,
        shaping=request.shaping,
        grammar=request.grammar,
        top_logprobs=request.top_logprobs,
        prediction=request.prediction,
        max_draft_tokens=request.max_draft_tokens,
        repeat_limit=request.repeat_limit,
        owner=request.owner,
    )
