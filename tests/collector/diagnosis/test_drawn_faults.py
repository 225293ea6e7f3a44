"""Faults of drawn clusters: each becomes one incident with its class and cause, and healthy hours none."""

from __future__ import annotations

import copy
import re
from dataclasses import replace

import numpy as np
import pytest
from support.cases import third_of
from support.drawn_cluster import START_NS, DrawnCluster, DrawnFeed
from support.drawn_faults import FAULTS, DrawnFault
from support.drawn_readings import ONSET, healthy_feed

from railscope.timestamps import SECOND_NS
from railscope.wire import WireEntity, WireEvent
from railscope_collector.diagnosis.cluster_diagnosis import ClusterDiagnosis
from railscope_collector.diagnosis.devices import MAX_DEVICES_PER_NODE
from railscope_collector.diagnosis.findings import SLOT_NS
from railscope_collector.diagnosis.incident_classes import CLASSES
from railscope_collector.diagnosis.incidents import Incident
from railscope_collector.diagnosis.jobs import MAX_CLAIMS_PER_GPU, ClaimedGpus, PeerGroups
from railscope_collector.diagnosis.node_readings import NodeEvent
from railscope_collector.diagnosis.quantities import DeviceKind
from railscope_collector.diagnosis.ranking import EDGES
from railscope_collector.workloads.job_roster import JobKey
from railscope_simulator.cluster.scoring import goal_of

SEED = 9
ONSET_SLOT, FAULT_SLOTS = 60, 36


def incidents_above_info(diagnosis: ClusterDiagnosis) -> list[Incident]:
    """Incidents for an operator: no advice, and none that another one explains."""
    incidents = diagnosis.tracker.incidents
    return [each for each in incidents if each.severity != "info" and not each.explained_by]


def assert_found(diagnosis: ClusterDiagnosis, fault: DrawnFault) -> None:
    """All incidents have the class and the cause of a fault, and the first is detected before its deadline."""
    found = incidents_above_info(diagnosis)
    assert {each.class_name for each in found} == {fault.incident_class}
    assert all(fault.is_cause(each, diagnosis.devices) for each in found)
    onset_ns = START_NS + ONSET_SLOT * SLOT_NS
    # Three missing samples prove that a node is stale, and the last frame before a silence may be lost.
    period_seconds = max(each.period_seconds for each in diagnosis.contacts.values())
    deadline_seconds = goal_of(fault.incident_class).deadline_seconds
    limit_ns = max(deadline_seconds, 4 * period_seconds) * SECOND_NS + 2 * SLOT_NS
    detected = [each.detected_ns for each in found if each.onset_ns >= onset_ns - SLOT_NS]
    assert detected[0] - onset_ns <= limit_ns


@pytest.fixture(scope="module")
def healthy() -> DrawnFeed:
    """A cluster until the onset of its fault: the same for every fault."""
    feed = DrawnFeed(DrawnCluster(SEED, 1, 6), ONSET_SLOT + FAULT_SLOTS)
    for slot in range(ONSET_SLOT):
        feed.evaluate(slot, feed.cluster.draw())
    return feed


@pytest.mark.parametrize("name", third_of(sorted(FAULTS)))
def test_a_fault_is_one_incident_with_its_cause(name: str, healthy: DrawnFeed) -> None:
    feed = copy.deepcopy(healthy)
    fault = FAULTS[name](feed.cluster)
    for number in range(FAULT_SLOTS):
        row = feed.cluster.draw()
        fault.effect(feed.cluster, row, number)
        feed.put(ONSET_SLOT + number, row)
        feed.diagnosis.arrange()
        feed.diagnosis.evaluate(ONSET_SLOT + number)
    assert_found(feed.diagnosis, fault)


