"""Earlier texts, configurations and ledgers against what they are by definition."""

from __future__ import annotations

import tempfile
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import yaml
from any_examples import examples
from hypothesis import given
from hypothesis import strategies as st

from edge_runtime.budget import StepPower
from edge_runtime.config import BudgetConfig, Config, EngineConfig, LimitsConfig, ServerConfig, read_config
from edge_runtime.cost import CostTable, step_seconds, under_power
from edge_runtime.drafters.protocol import DraftContext
from edge_runtime.drafters.suffix import SuffixCache
from edge_runtime.ledger import Ledger, affordable_k
from edge_runtime.reuse import Owner
from edge_runtime.sampling import SamplingParams

GREEDY = SamplingParams(temperature=0.0)
SHORTEST, LONGEST, WAYS = 3, 32, 8
"""Of an agreement that is looked for, of one that counts, and places that are remembered of the same tokens."""

turns = st.lists(
    st.tuples(
        st.integers(0, 2),  # slot
        st.integers(0, 1),  # client
        st.integers(0, 40),  # tokens of the slot's text that are kept
        st.lists(st.integers(0, 3), min_size=1, max_size=14),
    ),
    min_size=1,
    max_size=14,
)


def agreement(left: list[int], right: list[int]) -> int:
    count = 0
    while count < min(len(left), len(right), LONGEST) and left[-1 - count] == right[-1 - count]:
        count += 1
    return count


@examples(40)
@given(turns, st.integers(1, 6))
def test_a_suffix_cache_finds_what_a_search_of_all_earlier_texts_finds(
    history: list[tuple[int, int, int, list[int]]], k: int
) -> None:
    cache = SuffixCache(1 << 14, secret=b"\x00")
    seen: dict[int, list[list[int]]] = {0: [], 1: []}
    texts: dict[int, list[int]] = {}
    for slot, client, keep, more in history:
        text = texts.get(slot, [])[:keep] + more
        texts[slot] = text
        seen[client].append(text)
        context = DraftContext(np.array(text, np.int64), slot, GREEDY, None, lambda: 0.5, owner=Owner(client))
        proposal = cache.propose(context, k)
        found = proposal.tokens.tolist()
        places = [(agreement(one[:end], text), one, end) for one in seen[client] for end in range(SHORTEST, len(one))]
        places = [place for place in places if place[0] >= SHORTEST]
        assert bool(found) == bool(places), "found where something is there, and only there"
        if not found:
            continue
        assert len(found) <= k
        assert any(one[end : end + len(found)] == found for _, one, end in places)
        longest = max(place[0] for place in places)
        assert SHORTEST <= proposal.evidence <= longest
        if len({(length, tuple(one[:end])) for length, one, end in places}) <= WAYS:
            assert proposal.evidence == longest


names = st.text("abc/._- é", min_size=1, max_size=12)
configs = st.builds(
    Config,
    bundle=names,
    engine=st.builds(
        EngineConfig,
        context=st.none() | st.integers(2, 1 << 24),
        sessions=st.integers(1, 256),
        threads=st.integers(0, 1024),
        deterministic=st.booleans(),
        head=st.sampled_from(["screened", "full"]),
        device=st.sampled_from(["cpu", "cuda"]),
        drafter=st.sampled_from(["auto", "none", "lookup", "suffix", "draft", "mtp", "self", "heads"]),
        k=st.sampled_from(["auto", "prompt-length", "confidence"]) | st.integers(0, 63),
        suffix_tokens=st.just(0) | st.integers(512, 1 << 26),
        suffix_shared=st.booleans(),
        verify_hashes=st.booleans(),
        cpu_fallback=st.booleans(),
    ),
    server=st.builds(
        ServerConfig,
        socket=names,
        mode=st.integers(0, 0o777).map("{:04o}".format),
        tcp=st.none() | st.integers(0, 65535).map("127.0.0.1:{}".format) | st.integers(0, 65535).map("[::1]:{}".format),
        max_body_bytes=st.integers(1024, 1 << 30),
        read_timeout_s=st.floats(0.001, 1e6),
        write_timeout_s=st.integers(1, 1000),
    ),
    limits=st.builds(
        LimitsConfig,
        queue=st.integers(1, 65536),
        queue_per_client=st.integers(1, 65536),
        running_per_client=st.none() | st.integers(1, 256),
        max_tokens=st.none() | st.integers(1, 1 << 24),
        deadline_s=st.none() | st.floats(0.001, 1e6),
    ),
    drain_s=st.floats(0.0, 1e6),
    budget=st.builds(
        BudgetConfig,
        memory_gb=st.none() | st.floats(0.1, 1024.0),
        reserve_gb=st.floats(0.0, 1024.0),
        power_mw=st.none() | st.integers(1000, 1_000_000),
        temperature_c=st.none() | st.floats(30.0, 105.0),
        stale_s=st.floats(60.5, 600.0),
        blind_draft_tokens=st.integers(0, 63),
        blind_duty=st.floats(0.01, 1.0),
        telemetry=st.sampled_from(["auto", "jtop", "sysfs"]),
        interval_s=st.floats(0.05, 60.0),
    ),
)


