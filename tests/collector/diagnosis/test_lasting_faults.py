"""Faults that last, that follow each other, that concern a whole node, or whose node falls silent; and what jobs lose by them."""

from __future__ import annotations

import numpy as np
import pytest
from support.drawn_cluster import GONE, RAILS, DrawnCluster, DrawnFeed, Row, gpu_uuid
from support.drawn_readings import (
    MAX_SLOTS,
    NODES,
    ONSET,
    classes_of,
    drawn_feed,
    healthy_feed,
    run,
)

from railscope.reading import Absent
from railscope.timestamps import SECOND_NS
from railscope.wire import WireEntity, WireEvent
from railscope_collector.diagnosis.findings import JobHistory
from railscope_collector.diagnosis.incidents import Incident
from railscope_collector.diagnosis.quantities import DeviceKind
from railscope_collector.workloads.job_roster import JobKey

NODE = 1


def open_of(found: list[Incident]) -> set[tuple[str, str]]:
    return classes_of([each for each in found if not each.ended_ns])


def hot(row: Row, index: int = 2) -> None:
    row.gpu["thermal"][NODE, index] = 1
    row.gpu["clock"][NODE, index] *= 0.6


def test_a_fault_that_outlasts_its_explanation_is_an_incident_of_its_own_again() -> None:
    explained = set[str]()
    feed = healthy_feed()

    def change(_: DrawnCluster, row: Row, since: int) -> None:
        if since >= 0:
            hot(row)
        if 10 <= since < 22:
            row.gpu["brake"][NODE] = 1
            row.gpu["clock"][NODE] *= 0.5
        if feed.diagnosis.view is not None:
            incidents = feed.diagnosis.tracker.incidents
            explained.update(each.class_name for each in incidents if each.explained_by)

    found = run(feed, change, ONSET + 50)
    (thermal,) = [each for each in found if each.class_name == "thermal_straggler"]
    (brake,) = [each for each in found if each.class_name == "hw_slowdown"]
    assert explained == {"thermal_straggler"}
    assert brake.ended_ns
    assert (thermal.explained_by, thermal.ended_ns) == ("", 0)


def test_an_error_that_explains_a_remap_lasts_until_the_remap() -> None:
    def change(_: DrawnCluster, row: Row, since: int) -> None:
        if since >= 0:
            row.gpu["remap"][NODE, 2] = 1
        if since == 14:
            row.gpu["ecc"][NODE, 2] = 1

    found = run(healthy_feed(), change, ONSET + 50)
    roots = {each.class_name for each in found if not each.explained_by and not each.ended_ns}
    assert roots == {"ecc_uncorrectable"}


@pytest.mark.parametrize("devices", [3, 8])
@pytest.mark.parametrize("name", ["link_down", "transceiver_degraded", "link_speed_low"])
def test_a_fault_of_many_nics_of_a_node_is_one_incident(name: str, devices: int) -> None:
    def change(cluster: DrawnCluster, row: Row, since: int) -> None:
        if since >= 0 and name == "link_down":
            row.nic["up"][NODE, :devices] = 0
            row.nic["speed"][NODE, :devices] = 0
            cluster.slow_job(row, cluster.job_of(NODE), 0.0)
        elif since >= 0 and name == "transceiver_degraded":
            row.nic["bit_errors"][NODE, :devices] = 1e-4
        elif since >= 0:
            row.nic["speed"][NODE, :devices] /= 2

    found = [each for each in run(healthy_feed(), change, ONSET + 20) if not each.explained_by]
    assert classes_of(found) == {(name, "node")}
    (incident,) = found
    assert len(incident.parts) == devices
    assert incident.cause.name == "node-0001"


