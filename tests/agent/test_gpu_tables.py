"""Calls of the tables to old and new drivers, and the readings of special answers."""

from __future__ import annotations

import fnmatch

import pytest
from support.gpu_readings import read_gpus
from support.gpus import host_with_gpus
from support.machine import FakeHost
from support.nvidia_smi import machine
from support.reading import ORIGIN, numbers
from support.row_pairs import PAIRS, agrees

from railscope.catalog import METRICS
from railscope.reading import Absent
from railscope_agent.host import NvmlError
from railscope_agent.sampling.source_reader import SourceReader
from railscope_agent.sources.nvidia.gpu_devices import GpuSource
from railscope_agent.sources.nvidia.value_tables import THROTTLE_FIELDS

GPU = "GPU-0"
FIELD = "nvml.nvmlDeviceGetFieldValues(0,{})"
SECOND_NS = 10**9


LIMITS = {name: METRICS[f"railscope_gpu_{metric}"].valid for name, (metric, _) in PAIRS.items()}
FLAGS = [name for name, limits in LIMITS.items() if limits == (0, 1) and name != "mig.mode.current"]
"""Flags and ratios. A GPU in MIG mode is read in another way."""


def distinct_row() -> dict[str, str]:
    """Return a row of nvidia-smi whose numbers are all different, as far as their limits permit."""
    row = {
        name: str(min(place, (LIMITS[name] or (0, place))[1]))
        for place, name in enumerate(PAIRS, 10)
    }
    row |= {name: str(number) for number, name in enumerate(fnmatch.filter(PAIRS, "pcie.*gen*"), 1)}
    row |= {
        "pstate": "5",
        "fabric.state": "Completed",
        "mig.mode.current": "Disabled",
        "uuid": GPU,
        "name": "H100",
    }
    row["memory.total"] = "99"  # more than is used
    row |= {"pci.bus_id": "00000000:19:00.0", "driver_version": "590.48.01"}
    return row


@pytest.mark.parametrize("flag", ["", *FLAGS])
def test_no_number_comes_out_as_another(flag: str) -> None:
    """Real GPUs report many equal zeros: here every number is different, and one flag at a time is set."""
    host = FakeHost()
    row = distinct_row()
    if flag:
        row |= dict.fromkeys(FLAGS, "0") | {flag: "1"}
    host.calls |= machine([row])
    reported = read_gpus(host)
    for name, (metric, part) in PAIRS.items():
        ours = reported.number(f"gpu_{metric}", GPU, *part)
        assert agrees(ours, name, row[name]), f"{name}: {ours} of {row[name]}"


@pytest.mark.parametrize(
    ("driver", "first"), [("575.57.08", 251), ("580.95.05", 251), ("590.48.01", 269), ("", 269)]
)
def test_slowdowns_are_read_under_the_numbers_of_the_driver(driver: str, first: int) -> None:
    host = host_with_gpus()
    for field in (*range(251, 254), *range(269, 272)):
        host.calls.pop(FIELD.format(field), None)
    host.calls["nvml.nvmlSystemGetDriverVersion()"] = driver
    for place in range(3):
        host.calls[FIELD.format(first + place)] = [0, (place + 1) * SECOND_NS]
    reported = read_gpus(host).named("gpu_throttle_seconds_total")
    reasons = ("software_thermal", "hardware_thermal", "hardware_power_brake")
    assert [reported[GPU, reason] for reason in reasons] == [1, 2, 3]


def test_the_total_of_throttling_leaves_out_idle_time_and_repeated_times() -> None:
    host, field = host_with_gpus(), FIELD.format
    reader = SourceReader(GpuSource.load(), host, ORIGIN)
    total = ("railscope_gpu_all_reasons_throttle_seconds_total", (GPU,))
    counted = {
        number: reason for number, reason in THROTTLE_FIELDS.items() if number not in {78, 80, 81}
    }
    for number in THROTTLE_FIELDS:
        host.calls[field(number)] = [0, number * SECOND_NS]
    for number in (*range(251, 254), *range(269, 272)):
        host.calls[field(number)] = [3, 0]
    assert numbers(reader.run().frame)[total] == sum(counted)
    host.calls[field(75)] = [999, 0]
    host.calls[field(77)] = [0, 78 * SECOND_NS]
    assert numbers(reader.run().frame)[total] == sum(counted) + 1, "an unreadable part is kept"
    host.calls[field(75)] = [0, 77 * SECOND_NS]
    assert numbers(reader.run().frame)[total] == sum(counted) + 3


@pytest.mark.parametrize(
    ("supported", "there"),
    [(0x7FF, True), (0x1FF, False), (NvmlError(3), False), (NvmlError(13), False)],
    ids=str,
)
def test_an_unsupported_reason_is_not_reported_as_zero(supported: object, there: bool) -> None:  # noqa: FBT001 - a column of the table above
    host = host_with_gpus()
    host.calls["nvml.nvmlDeviceGetSupportedClocksEventReasons(0)"] = supported
    reported = read_gpus(host)
    assert (reported.number("gpu_throttle_active", GPU, "board_limit") == 0) is there
    assert reported.number("gpu_throttle_active", GPU, "software_power_cap") == 1


def test_power_limits_of_a_driver_without_fields_for_them() -> None:
    host = host_with_gpus()
    host.calls |= {
        "nvml.nvmlDeviceGetPowerManagementLimitConstraints(0)": [60_000, 72_000],
        "nvml.nvmlDeviceGetPowerManagementDefaultLimit(0)": 70_000,
        "nvml.nvmlDeviceGetPowerManagementLimit(0)": 65_000,
    }
    assert read_gpus(host).named("gpu_power_limit_bound_watts") == {
        (GPU, "minimum"): 60, (GPU, "maximum"): 72, (GPU, "default"): 70, (GPU, "requested"): 65,
    }  # fmt: skip


def test_a_missing_power_of_the_memory_is_not_zero() -> None:
    host = host_with_gpus()
    host.calls[FIELD.format("185:2")] = [0, 0]
    reported = read_gpus(host)
    assert reported.absent["railscope_gpu_memory_power_watts", (GPU,)] is Absent.UNSUPPORTED
    host.calls[FIELD.format("185:2")] = [0, 85_830]
    assert read_gpus(host).number("gpu_memory_power_watts", GPU) == 85.83


def test_a_rack_system_reports_the_gpu_position_and_a_single_server_does_not() -> None:
    host = host_with_gpus()
    place = {
        "chassisSerialNumber": "1820124300130", "slotNumber": "\x12", "trayIndex": "\x05",
        "hostId": "\x01", "peerType": "\x01", "moduleId": "\x02",
    }  # fmt: skip
    host.calls["nvml.nvmlDeviceGetPlatformInfo(0)"] = place
    facts = read_gpus(host).facts["gpu", (GPU,)]
    assert (facts["chassis"], facts["slot"], facts["tray"]) == ("1820124300130", "18", "5")
    assert facts["module"] == "2"
    alone = {"chassisSerialNumber": "", "slotNumber": "\x00", "trayIndex": "\x00"}
    host.calls["nvml.nvmlDeviceGetPlatformInfo(0)"] = place | alone
    facts = read_gpus(host).facts["gpu", (GPU,)]
    assert facts["module"] == "2"
    assert not {"chassis", "slot", "tray"} & facts.keys()
