"""Jobs that wait for input, storage or a rank, or are slower than before."""

from __future__ import annotations

import numpy as np
import pytest
from support.drawn_cluster import START_NS, DrawnCluster, DrawnFeed, Row
from support.drawn_faults import hang as hung_job
from support.drawn_readings import (
    NODES,
    ONSET,
    SLOTS,
    classes_of,
    drawn_feed,
    healthy_feed,
    incidents_of,
    run,
)

from railscope_collector.diagnosis.findings import SLOT_NS, JobState, JobWait
from railscope_collector.diagnosis.job_detectors import are_alike
from railscope_collector.diagnosis.jobs import ActiveJob
from railscope_collector.workloads.job_roster import JobKey


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


@pytest.mark.parametrize(("period", "gap"), [(3, 2), (4, 2), (6, 4), (7, 4)])
def test_missing_input_of_long_steps_is_found_before_their_fourth_gap_ends(
    period: int, gap: int
) -> None:
    """Two gaps may be checkpoints."""

    def input_is_late(cluster: DrawnCluster, row: Row, since: int) -> None:
        if since >= 0 and since % period < gap:
            row.gpu["utilization"][cluster.jobs[0].nodes] = 0.02
            cluster.slow_job(row, cluster.jobs[0], 0.0)

    assert not incidents_of(input_is_late, ONSET + period + gap)
    found = incidents_of(input_is_late, ONSET + 3 * period + gap)
    assert classes_of(found) == {("dataloader_stall", "job")}


@pytest.mark.parametrize(("operations", "found"), [(3.0, set()), (60.0, {"storage_bound"})])
def test_a_new_job_waits_for_slow_storage_if_its_operations_take_as_long(
    operations: float, found: set[str]
) -> None:
    """Its utilization has no past; its tasks may wait for another disk."""

    def start(cluster: DrawnCluster, row: Row, since: int) -> None:
        nodes = cluster.jobs[0].nodes
        row.mount["operations"][nodes] = operations
        row.gpu["utilization"][nodes] *= 0.5 if since >= 0 else np.nan
        if since >= 0:
            row.mount["latency"] *= 10
            row.node["io"][nodes] = 0.4

    assert {
        name for name, _ in classes_of(incidents_of(start, ONSET + 20, changes_past=True))
    } == found


def test_storage_that_is_slow_for_minutes_is_not_why_missing_input_waits() -> None:
    """The history of the readings is shorter than the wait; the storage was slow in a part of it."""

    def input_is_late(cluster: DrawnCluster, row: Row, since: int) -> None:
        if since >= 0:
            row.gpu["utilization"][cluster.jobs[0].nodes] *= 0.6
            cluster.slow_job(row, cluster.jobs[0], 0.6)
        if since >= 10 and since // 8 % 2:
            row.mount["latency"] *= 12

    assert classes_of(incidents_of(input_is_late, 100)) == {("dataloader_stall", "job")}


def test_storage_that_becomes_slow_after_long_steps_have_waited_is_not_the_cause() -> None:
    """Some slots of a step have no gap: they end no wait."""

    def input_is_late(cluster: DrawnCluster, row: Row, since: int) -> None:
        if since >= 0:
            share = (0.1, 0.8, 0.8)[since % 3]
            row.gpu["utilization"][cluster.jobs[0].nodes] *= share
            cluster.slow_job(row, cluster.jobs[0], share)
        if since >= 20:
            row.mount["latency"] *= 12

    assert classes_of(incidents_of(input_is_late, 92)) == {("dataloader_stall", "job")}


@pytest.mark.parametrize(
    ("speed", "expected"),
    [(0.82, set()), (0.6, {("storage_bound", "storage")})],
)
def test_slow_storage_is_a_cause_only_if_a_slow_job_becomes_slower(
    speed: float, expected: set[tuple[str, str]]
) -> None:
    """Work of the server itself has no effect on most jobs."""

    def slow(cluster: DrawnCluster, row: Row, since: int) -> None:
        nodes = cluster.jobs[0].nodes
        if 0 <= since < 20:
            row.gpu["utilization"][nodes] *= 0.9
            cluster.slow_job(row, cluster.jobs[0], 0.82)
        if since >= 20:
            row.gpu["utilization"][nodes] *= 0.9 * speed / 0.82
            cluster.slow_job(row, cluster.jobs[0], speed)
            row.mount["latency"] *= 8

    assert classes_of(incidents_of(slow, 96)) == expected