def test_a_node_that_loses_its_gpus_is_one_incident_with_the_reports_of_the_driver() -> None:
    def change(cluster: DrawnCluster, row: Row, since: int) -> None:
        if since == 0:
            for index in range(4):
                entity = WireEntity("xid", (f"0000:{index:02x}:00.0", "79"))
                row.events.append((NODE, WireEvent("xid", 0, entity, 0, 0, {})))
        if since >= 0:
            row.absent |= {(NODE, index): Absent.GONE.value for index in range(4)}
            cluster.slow_job(row, cluster.job_of(NODE), 0.0)

    found = [each for each in run(healthy_feed(), change, ONSET + 20) if not each.explained_by]
    assert classes_of(found) == {("gpu_lost", "node")}
    signals = {each.signal: each.comparison for each in found[0].evidence}
    assert signals == {"utilization": "gone", "xid 79": "event"}


@pytest.mark.parametrize(("nodes_again", "is_ended"), [((3, 4, 5), True), ((0, 1, 2), False)])
def test_a_job_that_an_incident_ended_may_run_again_elsewhere(
    nodes_again: tuple[int, ...], *, is_ended: bool
) -> None:
    """A scheduler starts it again under its name, a moment after a lost GPU has ended it."""
    job, feed = JobKey("vision", "slurm", "7"), drawn_feed()
    first = feed.cluster.jobs[0]
    for slot in range(ONSET + 30):
        row, nodes = feed.cluster.draw(), tuple(first.nodes)
        if slot >= ONSET:
            row.absent[nodes[0], 3] = GONE
            feed.cluster.slow_job(row, first, 0.0)
        if slot >= ONSET + 12:
            nodes = nodes_again if slot >= ONSET + 15 else ()
        feed.put(slot, row)
        feed.diagnosis.arrange()
        gpus = [gpu_uuid(node, index) for node in nodes for index in range(8)]
        feed.diagnosis.evaluate(slot, {job: gpus} if gpus else {})
    (lost,) = [each for each in feed.diagnosis.tracker.incidents if each.severity != "info"]
    assert (lost.class_name, job in lost.ended_jobs) == ("gpu_lost", is_ended)


def test_a_fault_ended_a_job_that_ended_before_its_evaluation() -> None:
    """Jobs are known later than the readings of a slot: one is gone already when the slot before the fault is evaluated."""
    job, feed = JobKey("vision", "slurm", "7"), drawn_feed()
    first = feed.cluster.jobs[0]
    gpus = [gpu_uuid(node, index) for node in first.nodes for index in range(8)]
    for slot in range(ONSET + 12):
        row = feed.cluster.draw()
        if slot >= ONSET:
            row.absent[first.nodes[0], 3] = GONE
        feed.put(slot, row)
        feed.diagnosis.arrange()
        jobs_ns = feed.diagnosis.end_of(slot) + 8 * SECOND_NS
        feed.diagnosis.evaluate(slot, {job: gpus} if slot < ONSET - 1 else {}, jobs_ns)
    (lost,) = [each for each in feed.diagnosis.tracker.incidents if each.severity != "info"]
    assert (lost.class_name, {*lost.ended_jobs}) == ("gpu_lost", {job})


def test_a_device_with_an_incident_keeps_it_when_others_of_its_node_follow() -> None:
    def change(_: DrawnCluster, row: Row, since: int) -> None:
        if since >= 0:
            row.nic["bit_errors"][NODE, 0] = 1e-4
        if since >= 10:
            row.nic["bit_errors"][NODE, 1:5] = 1e-4

    found = run(healthy_feed(), change, ONSET + 30)
    assert open_of(found) == {("transceiver_degraded", "nic"), ("transceiver_degraded", "node")}
    assert len(found) == 2


@pytest.mark.parametrize("sends", [True, False])
@pytest.mark.parametrize("nodes", [2, 6])
def test_a_link_is_down_until_it_is_up(nodes: int, *, sends: bool) -> None:
    """Also where too few others are below the leaf to show that it should be up, and without recent traffic."""

    def change(cluster: DrawnCluster, row: Row, since: int) -> None:
        if not sends:
            row.nic["send"][:] = row.nic["receive"][:] = 0
        if 0 <= since < 60:
            row.nic["up"][NODE, 4] = 0
            cluster.slow_job(row, cluster.job_of(NODE), 0.0)

    feed = drawn_feed(nodes=nodes)
    assert open_of(run(feed, change, ONSET + 55)) >= {("link_down", "nic")}
    assert ("link_down", "nic") not in open_of(run(feed, change, ONSET + 75))


