"""Windows of the evidence of incidents, and the uncertainty of their onsets."""

from __future__ import annotations

import pytest
from support.drawn_cluster import DrawnCluster, DrawnFeed, Row
from support.drawn_faults import hang
from support.drawn_readings import ONSET, Change, healthy_feed, run

from railscope.timestamps import parse_timestamp
from railscope_collector.diagnosis.findings import EVENT, SLOT_NS, Cause, Finding, FindingEvidence
from railscope_collector.diagnosis.incident_report import (
    IncidentDocument,
    incident_document,
    incident_schema,
)
from railscope_collector.diagnosis.incidents import Incident
from railscope_collector.diagnosis.jobs import PeerGroups

USUAL_SECONDS = 30.0


def document(feed: DrawnFeed, found: Incident) -> IncidentDocument:
    devices, shown_ns = feed.diagnosis.devices, feed.diagnosis.end_of(found.last_slot)
    return incident_document(found, devices, PeerGroups(devices), USUAL_SECONDS, shown_ns)


def slow_input(cluster: DrawnCluster, row: Row, since: int) -> None:
    if since >= 0:
        row.gpu["utilization"][cluster.jobs[0].nodes] *= 0.6
        cluster.slow_job(row, cluster.jobs[0], 0.6)


def gaps_of_long_steps(cluster: DrawnCluster, row: Row, since: int) -> None:
    if since >= 0 and since % 4 < 2:
        row.gpu["utilization"][cluster.jobs[0].nodes] = 0.02
        cluster.slow_job(row, cluster.jobs[0], 0.0)


def hung(cluster: DrawnCluster, row: Row, since: int) -> None:
    if since >= 0:
        hang(cluster).effect(cluster, row, since)


def straggler(cluster: DrawnCluster, row: Row, since: int) -> None:
    if since >= 0:
        cluster.slow_job(row, cluster.jobs[0], 0.6, (cluster.jobs[0].nodes[1], 2))


def paused(cluster: DrawnCluster, row: Row, since: int) -> None:
    if since >= 0:
        row.nic["pausing"][cluster.jobs[0].nodes[1], 2] = 0.2


@pytest.mark.parametrize(
    ("change", "class_name", "seconds", "uncertainty_seconds"),
    [
        (slow_input, "dataloader_stall", 120.0, 20.0),
        (gaps_of_long_steps, "dataloader_stall", 120.0, 120.0),
        (straggler, "gpu_straggler", 60.0, 60.0),
        (paused, "slow_receiver", USUAL_SECONDS, USUAL_SECONDS),
    ],
)
def test_evidence_states_the_window_that_its_detector_uses(
    change: Change, class_name: str, seconds: float, uncertainty_seconds: float
) -> None:
    feed = healthy_feed()
    (found,) = (each for each in run(feed, change, ONSET + 24) if each.class_name == class_name)
    shown = document(feed, found)
    assert shown.evidence[0].window_seconds == seconds
    assert shown.onset_uncertainty_seconds == uncertainty_seconds


def test_a_hang_may_have_begun_with_the_wait_of_the_job() -> None:
    feed = healthy_feed()
    (found,) = (each for each in run(feed, hung, ONSET + 40) if each.class_name == "nccl_hang")
    shown = document(feed, found)
    began_ns = feed.diagnosis.end_of(ONSET)
    earliest_ns = found.onset_ns - shown.onset_uncertainty_seconds * 1e9
    assert earliest_ns <= began_ns <= found.onset_ns
    assert shown.evidence[0].window_seconds == USUAL_SECONDS


def test_a_report_has_no_window_and_an_onset_within_a_slot() -> None:
    evidence = FindingEvidence("xid 79", 1.0, 0.0, EVENT, "n1 GPU 0", slots=0)
    finding = Finding("gpu_lost", Cause("gpu", 0), (evidence,), onset_ns=1)
    assert finding.uncertain_slots == 0
    feed = healthy_feed()
    (found,) = (e for e in run(feed, paused, ONSET + 24) if e.class_name == "slow_receiver")
    found.evidence, found.onset_slots = (evidence,), finding.uncertain_slots
    shown = document(feed, found)
    assert (shown.evidence[0].window_seconds, shown.onset_uncertainty_seconds) == (0.0, 10.0)


def paused_most_in_slot_8(cluster: DrawnCluster, row: Row, since: int) -> None:
    if 0 <= since < 14:
        row.nic["pausing"][cluster.jobs[0].nodes[1], 2] = 0.6 if since == 8 else 0.2


def test_evidence_has_its_worst_value_with_the_time_and_the_incident_its_last_evidence() -> None:
    feed = healthy_feed()
    slots = ONSET + 20
    (found,) = (
        each
        for each in run(feed, paused_most_in_slot_8, slots)
        if each.class_name == "slow_receiver"
    )
    shown = document(feed, found)
    first = shown.evidence[0]
    assert first.value is not None
    assert first.worst_value is not None
    assert first.worst_value > first.value
    assert first.worst_at is not None
    worst_slot = (parse_timestamp(first.worst_at) - feed.diagnosis.end_of(ONSET)) // SLOT_NS
    # The value is the mean of a window of three slots.
    assert 8 <= worst_slot <= 10
    assert f"; worst: {first.worst_value:.0%}".replace("%", " %") in first.text
    assert shown.ended is None
    assert shown.last_evidence is not None
    assert 0 < feed.diagnosis.end_of(slots - 1) - parse_timestamp(shown.last_evidence) < 9 * SLOT_NS


def test_the_schema_describes_window_and_uncertainty() -> None:
    definitions = incident_schema()["$defs"]
    assert isinstance(definitions, dict)
    assert "`window_seconds`" in definitions["EvidenceDocument"]["description"]
    assert "`onset_uncertainty_seconds`" in definitions["IncidentDocument"]["description"]
