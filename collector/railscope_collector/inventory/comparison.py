"""A node's devices compared with the inventory.

Present, missing and unknown devices of a node add up to the number in the inventory; further ones
are unexpected. A stale node's devices are unknown: stale data does not show that they are gone. A
node that never reported is missing, with all of its expected devices.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from railscope_collector.files.inventory_file import ExpectedDevices
from railscope_collector.fleet import shape_columns


class NodeInventoryState(StrEnum):
    """State of a node relative to the inventory."""

    PRESENT = "present"
    STALE = "stale"
    MISSING = "missing"
    UNEXPECTED = "unexpected"


@dataclass(frozen=True, slots=True)
class ReportedDevices:
    """Current reports of a node; for each kind its devices, or the reason for which they are unknown."""

    is_reporting: bool
    timestamp_ns: int
    devices: Mapping[str, shape_columns.ShownDevices | str]


class DeviceCounts(NamedTuple):
    """Numbers of devices of one kind in a node, relative to the inventory."""

    present: int
    missing: int
    unknown: int
    unexpected: int

    @property
    def expected(self) -> int:
        """Number in the inventory."""
        return self.present + self.missing + self.unknown


@dataclass(frozen=True, slots=True)
class NodeComparison:
    """A node compared with the inventory; `counts` of the kinds that the inventory lists."""

    node: str
    state: NodeInventoryState
    counts: Mapping[str, DeviceCounts]
    reasons: Mapping[str, str]
    """Reasons for unknown devices."""
    reported: ReportedDevices | None = None


def compare_nodes(
    expected: Mapping[str, ExpectedDevices], reported: Mapping[str, ReportedDevices]
) -> Iterator[NodeComparison]:
    """Yield the comparison of each node that is in the inventory or reports."""
    for node in sorted(
        expected.keys() | {n for n, comparison in reported.items() if comparison.is_reporting}
    ):
        yield compare_node(node, expected.get(node), reported.get(node))


def compare_node(
    node: str, expected: ExpectedDevices | None, reported: ReportedDevices | None
) -> NodeComparison:
    """Compare one node."""
    if expected is None:
        return NodeComparison(node, NodeInventoryState.UNEXPECTED, {}, {}, reported)
    expected_counts = {
        shape_columns.GPU: expected.gpus,
        shape_columns.RDMA_PORT: expected.rdma_ports,
    }
    numbers = {kind: number for kind, number in expected_counts.items() if number is not None}
    if reported is None:
        nothing = {kind: DeviceCounts(0, number, 0, 0) for kind, number in numbers.items()}
        return NodeComparison(node, NodeInventoryState.MISSING, nothing, {})
    state = NodeInventoryState.PRESENT if reported.is_reporting else NodeInventoryState.STALE
    counts: dict[str, DeviceCounts] = {}
    reasons: dict[str, str] = {}
    for kind, number in numbers.items():
        devices = reported.devices.get(kind, "not reported")
        if isinstance(devices, str):
            counts[kind] = DeviceCounts(0, 0, number, 0)
            reasons[kind] = devices
        else:
            counts[kind] = count_devices(number, devices)
    return NodeComparison(node, state, counts, reasons, reported)


def count_devices(expected: int, devices: shape_columns.ShownDevices) -> DeviceCounts:
    """Compare the shown devices with a number.

    Devices of unknown presence count as unknown up to the number in the inventory: only devices that are
    certainly absent are missing, and only those that certainly exceed the number are unexpected.
    """
    present = min(len(devices.present), expected)
    unknown = min(len(devices.unknown), expected - present)
    missing = expected - present - unknown
    return DeviceCounts(present, missing, unknown, max(len(devices.present) - expected, 0))
