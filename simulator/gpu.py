"""One GPU: silicon, memory, links, bus and tenants, which advance together."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from simulator.activity import Activity, Cycles, activity
from simulator.bus import Bus
from simulator.conditions import GpuConditions
from simulator.gpu_model import GpuModel
from simulator.job import Demand
from simulator.machine import Gpu
from simulator.memory import MemoryErrors
from simulator.nvlink import Links
from simulator.sharing import Sharing
from simulator.silicon import Silicon
from simulator.span import NS_PER_US, Span
from simulator.spec import NodeSpec

SAMPLES_KEPT = 2
"""Number of samples that the driver retains; one is taken per span."""


class Sample(NamedTuple):
    """Sample of the driver's own measurements, with its time in microseconds since 1970."""

    stamp_us: int
    occupied_percent: int
    power_milliwatts: int


class GpuState:
    """State of a GPU after the last span. `identity` is the constant part."""

    def __init__(self, spec: NodeSpec, model: GpuModel, identity: Gpu, uptime_ns: int) -> None:
        name = f"gpu {identity.index}"
        dice = spec.stream(name)
        self.model, self.identity = model, identity
        self.silicon = Silicon(model, dice, uptime_ns)
        self.errors = MemoryErrors.usual(dice)
        self.pcie_replays = dice.choice((0, 0, 0, 0, 1))
        self.sharing = Sharing(spec, model, identity.index)
        self.bus = Bus(grace=model.grace, uptime_ns=uptime_ns)
        self.links: Links | None = None
        if model.nvlink and not self.sharing.mig_devices:  # the driver hides them under MIG
            self.links = Links(model.nvlink, spec.stream(f"{name} links"), uptime_ns)
        self.demand, self.activity = Demand(), Activity()
        self.cycles = Cycles.usual(uptime_ns, model.max_megahertz, model.multiprocessors)
        self.lost = self.hung = self.stuck = self.denied = False
        self.recovery_action = 0
        self.samples: deque[Sample] = deque(maxlen=SAMPLES_KEPT)
        self._origin_us = spec.started_wall_ns // NS_PER_US

    def advance(
        self, span: Span, wanted: Demand, conditions: GpuConditions, rail_bytes: tuple[int, int]
    ) -> None:
        """Advance by a span in which the rail's NIC sent and received this many bytes.

        A lost GPU stays lost, and its state unchanged.
        """
        self.lost = self.lost or conditions.lost
        if self.lost:
            return
        self.hung, self.stuck = conditions.hung, conditions.stuck
        self.denied = conditions.denied
        self.recovery_action = conditions.recovery_action
        self.demand = self.sharing.take(wanted)
        self.silicon.advance(span, self.demand, conditions.thermal_resistance)
        self.activity = activity(self.demand, self.silicon.ripple)
        clock = self.silicon.clock_megahertz
        self.cycles.advance(span, clock, self.model.multiprocessors, self.activity)
        silicon, stamp_us = self.silicon, self._origin_us + span.end_ns // NS_PER_US
        self.samples.append(Sample(stamp_us, silicon.occupied_percent, silicon.power_milliwatts))
        self.errors.advance(conditions)
        self.bus.advance(span, self.demand, rail_bytes)
        if self.links:
            self.links.advance(span, self.demand.exchanged, conditions.link_errors)

    def reset(self) -> None:
        """Restore the GPU from any fault."""
        self.lost = False
        self.reload()

    def reload(self) -> None:
        """Reset the counters, as after a driver load. Cycles count from a reset of the GPU."""
        self.silicon.reload()
        self.errors.reload()
        self.pcie_replays = 0
        self.bus.reload()
        if self.links:
            self.links.reload()
