"""Real GPUs, as read by another exporter at the same moment: both must agree.

The captures contain the output of nvidia-smi and the metrics that nvidia_gpu_exporter made of it. The
output becomes NVML's answers, and our GPU sources make metrics of those.
"""

from __future__ import annotations

import pytest
from support import nvidia_smi_csv as csv
from support.exporter_capture import CASES, GPU, H100, H200_MIG, ExporterMoment, read_moment
from support.exporter_pairs import LABELS, MADE, PAIRS
from support.nvidia_smi import number

from railscope.reading import Absent
from railscope_agent.topology.pci import pci_address

EACH_CASE = pytest.mark.parametrize(
    ("model", "moment"), CASES, ids=[f"{c[21:30]}-{m}" for c, m in CASES]
)
MEBIBYTE = 1 << 20


@pytest.fixture
def case(model: str, moment: str) -> ExporterMoment:
    return read_moment(model, moment)


@EACH_CASE
def test_every_pair_agrees(case: ExporterMoment) -> None:
    for name in PAIRS:
        if name in case.theirs:
            assert case.our(name) == pytest.approx(case.theirs[name], rel=1e-9), name
        else:
            assert case.our(name) is None, f"{name}: nvidia-smi has no value, we do"


@EACH_CASE
def test_every_missing_reading_is_unsupported(case: ExporterMoment) -> None:
    assert set(case.readings.absent.values()) == {Absent.UNSUPPORTED}
    for name, (metric, part) in PAIRS.items():
        if not part and name not in case.theirs:
            assert case.readings.absent[f"railscope_gpu_{metric}", (GPU,)] is Absent.UNSUPPORTED


@EACH_CASE
def test_values_derived_from_ours_agree(case: ExporterMoment) -> None:
    for name, make in MADE.items():
        if name in case.theirs:
            assert make(case.readings) == pytest.approx(case.theirs[name], rel=1e-9), name


@EACH_CASE
def test_labels_of_theirs_are_facts_of_ours(case: ExporterMoment) -> None:
    ((_, labels),) = [label for label in case.page if label[0] == "nvidia_smi_gpu_info"]
    theirs, ours = dict(labels), case.readings.facts["gpu", (GPU,)]
    for label, fact in LABELS.items():
        assert ours.get(fact, "[N/A]") == theirs[label], label
    assert ours["pci_address"] == pci_address(theirs["pci_bus_id"])


@EACH_CASE
def test_every_process_agrees(case: ExporterMoment) -> None:
    theirs = {
        dict(labels)["pid"]: (dict(labels)["process_name"], used)
        for (name, labels), used in case.page.items()
        if name == "nvidia_smi_compute_app_used_memory_bytes"
    }
    used = case.readings.named("gpu_process_memory_used_bytes")
    computing = {
        key[1]: (facts["process_name"], used[key])
        for (kind, key), facts in case.readings.facts.items()
        if kind == "gpu_process" and facts["context"] == "compute"
    }
    assert computing.keys() == theirs.keys()
    for pid, (name, bytes_used) in theirs.items():
        assert computing[pid] == (name.rpartition("/")[2], bytes_used)
    assert case.readings.number("gpu_suppressed_processes", GPU) == 0


OUR_OWN = {"nvmlDeviceGetMigDevices", "nvmlEventSetWait"}


def test_every_called_function_is_in_the_library_of_a_driver() -> None:
    case = read_moment(H100, "load")
    exported = set(csv.section(case.capture, "capabilities :: nvml-symbols").split())
    asked = {key.removeprefix("nvml.").partition("(")[0] for key in case.host.asked}
    assert len(asked) > 50
    assert asked - exported - OUR_OWN == set()


MIG_PAIRS = {
    "mig_memory_size_bytes": ("memory.total", MEBIBYTE),
    "mig_memory_used_bytes": ("memory.used", MEBIBYTE),
    "mig_memory_free_bytes": ("memory.free", MEBIBYTE),
    "mig_bar1_size_bytes": ("bar1.total", MEBIBYTE),
    "mig_multiprocessors": ("multiprocessors", 1),
    "mig_ecc_uncorrected_errors_total": ("sram_uncorrected", 1),
}


def test_every_number_of_every_mig_device_agrees() -> None:
    h200 = read_moment(H200_MIG, "load")
    number_of = h200.readings.number
    assert [number_of(f"gpu_{name}", GPU) for name in ("mig_devices", "processes")] == [5, 3]
    for device in h200.mig_devices:
        for metric, (printed, scale) in MIG_PAIRS.items():
            expected = number(device.row[printed], scale)
            assert number_of(metric, GPU, device.uuid) == expected, metric
        facts = h200.readings.facts["mig", (GPU, device.uuid)]
        assert facts["gpu_instance"] == device.gpu_instance
        assert facts["compute_instance"] == device.compute_instance
    profiles = [
        facts["profile"] for (kind, _), facts in h200.readings.facts.items() if kind == "mig"
    ]
    assert sorted(set(profiles)) == ["1c.3g.71gb", "1g.18gb", "2c.3g.71gb", "2g.35gb"]
    for metric in ("utilization_ratio", "memory_activity_ratio", "row_remap_pending"):
        assert h200.readings.absent[f"railscope_gpu_{metric}", (GPU,)] is Absent.UNSUPPORTED
