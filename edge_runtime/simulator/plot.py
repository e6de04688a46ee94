"""A simulated run as a picture: temperature, power, clock, K and speed over time. Knows no governor."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..files import replacing
from .loop import Trace
from .series import Series, series

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot(trace: Trace, path: Path, title: str) -> None:
    """Raises ``OSError``, and ``ModuleNotFoundError`` without matplotlib."""
    from matplotlib.figure import Figure

    data = series(trace, 2.0)
    figure = Figure(figsize=(11, 13), layout="constrained")
    temperature, power, clock, drafts, speed = figure.subplots(5, 1, sharex=True)
    figure.suptitle(f"{title}\nA simulation: no board was measured")
    _line(temperature, data, data.temperature_c, "die, C")
    if trace.scenario.temperature_c is not None:
        temperature.axhline(trace.scenario.temperature_c, color="tab:red", linestyle="--", label="limit")
    temperature.axhline(trace.scenario.plant.hardware.passive_c, color="grey", linestyle=":", label="passive trip")
    _line(power, data, data.power_w, "power, W")
    if any(cap is not None for cap in data.cap_w):
        caps = [float("nan") if cap is None else cap for cap in data.cap_w]
        power.step(data.minutes, caps, color="tab:red", linestyle="--", where="post", label="cap")
    _line(clock, data, data.clock_mhz, "GPU, MHz")
    _line(drafts, data, data.k, "K")
    _line(speed, data, data.tokens_per_s, "tokens a second")
    for axes in (temperature, power):
        axes.legend()
    speed.set_xlabel("minutes")
    with replacing(path) as partial:
        figure.savefig(partial, metadata={"Date": None} if path.suffix == ".svg" else None)


def _line(axes: Axes, data: Series, values: tuple[float, ...], label: str) -> None:
    axes.plot(data.minutes, values, linewidth=1.0)
    axes.set_ylabel(label)
