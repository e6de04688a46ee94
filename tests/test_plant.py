"""The simulated board: heat, clocks, sensors and what a step costs, so that a governor is tried on something sound."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from edge_runtime.boards import BOARDS, board_named
from edge_runtime.simulator.driven import drive, duty_in
from edge_runtime.simulator.plant import Plant, PlantParameters, at_ambient, resting, step_cost
from edge_runtime.simulator.scenario import board_plant, board_scenario, full_w, random_plant, random_scenario
from edge_runtime.simulator.tree import BoardTree
from edge_runtime.telemetry.plausible import impossible
from edge_runtime.telemetry.sysfs import SysfsSource

NANO = board_plant(board_named("orin-nano-8"), 25.0)


def _hot(ambient_c: float) -> PlantParameters:
    return at_ambient(NANO, ambient_c)


def _work(plant: Plant, seconds: float, k: int = 4) -> None:
    end_s = plant.time_s + seconds
    while plant.time_s < end_s and not plant.off:
        plant.step(k)


def test_a_board_at_rest_stays_as_it_is() -> None:
    plant = Plant(NANO)
    before = plant.die_c
    plant.rest(300.0)
    assert plant.die_c == pytest.approx(before, abs=0.2)
    assert plant.joules == pytest.approx(300.0 * (NANO.electrics.idle_w + NANO.electrics.leakage(before)), rel=0.01)


def test_work_warms_fast_at_the_die_and_slowly_at_the_sink_and_rest_cools() -> None:
    plant = Plant(NANO)
    rest_c, sink_rest_c = plant.die_c, plant.sink_c
    _work(plant, 20.0)
    fast_c, sink_c = plant.die_c - rest_c, plant.sink_c - sink_rest_c
    assert fast_c > 3.0 > sink_c
    _work(plant, 600.0)
    assert plant.sink_c - sink_rest_c > 3.0 * sink_c
    plant.rest(3600.0)
    assert plant.die_c == pytest.approx(rest_c, abs=0.5)


def test_the_fan_follows_late_and_helps() -> None:
    still = replace(NANO, cooling=replace(NANO.cooling, fan_gain=0.0))
    moved, unmoved = Plant(_hot(40.0)), Plant(replace(still, cooling=replace(still.cooling, ambient_c=40.0)))
    first = moved.fan
    _work(moved, 1.0)
    assert moved.fan - first < 0.05
    _work(moved, 900.0)
    _work(unmoved, 900.0)
    assert moved.fan > 0.5
    assert moved.die_c < unmoved.die_c - 5.0


def test_the_hardware_steps_its_clock_down_at_the_trip_and_up_again() -> None:
    plant = Plant(_hot(72.0))
    _work(plant, 900.0)
    assert not plant.off
    assert 96.0 < plant.die_c < 101.0
    assert plant.clock_mhz < 0.95 * NANO.hardware.clocks_mhz[-1]
    plant.rest(300.0)
    assert plant.clock_mhz == NANO.hardware.clocks_mhz[-1]


def test_a_board_that_nothing_cools_goes_off() -> None:
    closed = replace(_hot(80.0), cooling=replace(NANO.cooling, ambient_c=80.0, sink_c_per_w=12.0))
    plant = Plant(closed)
    _work(plant, 1200.0)
    assert plant.off


def test_over_current_is_counted_and_pulses_the_clock() -> None:
    low = replace(NANO, hardware=replace(NANO.hardware, over_current_w=full_w(NANO, 2)))
    plant, calm = Plant(low), Plant(low)
    _work(plant, 10.0, k=8)
    _work(calm, 10.0, k=0)
    assert plant.events > 5
    assert calm.events == 0
    usual_s = step_cost(NANO, 8, 1.0, 1.0).seconds
    assert max(plant.step(8).seconds for _ in range(20)) > 1.2 * usual_s


def test_a_lower_clock_makes_steps_longer_but_not_by_as_much_and_saves_energy() -> None:
    full, half = step_cost(NANO, 0, 1.0, 1.0), step_cost(NANO, 0, 0.5, 0.8)
    assert full.seconds < half.seconds < 2.0 * full.seconds
    assert half.joules < full.joules
    costs = [step_cost(NANO, k, 1.0, 1.0) for k in range(9)]
    assert all(one.seconds < more.seconds for one, more in pairwise(costs))


def test_samples_come_late_and_do_not_say_so() -> None:
    parameters = replace(NANO, sensors=replace(NANO.sensors, interval_s=0.5, delay_s=0.8))
    plant = Plant(parameters)
    plant.rest(1.2)
    assert plant.sample() is None
    plant.rest(0.2)
    sample = plant.sample()
    assert sample is not None
    assert sample.time_s == pytest.approx(1.3)
    assert plant.sample() is None


def test_what_it_shows_is_what_a_board_can_say() -> None:
    """Or a recording of it would be refused where it is played back."""
    for seed in range(12):
        plant = Plant(random_plant(seed), seed)
        for turn in range(60):
            plant.work(0.5, 1.0 if turn % 20 < 10 else 0.0, 3)
            assert impossible(plant.shown()) == ""


def test_the_same_seed_is_the_same_plant_and_another_is_another() -> None:
    assert random_plant(7) == random_plant(7) != random_plant(8)
    assert random_scenario(7, 100.0) == random_scenario(7, 100.0)
    for seed in range(40):
        plant = random_plant(seed)
        assert resting(plant)[0] < plant.hardware.passive_c
        assert full_w(plant, 0) > plant.electrics.idle_w


@pytest.mark.parametrize("name", [board.name for board in BOARDS])
def test_every_board_has_a_plant_of_its_size(name: str) -> None:
    scenario = board_scenario(name, 25.0, 60.0, 90.0, 15_000, seed=1)
    assert scenario.cap_mw(30.0) == 15_000
    assert 30.0 < resting(scenario.plant)[0] < 60.0
    assert 5.0 < full_w(scenario.plant, 4) < 80.0


def test_a_plant_drives_a_tree_in_real_time(tmp_path: Path) -> None:
    tree = BoardTree.build(tmp_path / "board", board_named("orin-nano-8"))
    duty_file, now = tmp_path / "duty", [100.0]
    duty = duty_in(duty_file)
    assert duty() == 0.0
    duty_file.write_text("0.9\n", encoding="utf-8")
    assert duty() == 0.9
    duty_file.write_text("nothing", encoding="utf-8")
    assert duty() == 0.0
    duty_file.write_text("1", encoding="utf-8")
    plant = Plant(_hot(72.0))

    def sleep(seconds: float) -> None:
        now[0] += seconds

    first = now[0]
    drive(tree, plant, duty, 4, lambda: now[0] > first + 1.0, lambda: now[0], sleep)
    source = SysfsSource(tree.root, lambda: now[0])
    cool = source.latest()
    drive(tree, plant, duty, 4, lambda: now[0] > first + 30.0, lambda: now[0], sleep, speed=30.0)
    warm = source.latest()
    assert cool is not None and warm is not None
    assert cool.hottest is not None and warm.hottest is not None
    assert cool.hottest.name == warm.hottest.name == "tj"
    assert warm.hottest.temperature_c > cool.hottest.temperature_c + 5.0
    assert warm.power_mw is not None and warm.power_mw > 10_000
    assert warm.gpu.clock_mhz is not None and warm.gpu.clock_mhz < NANO.hardware.clocks_mhz[-1]
    assert any(device.state > 0 and "gpu" in device.name for device in warm.throttling.cooling)