@pytest.mark.parametrize("late_slots", [1, 2])
def test_readings_may_arrive_after_the_evaluation_of_their_slot(late_slots: int) -> None:
    """The incast is more than a share of the speed of the link, of which no slot has a reading when it is evaluated."""
    cluster = DrawnCluster(SEED, 1, 6, benign=False)
    fault = FAULTS["incast_receiver"](cluster)
    feed = DrawnFeed(cluster, 90)
    for slot in range(90 - late_slots):
        row = cluster.draw()
        if slot >= ONSET_SLOT:
            fault.effect(cluster, row, slot - ONSET_SLOT)
        feed.put(slot, row)
        feed.diagnosis.arrange()
        feed.diagnosis.evaluate(slot + late_slots)
    assert_found(feed.diagnosis, fault)


def test_a_healthy_cluster_has_no_incident() -> None:
    feed = DrawnFeed(DrawnCluster(SEED, 1, 6), 180)
    for slot in range(180):
        feed.evaluate(slot, feed.cluster.draw())
    assert not incidents_above_info(feed.diagnosis)


def test_two_faults_are_two_incidents() -> None:
    feed = healthy_feed()
    cluster = feed.cluster
    first, second = FAULTS["gpu_lost"](cluster), FAULTS["transceiver_degraded"](cluster)
    for slot in range(ONSET, 90):
        row = cluster.draw()
        if slot >= 50:
            first.effect(cluster, row, slot - 50)
            second.effect(cluster, row, slot - 50)
        feed.evaluate(slot, row)
    roots = {i.incident_class.name for i in feed.diagnosis.tracker.incidents if not i.explained_by}
    assert roots == {"gpu_lost", "transceiver_degraded"}


def test_a_failure_lasts_while_its_device_shows_it() -> None:
    feed = healthy_feed()
    cluster = feed.cluster
    ended = []
    for slot in range(ONSET, 170):
        row = cluster.draw()
        if slot == 50:
            entity = WireEntity("xid", ("0000:02:00.0", "95"))
            row.events.append((1, WireEvent("xid", 0, entity, 0, 0, {})))
        if 54 <= slot < 150:
            row.gpu["remap"][1, 2] = 1
        feed.evaluate(slot, row)
        ended.append([incident.ended_ns for incident in feed.diagnosis.tracker.incidents])
    (incident,) = feed.diagnosis.tracker.incidents
    assert (incident.class_name, incident.symptoms) == ("ecc_uncorrectable", {"row_remap"})
    assert ended[148 - ONSET] == [0]
    assert incident.ended_ns > 0


@pytest.mark.parametrize(
    ("xid", "found"),
    [("48", "ecc_uncorrectable"), ("94", "ecc_uncorrectable"), ("63", "row_remap")],
)
def test_an_error_with_its_remap_is_one_incident(xid: str, found: str) -> None:
    feed = healthy_feed()
    cluster = feed.cluster
    for slot in range(ONSET, 80):
        row = cluster.draw()
        if slot == 50:
            entity = WireEntity("xid", ("0000:02:00.0", xid))
            row.events.append((1, WireEvent("xid", 0, entity, 0, 0, {})))
        if slot >= 50:
            row.gpu["remap"][1, 2] = 1
        feed.evaluate(slot, row)
    assert [each.class_name for each in feed.diagnosis.tracker.incidents] == [found]


def test_a_job_that_hangs_after_an_error_of_its_gpu_is_a_victim() -> None:
    """No counter shows a link that is down: the report of the driver explains what begins well after it."""
    feed = healthy_feed()
    cluster = feed.cluster
    hang = FAULTS["nccl_hang"](cluster)
    for slot in range(ONSET, 100):
        row = cluster.draw()
        if slot == 50:
            entity = WireEntity("xid", ("0000:02:00.0", "74"))
            row.events.append((cluster.jobs[0].nodes[1], WireEvent("xid", 0, entity, 0, 0, {})))
        if slot >= 55:
            hang.effect(cluster, row, slot - 55)
        feed.evaluate(slot, row)
    roots = [i.class_name for i in feed.diagnosis.tracker.incidents if not i.explained_by]
    assert roots == ["nvlink_errors"]


