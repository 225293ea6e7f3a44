"""Whole servers as `nvidia-smi -q` printed them: 8 H100, 8 RTX 4090, a TITAN V."""

from __future__ import annotations

from functools import cache

import pytest
from support import nvidia_smi_text as text
from support.gpu_readings import GpuReadings, read_gpus
from support.machine import FakeHost
from support.nvidia_smi import MEBIBYTE, Row, machine
from support.nvidia_smi_shares import name_processes, shares
from support.row_pairs import PAIRS, agrees
from support.shared import capture_path

from railscope.reading import Absent

DIRECTORY = "nvidia-smi/gpud/nvidia-smi-query"
H100S, RTX_4090S, TITAN = "535.161.08", "535.154.05", "560.35.03"
EACH_SERVER = pytest.mark.parametrize("driver", [H100S, RTX_4090S, TITAN])
FACTS = {
    "name", "architecture", "serial", "uuid", "minor_number", "vbios_version", "board_part_number",
    "module_id", "inforom.img", "virtualization_mode", "gsp_version", "pci.bus_id",
    "driver_version", "cuda_version", "fabric.clusterUuid", "fabric.cliqueId",
    "fabric.health.bandwidth",
}  # fmt: skip


@cache
def server(driver: str) -> tuple[list[Row], GpuReadings]:
    printed = capture_path(f"{DIRECTORY}.{driver}.out.0.valid").read_text()
    gpus = text.gpus(printed)
    rows: list[Row] = [text.row(printed, lines) for lines in gpus]
    host = FakeHost()
    host.calls |= machine(rows)
    for index, lines in enumerate(gpus):
        running = text.processes(lines)
        host.calls |= shares(index, running)
        name_processes(host, running)
    return rows, read_gpus(host)


@EACH_SERVER
def test_every_number_of_every_gpu_agrees(driver: str) -> None:
    rows, reported = server(driver)
    for row in rows:
        for name, (metric, part) in PAIRS.items():
            ours = reported.number(f"gpu_{metric}", row["uuid"], *part)
            if name in row:
                assert agrees(ours, name, row[name]), f"{name}: {ours} of {row[name]}"


@EACH_SERVER
def test_every_number_that_is_printed_has_a_pair_or_is_a_fact(driver: str) -> None:
    rows, _ = server(driver)
    alone = {name for row in rows for name in row} - PAIRS.keys()
    reasons = {name for name in alone if name.startswith("clocks_event_reasons.")}
    assert alone - reasons <= FACTS | {"bar1.free", "protected_memory.free"}


@EACH_SERVER
def test_nothing_fails(driver: str) -> None:
    _, reported = server(driver)
    assert set(reported.absent.values()) == {Absent.UNSUPPORTED}


# By eye ------------------------------------------------------------------------------------------


def test_eight_h100_by_hand() -> None:
    _, reported = server(H100S)
    assert sum(kind == "gpu" for kind, _ in reported.facts) == 8
    assert sorted(reported.named("gpu_power_watts").values()) == [
        67.74, 69.52, 70.21, 70.33, 70.55, 71.05, 71.37, 72.27,
    ]  # fmt: skip
    assert sorted(reported.named("gpu_temperature_celsius").values()) == [
        29,
        29,
        30,
        30,
        31,
        31,
        32,
        32,
    ]
    assert sorted(reported.named("gpu_memory_temperature_celsius").values()) == [
        38, 38, 38, 38, 38, 39, 39, 40,
    ]  # fmt: skip
    replays = sorted(reported.named("gpu_pcie_replays_total").values())
    assert replays == [43, 49, 52, 53, 63, 67, 67, 82]
    assert set(reported.named("gpu_fabric_state").values()) == {3}
    assert len(reported.named("gpu_ecc_errors_total")) == 8 * 4
    assert set(reported.named("gpu_ecc_errors_total").values()) == {0}
    assert len(reported.named("gpu_sram_uncorrected_errors_total")) == 8 * 4
    assert len(reported.named("gpu_remapped_rows")) == 8 * 2
    assert set(reported.named("gpu_processes").values()) == {0}
    first = "GPU-ee7954ec-da95-fd7a-ddfd-c6b32cc2f8aa"
    assert reported.number("gpu_memory_used_bytes", first) == 0
    assert reported.number("gpu_memory_free_bytes", first) == 81_007 * MEBIBYTE
    assert reported.number("gpu_clock_hertz", first, "sm") == 86e6
    assert reported.number("gpu_row_remap_banks", first, "max") == 2560
    assert reported.number("gpu_throttle_active", first, "hardware_slowdown") == 1
    assert reported.number("gpu_throttle_active", first, "hardware_power_brake") == 1
    assert reported.number("gpu_throttle_active", first, "hardware_thermal") == 0
    facts = reported.facts["gpu", (first,)]
    assert facts["serial"] == "1650124031592"
    assert facts["pci_address"] == "0000:19:00.0"
    assert (facts["driver"], facts["cuda"], facts["module"]) == ("535.161.08", "12.2", "2")


def test_eight_rtx_4090_by_hand() -> None:
    rows, reported = server(RTX_4090S)
    assert len(rows) == 8
    first = rows[0]["uuid"]
    assert reported.number("gpu_memory_used_bytes", first) == 20_328 * MEBIBYTE
    assert reported.number("gpu_process_memory_used_bytes", first, "58130") == 20_322 * MEBIBYTE
    assert reported.facts["gpu_process", (first, "58130")]["process_name"] == "python"
    assert reported.number("gpu_fan_speed_ratio", first, "0") == 0.38
    assert reported.number("gpu_ecc_enabled", first) == 0
    assert reported.named("gpu_ecc_location_errors_total") == {}
    assert reported.absent["railscope_gpu_memory_temperature_celsius", (first,)]
    assert reported.facts["gpu", (first,)].get("serial") is None
    assert reported.facts["gpu", (first,)]["minor"] == "3"  # the minor number is not the index


def test_a_titan_v_by_hand() -> None:
    rows, reported = server(TITAN)
    ((_, uuid),) = [("gpu", row["uuid"]) for row in rows]
    assert reported.number("gpu_power_watts", uuid) == 29.02
    assert reported.number("gpu_temperature_threshold_celsius", uuid, "shutdown") == 100
    assert reported.number("gpu_temperature_threshold_celsius", uuid, "memory_maximum") == 95
    assert reported.number("gpu_processes", uuid) == 3
    contexts = {f["context"] for (kind, _), f in reported.facts.items() if kind == "gpu_process"}
    assert contexts == {"graphics"}
    assert reported.number("gpu_sharing", uuid) == 0  # no process computes
    assert reported.named("gpu_ecc_errors_total") == {}
    assert reported.absent["railscope_gpu_ecc_enabled", (uuid,)] is Absent.UNSUPPORTED
