"""Fakes for tests, the users' own included. Knows no numerics of a real model, and needs no file and no device.

``FakeEngine`` is a language model whose next logits are a hash of the tokens in its cache. It keeps the positional
contract of ``engines.protocol`` to the letter: what a caller forgot to feed, fed twice or left behind a rejection
changes the logits, so that a decoder's mistake shows in its text. The engines of drafters that live on their target
(``live``) keep theirs: a wrong row, a wrong place or an entry that is missing shows in what they draft.
"""

from __future__ import annotations

from .drafts import ScriptedDraft, decode
from .engine import CallKind, FakeCall, FakeEngine, ManualClock
from .faults import DraftFault, EngineFault, FaultyDrafter, FaultyEngine, FaultySource
from .grammar import FakeGrammar, FakeGrammarState, Rule
from .live import FakeAssistant, FakeHeads, FakeMultiToken, FakeSelfDraft
from .model import FakeModel

__all__ = [
    "CallKind", "DraftFault", "EngineFault", "FakeAssistant", "FakeCall", "FakeEngine", "FakeGrammar",
    "FakeGrammarState", "FakeHeads", "FakeModel", "FakeMultiToken", "FakeSelfDraft", "FaultyDrafter", "FaultyEngine",
    "FaultySource", "ManualClock", "Rule", "ScriptedDraft", "decode",
]  # fmt: skip
