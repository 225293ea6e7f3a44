"""Heartbeats of nodes as a collector receives them: `arrivals.csv`, with the columns `node,sent,received`.

`sent` is the time on the node's clock, `received` that on the collector's, in nanoseconds since 1970. Clocks
deviate by fractions of a millisecond, and single heartbeats by more: a process that waits for a processor.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from railscope_simulator.cluster.scenario import ClusterScenario
from railscope_simulator.spec import NodeSpec, TimeSpan, seconds_to_ns

HEARTBEAT_SECONDS = 5.0
_USUAL_OFFSET_SECONDS = 0.0004
_MIN_DELAY_SECONDS, _MAX_DELAY_SECONDS = 0.0002, 0.003
_GLITCH_SHARE, _MAX_GLITCH_SECONDS = 0.004, 0.08
_RAMP_SECONDS = 30.0
"""Time in which a clock reaches its deviation after the onset of a fault."""


class Heartbeat(NamedTuple):
    """A heartbeat that arrived."""

    node: str
    sent_ns: int
    received_ns: int


class HeartbeatPath:
    """Heartbeats of one node, its clock, and the faults of both."""

    def __init__(self, scenario: ClusterScenario, spec: NodeSpec, number: int) -> None:
        self._spec, self._rng = spec, spec.stream("heartbeats")
        self._offset_seconds = self._rng.gauss(0.0, _USUAL_OFFSET_SECONDS)
        self._sign = self._rng.choice((-1.0, 1.0))
        self._faults = [
            (fault, effects)
            for fault in scenario.faults
            if number in fault.nodes
            and (effects := fault.effects()).keys() & {"unreachable", "off", "skew_seconds"}
        ]
        self._next_seconds = self._rng.uniform(0.0, HEARTBEAT_SECONDS)

    def is_off(self, seconds: float) -> bool:
        """True if the node is down."""
        return any("off" in effects and fault.acts(seconds) for fault, effects in self._faults)

    def arrivals(self, span: TimeSpan) -> Iterator[Heartbeat]:
        """Yield the heartbeats of a span that arrive."""
        while seconds_to_ns(self._next_seconds) <= span.end_ns:
            seconds = self._next_seconds
            self._next_seconds += HEARTBEAT_SECONDS * self._rng.uniform(0.9, 1.1)
            deviation_ns = seconds_to_ns(self._deviation_seconds(seconds))
            # All random numbers are drawn whether or not the heartbeat arrives: a fault changes no later one.
            ratio = _MAX_DELAY_SECONDS / _MIN_DELAY_SECONDS
            delay = _MIN_DELAY_SECONDS * math.pow(ratio, self._rng.random())
            if not self.is_unreachable(seconds):
                at_ns = self._spec.started_wall_ns + seconds_to_ns(seconds)
                yield Heartbeat(self._spec.node, at_ns + deviation_ns, at_ns + seconds_to_ns(delay))

    def is_unreachable(self, seconds: float) -> bool:
        """True if the collector receives nothing from the node."""
        return any(
            effects.keys() & {"unreachable", "off"} and fault.acts(seconds)
            for fault, effects in self._faults
        )

    def clock_deviation_seconds(self, seconds: float) -> float:
        """Return the deviation of the node's clock from the collector's."""
        deviation = self._offset_seconds
        for fault, effects in self._faults:
            if fault.acts(seconds):
                ramp = min((seconds - fault.begin_seconds) / _RAMP_SECONDS, 1.0)
                deviation += self._sign * ramp * effects.get("skew_seconds", 0.0)
        return deviation

    def _deviation_seconds(self, seconds: float) -> float:
        """Return the deviation of the times of a heartbeat."""
        deviation = self.clock_deviation_seconds(seconds)
        if self._rng.random() < _GLITCH_SHARE:
            deviation += self._rng.uniform(-_MAX_GLITCH_SECONDS, _MAX_GLITCH_SECONDS)
        return deviation