def test_a_server_that_is_slow_for_few_operations_is_not_the_cause() -> None:
    """Backups slow down writes most: ranks cannot wait long for one write in five seconds."""

    def input_is_late(cluster: DrawnCluster, row: Row, since: int) -> None:
        row.mount["operations"] *= 0.01
        if since >= 0:
            row.gpu["utilization"][cluster.jobs[0].nodes] *= 0.6
            cluster.slow_job(row, cluster.jobs[0], 0.6)
            row.mount["latency"] *= 12

    assert classes_of(incidents_of(input_is_late)) == {("dataloader_stall", "job")}


def test_replicas_that_differed_from_the_start_have_no_late_host() -> None:
    """There is too little past for a baseline: the differences of some minutes before are the past."""

    def differ(cluster: DrawnCluster, row: Row, since: int) -> None:
        row.gpu["utilization"][cluster.jobs[0].nodes[0]] *= 0.8
        if since >= 20 - ONSET:
            cluster.slow_job(row, cluster.jobs[0], 0.85)

    assert run(drawn_feed(), differ, 40) == []


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

    assert classes_of(incidents_of(input_is_late, changes_past=True)) == {
        ("dataloader_stall", "job")
    }


def test_a_job_without_input_is_found_after_four_minutes() -> None:
    def input_is_late(cluster: DrawnCluster, row: Row, since: int) -> None:
        if since >= 26 - ONSET:
            nodes = cluster.jobs[0].nodes
            row.gpu["utilization"][nodes] *= 0.6
            cluster.slow_job(row, cluster.jobs[0], 0.6)

    assert classes_of(incidents_of(input_is_late, 40, changes_past=True)) == {
        ("dataloader_stall", "job")
    }


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


def test_a_low_reading_before_normal_ones_is_not_the_onset_of_a_late_host() -> None:
    def launch_late(cluster: DrawnCluster, row: Row, since: int) -> None:
        node = cluster.jobs[0].nodes[1]
        if since >= -2:
            row.node["pressure"][node] += 0.2
        if since >= 0 or since == -2:
            row.gpu["utilization"][node] *= 0.7
        if since >= 0:
            cluster.slow_job(row, cluster.jobs[0], 0.8)

    (late,) = incidents_of(launch_late, changes_past=True)
    assert late.class_name == "host_late"
    assert 0 <= (late.onset_ns - START_NS) // SLOT_NS - ONSET <= 2


@pytest.mark.parametrize(
    ("pressure", "others", "has_means", "expected"),
    [
        (0.3, 0.0, False, True),
        (0.3, 0.3, False, False),
        (0.0, 0.0, True, True),
        (0.0, 0.0, False, False),
    ],
)
def test_a_late_host_is_found_by_rare_moments_with_pressure_or_by_means(
    pressure: float, others: float, *, has_means: bool, expected: bool
) -> None:
    """A step has one gap, which one reading of four shows; GPM has the share of each interval.

    Pressure on all nodes, as by late input, makes none late.
    """

    def launch_late(cluster: DrawnCluster, row: Row, since: int) -> None:
        node = cluster.jobs[0].nodes[1]
        uses = row.gpu["utilization"].copy()
        if since >= 0:
            cluster.slow_job(row, cluster.jobs[0], 0.75)
            row.node["pressure"][cluster.jobs[0].nodes] += others
            row.node["pressure"][node] += pressure - others
            row.gpu["utilization"][node] *= since % 4 > 0
            uses[node] *= 0.75
        if has_means:
            row.gpu["graphics"] = uses

    found = classes_of(incidents_of(launch_late))
    assert (("host_late", "node") in found) == expected


