"""Readings of GPUs: stragglers and failures, beside GPUs that differ for another reason."""

from __future__ import annotations

import numpy as np
import pytest
from support.drawn_cluster import START_NS, DrawnCluster, DrawnFeed, Row, gpu_uuid
from support.drawn_faults import slow_gpu
from support.drawn_readings import NODES, ONSET, classes_of, incidents_of

from railscope.wire import WireEntity, WireEvent
from railscope_collector.diagnosis.findings import SLOT_NS
from railscope_collector.workloads.job_roster import JobKey


def test_a_straggler_is_found_in_a_job_that_often_stores_its_state() -> None:
    """Checkpoints of a minute, every 5 minutes, are in 40 % of the minutes."""
    faults = []

    def slow(cluster: DrawnCluster, row: Row, since: int) -> None:
        nodes = cluster.jobs[0].nodes
        if since == 0:
            faults.append(slow_gpu(cluster))
        if since >= 0:
            faults[0].effect(cluster, row, since)
        elif since % 30 in range(7, 13):
            row.gpu["activity"][nodes] *= 0.2
            row.gpu["power"][nodes] *= 0.4
            row.nic["send"][nodes] *= 0.01

    assert ("gpu_straggler", "gpu") in classes_of(incidents_of(slow, changes_past=True))


@pytest.mark.parametrize(("lead", "expected"), [(0.1, set()), (0.5, {("gpu_straggler", "gpu")})])
def test_a_gpu_that_waits_nearly_as_much_as_its_peers_does_not_straggle(
    lead: float, expected: set[tuple[str, str]]
) -> None:
    def slower(cluster: DrawnCluster, row: Row, since: int) -> None:
        if since >= 0:
            node = cluster.jobs[0].nodes[0]
            before = {name: row.gpu[name][node, 0] for name in ("activity", "power")}
            cluster.slow_job(row, cluster.jobs[0], 0.5)
            for name, value in before.items():
                fallen = row.gpu[name][node, 0]
                row.gpu[name][node, 0] = fallen + 2 * lead * (value - fallen)

    assert classes_of(incidents_of(slower)) == expected


def test_a_straggler_of_a_young_job_is_found_by_the_minutes_that_are_known() -> None:
    def slow(cluster: DrawnCluster, row: Row, since: int) -> None:
        if since >= 34 - ONSET:
            job = cluster.jobs[0]
            cluster.slow_job(row, job, 0.85, (job.nodes[0], 3))

    assert classes_of(incidents_of(slow, 46, changes_past=True)) == {("gpu_straggler", "gpu")}


@pytest.mark.parametrize("has_claims", [True, False])
def test_a_straggler_is_found_soon_after_a_restart(*, has_claims: bool) -> None:
    """The job restarts for three minutes, with its claims or without, and is slow two and a half minutes later."""
    cluster = DrawnCluster(9, 1, NODES, benign=False)
    job, feed = cluster.jobs[0], DrawnFeed(cluster, 50)
    gpus = [gpu_uuid(node, index) for node in job.nodes for index in range(8)]
    feed.diagnosis.arrange()
    for slot in range(50):
        row = cluster.draw()
        if slot < 18:
            for name in ("utilization", "activity", "nvlink"):
                row.gpu[name][job.nodes] = 0.0
            row.nic["send"][job.nodes] = row.nic["receive"][job.nodes] = 0.0
        if slot >= 34:
            cluster.slow_job(row, job, 0.6, (job.nodes[0], 3))
        feed.put(slot, row)
        running = {JobKey("vision", "slurm", "7"): gpus} if has_claims or slot >= 18 else {}
        feed.diagnosis.evaluate(slot, running)
    found = [each for each in feed.diagnosis.tracker.incidents if each.severity != "info"]
    assert classes_of(found) == {("gpu_straggler", "gpu")}


