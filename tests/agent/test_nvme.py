"""NVMe drives: their state, and their health log from its bytes."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from support.machine import DENIED, FakeHost
from support.reading import ORIGIN, numbers, read_once, readings
from support.trees import server_tree

from railscope.catalog.storage import NVME_STATES
from railscope.reading import Absent, reason_of
from railscope_agent.host.live_host import LiveHost
from railscope_agent.host.nvme_health_log import (
    LOG_BYTES,
    call_nvme,
    command_error,
    decode_health_log,
    read_health_log,
)
from railscope_agent.host.recording_host import RecordingHost
from railscope_agent.host.redactor import Redactor
from railscope_agent.sampling.probe_result import ProbeVerdict
from railscope_agent.sampling.source_reader import SourceReader
from railscope_agent.sources.nvme import ROOT, NvmeSource

SERIAL = "S680HF8N190894I"
DRIVE = ("0000:01:00.0",)
LOG: dict[str, int] = {
    "critical_warning": 0b1001, "temperature_kelvins": 316, "spare_percent": 100,
    "spare_limit_percent": 10, "used_percent": 103, "data_units_read": 2, "data_units_written": 3,
    "host_reads": 4, "host_writes": 5, "busy_minutes": 6, "power_cycles": 7, "power_on_hours": 8,
    "unsafe_shutdowns": 9, "media_errors": 10, "logged_errors": 11, "warm_minutes": 12,
    "hot_minutes": 13,
}  # fmt: skip
HEALTH = {
    ("railscope_nvme_temperature_celsius", DRIVE): 43,
    ("railscope_nvme_used_ratio", DRIVE): 1.03,
    ("railscope_nvme_spare_ratio", DRIVE): 1,
    ("railscope_nvme_spare_limit_ratio", DRIVE): 0.1,
    ("railscope_nvme_media_errors_total", DRIVE): 10,
    ("railscope_nvme_logged_errors_total", DRIVE): 11,
    ("railscope_nvme_unsafe_shutdowns_total", DRIVE): 9,
    ("railscope_nvme_power_cycles_total", DRIVE): 7,
    ("railscope_nvme_power_on_seconds_total", DRIVE): 8 * 3600,
    ("railscope_nvme_controller_busy_seconds_total", DRIVE): 6 * 60,
    ("railscope_nvme_warm_seconds_total", DRIVE): 12 * 60,
    ("railscope_nvme_hot_seconds_total", DRIVE): 13 * 60,
    ("railscope_nvme_lifetime_transferred_bytes_total", (*DRIVE, "read")): 2 * 512_000,
    ("railscope_nvme_lifetime_transferred_bytes_total", (*DRIVE, "write")): 3 * 512_000,
    ("railscope_nvme_critical_warning", (*DRIVE, "spare")): 1,
    ("railscope_nvme_critical_warning", (*DRIVE, "temperature")): 0,
    ("railscope_nvme_critical_warning", (*DRIVE, "reliability")): 0,
    ("railscope_nvme_critical_warning", (*DRIVE, "read_only")): 1,
    ("railscope_nvme_critical_warning", (*DRIVE, "backup")): 0,
    ("railscope_nvme_critical_warning", (*DRIVE, "persistent_memory")): 0,
}
STATE = ("railscope_nvme_state", DRIVE)


@pytest.fixture
def server() -> FakeHost:
    """A server with one drive on the PCI bus."""
    host = FakeHost()
    device = f"/sys/devices/pci0000:00/0000:00:02.1/{DRIVE[0]}"
    host.links[f"{ROOT}/nvme0/device"] = device
    host.files |= {
        f"{device}/class": "0x010802\n",
        f"{ROOT}/nvme0/state": "live\n",
        f"{ROOT}/nvme0/model": "Samsung SSD 970 PRO 512GB               \n",
        f"{ROOT}/nvme0/serial": f"{SERIAL}\n",
        f"{ROOT}/nvme0/firmware_rev": "1B2QEXP7\n",
        f"{ROOT}/nvme0/transport": "pcie\n",
        f"{ROOT}/nvme0/nvme0n1/size": "1000\n",
        f"{ROOT}/nvme0/nvme0c0n2/size": "1000\n",
        f"{ROOT}/nvme0/hwmon3/name": "nvme\n",
    }
    host.calls["nvme.smart(nvme0)"] = LOG
    return host


def test_state_and_health(server: FakeHost) -> None:
    outcome = read_once(NvmeSource(), server)
    assert numbers(outcome.frame) == {STATE: 1} | HEALTH
    assert outcome.frame is not None
    facts = {entity.key: entity.facts for _, entity, _ in outcome.frame.readings()}
    assert facts[DRIVE] == {
        "controller": "nvme0", "disks": "nvme0n1,nvme0n2", "model": "Samsung SSD 970 PRO 512GB",
        "serial": SERIAL, "firmware": "1B2QEXP7", "transport": "pcie",
    }  # fmt: skip
    assert "with a health log" in outcome.findings[0].detail


def test_without_rights_the_state_is_left_and_there_is_a_remedy(server: FakeHost) -> None:
    server.calls["nvme.smart(nvme0)"] = DENIED
    outcome = read_once(NvmeSource(), server)
    found = readings(outcome.frame)
    assert found.pop(STATE) == 1
    assert set(found.values()) == {Absent.DENIED}
    assert found.keys() == HEALTH.keys()
    (finding,) = outcome.findings
    assert finding.verdict is ProbeVerdict.DENIED
    assert "CAP_SYS_ADMIN" in finding.remedy


@pytest.mark.parametrize(
    ("state", "reading"),
    [
        *((name, number) for number, name in NVME_STATES.items() if number != 5),
        ("deleting (no IO)", 5),
        ("reconnecting", 3),
        ("asleep", Absent.ERROR),
    ],
)
def test_states_as_kernels_name_them(server: FakeHost, state: str, reading: object) -> None:
    server.files[f"{ROOT}/nvme0/state"] = f"{state}\n"
    assert readings(read_once(NvmeSource(), server).frame)[STATE] == reading


def test_a_drive_that_is_pulled_is_gone(server: FakeHost) -> None:
    reader = SourceReader(NvmeSource(), server, ORIGIN)
    reader.run()
    server.files = {path: text for path, text in server.files.items() if "/nvme0/" not in path}
    server.calls["nvme.smart(nvme0)"] = FileNotFoundError(errno.ENOENT, "gone")
    assert set(readings(reader.run().frame).values()) == {Absent.GONE}


def test_a_drive_behind_a_network_goes_by_its_name(server: FakeHost) -> None:
    server.files |= {f"{ROOT}/nvme4/state": "connecting\n", f"{ROOT}/nvme4/transport": "rdma\n"}
    found = readings(read_once(NvmeSource(), server).frame)
    assert found["railscope_nvme_state", ("nvme4",)] == 3
    assert found["railscope_nvme_used_ratio", ("nvme4",)] is Absent.UNSUPPORTED


def test_no_temperature_is_not_the_coldest_one(server: FakeHost) -> None:
    server.calls["nvme.smart(nvme0)"] = LOG | {"temperature_kelvins": 0}
    found = readings(read_once(NvmeSource(), server).frame)
    assert found["railscope_nvme_temperature_celsius", DRIVE] is Absent.UNSUPPORTED


def test_more_than_64_bits_hold_is_an_error(server: FakeHost) -> None:
    server.calls["nvme.smart(nvme0)"] = LOG | {"media_errors": 1 << 64}
    found = readings(read_once(NvmeSource(), server).frame)
    assert found["railscope_nvme_media_errors_total", DRIVE] is Absent.ERROR
    assert found["railscope_nvme_used_ratio", DRIVE] == 103


def test_serial_numbers_are_not_recorded(server: FakeHost) -> None:
    host = RecordingHost(server, Redactor())
    read_once(NvmeSource(), host)
    text = "".join(moment.to_line() for moment in host.moments)
    assert "nvme0/serial" in text
    assert SERIAL not in text


def test_the_drive_of_the_tree(tmp_path_factory: pytest.TempPathFactory) -> None:
    root = server_tree(tmp_path_factory)
    outcome = read_once(NvmeSource(), LiveHost(root))
    directory = root / "sys/class/nvme/nvme0"
    assert numbers(outcome.frame) == {("railscope_nvme_state", ("nvme0",)): 1}
    assert outcome.frame is not None
    facts = {entity.key: entity.facts for _, entity, _ in outcome.frame.readings()}["nvme0",]
    for fact, file in (("model", "model"), ("serial", "serial"), ("firmware", "firmware_rev")):
        assert facts[fact] == (directory / file).read_text().strip()
    assert outcome.findings[0].verdict is ProbeVerdict.SUPPORTED
    assert outcome.missing_count == 0


# The log ------------------------------------------------------------------------------------------

BYTE, COUNT = st.integers(0, 255), st.integers(0, (1 << 128) - 1)


@given(
    st.lists(BYTE, min_size=6, max_size=6),
    st.lists(COUNT, min_size=10, max_size=10),
    st.lists(st.integers(0, (1 << 32) - 1), min_size=2, max_size=2),
    st.binary(max_size=8),
)
def test_every_field_has_the_offset_of_the_specification(
    head: list[int], counts: list[int], minutes: list[int], rest: bytes
) -> None:
    log = bytearray(LOG_BYTES)
    log[0:6] = bytes(head)
    log[6 : 6 + len(rest)] = rest  # endurance group warnings and reserved bytes
    for position, count in enumerate(counts):
        log[32 + 16 * position : 48 + 16 * position] = count.to_bytes(16, "little")
    log[192:196] = minutes[0].to_bytes(4, "little")
    log[196:200] = minutes[1].to_bytes(4, "little")
    found = decode_health_log(bytes(log))
    assert list(found.values()) == [head[0], head[1] + 256 * head[2], *head[3:], *counts, *minutes]
    assert found.keys() == LOG.keys()
    assert json.loads(json.dumps(found)) == found


@given(st.binary(max_size=LOG_BYTES - 1))
def test_a_log_cut_short_is_rejected(log: bytes) -> None:
    with pytest.raises(OSError, match="too short") as caught:
        decode_health_log(log)
    assert caught.value.errno == errno.EIO


# This machine -------------------------------------------------------------------------------------


def test_a_file_that_is_not_a_drive_does_not_answer() -> None:
    descriptor = os.open("/dev/null", os.O_RDONLY)
    try:
        with pytest.raises(OSError, match="ioctl") as caught:
            read_health_log(descriptor)
    finally:
        os.close(descriptor)
    assert caught.value.errno == errno.ENOTTY


@pytest.mark.parametrize(
    ("status", "reason"),
    [(0x4002, Absent.UNSUPPORTED), (0x109, Absent.UNSUPPORTED), (0x4, Absent.ERROR)],
)
def test_a_drive_without_the_log_is_not_broken(status: int, reason: Absent) -> None:
    assert reason_of(command_error(status)) is reason


@pytest.mark.parametrize("name", ["nvme0n1", "../null", "null", "", "nvme"])
def test_nothing_but_a_controller_is_opened(name: str) -> None:
    with pytest.raises(OSError, match="invalid NVMe controller"):
        call_nvme("smart", name)


def test_a_drive_that_is_not_there() -> None:
    assert not Path("/dev/nvme999").exists()
    with pytest.raises(FileNotFoundError):
        LiveHost().call("nvme", "smart", "nvme999")


def test_drives_of_this_machine() -> None:
    outcome = read_once(NvmeSource(), LiveHost())
    assert outcome.problem == ""
    found: dict[Any, Any] = readings(outcome.frame)
    here = list(Path("/sys/class/nvme").glob("nvme*"))
    assert len({key[0] for name, key in found if name == "railscope_nvme_state"}) == len(here)
