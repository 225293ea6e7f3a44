"""Columns of frames become quantities of devices: the parts of a device are combined, and rates stay within their limits."""

from __future__ import annotations

from typing import TypeAlias

import pytest
from support.batches import batch_of

from railscope.catalog import host, nic
from railscope.catalog.declare import Metric
from railscope.timestamps import SECOND_NS
from railscope.wire import WireEntity, WireGroup, WireSchema
from railscope_collector.diagnosis.cluster_diagnosis import ClusterDiagnosis
from railscope_collector.diagnosis.quantities import QUANTITIES

START_NS = 1_760_000_000 * SECOND_NS
READS = 6


Increases: TypeAlias = dict[tuple[Metric, tuple[str, ...]], int]


def rates_of(increases: Increases, *names: str, span_ns: int = SECOND_NS) -> list[float]:
    """Return rates of quantities of the only device, by what columns grow by from one read to the next."""
    facts = {"rdma_device": "mlx5_0", "role": "compute", "rail": "0"}
    groups, entities = [], [WireEntity("nic", ("eth0",), facts)]
    for metric, key in increases:
        scale = metric.scale.numerator, metric.scale.denominator
        groups.append(WireGroup(metric.name, scale, (len(entities),)))
        entities.append(WireEntity(metric.about.name, key))
    schema = WireSchema("nic", tuple(groups), tuple(entities))
    rows = [[read * each for each in increases.values()] for read in range(READS)]
    times_ns = [START_NS + read * span_ns for read in range(READS)]
    batch = batch_of(rows, boot_ns=times_ns, stream="nic", schema=b"schema")
    diagnosis = ClusterDiagnosis(START_NS, 4)
    diagnosis.begin(3)
    readings = diagnosis.readings
    readings.add_devices("n1", batch, lambda _: schema)
    list(readings.add("n1", "run", batch, lambda _: schema, lambda wall_ns: wall_ns))
    readings.flush()
    sums = diagnosis.devices.sums
    return [float(sums[QUANTITIES[each].device].rate(each, 3, 4)[0]) for each in names]


@pytest.mark.parametrize("others", [0, 300_000, 100_000])
def test_priorities_are_paused_at_the_same_time_and_count_their_frames(others: int) -> None:
    """One PFC frame names all priorities that it stops (IEEE 802.1Qbb)."""
    increases: Increases = {
        **{(nic.PFC_SENT_TIME, ("eth0", priority)): others for priority in "024"},
        (nic.PFC_SENT_TIME, ("eth0", "3")): 300_000,
        **{(nic.PFC_SENT, ("eth0", priority)): 50 for priority in "34"},
        (nic.RDMA_SENT, ("eth0",)): 1000,
    }
    found = rates_of(increases, "pausing_seconds", "pause_frames_sent", "rdma_sent_bytes")
    assert found == pytest.approx([0.3, 100.0, 1000.0], rel=1e-3)


def test_a_share_of_time_is_at_most_1_whatever_time_a_read_took() -> None:
    """A frame is stamped before its reads: 1.02 s of pause between two frames that are 1 s apart."""
    increases: Increases = {
        (nic.PFC_SENT_TIME, ("eth0", "3")): 1_020_000,
        (nic.GLOBAL_PAUSE_RECEIVED_TIME, ("eth0",)): 1_020_000,
        (host.PRESSURE_STALLED, ("cpu", "some")): 1_020_000,
        (host.PRESSURE_STALLED, ("io", "some")): 1_020_000,
        (nic.SENT, ("eth0",)): 1000,
    }
    names = (
        "pausing_seconds",
        "global_paused_seconds",
        "cpu_pressure_seconds",
        "io_pressure_seconds",
    )
    assert rates_of(increases, *names) == [1.0] * 4


def test_a_stalled_write_path_is_stalled_all_the_time_at_most() -> None:
    stalled: Increases = {(nic.PCIE_WRITE_STALLED, ("eth0",)): 11}
    assert rates_of(stalled, "write_stalled_seconds", span_ns=10 * SECOND_NS) == [1.0]
