"""The past of a device is that of its job: what other jobs, other names and restarts change in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec
import numpy as np
import pytest
from support.drawn_cluster import DrawnCluster, DrawnFeed, Row, gpu_uuid
from support.drawn_readings import NODES, ONSET, classes_of, drawn_feed, run

from railscope_collector.detector_thresholds import DetectorThresholds
from railscope_collector.diagnosis import saved_state
from railscope_collector.diagnosis.baselines import GAP_MINUTES
from railscope_collector.diagnosis.cluster_diagnosis import ClusterDiagnosis
from railscope_collector.diagnosis.quantities import DeviceKind
from railscope_collector.workloads.job_roster import JobKey

JOB, NEXT_JOB = (JobKey("vision", "slurm", workload) for workload in ("7", "8"))
STALL = {("dataloader_stall", "job")}


class JobFeed:
    """A cluster whose first job works less from the onset on, under names that differ by slot."""

    def __init__(self, slots: int) -> None:
        self.cluster = DrawnCluster(9, 1, NODES, benign=False)
        self.nodes = self.cluster.jobs[0].nodes
        self.gpus = [gpu_uuid(node, index) for node in self.nodes for index in range(8)]
        self.slots = slots
        self.feed = DrawnFeed(self.cluster, slots)

    def run(
        self,
        jobs_at: Callable[[int], Mapping[JobKey, list[str]]],
        restart_slot: int = -1,
        share: float = 0.6,
    ) -> set[tuple[str, str]]:
        """Evaluate all slots; return the classes and kinds of the incidents that are open."""
        for slot in range(self.slots):
            row = self.cluster.draw()
            names = (row.gpu, "utilization"), (row.gpu, "nvlink"), (row.nic, "send")
            for device, name in names if slot >= ONSET else ():
                device[name][self.nodes] *= share if jobs_at(slot) else 0.0
            if slot == restart_slot:
                self.feed.diagnosis = restarted(self.feed.diagnosis, slot, self.slots)
            self.feed.put(slot, row)
            self.feed.diagnosis.arrange()
            self.feed.diagnosis.evaluate(slot, jobs_at(slot))
        found: set[tuple[str, str]] = classes_of(
            [each for each in self.feed.diagnosis.tracker.incidents if not each.ended_ns]
        )
        return found

    def known_pasts(self, kind: DeviceKind, name: str) -> list[bool]:
        past = self.feed.diagnosis.baselines.usual(kind, name, 8 * NODES)
        return [not is_unknown for is_unknown in np.isnan(past).tolist()]


def restarted(diagnosis: ClusterDiagnosis, slot: int, slots: int) -> ClusterDiagnosis:
    """Return a diagnosis that continues the encoded state of another one."""
    devices, groups = diagnosis.devices, diagnosis.groups
    assert groups is not None
    state = saved_state.SavedDiagnosis(
        first_ns=diagnosis.first_ns,
        slot=slot - 1,
        nodes=devices.node_names,
        nics=devices.nics,
        gpus=devices.gpus,
        mounts=devices.mounts,
        leaf_names=groups.leaf_names,
        incidents=[],
        rank_events=[],
        jobs=list(diagnosis.job_histories.items()),
    )
    saved = saved_state.decode_diagnosis(msgspec.msgpack.encode(state))
    rows = diagnosis.baselines.rows()
    encoded = msgspec.msgpack.encode(
        saved_state.SavedBaselines(first_ns=diagnosis.first_ns, rows=rows)
    )
    resumed = saved_state.resume(saved, slots, slots, slot, DetectorThresholds())
    resumed.baselines.restore(saved_state.decode_baselines(encoded).rows)
    resumed.begin(slots - 1)
    resumed.has_receipts = True
    return resumed


@pytest.mark.parametrize("restart_slot", [-1, ONSET])
@pytest.mark.parametrize(("next_job", "found"), [(NEXT_JOB, set()), (JOB, STALL)])
@pytest.mark.parametrize("pause_slots", [0, 3])
def test_a_job_is_not_compared_with_an_earlier_one_on_its_gpus(
    next_job: JobKey, found: set[tuple[str, str]], pause_slots: int, restart_slot: int
) -> None:
    cluster = JobFeed(ONSET + 30)

    def jobs_at(slot: int) -> Mapping[JobKey, list[str]]:
        if ONSET <= slot < ONSET + pause_slots:
            return {}
        return {next_job if slot >= ONSET else JOB: cluster.gpus}

    assert cluster.run(jobs_at, restart_slot) == found


@pytest.mark.parametrize("slots", [3, 30])
def test_another_name_of_a_job_in_one_slot_leaves_its_past(slots: int) -> None:
    cluster = JobFeed(ONSET + 50)
    assert (
        cluster.run(lambda slot: {NEXT_JOB if slot == ONSET + slots else JOB: cluster.gpus})
        == STALL
    )


def test_short_jobs_beside_a_job_on_its_gpus_leave_its_past() -> None:
    """One after the other, in another slice of each GPU, for a minute each."""
    cluster = JobFeed(ONSET + 30)
    found = cluster.run(
        lambda slot: {
            JOB: cluster.gpus,
            JobKey("web", "kubernetes", f"web/pod-{slot // 6}"): cluster.gpus,
        }
    )
    assert found == STALL


def test_nics_that_other_jobs_of_the_node_use_as_before_keep_their_past() -> None:
    cluster = JobFeed(ONSET)
    first, second = (
        [gpu_uuid(0, index) for index in range(8)[part]] for part in (slice(4), slice(4, 8))
    )
    cluster.run(
        lambda slot: {
            JOB: first,
            NEXT_JOB if slot < ONSET - 1 else JobKey("", "slurm", "9"): second,
        }
    )
    assert all(cluster.known_pasts(DeviceKind.NIC, "send")[:8])
    assert cluster.known_pasts(DeviceKind.GPU, "power")[:8] == 4 * [True] + 4 * [False]


def test_a_minute_of_two_jobs_is_in_the_past_of_none() -> None:
    cluster = JobFeed(ONSET)
    cluster.run(lambda slot: {JOB if slot < 9 else NEXT_JOB: cluster.gpus}, share=1.0)
    minutes = cluster.feed.diagnosis.baselines.minutes(DeviceKind.GPU, "power", 8)
    assert np.isnan(minutes[:2]).all()
    assert not np.isnan(minutes[2:]).any()


def test_short_faults_during_a_long_one_leave_the_past_before_it() -> None:
    """The oldest minutes are kept again and again: a new incident must not drop these."""
    begin, distance, count = 263, 66, 2  # faults begin in the last slot of a minute

    def change(_: DrawnCluster, row: Row, since: int) -> None:
        slot = ONSET + since
        if slot >= begin:
            row.nic["pausing"][0, 2] = 0.3
            number, phase = divmod(slot - begin, distance)
            if 0 < number <= count and phase < distance // 2:
                row.nic["width"][number // 8 % 3, number % 8] = 8

    feed = drawn_feed(job_nodes=NODES, slots=begin + distance * (count + 1))
    run(feed, change, begin + distance * (count + 1))
    assert len(feed.diagnosis.tracker.incidents) > count
    minutes = feed.diagnosis.baselines.minutes(DeviceKind.NIC, "send", 8 * NODES)
    known_minutes = (~np.isnan(minutes[:, : 8 * 5])).sum(axis=0)
    assert set(known_minutes.tolist()) == {len(minutes) - GAP_MINUTES}


def test_a_fault_on_its_rail_does_not_keep_the_past_of_a_job_that_works_in_another_way() -> None:
    def change(cluster: DrawnCluster, row: Row, since: int) -> None:
        if since >= 0:
            row.nic["pausing"][5, 2] = 0.3
        if since >= 30:
            nodes = cluster.jobs[0].nodes
            for device, name in ((row.gpu, "utilization"), (row.gpu, "nvlink"), (row.nic, "send")):
                device[name][nodes] *= 0.6

    feed = drawn_feed(slots=ONSET + 330)
    run(feed, change, ONSET + 330)
    (stall,) = [each for each in feed.diagnosis.tracker.incidents if each.cause.kind == "job"]
    (receiver,) = [each for each in feed.diagnosis.tracker.incidents if each.cause.kind == "nic"]
    assert stall.ended_ns
    assert (receiver.ended_ns, receiver.job_speeds) == (0, {})
