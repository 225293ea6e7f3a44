"""Device states by the newest frames of nodes: lost, hung, stale and gone devices are distinguished."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, strategies as st
from support.story import NodeReporter, accept, at, core_in, gpus_of, no_turns, ports_of

from railscope.catalog import METRICS, agent
from railscope.catalog.entities import SOURCE
from railscope.frame import Entity, Frame, Schema
from railscope.reading import PRESENT, Absent
from railscope.timestamps import FOREVER_NS
from railscope.wire import to_wire_schema
from railscope_collector.files.inventory_file import DeviceInventory, ExpectedDevices
from railscope_collector.files.retirements_file import RetiredGpus, Retirement
from railscope_collector.fleet.schema_columns import (
    GPU,
    RDMA_PORT,
    DeviceColumns,
    find_device_columns,
)
from railscope_collector.inventory.comparison import DeviceCounts, NodeInventoryState
from railscope_collector.inventory.inventory_view import inventory_cells, inventory_document
from railscope_collector.inventory.inventory_watch import InventoryComparison, InventoryWatch
from railscope_collector.state.collector_state import CollectorState

STALE = 5
OF_A_GPU = 3
"""Columns of each GPU in the schema of these stories."""


def sources(**states: int) -> tuple[Schema, list[int]]:
    """The agent's own stream: states of some sources."""
    columns = tuple((agent.SOURCE_STATE, Entity(SOURCE, (name,))) for name in states)
    return Schema("agent", columns), list(states.values())


def with_reasons(frames: Sequence[Frame], reasons: Sequence[int]) -> list[Frame]:
    """The same frames without values for some columns."""
    return [
        Frame(f.origin, f.schema, f.sequence, f.timestamp, array("q", f.values), bytes(reasons))
        for f in frames
    ]


def without_gpu(schema: Schema, name: str, reason: Absent, *, never: int = 0) -> list[int]:
    """Reasons for which a GPU has no values; the first `never` it never had."""
    mine = [column for column, (_, entity) in enumerate(schema.columns) if entity.key[0] == name]
    codes = [PRESENT] * len(schema.columns)
    for number, column in enumerate(mine):
        codes[column] = (Absent.UNSUPPORTED if number < never else reason).value
    return codes


@pytest.fixture
def core(tmp_path: Path) -> CollectorState:
    return core_in(tmp_path)


async def compare(
    core: CollectorState,
    second: float,
    expected: Mapping[str, tuple[int | None, int | None]] | None = None,
    retired: Sequence[Retirement] = (),
) -> InventoryComparison:
    rows = [ExpectedDevices(0, FOREVER_NS, node, *both) for node, both in (expected or {}).items()]
    inventory = DeviceInventory.from_rows(rows) if expected is not None else None
    watch = InventoryWatch(core, lambda: inventory, lambda: RetiredGpus.from_rows(retired))
    return await watch.compare(at(second), at(second - STALE), no_turns)


def of(found: InventoryComparison, node: str):
    (one,) = (one for one in found.comparisons or () if one.node == node)
    return one


async def test_a_node_that_shows_all_it_should(core: CollectorState):
    node = NodeReporter()
    accept(core, node.envelopes_of(gpus_of("GPU-0", "GPU-1"), range(10)))
    accept(core, node.envelopes_of(ports_of(3), range(10)))
    found = await compare(core, 10, {"n1": (2, 3)})
    assert of(found, "n1").state is NodeInventoryState.PRESENT
    assert of(found, "n1").counts == {
        GPU: DeviceCounts(2, 0, 0, 0),
        RDMA_PORT: DeviceCounts(3, 0, 0, 0),
    }
    assert found.gone == ()


