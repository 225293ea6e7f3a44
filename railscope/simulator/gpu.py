"""One GPU: its silicon, memory, links, bus and tenants, which advance together."""

from __future__ import annotations

from railscope.simulator.activity import Activity, Cycles, activity
from railscope.simulator.bus import Bus
from railscope.simulator.conditions import GpuConditions
from railscope.simulator.gpu_model import GpuModel
from railscope.simulator.job import Demand
from railscope.simulator.machine import Gpu
from railscope.simulator.memory import MemoryErrors
from railscope.simulator.nvlink import Links
from railscope.simulator.sharing import Sharing
from railscope.simulator.silicon import Silicon
from railscope.simulator.span import Span
from railscope.simulator.spec import NodeSpec


class GpuState:
    """A GPU's state after the last span. `identity` is what never changes."""

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
        if model.nvlink and not self.sharing.mig_devices:  # the driver hides them while it is cut
            self.links = Links(model.nvlink, spec.stream(f"{name} links"), uptime_ns)
        self.demand, self.activity = Demand(), Activity()
        self.cycles = Cycles.usual(uptime_ns, model.most_megahertz, model.multiprocessors)
        self.lost = self.hung = self.denied = False
        self.recovery_action = 0

    def advance(
        self, span: Span, wanted: Demand, conditions: GpuConditions, rail_bytes: tuple[int, int]
    ) -> None:
        """Go on for a span in which the rail's NIC sent and received so many bytes.

        A lost GPU stays lost, and as it was.
        """
        self.lost = self.lost or conditions.lost
        if self.lost:
            return
        self.hung, self.denied = conditions.hung, conditions.denied
        self.recovery_action = conditions.recovery_action
        self.demand = self.sharing.take(wanted)
        self.silicon.advance(span, self.demand, conditions.thermal_resistance)
        self.activity = activity(self.demand, self.silicon.ripple)
        clock = self.silicon.clock_megahertz
        self.cycles.advance(span, clock, self.model.multiprocessors, self.activity)
        self.errors.advance(conditions)
        self.bus.advance(span, self.demand, rail_bytes)
        if self.links:
            self.links.advance(span, self.demand.exchanged, conditions.link_errors)

    def reload(self) -> None:
        """Begin to count anew, as after a driver load. Cycles count from a reset of the GPU."""
        self.silicon.reload()
        self.errors.reload()
        self.pcie_replays = 0
        self.bus.reload()
        if self.links:
            self.links.reload()