def test_a_port_that_was_never_up_does_not_fail() -> None:
    def change(_: DrawnCluster, row: Row, __: int) -> None:
        row.nic["up"][NODE, 4] = 0
        row.nic["send"][NODE, 4] = row.nic["receive"][NODE, 4] = 0

    assert run(drawn_feed(), change, ONSET + 20) == []


def test_a_lost_nic_does_not_hide_a_link_of_its_node_that_is_down() -> None:
    feed = healthy_feed()

    def change(cluster: DrawnCluster, row: Row, since: int) -> None:
        if since >= 0:
            gone, slot = NODE * RAILS + 2, ONSET + since
            feed.diagnosis.devices.sums[DeviceKind.NIC].add(
                np.array([feed.diagnosis.devices.sums[DeviceKind.NIC].index["device_gone"]]),
                np.array([slot]), np.array([[gone]]), np.ones((1, 1)), np.ones((1, 1)),
            )  # fmt: skip
            row.nic["up"][NODE, 6] = 0
            cluster.slow_job(row, cluster.job_of(NODE), 0.0)

    found = [each for each in run(feed, change, ONSET + 20) if not each.explained_by]
    assert sorted((each.class_name, each.cause.position) for each in found) == [
        ("link_down", NODE * RAILS + 6),
        ("nic_lost", NODE * RAILS + 2),
    ]


def test_an_incident_of_a_silent_node_is_open_until_the_node_reports_again() -> None:
    def change(_: DrawnCluster, row: Row, since: int) -> None:
        if 0 <= since < 8:
            row.nic["bit_errors"][5, 2] = 1e-4
        if 8 <= since < 60:
            row.stale_nodes.add(5)

    feed = healthy_feed()
    assert open_of(run(feed, change, ONSET + 58)) == {("transceiver_degraded", "nic")}
    (incident,) = run(feed, change, ONSET + 75)
    assert incident.ended_ns == feed.diagnosis.end_of(ONSET + 9)


def test_links_of_a_node_that_go_down_again_and_again_flap() -> None:
    """All at once they are those of a driver that is loaded again, once."""

    def change(_: DrawnCluster, row: Row, since: int) -> None:
        if since in {0, *often}:
            row.nic["downs"][NODE] = 1

    often: set[int] = set()
    assert run(healthy_feed(), change, ONSET + 20) == []
    often = {4, 8, 12}
    assert classes_of(run(healthy_feed(), change, ONSET + 20)) == {("link_flap", "node")}


def test_a_checkpoint_of_a_job_with_a_slow_client_shows_no_slow_server() -> None:
    def change(cluster: DrawnCluster, row: Row, since: int) -> None:
        job = cluster.jobs[0].nodes
        if since >= 0:
            row.mount["latency"][NODE] *= 20
            row.gpu["utilization"][job] *= 0.6
            cluster.slow_job(row, cluster.jobs[0], 0.6)
        if 20 <= since < 25:
            row.mount["operations"][job] *= 20
            row.mount["latency"][job] *= 4

    cluster = DrawnCluster(9, 1, 8, benign=False)
    del cluster.jobs[1:]
    cluster.jobs[0].nodes[:] = range(7)
    found = run(DrawnFeed(cluster, 110), change, ONSET + 50)
    assert classes_of(found) == {("storage_bound", "node")}
    assert len(found) == 1


# Jobs ---

SLOT_SECONDS = 10


def only(found: list[Incident], name: str) -> Incident:
    (incident,) = [each for each in found if each.class_name == name]
    return incident


