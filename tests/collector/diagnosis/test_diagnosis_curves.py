"""History of rails and jobs: sums and extremes by slot, what is unknown, and the bounds."""

from __future__ import annotations

import numpy as np
import pytest

from railscope_collector.diagnosis.baselines import Baselines
from railscope_collector.diagnosis.devices import ClusterDevices, ClusterGpu, ClusterNic
from railscope_collector.diagnosis.diagnosis_curves import (
    HISTORY_SLOTS,
    MAX_GROUPS,
    NAMES,
    GroupHistory,
    group_slot,
)
from railscope_collector.diagnosis.findings import DiagnosisView
from railscope_collector.diagnosis.jobs import PeerGroups, active_jobs
from railscope_collector.diagnosis.quantities import DeviceKind
from railscope_collector.diagnosis.signals import ClusterSignals
from railscope_collector.diagnosis.step_period import StepTiming
from railscope_collector.workloads.job_roster import JobKey

START_NS, SLOT_NS = 1_700_000_000_000_000_000, 10_000_000_000
FOREVER_NS = START_NS * 2
JOB = JobKey("red", "slurm", "17")


class Cluster:
    """Two nodes with a NIC on each of two rails and one GPU, whose readings a test states slot by slot."""

    def __init__(self, **bounds: int) -> None:
        self.devices = ClusterDevices(36, 8)
        names = ["n1", "n2"]
        nics = [ClusterNic(node, f"eth{rail}", rail=str(rail)) for node in names for rail in (0, 1)]
        self.devices.restore(names, nics, [ClusterGpu(node, f"GPU-{node}") for node in names], [])
        self.history = GroupHistory(**bounds)
        self.jobs = {JOB: ["GPU-n1", "GPU-n2"]}

    def evaluate(
        self,
        slot: int,
        sent: list[float],
        utilization: list[float],
        steps: dict[JobKey, StepTiming] | None = None,
    ) -> None:
        """Evaluate a slot with bytes of NICs and the utilization of GPUs; NaN means that nothing was read."""
        kinds = (
            (DeviceKind.NIC, "rdma_sent_bytes", sent),
            (DeviceKind.GPU, "utilization", utilization),
        )
        for sums in self.devices.sums.values():
            sums.advance(slot)
        for kind, name, values in kinds:
            sums = self.devices.sums[kind]
            found = np.array([values])
            sums.add(
                np.array([sums.index[name]] * len(values)),
                np.array([slot]),
                np.arange(len(values))[None],
                np.nan_to_num(found),
                np.where(np.isnan(found), 0.0, 10.0 if kind is DeviceKind.NIC else 1.0),
            )
        groups = PeerGroups(self.devices)
        signals = ClusterSignals(self.devices, slot, 6)
        jobs = active_jobs(self.devices, groups, self.jobs)
        ended_ns = START_NS + (slot + 1) * SLOT_NS
        view = DiagnosisView(signals, groups, jobs, {}, Baselines(), ended_ns)
        self.history.add(group_slot(view, steps or {}, self.history.max_groups))

    def values(self, key: str | JobKey, name: str) -> list[float]:
        points = self.history.read(key, name, START_NS, FOREVER_NS)
        assert points is not None
        return points.values.tolist()


def test_sums_and_extremes_are_those_of_the_devices_of_a_group() -> None:
    cluster = Cluster()
    cluster.evaluate(0, [10, 20, 30, 40], [0.5, 1.0], {JOB: StepTiming(4.5, 0.1, 0.2)})
    assert cluster.values("0", "sent") == [4]
    assert cluster.values("1", "sent") == [6]
    assert cluster.values(JOB, "sent") == [10]
    assert cluster.values(JOB, "nics") == [4]
    assert cluster.values(JOB, "mean_utilization") == [0.75]
    assert cluster.values(JOB, "min_utilization") == [0.5]
    assert cluster.values(JOB, "step_period") == [4.5]
    assert cluster.history.read("2", "sent", START_NS, FOREVER_NS) is None


