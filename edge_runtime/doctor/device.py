"""What the probes of a machine mean: right or wrong, fast or slow, worth a draft or not. Pure.

Wrong results, crashes and what no owner would accept are problems; what costs speed and has a remedy is advice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..boards import Board
from ..telemetry.sample import Sample
from .curve import VerifyCurve, verify_curve
from .faults import COMPACT, TITLES, WEIGHT_ONLY, fault
from .finding import Check
from .outcome import FLOATS, Copy, Kind, Outcome, Product

_FOUR_BITS: tuple[Kind, ...] = ("int4", "nf4")
_NOTICED = 1.05
"""Times as slow, from which a difference is one."""
_OF_THE_BOARD = {"cuda": (0.5, 0.15), "cpu": (0.15, 0.05)}
"""Of the memory's published bandwidth: less is advice, and still less a problem. A few cores cannot take all of it."""
_FAR_TOO_SLOW = 0.1
"""Of the copy's speed, at which an accelerator ought to read weights for a single row."""
_WORTH_SETTING = 0.8
"""Of the time without it."""
_SAGGED = 0.75
"""Of the first speed, measured once more at the end."""
_BUSY = 0.5
"""Of a core: more is other people's work."""
_WARMER_C = 5.0


@dataclass(frozen=True, slots=True)
class State:
    """Of the machine, before or after."""

    sample: Sample | None
    """Of a board's sensors."""
    busy_cores: float | None
    """Load of the last minute."""
    free_blocks_4mb: int | None


@dataclass(frozen=True, slots=True)
class Trial:
    outcomes: tuple[Outcome, ...]
    before: State
    after: State
    board: Board | None
    tegra: bool

    def outcome(self, probe: str) -> Outcome | None:
        return next((one for one in self.outcomes if one.probe == probe), None)


def judge(trial: Trial) -> tuple[Check, ...]:
    found: list[Check] = []
    for outcome in trial.outcomes:
        if (outcome.probe, outcome.ended) in (("host-again", "finished"), ("ort-cuda-fpa", "absent")):
            continue  # said elsewhere
        found.append(_ended(outcome, trial.tegra))
        found += [*_wrong(outcome), *_layers(outcome), *_against_floats(outcome, trial), *_far_too_slow(outcome)]
    found += [*_bandwidth(trial), *_weight_only(trial), *_verifying(trial), *_meanwhile(trial), *_large_blocks(trial)]
    if not any(one.ended == "finished" and one.probe not in ("host", "host-again") for one in trial.outcomes):
        found.append(Check("engines", "problem", "no engine runs on this machine", "the fixes above; then try again"))
    return tuple(found)


def curves(trial: Trial) -> tuple[VerifyCurve, ...]:
    """Of the 4-bit products of each engine that has them, and of a bundle's layer where one ran."""
    found = []
    for outcome in trial.outcomes:
        products = [one for one in outcome.told.products if one.kind in _FOUR_BITS and len(one.seconds) > 1]
        if products:
            rows = min(len(one.seconds) for one in products)
            seconds = [sum(one.seconds[row] for one in products) for row in range(rows)]
            found.append(verify_curve(f"{TITLES[outcome.probe]}, 4-bit products", seconds))
        found += [verify_curve(f"{TITLES[outcome.probe]}, {layer.what}", layer.seconds)
                  for layer in outcome.told.layers if len(layer.seconds) > 1 and layer.of_bundle]  # fmt: skip
    return tuple(found)


def _ended(outcome: Outcome, tegra: bool) -> Check:
    name, told = TITLES[outcome.probe], outcome.told
    if outcome.ended == "absent":
        text = f"left out: there is no {outcome.said}"
        if tegra and outcome.probe == "tensorrt":
            fix = "it comes with JetPack: python3 -m venv --system-site-packages VENV, and pip install cuda-python"
            return Check(name, "advice", text, fix)
        return Check(name, "ok", text)
    if outcome.ended != "finished":
        return fault(outcome)
    if outcome.probe == "host":
        return Check(name, "ok", "; ".join(_copied(copy) for copy in told.copies))
    versions = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in told.versions.items())
    launched = "" if told.launched_s is None else f": first result after {told.launched_s:.1f} s"
    where = f" on {told.accelerator.name} (SM {told.accelerator.compute})" if told.accelerator else ""
    return Check(name, "ok", f"{versions}{where}{launched}")


def _wrong(outcome: Outcome) -> Iterator[Check]:
    title = TITLES[outcome.probe]
    for one in outcome.told.products:
        what = f"{one.kind} product of {one.inner} x {one.outer}"
        fix = "another version of it; do not use this one"
        if one.difference is None:
            yield Check(f"{title}: results", "problem", f"the {what} gives values that are not finite", fix)
        elif not one.difference <= one.tolerance:
            text = f"the {what} is off by {one.difference:.2g} of its largest value ({one.tolerance:g} allowed)"
            yield Check(f"{title}: results", "problem", text, fix)


