"""GPUs partitioned into MIG devices: an H200 and an A100, as printed by nvidia-smi."""

from __future__ import annotations

import pytest
from support import nvidia_smi_xml as xml
from support.exporter_capture import GPU, H200_MIG, ExporterMoment, read_moment
from support.gpu_readings import GpuReadings, read_gpus
from support.machine import FakeHost
from support.nvidia_smi import MEBIBYTE, machine, number
from support.nvidia_smi_shares import MigDevice, shares
from support.shared import capture_path

from railscope.reading import Absent

# Ours, what nvidia-smi printed, and how much one of theirs is.
PAIRS = {
    "mig_memory_size_bytes": ("memory.total", MEBIBYTE),
    "mig_memory_used_bytes": ("memory.used", MEBIBYTE),
    "mig_memory_free_bytes": ("memory.free", MEBIBYTE),
    "mig_memory_reserved_bytes": ("memory.reserved", MEBIBYTE),
    "mig_bar1_size_bytes": ("bar1.total", MEBIBYTE),
    "mig_bar1_used_bytes": ("bar1.used", MEBIBYTE),
    "mig_multiprocessors": ("multiprocessors", 1),
    "mig_ecc_uncorrected_errors_total": ("sram_uncorrected", 1),
}
EACH_MOMENT = pytest.mark.parametrize("moment", ["idle", "load"])


@pytest.fixture
def h200(moment: str) -> ExporterMoment:
    return read_moment(H200_MIG, moment)


def agrees(reported: GpuReadings, gpu: str, devices: list[MigDevice]) -> None:
    for device in devices:
        for metric, (printed, scale) in PAIRS.items():
            expected = number(device.row[printed], scale)
            assert reported.number(metric, gpu, device.uuid) == expected, metric
        facts = reported.facts["mig", (gpu, device.uuid)]
        assert facts["gpu_instance"] == device.gpu_instance
        assert facts["compute_instance"] == device.compute_instance
        assert facts["mig_index"] == str(device.index)


@EACH_MOMENT
def test_every_number_of_every_mig_device_agrees(h200: ExporterMoment) -> None:
    assert len(h200.mig_devices) == 5
    agrees(h200.readings, GPU, h200.mig_devices)
    assert h200.readings.number("gpu_mig_devices", GPU) == 5
    assert h200.readings.number("gpu_mig_enabled", GPU) == 1
    assert h200.readings.number("gpu_sharing", GPU) == 4


@EACH_MOMENT
def test_profiles_are_those_of_the_listing(h200: ExporterMoment) -> None:
    found = {
        facts["mig_index"]: (
            facts["profile"],
            h200.readings.number("mig_gpu_instance_slices", *key),
            h200.readings.number("mig_compute_instance_slices", *key),
        )
        for (kind, key), facts in h200.readings.facts.items()
        if kind == "mig"
    }
    assert found == {
        "0": ("1c.3g.71gb", 3, 1), "1": ("2c.3g.71gb", 3, 2), "2": ("2g.35gb", 2, 2),
        "3": ("1g.18gb", 1, 1), "4": ("1g.18gb", 1, 1),
    }  # fmt: skip


@pytest.mark.parametrize("moment", ["load"])
def test_processes_are_those_of_their_mig_device(h200: ExporterMoment) -> None:
    by_index = {
        facts["mig_index"]: h200.readings.number("mig_processes", *key)
        for (kind, key), facts in h200.readings.facts.items()
        if kind == "mig"
    }
    assert by_index == {"0": 0, "1": 3, "2": 0, "3": 0, "4": 0}
    assert h200.readings.number("gpu_processes", GPU) == 3
    facts = h200.readings.facts["gpu_process", (GPU, "12267")]
    assert (facts["gpu_instance"], facts["compute_instance"]) == ("2", "1")
    assert facts["process_name"] == "gpu_burn"


@EACH_MOMENT
def test_metrics_that_a_partitioned_gpu_lacks_are_unsupported(h200: ExporterMoment) -> None:
    for metric in ("utilization_ratio", "memory_activity_ratio", "row_remap_pending"):
        assert h200.readings.absent[f"railscope_gpu_{metric}", (GPU,)] is Absent.UNSUPPORTED
    assert h200.readings.named("gpu_engine_utilization_ratio") == {}
    assert h200.readings.named("gpu_remapped_rows") == {}
    assert h200.readings.number("gpu_row_remap_banks", GPU, "max") == 3072


def test_two_mig_devices_of_one_instance_share_its_memory() -> None:
    reported = read_moment(H200_MIG, "load").readings
    used = reported.named("mig_memory_used_bytes")
    assert sorted(used.values()) == [
        mebibytes * MEBIBYTE for mebibytes in (9, 9, 17, 16_925, 16_925)
    ]


def test_an_a100_in_four_parts() -> None:
    log = xml.root(capture_path("nvidia-smi/xml/a100-sxm4-v12.xml"))
    (element,) = log.findall("gpu")
    devices = xml.mig_devices(element)
    host = FakeHost()
    host.calls |= machine([xml.row(log, element)])
    host.calls |= shares(0, xml.processes(element), devices)
    reported = read_gpus(host)
    gpu = "GPU-513536b6-7d19-9063-b049-1e69664bb298"
    assert [device.gpu_instance for device in devices] == ["3", "4", "5", "6"]
    agrees(reported, gpu, devices)
    assert reported.number("mig_multiprocessors", gpu, "MIG-3-0") == 14
    assert reported.number("mig_memory_size_bytes", gpu, "MIG-3-0") == 19_968 * MEBIBYTE
    label = "railscope_mig_gpu_instance_slices", (gpu, "MIG-3-0")
    assert reported.absent[label] is Absent.UNSUPPORTED  # the XML has no profile
    assert "profile" not in reported.facts["mig", (gpu, "MIG-3-0")]
