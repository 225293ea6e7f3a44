"""Faults of the demo: start and end of each, the alerts that it raises, and the fault record.

They occur one after the other in rounds of 19 minutes; strengths and devices differ in each round. Every
fault lasts long enough for its alerts and leaves time for them to resolve: the last two minutes of a
round are quiet. The first fault begins half a minute after the start of all programs; alerts that compare with
a sample from before it need a Prometheus that was started by then, or the next round.

`faults.jsonl` has one line when a fault begins, with `end` null, and one when it ends. Times are RFC
3339, in UTC.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from railscope.timestamps import SECOND_NS, format_timestamp
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
    one more for scrapes, evaluations and the first counts. `resolved_within_seconds` is the time from its
    end until none of them fires: the range of the rules, and a minute. `incident` is the class of the
    incident that the diagnosis opens, empty without one; its own alert is not in `alerts`.
    """

    name: str
    node: str
    scenario: str
    begin_seconds: float
    length_seconds: float
    alerts: tuple[str, ...]
    within_seconds: int
    resolved_within_seconds: int
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


def next_begin(seconds: float) -> FaultChange:
    """Return the next fault that begins after a time since the start of the demo."""
    return next(change for change in changes() if change.begins and change.seconds > seconds)


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


class FaultTarget(NamedTuple):
    """Target of a fault: a name for `faults.jsonl`, its other names, and a description."""

    device: str | None
    names: dict[str, str | int]
    text: str

    @classmethod
    def from_change(cls, node: live.LiveNode, change: FaultChange) -> FaultTarget:
        """Return the target of a change."""
        fault = change.fault
        if not fault.scenario:
            return cls(None, {}, fault.text)
        spec = live.planned_occurrence(node, fault.plan, change.round).spec
        parts = node_hardware.build_node_hardware(node.spec)
        if "{nic}" in fault.text:
            port = next(port for port in parts.ports if port.rail == spec.affected_index)
            names: dict[str, str | int] = {
                "interface": port.interface,
                "rdma_device": port.rdma_device,
                "rail": spec.affected_index,
            }
            name = f"NIC {port.interface} ({port.rdma_device}) of rail {spec.affected_index}"
            return cls(port.interface, names, fault.text.format(nic=name))
        gpu = parts.gpus[spec.affected_index]
        names = {"gpu": gpu.uuid, "gpu_index": gpu.index, "pci_address": gpu.pci_address}
        name = f"GPU {gpu.index} ({gpu.uuid}, {gpu.pci_address})"
        return cls(gpu.uuid, names, fault.text.format(gpu=name))


class FaultRecord:
    """The file `faults.jsonl`, recreated by each new demo. Blocking."""

    def __init__(self, path: Path, started_wall_ns: int) -> None:
        self._path = path
        self._started_wall_ns = started_wall_ns
        self._open: dict[tuple[str, int], tuple[FaultChange, FaultTarget]] = {}
        path.write_text("", encoding="utf-8")

    def add(self, change: FaultChange, target: FaultTarget) -> None:
        """Write the line of a change."""
        key = change.fault.name, change.round
        if change.begins:
            self._open[key] = change, target
        else:
            self._open.pop(key, None)
        end = None if change.begins else self.time_of(change.seconds)
        self._write(change, target, end)

    def close(self, seconds: float) -> None:
        """Write the end of every fault that the end of the demo interrupts."""
        for change, target in self._open.values():
            self._write(change, target, self.time_of(seconds))
        self._open.clear()

    def time_of(self, seconds: float) -> str:
        """Format a time since the demo began as RFC 3339."""
        return format_timestamp(self._started_wall_ns + round(seconds * SECOND_NS), "milliseconds")

    def _write(self, change: FaultChange, target: FaultTarget, end: str | None) -> None:
        fault = change.fault
        begin = change.round * ROUND_SECONDS + fault.begin_seconds
        line = {
            "fault": fault.name,
            "node": fault.node,
            "device": target.device,
            "begin": self.time_of(begin),
            "end": end,
            "alerts": list(fault.alerts),
            "within_seconds": fault.within_seconds,
            "resolved_within_seconds": fault.resolved_within_seconds,
            "incident": fault.incident,
            **target.names,
        }
        with self._path.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(line) + "\n")