def slow_receiver(cluster: DrawnCluster, row: Row, node: int, rail: int, speed: float) -> None:
    """A NIC pauses its switch, and the job of its node has this speed."""
    job = cluster.job_of(node)
    row.nic["pausing"][node, rail] = 0.3
    if job is not None:
        peers = [other for other in job.nodes if other != node]
        row.nic["paused"][peers, rail] = 0.05
    cluster.slow_job(row, job, speed)


def test_a_job_loses_time_from_the_onset_on() -> None:
    def change(cluster: DrawnCluster, row: Row, since: int) -> None:
        if since >= 0:
            slow_receiver(cluster, row, 1, 2, 0.6)

    feed = healthy_feed(job_nodes=4)
    incident = only(run(feed, change, ONSET + 36), "slow_receiver")
    ((key, speed),) = incident.job_speeds.items()
    gpus = 8 * len(feed.cluster.jobs[0].nodes)
    lost = sum(incident.lost_gpu_seconds.values())
    assert speed == pytest.approx(0.6, abs=0.04)
    assert lost == pytest.approx((1 - 0.6) * gpus * 36 * SLOT_SECONDS, rel=0.15)
    assert list(incident.lost_gpu_seconds) == [key.tenant]


def test_a_fault_that_lasts_longer_than_the_kept_past_is_compared_with_the_time_before_it() -> None:
    def change(cluster: DrawnCluster, row: Row, since: int) -> None:
        if since >= 0:
            slow_receiver(cluster, row, 1, 2, 0.6 if since < 220 else 0.85)

    feed = drawn_feed(job_nodes=4, slots=ONSET + 240)
    run(feed, change, ONSET + 220)
    incident = only(run(feed, change, ONSET + 240), "slow_receiver")
    (speed,) = incident.job_speeds.values()
    assert speed == pytest.approx(0.85, abs=0.04)


def test_a_job_that_works_in_another_way_from_now_on_is_compared_with_that_after_a_while() -> None:
    def change(cluster: DrawnCluster, row: Row, since: int) -> None:
        if since >= 0:
            nodes = cluster.jobs[0].nodes
            for device, name in ((row.gpu, "utilization"), (row.gpu, "nvlink"), (row.nic, "send")):
                device[name][nodes] *= 0.6

    feed = drawn_feed(job_nodes=4, slots=ONSET + 260)
    run(feed, change, ONSET + 40)
    assert open_of(feed.diagnosis.tracker.incidents) == {("dataloader_stall", "job")}
    run(feed, change, ONSET + 260)
    assert open_of(feed.diagnosis.tracker.incidents) == set()


def test_a_checkpoint_does_not_count_as_the_effect_of_a_fault() -> None:
    def change(cluster: DrawnCluster, row: Row, since: int) -> None:
        if since >= 0:
            row.nic["bit_errors"][1, 2] = 5e-5
        if since in {20, 21, 22}:
            cluster.slow_job(row, cluster.jobs[0], 0.05)

    incident = only(run(healthy_feed(job_nodes=4), change, ONSET + 40), "transceiver_degraded")
    assert incident.job_speeds == {}
    assert sum(incident.lost_gpu_seconds.values()) < 1


def test_the_incident_of_a_jobs_own_nic_is_charged_with_its_loss() -> None:
    """Both are on one rail: each job is a victim of the fault on its own nodes only."""

    def change(cluster: DrawnCluster, row: Row, since: int) -> None:
        if since >= 0:
            slow_receiver(cluster, row, cluster.jobs[0].nodes[0], 2, 0.5)
        if since >= 12:
            slow_receiver(cluster, row, cluster.jobs[1].nodes[0], 3, 0.7)

    feed = healthy_feed()
    found = run(feed, change, ONSET + 36)
    by_node = {
        feed.diagnosis.devices.nics[each.cause.position].node: each
        for each in found
        if each.class_name == "slow_receiver"
    }
    workloads = [{key.workload for key in each.job_speeds} for each in by_node.values()]
    assert sorted(map(sorted, workloads)) == [["101"], ["102"]]
    losses = [set(each.lost_gpu_seconds) for each in by_node.values()]
    assert sorted(map(sorted, losses)) == [["tenant-101"], ["tenant-102"]]


