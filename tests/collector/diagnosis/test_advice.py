"""Advice: states of a cluster that last and cost, with their expected gain; healthy clusters get none."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import pytest
from support.cases import third_of
from support.drawn_cluster import (
    GPUS,
    RAILS,
    START_NS,
    DrawnCluster,
    DrawnFeed,
    Row,
    gpu_uuid,
    node_name,
)

from railscope.timestamps import SECOND_NS
from railscope.wire import WireEntity
from railscope_collector.diagnosis.cluster_diagnosis import SLOT_SECONDS, ClusterDiagnosis
from railscope_collector.diagnosis.incident_report import IncidentDocument, incident_document
from railscope_collector.diagnosis.jobs import PeerGroups

SEED = 9
SLOTS = 40
NIC_FACTS = {"pfc": "3", "trust": "dscp", "mtu": "4200", "firmware": "28.39", "hash": "a1"}
GPU_FACTS = {"model": "H100", "driver": "590.48.01", "vbios": "96.00"}


def settings_of(
    node: int, nics: Mapping[str, str] = {}, gpus: Mapping[str, str] = {}, rails: Iterable[int] = ()
) -> list[WireEntity]:
    """Return the settings of a node; `nics` and `gpus` replace those of the NICs of `rails`, and of all GPUs."""
    found = [
        WireEntity("gpu", (gpu_uuid(node, index),), {**GPU_FACTS, **gpus}) for index in range(GPUS)
    ]
    for rail in range(RAILS):
        key = (f"eth{rail}",)
        found += [
            WireEntity("nic", key, {"role": "compute", "driver": "mlx5_core"}),
            WireEntity("nic_settings", key, NIC_FACTS | (dict(nics) if rail in rails else {})),
        ]
    return found


def documents(diagnosis: ClusterDiagnosis) -> list[IncidentDocument]:
    """Return the advice that is open."""
    groups = PeerGroups(diagnosis.devices)
    return [
        incident_document(
            incident, diagnosis.devices, groups, 30.0, diagnosis.end_of(incident.last_slot)
        )
        for incident in diagnosis.tracker.open
        if incident.incident_class.is_advice
    ]


def diagnose(
    settings: Mapping[int, list[WireEntity]], changes: Iterable[tuple[int, int]] = ()
) -> list[IncidentDocument]:
    """Diagnose a healthy cluster with these settings by node; `changes` are slots and nodes at which others adopt them."""
    cluster = DrawnCluster(SEED, 1, 6, benign=False)
    feed = DrawnFeed(cluster, SLOTS)
    drift, devices = feed.diagnosis.drift.settings, feed.diagnosis.devices
    later = {node: slot for slot, node in changes}
    for node in range(cluster.nodes):
        first = settings_of(node) if node in later else settings.get(node, settings_of(node))
        drift.add(START_NS, node_name(node), first)
        devices.add_entities(devices.node(node_name(node)), first)
        if node in later:
            time_ns = START_NS + later[node] * SLOT_SECONDS * SECOND_NS
            drift.add(time_ns, node_name(node), settings[node])
    for slot in range(SLOTS):
        feed.evaluate(slot, cluster.draw())
    return documents(feed.diagnosis)


EVERY_RAIL = range(RAILS)
MANY = {node: settings_of(node, {"mtu": "1500"}, rails=[2]) for node in range(6)}
SWITCH_PORT = {
    "switch": "leaf",
    "pfc": "3",
    "dscp_map": "3:24-31,6:48",
    "largest_frame_bytes": "9216",
}


def announced(changes: Mapping[int, Mapping[str, str]]) -> dict[int, list[WireEntity]]:
    """Return settings of six nodes, and what the switch ports of their NICs announce; `changes` by rail are on node 1."""
    found = {}
    for node in range(6):
        found[node] = settings_of(node, {"dscp_map": "3:26,6:48"}, rails=EVERY_RAIL)
        for rail in range(RAILS):
            port = {**SWITCH_PORT, **(changes.get(rail, {}) if node == 1 else {})}
            found[node].append(WireEntity("nic_neighbour", (f"eth{rail}",), port))
    return found


MISMATCHES: dict[str, tuple[dict[int, dict[str, str]], list[str]]] = {
    "equal": ({}, []),
    "another map of unused DSCPs": ({2: {"dscp_map": "3:24-31,5:46,6:48"}}, []),
    "no PFC": ({2: {"pfc": "none"}, 3: {"pfc": "none"}}, ["2 NICs of 1 node: pfc 3, the switch port announces none"]),
    "another priority": ({2: {"dscp_map": "4:24-31"}}, ["1 NIC of 1 node: dscp_map 3:26, the switch port announces 4:26"]),
    "small frames": ({2: {"largest_frame_bytes": "1518"}}, ["1 NIC of 1 node: mtu 4200, the switch port announces frames of 1518 bytes"]),
}  # fmt: skip


@pytest.mark.parametrize("name", MISMATCHES)
def test_nics_that_disagree_with_their_switch_ports(name: str) -> None:
    changes, expected = MISMATCHES[name]
    advice = diagnose(announced(changes))
    assert [each.detail for each in advice] == expected
    assert {each.incident_class for each in advice} <= {"switch_settings_mismatch"}


def cabled(node: int, leaves: Mapping[int, str]) -> dict[int, list[WireEntity]]:
    """Return settings of six nodes, of which one has some rails at other leaves than the cluster is drawn with."""
    found = {each: settings_of(each) for each in range(6)}
    for rail, leaf in leaves.items():
        place = {"switch": leaf, "switch_port": f"Ethernet{rail}"}
        found[node].append(WireEntity("nic_neighbour", (f"eth{rail}",), place))
    return found


def test_nic_on_a_leaf_of_another_rail_is_one_advice() -> None:
    (advice,) = diagnose(cabled(1, {2: "leaf-0-3"}))
    assert (advice.incident_class, advice.severity) == ("cabling_fault", "info")
    assert type(advice.cause).__struct_config__.tag == "nic"
    text = "ends at leaf-0-3 Ethernet2, the rail of 5 other nodes on leaf-0-2"
    assert advice.detail == f"eth2 of rail 2: {text}"
    (evidence,) = advice.evidence
    assert (evidence.device, evidence.comparison) == (f"{node_name(1)} eth2", text)
    assert advice.gain
    assert advice.gain.text == "unknown"


def test_exchanged_cables_of_a_node_are_one_advice_on_the_node() -> None:
    (advice,) = diagnose(cabled(1, {2: "leaf-0-3", 3: "leaf-0-2"}))
    assert type(advice.cause).__struct_config__.tag == "node"
    assert len(advice.victims) == 2
    assert [each.device for each in advice.evidence] == [
        f"{node_name(1)} eth{rail}" for rail in (2, 3)
    ]


@pytest.mark.parametrize(
    "leaves",
    [dict.fromkeys(range(RAILS), "leaf"), {2: "another leaf"}, {}],
    ids=["a node at a leaf of its own", "a new leaf", "as drawn"],
)
def test_cabling_that_no_rail_contradicts_is_correct(leaves: Mapping[int, str]) -> None:
    assert diagnose(cabled(1, leaves)) == []


DRIFT = {
    "one NIC": ({1: settings_of(1, {"pfc": "none", "trust": "pcp"}, rails=[3])}, "nic", 0, ["pfc", "trust"]),
    "a node": ({1: settings_of(1, {"mtu": "1500"}, rails=EVERY_RAIL)}, "node", 8, ["mtu"]),
    "a driver": ({4: settings_of(4, gpus={"driver": "580.1"})}, "node", 8, ["driver"]),
    "an unknown setting": ({2: settings_of(2, {"hash": "b2"}, rails=[0])}, "nic", 0, ["hash"]),
}  # fmt: skip
"""Settings by node, kind of the cause, number of victims, settings of the evidence."""

NO_DRIFT: dict[str, tuple[dict[int, list[WireEntity]], list[tuple[int, int]]]] = {
    "equal settings": ({}, []),
    "a rail by design": (MANY, []),
    "nodes with other GPUs": ({5: settings_of(5, {"mtu": "1500"}, {"model": "B200", "driver": "595.1"}, EVERY_RAIL)}, []),
    "no majority": ({node: settings_of(node, {"mtu": "1500"}, rails=EVERY_RAIL) for node in range(3)}, []),
    "a rollout": ({node: settings_of(node, {"mtu": "1500"}, rails=[node]) for node in range(2)}, [(10, 0), (12, 1)]),
}  # fmt: skip


@pytest.mark.parametrize("name", DRIFT)
def test_devices_with_other_settings_are_one_advice(name: str) -> None:
    settings, kind, victims, named = DRIFT[name]
    (advice,) = diagnose(settings)
    assert (advice.incident_class, advice.severity) == ("config_drift", "info")
    assert type(advice.cause).__struct_config__.tag == kind
    assert advice.victim_count == victims
    assert [each.signal for each in advice.evidence] == named
    assert advice.gain
    assert advice.gain.derivation
    assert advice.gain.share == 0.0


@pytest.mark.parametrize("name", NO_DRIFT)
def test_no_advice_about_settings(name: str) -> None:
    assert not diagnose(*NO_DRIFT[name])


def test_a_change_is_reported_from_its_time_on() -> None:
    settings = {1: settings_of(1, {"pfc": "none"}, rails=[3])}
    (advice,) = diagnose(settings, [(20, 1)])
    assert advice.detail == "1 NIC of 1 node: pfc none, 47 peers have 3"
    assert advice.onset.startswith("2025-10-09T08:56:40")


@pytest.mark.parametrize(
    ("setting", "changes", "severity"),
    [
        ({"pfc": "4"}, [(8, 1)], "warning"),
        ({"pfc": "4"}, [], "info"),
        ({"mtu": "1500"}, [(8, 1)], "info"),
    ],
)
def test_a_nic_whose_lossless_settings_changed_while_it_ran_is_a_warning(
    setting: dict[str, str], changes: list[tuple[int, int]], severity: str
) -> None:
    """One that has always been another may be meant, and not each setting keeps the fabric lossless."""
    (advice,) = diagnose({1: settings_of(1, setting, rails=range(RAILS))}, changes)
    assert advice.severity == severity


# Network -----------------------------------------------------------------------------------------

ACROSS, LOCAL = [0, 1, 4, 5], [2, 3]
"""Nodes of a job that crosses two pods of four nodes, and of one that does not."""


def paused_before_marked(row: Row) -> None:
    """Pause the senders of one rail; few packets are marked."""
    row.nic["paused"][:4, 2] = 0.006
    row.nic["marked"][:4, 2] = 1e-5


def marked_and_paused(row: Row) -> None:
    """Pause the senders of one rail, while the packets of one receiver are marked."""
    row.nic["paused"][:4, 2] = 0.006
    row.nic["marked"][:4, 2] = 1e-5
    row.nic["marked"][3, 2] = 0.01


def busy_rail(row: Row) -> None:
    """Send twice as much on a rail as on the others."""
    row.nic["send"][ACROSS, 5] *= 2.0


def busy_nic(row: Row) -> None:
    """Send twice as much from one NIC."""
    row.nic["send"][1, 5] *= 2.0


def slow_uplinks(row: Row) -> None:
    """Pause and mark the traffic of the job that crosses pods."""
    row.nic["paused"][ACROSS] = 0.006
    row.nic["marked"][ACROSS] = 0.03


def slow_fabric(row: Row) -> None:
    """Pause and mark all traffic."""
    row.nic["paused"][ACROSS + LOCAL] = 0.006
    row.nic["marked"][ACROSS + LOCAL] = 0.03


STATES: dict[str, tuple[Callable[[Row], None], int, list[str]]] = {
    "ECN acts after PFC": (paused_before_marked, 40, ["ecn_late"]),
    "ECN acts before PFC": (marked_and_paused, 40, []),
    "one rail carries more": (busy_rail, 190, ["rail_imbalance"]),
    "one NIC carries more": (busy_nic, 190, []),
    "uplinks limit a job": (slow_uplinks, 190, ["placement_oversubscribed"]),
    "all jobs are limited": (slow_fabric, 190, []),
}
"""Effect on the readings, evaluations, and the classes of the advice that follows."""
WINDOWS_SECONDS = {"ecn_late": 60.0, "rail_imbalance": 1800.0, "placement_oversubscribed": 1800.0}


@pytest.mark.parametrize("name", third_of(STATES))
def test_states_of_the_network_are_advice(name: str) -> None:
    effect, slots, expected = STATES[name]
    cluster = DrawnCluster(SEED, 2, 4, benign=False)
    cluster.jobs[0].nodes, cluster.jobs[1].nodes = ACROSS, LOCAL
    feed = DrawnFeed(cluster, slots)
    for slot in range(slots):
        row = cluster.draw()
        effect(row)
        feed.evaluate(slot, row)
    advice = documents(feed.diagnosis)
    assert [each.incident_class for each in advice] == expected
    for each in advice:
        assert each.gain
        assert each.gain.share
        assert each.gain.gpu_seconds_per_hour
        windows = {evidence.window_seconds for evidence in each.evidence}
        assert windows == {each.onset_uncertainty_seconds} == {WINDOWS_SECONDS[each.incident_class]}


@pytest.mark.parametrize(("left", "expected"), [(0.1, ["ecn_late"]), (0.8, [])])
def test_marks_that_become_rare_below_one_leaf_show_that_it_marks_late(
    left: float, expected: list[str]
) -> None:
    """The other leaf of the rail marks as before, less than the share of pause and more than a third of it."""
    cluster = DrawnCluster(SEED, 2, 4, benign=False)
    cluster.jobs[0].nodes, cluster.jobs[1].nodes = ACROSS, LOCAL
    feed = DrawnFeed(cluster, 110)
    for slot in range(110):
        row = cluster.draw()
        row.nic["marked"][:, 3] = 0.002
        if slot >= 40:
            row.nic["marked"][:4, 3] *= left
            row.nic["paused"][:, 3] = 0.003
        feed.evaluate(slot, row)
    advice = documents(feed.diagnosis)
    assert [each.incident_class for each in advice] == expected
    assert not any(each.ended for each in advice)