def _layers(outcome: Outcome) -> Iterator[Check]:
    for layer in outcome.told.layers:
        name = f"{TITLES[outcome.probe]}: {layer.what}"
        fix = "export the bundle again; if it stays so, another version of the engine, and please report it"
        if layer.difference is None or not layer.largest > 0.0:
            yield Check(name, "problem", "values that are not finite, or nothing but zeros", fix)
            continue
        off = layer.difference / layer.largest
        text = (
            f"max |difference| {layer.difference:.3g} of {layer.largest:.3g} from {layer.against} "
            f"({off:.2%}, {layer.tolerance:.1%} allowed)"
        )
        right = off <= layer.tolerance
        yield Check(name, "ok" if right else "problem", text, "" if right else fix)
    for note in outcome.told.notes:
        yield Check(f"{TITLES[outcome.probe]}: note", "ok", note)


def _against_floats(outcome: Outcome, trial: Trial) -> Iterator[Check]:
    """Whether 4-bit weights are what they are for."""
    title = f"{TITLES[outcome.probe]}: 4-bit"
    torch = trial.outcome("torch")
    # bitsandbytes has no product in floats of its own: torch's is what it stands in for.
    floats = torch.told.products if outcome.probe == "nf4" and torch is not None else outcome.told.products
    for four, whole in _pairs(outcome.told.products, floats):
        size = f"{four.inner} x {four.outer}"
        times = [a / b for a, b in zip(four.seconds, whole.seconds, strict=False)]
        if not times:
            continue
        if times[0] > _NOTICED:
            text = f"one row of {size} takes {times[0]:.1f} times as long as {whole.kind}: no fast kernel runs"
            # nf4 is there for memory; the others are there for speed.
            due = four.device == "cuda" and four.kind != "nf4"
            yield Check(title, "problem" if due else "advice", text, _four_bit_fix(outcome.probe))
            continue
        slower = next((rows for rows, one in enumerate(times, 1) if one > _NOTICED), None)
        if slower is not None:
            text = f"{size}: from {slower} rows on {whole.kind} is quicker ({times[slower - 1]:.1f} times)"
            yield Check(title, "advice", text, "short drafts: they are verified by few rows (K below that)")
        else:
            yield Check(title, "ok", f"one row of {size} takes {times[0]:.2f} of what {whole.kind} takes")


def _weight_only(trial: Trial) -> Iterator[Check]:
    """Whether onnxruntime verifies better with the kernels that one variable chooses."""
    without, with_it = trial.outcome("ort-cuda"), trial.outcome("ort-cuda-fpa")
    if without is None or with_it is None:
        return
    later = {(one.kind, one.inner, one.outer): one for one in with_it.told.products}
    for one in without.told.products:
        other = later.get((one.kind, one.inner, one.outer))
        if one.kind != "int4" or other is None or len(one.seconds) != len(other.seconds):
            continue
        rows = len(one.seconds)
        was, now = 1e3 * one.seconds[-1], 1e3 * other.seconds[-1]
        text = f"{rows} rows of {one.inner} x {one.outer} take {now:.2f} ms with {WEIGHT_ONLY}=1, {was:.2f} without"
        fix = f"Environment={WEIGHT_ONLY}=1 in the service (sudo systemctl edit edge-runtime)"
        yield Check("weight-only kernels", "advice" if now < _WORTH_SETTING * was else "ok", text, fix)


def _four_bit_fix(probe: str) -> str:
    if probe.startswith("ort-cuda"):
        return f"{WEIGHT_ONLY}=1 in the environment, symmetric blocks of 64 or 128; or a fp16 bundle"
    if probe == "tensorrt":
        return "a bundle with blocks of 128, a newer TensorRT, or a fp16 bundle"
    if probe == "nf4":
        return "use it where memory is short, and another engine for speed"
    return "symmetric blocks (float zero points have no fast kernel); a newer onnxruntime"


def _far_too_slow(outcome: Outcome) -> Iterator[Check]:
    """An accelerator reads the weights of one row nearly as fast as it copies. A processor computes, and need not."""
    copies = [copy.gb_s for copy in outcome.told.copies]
    if not copies:
        return
    for one in outcome.told.products:
        gb_s = 1e-9 * one.weight_bytes / one.seconds[0]
        if one.device == "cuda" and gb_s < _FAR_TOO_SLOW * max(copies):
            text = (
                f"{one.kind} weights of {one.inner} x {one.outer} are read at {gb_s:.1f} GB/s for one row, and memory "
                f"moves {max(copies):.0f}: it does not run where it should"
            )
            fix = "sudo jetson_clocks --show (clocks), edge-runtime telemetry (throttling), another build of the engine"
            yield Check(f"{TITLES[outcome.probe]}: speed", "problem", text, fix)


def _pairs(products: Sequence[Product], floats: Sequence[Product]) -> Iterator[tuple[Product, Product]]:
    """4-bit products, and the same in floats."""
    for one in products:
        same = [other for other in floats
                if other.kind in FLOATS and (other.inner, other.outer) == (one.inner, one.outer)]  # fmt: skip
        if one.kind in _FOUR_BITS and same:
            yield one, same[0]


