"""The physics of a GPU: load to clocks, power, heat and energy.

Power grows with activity and with the clock's 2.2th power. What exceeds the power limit, or what
the heat sink cannot carry away, is taken from the clock. Energy is the integral of the reported
power, exactly: it is kept in picojoules (milliwatts times nanoseconds).
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from railscope.simulator.job import Demand
from railscope.simulator.machine import GpuModel
from railscope.simulator.noise import Drift
from railscope.simulator.scenarios import GpuConditions
from railscope.simulator.span import Span

IDLE, SOFTWARE_POWER_CAP, HARDWARE_SLOWDOWN = 0x1, 0x4, 0x8
SOFTWARE_THERMAL, HARDWARE_THERMAL = 0x20, 0x40
PICOJOULES_PER_MILLIJOULE = 10**9

_CLOCK_STEP_MEGAHERTZ = 15
_POWER_EXPONENT = 2.2
_DEGREES_PER_WATT = 0.062
_SETTLING_SECONDS = 15.0
_THROTTLE_FROM, _THROTTLE_UNTIL, _SLOWDOWN_FROM = 86.0, 83.5, 89.0
_MEMORY_WARMER = 8.0
_MEMORY_DEGREES_PER_WATT = 0.055
_LOADED_MEMORY_SHARE = 0.87
_LEAST_ACTIVITY = 1e-3
_MEAN_POWER_MILLIWATTS = 410_000


@dataclass(slots=True)
class ThrottleTimes:
    """How long each reason has held the clocks down, in nanoseconds since driver load."""

    power_cap_ns: int = 0
    software_thermal_ns: int = 0
    hardware_thermal_ns: int = 0


class Silicon:
    """One GPU's state after the last span."""

    def __init__(self, model: GpuModel, dice: random.Random, uptime_ns: int) -> None:
        self.model = model
        self._idle_watts = dice.gauss(71.0, 2.0)
        self._full_watts = dice.gauss(592.0, 22.0)
        self._inlet = dice.uniform(24.0, 30.0)
        self._memory_share = dice.uniform(-0.02, 0.02) + _LOADED_MEMORY_SHARE
        self._power_drift = Drift(dice, 8.0)
        self._dice = dice
        self._throttled = False
        self._core = self._inlet + _DEGREES_PER_WATT * self._idle_watts
        self._memory = self._core + _MEMORY_WARMER
        self.lost = False
        self.reasons = IDLE
        self.clock_megahertz = model.idle_megahertz
        self.unthrottled_share = 1.0
        self.occupied_percent = 0
        self.memory_percent = 0
        self.memory_used_bytes = 0
        self.power_milliwatts = round(self._idle_watts * 1000)
        self.energy_picojoules = _MEAN_POWER_MILLIWATTS * uptime_ns
        self.throttled = ThrottleTimes(power_cap_ns=dice.randrange(uptime_ns // 50))
        self.corrected_errors = dice.choice((0, 0, 0, 1, 2))
        self.corrected_errors_for_life = self.corrected_errors + dice.randrange(20)
        self.pcie_replays = dice.choice((0, 0, 0, 0, 1))
        self.rows_to_remap = 0

    @property
    def energy_millijoules(self) -> int:
        """Energy since driver load."""
        return self.energy_picojoules // PICOJOULES_PER_MILLIJOULE

    @property
    def video_megahertz(self) -> int:
        """Clock of the video engines; it rests while nothing runs."""
        model = self.model
        return model.idle_video_megahertz if self.reasons & IDLE else model.most_video_megahertz

    @property
    def core_celsius(self) -> int:
        """Temperature of the die."""
        return round(self._core)

    @property
    def memory_celsius(self) -> int:
        """Temperature of the memory."""
        return round(self._memory)

    def advance(self, span: Span, demand: Demand, conditions: GpuConditions) -> None:
        """Go on for a span. A lost GPU stays lost."""
        self.lost = self.lost or conditions.lost
        if self.lost:
            return
        self.corrected_errors += conditions.corrected_errors
        self.corrected_errors_for_life += conditions.corrected_errors
        self.rows_to_remap = conditions.rows_to_remap
        resistance = _DEGREES_PER_WATT * conditions.thermal_resistance
        watts = self._run(demand, resistance)
        self.power_milliwatts = round(watts * 1000)
        self.energy_picojoules += self.power_milliwatts * span.length_ns
        self._account(span)
        self._heat(span, watts, resistance)
        self._power_drift.advance(span.seconds)
        self._show(demand)

    def reload(self) -> None:
        """Begin to count anew, as after a driver load."""
        self.energy_picojoules = 0
        self.throttled = ThrottleTimes()
        self.corrected_errors = 0
        self.pcie_replays = 0

    def _run(self, demand: Demand, resistance: float) -> float:
        """Choose the clock, and say what power it takes."""
        model = self.model
        if not demand.occupied:
            self.reasons, self.unthrottled_share = IDLE, 1.0
            self.clock_megahertz = model.idle_megahertz
            return self._idle_watts * (1.0 + 0.002 * self._power_drift.value)
        full_watts = self._full_watts * max(demand.activity, _LEAST_ACTIVITY)
        full_watts *= 1.0 + 0.012 * self._power_drift.value
        self.reasons = 0
        power_clock = self._clock_within(model.power_limit_milliwatts / 1000, full_watts)
        clock = power_clock
        if power_clock < model.most_megahertz:
            self.reasons |= SOFTWARE_POWER_CAP
        self._throttled = self._core >= (_THROTTLE_UNTIL if self._throttled else _THROTTLE_FROM)
        if self._throttled:
            self.reasons |= SOFTWARE_THERMAL
            bearable = (_THROTTLE_FROM - self._inlet) / resistance
            clock = min(clock, self._clock_within(bearable, full_watts))
        if self._core >= _SLOWDOWN_FROM:
            self.reasons |= HARDWARE_THERMAL | HARDWARE_SLOWDOWN
            clock = min(clock, model.most_megahertz // 2)
        self.clock_megahertz = clock
        self.unthrottled_share = clock / power_clock
        return self._idle_watts + full_watts * math.pow(
            clock / model.most_megahertz, _POWER_EXPONENT
        )

    def _clock_within(self, watts: float, full_watts: float) -> int:
        """Find the highest clock that takes no more than this power."""
        most = self.model.most_megahertz
        share = max(watts - self._idle_watts, 1.0) / full_watts
        clock = most * math.pow(min(share, 1.0), 1.0 / _POWER_EXPONENT)
        return max(
            int(clock) // _CLOCK_STEP_MEGAHERTZ * _CLOCK_STEP_MEGAHERTZ, self.model.idle_megahertz
        )

    def _account(self, span: Span) -> None:
        if self.reasons & SOFTWARE_POWER_CAP:
            self.throttled.power_cap_ns += span.length_ns
        if self.reasons & SOFTWARE_THERMAL:
            self.throttled.software_thermal_ns += span.length_ns
        if self.reasons & HARDWARE_THERMAL:
            self.throttled.hardware_thermal_ns += span.length_ns

    def _heat(self, span: Span, watts: float, resistance: float) -> None:
        kept = math.exp(-span.seconds / _SETTLING_SECONDS)
        core = self._inlet + resistance * watts
        per_watt = _MEMORY_DEGREES_PER_WATT * resistance / _DEGREES_PER_WATT
        memory = self._inlet + _MEMORY_WARMER + per_watt * watts
        self._core = core + (self._core - core) * kept
        self._memory = memory + (self._memory - memory) * kept

    def _show(self, demand: Demand) -> None:
        busy = 1.0 - abs(self._dice.gauss(0.0, 0.01))
        self.occupied_percent = round(100 * demand.occupied * max(busy, 0.0))
        self.memory_percent = round(100 * demand.memory_activity)
        free_bytes = self.model.memory_bytes - self.model.reserved_bytes
        used = int(free_bytes * self._memory_share) if demand.resident else 0
        self.memory_used_bytes = used // (1 << 21) * (1 << 21)
