"""Prometheus metrics by vLLM's names. Knows no HTTP and no text; every app has a registry of its own.

Counts that the scheduler keeps are read when somebody asks; only what it does not know (latencies as a client sees
them, how answers ended) is counted here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ..scheduler.snapshot import Snapshot
from ..status import Status
from .answer import Answer
from .service import Service
from .status import status_of

PREFIX = "edge_runtime_"
_TTFT_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0)
_TPOT_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0)
_E2E_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0, 120.0, 300.0)
REASONS = ("stop", "length", "abort", "error")
STATES = ("loading", "ready", "draining", "failed")


class Metrics:
    def __init__(self, service: Service) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_Live(service))
        self._ended = Counter(
            f"{PREFIX}request_success", "Answers by how they ended.", ["finished_reason"], registry=self._registry
        )
        for reason in REASONS:
            self._ended.labels(reason)
        self._ttft = Histogram(
            f"{PREFIX}time_to_first_token_seconds",
            "From the request to its first token.",
            buckets=_TTFT_S,
            registry=self._registry,
        )
        self._tpot = Histogram(
            f"{PREFIX}time_per_output_token_seconds",
            "Per later token of an answer.",
            buckets=_TPOT_S,
            registry=self._registry,
        )
        self._e2e = Histogram(
            f"{PREFIX}e2e_request_latency_seconds",
            "From the request to the last token of an answer.",
            buckets=_E2E_S,
            registry=self._registry,
        )

    def answered(self, answer: Answer, *, left: bool) -> None:
        """However it ended."""
        reason = answer.result.finish_reason if answer.result is not None else None
        self._ended.labels(reason or ("abort" if left else "error")).inc()
        if answer.ttft_s is not None:
            self._ttft.observe(answer.ttft_s)
        if answer.tpot_s is not None:
            self._tpot.observe(answer.tpot_s)
        if reason is not None:
            self._e2e.observe(answer.e2e_s)

    def exposition(self) -> bytes:
        return generate_latest(self._registry)


class _Live(Collector):
    """What is read at the moment of asking."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def describe(self) -> Iterable[Metric]:
        # Empty, so that registering asks nothing of a service that is still loading.
        return ()

    def collect(self) -> Iterator[Metric]:
        scheduler = self._service.standing.scheduler
        snapshot = None if scheduler is None else scheduler.snapshot()
        status = status_of(self._service, snapshot)
        yield from _of_service(status)
        if snapshot is not None:
            yield from _of_snapshot(snapshot)
        yield from _of_board(status)


def _of_service(status: Status) -> Iterator[Metric]:
    state = GaugeMetricFamily(f"{PREFIX}state", "1 for the state that the daemon is in.", labels=["state"])
    for name in STATES:
        state.add_metric([name], float(status.state == name))
    yield state
    yield _gauge("uptime_seconds", "Since the daemon started.", status.uptime_s)
    yield _gauge("memory_resident_bytes", "Of this process.", status.memory.now_bytes)
    yield _gauge("memory_peak_bytes", "Of this process, the most so far.", status.memory.peak_bytes)
    yield _gauge("memory_anonymous_bytes", "Not backed by a file.", status.memory.anonymous_bytes)
    yield from _known("memory_budget_bytes", "What this process may take.", status.memory.budget_bytes)


