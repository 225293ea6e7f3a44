"""Files and logs of a node that are cut short, mixed up or garbage: nothing is made up, and no source fails."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from support.machine import FakeHost
from support.reading import numbers, read_once

from railscope.reading import Absent, reason_of
from railscope_agent.host.live_host import LiveHost
from railscope_agent.host.nvme_health_log import (
    LOG_BYTES,
    call_nvme,
    command_error,
    decode_health_log,
)
from railscope_agent.sources import (
    ceph,
    gpudirect,
    lustre,
    nfs,
    nfs_mountstats,
    protocol_counters,
)
from railscope_agent.sources.nic_interfaces import SettingAnswers
from railscope_agent.sources.nic_setting_parsers import add_dscp_map
from railscope_agent.sources.node import HostSource
from railscope_agent.sources.nvme import NvmeSource
from railscope_agent.sources.pcie import parse_aer
from railscope_agent.topology.network_interface import NetworkInterface

TABLES = Path(__file__).parent / "host_readings" / "tables"
WRAP = 1 << 32
COUNTS = st.integers(0, WRAP - 1)


def mounts(content: bytes) -> dict[object, object]:
    """Return the values of all mounts, without those that are sums over connections."""
    return {
        (mount.export, mount.mount_point, key): value
        for mount in nfs_mountstats.parse_mountstats(content)
        for key, value in mount.values.items()
        if key[0] != "transport"
    }


PARSERS: dict[Callable[[bytes], object], tuple[str, ...]] = {
    ceph.parse_metrics: ("ceph_latency", "ceph_size", "ceph_caps"),
    lustre.parse_statistics: ("lustre_llite", "lustre_osc"),
    gpudirect.parse_stats: ("gds_counted", "gds_uncounted"),
    mounts: ("nfs_tcp", "nfs_rdma", "nfs_two"),
}
WHOLE_FILES = [(parse, name) for parse, names in PARSERS.items() for name in names]
ALL_PARSERS = [
    *PARSERS, ceph.parse_osdc, ceph.parse_mdsc, lustre.parse_import, lustre.parse_health, parse_aer,
    nfs_mountstats.parse_superblocks, protocol_counters.parse_pairs, protocol_counters.parse_softnet,
    protocol_counters.parse_conntrack,
]  # fmt: skip


@given(st.sampled_from(WHOLE_FILES), st.floats(0, 1))
def test_a_file_that_is_cut_short_makes_nothing_up(
    case: tuple[Callable[[bytes], dict[object, object]], str], share: float
) -> None:
    parse, name = case
    whole = (TABLES / name).read_bytes()
    found = parse(whole[: round(len(whole) * share)])
    present = {key: value for key, value in found.items() if not isinstance(value, Absent)}
    assert present.items() <= parse(whole).items()


@given(st.sampled_from(ALL_PARSERS), st.binary(max_size=200))
def test_garbage_is_not_a_fault(parse: Callable[[bytes], object], content: bytes) -> None:
    parse(content)


SHUFFLED = {
    "gds_counted": (gpudirect.GpuDirectSource, gpudirect.STATS),
    "nfs_rdma": (nfs.NfsSource, f"{nfs.OWN_PROCESS}/mountstats"),
}
EXTRA = ["GPU x", "Reads: n= ok=-1", "=", ":", "New: a=1", "\txprt:", "\tevents:\tx 1", "\t: 1"]


@given(st.sampled_from(list(SHUFFLED)), st.data())
def test_lines_in_any_order_are_not_a_fault(name: str, data: st.DataObject) -> None:
    source, path = SHUFFLED[name]
    lines = [*(TABLES / name).read_text().splitlines(), *EXTRA]
    host = FakeHost()
    host.files[path] = "\n".join(data.draw(st.lists(st.sampled_from(lines)))) + "\n"
    assert read_once(source(), host).problem == ""


@given(st.text("ab \t\n\\/é", max_size=20))
def test_names_of_mounts_come_back_as_they_were(name: str) -> None:
    escaped = "".join(rf"\{ord(char):03o}" if char in " \t\n\\" else char for char in name)
    assert nfs_mountstats.decode_octal_escapes(escaped) == name


@given(st.dictionaries(st.integers(0, 63), st.integers(0, 7)), st.randoms())
def test_a_map_of_dscps_can_be_read_back(priority_of: dict[int, int], dice) -> None:
    dscp: dict[int, list[int]] = {}
    for code, priority in dice.sample(list(priority_of.items()), len(priority_of)):
        dscp.setdefault(priority, []).append(code)
    answers = SettingAnswers(NetworkInterface("eth0"))
    add_dscp_map(answers, dscp)
    text = answers.texts["dscp_map"]
    if len(text) > 200:  # cut, with its digest
        return
    found = {}
    for entry in text.split(",") if dscp else []:
        priority, _, spans = entry.partition(":")
        for span in spans.split("+"):
            first, _, last = span.partition("-")
            found |= dict.fromkeys(range(int(first), int(last or first) + 1), int(priority))
    assert found == priority_of


# Counters of processors ---------------------------------------------------------------------------


@given(
    st.lists(COUNTS, min_size=1, max_size=4),
    st.lists(st.lists(st.integers(0, WRAP // 2 - 1), min_size=4, max_size=4), max_size=20),
)
def test_the_sum_goes_on_where_a_processor_wraps(start: list[int], steps: list[list[int]]) -> None:
    total, true = protocol_counters.ProcessorSum(), list(start)
    assert total.advance(dict(enumerate(true))) == sum(start)
    for row in steps:
        true = [count + step for count, step in zip(true, row, strict=False)]
        assert total.advance({cpu: count % WRAP for cpu, count in enumerate(true)}) == sum(true)


def test_a_processor_that_goes_offline_keeps_its_part_and_a_restarted_one_counts_from_zero() -> (
    None
):
    total = protocol_counters.ProcessorSum()
    shown = [{0: 10, 1: 20}, {0: 11}, {0: 11, 1: 25}, {0: 3, 1: 26}]
    assert [total.advance(counts) for counts in shown] == [30, 31, 36, 29]


@given(st.lists(st.lists(COUNTS, min_size=9, max_size=9), max_size=5))
def test_processors_are_numbered_where_the_kernel_numbers_them(rows: list[list[int]]) -> None:
    """Every second one is offline."""
    lines = [
        " ".join(f"{field:08x}" for field in [*row, 0, n + 7, 0, n * 2 + 1, 0, 0]) + "\n"
        for n, row in enumerate(rows)
    ]
    assert protocol_counters.parse_softnet("".join(lines).encode()) == {
        n * 2 + 1: {1: row[1], 2: row[2], 10: n + 7} for n, row in enumerate(rows)
    }


# The health log of a drive ------------------------------------------------------------------------

BYTE, COUNT = st.integers(0, 255), st.integers(0, (1 << 128) - 1)


@given(
    st.lists(BYTE, min_size=6, max_size=6),
    st.lists(COUNT, min_size=10, max_size=10),
    st.lists(COUNTS, min_size=2, max_size=2),
    st.binary(max_size=8),
)
def test_every_field_has_the_offset_of_the_specification(
    head: list[int], counts: list[int], minutes: list[int], rest: bytes
) -> None:
    log = bytearray(LOG_BYTES)
    log[0:6] = bytes(head)
    log[6 : 6 + len(rest)] = rest  # endurance group warnings and reserved bytes
    log[32:192] = b"".join(count.to_bytes(16, "little") for count in counts)
    log[192:200] = b"".join(count.to_bytes(4, "little") for count in minutes)
    found = decode_health_log(bytes(log))
    assert list(found.values()) == [head[0], head[1] + 256 * head[2], *head[3:], *counts, *minutes]
    assert json.loads(json.dumps(found)) == found
    with pytest.raises(OSError, match="too short"):
        decode_health_log(bytes(log[: sum(head) % LOG_BYTES]))


@pytest.mark.parametrize(
    ("status", "reason"),
    [(0x4002, Absent.UNSUPPORTED), (0x109, Absent.UNSUPPORTED), (0x4, Absent.ERROR)],
)
def test_a_drive_without_the_log_is_not_broken(status: int, reason: Absent) -> None:
    assert reason_of(command_error(status)) is reason


@pytest.mark.parametrize("name", ["nvme0n1", "../null", "null", "", "nvme", "nvme999"])
def test_nothing_but_a_controller_is_opened(name: str) -> None:
    with pytest.raises(OSError, match=r"invalid NVMe controller|No such file"):
        call_nvme("smart", name)


# This machine -------------------------------------------------------------------------------------


def test_counters_of_this_machine_lie_between_two_reads() -> None:
    def received() -> dict[str, int]:
        lines = (line.split(":") for line in Path("/proc/net/dev").read_text().splitlines()[2:])
        return {name.strip(): int(rest.split()[0]) for name, rest in lines}

    host = LiveHost()
    try:
        before, found, after = received(), numbers(read_once(HostSource(), host).frame), received()
        for source in (NvmeSource(), nfs.NfsSource(), protocol_counters.ProtocolSource()):
            assert read_once(source, host).problem == ""
        with pytest.raises(FileNotFoundError) as raised:
            host.call("nvme", "smart", "nvme999")
    finally:
        host.close()
    assert raised.value.errno == errno.ENOENT
    for name, count in before.items():
        assert count <= found["railscope_network_receive_bytes_total", (name,)] <= after[name]
    assert 0 < found["railscope_memory_available_bytes", ()] <= found["railscope_memory_size_bytes", ()]  # fmt: skip


@pytest.mark.filterwarnings("ignore:'sin' and 'sout' swap memory:RuntimeWarning")
def test_a_tree_without_proc_does_not_report_its_host(tmp_path: Path) -> None:
    outcome = read_once(HostSource(), LiveHost(tmp_path))
    assert (outcome.frame, outcome.problem) == (None, "")
