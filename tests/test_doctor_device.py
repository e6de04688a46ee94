"""What invented results of probes are judged to be: every way in which an engine can be broken, wrong or slow."""

from __future__ import annotations

from dataclasses import replace

import pytest
from invented_outcomes import (
    QUIET,
    broken,
    copied,
    healthy,
    layer,
    outcome,
    product,
    trial,
    with_outcome,
    with_told,
)

from edge_runtime.boards import BOARDS, board_named
from edge_runtime.cost import expected_tokens
from edge_runtime.doctor.curve import ASSUMED_ACCEPTANCE, needed_acceptance, verify_curve
from edge_runtime.doctor.device import Trial, curves, judge, known_bandwidth
from edge_runtime.doctor.faults import TITLES, fault
from edge_runtime.doctor.finding import Check
from edge_runtime.doctor.outcome import Copy, Ending, Line, Product, told
from edge_runtime.telemetry.sample import CoolingDevice, GpuReading, Sample, Throttling, Zone


def problems(trial: Trial) -> list[Check]:
    return [one for one in judge(trial) if one.status == "problem"]


def advice(trial: Trial) -> list[Check]:
    return [one for one in judge(trial) if one.status == "advice"]


def only(found: list[Check]) -> Check:
    assert len(found) == 1, found
    return found[0]


def test_a_healthy_board_has_nothing_to_mend() -> None:
    checks = judge(trial())
    assert [one for one in checks if one.status != "ok" and "nf4" not in one.text] == []
    texts = {one.name: one.text for one in checks}
    assert "first result after 1.5 s" in texts["TensorRT"] and "Orin (SM 8.7)" in texts["TensorRT"]
    assert "80.0 GB/s: 78% of the 102 GB/s" in texts["bandwidth of the accelerator"]
    assert "K = 7 gains most" in texts["verifying drafts: TensorRT, 4-bit products"]


@pytest.mark.parametrize("probe", [name for name in TITLES if not name.startswith("host")])
@pytest.mark.parametrize(
    ("ended", "said", "signal", "words"),
    [
        ("crashed", "", "SIGSEGV", "crashed (SIGSEGV)"),
        ("crashed", "", "SIGABRT", "crashed (SIGABRT)"),
        ("crashed", "", "SIGILL", "built for another one"),
        ("crashed", "", None, "without a result"),
        ("hung", "", None, "no end after 90 s"),
        ("stuck", "", None, "not even SIGKILL"),
        ("memory", "", None, "more memory"),
        ("failed", "ValueError: odd", None, "ValueError: odd"),
    ],
)
def test_every_way_to_end_is_one_problem_with_a_fix(
    probe: str, ended: Ending, said: str, signal: str | None, words: str
) -> None:
    found = [one for one in problems(with_outcome(broken(probe, ended, said, signal))) if one.name == TITLES[probe]]
    one = only(found)
    assert words in one.text and "first kernel" in one.text and one.fix