def test_pods_of_one_job_are_one_job() -> None:
    claims = ClaimedGpus(pods=re.compile(r"(?P<job>.+)-worker-\d+"))
    for number, pod in enumerate(("bert-worker-0", "bert-worker-1", "api-0")):
        entity = WireEntity("claim", (f"GPU-{number}", f"claim-{number}"))
        facts = {"source": "kubernetes", "owner": "team", "workload": f"team/{pod}"}
        event = WireEvent("claim_start", 0, entity, 0, 0, facts)
        claims.add(NodeEvent(10, f"node-{number}", event))
    assert claims.jobs_at(20) == {
        JobKey("team", "kubernetes", "team/bert"): ["GPU-0", "GPU-1"],
        JobKey("team", "kubernetes", "team/api-0"): ["GPU-2"],
    }


@pytest.mark.parametrize("last_slot", [48, 49, 50])
def test_a_job_that_a_fault_ended_is_its_victim_but_none_that_ended_before(last_slot: int) -> None:
    """The error is reported at the start of slot 50, and concluded when the job has ended."""
    cluster = DrawnCluster(SEED, 1, 6, benign=False)
    feed = DrawnFeed(cluster, 60)
    for slot in range(60):
        row = cluster.draw()
        if slot == 50:
            entity = WireEntity("xid", ("0000:02:00.0", "48"))
            row.events.append((1, WireEvent("xid", 0, entity, 0, 0, {})))
        if slot >= 50:
            row.gpu["ecc"][1, 2] = 1
        feed.put(slot, row)
        feed.diagnosis.arrange()
        jobs = feed.diagnosis.claims.jobs_at(feed.diagnosis.end_of(slot))
        feed.diagnosis.evaluate(slot, jobs if slot <= last_slot else {})
    (incident,) = feed.diagnosis.tracker.incidents
    assert [job.workload for job in incident.holders] == ["101"] * (last_slot >= 49)


@pytest.mark.parametrize(
    ("key", "found"),
    [
        (("0000:02:00.0", "62"), [("xid_event", "critical")]),
        (("0000:02:00.0", "13"), []),
        (("0000:02:00.0", "9" * 5000), []),
        (("0000:02:00.0", "79\n"), []),
        (("0000:02:00.0",), []),
        (("elsewhere", "79"), []),
        ((), []),
    ],
)
def test_an_event_of_any_form_ends_no_evaluation(
    key: tuple[str, ...], found: list[tuple[str, str]]
) -> None:
    cluster = DrawnCluster(SEED, 1, 4, benign=False)
    feed = DrawnFeed(cluster, 4)
    for slot in range(4):
        row = cluster.draw()
        if slot == 2:
            row.events.append((1, WireEvent("xid", 0, WireEntity("xid", key), 0, 0, {})))
        feed.evaluate(slot, row)
    incidents = feed.diagnosis.tracker.incidents
    assert [(each.class_name, str(each.severity)) for each in incidents] == found


REBOOT = ("154", "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)")
DRAIN = ("154", "GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)")
DONE = ("154", "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)")


