"""How warm a board will be, by a first-order model that corrects itself. Pure; knows no sensor and no step.

    C dT/dt = P - (T - base) / R

R and C are guesses, scaled by what the board draws. What they leave out (a slow heat sink, a fan, leakage, the air)
ends up in the *base*, the temperature without power, which follows the readings: proportional to the error of the
estimate, and to its integral.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

_RISE_C = 18.0
"""R times the most that the board was seen to draw. Rather too much: the allowed power then moves in smaller steps."""
_GROWS = 2.0
"""Most a board is expected to draw, relative to the first reading."""
_SETTLE_S = 15.0
"""R x C."""
_FOLLOW_S = 3.0
"""Of the correction."""
HORIZON_S = 8.0
"""The temperature has to be below its limit when so much time has passed."""


@dataclass(frozen=True, slots=True)
class ThermalEstimate:
    temperature_c: float
    base_c: float
    rise_c_per_w: float
    """R"""
    most_w: float
    """The most that was seen, which scales R."""

    def allowed_w(self, target_c: float, horizon_s: float = HORIZON_S) -> float:
        """The steady power with which the target is reached at the horizon; below 0 where none is low enough."""
        reached = 1.0 - math.exp(-horizon_s / _SETTLE_S)
        settled_c = self.temperature_c + (target_c - self.temperature_c) / reached
        return (settled_c - self.base_c) / self.rise_c_per_w

    def cooled_s(self, target_c: float, power_w: float) -> float:
        """Until the target is reached at so much power; infinite where it is not."""
        settled_c = self.base_c + self.rise_c_per_w * power_w
        if self.temperature_c <= target_c:
            return 0.0
        if settled_c >= target_c:
            return math.inf
        return _SETTLE_S * math.log((self.temperature_c - settled_c) / (target_c - settled_c))


def first_estimate(temperature_c: float, power_w: float) -> ThermalEstimate:
    """At rest, as far as anybody knows."""
    most_w = _GROWS * max(power_w, 1.0)
    rise = _RISE_C / most_w
    return ThermalEstimate(temperature_c, temperature_c - rise * power_w, rise, most_w)


def corrected(state: ThermalEstimate, temperature_c: float, power_w: float, seconds: float) -> ThermalEstimate:
    """With a reading ``seconds`` after the last one, between which ``power_w`` was drawn."""
    base_c, rise, most_w = state.base_c, state.rise_c_per_w, state.most_w
    if power_w > most_w:
        # Slowly: one reading is no power that a board draws.
        most_w += (power_w - most_w) * min(1.0, seconds)
        scaled = _RISE_C / most_w
        base_c += (rise - scaled) * power_w
        rise = scaled
    settled_c = base_c + rise * power_w
    expected_c = settled_c + (state.temperature_c - settled_c) * math.exp(-seconds / _SETTLE_S)
    error_c = temperature_c - expected_c
    # Two equal poles: as fast as it gets without overshoot.
    left = math.exp(-seconds / _FOLLOW_S)
    base_c += (1.0 - left) ** 2 * _SETTLE_S / seconds * error_c
    return ThermalEstimate(expected_c + (1.0 - left * left) * error_c, base_c, rise, most_w)
