"""Incidents that no longer show their fault: evaluations that count as recovery, and those that do not."""

from __future__ import annotations

import pytest
from support.drawn_cluster import DrawnCluster, DrawnFeed, Row
from support.drawn_readings import ONSET, Change, healthy_feed, run

from railscope_collector.diagnosis.incidents import Incident


def paused_for_14_slots(cluster: DrawnCluster, row: Row, since: int) -> None:
    if 0 <= since < 14:
        row.nic["pausing"][cluster.jobs[0].nodes[1], 2] = 0.2


def paused_then_stale(cluster: DrawnCluster, row: Row, since: int) -> None:
    paused_for_14_slots(cluster, row, since)
    if since >= 14:
        row.stale_nodes.add(cluster.jobs[0].nodes[1])
        row.cut_nodes.add(cluster.jobs[0].nodes[1])


def lossy_for_14_slots(cluster: DrawnCluster, row: Row, since: int) -> None:
    nodes = cluster.jobs[0].nodes
    if 0 <= since < 14:
        row.nic["naks"][nodes[0], 2] = row.nic["order"][nodes[1], 2] = 20.0


def incident_of(feed: DrawnFeed, change: Change, class_name: str, slots: int) -> Incident:
    (found,) = (each for each in run(feed, change, slots) if each.class_name == class_name)
    return found


def slots_of_recovery(change: Change, class_name: str) -> list[int]:
    """Return the recovering slots of an incident after each evaluation until it ends."""
    feed = healthy_feed()
    found = incident_of(feed, change, class_name, ONSET + 13)
    shown = []
    for slot in range(ONSET + 13, ONSET + 40):
        run(feed, change, slot + 1)
        shown.append(found.recovering_slots)
        if found.ended_ns:
            break
    return shown


@pytest.mark.parametrize(
    ("change", "class_name", "first"),
    [(paused_for_14_slots, "slow_receiver", 3), (lossy_for_14_slots, "link_transmit_errors", 5)],
)
def test_an_incident_recovers_after_more_evaluations_without_evidence_than_its_class_allows(
    change: Change, class_name: str, first: int
) -> None:
    shown = slots_of_recovery(change, class_name)
    counts = [each for each in shown if each]
    assert counts == list(range(first, 9))
    assert shown[-1] == 0  # it has ended


def test_evaluations_without_samples_of_the_node_are_no_recovery() -> None:
    feed = healthy_feed()
    found = incident_of(feed, paused_then_stale, "slow_receiver", ONSET + 30)
    assert not found.ended_ns
    assert found.recovering_slots == 0


def test_the_time_of_an_interruption_is_no_recovery() -> None:
    feed = healthy_feed()
    found = incident_of(feed, paused_for_14_slots, "slow_receiver", ONSET + 18)
    before = found.quiet_slots
    feed.diagnosis.tracker.resume(feed.diagnosis.tracker.incidents, ONSET + 78)
    feed.diagnosis.evaluate(ONSET + 78)
    assert before <= 2
    assert not found.ended_ns
    assert (found.quiet_slots, found.recovering_slots) in {(0, 0), (1, 0)}