@pytest.mark.parametrize(
    ("xids", "found"),
    [
        ([("145", "RLW_SRC_TRACK Nonfatal XC1 i0 Link 12")], []),
        ([("145", "RLW_SRC_TRACK Fatal XC1 i0 Link 12")], [("nvlink_errors", "warning")]),
        ([("145", "")], [("nvlink_errors", "warning")]),
        ([("74", "")], [("nvlink_errors", "warning")]),
        ([REBOOT], [("xid_event", "critical")]),
        ([DRAIN], [("xid_event", "warning")]),
        ([DONE], []),
        ([("154", "")], []),
        ([("79", ""), REBOOT], [("gpu_lost", "critical")]),
        ([("149", "NETIR_LINK_EVT Fatal XC0 i0 Link 08"), REBOOT], [("nvlink_errors", "warning")]),
        ([("149", "NETIR_BER_EVENT Nonfatal XC0 i0 Link 08"), REBOOT], [("xid_event", "critical")]),
        ([("62", ""), REBOOT], [("xid_event", "critical")]),
    ],
)
@pytest.mark.parametrize("slots_between", [0, 2])
def test_the_text_of_an_xid_states_whether_the_hardware_needs_attention(
    slots_between: int, xids: list[tuple[str, str]], found: list[tuple[str, str]]
) -> None:
    cluster = DrawnCluster(SEED, 1, 4, benign=False)
    feed = DrawnFeed(cluster, 12)
    for slot in range(12):
        row = cluster.draw()
        for place, (number, text) in enumerate(xids):
            if slot == 2 + slots_between * place:
                entity = WireEntity("xid", ("0000:02:00.0", number))
                row.events.append((1, WireEvent("xid", 0, entity, 0, 0, {"message": text})))
        feed.evaluate(slot, row)
    incidents = feed.diagnosis.tracker.incidents
    assert [(each.class_name, str(each.severity)) for each in incidents] == found


@pytest.mark.parametrize("name", ["node_down", "agent_partition"])
def test_a_node_of_a_job_without_a_past_is_down_or_only_separated(name: str) -> None:
    cluster = DrawnCluster(SEED, 1, 6, benign=False)
    fault, feed = FAULTS[name](cluster), DrawnFeed(cluster, 30)
    for slot in range(30):
        row = cluster.draw()
        if slot >= 10:
            fault.effect(cluster, row, slot - 10)
        feed.evaluate(slot, row)
    assert [each.class_name for each in feed.diagnosis.tracker.incidents] == [name]


@pytest.mark.parametrize(
    ("share", "jobs", "found"),
    [
        (1.0, 1, [("leaf-0-2", ["leaf-1-2"])]),
        (0.2, 1, [("leaf-0-2", [])]),
        (1.0, 2, [("leaf-0-2", []), ("leaf-1-2", [])]),
    ],
)
def test_leaves_of_one_job_that_lose_alike_are_alternatives(
    share: float, jobs: int, found: list[tuple[str, list[str]]]
) -> None:
    cluster = DrawnCluster(SEED, 2, 6, benign=False)
    cluster.jobs = cluster.jobs[:jobs]
    for job, nodes in zip(cluster.jobs, np.array_split(np.arange(12), jobs), strict=True):
        job.nodes = nodes.tolist()
    feed = DrawnFeed(cluster, 80)
    for slot in range(80):
        row = cluster.draw()
        if slot >= 50:
            for nodes, lost in ((slice(6), 5.0), (slice(6, 12), share * 5.0)):
                row.nic["naks"][nodes, 2] = row.nic["order"][nodes, 2] = lost
        feed.evaluate(slot, row)
    leaves = PeerGroups(feed.diagnosis.devices).leaf_names
    roots = [i for i in feed.diagnosis.tracker.incidents if not i.explained_by]
    assert [(i.cause.name, [leaves[p] for p in i.alternatives]) for i in roots] == found
    assert {each.class_name for each in roots} == {"leaf_loss"}


def test_the_only_two_leaves_of_a_job_lose_alike_where_one_of_them_drops() -> None:
    """All rails of a pod have one leaf: the other leaf, which exchanges with it, loses as much."""
    cluster = DrawnCluster(SEED, 2, 6, benign=False)
    cluster.leaf_name = "leaf-{pod}"
    cluster.jobs = cluster.jobs[:1]
    cluster.jobs[0].nodes = list(range(12))
    feed = DrawnFeed(cluster, 80)
    for slot in range(80):
        row = cluster.draw()
        if slot >= 50:
            row.nic["naks"][:] = row.nic["order"][:] = 20.0
        feed.evaluate(slot, row)
    leaves = PeerGroups(feed.diagnosis.devices).leaf_names
    (found,) = feed.diagnosis.tracker.incidents
    assert (found.class_name, found.cause.name) == ("leaf_loss", "leaf-0")
    assert [leaves[position] for position in found.alternatives] == ["leaf-1"]


