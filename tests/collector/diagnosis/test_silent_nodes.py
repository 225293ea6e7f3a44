"""Nodes that do not report: down, separated or unknown; and the offsets of clocks."""

from __future__ import annotations

import pytest
from support.drawn_cluster import GONE, START_NS, DrawnCluster, Row
from support.drawn_faults import hang
from support.drawn_readings import NODES, ONSET, classes_of, healthy_feed, incidents_of, run

from railscope.timestamps import SECOND_NS
from railscope_collector.detector_thresholds import DetectorThresholds
from railscope_collector.diagnosis.findings import SLOT_NS
from railscope_collector.diagnosis.node_detectors import NodeContact


def test_delayed_receipts_leave_the_offset_of_a_clock() -> None:
    """The receipts of one node are late, as after a lost packet: its clock appears to be behind."""
    delayed, behind = NodeContact(), NodeContact()
    for number in range(8):
        at_ns = number * 5 * SECOND_NS
        delay = -0.3 if number > 4 else -0.002
        delayed.add(at_ns, round(delay * SECOND_NS))
        behind.add(at_ns, round(-0.3 * SECOND_NS))
    assert delayed.offset_seconds == pytest.approx(-0.002)
    assert behind.offset_seconds == pytest.approx(-0.3)


def test_the_distance_of_receipts_is_known_from_the_second_one() -> None:
    """An agent that sends every 15 seconds is stale after three missing receipts, also if only four came before."""
    contact = NodeContact()
    for second in (5, 19, 34, 49):
        contact.add(second * SECOND_NS, None)
    limits = DetectorThresholds().nodes
    assert not contact.is_stale(90 * SECOND_NS, limits)
    assert contact.is_stale(97 * SECOND_NS, limits)


def test_a_node_is_not_down_if_its_job_went_on_without_it() -> None:
    """A node that the collector does not receive from, and later a checkpoint of its job."""

    def cut(cluster: DrawnCluster, row: Row, since: int) -> None:
        if since >= 0:
            row.cut_nodes.add(cluster.jobs[0].nodes[1])
        if since >= 15:
            cluster.slow_job(row, cluster.jobs[0], 0.0)

    found = incidents_of(cut)
    assert ("agent_partition", "node") in classes_of(found)
    assert ("node_down", "node") not in classes_of(found)


@pytest.mark.parametrize(("timeouts", "is_down"), [(2.0, True), (0.0, False)])
def test_a_separated_node_is_down_if_its_job_stops_later_with_missed_acknowledgements(
    timeouts: float, *, is_down: bool
) -> None:
    def die(cluster: DrawnCluster, row: Row, since: int) -> None:
        nodes = cluster.jobs[0].nodes
        if since >= 0:
            row.cut_nodes.add(nodes[1])
        if since >= 15:
            row.stale_nodes.add(nodes[1])
            hang(cluster).effect(cluster, row, since)
            row.nic["timeouts"][nodes[0]] = timeouts * (since < 20)

    found = {
        each.class_name: each for each in incidents_of(die, ONSET + 50) if not each.explained_by
    }
    assert ("node_down" in found) == is_down
    if is_down:
        assert found["node_down"].onset_ns >= START_NS + (ONSET + 14) * SLOT_NS
        assert not found["node_down"].ended_ns
        assert "nccl_hang" not in found


@pytest.mark.parametrize(("before", "expected"), [(0, {("node_down", "node")}), (12, set())])
def test_a_node_that_its_peer_cannot_reach_is_down_although_others_send_on(
    before: int, expected: set[tuple[str, str]]
) -> None:
    """The NICs of its peer carry what others send. A peer that missed acknowledgements before does so for another reason."""

    def die(cluster: DrawnCluster, row: Row, since: int) -> None:
        first, second, *_ = nodes = cluster.jobs[0].nodes
        if -before <= since < 6:
            row.nic["timeouts"][first] = 2.0
        if since >= 0:
            row.stale_nodes.add(second)
            hang(cluster).effect(cluster, row, since)
            row.nic["send"][nodes] = row.nic["receive"][nodes] = 0.3

    found = classes_of(incidents_of(die, ONSET + 7, changes_past=True))
    assert {each for each in found if each[1] == "node"} == expected


