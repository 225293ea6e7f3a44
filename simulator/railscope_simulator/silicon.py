"""Physics of a GPU: from load to clocks, power, heat and energy.

Power grows with activity and with the clock's 2.2th power. Power that exceeds the power limit, or the
capacity of the heat sink, is removed by lowering the clock. Energy is the integral of the reported power,
exactly: it is stored in picojoules (milliwatts times nanoseconds).
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from railscope_simulator import device_models, spec, training_job

IDLE, SOFTWARE_POWER_CAP, HARDWARE_SLOWDOWN = 0x1, 0x4, 0x8
SOFTWARE_THERMAL, HARDWARE_THERMAL, POWER_BRAKE = 0x20, 0x40, 0x80
PICOJOULES_PER_MILLIJOULE = 10**9

_CLOCK_STEP_MEGAHERTZ = 15
_RIPPLE = 0.012
"""Standard deviation of a GPU's load from the job's common demand."""

_POWER_EXPONENT = 2.2
_FULL_LOAD = 0.94
"""Power at full load, as a fraction between that at idle and the limit."""

_MEMORY_OF_IDLE, _MEMORY_OF_LIMIT = 0.6, 0.12
"""Memory power as a share of the idle power, and at most of the limit in addition."""

_RISE_AT_FULL_LOAD = 41.0
"""Degrees of a correctly sized heat sink above air temperature at full load."""

_SETTLING_SECONDS = 15.0
_COOL_ENOUGH = 2.5
"""Degrees below the limit at which throttling of a GPU ends."""

_BRAKED_CLOCK = 0.3
"""Clock under the power brake, relative to that without it."""

_MEMORY_WARMER = 8.0
_MEMORY_SHARE_OF_RISE = 0.89
_MIN_ACTIVITY = 1e-3
_MEAN_SHARE_OF_LIMIT = 0.585


@dataclass(slots=True)
class ThrottleTimes:
    """Time that each reason has limited the clocks, in nanoseconds since driver load."""

    power_cap_ns: int = 0
    software_thermal_ns: int = 0
    hardware_thermal_ns: int = 0
    power_brake_ns: int = 0


class Silicon:
    """State of one GPU's silicon after the last span."""

    def __init__(self, model: device_models.GpuModel, rng: random.Random, uptime_ns: int) -> None:
        self.model = model
        full_watts = _FULL_LOAD * (model.limit_watts - model.idle_watts)
        self._degrees_per_watt = _RISE_AT_FULL_LOAD / (model.idle_watts + full_watts)
        self._idle_watts = model.idle_watts * rng.gauss(1.0, 0.028)
        self._full_watts = full_watts * rng.gauss(1.0, 0.037)
        self._inlet = rng.uniform(24.0, 30.0)
        self._drift = spec.DriftNoise(rng, 8.0)
        self.ripple = 1.0
        self._rng = rng
        self._throttled = False
        self._core = self._inlet + self._degrees_per_watt * self._idle_watts
        self._memory = self._core + _MEMORY_WARMER
        self.reasons = IDLE
        self.clock_megahertz = model.idle_megahertz
        self.unthrottled_share = 1.0
        self.occupied_percent = 0
        self.memory_percent = 0
        self.power_milliwatts = self.instant_milliwatts = round(self._idle_watts * 1000)
        self.memory_milliwatts = 0
        mean_milliwatts = round(_MEAN_SHARE_OF_LIMIT * model.power_limit_milliwatts)
        self.energy_picojoules = mean_milliwatts * uptime_ns
        self.throttled = ThrottleTimes(power_cap_ns=rng.randrange(uptime_ns // 50))

    @property
    def energy_millijoules(self) -> int:
        """Energy since driver load."""
        return self.energy_picojoules // PICOJOULES_PER_MILLIJOULE

    @property
    def video_megahertz(self) -> int:
        """Clock of the video engines; it is low while no process runs."""
        model = self.model
        return model.idle_video_megahertz if self.reasons & IDLE else model.max_video_megahertz

    @property
    def core_celsius(self) -> int:
        """Temperature of the die."""
        return round(self._core)

    @property
    def memory_celsius(self) -> int:
        """Temperature of the memory."""
        return round(self._memory)

    @property
    def margin_celsius(self) -> int:
        """Degrees from the die's temperature to the operating limit, which lowers the clocks."""
        return self.model.thresholds.operating - self.core_celsius

    def advance(
        self,
        span: spec.TimeSpan,
        demand: training_job.JobDemand,
        thermal_resistance: float,
        brake: float = 0.0,
    ) -> None:
        """Advance by a span, with the heat sink as designed (1) or worse; `brake` is a share of the time."""
        resistance = self._degrees_per_watt * thermal_resistance
        self.ripple = 1.0 + _RIPPLE * self._drift.value
        watts = self._run(demand, resistance, brake)
        self.power_milliwatts = round(watts * 1000)
        self.instant_milliwatts = round(watts * 1000 * (1.0 + self._rng.uniform(-0.02, 0.02)))
        memory_watts = _MEMORY_OF_LIMIT * self.model.limit_watts * demand.memory_activity
        memory_watts += _MEMORY_OF_IDLE * self._idle_watts
        self.memory_milliwatts = round(memory_watts * 1000)
        # The rounded power, so that energy is the sum of what is reported.
        self.energy_picojoules += self.power_milliwatts * span.length_ns
        self._account(span, brake)
        self._heat(span, watts, resistance)
        self._drift.advance(span.seconds)
        busy = 1.0 - abs(self._rng.gauss(0.0, 0.01))
        self.occupied_percent = round(100 * demand.occupied * max(busy, 0.0))
        self.memory_percent = round(100 * demand.memory_activity)

    def reload(self) -> None:
        """Reset the counters, as after a driver load."""
        self.energy_picojoules = 0
        self.throttled = ThrottleTimes()

    def _run(self, demand: training_job.JobDemand, resistance: float, brake: float) -> float:
        """Choose the clock, and return the resulting power."""
        model = self.model
        if not demand.occupied:
            self.reasons, self.unthrottled_share = IDLE, 1.0
            self.clock_megahertz = model.idle_megahertz
            return self._idle_watts * (1.0 + 0.002 * self._drift.value)
        full_watts = self._full_watts * max(demand.activity * self.ripple, _MIN_ACTIVITY)
        self.reasons = 0
        power_clock = self._clock_within(model.power_limit_milliwatts / 1000, full_watts)
        clock = power_clock
        if power_clock < model.max_megahertz:
            self.reasons |= SOFTWARE_POWER_CAP
        limits = model.thresholds
        # With hysteresis: throttling would otherwise end and begin at every step.
        hottest = limits.operating - (_COOL_ENOUGH if self._throttled else 0.0)
        self._throttled = self._core >= hottest
        if self._throttled:
            self.reasons |= SOFTWARE_THERMAL
            bearable = (limits.operating - self._inlet) / resistance
            clock = min(clock, self._clock_within(bearable, full_watts))
        if self._core >= limits.slowdown:
            self.reasons |= HARDWARE_THERMAL | HARDWARE_SLOWDOWN
            clock = min(clock, model.max_megahertz // 2)
        if brake:
            self.reasons |= POWER_BRAKE | HARDWARE_SLOWDOWN
            clock = round(clock * (1.0 - brake * (1.0 - _BRAKED_CLOCK)))
        self.clock_megahertz = clock
        # Relative to the clock within the power limit, which all GPUs have: only what goes beyond makes
        # others wait.
        self.unthrottled_share = clock / power_clock
        return self._idle_watts + full_watts * math.pow(
            clock / model.max_megahertz, _POWER_EXPONENT
        )

    def _clock_within(self, watts: float, full_watts: float) -> int:
        """Return the highest clock within this power."""
        max_megahertz = self.model.max_megahertz
        share = max(watts - self._idle_watts, 1.0) / full_watts
        if share >= 1.0:
            return max_megahertz
        clock = max_megahertz * math.pow(share, 1.0 / _POWER_EXPONENT)
        return max(
            int(clock) // _CLOCK_STEP_MEGAHERTZ * _CLOCK_STEP_MEGAHERTZ, self.model.idle_megahertz
        )

    def _account(self, span: spec.TimeSpan, brake: float) -> None:
        self.throttled.power_brake_ns += round(brake * span.length_ns)
        if self.reasons & SOFTWARE_POWER_CAP:
            self.throttled.power_cap_ns += span.length_ns
        if self.reasons & SOFTWARE_THERMAL:
            self.throttled.software_thermal_ns += span.length_ns
        if self.reasons & HARDWARE_THERMAL:
            self.throttled.hardware_thermal_ns += span.length_ns

    def _heat(self, span: spec.TimeSpan, watts: float, resistance: float) -> None:
        decay = math.exp(-span.seconds / _SETTLING_SECONDS)
        core = self._inlet + resistance * watts
        memory = self._inlet + _MEMORY_WARMER + _MEMORY_SHARE_OF_RISE * resistance * watts
        self._core = core + (self._core - core) * decay
        self._memory = memory + (self._memory - memory) * decay