def test_what_was_not_read_is_unknown_and_the_number_of_readings_shows_it() -> None:
    cluster = Cluster()
    cluster.evaluate(0, [10, np.nan, np.nan, np.nan], [np.nan, np.nan])
    assert cluster.values("0", "sent") == [1]
    assert cluster.values("0", "nics") == [1]
    for name in ("sent", "nics", "mean_utilization"):
        assert np.isnan(cluster.values("1", name)).all()
    assert np.isnan(cluster.values(JOB, "gpus")).all()


def test_slots_without_an_evaluation_are_left_out() -> None:
    cluster = Cluster()
    for slot in (0, 1, 5):
        cluster.evaluate(slot, [10 * slot] * 4, [1, 1])
    points = cluster.history.read("0", "sent", START_NS, FOREVER_NS)
    assert points is not None
    assert ((points.times_ns - START_NS) // SLOT_NS).tolist() == [1, 2, 6]
    some = cluster.history.read("0", "sent", START_NS + 2 * SLOT_NS, START_NS + 5 * SLOT_NS)
    assert some is not None
    assert some.values.tolist() == [2]


def test_the_ring_keeps_the_last_slots_in_order_of_time() -> None:
    cluster = Cluster(slots=5)
    for slot in range(13):
        cluster.evaluate(slot, [10 * slot] * 4, [1, 1])
    assert cluster.values("0", "sent") == [2 * slot for slot in range(8, 13)]


def test_a_job_that_ended_keeps_its_last_values_until_they_leave_the_ring() -> None:
    cluster = Cluster(slots=5)
    for slot in range(4):
        cluster.evaluate(slot, [10] * 4, [1, 1])
    cluster.jobs = {}
    for slot in range(4, 7):
        cluster.evaluate(slot, [10] * 4, [1, 1])
    values = cluster.values(JOB, "sent")
    assert values[:2] == [4, 4]
    assert np.isnan(values[2:]).all()
    cluster.jobs = {JOB: ["GPU-n1"]}
    cluster.evaluate(7, [10] * 4, [1, 1])
    values = cluster.values(JOB, "sent")
    assert values[0] == 4
    assert values[-1] == 2
    assert np.isnan(values[1:-1]).all()
    cluster.jobs = {}
    for slot in range(8, 13):
        cluster.evaluate(slot, [10] * 4, [1, 1])
    assert cluster.history.read(JOB, "sent", START_NS, FOREVER_NS) is None


def test_the_number_of_groups_is_bounded_and_large_jobs_are_kept() -> None:
    cluster = Cluster(max_groups=3)
    small = [JobKey("red", "slurm", str(number)) for number in range(5)]
    cluster.jobs = {key: ["GPU-n1"] for key in small} | {JOB: ["GPU-n1", "GPU-n2"]}
    cluster.evaluate(0, [10] * 4, [1, 1])
    assert cluster.values(JOB, "gpus") == [2]
    assert all(cluster.history.read(key, "gpus", 0, FOREVER_NS) is None for key in small)
    assert cluster.history.size_bytes == 3 * len(NAMES) * HISTORY_SLOTS * 4


def test_all_groups_take_less_than_their_stated_memory() -> None:
    assert MAX_GROUPS * HISTORY_SLOTS * len(NAMES) * 4 < 21 << 20


def test_a_history_that_was_cleared_has_no_groups() -> None:
    cluster = Cluster()
    cluster.evaluate(3, [10] * 4, [1, 1])
    cluster.history.clear()
    assert cluster.history.read("0", "sent", 0, FOREVER_NS) is None
    cluster.evaluate(1, [10] * 4, [1, 1])
    assert cluster.values("0", "sent") == [2]


@pytest.mark.parametrize("name", NAMES)
def test_every_curve_can_be_read(name: str) -> None:
    cluster = Cluster()
    cluster.evaluate(0, [10] * 4, [1, 1])
    assert len(cluster.values(JOB, name)) == 1
