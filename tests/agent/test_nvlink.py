"""NVLinks by generation: the newest supported field for state, speed, bytes, errors and signal."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from support.gpus import add_gpus
from support.machine import FakeHost
from support.reading import ORIGIN, numbers, read_once, readings

from railscope.reading import Absent
from railscope_agent.gpus.inventory import GpuInventory
from railscope_agent.host import NvmlError
from railscope_agent.sampling.source_reader import SourceReader
from railscope_agent.sources.nvidia.nvlink import NvLinkSource, bit_error_decades

STATE = "railscope_nvlink_state"
ERRORS = "railscope_nvlink_errors_total"


def linked(links: int, fields: Mapping[int, int]) -> FakeHost:
    """A GPU with links; `fields` answer with their value plus the link."""
    host = FakeHost()
    add_gpus(host, 1)
    host.calls["nvml.nvmlDeviceGetFieldValues(0,91)"] = [0, links]
    for link in range(links):
        host.calls[f"nvml.nvmlDeviceGetNvLinkVersion(0,{link})"] = 6
        host.calls[f"nvml.nvmlDeviceGetNvLinkRemoteDeviceType(0,{link})"] = 2
        remote = {"busId": f"00000000:0{link % 4 + 5}:00.0"}
        host.calls[f"nvml.nvmlDeviceGetNvLinkRemotePciInfo(0,{link})"] = remote
        for field, value in fields.items():
            host.calls[f"nvml.nvmlDeviceGetFieldValues(0,{field}:{link})"] = [0, value + link]
    return host


def test_a_gpu_without_links_has_no_columns() -> None:
    assert read_once(NvLinkSource.traffic(), linked(0, {})).frame is None


def test_hopper_reports_errors_by_link() -> None:
    host = linked(18, {164: 26_562, 161: 100, 162: 200, 163: 300, 138: 5, 139: 6, 140: 7, 141: 8})
    for link in range(18):
        host.calls[f"nvml.nvmlDeviceGetFieldValues(0,165:{link})"] = [0, 1]
    frame = read_once(NvLinkSource.traffic(), host).frame
    found = numbers(frame)
    assert found["railscope_nvlink_transmitted_bytes_total", ("GPU-0", "3")] == (5 + 3) * 1024
    assert found["railscope_nvlink_raw_received_bytes_total", ("GPU-0", "17")] == (8 + 17) * 1024
    assert found["railscope_nvlink_speed_bytes_per_second", ("GPU-0", "0")] == 26_562e6
    assert found[ERRORS, ("GPU-0", "17", "crc")] == 317
    assert found[ERRORS, ("GPU-0", "4", "replay")] == 104
    assert found["railscope_gpu_nvlinks", ("GPU-0",)] == 18
    assert found["railscope_gpu_nvlinks_active", ("GPU-0",)] == 18
    assert frame is not None
    facts = {e.key: dict(e.facts) for e in frame.schema.entities if e.kind.name == "nvlink"}
    assert facts["GPU-0", "2"] == {
        "version": "4.0",
        "remote_type": "switch",
        "remote_pci_address": "0000:07:00.0",
    }


def test_a_link_that_sleeps_is_up_and_leads_to_no_probe() -> None:
    host = linked(18, {165: 0})
    gpus = GpuInventory()
    reader = SourceReader(NvLinkSource.traffic(gpus), host, ORIGIN)
    generations = []
    for state, up in ((1, 18), (2, 18), (3, 18), (1, 18), (0, 0)):
        for link in range(18):
            host.calls[f"nvml.nvmlDeviceGetFieldValues(0,165:{link})"] = [0, state]
        found = numbers(reader.run().frame)
        assert found["railscope_gpu_nvlinks_active", ("GPU-0",)] == up
        generations.append(gpus.generation)
    assert generations == [1, 1, 1, 1, 2]


def test_ampere_reports_errors_by_separate_fields() -> None:
    host = linked(12, {})
    legacy = {46: 1, 51: 2, 108: 3, 113: 4, 32: 5, 101: 6, 148: 7, 159: 8, 84: 25_781, 137: 25_782}
    for field, value in legacy.items():
        host.calls[f"nvml.nvmlDeviceGetFieldValues(0,{field})"] = [0, value]
    for link in range(12):
        host.calls[f"nvml.nvmlDeviceGetNvLinkState(0,{link})"] = int(link != 7)
    reader = SourceReader(NvLinkSource.traffic(), host, ORIGIN)
    for _ in range(2):
        found = numbers(reader.run().frame)
        errors = {key[1:]: value for (name, key), value in found.items() if name == ERRORS}
        assert errors == {
            ("0", "replay"): 1, ("5", "replay"): 2, ("6", "replay"): 3, ("11", "replay"): 4,
            ("0", "crc_flit"): 5, ("11", "crc_flit"): 6, ("0", "ecc_data"): 7,
            ("11", "ecc_data"): 8,
        }  # fmt: skip
        assert found["railscope_gpu_nvlinks_active", ("GPU-0",)] == 11
        speeds = [
            found["railscope_nvlink_speed_bytes_per_second", ("GPU-0", n)] for n in ("0", "11")
        ]
        assert speeds == [25_781e6, 25_782e6]
    assert host.asked["nvml.nvmlDeviceGetFieldValues(0,161:0)"] == 1


def test_blackwell_reports_packets_symbols_and_codewords() -> None:
    host = linked(2, {205: 10, 208: 20, 212: 30, 213: 40, 214: 50, 221: 60, 235: 70, 250: 80})
    for link in range(2):
        host.calls[f"nvml.nvmlDeviceGetFieldValues(0,220:{link})"] = [0, 0x2 << 8 | 9]
    traffic = numbers(read_once(NvLinkSource.traffic(), host).frame)
    assert traffic[ERRORS, ("GPU-0", "1", "receive")] == 21
    assert traffic["railscope_nvlink_recoveries_total", ("GPU-0", "0", "failed")] == 50
    assert ("GPU-0", "0", "replay") not in {key for name, key in traffic if name == ERRORS}
    signal = numbers(read_once(NvLinkSource.signal(), host).frame)
    assert signal[ERRORS, ("GPU-0", "1", "symbol")] == 61
    assert signal["railscope_nvlink_fec_codewords_total", ("GPU-0", "1", "15")] == 81
    decades = signal["railscope_nvlink_bit_error_decades", ("GPU-0", "0", "effective")]
    assert decades == pytest.approx(8.699, abs=1e-9)


@pytest.mark.parametrize(
    ("encoded", "thousandths"),
    [
        (0x10C, 12_000),
        (0xFFF, 253_824),
        (0xF00 | 238, 236_824),
        (0x500, -699),
        (0x00C, Absent.ERROR),
    ],
)
def test_a_bit_error_ratio_in_decades(encoded: int, thousandths: int | Absent) -> None:
    assert bit_error_decades(encoded) == thousandths


def test_a_number_without_a_value_has_no_bit_error_ratio() -> None:
    host = linked(1, {165: 1})
    host.calls["nvml.nvmlDeviceGetFieldValues(0,220:0)"] = [0, 0xFFFF_FFFF]
    found = readings(read_once(NvLinkSource("nvlink_signal", signal=True), host).frame)
    assert found["railscope_nvlink_bit_error_decades", ("GPU-0", "0", "effective")] is Absent.ERROR


def test_a_link_count_missing_from_the_driver_is_found_by_queries() -> None:
    host = linked(0, {})
    host.calls["nvml.nvmlDeviceGetFieldValues(0,91)"] = [3, 0]
    for link in range(4):
        host.calls[f"nvml.nvmlDeviceGetNvLinkState(0,{link})"] = 1
    found = numbers(read_once(NvLinkSource.traffic(), host).frame)
    assert found["railscope_gpu_nvlinks", ("GPU-0",)] == 4


@pytest.mark.parametrize(
    ("field", "reason"),
    [([999, 0], Absent.ERROR), ([4, 0], Absent.DENIED), ([0, 0xFFFF_FFFF], Absent.ERROR)],
)
def test_an_unknown_number_of_links_is_not_zero(field: list[int], reason: Absent) -> None:
    host = linked(2, {165: 1})
    host.calls["nvml.nvmlDeviceGetFieldValues(0,91)"] = field
    found = readings(read_once(NvLinkSource.traffic(), host).frame)
    for metric in ("railscope_gpu_nvlinks", "railscope_gpu_nvlinks_active"):
        assert found[metric, ("GPU-0",)] is reason


def test_an_unreadable_state_leaves_the_number_of_active_links_absent() -> None:
    host = linked(2, {164: 1})
    host.calls["nvml.nvmlDeviceGetNvLinkState(0,0)"] = 1
    host.calls["nvml.nvmlDeviceGetNvLinkState(0,1)"] = NvmlError(4, "Insufficient Permissions")
    found = readings(read_once(NvLinkSource.traffic(), host).frame)
    assert found[STATE, ("GPU-0", "0")] == 1
    assert found["railscope_gpu_nvlinks_active", ("GPU-0",)] is Absent.DENIED


def test_the_errors_of_a_gpu_are_the_sum_of_its_links() -> None:
    host = linked(3, {161: 100, 162: 0, 163: 10})
    call = "nvml.nvmlDeviceGetFieldValues(0,161:1)"
    reader = SourceReader(NvLinkSource.traffic(), host, ORIGIN)
    total = ("railscope_gpu_nvlink_errors_total", ("GPU-0",))
    assert numbers(reader.run().frame)[total] == 3 * 110 + 3 + 3 + 3
    host.calls[call] = [0, 500]
    assert numbers(reader.run().frame)[total] == 3 * 110 + 9 + 399
    host.calls[call] = [999, 0]
    assert numbers(reader.run().frame)[total] == 3 * 110 + 9 + 399, "the last value counts"
    host.calls[call] = [0, 501]
    assert numbers(reader.run().frame)[total] == 3 * 110 + 9 + 400
    for link in range(3):
        for field in (161, 162, 163):
            host.calls[f"nvml.nvmlDeviceGetFieldValues(0,{field}:{link})"] = [999, 0]
    assert readings(reader.run().frame)[total] is Absent.ERROR


def test_a_link_that_goes_down_takes_no_errors_from_the_sum() -> None:
    host = linked(2, {161: 100})
    for link in range(2):
        host.calls[f"nvml.nvmlDeviceGetFieldValues(0,165:{link})"] = [0, 1]
    reader = SourceReader(NvLinkSource.traffic(), host, ORIGIN)
    total = ("railscope_gpu_nvlink_errors_total", ("GPU-0",))
    assert numbers(reader.run().frame)[total] == 201
    host.calls["nvml.nvmlDeviceGetFieldValues(0,165:1)"] = [0, 0]
    host.calls["nvml.nvmlDeviceGetFieldValues(0,161:1)"] = [3, 0]
    for _ in range(3):  # the change of state leads to another probe
        assert numbers(reader.run().frame)[total] == 201
    host.calls["nvml.nvmlDeviceGetFieldValues(0,165:1)"] = [0, 1]
    host.calls["nvml.nvmlDeviceGetFieldValues(0,161:1)"] = [0, 101]
    for _ in range(3):
        assert numbers(reader.run().frame)[total] == 201
