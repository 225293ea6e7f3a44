"""Identities of incidents: of the same fault in each diagnosis, and of two faults apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from railscope.wire import WireEntity
from railscope_collector.diagnosis.baselines import Baselines
from railscope_collector.diagnosis.devices import ClusterDevices
from railscope_collector.diagnosis.findings import (
    SLOT_NS,
    Cause,
    DiagnosisView,
    Finding,
    FindingEvidence,
)
from railscope_collector.diagnosis.incidents import CLOSE_SLOTS, REOPEN_SLOTS, IncidentTracker
from railscope_collector.diagnosis.jobs import PeerGroups
from railscope_collector.diagnosis.signals import ClusterSignals
from railscope_collector.diagnosis.switch_counters import SwitchQueue
from railscope_collector.workloads.job_roster import JobKey

NODES = ("n1", "n2")
EVIDENCE = FindingEvidence("link_up", 0.0, 1.0, "before")


def devices_of(nodes: Sequence[str]) -> ClusterDevices:
    """Return devices in the order in which their nodes are received from."""
    devices = ClusterDevices(8, 8)
    for name in nodes:
        entities = [
            WireEntity("gpu", (f"GPU-{name}",), {"index": "0"}),
            WireEntity("nic", ("eth0",), {"role": "compute", "rail": "0"}),
            WireEntity("nic_neighbour", ("eth0",), {"switch": f"leaf of {name}"}),
        ]
        devices.add_entities(devices.node(name), entities)
    return devices


def view_of(devices: ClusterDevices, slot: int) -> DiagnosisView:
    signals, groups = ClusterSignals(devices, slot, 3), PeerGroups(devices)
    return DiagnosisView(signals, groups, [], {}, Baselines(), (slot + 1) * SLOT_NS)


def finding(devices: ClusterDevices, kind: str, node: str, onset_ns: int = SLOT_NS) -> Finding:
    """Return a fault of a device of a node."""
    of_node = devices.nodes[node]
    causes = {
        "nic": Cause("nic", of_node.nics["eth0"]),
        "gpu": Cause("gpu", of_node.gpus[f"GPU-{node}"]),
        "leaf": Cause("leaf", list(devices.nodes).index(node), f"leaf of {node}"),
        "job": Cause("job", job=JobKey("red", "slurm", node)),
    }
    name = {"nic": "nic_lost", "gpu": "gpu_lost"}.get(kind, "link_flap")
    return Finding(name, causes[kind], (EVIDENCE,), onset_ns=onset_ns)


def ids(nodes: Sequence[str], kind: str, onset_ns: int = SLOT_NS) -> dict[str, str]:
    """Return the identities of a fault of each node, by its name."""
    devices = devices_of(nodes)
    tracker = IncidentTracker(0, SLOT_NS)
    tracker.update(view_of(devices, 4), [finding(devices, kind, node, onset_ns) for node in NODES])
    by_cause = {each.cause: each.incident_id for each in tracker.incidents}
    return {node: by_cause[finding(devices, kind, node).cause] for node in NODES}


@pytest.mark.parametrize("kind", ["nic", "gpu", "leaf", "job"])
def test_the_identity_does_not_depend_on_the_order_of_the_nodes(kind: str) -> None:
    found = ids(NODES, kind)
    assert ids(NODES[::-1], kind) == found
    assert len(set(found.values())) == len(NODES)


@pytest.mark.parametrize("kind", ["nic", "gpu", "leaf", "job"])
def test_the_identity_does_not_depend_on_the_estimate_of_a_clock(kind: str) -> None:
    assert ids(NODES, kind, SLOT_NS + 3_000_000) == ids(NODES, kind, SLOT_NS + 5_000_000)


def test_two_faults_of_one_device_have_identities_of_their_own() -> None:
    devices = devices_of(NODES)
    tracker = IncidentTracker(0, SLOT_NS)
    later = 4 + CLOSE_SLOTS + 2 * REOPEN_SLOTS
    tracker.update(view_of(devices, 4), [finding(devices, "gpu", "n1")])
    for slot in range(5, later):
        tracker.update(view_of(devices, slot), [])
    for onset_ns in (SLOT_NS, later * SLOT_NS):  # with the same onset, as of a setting, and another
        tracker.update(view_of(devices, later), [finding(devices, "gpu", "n1", onset_ns)])
        later += CLOSE_SLOTS + 2 * REOPEN_SLOTS
        for slot in range(later - REOPEN_SLOTS - 2, later):
            tracker.update(view_of(devices, slot), [])
    found = [each.incident_id for each in tracker.incidents]
    assert len(set(found)) == len(found) == 3


def test_gpus_that_only_the_kernel_log_names_have_identities_of_their_own() -> None:
    devices = devices_of(NODES)
    for slot in ("1a", "1b"):
        devices.add_gpu_of_event(devices.nodes["n1"], f"0000:{slot}:00.0")
    view = view_of(devices, 4)
    gpus = [Cause("gpu", position) for position, gpu in enumerate(devices.gpus) if not gpu.uuid]
    assert len({view.identity_of(gpu) for gpu in gpus}) == len(gpus) == 2


def test_a_cause_that_a_queue_changes_is_detected_when_it_changes() -> None:
    devices = devices_of(NODES)
    tracker = IncidentTracker(0, SLOT_NS)
    first, second = (finding(devices, "leaf", node).cause for node in NODES)
    by_hosts = Finding("leaf_loss", first, (EVIDENCE,), alternatives=(second.position,))
    queue = SwitchQueue("leaf of n2", "Ethernet1", "3")
    by_switch = replace(by_hosts, cause=second, alternatives=(), subject=first, queue=queue)
    named = dict[int, tuple[Cause, int]]()
    for slot in range(4, 60):
        tracker.update(view_of(devices, slot), [by_hosts if slot < 30 else by_switch])
        for incident in tracker.incidents:
            named[slot] = incident.cause, incident.detected_ns
    assert len(tracker.incidents) == 1
    assert named[29][0] == first
    assert named[29][1] < 30 * SLOT_NS
    assert named[30] == named[59] == (second, 31 * SLOT_NS)