def test_a_rank_that_prepares_a_job_before_its_first_exchange_is_not_late() -> None:
    """The others already wait in a kernel."""

    def prepare(cluster: DrawnCluster, row: Row, since: int) -> None:
        for name in ("send", "receive"):
            row.nic[name][cluster.jobs[0].nodes] = 0.0
        row.gpu["nvlink"][cluster.jobs[0].nodes] = 0.0
        if since >= 0:
            row.gpu["utilization"][cluster.jobs[0].nodes[0]] *= 0.5

    assert incidents_of(prepare) == []


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


def test_slow_storage_reaches_the_jobs_that_wait_for_it_and_no_other_client() -> None:
    """Each node has it mounted, and reads a file at times: that is no reason why its job is slow."""

    def slow_down(cluster: DrawnCluster, row: Row, since: int) -> None:
        user, other = cluster.jobs
        row.mount["operations"][other.nodes] = 0.01
        if since >= 0:
            row.mount["latency"] *= 25
            row.gpu["utilization"][user.nodes] *= 0.6
            cluster.slow_job(row, user, 0.6)

    (incident,) = incidents_of(slow_down, ONSET + 30, changes_past=True)
    assert incident.class_name == "storage_bound"
    assert {job.workload for job in incident.reach.jobs} == {"101"}


def test_a_job_that_runs_as_before_does_not_wait_for_storage_that_stays_slow() -> None:
    def slow_down(cluster: DrawnCluster, row: Row, since: int) -> None:
        if since >= 0:
            row.mount["latency"] *= 25
        if 0 <= since < 14:
            for job in cluster.jobs:
                row.gpu["utilization"][job.nodes] *= 0.5
                cluster.slow_job(row, job, 0.5)

    (incident,) = incidents_of(slow_down, ONSET + 40)
    assert incident.class_name == "storage_bound"
    assert incident.ended_ns


@pytest.mark.parametrize(
    ("later_factor", "expected"),
    [(1, ("dataloader_stall", "job")), (2, ("storage_bound", "storage"))],
)
def test_a_job_that_has_run_with_storage_as_slow_waits_for_something_else(
    later_factor: int, expected: tuple[str, str]
) -> None:
    def slow_down(cluster: DrawnCluster, row: Row, since: int) -> None:
        if since >= 0:
            row.mount["latency"] *= 8
        if since >= 24:
            row.mount["latency"] *= later_factor
            row.gpu["utilization"][cluster.jobs[0].nodes] *= 0.6
            cluster.slow_job(row, cluster.jobs[0], 0.6)

    (incident,) = incidents_of(slow_down, ONSET + 50)
    assert (incident.class_name, incident.cause.kind) == expected
    assert incident.onset_ns >= START_NS + (ONSET + 24) * SLOT_NS


@pytest.mark.parametrize("first", [0, 8])
def test_the_onset_of_slow_storage_is_that_of_its_latency_outside_of_checkpoints(
    first: int,
) -> None:
    """A checkpoint makes it slow in the slots 2 to 7, and jobs wait for it after 12."""

    def slow_down(cluster: DrawnCluster, row: Row, since: int) -> None:
        is_checkpoint = 2 <= since < 8
        if is_checkpoint:
            row.mount["operations"] *= 20
        if since >= first or is_checkpoint:
            row.mount["latency"] *= 25
        if since >= 12:
            for job in cluster.jobs:
                row.gpu["utilization"][job.nodes] *= 0.6
                cluster.slow_job(row, job, 0.6)

    (incident,) = incidents_of(slow_down)
    assert incident.class_name == "storage_bound"
    assert incident.onset_ns == START_NS + (ONSET + first + 1) * SLOT_NS


def test_a_server_that_is_a_little_slower_for_all_its_clients_is_slow() -> None:
    """No client alone has a latency that chance could not explain, in some minutes."""

    def slow_down(cluster: DrawnCluster, row: Row, since: int) -> None:
        if since >= 0:
            for job in cluster.jobs:
                row.gpu["utilization"][job.nodes] *= 0.6
                cluster.slow_job(row, job, 0.6)
            row.mount["latency"][:] = 0.006

    found = incidents_of(slow_down)
    assert [(each.class_name, each.cause.name) for each in found] == [("storage_bound", "filer")]


