"""Device states by the newest frames of nodes: lost, hung, stale and gone devices are distinguished."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from support.checkpoints import checkpoint_of, resume_from
from support.story import NodeReporter, accept, at, core_in, gpus_of, no_turns, temporary_core

from railscope.catalog import agent
from railscope.catalog.entities import SOURCE
from railscope.frame import Entity, Schema
from railscope.timestamps import FOREVER_NS
from railscope_collector.files.inventory_file import DeviceInventory, ExpectedDevices
from railscope_collector.files.retirements_file import RetiredGpus, Retirement
from railscope_collector.fleet.shape_columns import (
    GPU,
)
from railscope_collector.inventory.comparison import DeviceCounts, NodeInventoryState
from railscope_collector.inventory.inventory_watch import InventoryComparison, InventoryWatch
from railscope_collector.state.collector_state import CollectorState

STALE = 5


def sources(**states: int) -> tuple[Schema, list[int]]:
    """The agent's own stream: states of some sources."""
    columns = tuple((agent.SOURCE_STATE, Entity(SOURCE, (name,))) for name in states)
    return Schema("agent", columns), list(states.values())


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


async def test_a_gone_gpu_stays_gone_after_a_restart(core: CollectorState):
    node, restarted = NodeReporter("n1"), temporary_core()
    accept(core, node.envelopes_of(gpus_of("GPU-0", "GPU-1"), range(10)))
    core.evidence.quarters.by_key.clear()  # the database has them
    resume_from(restarted, checkpoint_of(core))
    accept(restarted, node.envelopes_of(gpus_of("GPU-0"), range(100, 110)))
    assert [one.gpu for one in (await compare(restarted, 110)).gone] == ["GPU-1"]


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