def test_a_nic_that_stops_receiving_is_not_slow_before_it_is_a_storm() -> None:
    feed = healthy_feed()
    cluster = feed.cluster
    for slot in range(ONSET, 70):
        row = cluster.draw()
        if slot >= 50:  # a frame of the first slot is from the time before, or late
            row.nic["pausing"][1, 2] = 0.3 if slot == 50 else 0.95
            row.nic["receive"][1, 2] *= 0.6 if slot == 50 else 0.0
        feed.evaluate(slot, row)
    assert [each.class_name for each in feed.diagnosis.tracker.incidents] == ["pfc_storm"]


def test_a_slow_file_server_explains_no_job_that_does_not_use_it() -> None:
    cluster = DrawnCluster(SEED, 1, 8, benign=False)
    other, client = cluster.jobs
    stall, feed = FAULTS["dataloader_stall"](cluster), DrawnFeed(cluster, 90)
    for slot in range(90):
        row = cluster.draw()
        row.mount["operations"][other.nodes] = 0.0
        if slot >= 50:
            stall.effect(cluster, row, slot - 50)
            row.mount["latency"][client.nodes] *= 20
            row.gpu["utilization"][client.nodes] *= 0.4
            cluster.slow_job(row, client, 0.4)
        feed.evaluate(slot, row)
    roots = {i.class_name for i in feed.diagnosis.tracker.incidents if not i.explained_by}
    assert roots == {"storage_bound", "dataloader_stall"}


def test_a_slow_file_server_is_not_the_reason_for_a_late_host() -> None:
    cluster = DrawnCluster(SEED, 1, 8, benign=False)
    late, feed = FAULTS["host_late"](cluster), DrawnFeed(cluster, 90)
    for slot in range(90):
        row = cluster.draw()
        if slot >= 50:
            late.effect(cluster, row, slot - 50)
            row.mount["latency"] *= 8
        feed.evaluate(slot, row)
    roots = {i.class_name for i in feed.diagnosis.tracker.incidents if not i.explained_by}
    assert roots == {"host_late"}


def test_pause_without_a_cause_is_reported_as_such() -> None:
    feed = healthy_feed()
    cluster = feed.cluster
    for slot in range(ONSET, 90):
        row = cluster.draw()
        if slot >= 50:
            row.nic["paused"][cluster.jobs[0].nodes, 2] = 0.2
        feed.evaluate(slot, row)
    (incident,) = feed.diagnosis.tracker.incidents
    assert (incident.incident_class.name, incident.severity) == ("paused_unlocalised", "info")
    assert incident.cause.name == "leaf-0-2"


def test_what_is_recorded_later_does_not_change_an_incident() -> None:
    cluster = DrawnCluster(SEED, 1, 6)
    fault = FAULTS["slow_receiver"](cluster)
    whole, cut = DrawnFeed(cluster, 96), DrawnFeed(cluster, 96)
    rows = []
    for slot in range(96):
        row = cluster.draw()
        if slot >= 60:
            fault.effect(cluster, row, slot - 60)
        rows.append(row)
    state = cluster.rng.bit_generator.state
    for slot, row in enumerate(rows):
        whole.put(slot, row)
    whole.diagnosis.arrange()
    for slot in range(96):
        whole.diagnosis.evaluate(slot)
    (incident,) = whole.diagnosis.tracker.incidents
    last = (incident.detected_ns - whole.diagnosis.first_ns) // whole.diagnosis.slot_ns - 1
    cluster.rng.bit_generator.state = state
    for slot, row in enumerate(rows[: last + 1]):
        cut.put(slot, row)
    cut.diagnosis.arrange()
    for slot in range(last + 1):
        cut.diagnosis.evaluate(slot)
    (same,) = cut.diagnosis.tracker.incidents
    assert (same.incident_id, same.detected_ns, same.cause) == (
        incident.incident_id,
        incident.detected_ns,
        incident.cause,
    )


