"""One GPU: silicon, memory errors, activity, NVLinks, bus and tenants, which advance together."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from railscope.timestamps import MICROSECOND_NS
from railscope_simulator import device_models, gpu_tenants, node_hardware, training_job
from railscope_simulator.conditions import GpuConditions
from railscope_simulator.gpu_activity import ActivityShares, SmCycles, activity_shares
from railscope_simulator.gpu_bus import GpuBus
from railscope_simulator.gpu_nvlinks import GpuNvLinks
from railscope_simulator.silicon import Silicon
from railscope_simulator.spec import NodeSpec, TimeSpan

BAD_ADDRESS = 0x0000_0012_BAC1_C3E0
"""Bad memory address of a GPU with an error."""

PAGE_BYTES = 4096

SAMPLES_KEPT = 2
"""Number of samples that the driver retains; one is taken per span."""


@dataclass(slots=True)
class MemoryErrors:
    """Errors since driver load and for life; rows, or pages of older GPUs, that wait for a reset."""

    corrected: int
    corrected_for_life: int
    uncorrected: int = 0
    uncorrected_for_life: int = 0
    correctable_rows: int = 0
    uncorrectable_rows: int = 0

    @classmethod
    def usual(cls, rng: random.Random) -> MemoryErrors:
        """Return a few corrected errors, as on every GPU."""
        corrected = rng.choice((0, 0, 0, 1, 2))
        return cls(corrected, corrected + rng.randrange(20))

    @property
    def pending(self) -> bool:
        """True if any row or page waits for a reset."""
        return self.correctable_rows + self.uncorrectable_rows > 0

    def advance(self, conditions: GpuConditions) -> None:
        """Add the errors of a span."""
        self.corrected += conditions.corrected_errors
        self.corrected_for_life += conditions.corrected_errors
        self.uncorrected += conditions.uncorrected_errors
        self.uncorrected_for_life += conditions.uncorrected_errors
        self.correctable_rows = conditions.correctable_rows
        self.uncorrectable_rows = conditions.uncorrectable_rows

    def reload(self) -> None:
        """Reset the counters, as after a driver load."""
        self.corrected = self.uncorrected = 0


class DriverSample(NamedTuple):
    """Sample of the driver's own measurements, with its time in microseconds since 1970."""

    stamp_us: int
    occupied_percent: int
    power_milliwatts: int


class GpuState:
    """State of a GPU after the last span. `identity` is the constant part."""

    def __init__(
        self,
        spec: NodeSpec,
        model: device_models.GpuModel,
        identity: node_hardware.SimulatedGpu,
        uptime_ns: int,
    ) -> None:
        name = f"gpu {identity.index}"
        rng = spec.stream(name)
        self.model, self.identity = model, identity
        self.silicon = Silicon(model, rng, uptime_ns)
        self.errors = MemoryErrors.usual(rng)
        self.pcie_replays = rng.choice((0, 0, 0, 0, 1))
        self.sharing = gpu_tenants.GpuSharing(spec, model, identity.index)
        self.bus = GpuBus(grace=model.grace, uptime_ns=uptime_ns)
        self.links: GpuNvLinks | None = None
        if model.nvlink and not self.sharing.mig_devices:  # the driver hides them under MIG
            self.links = GpuNvLinks(model.nvlink, spec.stream(f"{name} links"), uptime_ns)
        self.demand, self.activity = training_job.JobDemand(), ActivityShares()
        self.cycles = SmCycles.usual(uptime_ns, model.max_megahertz, model.multiprocessors)
        self.lost = self.hung = self.stuck = self.denied = False
        self.recovery_action = 0
        self.samples: deque[DriverSample] = deque(maxlen=SAMPLES_KEPT)
        self._origin_us = spec.started_wall_ns // MICROSECOND_NS

    def advance(
        self,
        span: TimeSpan,
        requested: training_job.JobDemand,
        conditions: GpuConditions,
        rail_bytes: tuple[int, int],
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
        self.demand = self.sharing.take(requested)
        self.silicon.advance(span, self.demand, conditions.thermal_resistance, conditions.brake)
        self.activity = activity_shares(self.demand, self.silicon.ripple)
        clock = self.silicon.clock_megahertz
        self.cycles.advance(span, clock, self.model.multiprocessors, self.activity)
        silicon, stamp_us = self.silicon, self._origin_us + span.end_ns // MICROSECOND_NS
        self.samples.append(
            DriverSample(stamp_us, silicon.occupied_percent, silicon.power_milliwatts)
        )
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
