"""The inventory and the reported devices: the states add up, and unknown devices are not missing."""

from __future__ import annotations

from hypothesis import given, strategies as st

from railscope.timestamps import FOREVER_NS
from railscope_collector.files.inventory_file import ExpectedDevices
from railscope_collector.fleet.schema_columns import GPU, RDMA_PORT, ShownDevices
from railscope_collector.inventory.comparison import (
    DeviceCounts,
    NodeInventoryState,
    ReportedDevices,
    compare_node,
    compare_nodes,
    count_devices,
)

EIGHT = ExpectedDevices(0, FOREVER_NS, "n1", 8, 8)


def shown(present: int, gone: int = 0, unknown: int = 0) -> ShownDevices:
    return ShownDevices(
        *(
            [f"{prefix}-{n}" for n in range(number)]
            for prefix, number in (("p", present), ("g", gone), ("u", unknown))
        )
    )


def reporting_devices(
    gpus: ShownDevices | str, ports: ShownDevices | str, *, reporting: bool = True
) -> ReportedDevices:
    return ReportedDevices(reporting, 1, {GPU: gpus, RDMA_PORT: ports})


def test_a_lost_gpu_is_missing_and_a_hung_one_is_unknown():
    found = compare_node("n1", EIGHT, reporting_devices(shown(6, gone=1, unknown=1), shown(8)))
    assert found.state is NodeInventoryState.PRESENT
    assert found.counts == {GPU: DeviceCounts(6, 1, 1, 0), RDMA_PORT: DeviceCounts(8, 0, 0, 0)}


def test_the_devices_of_a_stale_node_are_unknown_and_not_missing():
    silent = reporting_devices("the node is stale", "the node is stale", reporting=False)
    found = compare_node("n1", EIGHT, silent)
    assert found.state is NodeInventoryState.STALE
    assert found.counts == {GPU: DeviceCounts(0, 0, 8, 0), RDMA_PORT: DeviceCounts(0, 0, 8, 0)}
    assert found.reasons == {GPU: "the node is stale", RDMA_PORT: "the node is stale"}


def test_a_node_that_never_reported_is_missing_with_all_its_devices():
    found = compare_node("n1", EIGHT, None)
    assert found.state is NodeInventoryState.MISSING
    assert found.counts == {GPU: DeviceCounts(0, 8, 0, 0), RDMA_PORT: DeviceCounts(0, 8, 0, 0)}


def test_counts_that_the_inventory_does_not_list_are_not_reported():
    found = compare_node(
        "n1", ExpectedDevices(0, FOREVER_NS, "n1", 2, None), reporting_devices(shown(3), shown(9))
    )
    assert found.counts == {GPU: DeviceCounts(2, 0, 0, 1)}


def test_only_a_node_that_reports_is_unexpected():
    there = {
        "n1": reporting_devices(shown(8), shown(8)),
        "n2": reporting_devices(shown(1), shown(1)),
        "n3": reporting_devices("silent", "silent", reporting=False),
    }
    states = {
        comparison.node: comparison.state
        for comparison in compare_nodes({"n1": EIGHT, "n9": EIGHT}, there)
    }
    assert states == {
        "n1": NodeInventoryState.PRESENT,
        "n2": NodeInventoryState.UNEXPECTED,
        "n9": NodeInventoryState.MISSING,
    }


devices = st.builds(shown, st.integers(0, 10), st.integers(0, 10), st.integers(0, 10))


@given(st.integers(0, 16), devices)
def test_the_states_add_up_to_the_inventory(expected: int, found: ShownDevices):
    counts = count_devices(expected, found)
    assert counts.expected == expected
    assert min(counts) >= 0
    assert counts.present + counts.unexpected == len(found.present)
    certainly_there, perhaps_there = len(found.present), len(found.present) + len(found.unknown)
    assert counts.missing == max(expected - perhaps_there, 0), "certainly missing"
    assert counts.unexpected == max(certainly_there - expected, 0), "certainly too many"
