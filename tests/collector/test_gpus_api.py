"""The list of all GPUs: worst first, with rail and NIC, in parts, for each reader its own."""

from __future__ import annotations

from support.batches import batch_of
from support.schemas import known_schema

from railscope.catalog import METRICS, collector as catalog, nic
from railscope.catalog.entities import GPU
from railscope.claim_terms import GPU_CAPACITY
from railscope.frame import Entity, Schema
from railscope.reading import Absent
from railscope_collector.fleet.fleet import Fleet, NodeUpdate
from railscope_collector.fleet.view_cells import View, ViewCell
from railscope_collector.http.gpus_api import FleetGpus
from railscope_collector.view_refresh import CollectorViews
from railscope_collector.views.fresh_rows import find_fresh_rows
from railscope_collector.views.gpu_list import ListedReadings

SECOND_NS = 1_000_000_000
NOW_NS = 100 * SECOND_NS


def gpus_of(node: str, count: int) -> dict[int, str]:
    return {rail: f"GPU-{node}-{rail}" for rail in range(count)}


# Over HTTP ---------------------------------------------------------------------------------------


def test_the_pause_of_a_nic_is_that_of_pfc_or_of_the_whole_link_and_at_most_all_the_time() -> None:
    """The driver counts 0 of the other kind. The first NIC pauses the link by 1.02 s per second, the second one a priority."""
    counters = [(nic.PFC_SENT_TIME, ("3",)), (nic.GLOBAL_PAUSE_SENT_TIME, ())]
    names = ("eth0", "eth1")
    columns = tuple(
        (metric, Entity(metric.about, (name, *part), {} if part else {"rail": name[-1]}))
        for metric, part in counters
        for name in names
    )
    schema = Schema("nic", columns)
    batch = batch_of([[0] * 4, [0, 10**6, 4_080_000, 0]], boot_ns=[SECOND_NS, 5 * SECOND_NS])
    fleet, known = Fleet(), known_schema(schema)
    fleet.apply(NodeUpdate("n", "r", "b", known, batch, NOW_NS))
    read = ListedReadings({"n": gpus_of("n", 2)})
    for block in fleet.blocks():
        fresh = find_fresh_rows(block, fleet.fresh_rows(block, NOW_NS // 2, NOW_NS))
        assert fresh
        read.add(fresh)
    view = View("node", NOW_NS, (ViewCell(catalog.NODE_UP, ("n",), 1),))
    gpus = FleetGpus(CollectorViews(NOW_NS, node=view, gpus=read))
    assert [gpus.value(number, "pausing_ratio") for number in range(2)] == [1.0, 0.25]
    assert gpus.value(0, "paused_ratio") is None


def test_gpus_used_without_a_claim_are_counted_without_the_shares_that_claims_hold() -> None:
    """Claimed and used, claimed by half and used, used, idle; the claims of the last one are not known."""
    claimed = (GPU_CAPACITY, GPU_CAPACITY // 2, 0, 0, 0)
    gpus = [Entity(GPU, (uuid,), {"rail": rail}) for rail, uuid in zip("01234", "abcde", strict=True)]  # fmt: skip
    metrics = ("railscope_gpu_unclaimed_processes", "railscope_gpu_claimed_ratio")
    columns = tuple((METRICS[name], gpu) for name in metrics for gpu in gpus)
    fleet, known = Fleet(), known_schema(Schema("tenancy", columns))
    reasons = [[0] * 9 + [int(Absent.DENIED.value)]]
    batch = batch_of([[1, 1, 2, 0, 1, *claimed]], boot_ns=[SECOND_NS], reasons=reasons)
    fleet.apply(NodeUpdate("n", "r", "b", known, batch, NOW_NS))
    read = ListedReadings()
    assert read.unclaimed is None
    for block in fleet.blocks():
        fresh = find_fresh_rows(block, fleet.fresh_rows(block, NOW_NS // 2, NOW_NS))
        assert fresh
        read.add(fresh)
    assert read.unclaimed == 1.5
