"""Faults of the demo: start and end of each, the alerts that it raises, and its target.

They occur one after the other in rounds of 19 minutes; strengths and devices differ in each round. Every
fault lasts long enough for its alerts and leaves time for them to resolve: the last two minutes of a
round are quiet. The first fault begins half a minute after the start of all programs; alerts that compare with
a sample from before it need a Prometheus that was started by then, or the next round.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from railscope.timestamps import SECOND_NS
from railscope_simulator import data, live, node_hardware

ROUND_SECONDS = 1140.0
UPTIME_NS = 9 * 86_400 * SECOND_NS
"""Time since the boot of a node when its simulation begins."""
SCHEDULERS = {
    "gpu-node-1": "slurm",
    "gpu-node-2": "kubernetes",
    "gpu-node-3": "kubernetes",
    "gpu-node-4": "slurm",
}
"""Scheduler of each node's GPUs."""


@dataclass(frozen=True, slots=True)
class DemoFault:
    """Fault of each round; without a scenario, the agent of the node is stopped.

    `within_seconds` is the time from its start until all of its alerts fire: the rules' own minutes, and
    one more for scrapes, evaluations and the first counts. `incident` is the class of the incident that the
    diagnosis opens by then, empty without one; its own alert is not in `alerts`.
    """

    name: str
    node: str
    scenario: str
    begin_seconds: float
    length_seconds: float
    alerts: tuple[str, ...]
    within_seconds: int
    text: str
    incident: str = ""

    @property
    def plan(self) -> live.PlannedFault:
        """The fault as planned in the simulation."""
        return live.PlannedFault(self.scenario, self.begin_seconds, self.length_seconds)


FAULTS = data.read_table("demo_faults", dict[str, tuple[DemoFault, ...]])["faults"]


class FaultChange(NamedTuple):
    """Start or end of a fault, in seconds since the start of the demo."""

    seconds: float
    begins: bool
    round: int
    fault: DemoFault


def changes() -> Iterator[FaultChange]:
    """Yield all changes in order, without end."""
    number = 0
    while True:
        start = number * ROUND_SECONDS
        of_round = [
            FaultChange(start + seconds, begins, number, fault)
            for fault in FAULTS
            for begins, seconds in (
                (True, fault.begin_seconds),
                (False, fault.begin_seconds + fault.length_seconds),
            )
        ]
        yield from sorted(of_round, key=lambda change: change.seconds)
        number += 1


def plan_faults(node: str) -> tuple[live.PlannedFault, ...]:
    """Return the faults that the simulation of a node applies."""
    return tuple(fault.plan for fault in FAULTS if fault.node == node and fault.scenario)


def begin_node(name: str) -> live.LiveNode:
    """Return a node that begins now.

    The number at the end of its name is that of a node of the demo, from 0. A node without such a number is healthy.
    """
    digits = name[len(name.rstrip("0123456789")) :]
    of_demo = {str(number): node for number, node in enumerate(SCHEDULERS.items())}
    # "007" is 7. A name may have more digits than an integer.
    number = digits.lstrip("0") or digits[:1]
    demo_name, scheduler = of_demo.get(number, ("", "kubernetes"))
    return live.LiveNode(
        name,
        int(number[-4:] or 0),
        scheduler,
        booted_wall_ns=time.time_ns() - UPTIME_NS,
        started_wall_ns=time.time_ns(),
        started_boot_ns=time.clock_gettime_ns(time.CLOCK_BOOTTIME),
        round_seconds=ROUND_SECONDS,
        faults=plan_faults(demo_name),
    )


def describe_target(node: live.LiveNode, change: FaultChange) -> str:
    """Return the text of a fault with the names of the device that it affects in its round."""
    fault = change.fault
    if not fault.scenario:
        return fault.text
    affected = live.planned_occurrence(node, fault.plan, change.round).spec.affected_index
    parts = node_hardware.build_node_hardware(node.spec)
    port = next(port for port in parts.ports if port.rail == affected)
    gpu = parts.gpus[affected]
    return fault.text.format(
        nic=f"NIC {port.interface} ({port.rdma_device}) of rail {affected}",
        gpu=f"GPU {gpu.index} ({gpu.uuid}, {gpu.pci_address})",
    )