@pytest.mark.parametrize(
    ("reason", "counts"),
    [
        (Absent.GONE, DeviceCounts(1, 1, 0, 0)),
        (Absent.TIMEOUT, DeviceCounts(1, 0, 1, 0)),
        (Absent.ERROR, DeviceCounts(1, 0, 1, 0)),
        (Absent.DENIED, DeviceCounts(1, 0, 1, 0)),
    ],
)
@pytest.mark.parametrize("never", [0, 1])
async def test_a_gpu_without_values(
    core: CollectorState, reason: Absent, counts: DeviceCounts, never: int
):
    node, schema = NodeReporter(), gpus_of("GPU-0", "GPU-1")
    accept(core, node.envelopes_of(schema, range(5)))
    codes = without_gpu(schema, "GPU-1", reason, never=never)
    accept(core, [node.record(with_reasons(node.frames(schema, [5, 6]), codes))])
    found = await compare(core, 10, {"n1": (2, None)})
    assert of(found, "n1").counts == {GPU: counts}
    gone = [(one.gpu, one.seen_ns) for one in found.gone]
    assert gone == ([("GPU-1", at(4))] if reason is Absent.GONE else [])


async def test_a_stale_node_has_unknown_devices(core: CollectorState):
    accept(core, NodeReporter().envelopes_of(gpus_of("GPU-0"), range(10)))
    found = await compare(core, 10 + STALE, {"n1": (1, 1)})
    assert of(found, "n1").state is NodeInventoryState.STALE
    assert of(found, "n1").counts == {
        GPU: DeviceCounts(0, 0, 1, 0),
        RDMA_PORT: DeviceCounts(0, 0, 1, 0),
    }
    assert of(found, "n1").reasons[GPU] == "the node is stale"
    assert found.gone == (), "no one says that it is gone"


@pytest.mark.parametrize(
    ("state", "counts"),
    [("unsupported", DeviceCounts(0, 1, 0, 0)), ("failed", DeviceCounts(0, 0, 1, 0))],
)
async def test_a_node_whose_gpus_have_all_gone(
    core: CollectorState, state: str, counts: DeviceCounts
):
    """Without any GPU there are no frames of them; the agent reports if it found none."""
    node = NodeReporter()
    accept(core, node.envelopes_of(gpus_of("GPU-0"), range(10)))
    code = next(code for code, label in agent.SOURCE_STATES.items() if label == state)
    schema, values = sources(gpu=code, rdma=1)
    accept(core, node.envelopes_of(schema, range(30, 60), values=lambda _s, _c: values))
    found = await compare(core, 60, {"n1": (1, None)})
    assert of(found, "n1").state is NodeInventoryState.PRESENT
    assert of(found, "n1").counts == {GPU: counts}
    assert [one.gpu for one in found.gone] == (["GPU-0"] if state == "unsupported" else [])


async def test_a_gpu_that_was_replaced_is_gone_by_its_name_though_none_is_missing(
    core: CollectorState,
):
    node = NodeReporter()
    accept(core, node.envelopes_of(gpus_of("GPU-0", "GPU-old"), range(10)))
    accept(core, node.envelopes_of(gpus_of("GPU-0", "GPU-new"), range(10, 20)))
    found = await compare(core, 20, {"n1": (2, None)})
    assert of(found, "n1").counts == {GPU: DeviceCounts(2, 0, 0, 0)}
    assert [(one.node, one.gpu, one.seen_ns) for one in found.gone] == [("n1", "GPU-old", at(9))]
    retirement = Retirement(at(15), FOREVER_NS, "GPU-old", "sent back")
    found = await compare(core, 20, retired=[retirement])
    assert (found.comparisons, found.gone, found.reporting) == (None, (), {})
    assert found.last_nodes == {"GPU-old": "n1"}


async def test_a_gpu_that_moved_is_not_gone(core: CollectorState):
    node = NodeReporter("n1")
    accept(core, node.envelopes_of(gpus_of("GPU-0", "GPU-1"), range(10)))
    accept(core, node.envelopes_of(gpus_of("GPU-0"), range(100, 110)))
    assert [one.gpu for one in (await compare(core, 110)).gone] == ["GPU-1"]
    accept(core, NodeReporter("n2").envelopes_of(gpus_of("GPU-1"), range(100, 110)))
    assert (await compare(core, 110)).gone == ()