@pytest.mark.parametrize(("speed", "found"), [(0.9, set()), (0.8, {("gpu_straggler", "gpu")})])
def test_experts_that_take_turns_to_be_busy_are_not_slow(
    speed: float, found: set[tuple[str, str]]
) -> None:
    """Routing gives another GPU more work every two minutes, and one of them some more in the end; all wait for it."""

    def route(cluster: DrawnCluster, row: Row, since: int) -> None:
        turn, job = (since + ONSET) // 12, cluster.jobs[0]
        busy = job.nodes[turn % len(job.nodes)], turn % 8
        cluster.slow_job(row, job, 0.93 if turn < 10 else speed, busy)

    assert classes_of(incidents_of(route, 132, changes_past=True)) == found


def test_a_failure_that_becomes_a_worse_one_is_a_new_incident() -> None:
    """A GPU has a row to remap, and two minutes later an uncorrectable error."""

    def remap_and_error(_: DrawnCluster, row: Row, since: int) -> None:
        row.gpu["remap"][1, 2] = since >= 0
        if since == 12:
            entity = WireEntity("xid", ("0000:02:00.0", "95"))
            row.events.append((1, WireEvent("xid", 0, entity, 0, 0, {})))

    found = {each.class_name: each for each in incidents_of(remap_and_error)}
    assert found["ecc_uncorrectable"].severity == "critical"
    assert not found["ecc_uncorrectable"].explained_by
    assert found["row_remap"].explained_by == found["ecc_uncorrectable"].incident_id


def test_racks_of_two_pods_are_two_causes() -> None:
    def brake(_: DrawnCluster, row: Row, since: int) -> None:
        if since >= 0:
            nodes = [0, 1, NODES, NODES + 1]
            row.gpu["clock"][nodes] *= 0.5
            row.gpu["brake"][nodes] = 0.9

    found = incidents_of(brake, pods=2)
    assert [(each.class_name, len(each.parts)) for each in found] == [("hw_slowdown", 16)] * 2


def test_brakes_of_one_gpu_on_each_of_two_nodes_are_two_causes() -> None:
    def brake(_: DrawnCluster, row: Row, since: int) -> None:
        for node, gpu, first in ((1, 3, 0), (4, 6, 15)):
            if since >= first:
                row.gpu["clock"][node, gpu] *= 0.5
                row.gpu["brake"][node, gpu] = 0.9

    found = incidents_of(brake)
    assert [(each.class_name, each.cause.kind) for each in found] == [("hw_slowdown", "gpu")] * 2
    assert not any(each.explained_by for each in found)


@pytest.mark.parametrize("length", [2, 30])
def test_a_straggler_makes_the_others_wait_longer_than_20_seconds(length: int) -> None:
    """A busy expert does not; the mean of a minute would show both in six evaluations."""
    faults = []

    def delay(cluster: DrawnCluster, row: Row, since: int) -> None:
        if since == 0:
            faults.append(slow_gpu(cluster))
        if 0 <= since < length:
            faults[0].effect(cluster, row, since)

    found = [incident.class_name for incident in incidents_of(delay)]
    assert bool(found) == (length > 2)


def test_a_gpu_with_fewer_lanes_has_them_since_the_first_reading_that_shows_it() -> None:
    def narrow(_: DrawnCluster, row: Row, since: int) -> None:
        if since >= 0:
            row.gpu["width"][1, 2] = 8

    (incident,) = incidents_of(narrow)
    assert incident.class_name == "pcie_degraded"
    assert incident.onset_ns == START_NS + (ONSET + 1) * SLOT_NS


@pytest.mark.parametrize(
    ("count", "clock", "speed", "found"),
    [
        (1, 0.82, 0.85, {("gpu_straggler", "gpu")}),
        (1, 0.82, 1.0, set()),
        (1, 0.93, 0.85, set()),
        (20, 0.82, 0.85, set()),
    ],
)
def test_a_gpu_with_a_lower_clock_than_before_and_than_its_peers_straggles(
    count: int, clock: float, speed: float, found: set[tuple[str, str]]
) -> None:
    """Its power falls with its clock, so that it appears to wait as its peers do.

    Where its job has time for it, it raises no more than info; a cap of most GPUs names none.
    """

    def slow_clock(cluster: DrawnCluster, row: Row, since: int) -> None:
        nodes = cluster.jobs[0].nodes
        if since >= 0:
            cluster.slow_job(row, cluster.jobs[0], speed)
            clocks = row.gpu["clock"][nodes].ravel()
            clocks[:count] *= clock
            row.gpu["clock"][nodes] = clocks.reshape(len(nodes), -1)

    assert classes_of(incidents_of(slow_clock)) == found