@pytest.mark.parametrize(
    ("probe", "said", "text", "fix"),
    [
        ("nf4", "Error no kernel image is available for execution on the device at line 90", "no code", "ITY=87 "),
        ("torch", "RuntimeError: CUDA error: no kernel image is available", "no code for this accelerator", "Jetson"),
        ("tensorrt", "NvRmMemInitNvmap failed with Permission denied", "refuses this user", "video,render"),
        ("tensorrt", "RuntimeError: Failed to dlopen libcuda.so.1", "no driver", "--runtime nvidia"),
        ("torch", "CUDA driver version is insufficient for CUDA runtime version", "no driver", "nvidia-l4t-cuda"),
        ("tensorrt", "cudaGetDeviceCount: cudaErrorNoDevice (100): no CUDA-capable device", "no driver", "reboot"),
        ("ort-cuda", "RuntimeError: x (libcudnn.so.9: cannot open shared object file)", "library", "nvidia-jetpack"),
        ("torch", "OSError: libnvJitLink.so.12: version `x' not found", "library", "ldconfig"),
        ("torch", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate", "memory ran out", "drop_caches"),
        ("tensorrt", "NvMapMemAllocInternalTagged: error 12", "memory ran out", "compact_memory"),
        ("ort-cpu", "std::bad_alloc", "memory ran out", "close other programs"),
        ("torch", "A module that was compiled using NumPy 1.x cannot be run in NumPy 2.1", "numpy 1", "'numpy<2'"),
        ("ort-cpu", "ImportError: /lib/libm.so.6: version `GLIBC_2.38' not found", "newer system", "newer JetPack"),
        ("ort-cuda", "but fallback to CPU EP has been explicitly disabled by the user", "on the processor", "-gpu"),
        ("ort-cuda", "CUDA error 700: an illegal memory access was encountered", "a kernel went wrong", "-gpu"),
        ("torch", "RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED", "a kernel went wrong", "Jetson"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("ended", ["failed", "crashed"])
def test_words_that_are_known_have_their_own_fix(probe: str, said: str, text: str, fix: str, ended: Ending) -> None:
    one = fault(broken(probe, ended, said))
    assert text in one.text and fix in one.fix and one.status == "problem"
    assert said[:40] in one.text


def test_long_words_are_cut() -> None:
    assert len(fault(broken("torch", "failed", "x " * 4000)).text) < 400


@pytest.mark.parametrize("tegra", [True, False])
def test_what_is_not_installed_is_left_out(tegra: bool) -> None:
    outcomes = (*healthy()[:2], broken("ort-cuda", "absent", "CUDAExecutionProvider in this onnxruntime"),
                broken("tensorrt", "absent", "tensorrt"), broken("nf4", "absent", "bitsandbytes"))  # fmt: skip
    found = judge(replace(trial(outcomes), tegra=tegra))
    assert [one for one in found if one.status == "problem"] == []
    left = {one.name: one for one in found if "left out" in one.text}
    assert len(left) == 3 and "no bitsandbytes" in left["bitsandbytes 4-bit"].text
    # A Jetson has it, and only the virtual environment does not see it.
    assert (left["TensorRT"].status == "advice") == tegra


def test_where_no_engine_runs_that_is_a_problem_of_its_own() -> None:
    outcomes = (healthy()[0], broken("ort-cpu", "crashed", "", "SIGILL"), broken("torch", "absent", "torch"))
    assert [one.name for one in problems(trial(outcomes))] == [TITLES["ort-cpu"], "engines"]


@pytest.mark.parametrize(
    ("difference", "words"), [(None, "not finite"), (0.5, "off by 0.5"), (float("nan"), "off by nan")]
)
def test_wrong_numbers(difference: float | None, words: str) -> None:
    bad = product("int4", gb_s=60.0, difference=difference)
    one = only(problems(with_told("tensorrt", products=(product("float16", gb_s=75.0), bad))))
    assert one.name == "TensorRT: results" and words in one.text and "2304 x 9216" in one.text


@pytest.mark.parametrize(("difference", "largest"), [(None, 4.0), (1.0, 4.0), (float("nan"), 4.0), (0.0, 0.0)])
def test_a_wrong_layer(difference: float | None, largest: float) -> None:
    one = only(problems(with_told("ort-cuda", layers=(layer(difference, of_bundle=True, largest=largest),))))
    assert "first layer of gemma" in one.name and one.fix


def test_a_right_layer_says_how_far_it_is_off() -> None:
    checks = judge(with_told("ort-cuda", layers=(layer(0.02, of_bundle=True),)))
    (one,) = (one for one in checks if one.name == "onnxruntime on CUDA: first layer of gemma")
    assert one.status == "ok" and "max |difference| 0.02 of 4" in one.text and "(0.50%, 2.0% allowed)" in one.text


@pytest.mark.parametrize(("probe", "fix"), [("ort-cuda", "ORT_FPA_INTB_GEMM=1"), ("tensorrt", "blocks of 128")])
def test_4_bit_slower_than_fp16_is_a_problem(probe: str, fix: str) -> None:
    slow = product("int4", gb_s=12.0)
    one = only(problems(with_told(probe, products=(product("float16", gb_s=75.0), slow))))
    assert "takes 1.7 times as long as float16" in one.text and fix in one.fix


def test_nf4_that_is_slower_is_advice_since_it_is_there_for_memory() -> None:
    found = with_told("nf4", products=(product("nf4", gb_s=10.0),))
    assert problems(found) == []
    assert "use it where memory is short" in only(advice(found)).fix


def test_4_bit_that_falls_behind_with_more_rows_says_from_where() -> None:
    found = with_told("ort-cuda", products=(product("float16", gb_s=75.0), product("int4", gb_s=60.0, rise=1.0)))
    assert problems(found) == []
    (one,) = (one for one in advice(found) if one.name.endswith("4-bit"))
    assert "from 4 rows on float16 is quicker" in one.text


def test_ten_times_too_slow_runs_where_it_should_not() -> None:
    one = only(problems(with_told("tensorrt", products=(product("int4", gb_s=6.0),))))
    assert "read at 6.0 GB/s" in one.text and "memory moves 80" in one.text
    # A processor computes more than it reads.
    assert problems(with_told("ort-cpu", products=(product("int4", "cpu", gb_s=0.5),))) == []


@pytest.mark.parametrize(("gb_s", "status"), [(90.0, "ok"), (30.0, "advice"), (8.0, "problem")])
def test_the_boards_bandwidth_is_what_copies_are_held_against(gb_s: float, status: str) -> None:
    outcomes = (outcome("tensorrt", copies=(copied(gb_s),)),)
    (one,) = (one for one in judge(trial(outcomes)) if one.name == "bandwidth of the accelerator")
    assert one.status == status and "of the 102 GB/s" in one.text


def test_bandwidth_follows_the_memory_clock_of_the_mode() -> None:
    board = board_named("orin-nano-8")
    assert known_bandwidth(None, None) is None
    assert known_bandwidth(board, None) == known_bandwidth(board, Sample(0.0, "s", power_mode="MAXN_SUPER")) == 102.0
    assert known_bandwidth(board, Sample(0.0, "s", power_mode="15W")) == pytest.approx(68.0, rel=0.01)
    assert known_bandwidth(board, Sample(0.0, "s", power_mode="unknown")) == 102.0
    for one in BOARDS:
        assert known_bandwidth(one, Sample(0.0, "s", power_mode=one.fastest.name)) == one.bandwidth_gb_s


def test_without_a_known_board_no_bandwidth_is_judged() -> None:
    assert not any("bandwidth" in one.name for one in judge(replace(trial(), board=None)))


def test_a_machine_that_became_slower_or_was_never_alone() -> None:
    slow = outcome("host-again", copies=(copied(25.0, "processor, 1 thread"), copied(20.0, "processor, all cores")))
    one = only(advice(with_outcome(slow)))
    assert one.name == "slower meanwhile" and "45.0 GB/s before, 20.0 after" in one.text
    one = only(advice(trial(before=replace(QUIET, busy_cores=1.7))))
    assert one.name == "other programs" and "1.7 cores" in one.text


def sample(**given: object) -> Sample:
    healthy = Sample(0.0, "sysfs", gpu=GpuReading(1020.0, 1020.0, 0.0), zones=(Zone("gpu", 50.0),))
    return replace(healthy, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("after", "words"),
    [
        (sample(throttling=Throttling((("oc3", 7),))), "over-current oc3 +4"),
        (sample(throttling=Throttling((("oc3", 3),), (CoolingDevice("gpu-throttle", 1, 1),))), "gpu-throttle 1 of 1"),
        (sample(zones=(Zone("tj", 97.0),), throttling=Throttling((("oc3", 3),), passive_trip_c=99.0)), "tj 97.0 C"),
    ],
)  # fmt: skip
def test_throttled_meanwhile(after: Sample, words: str) -> None:
    before = sample(throttling=Throttling((("oc3", 3),)))
    one = only(problems(trial(before=replace(QUIET, sample=before), after=replace(QUIET, sample=after))))
    assert one.name == "throttled meanwhile" and words in one.text


def test_not_throttled_shows_the_clocks() -> None:
    before = sample(throttling=Throttling((("oc3", 3),), (CoolingDevice("pwm-fan", 2, 3),)))
    after = replace(before, gpu=GpuReading(612.0, 1020.0, 0.0))
    (one,) = (one for one in judge(trial(before=replace(QUIET, sample=before), after=replace(QUIET, sample=after)))
              if one.name == "clocks meanwhile")  # fmt: skip
    assert one.status == "ok" and "1020 MHz before, 612 MHz after" in one.text


def test_memory_that_trying_has_broken_up() -> None:
    after = replace(QUIET, free_blocks_4mb=100)
    assert only(advice(trial(after=after))).name == "large blocks, after"
    assert not [one for one in judge(replace(trial(after=after), tegra=False)) if one.status != "ok"]
    unknown = trial(before=replace(QUIET, free_blocks_4mb=None), after=after)
    assert not [one for one in judge(unknown) if one.name == "large blocks, after"]


def test_the_curve_where_verifying_is_free_and_where_it_loses() -> None:
    free = verify_curve("x", [1.0, 0.9, 1.0, 1.0])
    assert [line.k for line in free.lines] == [0, 1, 2, 3] and free.lost_from is None and free.best.k == 3
    assert free.lines[1].needed == 0.0 and "up to K = 3 every step pays" in free.told()
    # As a matrix-vector kernel run once per row has it.
    dear = verify_curve("x", [1.0 + row for row in range(8)])
    assert dear.best.k == 0 and dear.lost_from == 1 and dear.lines[3].needed is None
    assert "no K up to 7 is worth verifying" in dear.told() and "8 rows cost 8.0 times one" in dear.told()
    mixed = verify_curve("x", [1.0, 1.2, 1.5, 2.2, 3.0, 4.0])
    assert mixed.best.k == 2 and mixed.lost_from == 4
    assert "K = 2 gains most (1.46" in mixed.told() and "from K = 4 on it does not pay" in mixed.told()


def test_a_gap_in_the_curve_is_not_its_end() -> None:
    gap = verify_curve("x", [1.0, 1.9, 2.0, 2.2])
    assert gap.lines[1].gain < 1.0 < gap.lines[2].gain and gap.lost_from is None
    # Rows that were measured in a bad moment are no dearer than more of them.
    assert [line.cost for line in verify_curve("x", [1.0, 9.0, 1.5, 2.0]).lines] == [1.0, 1.5, 1.5, 2.0]
    # A lone row runs by a kernel of its own, and is what plain decoding runs.
    assert verify_curve("x", [1.0, 0.5]).lines[1].cost == 0.5


@pytest.mark.parametrize("k", [1, 3, 7])
@pytest.mark.parametrize("cost", [1.05, 1.5, 1.99])
def test_the_acceptance_that_is_needed_pays_exactly(k: int, cost: float) -> None:
    needed = needed_acceptance(k, cost)
    assert needed is not None and expected_tokens([needed] * k) == pytest.approx(cost, abs=1e-6)
    assert needed_acceptance(k, k + 1.0) is None and needed_acceptance(k, 0.7) == 0.0
    assert 0.0 < ASSUMED_ACCEPTANCE < 1.0


def test_curves_are_sums_of_all_shapes_and_of_bundles_layers() -> None:
    one, other = product("int4", gb_s=60.0), replace(product("int4", gb_s=30.0), inner=9216, outer=2304)
    found = curves(with_told("tensorrt", products=(product("float16"), one, other), layers=(layer(of_bundle=True),)))
    (products,) = (curve for curve in found if curve.what == "TensorRT, 4-bit products")
    assert products.lines[0].seconds == pytest.approx(one.seconds[0] + other.seconds[0])
    assert [curve.what for curve in found if "layer" in curve.what] == ["TensorRT, first layer of gemma"]


def test_where_verifying_loses_the_daemon_parks() -> None:
    dear = product("int4", gb_s=60.0, rise=1.0)
    found = with_told("tensorrt", products=(dear,))
    (one,) = (one for one in advice(found) if one.name.startswith("verifying"))
    assert "no K up to 7" in one.text and "parks" in one.fix


def test_figures_without_a_time_are_notes() -> None:
    good = product("int4")
    bad: list[Product] = [replace(good, seconds=seconds) for seconds in ((), (0.0, 1.0), (float("inf"),))]
    lines = [Line(product=one) for one in (good, *bad)] + [Line(copy=Copy("c", 1, 0.0)), Line(copy=copied(5.0))]
    lines.append(Line(layer=replace(layer(), seconds=(1.0, 0.0))))
    found = told(tuple(lines))
    assert found.products == (good,) and len(found.copies) == 1 and found.layers[0].seconds == ()
    assert len(found.notes) == 4
    judge(with_outcome(replace(healthy()[3], told=found)))


def test_kernels_that_a_variable_chooses() -> None:
    slow = with_told("ort-cuda", products=(product("float16", gb_s=75.0), product("int4", gb_s=60.0, rise=0.3)))
    one = only([one for one in advice(slow) if one.name == "weight-only kernels"])
    assert "take 0.21 ms with ORT_FPA_INTB_GEMM=1, 0.58 without" in one.text and "systemctl edit" in one.fix
    absent = trial((*healthy()[:3], broken("ort-cuda-fpa", "absent", "CUDAExecutionProvider in this onnxruntime")))
    assert not any("weight-only" in one.name for one in judge(absent))