async def test_a_retired_gpu_that_reports_is_reported_once(core: CollectorState):
    reported: list = []
    core.evidence.problems.listeners.append(reported.append)
    accept(core, NodeReporter().envelopes_of(gpus_of("GPU-0", "GPU-1"), range(10)))
    retired = [Retirement(at(5), FOREVER_NS, "GPU-1", "sent back")]
    for _ in range(2):
        found = await compare(core, 10, retired=retired)
        assert found.reporting == {"GPU-1": "n1"}
    (trouble,) = reported
    assert (trouble.kind, trouble.gpu, trouble.node) == ("retired_seen", "GPU-1", "n1")
    assert trouble.draft().type == "evidence.quarantine"
    early = await compare(core, 10, retired=[Retirement(at(11), FOREVER_NS, "GPU-1")])
    assert (early.retired, early.reporting) == ((), {})


async def test_cells_without_an_inventory_omit_it(core: CollectorState):
    accept(core, NodeReporter().envelopes_of(gpus_of("GPU-0"), range(10)))
    found = await compare(core, 10)
    assert list(inventory_cells(found)) == []
    assert inventory_document(found, lambda *_: None).nodes is None


async def test_cells_and_json_of_an_inventory(core: CollectorState):
    accept(core, NodeReporter("n1").envelopes_of(gpus_of("GPU-0"), range(10)))
    accept(core, NodeReporter("n2").envelopes_of(gpus_of("GPU-2"), range(10)))
    found = await compare(core, 10, {"n1": (2, None), "n9": (8, 8)})
    values = {(c.metric.name, *c.labels): c.value for c in inventory_cells(found)}
    assert values["railscope_inventory_gpus", "n1", "present"] == 1
    assert values["railscope_inventory_gpus", "n1", "missing"] == 1
    assert values["railscope_inventory_rdma_ports", "n9", "missing"] == 8
    assert ("railscope_inventory_rdma_ports", "n1", "missing") not in values
    assert values["railscope_inventory_node", "n2", "unexpected"] == 1
    assert values["railscope_inventory_node", "n2", "present"] == 0
    nodes = {state: values["railscope_inventory_nodes", state] for state in NodeInventoryState}
    assert nodes == {"present": 1, "stale": 0, "missing": 1, "unexpected": 1}
    n1, n2, n9 = msgspec.to_builtins(inventory_document(found, lambda *_: None))["nodes"]
    assert n1["gpus"]["names"] == {"present": ["GPU-0"], "gone": [], "unknown": []}
    assert (n1["gpus"]["expected"], n1["gpus"]["missing"]) == (2, 1)
    assert (n2["state"], n2["gpus"]["expected"]) == ("unexpected", None)
    assert (n9["heard_ns"], n9["gpus"]["names"], n9["gpus"]["missing"]) == (None, None, 8)


@given(
    st.lists(
        st.sampled_from([PRESENT, *(reason.value for reason in Absent)]), min_size=12, max_size=12
    )
)
def test_each_device_is_present_gone_or_unknown(codes: list[int]):
    schema = gpus_of("GPU-0", "GPU-1", "GPU-2", "GPU-3")
    devices: DeviceColumns = find_device_columns(to_wire_schema(schema)).devices
    row = array("B", codes)
    shown = devices.states(np.frombuffer(row, "u1"))
    groups = (shown.present, shown.gone, shown.unknown)
    assert sorted(name for group in groups for name in group) == [f"GPU-{i}" for i in range(4)]
    for name in devices.names:
        mine = {codes[i] for i, (_, entity) in enumerate(schema.columns) if entity.key[0] == name}
        assert (name in shown.present) == (PRESENT in mine)
        not_here = {Absent.GONE.value, Absent.UNSUPPORTED.value}
        assert (name in shown.gone) == (mine <= not_here and Absent.GONE.value in mine)


def test_a_schema_of_anything_else_shows_nothing():
    schema = Schema("nic", ports_of(2).columns)
    assert find_device_columns(to_wire_schema(schema)).devices.names == ()
    assert METRICS[agent.SOURCE_STATE.name] is agent.SOURCE_STATE