@pytest.mark.parametrize(("lead", "expected"), [(0.2, set()), (0.42, {("gpu_straggler", "gpu")})])
def test_a_gpu_that_draws_less_power_than_before_straggles_if_its_peers_draw_far_less(
    lead: float, expected: set[tuple[str, str]]
) -> None:
    """GPUs without a measure of activity: a slow one does less work per second, and does not wait."""

    def slower(cluster: DrawnCluster, row: Row, since: int) -> None:
        row.gpu["activity"][:] = np.nan
        if since >= 0:
            node = cluster.jobs[0].nodes[0]
            before = row.gpu["power"][node, 0]
            cluster.slow_job(row, cluster.jobs[0], 0.6)
            fallen = row.gpu["power"][node, 0]
            row.gpu["power"][node, 0] = fallen + lead * (before - fallen)

    assert classes_of(incidents_of(slower, changes_past=True)) == expected


@pytest.mark.parametrize(("nodes", "count"), [(2, 2), (3, 0)])
def test_gpus_of_few_nodes_of_a_job_straggle_at_once(nodes: int, count: int) -> None:
    """One GPU each of more nodes has a part of the work of its own."""

    def slow_down(cluster: DrawnCluster, row: Row, since: int) -> None:
        members = cluster.jobs[0].nodes
        if since >= 0:
            before = {name: row.gpu[name].copy() for name in ("activity", "power")}
            cluster.slow_job(row, cluster.jobs[0], 0.7)
            for name, values in before.items():
                row.gpu[name][members[:nodes], 0] = values[members[:nodes], 0]

    found = incidents_of(slow_down, pods=2, job_nodes=7)
    assert sum(each.class_name == "gpu_straggler" for each in found) == count


@pytest.mark.parametrize(("slots", "found"), [(2, set()), (3, {("thermal_straggler", "gpu")})])
def test_heat_that_lowers_a_clock_for_half_a_minute_is_found(
    slots: int, found: set[tuple[str, str]]
) -> None:
    """The job then waits for another fault, and its GPUs cool down."""

    def heat(_: DrawnCluster, row: Row, since: int) -> None:
        row.gpu["thermal"][1, 2] = 0.05
        if 0 <= since < slots:
            row.gpu["thermal"][1, 2] = 1.0
            row.gpu["clock"][1, 2] *= 0.8

    incidents = incidents_of(heat)
    assert classes_of(incidents) == found
    assert all(each.onset_ns == START_NS + (ONSET + 1) * SLOT_NS for each in incidents)


def test_heat_of_a_whole_node_is_one_incident_and_so_is_that_of_a_rack() -> None:
    """One GPU of a node gets hot first, then all of them, then those of another node."""

    def heat(_: DrawnCluster, row: Row, since: int) -> None:
        hot = [(1, slice(2, 3 if since < 12 else 8)), (2, slice(0, 8 if since >= 24 else 0))]
        for node, gpus in hot if since >= 0 else ():
            row.gpu["thermal"][node, gpus] = 1.0
            row.gpu["clock"][node, gpus] *= 0.8

    gpu, node, rack = incidents_of(heat)
    assert [each.cause.kind for each in (gpu, node, rack)] == ["gpu", "node", "rack"]
    assert (gpu.explained_by, node.explained_by) == (node.incident_id, rack.incident_id)
    assert (len(node.parts), len(rack.parts)) == (6, 14)
    assert not rack.explained_by


def test_few_hot_gpus_of_a_node_are_not_the_node() -> None:
    def heat(_: DrawnCluster, row: Row, since: int) -> None:
        if since >= 0:
            row.gpu["thermal"][1, :3] = 1.0
            row.gpu["clock"][1, :3] *= 0.8

    assert [each.cause.kind for each in incidents_of(heat)] == ["gpu"] * 3