def _bandwidth(trial: Trial) -> Iterator[Check]:
    known = known_bandwidth(trial.board, trial.before.sample)
    if known is None:
        return
    for device, probes in (("cuda", ("tensorrt", "torch", "ort-cuda")), ("cpu", ("host",))):
        copies = [copy for probe in probes if (one := trial.outcome(probe)) for copy in one.told.copies]
        if not copies:
            continue
        best = max(copies, key=lambda copy: copy.gb_s)
        low, least = _OF_THE_BOARD[device]
        share = best.gb_s / known
        text = f"{_copied(best)}: {share:.0%} of the {known:.0f} GB/s that the memory has in this mode"
        name = "bandwidth of the accelerator" if device == "cuda" else "bandwidth of the processor"
        if share >= low:
            yield Check(name, "ok", text)
            continue
        fix = "sudo nvpmodel -q (a mode with a slow memory clock?), sudo jetson_clocks; other programs that copy"
        yield Check(name, "problem" if share < least else "advice", text, fix)


def known_bandwidth(board: Board | None, sample: Sample | None) -> float | None:
    """GB/s of the board's memory at the clock of its power mode."""
    if board is None:
        return None
    mode = None if sample is None or sample.power_mode is None else board.mode(sample.power_mode)
    if mode is None:
        return board.bandwidth_gb_s
    return board.bandwidth_gb_s * mode.memory_mhz / max(one.memory_mhz for one in board.modes)


def _verifying(trial: Trial) -> Iterator[Check]:
    for curve in curves(trial):
        pays = curve.best.k > 0
        fix = "" if pays else "nothing: k: auto, the default, parks drafting where it loses"
        yield Check(f"verifying drafts: {curve.what}", "ok" if pays else "advice", curve.told(), fix)


def _meanwhile(trial: Trial) -> Iterator[Check]:
    """Whether the figures are those of a machine that was left alone and kept its clocks."""
    before, after = trial.before, trial.after
    if before.busy_cores is not None and before.busy_cores > _BUSY:
        text = f"other programs kept {before.busy_cores:.1f} cores busy: the figures are of a shared machine"
        yield Check("other programs", "advice", text, "top; stop them and measure again")
    sagged = _sagged(trial)
    if sagged is not None:
        text = f"{sagged[0].what}: {sagged[0].gb_s:.1f} GB/s before, {sagged[1].gb_s:.1f} after"
        fix = "edge-runtime telemetry --follow while it is measured again; better cooling; other programs"
        yield Check("slower meanwhile", "advice", text, fix)
    if before.sample is None or after.sample is None:
        return
    signs = throttled_between(before.sample, after.sample)
    if signs:
        text = f"the board held itself back meanwhile: {'; '.join(signs)}"
        fix = "a capped power mode (sudo nvpmodel -m ID), better cooling, a stronger power supply; measure again"
        yield Check("throttled meanwhile", "problem", text, fix)
    else:
        clocks = [_clock(one) for one in (before.sample, after.sample)]
        yield Check("clocks meanwhile", "ok", f"accelerator {clocks[0]} before, {clocks[1]} after; no throttling")


def throttled_between(before: Sample, after: Sample) -> tuple[str, ...]:
    known = dict(before.throttling.over_current_events)
    signs = [f"over-current {name} +{count - known[name]}"
             for name, count in after.throttling.over_current_events if count > known.get(name, count)]  # fmt: skip
    signs += [f"{one.name} {one.state} of {one.max_state}" for one in after.throttling.cooling
              if one.state > 0 and "fan" not in one.name]  # fmt: skip
    trip, hottest = after.throttling.passive_trip_c, after.hottest
    if trip is not None and hottest is not None and hottest.temperature_c > trip - _WARMER_C:
        signs.append(f"{hottest.name} {hottest.temperature_c:.1f} C, and it clocks down at {trip:g}")
    return tuple(signs)


def _sagged(trial: Trial) -> tuple[Copy, Copy] | None:
    first, last = trial.outcome("host"), trial.outcome("host-again")
    if first is None or last is None:
        return None
    later = {copy.what: copy for copy in last.told.copies}
    return next(
        ((copy, later[copy.what]) for copy in first.told.copies
         if copy.what in later and later[copy.what].gb_s < _SAGGED * copy.gb_s),
        None,
    )  # fmt: skip


def _large_blocks(trial: Trial) -> Iterator[Check]:
    """On a board the other checks say how many there are; here, whether trying has eaten them up."""
    before, after = trial.before.free_blocks_4mb, trial.after.free_blocks_4mb
    if before is None or after is None:
        return
    text = f"{before} free blocks of 4 MB before, {after} after"
    if trial.tegra and after < before // 2:
        yield Check("large blocks, after", "advice", f"{text}: memory has become fragmented", COMPACT)
    else:
        yield Check("large blocks, after", "ok", text)


def _copied(copy: Copy) -> str:
    return f"{copy.what} {copy.gb_s:.1f} GB/s"


def _clock(sample: Sample) -> str:
    return f"{sample.gpu.clock_mhz:.0f} MHz" if sample.gpu.clock_mhz else "no clock"