def test_classes_explain_only_known_classes() -> None:
    for name, relations in EDGES.items():
        assert name in CLASSES
        assert {each for classes in relations.values() for each in classes} <= set(CLASSES)


def test_a_node_without_readings_is_unknown() -> None:
    """A node whose capture ends while its job goes on is neither down nor idle."""
    feed = healthy_feed()
    cluster = feed.cluster
    feed.diagnosis.has_receipts = False
    node = cluster.jobs[0].nodes[0]
    for slot in range(ONSET, 80):
        row = replace(cluster.draw())
        if slot >= 50:
            row.stale_nodes.add(node)
        feed.evaluate(slot, row)
    assert not feed.diagnosis.tracker.incidents


def test_a_node_with_too_many_devices_is_reported() -> None:
    diagnosis = ClusterDiagnosis(0, 1)
    node = diagnosis.devices.node("n1")
    gpus = [WireEntity("gpu", (f"GPU-{number}",)) for number in range(MAX_DEVICES_PER_NODE + 1)]
    diagnosis.devices.add_entities(node, gpus[:-1])
    assert not list(diagnosis.exceeded_limits())
    diagnosis.devices.add_entities(node, gpus)
    assert len(diagnosis.devices.gpus) == MAX_DEVICES_PER_NODE
    assert list(diagnosis.exceeded_limits()) == [
        "node n1: devices ignored: expected at most 256 of a kind"
    ]


def test_mounts_beyond_the_limit_are_one_device_of_their_server() -> None:
    """Containers mount the same exports under new names for as long as they come and go."""
    devices = ClusterDiagnosis(0, 1).devices
    node = devices.node("n1")
    positions = {
        number: devices.position(
            node,
            DeviceKind.MOUNT,
            WireEntity(
                "nfs_operation", (f"filer-{number % 2}:/home", f"/pods/{number}", "tcp", "READ")
            ),
        )
        for number in range(MAX_DEVICES_PER_NODE + 4)
    }
    assert len(devices.mounts) == MAX_DEVICES_PER_NODE + 2
    later = [positions[MAX_DEVICES_PER_NODE + number] for number in range(4)]
    assert [devices.mounts[position].server for position in later] == ["filer-0", "filer-1"] * 2
    assert not node.has_ignored_devices


def test_claims_beyond_the_limit_of_a_gpu_are_reported() -> None:
    diagnosis = ClusterDiagnosis(0, 1)
    facts = {"source": "slurm", "workload": "7", "owner": "red"}
    for number in range(MAX_CLAIMS_PER_GPU + 1):
        entity = WireEntity("claim", ("GPU-0", str(number)))
        event = WireEvent("claim_start", 0, entity, number, 0, facts)
        diagnosis.claims.add(NodeEvent(number, "n1", event))
    assert list(diagnosis.exceeded_limits()) == ["1 claims ignored: expected at most 64 of a GPU"]


@pytest.mark.parametrize(
    ("slots", "is_sampled", "severity"),
    [(26, True, "info"), (50, True, "warning"), (50, False, "info")],
)
def test_a_node_with_a_capture_is_separated_if_its_agent_samples_on(
    slots: int, *, is_sampled: bool, severity: str
) -> None:
    """A capture that ends has no samples: it shows nothing about the network. A minute may be a restart, as in the live diagnosis."""
    cluster = DrawnCluster(SEED, 1, 6, benign=False)
    fault, feed = FAULTS["agent_partition"](cluster), DrawnFeed(cluster, 50)
    feed.diagnosis.has_captures = True
    for slot in range(slots):
        row = cluster.draw()
        if slot >= 20:
            fault.effect(cluster, row, slot - 20)
        for node in feed.diagnosis.contacts:
            if is_sampled or slot < 20:
                feed.diagnosis.readings.sample_slots[node].add(slot)
        feed.evaluate(slot, row)
    (incident,) = feed.diagnosis.tracker.incidents
    assert (incident.class_name, incident.severity) == ("agent_partition", severity)
