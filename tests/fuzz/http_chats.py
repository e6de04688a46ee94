"""Odd chats and hostile schemas against a daemon: every answer conforms to the description, every text to its schema.
Knows no engine."""

from __future__ import annotations

import json
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parent.parent)]

import jsonschema  # noqa: E402
from described import Described  # noqa: E402 - the tests' helpers are no package
from http_daemon import attacked  # noqa: E402
from http_inputs import odd_chat  # noqa: E402
from random_schemas import PATTERNS  # noqa: E402
from server_runs import CHAT, Running, events, parsed, read_all, request  # noqa: E402

LONGEST_S = 600.0
STATUSES = frozenset({200, 400, 504})
"""Of these requests; 504: some ask for an answer within a millisecond."""


@dataclass
class Tally:
    statuses: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    """By their first words."""
    kept: int = 0
    """Texts that were complete, and held to a schema."""
    longest_s: float = 0.0


def try_chat(run: Running, described: Described, body: dict[str, Any], tally: Tally) -> None:
    """Raises ``AssertionError`` and ``jsonschema.ValidationError``."""
    data = json.dumps(body, ensure_ascii=False).encode("utf-8", "surrogatepass")
    begun_s = time.monotonic()
    with run.connect() as connection:
        connection.settimeout(LONGEST_S)
        connection.sendall(request("POST", CHAT, data, connection="close"))
        status, headers, answer = parsed(read_all(connection))
    tally.longest_s = max(tally.longest_s, time.monotonic() - begun_s)
    tally.statuses[str(status)] += 1
    described.check("POST", CHAT, status, headers, answer)
    assert status in STATUSES, (status, answer)
    if status != 200:
        tally.refusals[" ".join(answer["error"]["message"].split()[:6])[:60]] += 1
        return
    streams = headers["content-type"].startswith("text/event-stream")
    assert streams == bool(body.get("stream"))
    for text, calls, reason in _streamed(answer, described) if streams else _whole(answer):
        if reason in ("stop", "tool_calls"):
            tally.kept += _keeps(body, text, calls)


Said = tuple[str, list[tuple[str, str]], str | None]
"""Text, calls (name, arguments), why it ended."""


def _whole(answer: Any) -> Iterator[Said]:
    for choice in answer["choices"]:
        message = choice["message"]
        calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", [])]
        yield message["content"] or "", calls, choice["finish_reason"]


def _streamed(answer: str, described: Described) -> Iterator[Said]:
    *told, last = events(answer)
    if last != "[DONE]":
        described.check_part("Error", last)
        assert last["error"]["type"] in ("timeout_error", "invalid_request_error"), last
        told = []
    texts: dict[int, str] = {}
    calls: dict[int, list[tuple[str, str]]] = {}
    for event in told:
        described.check_part("ChatChunk", event)
        for choice in event["choices"]:
            index, delta = choice["index"], choice["delta"]
            texts[index] = texts.get(index, "") + delta.get("content", "")
            made = calls.setdefault(index, [])
            made += [(one["function"]["name"], one["function"]["arguments"]) for one in delta.get("tool_calls", [])]
            if choice["finish_reason"] is not None:
                yield texts[index], made, choice["finish_reason"]


def _judge(data: Any, schema: Any) -> int:
    """1, or 0 where the judge cannot read the schema's patterns, or might take for ever with them: it has Python's."""
    if not _patterns(schema) <= PATTERNS:
        return 0
    jsonschema.validate(data, schema)
    return 1


def _patterns(schema: Any) -> set[str]:
    found: set[str] = set()
    if isinstance(schema, list):
        found.update(*map(_patterns, schema))
    elif isinstance(schema, dict):
        found.update(*map(_patterns, schema.values()))
        found |= {schema["pattern"]} if isinstance(schema.get("pattern"), str) else set()
        found |= set(schema["patternProperties"]) if isinstance(schema.get("patternProperties"), dict) else set()
    return found


def _keeps(body: dict[str, Any], text: str, calls: list[tuple[str, str]]) -> int:
    """How many texts were held to their schemas. A stop string may cut a text anywhere."""
    tools = {tool["function"]["name"]: tool["function"].get("parameters") for tool in body.get("tools") or []}
    kept = sum(_judge(json.loads(arguments), tools[name] or {"type": "object"}) for name, arguments in calls)
    form = body.get("response_format")
    if not form or form["type"] == "text" or body.get("stop"):
        return kept
    found = json.loads(text)
    return _judge(found, {"type": "object"} if form["type"] == "json_object" else form["json_schema"]["schema"])


def chats(seconds: float, seed: int) -> Iterator[str]:
    """Lines of a report. Raises ``AssertionError`` with the seed of what failed."""
    end_s, tally, described = time.monotonic() + seconds, Tally(), Described()
    with attacked() as one:
        one.serves()
        before, count = one.taken(), 0
        while time.monotonic() < end_s:
            this = seed + count
            try:
                try_chat(one.run, described, odd_chat(random.Random(this)), tally)
            except Exception as problem:
                raise AssertionError(
                    f"seed {this}: {type(problem).__name__}: {problem}\n{one.said()[-2000:]}"
                ) from problem
            count += 1
            if count % 500 == 0:
                after = one.taken()
                yield f"{count} chats, {dict(tally.statuses)}, {tally.kept} held to a schema, {after.rss_mb:.0f} MB"
        one.serves()
        one.idle()
        after = one.taken()
        assert "Traceback" not in one.said(), one.said()[-4000:]
        yield (
            f"{count} chats from seed {seed}: {dict(tally.statuses)}; {tally.kept} texts held to a schema; longest "
            f"{tally.longest_s:.2f} s; memory {before.rss_mb:.0f} -> {after.rss_mb:.0f} MB, peak {after.peak_mb:.0f}; "
            f"files {before.files} -> {after.files}"
        )
        for words, times in tally.refusals.most_common(40):
            yield f"  {times:6} {words}"


if __name__ == "__main__":
    for line in chats(60.0 * float(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0):
        print(line, flush=True)