def test_a_node_is_down_until_it_reports_although_its_job_ends_and_works_again() -> None:
    """The job may have other nodes now."""

    def die(cluster: DrawnCluster, row: Row, since: int) -> None:
        job = cluster.jobs[0]
        if 0 <= since < 30:
            row.stale_nodes.add(job.nodes[1])
        if 0 <= since < 14:
            cluster.slow_job(row, job, 0.0)
        if 8 <= since < 14:
            row.gpu["utilization"][job.nodes] = row.gpu["activity"][job.nodes] = 0.0

    feed = healthy_feed()
    (down,) = run(feed, die, ONSET + 30)
    assert (down.class_name, down.ended_ns, down.last_slot) == ("node_down", 0, ONSET + 29)
    assert run(feed, die, ONSET + 45) == [down]
    assert down.ended_ns


def test_a_node_that_falls_silent_after_its_job_has_stopped_is_not_down() -> None:
    """A lost GPU of another node stopped the job; the agent of the node restarts."""

    def lose(cluster: DrawnCluster, row: Row, since: int) -> None:
        nodes = cluster.jobs[0].nodes
        if since >= 0:
            hang(cluster).effect(cluster, row, since)
            row.absent[nodes[0], 3] = GONE
        if 8 <= since < 13:
            row.stale_nodes.add(nodes[2])

    roots = {each.class_name for each in incidents_of(lose) if not each.explained_by}
    assert roots == {"gpu_lost"}


def test_a_node_whose_agent_restarts_in_an_evaluation_is_not_down() -> None:
    """The ranks of an evaluation exchange data over NVLink, and hardly any over NICs."""

    def evaluate(cluster: DrawnCluster, row: Row, since: int) -> None:
        nodes = cluster.jobs[0].nodes
        if since >= 0:
            row.gpu["nvlink"][nodes] *= 0.4
            row.gpu["utilization"][nodes] *= 0.9
            for name in ("send", "receive"):
                row.nic[name][nodes] *= 0.04
        if 2 <= since < 6:
            row.stale_nodes.add(nodes[2])

    assert incidents_of(evaluate) == []


def test_a_separated_node_is_no_reason_why_its_job_is_slow() -> None:
    """Its agent is cut off, and later the storage becomes slow: the job waits for the storage."""

    def cut(cluster: DrawnCluster, row: Row, since: int) -> None:
        if since >= 0:
            row.cut_nodes.add(cluster.jobs[0].nodes[1])
        if since >= 6:
            row.mount["latency"] *= 25
            for job in cluster.jobs:
                row.gpu["utilization"][job.nodes] *= 0.6
                cluster.slow_job(row, job, 0.6)

    found = {each.class_name: each for each in incidents_of(cut, ONSET + 30)}
    assert found.keys() == {"agent_partition", "storage_bound"}
    assert not found["agent_partition"].job_speeds
    assert found["storage_bound"].job_speeds


def pause(cluster: DrawnCluster, row: Row, since: int, *, slots: int) -> None:
    """All GPUs of the first job spin for some slots, as in a checkpoint, and miss no acknowledgement."""
    if 0 <= since < slots:
        cluster.slow_job(row, cluster.jobs[0], 0.0)


def test_a_node_is_not_down_if_its_job_is_in_a_checkpoint_like_those_before() -> None:
    def cut(cluster: DrawnCluster, row: Row, since: int) -> None:
        if since >= 0:
            row.cut_nodes.add(cluster.jobs[0].nodes[1])
        for begin in (-30, -15, 0):
            pause(cluster, row, since - begin, slots=6)

    found = incidents_of(cut, changes_past=True)
    assert classes_of(found) == {("agent_partition", "node")}