def test_heat_of_a_gpu_without_work_slows_down_nothing() -> None:
    """Its clock is low because it is idle. The last node is in no job."""

    def heat(cluster: DrawnCluster, row: Row, since: int) -> None:
        node = cluster.nodes - 1
        assert cluster.job_of(node) is None
        if since >= 0:
            row.gpu["thermal"][node, 2] = 1.0
            row.gpu["clock"][node, 2] = 0.1 * row.gpu["clock"][0, 0]
            row.gpu["utilization"][node, 2] = 0.0

    assert incidents_of(heat, job_nodes=3) == []


@pytest.mark.parametrize("signals", [("activity", "power"), ("power",)])
@pytest.mark.parametrize(
    ("more", "slow_nodes", "expected"),
    [(1.0, 1, {("gpu_straggler", "node")}), (1.3, 1, {("gpu_straggler", "node")}), (1.0, 3, set())],
)
def test_a_node_whose_gpus_stay_busy_while_all_others_wait_straggles(
    signals: tuple[str, ...], more: float, slow_nodes: int, expected: set[tuple[str, str]]
) -> None:
    """Its GPUs do not differ from each other, and may work more than before; half of the nodes have other work."""

    def slow(cluster: DrawnCluster, row: Row, since: int) -> None:
        if "activity" not in signals:
            row.gpu["activity"][:] = np.nan
        if since >= 0:
            nodes = cluster.jobs[0].nodes[:slow_nodes]
            before = {name: row.gpu[name][nodes] * more for name in signals}
            cluster.slow_job(row, cluster.jobs[0], 0.7)
            for name, values in before.items():
                row.gpu[name][nodes] = values

    found = incidents_of(slow, changes_past=True)
    assert classes_of(found) == expected
    assert all(len(each.parts) == 8 for each in found)


@pytest.mark.parametrize(("more", "expected"), [(1.0, set()), (1.3, {("gpu_straggler", "node")})])
def test_the_usual_difference_of_the_nodes_of_a_young_job_is_unknown(
    more: float, expected: set[tuple[str, str]]
) -> None:
    """Its known past is less than three minutes: a node that stays 12 % above the others may be usual, one with far more is not."""

    def slow(cluster: DrawnCluster, row: Row, since: int) -> None:
        nodes = cluster.jobs[0].nodes
        if since < -24:
            for name in ("activity", "power", "utilization", "nvlink"):
                row.gpu[name][nodes] = np.nan
        if 0 <= since < 10:
            before = row.gpu["activity"][nodes[0]] * more
            cluster.slow_job(row, cluster.jobs[0], 0.88)
            row.gpu["activity"][nodes[0]] = before

    assert classes_of(incidents_of(slow, changes_past=True)) == expected


def test_a_node_whose_gpus_all_have_a_lower_clock_is_one_straggler() -> None:
    def slow_clock(cluster: DrawnCluster, row: Row, since: int) -> None:
        if since >= 0:
            cluster.slow_job(row, cluster.jobs[0], 0.85)
            row.gpu["clock"][cluster.jobs[0].nodes[1]] *= 0.8

    (found,) = incidents_of(slow_clock)
    assert (found.class_name, found.cause.kind, len(found.parts)) == ("gpu_straggler", "node", 8)


@pytest.mark.parametrize(
    ("clock", "expected"), [(0.94, set()), (0.8, {("thermal_straggler", "gpu")})]
)
def test_few_moments_of_heat_count_only_with_a_clock_that_is_clearly_lower(
    clock: float, expected: set[tuple[str, str]]
) -> None:
    """Two of three readings of moments show it: that may be a seventh of the time."""

    def heat(_: DrawnCluster, row: Row, since: int) -> None:
        if since >= 0:
            row.gpu["thermal"][1, 2] = float(since % 3 > 0)
            row.gpu["clock"][1, 2] *= clock

    assert classes_of(incidents_of(heat)) == expected
