"""Nodes that were removed from the inventory: they are not expected, and no alert fires."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from support.story import NodeReporter, accept, at, core_in, gpus_of

from railscope.catalog import collector as catalog
from railscope_collector.account.live_account import LiveAccount
from railscope_collector.evidence.gpu_evidence import AdministratorInputs
from railscope_collector.files.inventory_file import DeviceInventory, ExpectedDevices
from railscope_collector.files.retirements_file import RetiredGpus
from railscope_collector.inventory.inventory_watch import InventoryWatch
from railscope_collector.state.collector_state import CollectorState
from railscope_collector.view_refresh import ViewRefresher

STALE = 5.0


@pytest.fixture
def core(tmp_path: Path) -> CollectorState:
    return core_in(tmp_path)


async def reported(core: CollectorState, second: float, *rows: ExpectedDevices) -> dict[str, float]:
    """Expectation of each node to report, and under the empty name the number of nodes."""
    inventory = DeviceInventory.from_rows(rows)
    refresher = ViewRefresher(
        core,
        LiveAccount(core.evidence, AdministratorInputs, is_ready=False),
        STALE,
        1.0,
        lambda: at(second),
        watch=InventoryWatch(core, lambda: inventory, RetiredGpus),
    )
    views = await refresher.refresh()
    nodes = {c.labels[0]: c.value for c in views.node.cells if c.metric is catalog.NODE_UP}
    (count,) = (c.value for c in views.cluster.cells if c.metric is catalog.NODES)
    return {**nodes, "": count}


def until(node: str, second: float) -> ExpectedDevices:
    return ExpectedDevices(0, at(second), node, 1, None)


async def test_a_stale_node_that_was_removed_is_not_reported(core: CollectorState):
    accept(core, NodeReporter("n1").envelopes_of(gpus_of("GPU-0"), range(10)))
    accept(core, NodeReporter("n2").envelopes_of(gpus_of("GPU-1"), range(10)))
    assert await reported(core, 100) == {"n1": 0, "n2": 0, "": 2}
    assert await reported(core, 100, until("n1", 200)) == {"n1": 0, "n2": 0, "": 2}, "not yet"
    assert await reported(core, 100, until("n1", 50)) == {"n2": 0, "": 1}
    back = ExpectedDevices(at(60), at(1000), "n1", 1, None)
    assert await reported(core, 100, until("n1", 50), back) == {"n1": 0, "n2": 0, "": 2}


async def test_a_removed_node_that_reports_is_reported(core: CollectorState):
    accept(core, NodeReporter("n1").envelopes_of(gpus_of("GPU-0"), range(10)))
    assert await reported(core, 10, until("n1", 5)) == {"n1": 1, "": 1}


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(1, 5)), unique_by=lambda row: row[0]),
    st.integers(-1, 30),
)
def test_a_node_is_removed_between_its_rows_and_after_them(rows: list[tuple[int, int]], at_ns: int):
    expected = [ExpectedDevices(start, start + length, "n", 1, 1) for start, length in rows]
    inventory = DeviceInventory.from_rows(expected)
    begun = any(start <= at_ns for start, _ in rows)
    assert inventory.is_removed("n", at_ns) == (
        begun and "n" not in inventory.expected_devices(at_ns)
    )
    assert not inventory.is_removed("another", at_ns)
