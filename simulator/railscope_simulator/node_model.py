"""Model of the node: job, GPUs, ports and host advance together, one span after the other.

The interfaces of the node (`nvml`, `rdma_devices`, `network_interfaces`, `host_files`,
`kernel_log`) read only this state, so that they agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from railscope.timestamps import SECOND_NS
from railscope_simulator import (
    conditions,
    fabric,
    gpu_tenants,
    nfs_mounts,
    node_hardware,
    scenarios,
    training_job,
)
from railscope_simulator.gpu import GpuState
from railscope_simulator.host_activity import HostState
from railscope_simulator.spec import NodeSpec, TimeSpan

_WARM_UP_SECONDS = 60
_SLOWEST_PACE = 0.4


class NodeDemand(NamedTuple):
    """Demand on a node during a span: on its host, on each GPU, and on the NIC of each rail."""

    host: training_job.JobDemand
    gpus: Sequence[training_job.JobDemand]
    rails: Sequence[fabric.TrafficDemand]
    host_conditions: conditions.HostConditions = conditions.HostConditions()


class NodeModel:
    """Node that has already run its job for a while when the simulation starts, at offset zero.

    `span` is the last step. With `since_ns`, the drivers were loaded at that offset, just before the
    simulation starts there: all counters begin near zero.
    """

    def __init__(
        self, spec: NodeSpec, scenario: conditions.Scenario | int, since_ns: int | None = None
    ) -> None:
        self.spec = spec
        if isinstance(scenario, int):
            scenario = scenarios.scenario_of(spec, scenario)
        self.scenario = scenario
        self.machine = node_hardware.build_node_hardware(spec)
        start_ns, warm_up_ns = since_ns or 0, _WARM_UP_SECONDS * SECOND_NS
        self.offset_ns = start_ns - warm_up_ns
        self.span = TimeSpan(self.offset_ns, self.offset_ns)
        self.unclaimed_gpu: int | None = None
        uptime_ns = warm_up_ns if since_ns is not None else spec.started_boot_ns + self.offset_ns
        self.gpus = [
            GpuState(spec, self.machine.model, gpu, uptime_ns) for gpu in self.machine.gpus
        ]
        self.cables = [fabric.Cable(port, spec, uptime_ns) for port in self.machine.ports]
        self.server = HostState(spec, uptime_ns)
        self.mounts = [
            nfs_mounts.SimulatedNfsMount(spec, index, uptime_ns) for index in range(spec.filers)
        ]
        self._job = training_job.TrainingJob(spec)
        while self.offset_ns < start_ns:
            self.advance(self.offset_ns + SECOND_NS)
        if since_ns is not None:
            self._reload()

    @property
    def present_cables(self) -> list[fabric.Cable]:
        """Ports of all NICs that have not been removed."""
        return [cable for cable in self.cables if not cable.removed]

    def advance(self, until_ns: int) -> None:
        """Advance to an offset into the simulation, under the node's own job."""
        span = TimeSpan(self.offset_ns, until_ns)
        # A lost GPU has no clock; its scenario states what the job does.
        clocks = [gpu.silicon.unthrottled_share for gpu in self.gpus if not gpu.lost]
        slowest = max(min(clocks, default=1.0), _SLOWEST_PACE)
        demand = self._job.advance(span, self.scenario.job(span), slowest)
        if self.spec.mode not in gpu_tenants.ALONE:
            demand = replace(demand, exchange=0.0, exchanged=0.0)
        rate = training_job.EXCHANGE_RATE * demand.exchanged
        traffic = fabric.TrafficDemand(demand.exchange, rate, rate)
        self.advance_under(
            until_ns, NodeDemand(demand, [demand] * len(self.gpus), [traffic] * len(self.gpus))
        )

    def advance_under(self, until_ns: int, demand: NodeDemand) -> None:
        """Advance to an offset into the simulation, under this demand."""
        span = self.span = TimeSpan(self.offset_ns, until_ns)
        self.offset_ns = until_ns
        scenario = self.scenario
        self.unclaimed_gpu = scenario.unclaimed_gpu(span)
        storage = _storage_demand(demand.host)
        moved: dict[int | None, tuple[int, int]] = {}
        for cable in self.cables:
            rail, before = cable.port.rail, cable.moved_bytes
            traffic = storage if rail is None else demand.rails[rail]
            cable.advance(
                span, traffic, scenario.port(rail, span), scenario.link_outages(rail, span)
            )
            sent, received = cable.moved_bytes
            moved[rail] = sent - before[0], received - before[1]
        # Before the step, so that the GPU works in it.
        for index in scenario.resets(span):
            self.gpus[index].reset()
        for index, gpu in enumerate(self.gpus):
            gpu.advance(span, demand.gpus[index], scenario.gpu(index, span), moved[index])
        self.server.advance(span, demand.host, demand.host_conditions)
        nfs_mounts.advance_mounts(self.mounts, span, demand.host, demand.host_conditions)
        reload_ns = scenario.reload_ns()
        if reload_ns is not None and span.passes(reload_ns):
            self._reload()

    def _reload(self) -> None:
        for gpu in self.gpus:
            gpu.reload()
        for cable in self.cables:
            cable.reload()


def _storage_demand(demand: training_job.JobDemand) -> fabric.TrafficDemand:
    """Return the traffic that the job requests from a storage port."""
    return fabric.TrafficDemand(
        max(demand.checkpoint, demand.fetch),
        training_job.CHECKPOINT_RATE * demand.checkpoint,
        training_job.FETCH_RATE * demand.fetch,
    )
