"""Jobs that a fault affects: those that use the device, also where several jobs share a node or a rail."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from support.drawn_cluster import GONE, DrawnCluster, DrawnFeed, Row, gpu_uuid
from support.drawn_faults import FAULTS

from railscope_collector.diagnosis.incidents import Incident
from railscope_collector.workloads.job_roster import JobKey

ONSET, SLOTS = 50, 80
NODES = 4
FIRST, SECOND = JobKey("vision", "slurm", "7"), JobKey("speech", "slurm", "8")
HALF = slice(0, 4)

Change = Callable[[Row], None]


def incidents_of(change: Change, *, has_rails: bool = True) -> list[Incident]:
    """Return the incidents of a cluster with two jobs on each node, whose readings are changed from the onset on."""
    cluster = DrawnCluster(9, 1, NODES, benign=False)
    del cluster.jobs[1:]
    cluster.jobs[0].nodes = list(range(NODES))
    feed = DrawnFeed(cluster, SLOTS)
    for gpu in feed.diagnosis.devices.gpus if has_rails else ():
        gpu.rail = gpu.index
    running = {
        job: [gpu_uuid(node, index) for node in range(NODES) for index in indices]
        for job, indices in ((FIRST, range(4)), (SECOND, range(4, 8)))
    }
    feed.diagnosis.arrange()
    for slot in range(SLOTS):
        row = cluster.draw()
        if slot >= ONSET:
            change(row)
        feed.put(slot, row)
        feed.diagnosis.evaluate(slot, running)
    return [each for each in feed.diagnosis.tracker.incidents if each.severity != "info"]


def test_a_slow_receiver_affects_the_jobs_that_exchange_on_its_rail() -> None:
    cluster = DrawnCluster(9, 1, NODES, benign=False)
    del cluster.jobs[1:]
    cluster.jobs[0].nodes = [0, 1, 2]
    fault, feed = FAULTS["slow_receiver"](cluster), DrawnFeed(cluster, SLOTS)
    running = {
        job: [gpu_uuid(node, index) for node in nodes for index in range(8)]
        for job, nodes in ((FIRST, (0, 1, 2)), (SECOND, (3,)))
    }
    feed.diagnosis.arrange()
    for slot in range(SLOTS):
        row = cluster.draw()
        row.nic["send"][3] = row.nic["receive"][3] = 0.0
        if slot >= ONSET:
            fault.effect(cluster, row, slot - ONSET)
        feed.put(slot, row)
        feed.diagnosis.evaluate(slot, running)
    (found,) = [each for each in feed.diagnosis.tracker.incidents if not each.explained_by]
    assert (found.class_name, found.reach.jobs) == ("slow_receiver", {FIRST})


def hang(row: Row) -> None:
    """Let all ranks of the first job spin."""
    nodes = slice(0, NODES)
    for name in ("send", "receive"):
        row.nic[name][nodes, HALF] = 0.0
    row.gpu["nvlink"][nodes, HALF] = row.gpu["tensor"][nodes, HALF] = 0.0
    row.gpu["activity"][nodes, HALF], row.gpu["utilization"][nodes, HALF] = 0.1, 1.0


@pytest.mark.parametrize(("has_rails", "expected"), [(True, [FIRST]), (False, [])])
def test_a_job_hangs_beside_one_that_goes_on(*, has_rails: bool, expected: list[JobKey]) -> None:
    """Without the rails of GPUs it is unknown which of them exchange the traffic that goes on."""
    found = incidents_of(hang, has_rails=has_rails)
    assert [each.cause.job for each in found if each.class_name == "nccl_hang"] == expected


@pytest.mark.parametrize(("rail", "job"), [(1, FIRST), (6, SECOND)])
def test_a_link_that_is_down_touches_the_job_on_its_rail(rail: int, job: JobKey) -> None:
    def take_down(row: Row) -> None:
        row.nic["up"][2, rail] = 0
        row.nic["send"][2, rail] = row.nic["receive"][2, rail] = 0.0

    (found,) = [each for each in incidents_of(take_down) if each.class_name == "link_down"]
    assert found.reach.jobs == {job}


@pytest.mark.parametrize(("gpu", "job"), [(3, FIRST), (4, SECOND)])
def test_a_gpu_that_is_lost_touches_the_job_that_holds_it(gpu: int, job: JobKey) -> None:
    def remap(row: Row) -> None:
        row.gpu["remap"][1, gpu] = 1

    (found,) = [each for each in incidents_of(remap) if each.class_name == "row_remap"]
    assert found.reach.jobs == {job}


@pytest.mark.parametrize(("other", "expected"), [((), "kubernetes"), (range(5, 8), "")])
def test_commands_are_of_the_scheduler_that_all_jobs_of_the_node_have(
    other: Sequence[int], expected: str
) -> None:
    """Most jobs of the cluster are of another one, and the GPU that is lost is idle."""
    cluster = DrawnCluster(9, 1, NODES, benign=False)
    feed = DrawnFeed(cluster, SLOTS)
    pod = JobKey("vision", "kubernetes", "research/train")
    gpus = {FIRST: [(0, range(8))], SECOND: [(1, range(8)), (3, other)], pod: [(3, range(4))]}
    for slot in range(16):
        row = cluster.draw()
        if slot >= 10:
            row.absent[3, 4] = GONE
        if slot == 14:
            del gpus[pod]  # the node is drained: its commands stay the same
            gpus[SECOND].pop()
        feed.put(slot, row)
        feed.diagnosis.arrange()
        running = {
            job: [gpu_uuid(node, index) for node, indices in parts for index in indices]
            for job, parts in gpus.items()
        }
        feed.diagnosis.evaluate(slot, running)
        if slot == 13:
            (lost,) = feed.diagnosis.tracker.incidents
            assert lost.scheduler == expected
    assert (lost.class_name, lost.scheduler) == ("gpu_lost", expected or "slurm")
