"""Host metrics of this machine and of a copied /proc."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.machine import DENIED, FakeHost
from support.reading import ORIGIN, Label, numbers, read_once, readings
from support.shared import unpack_capture

from railscope.reading import Absent
from railscope_agent.host.live_host import LiveHost
from railscope_agent.sampling.source_reader import SourceReader
from railscope_agent.sources.node import HostSource, whole_drives

KIB, SECTOR = 1024, 512
NODE = ()


@pytest.fixture
def machine() -> Iterator[LiveHost]:
    host = LiveHost()
    yield host
    host.close()


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack_capture(
        "sysfs/procfs/tree.tar.gz", tmp_path_factory.mktemp("proc"), "/proc/[a-z]"
    )


def meminfo(proc: Path) -> dict[str, int]:
    """Bytes by name."""
    lines = (line.split() for line in (proc / "meminfo").read_text().splitlines())
    return {fields[0].rstrip(":"): int(fields[1]) * KIB for fields in lines}


def test_this_machine(machine: LiveHost) -> None:
    found = numbers(read_once(HostSource(), machine).frame)
    assert found["railscope_memory_size_bytes", NODE] == meminfo(Path("/proc"))["MemTotal"]
    assert found["railscope_cpus", NODE] == os.sysconf("SC_NPROCESSORS_ONLN")
    btime = re.search(r"^btime (\d+)$", Path("/proc/stat").read_text(), re.MULTILINE)
    assert btime is not None
    assert found["railscope_boot_time_seconds", NODE] == pytest.approx(int(btime[1]), abs=1)
    assert found["railscope_cpu_seconds_total", ("idle",)] > 0
    assert (
        0
        < found["railscope_memory_available_bytes", NODE]
        <= found["railscope_memory_size_bytes", NODE]
    )


def test_counters_of_this_machine_lie_between_two_reads(machine: LiveHost) -> None:
    def interfaces() -> dict[str, list[int]]:
        lines = Path("/proc/net/dev").read_text().splitlines()[2:]
        pairs = (line.split(":") for line in lines)
        return {name.strip(): [int(field) for field in rest.split()] for name, rest in pairs}

    before = interfaces()
    found = numbers(read_once(HostSource(), machine).frame)
    after = interfaces()
    for name in before:
        received = found["railscope_network_receive_bytes_total", (name,)]
        assert before[name][0] <= received <= after[name][0]
        sent = found["railscope_network_transmit_packets_total", (name,)]
        assert before[name][9] <= sent <= after[name][9]


@pytest.mark.filterwarnings("ignore:'sin' and 'sout' swap memory:RuntimeWarning")
def test_a_copied_proc_is_read_to_the_last_digit(copied: Path) -> None:
    proc = copied / "proc"
    found = numbers(read_once(HostSource(), LiveHost(copied)).frame)
    memory = meminfo(proc)
    expected: dict[Label, float] = {
        ("railscope_memory_size_bytes", NODE): memory["MemTotal"],
        ("railscope_swap_used_bytes", NODE): memory["SwapTotal"] - memory["SwapFree"],
        ("railscope_boot_time_seconds", NODE): 1418183276,
    }
    for window, load in zip(
        ("1m", "5m", "15m"), (proc / "loadavg").read_text().split(), strict=False
    ):
        expected["railscope_load_average", (window,)] = float(load)
    ticks = (proc / "stat").read_text().splitlines()[0].split()[1:]
    for mode, count in zip(("user", "nice", "system", "idle", "iowait"), ticks, strict=False):
        expected["railscope_cpu_seconds_total", (mode,)] = int(count) / 100
    for resource in ("cpu", "memory", "io"):
        for line in (proc / "pressure" / resource).read_text().splitlines():
            key = (resource, line.split()[0])
            micros = int(line.rsplit("total=", 1)[1])
            expected["railscope_pressure_stalled_seconds_total", key] = micros / 1e6
    for line in (proc / "diskstats").read_text().splitlines():
        _, _, disk, *counts = line.split()
        if disk not in {"sda", "mmcblk0", "vda", "nvme0n1", "sdb", "sdc"}:
            assert ("railscope_disk_read_bytes_total", (disk,)) not in found
        elif len(counts) >= 11:
            expected["railscope_disk_read_bytes_total", (disk,)] = int(counts[2]) * SECTOR
            expected["railscope_disk_written_bytes_total", (disk,)] = int(counts[6]) * SECTOR
            expected["railscope_disk_busy_seconds_total", (disk,)] = int(counts[9]) / 1000
    for line in (proc / "net/dev").read_text().splitlines()[2:]:
        name, counts_text = line.split(":")
        counts = counts_text.split()
        expected["railscope_network_receive_bytes_total", (name.strip(),)] = int(counts[0])
        expected["railscope_network_transmit_bytes_total", (name.strip(),)] = int(counts[8])
    assert {key: found.get(key) for key in expected} == expected


@pytest.mark.filterwarnings("ignore:'sin' and 'sout' swap memory:RuntimeWarning")
def test_identity_conflict_in_one_process_are_not_mixed_up(machine: LiveHost, copied: Path) -> None:
    size = "railscope_memory_size_bytes", NODE
    other = LiveHost(copied)
    here, there = meminfo(Path("/proc"))["MemTotal"], meminfo(copied / "proc")["MemTotal"]
    for _ in range(2):
        assert numbers(read_once(HostSource(), machine).frame)[size] == here
        assert numbers(read_once(HostSource(), other).frame)[size] == there


def test_a_tree_without_proc_does_not_report_its_host(tmp_path: Path) -> None:
    outcome = read_once(HostSource(), LiveHost(tmp_path))
    assert (outcome.frame, outcome.problem) == (None, "")


# Changing devices ------------------------------------------------------------------------------


def test_a_disk_that_vanished_is_gone() -> None:
    host = FakeHost()
    counters = {"read_bytes": 1}
    disks = "psutil.disk_io_counters()"
    host.calls[disks] = {"nvme0n1": counters, "nvme1n1": counters, "loop0": counters}
    reader = SourceReader(HostSource(), host, ORIGIN)
    reader.run()
    host.calls[disks] = {"nvme0n1": {"read_bytes": 5}}
    assert readings(reader.run().frame) == {
        ("railscope_disk_read_bytes_total", ("nvme0n1",)): 5,
        ("railscope_disk_read_bytes_total", ("nvme1n1",)): Absent.GONE,
    }


@pytest.mark.parametrize(("own", "expected"), [(0, 7), (6, 6)])
def test_an_nvme_drive_that_counts_nothing_has_the_sum_of_its_paths(
    own: int, expected: int
) -> None:
    host = FakeHost()
    host.calls["psutil.disk_io_counters()"] = {
        "nvme0n1": {"read_bytes": own},
        "nvme0c0n1": {"read_bytes": 5},
        "nvme0c1n1": {"read_bytes": 2},
        "nvme0c0n12": {"read_bytes": 1},
    }
    found = readings(SourceReader(HostSource(), host, ORIGIN).run().frame)
    assert found == {("railscope_disk_read_bytes_total", ("nvme0n1",)): expected}


def test_a_function_that_fails_costs_its_own_columns_only() -> None:
    host = FakeHost()
    host.calls["psutil.boot_time()"] = 1_418_183_276.0
    host.calls["psutil.swap_memory()"] = {"used": 0}
    reader = SourceReader(HostSource(), host, ORIGIN)
    reader.run()
    host.calls["psutil.swap_memory()"] = DENIED
    assert readings(reader.run().frame) == {
        ("railscope_boot_time_seconds", ()): 1_418_183_276,
        ("railscope_swap_used_bytes", ()): Absent.DENIED,
    }


DISKS = [
    "sda", "sda1", "sda15", "nvme0n1", "nvme0n1p1", "nvme0n1p2", "nvme0c0n1", "nvme10n2", "mmcblk0",
    "mmcblk0p1", "xvda1", "vdb", "dm-0", "dm-12", "md0", "md127", "md127p1", "loop7", "loop7p1", "zram0",
    "sr0", "fd0", "bcache0", "drbd3", "zd16", "nbd0", "nbd0p1", "rbd1", "cciss/c0d0", "cciss/c0d0p1",
]  # fmt: skip
DRIVES = [
    "cciss/c0d0", "mmcblk0", "nbd0", "nvme0n1", "nvme10n2", "rbd1", "sda", "vdb", "xvda1",
]  # fmt: skip


def test_every_byte_of_a_drive_is_counted_once() -> None:
    """By name: partitions, volumes and paths of drives are not drives; xvda1 without xvda is one."""
    assert whole_drives(FakeHost(), DISKS) == DRIVES


def test_sysfs_separates_partitions_and_stacked_devices_from_drives() -> None:
    host = FakeHost()
    for disk in ("sda", "nvme0n1", "oddly1", "pool"):
        host.files[f"/sys/block/{disk}/size"] = "1"
    host.files["/sys/block/pool/slaves/sda/size"] = "1"
    assert whole_drives(host, ["nvme0n1", "nvme0n1p3", "oddly1", "pool", "sda", "sda2"]) == [
        "nvme0n1", "oddly1", "sda",
    ]  # fmt: skip
