"""Readings of NICs, links and leaves: one cause is one incident, and a harmless reading is none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from support.drawn_cluster import RAILS, START_NS, DrawnCluster, DrawnFeed, Row
from support.drawn_faults import slow_receiver
from support.drawn_readings import (
    NODES,
    ONSET,
    SLOTS,
    Change,
    classes_of,
    drawn_feed,
    healthy_feed,
    incidents_of,
    run,
)

from railscope.wire import WireEntity
from railscope_collector.diagnosis.findings import SLOT_NS
from railscope_collector.diagnosis.incident_classes import CLASSES
from railscope_collector.diagnosis.quantities import DeviceKind
from railscope_collector.diagnosis.ranking import Reach, may_explain
from railscope_collector.diagnosis.slot_sums import Floats, Positions


def test_a_leaf_with_all_links_down_is_one_incident() -> None:
    def leaf_is_down(_: DrawnCluster, row: Row, since: int) -> None:
        if since >= 0:
            row.nic["up"][:, 2] = 0

    assert classes_of(incidents_of(leaf_is_down)) == {("link_down", "leaf")}


def test_a_link_that_is_down_at_a_sample_flaps_as_well() -> None:
    def flap(_: DrawnCluster, row: Row, since: int) -> None:
        row.nic["downs"][1, 2] = since == 0
        row.nic["up"][1, 2] = since != 0

    (incident,) = incidents_of(flap, ONSET + 4)
    assert (incident.class_name, incident.cause.position) == ("link_flap", 10)


@pytest.mark.parametrize("down_slots", [0, 2, 3, 4, 5])
def test_a_link_that_returns_before_it_is_reported_as_down_flaps(down_slots: int) -> None:
    def outage(_: DrawnCluster, row: Row, since: int) -> None:
        row.nic["downs"][1, 2] = since == 0
        row.nic["up"][1, 2] = not 0 <= since < down_slots

    (incident,) = incidents_of(outage, ONSET + 12)
    assert (incident.class_name, incident.cause.position) == ("link_flap", 10)
    assert 0 <= incident.onset_ns - START_NS - ONSET * SLOT_NS <= SLOT_NS


def test_a_link_that_goes_down_within_a_slot_and_stays_down_does_not_flap() -> None:
    def pulled(_: DrawnCluster, row: Row, since: int) -> None:
        row.nic["downs"][1, 2] = since == 0
        row.nic["up"][1, 2] = 1.0 if since < 0 else 0.5 if since == 0 else 0.0

    (incident,) = incidents_of(pulled, ONSET + 12)
    assert (incident.class_name, incident.cause.position) == ("link_down", 10)


def test_a_link_that_never_stays_up_for_a_slot_flaps() -> None:
    def flapping(_: DrawnCluster, row: Row, since: int) -> None:
        row.nic["downs"][1, 2] = since >= 0
        row.nic["up"][1, 2] = 0.5 if since >= 0 else 1.0

    (incident,) = incidents_of(flapping, ONSET + 4)
    assert (incident.class_name, incident.cause.position) == ("link_flap", 10)


@pytest.mark.parametrize("degraded_slots", [4, 20])
def test_flaps_of_a_degraded_transceiver_are_an_incident_of_that_cause(degraded_slots: int) -> None:
    def degraded_then_flaps(_: DrawnCluster, row: Row, since: int) -> None:
        row.nic["bit_errors"][1, 2] = 1e-4 if 0 <= since < degraded_slots else 0.0
        row.nic["downs"][1, 2] = since == 8

    found = {each.class_name: each for each in incidents_of(degraded_then_flaps)}
    assert found.keys() == {"transceiver_degraded", "link_flap"}
    assert found["link_flap"].explained_by == found["transceiver_degraded"].incident_id
    assert found["link_flap"].cause == found["transceiver_degraded"].cause


def test_a_slow_receiver_remains_one_when_its_pcie_link_is_unread() -> None:
    def receiver(cluster: DrawnCluster, row: Row, since: int) -> None:
        if since >= 0:
            fault.effect(cluster, row, since)
        if since >= 12:
            row.nic["width"][:] = row.nic["width"].max()

    fault = slow_receiver(DrawnCluster(9, 1, NODES, benign=False), "pcie_bound_receiver")
    found = incidents_of(receiver)
    assert [each.class_name for each in found if not each.explained_by] == ["pcie_bound_receiver"]


@pytest.mark.parametrize(("received", "name"), [(0.7, "slow_receiver"), (0.02, "pfc_storm")])
def test_short_pauses_of_a_job_with_little_exchange_show_a_slow_receiver(
    received: float, name: str
) -> None:
    """Frames of short pauses are an upper bound only, and a job that exchanges 2 % of the time receives little."""

    def pause(cluster: DrawnCluster, row: Row, since: int) -> None:
        cluster.frame_seconds = 1e-5
        for direction in ("send", "receive"):
            row.nic[direction] *= 0.05
        if since >= 0:
            row.nic["pausing"][0, 3] = 0.05 if name == "slow_receiver" else 0.6
            row.nic["pausing_frames"][0, 3] = 8000.0
            row.nic["receive"][0, 3] *= received

    (incident,) = incidents_of(pause, changes_past=True)
    assert (incident.class_name, incident.cause.position) == (name, 3)


def test_a_receiver_whose_senders_stop_stays_a_slow_receiver() -> None:
    """Without durations, the number of frames is an upper bound: of a window in which the senders stop, too."""

    def pauses_until_a_checkpoint(_: DrawnCluster, row: Row, since: int) -> None:
        if since >= 0:
            row.nic["receive"][:, 2] = row.nic["send"][:, 2] = 0.04 if since < 12 else 0.0
            row.nic["pausing"][1, 2] = 3.0 if since < 12 else 0.0

    found = incidents_of(pauses_until_a_checkpoint)
    assert {each.class_name for each in found if not each.explained_by} == {"slow_receiver"}


def test_a_setting_of_both_nics_that_a_node_uses_is_one_cause() -> None:
    def sends_no_notifications(_: DrawnCluster, row: Row, since: int) -> None:
        for signal in ("send", "receive"):
            row.nic[signal][:, 2:] = 0.0
        row.nic["marked"][:] = 0.01
        if since >= 0:
            row.nic["notifies"][1] = -1

    assert classes_of(incidents_of(sends_no_notifications)) == {("cnp_not_sent", "node")}


def test_a_setting_of_a_node_that_few_nics_still_show_is_one_fault() -> None:
    """As during an evaluation of the job, in which few of the NICs have traffic."""

    def ignores_notifications(_: DrawnCluster, row: Row, since: int) -> None:
        if since >= 0:
            row.nic["ignores"][1, : 8 if since < 8 else 2] = 200.0

    (incident,) = incidents_of(ignores_notifications)
    assert (incident.class_name, incident.cause.kind) == ("cnp_ignored", "node")
    assert incident.parts == (8, 9)


def test_a_nic_that_shows_a_setting_before_the_rest_of_its_node_is_a_part_of_it() -> None:
    """The first NIC with congestion shows it minutes before the others have any."""

    def ignores_notifications(_: DrawnCluster, row: Row, since: int) -> None:
        if since >= 0:
            row.nic["ignores"][1, : 8 if since >= 8 else 1] = 200.0

    nic, node = incidents_of(ignores_notifications)
    assert (nic.cause.kind, node.cause.kind) == ("nic", "node")
    assert nic.explained_by == node.incident_id


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_faults_of_a_class_explain_no_other_subject_and_none_at_the_same_device(name: str) -> None:
    """Errors of two links of a leaf, or an MTU and a PFC setting of a node, are two faults."""
    parts = frozenset({("nic", 1, ""), ("nic", 2, "")})
    whole = Reach(("node", -1, "n1"), frozenset({"n1"}), frozenset(), frozenset(), parts)
    part = Reach(("nic", 1, ""), frozenset({"n1"}), frozenset(), frozenset())
    assert may_explain(name, whole, name, part)
    assert not may_explain(name, part, name, whole)
    assert not may_explain(name, replace(whole, subject="mtu"), name, part)
    first, second = (replace(part, subject=f"errors of link {index}") for index in (1, 2))
    assert not may_explain(name, first, name, second)


def test_a_nic_that_shows_a_setting_later_than_its_node_is_another_fault() -> None:
    def ignores_notifications(_: DrawnCluster, row: Row, since: int) -> None:
        if since >= 0:
            row.nic["ignores"][1, :6] = 200.0 if since < 8 else 0.0
            row.nic["ignores"][1, 7] = 200.0 if since >= 12 else 0.0

    found = incidents_of(ignores_notifications)
    assert classes_of(found) == {("cnp_ignored", "node"), ("cnp_ignored", "nic")}
    assert [each.cause.kind for each in found if not each.ended_ns] == ["nic"]


@pytest.mark.parametrize("rate", [1.0, 20.0])
def test_few_losses_of_healthy_links_hide_no_link_that_corrupts_what_it_sends(rate: float) -> None:
    def losses(cluster: DrawnCluster, row: Row, since: int) -> None:
        job = cluster.jobs[0]
        row.nic["naks"][job.nodes[2], 2] = 0.2
        if since >= 0:
            row.nic["naks"][job.nodes[0], 2] = rate
            row.nic["order"][job.nodes[1:], 2] = rate / 5

    assert classes_of(incidents_of(losses)) == {("link_transmit_errors", "nic")}


def test_a_link_that_is_up_again_explains_no_later_loss() -> None:
    def flap_and_loss(_: DrawnCluster, row: Row, since: int) -> None:
        row.nic["downs"][1, 2] = since == 0
        if since >= 12:
            row.nic["naks"][:, 2] = row.nic["order"][:, 2] = 20.0 * (row.nic["send"][:, 2] > 0)

    found = incidents_of(flap_and_loss)
    assert {each.class_name for each in found if not each.explained_by} == {
        "link_flap",
        "leaf_loss",
    }


@pytest.mark.parametrize(("place", "is_peer"), [(0, True), (1, False)])
def test_a_link_that_is_down_explains_losses_of_its_own_job(place: int, *, is_peer: bool) -> None:
    """A link of the second pod is down while the leaf of the same rail of the first pod loses packets of the first job."""

    def link_and_loss(cluster: DrawnCluster, row: Row, since: int) -> None:
        if since >= 0:
            row.nic["up"][cluster.jobs[place].nodes[-1], 2] = 0
            sends = row.nic["send"][:NODES, 2] > 0
            row.nic["naks"][:NODES, 2] = row.nic["order"][:NODES, 2] = 20.0 * sends

    found = {each.class_name: each for each in incidents_of(link_and_loss, pods=2)}
    assert not found["link_down"].explained_by
    assert ("leaf_loss" in found and not found["leaf_loss"].explained_by) is not is_peer


def test_a_busy_receiver_has_no_victims_while_another_nic_pauses_the_leaf() -> None:
    """The job of the busy receiver is as fast as before."""

    def both(_: DrawnCluster, row: Row, since: int) -> None:
        if since >= -10:
            row.nic["receive"][1, 3], row.nic["marked"][1, 3] = 0.5, 0.05
        if since >= 0:
            row.nic["pausing"][0, 3] = 0.2
            row.nic["paused"][1:NODES, 3] += 0.1

    assert classes_of(incidents_of(both)) == {("slow_receiver", "nic")}


@pytest.mark.parametrize("used", [0.5, 1.0])
def test_a_checkpoint_does_not_congest_uplinks(used: float) -> None:
    """Few pauses are left of its burst while the job exchanges little, and has gaps."""

    def store(cluster: DrawnCluster, row: Row, since: int) -> None:
        if since >= 0:
            cluster.slow_job(row, cluster.jobs[0], 0.4)
            row.gpu["utilization"] *= used
            row.nic["paused"][:, 3] = 0.02

    found = classes_of(incidents_of(store, ONSET + 8, 2, 2 * NODES))
    assert (("uplink_congested", "leaf") in found) == (used == 1)


def test_a_job_of_which_all_nics_receive_more_has_no_incast() -> None:
    """Its exchange is all-to-all; the NICs of another job below the same leaves receive less."""

    def exchange(cluster: DrawnCluster, row: Row, since: int) -> None:
        if since >= 0:
            nodes = cluster.jobs[0].nodes
            cluster.slow_job(row, cluster.jobs[0], 0.8)
            row.nic["receive"][nodes] = 0.95
            row.nic["marked"][nodes[0], 3] = 0.05

    found = classes_of(incidents_of(exchange, job_nodes=2))
    assert ("incast_receiver", "nic") not in found


@pytest.mark.parametrize(("speed", "found"), [(0.75, True), (1.0, False)])
def test_a_nic_of_a_slower_job_receives_more_although_it_is_little_more_than_before(
    speed: float, *, found: bool
) -> None:
    def exchange(cluster: DrawnCluster, row: Row, since: int) -> None:
        nodes = cluster.jobs[0].nodes
        if since >= 0:
            received = 1.15 * row.nic["receive"][nodes[0], 3]
            cluster.slow_job(row, cluster.jobs[0], speed)
            row.nic["receive"][nodes[0], 3] = received
            row.nic["marked"][nodes[0], 3] = 0.05
            row.nic["paused"][nodes[1:], 3] += 0.1

    classes = classes_of(incidents_of(exchange, slots=ONSET + 12))
    assert (("incast_receiver", "nic") in classes) == found


def test_an_incast_of_a_young_job_is_open_while_it_lasts() -> None:
    def exchange(cluster: DrawnCluster, row: Row, since: int) -> None:
        nodes = cluster.jobs[0].nodes
        if since >= 14 - ONSET:
            cluster.slow_job(row, cluster.jobs[0], 0.8)
            row.nic["receive"][nodes[0], 3] = 0.7
            row.nic["marked"][nodes[0], 3] = 0.05

    (incident,) = incidents_of(exchange, changes_past=True)
    assert (incident.class_name, incident.ended_ns) == ("incast_receiver", 0)


@pytest.mark.parametrize("load", [1.0, 0.05])
def test_an_incast_is_found_whatever_part_of_the_time_the_job_exchanges(load: float) -> None:
    def exchange(cluster: DrawnCluster, row: Row, since: int) -> None:
        if since >= 0:
            cluster.slow_job(row, cluster.jobs[0], 0.8)
            row.nic["receive"][0, 3] = 0.9
            row.nic["marked"][0, 3] = 0.05
        for name in ("send", "receive"):
            row.nic[name] *= load

    (incident,) = incidents_of(exchange, changes_past=True)
    assert (incident.class_name, incident.cause.position) == ("incast_receiver", 3)


def test_an_incast_is_found_in_a_job_whose_load_changes_with_its_steps() -> None:
    """Windows contain one exchange, two or three; the receiver always receives half as much again as the others."""

    def exchange(cluster: DrawnCluster, row: Row, since: int) -> None:
        phase = (0.3, 1.0, 1.7)[(since // 3) % 3]
        for name in ("send", "receive"):
            row.nic[name][cluster.jobs[0].nodes] *= 0.5 * phase
        if since >= 0:
            row.nic["receive"][0, 3] *= 1.5
            row.nic["marked"][0, 3] = 0.05
            cluster.slow_job(row, cluster.jobs[1], 0.7)
            senders = cluster.jobs[1].nodes
            row.nic["paused"][senders, 3] += 0.1
            row.nic["reacts"][senders, 3] += 2000.0  # the receiver answers marked packets

    (incident,) = incidents_of(exchange)
    assert (incident.class_name, incident.cause.position) == ("incast_receiver", 3)


@pytest.mark.parametrize("has_past", [True, False])
def test_a_nic_without_a_past_receives_no_more_than_before(*, has_past: bool) -> None:
    def exchange(cluster: DrawnCluster, row: Row, since: int) -> None:
        nodes = cluster.jobs[0].nodes
        if since < 0 and not has_past:
            row.nic["receive"][nodes[0], 3] = np.nan
        if since >= 0:
            cluster.slow_job(row, cluster.jobs[0], 0.8)
            row.nic["receive"][nodes[0], 3] = 0.7
            row.nic["marked"][nodes[0], 3] = 0.05

    found = classes_of(incidents_of(exchange, slots=ONSET + 10, changes_past=True))
    assert (("incast_receiver", "nic") in found) == has_past


@pytest.mark.parametrize(
    ("rails", "expected"), [(1, {("link_transmit_errors", "nic")}), (2, set())]
)
def test_one_rail_of_two_nodes_loses_what_a_nic_sends(
    rails: int, expected: set[tuple[str, str]]
) -> None:
    def lose(_: DrawnCluster, row: Row, since: int) -> None:
        row.nic["send"][2:] = row.nic["receive"][2:] = 0.0
        if since >= 0:
            row.nic["naks"][0, :rails] = row.nic["order"][1, :rails] = 20.0

    found = classes_of(incidents_of(lose, job_nodes=2))
    assert found & {("link_transmit_errors", "nic")} == expected


@pytest.mark.parametrize("job", [0, 1])
def test_the_root_of_a_tree_receives_as_usual(job: int) -> None:
    """One node receives more than the others on all rails since the first reading; NICs of its job or another one are paused."""

    def receive(cluster: DrawnCluster, row: Row, _: int) -> None:
        root = cluster.jobs[0].nodes[0]
        row.nic["receive"][root] = 0.7
        row.nic["marked"][root] = 0.05
        row.nic["paused"][cluster.jobs[job].nodes[1 - job :]] += 0.1

    assert classes_of(incidents_of(receive, 20)) == set()


@pytest.mark.parametrize(("count", "cause"), [(2, "node"), (1, "nic")])
def test_both_nics_of_a_socket_that_pause_have_a_slow_host(count: int, cause: str) -> None:
    cluster = DrawnCluster(9, 1, NODES, benign=False)
    feed = DrawnFeed(cluster, ONSET + 10)
    devices = feed.diagnosis.devices
    for node in devices.nodes.values():
        sockets = {f"0000:8{rail}:00.0": str(rail // 2) for rail in range(8)}
        devices.add_entities(
            node, [WireEntity("pcie", (nic,), {"numa_node": of}) for nic, of in sockets.items()]
        )
    for slot in range(ONSET + 10):
        row = cluster.draw()
        if slot >= ONSET:
            cluster.slow_job(row, cluster.jobs[0], 0.7)
            row.nic["pausing"][1, :count] = 0.15
            row.nic["stall"][1, :count] = 0.3
        feed.evaluate(slot, row)
    assert {each.cause.kind for each in feed.diagnosis.tracker.incidents} == {cause}


@pytest.mark.parametrize(
    ("marked", "paused", "received", "found"),
    [
        ((0, NODES), (), 1.0, True),  # both directions
        ((NODES,), (NODES - 1,), 1.0, True),  # one direction, and its other end
        ((NODES,), (), 1.0, False),  # the queue of one NIC
        ((NODES,), (NODES - 1,), 1.5, False),  # a NIC that receives more than before
    ],
)
def test_one_flow_of_a_ring_shows_a_congested_uplink(
    marked: tuple[int, ...], paused: tuple[int, ...], received: float, *, found: bool
) -> None:
    def congest(cluster: DrawnCluster, row: Row, since: int) -> None:
        if since >= 0:
            cluster.slow_job(row, cluster.jobs[0], 0.8)
            row.nic["marked"][list(marked), 3] = 0.03
            row.nic["paused"][list(paused), 3] = 0.1
            row.nic["receive"][list(marked), 3] *= received

    incidents = incidents_of(congest, pods=2, job_nodes=2 * NODES)
    assert (("uplink_congested", "leaf") in classes_of(incidents)) == found


@pytest.mark.parametrize(("slow_slots", "found"), [(0, 0), (1, 0), (2, 1)])
def test_a_congested_uplink_that_slows_down_no_job_is_no_incident(
    slow_slots: int, found: int
) -> None:
    def congest(cluster: DrawnCluster, row: Row, since: int) -> None:
        if since >= 0:
            row.nic["marked"][[0, NODES], 3] = 0.03
        if 12 <= since < 12 + slow_slots:
            cluster.slow_job(row, cluster.jobs[0], 0.8)

    incidents = run(healthy_feed(pods=2, job_nodes=2 * NODES), congest, ONSET + 30)
    assert [each.class_name for each in incidents] == ["uplink_congested"] * found


def test_a_congested_uplink_lasts_while_its_job_is_slow_also_if_no_nic_shows_it() -> None:
    def congest(cluster: DrawnCluster, row: Row, since: int) -> None:
        if since >= 0:
            cluster.slow_job(row, cluster.jobs[0], 0.8)
            row.nic["marked"][[0, NODES], 3] = 0.03 if since < 12 else 0.0

    (incident,) = incidents_of(congest, pods=2, job_nodes=2 * NODES)
    assert (incident.class_name, incident.ended_ns) == ("uplink_congested", 0)
    assert set(incident.parts) <= {3, NODES * RAILS + 3}
    assert incident.parts


def test_a_receiver_without_counters_of_marks_may_be_the_queue() -> None:
    """Others send to it: its senders have the symptoms of a congested uplink."""

    def crowd(cluster: DrawnCluster, row: Row, since: int) -> None:
        row.nic["marked"][1, 3] = np.nan
        if since >= 0:
            cluster.slow_job(row, cluster.jobs[0], 0.8)
            row.nic["marked"][[0, NODES], 3] = 0.03
            row.nic["receive"][1, 3] = 0.7

    found = incidents_of(crowd, pods=2, job_nodes=2 * NODES, changes_past=True)
    assert "uplink_congested" not in {each.class_name for each in found}


@pytest.mark.parametrize(("receivers", "found"), [(2, {("leaf_loss", "leaf")}), (1, set())])
def test_two_flows_of_a_rail_that_lose_packets_have_a_common_leaf(
    receivers: int, found: set[tuple[str, str]]
) -> None:
    """Each loss is counted by its sender and by its receiver; the link of one receiver may lose those of both senders."""

    def lose(_: DrawnCluster, row: Row, since: int) -> None:
        if since >= 0:
            row.nic["naks"][[0, 1], 3] = 200.0
            row.nic["order"][NODES : NODES + receivers, 3] = 400.0 / receivers

    assert classes_of(incidents_of(lose, pods=2, job_nodes=2 * NODES)) == found


def test_a_nic_that_reports_storms_in_spells_is_in_a_storm() -> None:
    """The window of a spell of 20 seconds has traffic of before."""

    def storm(cluster: DrawnCluster, row: Row, since: int) -> None:
        if since >= 0 and since % 8 < 2:
            row.nic["storms"][0, 3], row.nic["pausing"][0, 3] = 20.0, 0.9
            row.nic["receive"][0, 3] *= 0.1
            row.nic["paused"][1:NODES, 3] = 0.2
            cluster.slow_job(row, cluster.jobs[0], 0.4)

    (incident,) = incidents_of(storm)
    assert (incident.class_name, incident.cause.position) == ("pfc_storm", 3)
    assert incident.detected_ns <= START_NS + (ONSET + 5) * SLOT_NS


def slowed(cluster: DrawnCluster, row: Row, since: int) -> None:
    """Slow the first job down from the onset on."""
    if since >= 0:
        cluster.slow_job(row, cluster.jobs[0], 0.8)


def test_flows_that_collided_before_do_not_slow_down_a_job() -> None:
    """Which uplinks flows share is chance, and lasts as long as the flows."""

    def collide(cluster: DrawnCluster, row: Row, since: int) -> None:
        row.nic["marked"][[0, NODES], 3] = 0.03
        slowed(cluster, row, since)

    found = incidents_of(collide, pods=2, job_nodes=2 * NODES, changes_past=True)
    assert "uplink_congested" not in {each.class_name for each in found}


def test_marks_on_all_rails_of_a_job_are_its_load() -> None:
    def load(cluster: DrawnCluster, row: Row, since: int) -> None:
        if since >= 0:
            row.nic["marked"][: 2 * NODES] = 0.03
        slowed(cluster, row, since)

    found = incidents_of(load, pods=2, job_nodes=2 * NODES)
    assert "uplink_congested" not in {each.class_name for each in found}


def test_marks_that_begin_with_another_job_are_its_load() -> None:
    """Nothing is known of the uplinks under a load that was never seen."""
    cluster = DrawnCluster(9, 2, NODES, benign=False)
    del cluster.jobs[0].nodes[2:]
    second = [*cluster.jobs[0].nodes[1:], NODES]
    cluster.jobs[0].nodes[1:], cluster.jobs[1].nodes[:] = [NODES + 1], second
    feed = DrawnFeed(cluster, ONSET + 30)

    def start(of: DrawnCluster, row: Row, since: int) -> None:
        if since < 0:
            for name in ("send", "receive"):
                row.nic[name][second] = 0.0
        else:
            row.nic["marked"][[0, NODES + 1], 3] = 0.03
            of.slow_job(row, of.jobs[0], 0.8)

    found = run(feed, start, ONSET + 30)
    assert "uplink_congested" not in {each.class_name for each in found}


@pytest.mark.parametrize(
    ("notified", "pausing", "found"), [(0.0, 0.0, True), (5e4, 0.0, False), (0.0, 0.3, False)]
)
def test_senders_that_are_paused_without_notifications_show_a_leaf_that_marks_nothing(
    notified: float, pausing: float, *, found: bool
) -> None:
    """The packets that other leaves have marked arrive with marks."""

    def pause(cluster: DrawnCluster, row: Row, since: int) -> None:
        if since < 0:
            return
        slowed(cluster, row, since)
        row.nic["paused"][:3, 3] = 0.4
        row.nic["receive"][4, 3] = 0.95
        row.nic["marked"][3, 3] = 0.1
        row.nic["pausing"][3, 3] = pausing
        row.nic["extra_notifications"] = np.zeros_like(row.nic["paused"])
        row.nic["extra_notifications"][:3, 3] = notified
        row.nic["extra_notifications"][4, 3] = 2e4

    incidents = incidents_of(pause)
    assert (("ecn_inactive", "leaf") in classes_of(incidents)) == found


@pytest.mark.parametrize(
    ("lossy", "name"), [([2], "lossless_broken"), ([0, 1, 2, 3, 4, 5], "leaf_loss")]
)
def test_packets_that_only_a_crowded_receiver_lacks_found_no_room(
    lossy: list[int], name: str
) -> None:
    """A leaf that corrupts packets loses those of all receivers alike."""

    def lose(_: DrawnCluster, row: Row, since: int) -> None:
        if since >= 0:
            row.nic["order"][lossy, 3] = row.nic["naks"][lossy, 3] = 50.0
            row.nic["receive"][2, 3], row.nic["marked"][2, 3] = 0.9, 0.1
            if name == "lossless_broken":
                row.nic["paused_frames"][:, 3] = row.nic["pausing_frames"][:, 3] = 0.0

    of_leaves = {found for found, kind in classes_of(incidents_of(lose)) if kind == "leaf"}
    assert of_leaves == {name}


def test_ignored_notifications_of_a_few_nics_of_one_node_are_a_setting_of_the_node() -> None:
    """The others have no congestion to react to."""

    def ignore(_: DrawnCluster, row: Row, since: int) -> None:
        if since >= 0:
            row.nic["ignores"][1, [0, 2, 7]] = 500.0

    assert classes_of(incidents_of(ignore)) == {("cnp_ignored", "node")}


def test_permanent_pauses_below_leaves_are_usual() -> None:
    """The pauses hide no incast, and are the past of the NICs."""

    def pause(cluster: DrawnCluster, row: Row, since: int) -> None:
        row.nic["paused"][:, 3] = 0.05
        if since >= 0:
            cluster.slow_job(row, cluster.jobs[0], 0.8)
            row.nic["receive"][0, 3], row.nic["marked"][0, 3] = 0.9, 0.05

    found = classes_of(incidents_of(pause, pods=2, job_nodes=2 * NODES, changes_past=True))
    assert found == {("incast_receiver", "nic")}


def test_a_nic_that_flaps_does_not_erase_the_past_of_the_jobs_on_its_rail() -> None:
    feed = drawn_feed()

    def flap(_: DrawnCluster, row: Row, since: int) -> None:
        row.nic["ignores"][1, 3] = 200.0 if since % 24 < 5 else 0.0

    run(feed, flap, 150)
    base = feed.diagnosis.baselines.usual(DeviceKind.NIC, "send", 8 * NODES)
    assert not np.isnan(base[:8]).any()


def test_the_onset_of_a_congested_uplink_is_that_of_the_congestion() -> None:
    def congest(cluster: DrawnCluster, row: Row, since: int) -> None:
        if since >= 0:
            row.nic["marked"][[0, NODES], 3] = 0.03
            cluster.slow_job(row, cluster.jobs[0], 0.8 if since >= 8 else 1.0)

    (incident,) = incidents_of(congest, pods=2, job_nodes=2 * NODES)
    assert incident.class_name == "uplink_congested"
    assert incident.onset_ns == START_NS + (ONSET + 1) * SLOT_NS


@pytest.mark.parametrize("others_send", [True, False])
def test_the_only_nic_below_its_leaf_is_compared_with_those_of_its_rail(
    *, others_send: bool
) -> None:
    def sends_none(_: DrawnCluster, row: Row, since: int) -> None:
        for signal in ("send", "receive"):
            row.nic[signal][NODES + 1 :, 3] = 0.0
        row.nic["marked"][:] = 0.01
        if since >= 0:
            row.nic["notifies"][NODES if others_send else slice(None), 3] = -1

    found = classes_of(incidents_of(sends_none, pods=2, job_nodes=2 * NODES, changes_past=True))
    assert (("cnp_not_sent", "nic") in found) == others_send


@pytest.mark.parametrize(("spanning_nodes", "pods"), [(0, [{0}, {1}]), (2, [{0, 1}] * 2)])
def test_pause_spreads_only_to_pods_with_traffic_between_them(
    spanning_nodes: int, pods: list[set[int]]
) -> None:
    """The jobs of two pods have a slow receiver each on one rail; the first one may have nodes in both."""

    def pause(cluster: DrawnCluster, row: Row, since: int) -> None:
        for node, first in ((1, 0), (8, 4)):
            if since >= first:
                job = cluster.job_of(node)
                assert job
                row.nic["paused"][job.nodes, 2] = 0.2
                row.nic["paused"][node, 2] = 0.0
                row.nic["pausing"][node, 2] = 0.1

    cluster = DrawnCluster(9, 2, NODES, benign=False)
    spanning = range(2 * NODES - spanning_nodes, 2 * NODES)
    cluster.jobs[0].nodes[:] = [*range(NODES), *spanning]
    cluster.jobs[1].nodes[:] = range(NODES + 1, 2 * NODES - 2)
    found = run(DrawnFeed(cluster, ONSET + 20), pause, ONSET + 20)
    assert [each.class_name for each in found] == ["slow_receiver"] * 2
    victims = [{position // RAILS // NODES for position in each.victim_nics} for each in found]
    assert victims == pods
    assert [len(each.reach.jobs) for each in found] == [len(each) for each in pods]


@pytest.mark.parametrize(("slots", "found"), [(1, []), (20, [("transport_retry", "info", 10)])])
def test_repeated_timeouts_of_one_nic_are_a_symptom(
    slots: int, found: list[tuple[str, str, int]]
) -> None:
    """Those of one slot are of peers that have ended."""

    def time_out(_: DrawnCluster, row: Row, since: int) -> None:
        if 0 <= since < slots:
            row.nic["timeouts"][1, 2] = 1.0

    feed = healthy_feed()
    run(feed, time_out, ONSET + 20)
    incidents = feed.diagnosis.tracker.incidents
    assert [(i.class_name, str(i.severity), i.cause.position) for i in incidents] == found


@pytest.mark.parametrize(("lanes", "expected"), [(8.0, "pcie_degraded"), (16.0, "slow_receiver")])
def test_a_nic_that_waits_for_a_narrow_link_of_its_gpu_is_no_slow_receiver(
    lanes: float, expected: str
) -> None:
    feed = drawn_feed(slots=ONSET + 20)
    for gpu in feed.diagnosis.devices.gpus:
        gpu.rail = gpu.index

    def narrow(cluster: DrawnCluster, row: Row, since: int) -> None:
        if since >= 0:
            cluster.slow_job(row, cluster.jobs[0], 0.7)
            row.gpu["width"][1, 3] = lanes
            row.nic["pausing"][1, 3] = 0.15

    found = run(feed, narrow, ONSET + 20)
    assert {each.class_name for each in found if not each.explained_by} == {expected}


class PartlyReadFeed(DrawnFeed):
    """A feed of NICs with counters that are read in some slots: by name of the quantity, slot and position of the NIC."""

    def __init__(self, is_read: Callable[[str, int, Positions], Floats | bool]) -> None:
        super().__init__(DrawnCluster(9, 1, NODES, benign=False), SLOTS)
        self._is_read, self._slot = is_read, 0

    def put(self, slot: int, row: Row) -> None:
        self._slot = slot
        super().put(slot, row)

    def _add(
        self, kind: DeviceKind, name: str, values: Floats, weights: Floats, first: int = 0
    ) -> None:
        if kind is DeviceKind.NIC:
            weights = weights * self._is_read(name, self._slot, np.arange(len(values)))
        super()._add(kind, name, values, weights, first)


@pytest.mark.parametrize(("lost", "expected"), [(-1, []), (10, [("nic_lost", 10)])])
def test_a_nic_is_lost_if_a_source_that_showed_it_shows_others_without_it(
    lost: int, expected: list[tuple[str, int]]
) -> None:
    """Carriers are read every 80 seconds; the NICs of the last rail have no RDMA counters: nothing shows them in between."""

    def is_read(name: str, slot: int, nics: Positions) -> Floats | bool:
        here = (nics != lost) | (slot < ONSET)
        if name in {"link_up", "link_speed"}:
            return here * (slot % 8 == 0)
        return here * (nics % RAILS != RAILS - 1)

    incidents = run(PartlyReadFeed(is_read), lambda _cluster, _row, _since: None, SLOTS)
    assert [(each.class_name, each.cause.position) for each in incidents] == expected


def test_symbols_beyond_correction_while_a_link_drops_and_trains_are_part_of_the_flap() -> None:
    def flap(_: DrawnCluster, row: Row, since: int) -> None:
        row.nic["downs"][1, 2] = since == 0
        row.nic["up"][1, 2] = not 0 <= since < 2
        row.nic["uncorrected"][1, 2] = 200.0 * (since in {0, 2})

    assert classes_of(incidents_of(flap)) == {("link_flap", "nic")}


def _no_marks_but_on_one_rail(row: Row) -> None:
    row.nic["marked"][:] = 0.0
    row.nic["marked"][:, 5] = 1e-5


def _slow_receiver(_: DrawnCluster, row: Row, since: int) -> None:
    _no_marks_but_on_one_rail(row)
    if since >= 0:
        row.nic["pausing"][0, 3], row.nic["stall"][0, 3] = 0.05, 0.3
        row.nic["paused"][1:, 3] = 0.05
        row.nic["marked"][0, 3] = 0.05


def _incast(cluster: DrawnCluster, row: Row, since: int) -> None:
    _no_marks_but_on_one_rail(row)
    if since >= 0:
        cluster.slow_job(row, cluster.jobs[0], 0.6)
        row.nic["marked"][0, 3], row.nic["receive"][0, 3] = 0.3, 0.97
        row.nic["paused"][NODES:, 3] = 0.02


def _storm(cluster: DrawnCluster, row: Row, since: int) -> None:
    if since >= 0:
        row.nic["pausing"][0, 3], row.nic["paused"][1:, 3] = 0.95, 0.9
        for name in ("send", "receive"):
            row.nic[name][:, 3] *= 0.05
        row.nic["receive"][0, 3] = 0.0
        row.nic["marked"][:, 3] = 0.0
        cluster.slow_job(row, cluster.jobs[0], 0.05)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (_slow_receiver, "pcie_bound_receiver"),
        (_incast, "incast_receiver"),
        (_storm, "pfc_storm"),
    ],
)
def test_a_leaf_whose_senders_a_receiver_elsewhere_pauses_has_nothing_to_mark(
    change: Change, name: str
) -> None:
    """Pause spreads through spines to the leaves of the senders, whose queues stand still or are empty."""
    (incident,) = incidents_of(change, SLOTS, 2, 2 * NODES, changes_past=True)
    assert (incident.class_name, incident.cause.position) == (name, 3)


class LinkPauseFeed(DrawnFeed):
    """A feed of NICs that pause whole links: their counters of PFC are zero."""

    def __init__(self, *, has_durations: bool) -> None:
        super().__init__(DrawnCluster(9, 1, NODES, benign=False), SLOTS)
        self._has_durations = has_durations

    def _add(
        self, kind: DeviceKind, name: str, values: Floats, weights: Floats, first: int = 0
    ) -> None:
        if name.startswith("pause_frames"):
            super()._add(kind, f"global_{name}", values, weights, first)
        is_duration = name in {"pausing_seconds", "paused_seconds"}
        if is_duration or name.startswith("pause_frames"):
            values = np.zeros_like(values)
        if not is_duration or self._has_durations:
            super()._add(kind, name, values, weights, first)


@pytest.mark.parametrize("has_durations", [False, True])
def test_a_nic_that_pauses_the_link_beside_counters_of_pfc_that_are_zero_is_a_storm(
    *, has_durations: bool
) -> None:
    """Of bnxt, which has durations of PFC, and of ice, which has none."""

    def storm(_: DrawnCluster, row: Row, since: int) -> None:
        if since >= 0:
            row.nic["pausing_frames"][0, 3], row.nic["paused_frames"][1:, 3] = 11_000.0, 6000.0
            row.nic["receive"][0, 3] = 0.0
            row.nic["send"][:, 3] *= 0.2

    (incident,) = run(LinkPauseFeed(has_durations=has_durations), storm, SLOTS)
    assert (incident.class_name, incident.cause.position) == ("pfc_storm", 3)