def test_a_server_that_becomes_slow_in_a_checkpoint_is_the_cause_of_the_wait_that_follows() -> None:
    """Until the checkpoint is a minute ago, its waits are its own; only reads are slow, and samples show them later."""

    def slow_down(cluster: DrawnCluster, row: Row, since: int) -> None:
        row.mount["write_latency"] = row.mount["latency"].copy()
        row.mount["write_operations"] = np.full(NODES, 200.0 if 0 <= since < 4 else 20.0)
        if since >= 0:
            for job in cluster.jobs:
                row.gpu["utilization"][job.nodes] *= 0.6
                cluster.slow_job(row, job, 0.6)
        if since >= 3:
            row.mount["latency"] *= 7

    found = incidents_of(slow_down, ONSET + 30, changes_past=True)
    storage = [each for each in found if each.class_name == "storage_bound"]
    assert [each.cause.name for each in storage] == ["filer"]
    others = [each for each in found if each.class_name != "storage_bound"]
    assert all(each.explained_by == storage[0].incident_id for each in others)


def test_a_job_that_loads_its_state_does_not_wait_for_the_slow_mounts_of_others() -> None:
    """Its load makes its own mounts slow, and those of its neighbours, which run as before."""

    def start(cluster: DrawnCluster, row: Row, since: int) -> None:
        if since >= 0:
            nodes = cluster.jobs[0].nodes
            row.gpu["utilization"][nodes] *= 0.1
            cluster.slow_job(row, cluster.jobs[0], 0.0)
            row.mount["latency"] *= 15
            row.mount["latency"][nodes] *= 2
            row.mount["operations"][nodes] *= 20

    assert classes_of(incidents_of(start, job_nodes=NODES // 2)) == set()


@pytest.mark.parametrize("pause", [0, 12])
def test_a_job_that_restarts_loads_its_state_slowly(pause: int) -> None:
    """After two minutes without work the ranks run again, while the storage is slow for two minutes."""

    def restart(cluster: DrawnCluster, row: Row, since: int) -> None:
        nodes = cluster.jobs[0].nodes
        if 0 <= since < pause:
            cluster.slow_job(row, cluster.jobs[0], 0.0)
            row.gpu["utilization"][nodes] = 0.0
        if pause <= since < pause + 10:
            row.mount["latency"] *= 10
            row.gpu["utilization"][nodes] *= 0.8
            cluster.slow_job(row, cluster.jobs[0], 0.8)

    found = {name for name, _ in classes_of(incidents_of(restart))}
    assert found == (set() if pause else {"storage_bound"})


@pytest.mark.parametrize(
    ("speeds", "slots", "found"),
    [((0.5, 0.5), 60, True), ((1.0, 0.03), 60, True), ((1.0, 0.03), 7, False)],
)
def test_moments_show_missing_input_if_the_exchange_is_even(
    speeds: tuple[float, float], slots: int, *, found: bool
) -> None:
    """Readings follow the steps for a while: all are busy, or all idle. A checkpoint stops the exchange for a time.

    Pauses that go on are those of long steps.
    """

    def input_is_late(cluster: DrawnCluster, row: Row, since: int) -> None:
        job = cluster.jobs[0]
        if 0 <= since < slots:
            cluster.slow_job(row, job, speeds[since // 3 % 2])
            row.gpu["utilization"][job.nodes] *= since // 2 % 2

    classes = classes_of(incidents_of(input_is_late))
    assert (("dataloader_stall", "job") in classes) == found


def test_a_job_hangs_although_ranks_of_one_stage_usually_work_little() -> None:
    def hang(cluster: DrawnCluster, row: Row, since: int) -> None:
        nodes = cluster.jobs[0].nodes
        row.gpu["activity"][nodes[:4]] = 0.24
        if since >= 0:
            for name, value in (("utilization", 1.0), ("activity", 0.15), ("nvlink", 0.0)):
                row.gpu[name][nodes] = value
            row.nic["send"][nodes] = row.nic["receive"][nodes] = 0.0

    assert ("nccl_hang", "job") in classes_of(incidents_of(hang))


@pytest.mark.parametrize(("silent", "hangs"), [(1, True), (0, False)])
def test_a_job_hangs_if_one_of_its_nodes_sends_nothing(silent: int, *, hangs: bool) -> None:
    """The NICs of the others carry storage, or what others send."""

    def hang(cluster: DrawnCluster, row: Row, since: int) -> None:
        if since >= 0:
            hung_job(cluster).effect(cluster, row, since)
            row.nic["send"][cluster.jobs[0].nodes[silent:]] = 0.4

    assert (("nccl_hang", "job") in classes_of(incidents_of(hang))) == hangs


@pytest.mark.parametrize(("io", "found"), [(0.4, {("storage_bound", "storage")}), (0.0, set())])
def test_jobs_on_one_gpu_that_wait_for_slow_storage_show_it(
    io: float, found: set[tuple[str, str]]
) -> None:
    """They exchange nothing: the traffic of their NICs is that of storage, and idle NVLinks carry some kB per second."""

    def slow_down(cluster: DrawnCluster, row: Row, since: int) -> None:
        row.gpu["nvlink"][:] = 1e5
        row.mount["operations"][:] = 60.0
        if since >= 0:
            row.mount["latency"] *= 10
            for job in cluster.jobs:
                row.gpu["utilization"][job.nodes] *= 0.6
                row.node["io"][job.nodes] = io

    cluster = DrawnCluster(9, 1, 3, benign=False)
    cluster.jobs[0].nodes, cluster.jobs[1].nodes = [0], [1]
    assert classes_of(run(DrawnFeed(cluster, SLOTS), slow_down, SLOTS)) == found


@pytest.mark.parametrize(("others", "late"), [(0.25, True), (0.7, False)])
def test_a_host_whose_processors_are_taken_is_late(others: float, *, late: bool) -> None:
    """Of two nodes, neither is the usual one; what all have, as more work of the job itself, makes none late."""

    def take(cluster: DrawnCluster, row: Row, since: int) -> None:
        first, second = cluster.jobs[0].nodes
        row.node["cpu"][[first, second]] = 0.25
        if since >= 0:
            cluster.slow_job(row, cluster.jobs[0], 0.8)
            row.gpu["utilization"][first] *= 0.8
            row.node["cpu"][first], row.node["cpu"][second] = 0.7, others

    found = classes_of(incidents_of(take, job_nodes=2, changes_past=True))
    assert (("host_late", "node") in found) == late


@pytest.mark.parametrize(("clients", "cause"), [(1, "node"), (2, "storage")])
def test_a_server_is_slow_if_both_of_its_clients_are(clients: int, cause: str) -> None:
    def slow_down(cluster: DrawnCluster, row: Row, since: int) -> None:
        job = cluster.jobs[0]
        row.mount["operations"][[n for n in range(NODES) if n not in job.nodes]] = 0.0
        if since >= 0:
            row.gpu["utilization"][job.nodes] *= 0.6
            cluster.slow_job(row, job, 0.6)
            row.mount["latency"][job.nodes[:clients]] *= 15

    assert classes_of(incidents_of(slow_down, job_nodes=2, changes_past=True)) == {
        ("storage_bound", cause)
    }


@pytest.mark.parametrize(
    ("speed", "slow_speed", "loses"), [(0.8, 0.93, True), (0.8, 0.5, False), (0.96, 0.99, False)]
)
def test_a_job_loses_time_if_it_is_slower_than_its_own_variation(
    speed: float, slow_speed: float, *, loses: bool
) -> None:
    nothing = np.zeros(0, np.intp)
    job = ActiveJob(JobKey("t", "slurm", "1"), ("n1",), nothing, nothing)
    state = JobState(job, slow_speed, exchange_change=speed)
    assert state.loses_time == loses


def test_a_job_remains_slow_although_its_slow_minutes_become_a_part_of_its_past() -> None:
    cluster = DrawnCluster(9, 1, NODES, benign=False)
    feed = DrawnFeed(cluster, ONSET + 54)
    for slot in range(ONSET + 54):
        row = cluster.draw()
        if slot >= ONSET:
            cluster.slow_job(row, cluster.jobs[0], 0.84)
        feed.evaluate(slot, row)
    (incident,) = feed.diagnosis.tracker.incidents
    assert incident.class_name == "job_slowdown"
    assert not incident.ended_ns


@pytest.mark.parametrize(("slots", "expected"), [(84, set()), (102, {"nccl_hang"})])
def test_a_job_that_waits_long_for_one_gpu_that_works_hangs(slots: int, expected: set[str]) -> None:
    """One rank evaluates for some minutes; one that never reaches the collective computes on, and the job is not slow."""

    def hang(cluster: DrawnCluster, row: Row, since: int) -> None:
        if since < 0:
            return
        node = cluster.jobs[0].nodes[1]
        activity, power = row.gpu["activity"][node, 3], row.gpu["power"][node, 3]
        hung_job(cluster).effect(cluster, row, since)
        row.gpu["activity"][node, 3], row.gpu["power"][node, 3] = activity, power

    found = incidents_of(hang, slots)
    assert {each.class_name for each in found if not each.explained_by} == expected


@pytest.mark.parametrize(("pressure", "is_storage"), [(0.4, True), (0.0, False)])
def test_a_mount_that_fails_is_the_cause_although_the_ranks_that_wait_spin(
    pressure: float, *, is_storage: bool
) -> None:
    """The tasks of the rank that waits for storage show its wait."""

    def fail(cluster: DrawnCluster, row: Row, since: int) -> None:
        if since >= 0:
            cluster.slow_job(row, cluster.jobs[0], 0.5)
            row.mount["latency"] *= 50
            row.node["io"][cluster.jobs[0].nodes[:1]] = pressure

    assert (("storage_bound", "storage") in classes_of(incidents_of(fail))) == is_storage


def test_a_job_of_two_nodes_of_which_one_has_gaps_is_slow() -> None:
    """Without a third one to compare with, the late one is unknown."""

    def gaps(cluster: DrawnCluster, row: Row, since: int) -> None:
        if since >= 0:
            cluster.slow_job(row, cluster.jobs[0], 0.6)
            row.gpu["utilization"][cluster.jobs[0].nodes[0]] *= 0.55
        row.gpu["graphics"] = row.gpu["utilization"].copy()

    feed = drawn_feed(job_nodes=2)
    run(feed, gaps, SLOTS)
    found = feed.diagnosis.tracker.incidents
    assert [(each.class_name, each.severity) for each in found] == [("job_slowdown", "info")]


def test_traffic_of_others_on_the_nodes_of_a_job_is_no_progress_of_it() -> None:
    feed = healthy_feed()

    def slow_down(cluster: DrawnCluster, row: Row, since: int) -> None:
        if since >= 0:
            cluster.slow_job(row, cluster.jobs[0], 0.8)
            row.nic["send"][cluster.jobs[0].nodes, 3] = 0.95

    run(feed, slow_down, ONSET + 20)
    assert feed.diagnosis.view is not None
    job = feed.diagnosis.view.jobs[0]
    assert feed.diagnosis.view.states[job.key].is_slow


def test_a_job_of_which_most_nodes_have_no_measure_of_activity_hangs() -> None:
    """The power of their GPUs shows that they do no work."""

    def hang(cluster: DrawnCluster, row: Row, since: int) -> None:
        if since >= 0:
            hung_job(cluster).effect(cluster, row, since)
        nodes = cluster.jobs[0].nodes
        row.gpu["activity"][nodes[1:]] = np.nan

    assert ("nccl_hang", "job") in classes_of(incidents_of(hang, changes_past=True))