def test_a_fault_on_its_rail_is_not_charged_with_a_wait_of_a_job_that_is_found_later() -> None:
    def change(cluster: DrawnCluster, row: Row, since: int) -> None:
        if since >= 0:
            row.nic["pausing"][cluster.jobs[0].nodes[0], 2] = 0.3
            nodes = cluster.jobs[1].nodes
            for device, name in ((row.gpu, "utilization"), (row.gpu, "nvlink"), (row.nic, "send")):
                device[name][nodes] *= 0.6

    found = run(healthy_feed(), change, ONSET + 36)
    receiver, stall = only(found, "slow_receiver"), only(found, "dataloader_stall")
    assert receiver.detected_ns < stall.detected_ns
    assert receiver.lost_gpu_seconds.keys() <= {"tenant-101"}
    gpus = 8 * 2
    assert stall.lost_gpu_seconds == {
        "tenant-102": pytest.approx((1 - 0.6) * gpus * 36 * SLOT_SECONDS, rel=0.15)
    }


def test_idle_gpus_are_charged_once_where_two_faults_ended_their_job() -> None:
    """The first fault, which is charged, is not found while the second one begins."""
    job, feed = JobKey("vision", "slurm", "7"), drawn_feed()
    nodes = feed.cluster.jobs[0].nodes[:3]
    gpus = [gpu_uuid(node, index) for node in nodes for index in range(8)]
    for slot in range(ONSET + 20):
        row, since = feed.cluster.draw(), slot - ONSET
        if 0 <= since < 5 or since >= 10:
            row.absent[nodes[0], 3] = GONE
        if since >= 4:
            row.absent[nodes[1], 3] = GONE
        feed.put(slot, row)
        feed.diagnosis.arrange()
        feed.diagnosis.evaluate(slot, {job: gpus} if since < 4 else {})
    losses = [sum(each.lost_gpu_seconds.values()) for each in feed.diagnosis.tracker.incidents]
    assert sorted(losses) == [0, pytest.approx(len(gpus) * 15 * SLOT_SECONDS)]


YOUNG_JOB = JobKey("tenant-101", "slurm", "101")
"""A job without a past: its GPU waits for a remapping from the start."""


def young_job_feed(job_nodes: int) -> DrawnFeed:
    """Return a cluster with steps of 8 seconds in the traffic of its first job, and before its first slot."""
    feed = drawn_feed(job_nodes=job_nodes)
    feed.diagnosis.resume_jobs([(YOUNG_JOB, JobHistory(steps=[(0, 8.0)]))], 0)
    seconds = np.arange(10 * MAX_SLOTS)
    amounts = np.tile(1e9 * (1.0 + (seconds % 8 < 4)), (1, 8 * NODES, 1))
    feed.diagnosis.readings.traces.add(
        seconds[None], np.ones((1, len(seconds))), np.arange(8 * NODES)[None], amounts, amounts > 0
    )
    return feed


@pytest.mark.parametrize(("job_nodes", "nvlink", "lost_slots"), [(2, 0.0, 2), (1, 1.0, 0)])
def test_a_checkpoint_of_a_young_job_is_not_charged_back_to_the_onset_of_its_fault(
    job_nodes: int, nvlink: float, lost_slots: int
) -> None:
    """A job on one node goes on over NVLink: its NICs carried storage."""

    def change(cluster: DrawnCluster, row: Row, since: int) -> None:
        nodes = cluster.jobs[0].nodes
        row.gpu["remap"][nodes[0], 2] = 1
        if 10 <= since < 17:
            row.nic["send"][nodes] = row.nic["receive"][nodes] = 0.0
            row.gpu["nvlink"][nodes] *= nvlink

    feed = young_job_feed(job_nodes)
    remap = only(run(feed, change, ONSET + 24), "row_remap")
    assert YOUNG_JOB in remap.judged_jobs
    lost = remap.lost_gpu_seconds.get(YOUNG_JOB.tenant, 0)
    assert lost == pytest.approx(8 * job_nodes * lost_slots * SLOT_SECONDS)


