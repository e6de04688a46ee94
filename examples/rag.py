"""Questions about local text files, answered from what stands in them, with the daemon's own figures beside it.

    pip install '.[examples]'                 # an index and an embedding model, 23 MB; no model hub at run time
    export EDGE_RUNTIME_SOCKET=/run/edge-runtime/api.sock
    python examples/rag.py docs "What happens when memory runs out?" "Who may use the socket?"

What it shows:
- Retrieval by meaning and by words; what both found is ranked again: by its places in them, then for what is new.
- Retrieval overlaps generation: the instructions are prefilled while the index is made, and the next question's
  passages are looked up while this one's answer streams.
- Prefix reuse: passages that the last prompt had keep their place at its start, so the daemon has them in its cache.
- Prompt lookup: an answer that quotes its passages is drafted from them, at no cost.
It speaks plain completions, so base models do. A small one quotes badly: look at where it points, not only at what it
says.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

try:
    from passages import Index, Passage, load_embedder
except ModuleNotFoundError as missing:
    print(f"error: no module {missing.name}: pip install '.[examples]'", file=sys.stderr)
    sys.exit(2)

from edge_runtime.client import Client, Completion, EdgeRuntimeError, Status

PREFIX = """\
Each question is answered from the passages above it, in one sentence and in their words.

Passages:
The pump starts when the pressure falls below 2 bar. It stops at 3 bar.
The filter is changed twice a year.

Question: When does the pump start?
Answer: The pump starts when the pressure falls below 2 bar.

Passages:
"""
MOST_TOKENS = 64


@dataclass(frozen=True)
class Found:
    passages: list[Passage]
    seconds: float
    done_s: float
    """When, on the monotonic clock."""


def open_index(place: str, folder: Path) -> Index:
    start_s = time.monotonic()
    index = Index(place, load_embedder())
    new, total = index.update(folder)
    if total == 0:
        raise LookupError(f"{folder} has no text to answer from: no *.md, *.txt or *.rst with words in it")
    print(f"index: {total} passages, {new} of them new, {time.monotonic() - start_s:.2f} s")
    return index


def look_up(index: Index, question: str, most: int) -> Found:
    start_s = time.monotonic()
    found = index.search(question, most)
    done_s = time.monotonic()
    return Found(found, done_s - start_s, done_s)


def in_order(found: Sequence[Passage], before: Sequence[Passage]) -> list[Passage]:
    """Those of the last prompt first and as they stood there: an equal start is an equal cache."""
    kept = [one for one in before if one in found]
    return kept + [one for one in found if one not in kept]


def prompt_of(passages: Sequence[Passage], question: str) -> str:
    texts = "\n".join(" ".join(one.text.split()) for one in passages)
    return f"{PREFIX}{texts}\n\nQuestion: {question}\nAnswer:"


def stream(client: Client, prompt: str) -> Completion:
    with client.stream_complete(prompt, max_tokens=MOST_TOKENS, temperature=0.0, stop="\n") as chunks:
        for chunk in chunks:
            print(chunk.text, end="", flush=True)
        return chunks.completion()


def told(answer: Completion, found: Found, hidden: bool) -> str:
    """One line of the daemon's figures."""
    usage, timings = answer.usage, answer.timings
    assert usage is not None and timings is not None
    sources = (timings.draft_by_source or {}).items()
    drafts = ", ".join(f"{source} {one['accepted']} of {one['drafted']}" for source, one in sources)
    first = f"{usage.completion_tokens} tokens, the first after {timings.ttft_ms or 0.0:.0f} ms"
    return " | ".join(
        (
            f"retrieval {found.seconds * 1e3:.0f} ms, {'beside the last answer' if hidden else 'waited for'}",
            f"prompt {usage.prompt_tokens} tokens, {usage.cached_tokens} of them remembered",
            first if timings.tpot_ms is None else f"{first}, then {timings.tpot_ms:.0f} ms each",
            f"drafts accepted: {drafts or 'none was made'}",
        )
    )


def summary(status: Status) -> str:
    speed, drafting = status.speed, status.speculation
    rate = "-" if drafting.acceptance_rate is None else f"{drafting.acceptance_rate:.2f}"
    sources = ", ".join(f"{one.source} {one.accepted_tokens} of {one.draft_tokens}" for one in drafting.sources)
    return (
        f"the daemon since its start: {speed.cached_prompt_tokens} of {speed.prompt_tokens} prompt tokens remembered, "
        f"acceptance rate {rate} ({sources or 'no drafts'})"
    )


def converse(client: Client, folder: Path, questions: Sequence[str], place: str, most: int) -> None:
    before: list[Passage] = []
    ended_s = 0.0
    # One thread: the index is used by one at a time.
    with ThreadPoolExecutor(1) as pool:
        opening = pool.submit(open_index, place, folder)
        client.complete(PREFIX, max_tokens=1, temperature=0.0)  # into the cache, meanwhile
        index = opening.result()
        coming: Future[Found] | None = pool.submit(look_up, index, questions[0], most)
        for number, question in enumerate(questions):
            assert coming is not None
            found = coming.result()
            last = number + 1 == len(questions)
            coming = None if last else pool.submit(look_up, index, questions[number + 1], most)
            before = in_order(found.passages, before)
            print(f"\nQ: {question}\nA:", end="", flush=True)
            answer = stream(client, prompt_of(before, question))
            print("\n   from " + ", ".join(f"{one.path}:{one.line}" for one in found.passages))
            print("   " + told(answer, found, found.done_s < ended_s))
            ended_s = time.monotonic()
    print("\n" + summary(client.status()))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Answers questions from the text files of a folder.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("questions", nargs="+")
    parser.add_argument("--index", default=":memory:", help="a file that keeps the index for the next time")
    parser.add_argument("--passages", type=int, default=3, help="in each prompt")
    given = parser.parse_args(arguments)
    if not given.folder.is_dir():
        parser.error(f"{given.folder} is no folder")
    if not all(question.strip() for question in given.questions):
        parser.error("a question is empty")
    if given.passages < 1:
        parser.error("--passages is 1 or more")
    try:
        with Client() as client:
            client.health()  # before an index is made for nobody
            converse(client, given.folder, given.questions, given.index, given.passages)
    except (EdgeRuntimeError, LookupError) as problem:
        print(f"error: {problem}", file=sys.stderr)
        return problem.exit_code if isinstance(problem, EdgeRuntimeError) else 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
