"""Real GPUs, as printed by the monitors of nvidia-smi: dmon, pmon, nvlink."""

from __future__ import annotations

import pytest
from support import nvidia_smi_csv as csv
from support.exporter_capture import CASES, GPU, H100, H200_MIG, L40S, RTX, read_moment
from support.gpu_readings import read_gpus
from support.machine import FakeHost
from support.nvidia_smi import gpu, machine
from support.nvidia_smi_links import LinkedGpu, links, status
from support.row_pairs import PAIRS, agrees
from support.shared import capture_path

from railscope.reading import Absent


@pytest.mark.parametrize(("model", "moment"), CASES)
def test_every_row_of_dmon_agrees(model: str, moment: str) -> None:
    case = read_moment(model, moment)
    rows = csv.device_moments(case.capture, moment)
    assert len(rows) == 5
    for row in rows:
        host = FakeHost()
        host.calls |= case.host.calls | gpu(0, {**case.row, **row})
        reported = read_gpus(host)
        for name, printed in row.items():
            metric, part = PAIRS[name]
            ours = reported.number(f"gpu_{metric}", GPU, *part)
            assert agrees(ours, name, printed), f"{name}: {ours} of {printed}"


@pytest.mark.parametrize(
    ("model", "busy"),
    [
        (H100, {"11327": (0, 0), "11328": (0, 0), "11345": (0.99, 0.10)}),
        (L40S, {"20037": (0.02, 0), "20038": (0.05, 0)}),
        (RTX, {"5021": (0.02, 0), "5022": (0.03, 0.01), "2165": (0, 0), "2496": (0, 0)}),
    ],
)
def test_process_activity_matches_the_last_round_of_pmon(
    model: str, busy: dict[str, tuple[float, float]]
) -> None:
    reported = read_moment(model, "load").readings
    for pid, (sm, memory) in busy.items():
        assert reported.number("gpu_process_sm_utilization_ratio", GPU, pid) == sm
        assert reported.number("gpu_process_memory_activity_ratio", GPU, pid) == memory


def test_processes_of_a_gpu_that_is_cut_have_no_utilisation() -> None:
    reported = read_moment(H200_MIG, "load").readings
    for pid in ("12249", "12250", "12267"):
        label = "railscope_gpu_process_sm_utilization_ratio", (GPU, pid)
        assert reported.absent[label] is Absent.UNSUPPORTED


# NVLink ------------------------------------------------------------------------------------------


def linked(printed: str) -> tuple[list[LinkedGpu], FakeHost]:
    gpus = status(printed)
    host = FakeHost()
    host.calls |= machine([gpu.row for gpu in gpus])
    for place, one in enumerate(gpus):
        if one.links:
            host.calls |= links(place, one.links)
    return gpus, host


@pytest.mark.parametrize(
    ("path", "gpus", "per_gpu", "speed"),
    [
        ("nvidia-smi/gpud/nvidia-smi.nvlink.status.a100", 8, 12, 25e9),
        ("nvidia-smi/azure-good_nvlink_status.txt", 1, 12, 25e9),
    ],
)
def test_every_link_of_a_listing_is_up_at_its_speed(
    path: str, gpus: int, per_gpu: int, speed: float
) -> None:
    listed, host = linked(capture_path(path).read_text())
    assert len(listed) == gpus
    reported = read_gpus(host)
    speeds = reported.named("nvlink_speed_bytes_per_second")
    assert len(speeds) == gpus * per_gpu
    assert set(speeds.values()) == {speed}
    for one in listed:
        assert reported.number("gpu_nvlinks", one.uuid) == per_gpu
        assert reported.number("gpu_nvlinks_active", one.uuid) == per_gpu


def test_the_links_of_an_h100_run_at_the_raw_speed() -> None:
    _, host = linked(csv.section(read_moment(H100, "idle").capture, "capabilities :: nvlink -s"))
    reported = read_gpus(host)
    assert reported.number("gpu_nvlinks_active", GPU) == 18
    assert set(reported.named("nvlink_speed_bytes_per_second").values()) == {26.562e9}
    assert set(reported.named("nvlink_state").values()) == {1}


def test_a_link_that_is_down_has_a_state_and_no_speed() -> None:
    printed = "GPU 0: NVIDIA H100 (UUID: GPU-1)\n\t Link 0: 26.562 GB/s\n\t Link 1: <inactive>\n"
    _, host = linked(printed)
    reported = read_gpus(host)
    assert reported.number("gpu_nvlinks", "GPU-1") == 2
    assert reported.number("gpu_nvlinks_active", "GPU-1") == 1
    assert reported.named("nvlink_state") == {("GPU-1", "0"): 1, ("GPU-1", "1"): 0}
    assert reported.named("nvlink_speed_bytes_per_second") == {("GPU-1", "0"): 26.562e9}


def test_a_partitioned_gpu_reports_no_links() -> None:
    (gpu,), host = linked(
        csv.section(read_moment(H200_MIG, "idle").capture, "capabilities :: nvlink -s")
    )
    assert gpu.links == []
    assert read_gpus(host).named("gpu_nvlinks") == {}
