"""What the hardware does by itself, seen in clocks, cooling devices and counters."""

from __future__ import annotations

import pytest

from edge_runtime.telemetry.sample import CoolingDevice, GpuReading, Sample, Throttling
from edge_runtime.throttling import ThrottleWatch, watched


def _sample(
    clock: float | None = 1000.0, most: float | None = 1000.0, load: float | None = 1.0, events: int = 0,
    cooling: tuple[CoolingDevice, ...] = (),
) -> Sample:  # fmt: skip
    return Sample(0.0, "test", gpu=GpuReading(clock, most, load), throttling=Throttling((("oc3", events),), cooling))


def _watched(watch: ThrottleWatch, sample: Sample, now_s: float, duty: float = 1.0, k: float = 4.0) -> ThrottleWatch:
    return watched(watch, sample, duty, k, now_s)


def test_a_clock_far_below_its_mode_counts_once_it_lasts() -> None:
    watch = _watched(ThrottleWatch(), _sample(600.0), 0.0)
    assert not watch.throttled(0.0)
    watch = _watched(watch, _sample(600.0), 2.5)
    assert watch.throttled(2.5)
    assert watch.sign == "the GPU runs at 600 of 1000 MHz"
    watch = _watched(watch, _sample(1000.0), 3.0)
    assert watch.throttled(11.0)  # hysteresis
    assert not watch.throttled(13.0)


@pytest.mark.parametrize(
    "sample",
    [_sample(600.0, load=0.3), _sample(950.0), _sample(None), _sample(600.0, most=None), _sample(600.0, 600.0)],
)
def test_what_is_no_throttling(sample: Sample) -> None:
    watch = ThrottleWatch()
    for second in range(10):
        watch = _watched(watch, sample, float(second), duty=0.3)
    assert not watch.throttled(10.0)


@pytest.mark.parametrize(("name", "counts"), [("devfreq-17000000.gpu", True), ("cpu-throttle-alert", True),
                                              ("pwm-fan", False), ("hot-surface-alert", False)])  # fmt: skip
def test_an_active_cooling_device_counts_unless_it_is_a_fan(name: str, counts: bool) -> None:
    watch = _watched(ThrottleWatch(), _sample(cooling=(CoolingDevice(name, 2, 6),)), 0.0)
    assert watch.throttled(1.0) is counts


def test_over_current_events_cut_drafts_and_time_brings_them_back() -> None:
    watch = _watched(ThrottleWatch(), _sample(events=7), 0.0)
    assert watch.most_drafts is None  # what was counted before is nobody's fault
    watch = _watched(watch, _sample(events=9), 1.0, k=3.9)
    assert (watch.most_drafts, watch.sign) == (3, "over-current events: oc3 +2")
    assert watch.throttled(2.0)
    # The same drafts may be counted late: not twice for one mistake.
    assert _watched(watch, _sample(events=10), 2.0, k=3.9).most_drafts == 3
    shorter = _watched(watch, _sample(events=10), 10.0, k=3.0)
    assert shorter.most_drafts == 2
    assert shorter.hold_s > watch.hold_s
    calm = _watched(shorter, _sample(events=10), 10.0 + shorter.hold_s, k=2.0)
    assert calm.most_drafts == 3


def test_where_plain_steps_trip_the_alarm_too_drafts_are_let_be() -> None:
    watch = _watched(ThrottleWatch(), _sample(events=0), 0.0)
    cuts = []
    for half_second in range(1, 120):
        k = 4.0 if watch.most_drafts is None else float(watch.most_drafts)
        watch = _watched(watch, _sample(events=half_second), 0.5 * half_second, k=k)
        cuts.append(watch.most_drafts)
    assert 0 in cuts
    assert cuts[-1] is None
    assert watch.throttled(60.0)


def test_k_0_cannot_be_cut_and_a_cut_ends() -> None:
    watch = _watched(ThrottleWatch(), _sample(events=0), 0.0)
    watch = _watched(watch, _sample(events=1), 1.0, k=0.0)
    assert watch.most_drafts == 0
    for minute in range(1, 60):
        watch = _watched(watch, _sample(events=1), 60.0 * minute, k=0.0)
    assert watch.most_drafts is None