def _of_snapshot(snapshot: Snapshot) -> Iterator[Metric]:
    requests, speed, drafting = snapshot.requests, snapshot.speed, snapshot.speculation
    yield _gauge("num_requests_running", "Answers that are being made.", requests.running)
    yield _gauge("num_requests_waiting", "Requests in the queue.", requests.waiting)
    yield _gauge("queue_limit", "Requests that may wait.", requests.queue_limit)
    yield _counter("requests_received", "Requests that were accepted or refused.", requests.received)
    yield _counter("requests_refused", "Requests that found no place.", requests.refused)
    yield _counter("requests_cancelled", "Answers whose client left.", requests.cancelled)
    yield _counter("requests_failed", "Answers that an error ended.", requests.failed)
    yield _counter("prompt_tokens", "Tokens of prompts, cached ones included.", speed.prompt_tokens)
    yield _counter("generation_tokens", "Tokens that were made.", speed.generated_tokens)
    yield _counter("prefix_cache_queries", "Tokens of prompts that were looked for.", speed.prompt_tokens)
    yield _counter("prefix_cache_hits", "Tokens of prompts that were in a cache.", speed.cached_prompt_tokens)
    yield _counter("spec_decode_num_drafts", "Steps that drafted.", drafting.drafts)
    yield _counter("spec_decode_num_draft_tokens", "Tokens that were drafted.", drafting.draft_tokens)
    yield _counter("spec_decode_num_accepted_tokens", "Drafted tokens that were kept.", drafting.accepted_tokens)
    by_position = CounterMetricFamily(
        f"{PREFIX}spec_decode_num_accepted_tokens_per_pos", "The same, by place in the draft.", labels=["position"]
    )
    for position, count in enumerate(snapshot.accepted_by_position):
        by_position.add_metric([str(position)], count)
    yield by_position
    yield _counter("decode_steps", "Steps behind the prefill.", snapshot.steps)
    yield _gauge("speculation_running", "1 while any of the last steps drafted.", drafting.running)
    yield _gauge("num_draft_tokens", "Mean K of the last steps.", drafting.num_draft_tokens)
    yield _gauge("tokens_per_second", "Committed in the last seconds.", speed.tokens_per_s)
    yield _gauge("kv_slots", "Slots of the arena.", len(snapshot.slots))
    yield _gauge("kv_slots_used", "Slots with an answer in them.", sum(slot.busy for slot in snapshot.slots))
    yield _gauge("kv_tokens", "Tokens in all slots.", sum(slot.tokens for slot in snapshot.slots))


def _of_board(status: Status) -> Iterator[Metric]:
    """Absent until it is known: a gauge of zero would be a claim."""
    board, budget = status.board, status.budget
    watts = None if board.power_mw is None else board.power_mw / 1000.0
    yield from _known("power_watts", "Of the board.", watts)
    yield from _known("temperature_celsius", "The hottest sensor.", board.temperature_c)
    clock_hz = None if board.gpu_clock_mhz is None else board.gpu_clock_mhz * 1e6
    yield from _known("gpu_clock_hertz", "Of the GPU.", clock_hz)
    yield from _known("joules_per_token", "Of the last tokens.", board.joules_per_token)
    if board.busy_s is not None:
        yield _counter("engine_busy_seconds", "In turns of answers, waits left out.", board.busy_s)
    if board.joules is not None:
        yield _counter("energy_joules", "That the board took while its power was read.", board.joules)
    allowed_w = None if budget.power_mw is None else budget.power_mw / 1000.0
    yield from _known("budget_power_watts", "That steps are paced to.", allowed_w)
    yield from _known("budget_num_draft_tokens", "Most of K that the governor allows.", budget.num_draft_tokens)
    yield from _known("pace_seconds", "Wait between steps.", budget.pace_s)
    yield from _known("budget_admit", "1 while requests are admitted.", budget.admit)
    if board.throttle_state is not None:
        state = GaugeMetricFamily(f"{PREFIX}throttle_state", "1 for the state it is in.", labels=["state"])
        state.add_metric([board.throttle_state], 1.0)
        yield state


def _gauge(name: str, meaning: str, value: float) -> Metric:
    return GaugeMetricFamily(PREFIX + name, meaning, value=float(value))


def _counter(name: str, meaning: str, value: float) -> Metric:
    return CounterMetricFamily(PREFIX + name, meaning, value=float(value))


def _known(name: str, meaning: str, value: float | None) -> Iterator[Metric]:
    if value is not None:
        yield _gauge(name, meaning, value)