def test_a_job_on_one_gpu_has_no_steps() -> None:
    feed = young_job_feed(job_nodes=1)
    running = {
        JobKey("vision", "slurm", str(count)): [gpu_uuid(node, index) for index in range(count)]
        for node, count in ((0, 1), (1, 2))
    }
    for slot in range(18):
        feed.put(slot, feed.cluster.draw())
        feed.diagnosis.arrange()
        feed.diagnosis.evaluate(slot, running)
    assert [key.workload for key in feed.diagnosis.steps] == ["2"]


def test_links_of_a_node_whose_job_has_ended_are_down_for_maintenance() -> None:
    """The last traffic is that of the job, 40 seconds before."""
    cluster = DrawnCluster(9, 1, 6, benign=False)
    cluster.jobs[0].nodes, cluster.jobs[1].nodes = [0, 1, 2, 3], [4, 5]
    feed = DrawnFeed(cluster, 160)

    def drain(_: DrawnCluster, row: Row, since: int) -> None:
        if since == -5:
            feed.end_job(cluster.jobs[1], ONSET - 4)
        if since >= 0:
            row.nic["up"][5] = 0

    run(feed, drain, ONSET + 40)
    assert {each.severity for each in feed.diagnosis.tracker.incidents} == {"info"}


@pytest.mark.parametrize(("job_nodes", "expected"), [(4, set()), (6, {("link_down", "node")})])
def test_links_of_a_node_without_a_job_are_down_for_maintenance(
    job_nodes: int, expected: set[tuple[str, str]]
) -> None:
    cluster = DrawnCluster(9, 1, 6, benign=False)
    cluster.jobs = cluster.jobs[:1]
    cluster.jobs[0].nodes = list(range(job_nodes))

    def take_down(_: DrawnCluster, row: Row, since: int) -> None:
        if since >= 0:
            row.nic["up"][5] = 0

    feed = DrawnFeed(cluster, 160)
    found = run(feed, take_down, ONSET + 80)
    assert {each for each in classes_of(found) if each[0] == "link_down"} == expected
    assert open_of(feed.diagnosis.tracker.incidents) >= {("link_down", "node")}
    assert len(feed.diagnosis.tracker.incidents) == 1


@pytest.mark.parametrize(
    ("rails", "slots", "expected"),
    [
        (RAILS, 18, [("nic_lost", "node", "info")]),
        (3, 18, [("nic_lost", "node", "critical")]),
        (1, 18, [("nic_lost", "nic", "critical")]),
        (1, 11, []),
        (RAILS, 11, []),
    ],
)
def test_nics_of_a_node_without_a_job_that_are_reset_are_not_lost(
    rails: int, slots: int, expected: list[tuple[str, str, str]]
) -> None:
    """All of them leave the bus when a driver is loaded again, one for new firmware; they return within two minutes."""
    cluster = DrawnCluster(9, 1, 6, benign=False)
    cluster.jobs = cluster.jobs[:1]
    cluster.jobs[0].nodes = list(range(4))
    feed = DrawnFeed(cluster, 160)
    sums = feed.diagnosis.devices.sums[DeviceKind.NIC]

    def reset(_: DrawnCluster, row: Row, since: int) -> None:
        for position in range(5 * RAILS, 5 * RAILS + rails) if 0 <= since < slots else ():
            sums.add(
                np.array([sums.index["device_gone"]]), np.array([ONSET + since]),
                np.array([[position]]), np.ones((1, 1)), np.ones((1, 1)),
            )  # fmt: skip
            row.nic["up"][5, position - 5 * RAILS] = np.nan

    run(feed, reset, ONSET + 30)
    found = feed.diagnosis.tracker.incidents
    assert [(each.class_name, each.cause.kind, each.severity) for each in found] == expected