def test_a_node_is_down_although_long_periods_show_its_job_at_work_for_some_time() -> None:
    """It ends almost a period after its last receipt, and the others show what they did in the period before."""

    def end(cluster: DrawnCluster, row: Row, since: int) -> None:
        job = cluster.jobs[0]
        if since % 3:
            row.cut_nodes.update(range(NODES))
        if since >= 0:
            row.stale_nodes.add(job.nodes[1])
        if since > 0:
            cluster.slow_job(row, job, 0.0)
            row.nic["timeouts"][job.nodes] += 0.5

    assert classes_of(incidents_of(end, changes_past=True)) == {("node_down", "node")}


def test_a_node_with_a_job_that_goes_on_after_all_is_separated() -> None:
    """The first checkpoint of a job begins as its node is cut off: the conclusion is replaced, not kept."""

    def cut(cluster: DrawnCluster, row: Row, since: int) -> None:
        if since >= 0:
            row.cut_nodes.add(cluster.jobs[0].nodes[1])
        pause(cluster, row, since, slots=8)

    down, separated = incidents_of(cut)
    assert (down.class_name, separated.class_name) == ("node_down", "agent_partition")
    assert down.ended_ns == separated.detected_ns
    assert down.explained_by == separated.incident_id
    assert not separated.ended_ns


@pytest.mark.parametrize("begin", [-ONSET, -6])
def test_a_job_that_ends_with_its_node_leaves_the_node_unknown(begin: int) -> None:
    """The GPUs of the other nodes are idle when the receipts end: nothing shows if the node is down, and nothing goes on."""

    def stop(cluster: DrawnCluster, row: Row, since: int) -> None:
        job = cluster.jobs[0]
        if since >= 0:
            row.stale_nodes.add(job.nodes[1])
        if since < begin or since >= 0:
            cluster.slow_job(row, job, 0.0)
            row.gpu["utilization"][job.nodes] = row.gpu["activity"][job.nodes] = 0.0

    assert not {"node_down", "agent_partition"} & {
        name for name, _ in classes_of(incidents_of(stop))
    }


@pytest.mark.parametrize("is_down", [True, False])
def test_a_node_whose_jobs_have_no_other_node_is_unknown(*, is_down: bool) -> None:
    """No other node shows if it works: its own readings are from before its last receipt."""

    def cut(cluster: DrawnCluster, row: Row, since: int) -> None:
        if since >= 0:
            (row.stale_nodes if is_down else row.cut_nodes).add(cluster.jobs[0].nodes[0])

    assert not incidents_of(cut, job_nodes=1)


def test_nodes_that_exchange_nothing_show_nothing_of_a_stale_one() -> None:
    """Replicas of a service: the others go on, if one of them is down or not."""

    def stop(cluster: DrawnCluster, row: Row, since: int) -> None:
        row.nic["send"][:] = row.nic["receive"][:] = 0.0
        if since >= 0:
            row.stale_nodes.add(cluster.jobs[0].nodes[1])

    assert not incidents_of(stop)


def test_a_node_that_works_is_separated_also_while_its_job_has_no_past() -> None:
    """The job has begun a minute before: its traffic after the last receipt shows that it goes on."""

    def cut(cluster: DrawnCluster, row: Row, since: int) -> None:
        if since < -6:
            cluster.slow_job(row, cluster.jobs[0], 0.0)
            row.gpu["utilization"][cluster.jobs[0].nodes] = 0.0
        if since >= 0:
            row.cut_nodes.add(cluster.jobs[0].nodes[1])

    (separated,) = incidents_of(cut, slots=ONSET + 12, changes_past=True)
    assert separated.class_name == "agent_partition"