@examples(40)
@given(configs)
def test_a_configuration_that_is_written_down_is_read_as_it_was(config: Config) -> None:
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "serve.yaml"
        file.write_text(yaml.safe_dump(asdict(config), allow_unicode=True), encoding="utf-8")
        found = read_config(file)
        # Paths become absolute: the same places.
        for wanted, read in ((config.bundle, found.bundle), (config.server.socket, found.server.socket)):
            assert Path(read).is_absolute()
            assert (Path(name) / wanted).resolve() == Path(read).resolve()
        found = replace(found, bundle=config.bundle, server=replace(found.server, socket=config.server.socket))
        assert found == config


@st.composite
def tables(draw: st.DrawFn) -> CostTable:
    seconds = st.floats(1e-4, 0.5)
    table = CostTable(
        body_s=tuple(sorted(draw(st.lists(seconds, min_size=1, max_size=8)))),
        head_s=tuple(sorted(draw(st.lists(seconds, min_size=1, max_size=8)))),
        draft_s=draw(st.floats(0.0, 0.1)),
        draft_fixed_s=draw(st.floats(0.0, 0.1)),
        overhead_s=draw(st.floats(0.0, 0.01)),
        min_rows=draw(st.integers(1, 2)),
        branches=draw(st.integers(0, 2)),
    )
    if draw(st.booleans()):
        return table
    idle_w = draw(st.floats(0.0, 10.0))
    power = StepPower(idle_w + draw(st.floats(0.1, 30.0)), idle_w, idle_w + draw(st.floats(0.0, 30.0)), 0.01, 0.02)
    return under_power(table, power)


@examples(80)
@given(tables(), st.lists(st.tuples(st.integers(0, 8), st.floats(0.0, 1.0)), max_size=120), st.integers(1, 8))
def test_no_table_no_power_and_no_luck_makes_a_text_lose_more_than_is_stated(
    table: CostTable, steps: list[tuple[int, float]], k_max: int
) -> None:
    """One plain step and 1% of plain decoding, whatever is kept of each draft and whatever it costs beforehand."""
    ledger, spent_s, plain_s = Ledger(), 0.0, 0.0
    for kept, share in steps:
        upfront_s = share * ledger.credit_s(table.plain_s)
        k = affordable_k(ledger, table, k_max, max(0.0, upfront_s))
        assert 0 <= k <= k_max
        step_s = step_seconds(k, table) + (max(0.0, upfront_s) if k else 0.0)
        committed = min(kept, k) + 1
        spent_s, plain_s = spent_s + step_s, plain_s + committed * table.plain_s
        ledger = ledger.after(committed, step_s, table.plain_s)
        assert spent_s <= plain_s + table.plain_s + 0.01 * plain_s + 1e-9 * (1.0 + spent_s)
        assert ledger.credit_s(table.plain_s) >= -1e-9 * (1.0 + spent_s)
