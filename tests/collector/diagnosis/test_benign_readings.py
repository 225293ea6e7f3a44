"""Readings that a healthy cluster has, and that differ from those of its peers or of its past."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from support.drawn_cluster import DrawnCluster, Row
from support.drawn_readings import NODES, classes_of, incidents_of


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


def a_link_loses_packets_in_one_sample(cluster: DrawnCluster, row: Row, since: int) -> None:
    """The rates of a sample of 15 seconds are those of two slots."""
    if since in {0, 1}:
        nodes = cluster.jobs[0].nodes
        row.nic["naks"][nodes[2], 3] = row.nic["order"][nodes[0], 3] = 1.0


def sequences_become_longer_while_storage_is_slower(
    cluster: DrawnCluster, row: Row, since: int
) -> None:
    """The job computes more for each byte that it exchanges; a few of its readings fall into gaps."""
    if since >= 0:
        nodes = cluster.jobs[0].nodes
        row.gpu["activity"][nodes] *= 1.15
        row.gpu["utilization"][nodes] *= 0.9
        for device, names in ((row.nic, ("send", "receive")), (row.gpu, ("nvlink",))):
            for name in names:
                device[name][nodes] *= 0.65
        row.mount["latency"] *= 6


def two_checkpoints_within_minutes(cluster: DrawnCluster, row: Row, since: int) -> None:
    """Each third of four minutes has a part of them, at some evaluations."""
    if 0 <= since < 4 or 12 <= since < 15:
        nodes = cluster.jobs[0].nodes
        cluster.slow_job(row, cluster.jobs[0], 0.0)
        row.gpu["utilization"][nodes] = 0.02


def two_stops_around_a_long_step(cluster: DrawnCluster, row: Row, since: int) -> None:
    """One slot between them has work without exchange; the second stop has lasted for one as the window contains all three."""
    if 0 <= since < 6 or 12 <= since < 16:
        cluster.slow_job(row, cluster.jobs[0], 0.0)
        row.gpu["utilization"][cluster.jobs[0].nodes] = 0.02
    if since == 8:
        cluster.slow_job(row, cluster.jobs[0], 0.0)


def many_checkpoints_within_minutes(cluster: DrawnCluster, row: Row, since: int) -> None:
    """A node writes in all of them; the pauses of long steps would be as many."""
    is_checkpoint = since >= 0 and since % 8 < 4
    nodes = cluster.jobs[0].nodes
    row.mount["write_latency"] = row.mount["latency"].copy()
    row.mount["write_operations"] = np.full(NODES, 0.1)
    if is_checkpoint:
        cluster.slow_job(row, cluster.jobs[0], 0.0)
        row.gpu["utilization"][nodes] = 0.02
        row.mount["write_operations"][nodes[1]] = 200.0


def a_job_stops_while_storage_is_slow(cluster: DrawnCluster, row: Row, since: int) -> None:
    """The minute with its last work has the mean of a job that waits."""
    if since >= -4:
        row.mount["latency"] *= 8
    if since >= 0:
        cluster.slow_job(row, cluster.jobs[0], 0.0)
        row.gpu["utilization"][cluster.jobs[0].nodes] = 0.0


def other_work_uses_nvlink_far_less_than_nics(cluster: DrawnCluster, row: Row, since: int) -> None:
    if since >= 0:
        nodes = cluster.jobs[0].nodes
        row.gpu["utilization"][nodes] *= 0.7
        row.gpu["nvlink"][nodes] *= 0.2
        for name in ("send", "receive"):
            row.nic[name][nodes] *= 0.6


def readings_of_moments_fall_into_gaps(cluster: DrawnCluster, row: Row, since: int) -> None:
    """A step takes one period of the samples, and all ranks are read in its gap for minutes: they exchange as before."""
    if since >= 0:
        row.gpu["utilization"][cluster.jobs[0].nodes] *= 0.62


@pytest.mark.parametrize(
    "change",
    [
        readings_of_moments_fall_into_gaps,
        a_link_loses_packets_in_one_sample,
        sequences_become_longer_while_storage_is_slower,
        two_checkpoints_within_minutes,
        two_stops_around_a_long_step,
        many_checkpoints_within_minutes,
        a_job_stops_while_storage_is_slow,
        other_work_uses_nvlink_far_less_than_nics,
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
    assert not classes_of(incidents_of(change, changes_past=True))
