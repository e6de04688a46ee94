"""A form that fills as somebody talks: each line is what speech recognition heard, each turn has a latency budget.

    export EDGE_RUNTIME_SOCKET=/run/edge-runtime/api.sock
    printf '%s\\n' "A table for four on Friday, please." "At seven, for Ada." | python examples/form.py

What it shows:
- Structure (`response_format`): every turn's answer is the whole form as JSON, null where nothing was said. Braces and
  keys are forced by the schema, and what is forced is a free draft.
- A budget that is kept: `timeout_ms` has the daemon end a turn that would be late (between two steps), `max_tokens`
  bounds it, the client waits no longer in any case, and the form stays as it was. The question back to the speaker is
  code's, so it never waits for the model.
- Doubt: the schema says what an answer looks like, not whether it is true. A small base model makes things up, so a
  value counts only if words of it were said; the rest is told and left out.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edge_runtime.client import Client, Completion, EdgeRuntimeError

GRACE_S = 0.1
"""That the daemon is given to say itself that a turn is late."""
CORRECTION = re.compile(r"(no|sorry|actually|make it)\b", re.IGNORECASE)
NUMBERS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]


def number_said(value: Any, words: set[str]) -> bool:
    """Of 4, or of 19:30 by its hour: in digits, or as a word."""
    number = int(str(value).split(":")[0])
    forms = {str(number), str(number % 12 or 12), str(value), NUMBERS[(number - 1) % 12]}
    return bool(forms & words)


def words_said(value: Any, words: set[str]) -> bool:
    return {word.lower() for word in str(value).split()} <= words


@dataclass(frozen=True)
class Slot:
    name: str
    question: str
    schema: Mapping[str, Any]
    said: Callable[[Any, set[str]], bool]
    """Whether a value goes back to these words."""


SLOTS = (
    Slot("people", "For how many?", {"type": "integer", "minimum": 1, "maximum": 12}, number_said),
    Slot("day", "On which day?", {"enum": DAYS}, words_said),
    Slot("time", "At what time?", {"type": "string", "pattern": "^(1[0-9]|2[0-3]):[03]0$"}, number_said),
    # A pattern of bounded length: an answer can never be longer than its tokens allow.
    Slot("name", "In whose name?", {"type": "string", "pattern": "^[A-Z][a-z]{1,11}$"}, words_said),
)
SCHEMA = {
    "type": "object",
    "properties": {slot.name: {"anyOf": [slot.schema, {"type": "null"}]} for slot in SLOTS},
    "required": [slot.name for slot in SLOTS],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "table", "schema": SCHEMA}}
# The same for every turn, so the daemon computes it once.
PREFIX = """\
Said: Hello, we would like to eat on Sunday.
Form: {"people": null, "day": "Sunday", "time": null, "name": null}
Said: It is for Grace and it is three of us.
Form: {"people": 3, "day": null, "time": null, "name": "Grace"}
Said: At eight.
Form: {"people": null, "day": null, "time": "20:00", "name": null}
Said: Two people on Monday at half past six, my name is Alan.
Form: {"people": 2, "day": "Monday", "time": "18:30", "name": "Alan"}
"""


def heard(client: Client, said: str, budget_ms: int, most_tokens: int) -> Completion:
    """Raises ``EdgeRuntimeError``: 504 where the budget was too small, 429 and 503 where the daemon has no time."""
    return client.complete(
        f"{PREFIX}Said: {said}\nForm:",
        max_tokens=most_tokens,
        temperature=0.0,
        response_format=FORMAT,
        timeout_ms=budget_ms,
    )


def believed(answer: Completion, said: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """(what was said, what was made up). Both empty where the answer was cut at its most tokens."""
    if answer.finish_reason == "length":
        return {}, {}
    words = set(re.findall(r"[\w:]+", said.lower()))
    values = {name: value for name, value in json.loads(answer.text).items() if value is not None}
    true = {slot.name for slot in SLOTS if slot.name in values and slot.said(values[slot.name], words)}
    return {name: values[name] for name in true}, {name: values[name] for name in values.keys() - true}


def told(answer: Completion) -> str:
    usage, timings = answer.usage, answer.timings
    assert usage is not None and timings is not None
    forced = (timings.draft_by_source or {}).get("grammar", {}).get("accepted", 0)
    return (
        f"{usage.completion_tokens} tokens, {forced} of them forced, the first after {timings.ttft_ms or 0.0:.0f} ms; "
        f"{usage.cached_tokens} of {usage.prompt_tokens} prompt tokens remembered"
    )


def turn(client: Client, form: dict[str, Any], said: str, budget_ms: int, most_tokens: int) -> tuple[float, bool]:
    """Milliseconds that it took, and whether it was in time."""
    start_s = time.monotonic()
    try:
        answer = heard(client, said, budget_ms, most_tokens)
    except EdgeRuntimeError as problem:
        if problem.status not in (429, 503, 504) and problem.type != "timeout":
            raise
        took_ms = (time.monotonic() - start_s) * 1e3
        print(f"  given up after {took_ms:.0f} of {budget_ms} ms: {problem}")
        return took_ms, False
    took_ms = (time.monotonic() - start_s) * 1e3
    values, made_up = believed(answer, said)
    # What stands is changed by a correction alone: "at seven" is no seven people.
    form.update({name: value for name, value in values.items() if name not in form or CORRECTION.match(said)})
    print(f"  {took_ms:.0f} of {budget_ms} ms; {told(answer)}")
    if made_up:
        print(f"  left out, since nobody said it: {json.dumps(made_up)}")
    return took_ms, True


def converse(client: Client, lines: Iterable[str], budget_ms: int, most_tokens: int) -> dict[str, Any]:
    """The form as far as it was filled."""
    form: dict[str, Any] = {}
    took, late = [], 0
    for line in lines:
        if not (said := line.strip()):
            continue
        print(f"> {said}")
        took_ms, in_time = turn(client, form, said, budget_ms, most_tokens)
        took.append(took_ms)
        late += not in_time
        missing = [slot for slot in SLOTS if slot.name not in form]
        print(f"  {json.dumps(form)} {missing[0].question if missing else 'Thank you.'}", flush=True)
        if not missing:
            break
    print(f"{len(took)} turns, the longest {max(took, default=0.0):.0f} of {budget_ms} ms, {late} given up")
    return form


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Fills a form from what is said, a line a turn, on stdin.")
    parser.add_argument("--budget-ms", type=int, default=2000, help="of a turn, from its request to its answer")
    parser.add_argument("--max-tokens", type=int, default=96, help="of a turn")
    given = parser.parse_args(arguments)
    if given.budget_ms < 1 or given.max_tokens < 1:
        parser.error("--budget-ms and --max-tokens are 1 or more")
    try:
        with Client() as client:
            client.health()  # is there one?
            # Ahead of the first turn, which then finds the examples in the cache and the grammar compiled.
            client.complete(PREFIX, max_tokens=1, temperature=0.0, response_format=FORMAT)
        with Client(patience_s=0.0, timeout_s=given.budget_ms / 1e3 + GRACE_S) as client:
            converse(client, sys.stdin, given.budget_ms, given.max_tokens)
    except EdgeRuntimeError as problem:
        print(f"error: {problem}", file=sys.stderr)
        return problem.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