def test_a_restart_of_an_agent_raises_only_info() -> None:
    """The job of its node goes on; after 90 seconds it would be a warning."""

    def restart(cluster: DrawnCluster, row: Row, since: int) -> None:
        if 0 <= since < 5:
            row.cut_nodes.add(cluster.jobs[0].nodes[1])

    assert not incidents_of(restart)


@pytest.mark.parametrize("slots", [9, 20])
def test_a_node_that_stops_after_its_job_hangs_did_not_stop_it(slots: int) -> None:
    def hang(cluster: DrawnCluster, row: Row, since: int) -> None:
        if since >= 0:
            cluster.slow_job(row, cluster.jobs[0], 0.0)
        if slots <= since < slots + 4:
            row.cut_nodes.add(cluster.jobs[0].nodes[1])

    assert ("node_down", "node") not in classes_of(incidents_of(hang))


def test_a_hang_is_reported_after_an_agent_has_restarted_in_its_first_minute() -> None:
    def stop(cluster: DrawnCluster, row: Row, since: int) -> None:
        if since >= 0:
            hang(cluster).effect(cluster, row, since)
        if 3 <= since < 8:
            row.stale_nodes.add(cluster.jobs[0].nodes[1])

    found = incidents_of(stop, ONSET + 40)
    assert [each.explained_by for each in found if each.class_name == "nccl_hang"] == [""]


def test_an_agent_that_restarts_after_another_node_has_stopped_the_job_is_not_down() -> None:
    def stop(cluster: DrawnCluster, row: Row, since: int) -> None:
        job = cluster.jobs[0]
        if since >= 0:
            row.stale_nodes.add(job.nodes[1])
            cluster.slow_job(row, job, 0.0)
        if 5 <= since < 10:
            row.cut_nodes.add(job.nodes[2])

    (incident,) = incidents_of(stop)
    assert (incident.class_name, incident.cause.name) == ("node_down", "node-0001")


@pytest.mark.parametrize(
    ("clock", "use", "every", "expected"),
    [(0.4, 1.0, 2, set()), (0.85, 0.92, 1, set()), (0.85, 1.0, 1, {("gpu_straggler", "gpu")})],
)
def test_moments_without_work_show_no_low_clock(
    clock: float, use: float, every: int, expected: set[tuple[str, str]]
) -> None:
    def moments(cluster: DrawnCluster, row: Row, since: int) -> None:
        job = cluster.jobs[0]
        if since >= 0:
            cluster.slow_job(row, job, 0.85)
            if since % every == 0:
                row.gpu["clock"][job.nodes[0], 0] *= clock
            row.gpu["utilization"][job.nodes[0], 0] *= use

    assert classes_of(incidents_of(moments)) == expected


def test_a_node_is_not_down_if_its_job_stores_its_state_for_the_first_time() -> None:
    def store(cluster: DrawnCluster, row: Row, since: int) -> None:
        nodes = cluster.jobs[0].nodes
        if 0 <= since < 8:
            for name, value in (("utilization", 1.0), ("activity", 0.15), ("nvlink", 0.0)):
                row.gpu[name][nodes] = value
            row.nic["send"][nodes] = row.nic["receive"][nodes] = 0.0
            row.mount["operations"][nodes[0]] = 400.0
            row.mount["latency"][nodes[0]] *= 20
            row.stale_nodes.add(nodes[1])

    assert not classes_of(incidents_of(store))


def test_a_node_is_down_also_while_its_job_loads_data_from_a_new_mount() -> None:
    """Until it is known how much the job reads, its reads are those of the minutes before."""

    def load(cluster: DrawnCluster, row: Row, since: int) -> None:
        nodes = cluster.jobs[0].nodes
        row.mount["operations"][nodes] = 45.0
        if since < -14:
            del row.mount["operations"]
        if since >= 0:
            row.stale_nodes.add(nodes[1])
            cluster.slow_job(row, cluster.jobs[0], 0.0)

    assert ("node_down", "node") in classes_of(incidents_of(load, slots=ONSET + 8))
