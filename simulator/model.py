"""The node: job, GPUs, ports and host advance together, one span after the other.

The views (`nvml`, `rdma`, `nic`, `pcie`, `host`, `kernel`) read only this state, so that they agree.
"""

from __future__ import annotations

from dataclasses import replace

from simulator.conditions import Scenario
from simulator.fabric import Cable, Wish
from simulator.gpu import GpuState
from simulator.job import CHECKPOINT_RATE, EXCHANGE_RATE, FETCH_RATE, Demand, Job
from simulator.machine import Port, machine
from simulator.scenarios import scenario_of
from simulator.server import Server
from simulator.sharing import ALONE
from simulator.span import NS_PER_SECOND, Span
from simulator.spec import NodeSpec

_WARM_UP_SECONDS = 60
_SLOWEST_PACE = 0.4


class NodeModel:
    """Node that has already run its job for a while when the simulation starts, at offset zero.

    `span` is the last step. With `since_ns`, the drivers were loaded at that offset, just before the
    simulation starts there: all counters begin near zero.
    """

    def __init__(
        self, spec: NodeSpec, scenario: Scenario | int, since_ns: int | None = None
    ) -> None:
        self.spec = spec
        if isinstance(scenario, int):
            scenario = scenario_of(spec, scenario)
        self.scenario = scenario
        self.machine = machine(spec)
        start_ns, warm_up_ns = since_ns or 0, _WARM_UP_SECONDS * NS_PER_SECOND
        self.offset_ns = start_ns - warm_up_ns
        self.span = Span(self.offset_ns, self.offset_ns)
        self.stray_gpu: int | None = None
        uptime_ns = warm_up_ns if since_ns is not None else spec.started_boot_ns + self.offset_ns
        self.gpus = [
            GpuState(spec, self.machine.model, gpu, uptime_ns) for gpu in self.machine.gpus
        ]
        self.cables = [Cable(port, spec, uptime_ns) for port in self.machine.ports]
        self.server = Server(spec, uptime_ns)
        self._job = Job(spec)
        while self.offset_ns < start_ns:
            self.advance(self.offset_ns + NS_PER_SECOND)
        if since_ns is not None:
            self._reload()

    @property
    def present_cables(self) -> list[Cable]:
        """Ports of all NICs that have not been removed."""
        return [cable for cable in self.cables if not cable.removed]

    def advance(self, until_ns: int) -> None:
        """Advance to an offset into the simulation."""
        span = self.span = Span(self.offset_ns, until_ns)
        self.offset_ns = until_ns
        scenario = self.scenario
        self.stray_gpu = scenario.stray_gpu(span)
        clocks = [gpu.silicon.unthrottled_share for gpu in self.gpus if not gpu.lost]
        slowest = max(min(clocks, default=1.0), _SLOWEST_PACE)
        demand = self._job.advance(span, scenario.job(span), slowest)
        if self.spec.mode not in ALONE:
            demand = replace(demand, exchange=0.0, exchanged=0.0)
        moved: dict[int | None, tuple[int, int]] = {}
        for cable in self.cables:
            rail, before = cable.port.rail, cable.moved_bytes
            wish = _wish(cable.port, demand)
            cable.advance(span, wish, scenario.port(rail, span), scenario.link_outages(rail))
            sent, received = cable.moved_bytes
            moved[rail] = sent - before[0], received - before[1]
        for index in scenario.resets(span):
            self.gpus[index].reset()
        for index, gpu in enumerate(self.gpus):
            gpu.advance(span, demand, scenario.gpu(index, span), moved[index])
        self.server.advance(span, demand)
        reload_ns = scenario.reload_ns()
        if reload_ns is not None and span.passes(reload_ns):
            self._reload()

    def _reload(self) -> None:
        for gpu in self.gpus:
            gpu.reload()
        for cable in self.cables:
            cable.reload()


def _wish(port: Port, demand: Demand) -> Wish:
    """Return the traffic that the job requests from a port."""
    if port.rail is not None:
        rate = EXCHANGE_RATE * demand.exchanged
        return Wish(demand.exchange, rate, rate)
    return Wish(
        max(demand.checkpoint, demand.fetch),
        CHECKPOINT_RATE * demand.checkpoint,
        FETCH_RATE * demand.fetch,
    )
