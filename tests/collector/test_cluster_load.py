"""Load of the cluster over the last 15 minutes: what is not known is absent, and the points are bounded."""

from __future__ import annotations

from hypothesis import given, strategies as st

from railscope.catalog import account, derived_metric, rollups
from railscope.timestamps import SECOND_NS
from railscope_collector.fleet.view_cells import ViewCell
from railscope_collector.views.cluster_load import (
    HISTORY_NS,
    STEP_NS,
    ClusterLoad,
    extend_load,
    measure_load,
)

MINUTES = st.integers(-20 * 60, 20 * 60)


def cell(name: str, value: float, *labels: str) -> ViewCell:
    found = rollups()[f"railscope_cluster_{name}"]
    metric = derived_metric(found.source, found.scope, found.rollup)
    assert len(labels) == len(metric.about.labels)
    return ViewCell(metric, labels, value)


def test_what_no_node_reports_is_not_known() -> None:
    assert measure_load(5, (), None, None) == ClusterLoad(5)
    cells = [
        cell("sum_gpu_power_watts", 700.0),
        cell("sum_nic_transmit_bytes_per_second", 3.0),
        cell("sum_rdma_transmit_bytes_per_second", 2.0),
        cell("max_nic_receive_global_pause_ratio", 0.125),
        cell("max_nic_transmit_pfc_pause_ratio", 0.0, "0"),
        cell("max_nic_transmit_pfc_pause_ratio", 0.25, "3"),
        ViewCell(account.CLUSTER_JOBS, (), 3),
    ]
    assert measure_load(5, cells, 1.5, 7.0) == ClusterLoad(5, 1.5, None, 700.0, 2.0, 0.25, 3, 7.0)


@given(steps=st.lists(MINUTES, max_size=40))
def test_the_points_are_those_of_15_minutes_in_order(steps: list[int]) -> None:
    """Also if the clock is set back."""
    points: tuple[ClusterLoad, ...] = ()
    now_ns = 10**18
    for seconds in steps:
        now_ns += seconds * SECOND_NS
        points = extend_load(points, ClusterLoad(now_ns))
        times_ns = [each.timestamp_ns for each in points]
        assert times_ns[-1] == now_ns
        assert times_ns == sorted({*times_ns})
        assert now_ns - times_ns[0] <= HISTORY_NS
        slots = [each // STEP_NS for each in times_ns]
        assert len({*slots}) == len(slots) <= HISTORY_NS // STEP_NS + 2
