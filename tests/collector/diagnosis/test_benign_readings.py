"""Readings that a healthy cluster has, and that differ from those of its peers or of its past."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from bench.drawn_cluster import START_NS, DrawnCluster, DrawnFeed, Row, gpu_uuid
from bench.drawn_faults import hang as hung_job, slow_gpu, slow_receiver
from collector.detector_thresholds import DetectorThresholds
from collector.diagnosis.findings import SLOT_NS, JobState, JobWait
from collector.diagnosis.incidents import Incident
from collector.diagnosis.job_detectors import are_alike
from collector.diagnosis.jobs import ActiveJob
from collector.diagnosis.node_detectors import NodeContact
from collector.workloads.job_roster import JobKey
from railscope.timestamps import SECOND_NS
from railscope.wire import WireEntity, WireEvent

SLOTS, ONSET = 84, 50
NODES = 6


def incidents_of(
    change: Callable[[DrawnCluster, Row, int], None],
    slots: int = SLOTS,
    pods: int = 1,
    job_nodes: int = NODES,
) -> list[Incident]:
    """Return the incidents of a cluster whose readings are changed from the onset on."""
    cluster = DrawnCluster(9, pods, NODES, benign=False)
    del cluster.jobs[0].nodes[job_nodes:]
    feed = DrawnFeed(cluster, slots)
    for slot in range(slots):
        row = cluster.draw()
        change(cluster, row, slot - ONSET)
        feed.put(slot, row)
        feed.diagnosis.arrange()
        feed.diagnosis.evaluate(slot)
    return [each for each in feed.diagnosis.tracker.incidents if each.severity != "info"]


def classes_of(found: list[Incident]) -> set[tuple[str, str]]:
    return {(each.incident_class.name, each.cause.kind) for each in found}


def rails_of_two_speeds(_: DrawnCluster, row: Row, __: int) -> None:
    row.nic["speed"][:, 5:] /= 2
    row.nic["width"][:, 7] = 8


def a_driver_is_loaded_again(_: DrawnCluster, row: Row, since: int) -> None:
    if since == 0:
        row.nic["downs"][NODES - 1] = 1


def cables_with_many_corrected_errors(_: DrawnCluster, row: Row, __: int) -> None:
    row.nic["bit_errors"][:] *= 2e-5 / row.nic["bit_errors"].mean()
    np.clip(row.nic["bit_errors"], 1.4e-5, 3e-5, out=row.nic["bit_errors"])


def switches_that_spray_packets(_: DrawnCluster, row: Row, since: int) -> None:
    row.nic["order"][:, 2] = 20.0 * (since >= 0) * (row.nic["send"][:, 2] > 0)


def a_nic_pauses_in_one_burst(_: DrawnCluster, row: Row, since: int) -> None:
    """It is in two slots, and in all windows that overlap them."""
    if since in {0, 1}:
        row.nic["pausing"][0, 3] = row.nic["pausing_frames"][1, 4] = 0.2


def ranks_wait_for_a_checkpoint(cluster: DrawnCluster, row: Row, since: int) -> None:
    """All ranks spin while one of them writes."""
    if 0 <= since < 20:
        nodes = cluster.jobs[0].nodes
        for name, value in (("utilization", 1.0), ("activity", 0.15), ("nvlink", 0.0)):
            row.gpu[name][nodes] = value
        row.gpu["power"][nodes] = 150.0
        row.nic["send"][nodes] = row.nic["receive"][nodes] = 0.0
        row.mount["operations"][nodes[0]] = 400.0
        row.mount["latency"][nodes[0]] *= 20


def a_service_has_less_load(cluster: DrawnCluster, row: Row, since: int) -> None:
    nodes = cluster.jobs[0].nodes
    load = cluster.rng.uniform(0.3, 1.0, (len(nodes), 1)) if since < 0 else 0.5
    for name in ("utilization", "activity", "nvlink"):
        row.gpu[name][nodes] *= load
    for name in ("send", "receive"):
        row.nic[name][nodes] *= load


def a_busy_service_has_less_load(cluster: DrawnCluster, row: Row, since: int) -> None:
    """Its load is balanced, so that its replicas have the same; ranks of a training job spin while they wait."""
    nodes = cluster.jobs[0].nodes
    load = 0.86 if since < 0 else 0.73
    for name in ("utilization", "activity", "nvlink"):
        row.gpu[name][nodes] *= load
    for name in ("send", "receive"):
        row.nic[name][nodes] *= load


def a_service_has_far_less_load(cluster: DrawnCluster, row: Row, since: int) -> None:
    """Its nodes hardly exchange; those of training do."""
    nodes = cluster.jobs[0].nodes
    load = 0.93 if since < 0 else 0.6
    for name in ("utilization", "activity", "nvlink"):
        row.gpu[name][nodes] *= load
    for name in ("send", "receive"):
        row.nic[name][nodes] *= 0.2 * load


def a_saturated_service_has_less_load(cluster: DrawnCluster, row: Row, since: int) -> None:
    """Its load was high for most of the time, and far lower for some."""
    nodes = cluster.jobs[0].nodes
    load = 1.0 if since < 0 and since // 6 % 3 else 0.4
    for name in ("utilization", "activity", "nvlink"):
        row.gpu[name][nodes] *= load
    for name in ("send", "receive"):
        row.nic[name][nodes] *= 0.2 * load


def a_job_begins_to_exchange(cluster: DrawnCluster, row: Row, since: int) -> None:
    """Its start keeps the GPUs busy; then its steps exchange, and leave gaps."""
    nodes = cluster.jobs[0].nodes
    if since < 0:
        row.gpu["utilization"][nodes] = 1.0
        for device, names in ((row.nic, ("send", "receive")), (row.gpu, ("nvlink",))):
            for name in names:
                device[name][nodes] *= 0.1
    else:
        row.gpu["utilization"][nodes] *= 0.6


def nodes_generate_samples(cluster: DrawnCluster, row: Row, since: int) -> None:
    """Training alternates with a phase in which each node works for itself."""
    if since >= 0:
        nodes = cluster.jobs[0].nodes
        load = np.linspace(0.6, 1.2, len(nodes))[:, None]
        row.gpu["utilization"][nodes] = np.minimum(0.85 * load + 0.2, 1.0)
        for name, factor in (("activity", 0.4), ("nvlink", 0.2)):
            row.gpu[name][nodes] *= factor * load
        for name in ("send", "receive"):
            row.nic[name][nodes] *= 0.4 * load


def packets_below_a_leaf_are_lost_once(_: DrawnCluster, row: Row, since: int) -> None:
    """As where a path of the fabric changes: three windows contain the one burst."""
    if since == 0:
        row.nic["naks"][:, 3] = row.nic["order"][:, 3] = 10.0


@pytest.mark.parametrize(
    "change",
    [
        nodes_generate_samples,
        a_nic_pauses_in_one_burst,
        packets_below_a_leaf_are_lost_once,
        rails_of_two_speeds,
        a_driver_is_loaded_again,
        cables_with_many_corrected_errors,
        switches_that_spray_packets,
        ranks_wait_for_a_checkpoint,
        a_service_has_less_load,
        a_busy_service_has_less_load,
        a_service_has_far_less_load,
        a_saturated_service_has_less_load,
        a_job_begins_to_exchange,
    ],
)
def test_a_healthy_cluster_has_no_incident(
    change: Callable[[DrawnCluster, Row, int], None],
) -> None:
    assert not classes_of(incidents_of(change))


@pytest.mark.parametrize(
    ("speed", "expected"), [(0.83, {("dataloader_stall", "job")}), (1.0, set()), (0.4, set())]
)
def test_small_gaps_show_missing_input_if_the_job_loses_as_much(
    speed: float, expected: set[tuple[str, str]]
) -> None:
    """In another phase, as an evaluation, a job exchanges as much as before, or far less."""

    def gaps(cluster: DrawnCluster, row: Row, since: int) -> None:
        if since >= 0:
            row.gpu["utilization"][cluster.jobs[0].nodes] *= 0.83
            cluster.slow_job(row, cluster.jobs[0], speed)

    assert classes_of(incidents_of(gaps)) == expected


def test_storage_that_becomes_slow_while_a_job_already_waits_is_not_the_cause() -> None:
    def input_is_late(cluster: DrawnCluster, row: Row, since: int) -> None:
        if since >= 0:
            row.gpu["utilization"][cluster.jobs[0].nodes] *= 0.6
            cluster.slow_job(row, cluster.jobs[0], 0.6)
        if since >= 8:
            row.mount["latency"] *= 12

    assert classes_of(incidents_of(input_is_late, 76)) == {("dataloader_stall", "job")}


def test_equal_gaps_of_all_ranks_show_common_steps_that_are_longer_than_a_minute() -> None:
    """Nodes that are sampled at other moments of a step then differ in what they exchange."""

    def input_is_late(cluster: DrawnCluster, row: Row, since: int) -> None:
        nodes = cluster.jobs[0].nodes
        if since >= 0:
            row.gpu["utilization"][nodes] *= 0.5
            cluster.slow_job(row, cluster.jobs[0], 0.5)
            shares = 1 + 0.3 * np.sin(since + np.arange(len(nodes)))[:, None]
            for device, names in ((row.nic, ("send", "receive")), (row.gpu, ("nvlink",))):
                for name in names:
                    device[name][nodes] *= shares

    assert classes_of(incidents_of(input_is_late)) == {("dataloader_stall", "job")}


@pytest.mark.parametrize(("readings", "expected"), [(5.0, True), (20.0, False)])
def test_few_readings_of_moments_differ_although_ranks_wait_alike(
    readings: float, *, expected: bool
) -> None:
    used = np.repeat([0.2, 0.4, 0.6], 8)
    assert are_alike(used, 0.4, readings) is expected


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

    assert ("gpu_straggler", "gpu") in classes_of(incidents_of(slow))


def test_steps_of_which_two_slots_show_the_exchange_or_none_show_missing_input() -> None:
    """Every fourth slot has all of the exchange of a step of 40 seconds."""

    def input_is_late(cluster: DrawnCluster, row: Row, since: int) -> None:
        nodes = cluster.jobs[0].nodes
        factor = 3.6 if since % 4 == 0 else 0.05
        if since >= 0:
            row.gpu["utilization"][nodes] *= 0.6
            factor *= 0.6
        for device, names in ((row.nic, ("send", "receive")), (row.gpu, ("nvlink",))):
            for name in names:
                device[name][nodes] *= factor

    assert classes_of(incidents_of(input_is_late)) == {("dataloader_stall", "job")}


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


def test_a_job_without_input_is_found_after_four_minutes() -> None:
    def input_is_late(cluster: DrawnCluster, row: Row, since: int) -> None:
        if since >= 26 - ONSET:
            nodes = cluster.jobs[0].nodes
            row.gpu["utilization"][nodes] *= 0.6
            cluster.slow_job(row, cluster.jobs[0], 0.6)

    assert classes_of(incidents_of(input_is_late, 40)) == {("dataloader_stall", "job")}


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

    assert classes_of(incidents_of(route, 132)) == found


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


def test_a_slow_receiver_remains_one_when_its_pcie_link_is_unread() -> None:
    def receiver(cluster: DrawnCluster, row: Row, since: int) -> None:
        if since >= 0:
            fault.effect(cluster, row, since)
        if since >= 12:
            row.nic["width"][:] = row.nic["width"].max()

    fault = slow_receiver(DrawnCluster(9, 1, NODES, benign=False), "pcie_bound_receiver")
    found = incidents_of(receiver)
    assert [each.class_name for each in found if not each.explained_by] == ["pcie_bound_receiver"]


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


def test_a_setting_of_both_nics_that_a_node_uses_is_one_cause() -> None:
    def sends_no_notifications(_: DrawnCluster, row: Row, since: int) -> None:
        for signal in ("send", "receive"):
            row.nic[signal][:, 2:] = 0.0
        row.nic["marked"][:] = 0.01
        if since >= 0:
            row.nic["notifies"][1] = -1

    assert classes_of(incidents_of(sends_no_notifications)) == {("cnp_not_sent", "node")}


def test_few_losses_of_healthy_links_hide_no_link_that_corrupts_what_it_sends() -> None:
    def losses(cluster: DrawnCluster, row: Row, since: int) -> None:
        job = cluster.jobs[0]
        row.nic["naks"][job.nodes[2], 2] = 0.2
        if since >= 0:
            row.nic["naks"][job.nodes[0], 2] = 20.0
            row.nic["order"][job.nodes[1:], 2] = 4.0

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

    found = incidents_of(cut)
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

    assert classes_of(incidents_of(end)) == {("node_down", "node")}


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

    (separated,) = incidents_of(cut, slots=ONSET + 12)
    assert separated.class_name == "agent_partition"


def test_a_harmless_incident_of_a_nic_leaves_the_past_of_its_job() -> None:
    """Marks at one receiver that delay no other, from the beginning: a straggler of the job is found as without them."""

    def marks_and_straggler(cluster: DrawnCluster, row: Row, since: int) -> None:
        job = cluster.jobs[0]
        if row.nic["send"][job.nodes[0], 2] > 0.02:  # while the job exchanges
            row.nic["receive"][job.nodes[0], 2] = 0.45
            row.nic["marked"][job.nodes[0], 2] = 0.02
        if since >= 0:
            cluster.slow_job(row, job, 0.6, (job.nodes[1], 3))

    assert classes_of(incidents_of(marks_and_straggler)) == {("gpu_straggler", "gpu")}


@pytest.mark.parametrize(
    ("slots", "length", "longest"),
    [
        ("wwwww ssss www", 8, 0),
        ("wwwww xxxx ww", 2, 5),
        ("sss ww", 2, 0),
        ("ww ssssssssss xxxx w", 1, 2),
        ("ww x w", 4, 0),
    ],
)
def test_a_wait_goes_on_without_the_slots_in_which_the_job_stores(
    slots: str, length: int, longest: int
) -> None:
    """Slots: waits, stores, works (x)."""
    wait, found = JobWait(), 0
    for slot, state in enumerate(slots.replace(" ", "")):
        if state == "w":
            found = wait.add(slot)
        elif state == "s":
            wait.add_storing(slot)
    assert (found, wait.longest) == (length, longest)


def test_a_restart_of_an_agent_raises_only_info() -> None:
    """The job of its node goes on; after 90 seconds it would be a warning."""

    def restart(cluster: DrawnCluster, row: Row, since: int) -> None:
        if 0 <= since < 5:
            row.cut_nodes.add(cluster.jobs[0].nodes[1])

    assert not incidents_of(restart)


def test_a_node_that_stops_long_after_its_job_did_not_stop_it() -> None:
    def hang(cluster: DrawnCluster, row: Row, since: int) -> None:
        if since >= -10:
            cluster.slow_job(row, cluster.jobs[0], 0.0)
        if 10 <= since < 14:
            row.cut_nodes.add(cluster.jobs[0].nodes[1])

    assert ("node_down", "node") not in classes_of(incidents_of(hang))


@pytest.mark.parametrize("has_pressure", [True, False])
def test_a_late_host_is_found_although_some_readings_of_moments_miss_its_gaps(
    *, has_pressure: bool
) -> None:
    """Two of six readings show a moment in which the steps go on: four nodes, and all ranks write a checkpoint."""

    def launch_late(cluster: DrawnCluster, row: Row, since: int) -> None:
        job, node = cluster.jobs[0], cluster.jobs[0].nodes[1]
        if since >= 0:
            cluster.slow_job(row, job, 0.8)
            row.node["pressure"][node] += 0.2 * has_pressure
            if since % 3:
                row.gpu["utilization"][node] *= 0.7
        if 8 <= since < 10:
            row.gpu["utilization"][job.nodes] *= 0.2

    assert classes_of(incidents_of(launch_late)) == {("host_late", "node")}


def test_slow_storage_is_one_incident_through_checkpoints_and_evaluations() -> None:
    """A checkpoint writes, and an evaluation keeps the GPUs busier; the storage is slow in both."""

    def slow_down(cluster: DrawnCluster, row: Row, since: int) -> None:
        if since < 0:
            return
        for job in cluster.jobs:
            row.gpu["utilization"][job.nodes] *= 0.6
            cluster.slow_job(row, job, 0.6)
        row.mount["latency"] *= 25
        if 20 <= since < 34:
            row.mount["operations"] *= 20

    incidents = incidents_of(slow_down, ONSET + 60)
    assert [(each.class_name, each.ended_ns) for each in incidents] == [("storage_bound", 0)]


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


@pytest.mark.parametrize(("speeds", "found"), [((0.5, 0.5), True), ((1.0, 0.03), False)])
def test_moments_show_missing_input_if_the_exchange_is_even(
    speeds: tuple[float, float], *, found: bool
) -> None:
    """Readings follow the steps for a while: all are busy, or all idle. A checkpoint stops the exchange for a time."""

    def input_is_late(cluster: DrawnCluster, row: Row, since: int) -> None:
        job = cluster.jobs[0]
        if since >= 0:
            cluster.slow_job(row, job, speeds[since // 3 % 2])
            row.gpu["utilization"][job.nodes] *= since // 2 % 2

    classes = classes_of(incidents_of(input_is_late))
    assert (("dataloader_stall", "job") in classes) == found


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

    assert classes_of(incidents_of(slower)) == expected


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


def test_a_job_hangs_although_ranks_of_one_stage_usually_work_little() -> None:
    def hang(cluster: DrawnCluster, row: Row, since: int) -> None:
        nodes = cluster.jobs[0].nodes
        row.gpu["activity"][nodes[:4]] = 0.24
        if since >= 0:
            for name, value in (("utilization", 1.0), ("activity", 0.15), ("nvlink", 0.0)):
                row.gpu[name][nodes] = value
            row.nic["send"][nodes] = row.nic["receive"][nodes] = 0.0

    assert ("nccl_hang", "job") in classes_of(incidents_of(hang))


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

    found = classes_of(incidents_of(exchange, slots=ONSET + 10))
    assert (("incast_receiver", "nic") in found) == has_past


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


@pytest.mark.parametrize(("clients", "cause"), [(1, "node"), (2, "storage")])
def test_a_server_is_slow_if_both_of_its_clients_are(clients: int, cause: str) -> None:
    def slow_down(cluster: DrawnCluster, row: Row, since: int) -> None:
        job = cluster.jobs[0]
        row.mount["operations"][[n for n in range(NODES) if n not in job.nodes]] = 0.0
        if since >= 0:
            row.gpu["utilization"][job.nodes] *= 0.6
            cluster.slow_job(row, job, 0.6)
            row.mount["latency"][job.nodes[:clients]] *= 15

    assert classes_of(incidents_of(slow_down, job_nodes=2)) == {("storage_bound", cause)}


@pytest.mark.parametrize(
    ("speed", "slow_speed", "loses"), [(0.8, 0.93, True), (0.8, 0.5, False), (0.96, 0.99, False)]
)
def test_a_job_loses_time_if_it_is_slower_than_its_own_variation(
    speed: float, slow_speed: float, *, loses: bool
) -> None:
    nothing = np.zeros(0, np.intp)
    job = ActiveJob(JobKey("t", "slurm", "1"), ("n1",), nothing, nothing)
    assert JobState(job, slow_speed, exchange_change=speed).loses_time == loses


def test_a_job_remains_slow_although_its_slow_minutes_become_a_part_of_its_past() -> None:
    cluster = DrawnCluster(9, 1, NODES, benign=False)
    feed = DrawnFeed(cluster, ONSET + 54)
    for slot in range(ONSET + 54):
        row = cluster.draw()
        if slot >= ONSET:
            cluster.slow_job(row, cluster.jobs[0], 0.84)
        feed.put(slot, row)
        feed.diagnosis.arrange()
        feed.diagnosis.evaluate(slot)
    (incident,) = feed.diagnosis.tracker.incidents
    assert incident.class_name == "job_slowdown"
    assert not incident.ended_ns


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


def test_the_root_of_a_tree_is_no_incast() -> None:
    """One node receives more than the others on all rails since the first reading."""

    def receive(cluster: DrawnCluster, row: Row, _: int) -> None:
        root = cluster.jobs[0].nodes[0]
        row.nic["receive"][root] = 0.7
        row.nic["marked"][root] = 0.05
        _pause_others(row, 0.1)

    assert classes_of(incidents_of(receive, 20)) == set()


def _pause_others(row: Row, share: float) -> None:
    row.nic["paused"][1:NODES] += share


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
        feed.put(slot, row)
        feed.diagnosis.arrange()
        feed.diagnosis.evaluate(slot)
    assert {each.cause.kind for each in feed.diagnosis.tracker.incidents} == {cause}


def test_a_job_that_hangs_while_one_gpu_works_is_not_slow() -> None:
    """A rank that never reaches the collective computes on; the others wait for it."""

    def hang(cluster: DrawnCluster, row: Row, since: int) -> None:
        if since < 0:
            return
        node = cluster.jobs[0].nodes[1]
        activity, power = row.gpu["activity"][node, 3], row.gpu["power"][node, 3]
        hung_job(cluster).effect(cluster, row, since)
        row.gpu["activity"][node, 3], row.gpu["power"][node, 3] = activity, power

    found = incidents_of(hang)
    assert {each.class_name for each in found if not each.explained_by} == {"nccl_hang"}


@pytest.mark.parametrize(("factor", "is_storage"), [(50, True), (10, False)])
def test_a_mount_that_fails_is_the_cause_although_the_ranks_that_wait_spin(
    factor: float, *, is_storage: bool
) -> None:
    def fail(cluster: DrawnCluster, row: Row, since: int) -> None:
        if since >= 0:
            cluster.slow_job(row, cluster.jobs[0], 0.5)
            row.mount["latency"] *= factor

    assert (("storage_bound", "storage") in classes_of(incidents_of(fail))) == is_storage


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

    found = classes_of(incidents_of(sends_none, pods=2, job_nodes=2 * NODES))
    assert (("cnp_not_sent", "nic") in found) == others_send
