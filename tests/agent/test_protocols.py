"""Counters of the kernel's network stack: of a copied machine, of this one, and of broken files."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from support.machine import DENIED, FakeHost
from support.reading import ORIGIN, Label, numbers, read_once, readings
from support.trees import server_tree

from railscope.catalog import network as c
from railscope.reading import Absent
from railscope_agent.host.live_host import LiveHost
from railscope_agent.sampling.probe_result import ProbeVerdict
from railscope_agent.sampling.source_reader import SourceReader
from railscope_agent.sources.protocol_counters import (
    CONNTRACK,
    NETSTAT,
    SNMP,
    SOFTNET,
    ProcessorSum,
    ProtocolSource,
    parse_conntrack,
    parse_pairs,
    parse_softnet,
)

ECN = {"InNoECTPkts": "not_ect", "InECT0Pkts": "ect0", "InECT1Pkts": "ect1", "InCEPkts": "ce"}
WRAP = 1 << 32
COUNTS = st.integers(0, WRAP - 1)


def plain(file: Path) -> dict[tuple[str, str], int]:
    """Pairs of lines by plain splitting."""
    lines = [line.split() for line in file.read_text().splitlines()]
    return {
        (names[0][:-1], name): int(value)
        for names, values in zip(lines[::2], lines[1::2], strict=True)
        for name, value in zip(names[1:], values[1:], strict=True)
    }


def test_every_count_of_the_copied_machine(tmp_path_factory: pytest.TempPathFactory) -> None:
    root = server_tree(tmp_path_factory)
    snmp, netstat = (plain(root / "proc/26231/net" / name) for name in ("snmp", "netstat"))
    expected: dict[Label, float] = {(c.TCP_CONNECTIONS.name, ()): snmp["Tcp", "CurrEstab"]}
    expected |= {(c.SNMP[key].name, ()): snmp[key] for key in c.SNMP}
    expected |= {(c.NETSTAT[key].name, ()): netstat[key] for key in c.NETSTAT}
    expected |= {(c.ECN.name, (code,)): netstat["IpExt", name] for name, code in ECN.items()}
    rows = [line.split() for line in (root / SOFTNET[1:]).read_text().splitlines()]
    for column, metric in (
        (1, c.SOFTNET_DROPPED),
        (2, c.SOFTNET_SQUEEZED),
        (10, c.SOFTNET_FLOW_LIMITED),
    ):
        fields = [row[column] for row in rows if len(row) > column]
        expected[metric.name, ()] = sum(int(field, 16) for field in fields)
    assert expected[c.SOFTNET_DROPPED.name, ()] == 0x6283 + 0x446 + 0x20E76 + 1
    assert numbers(read_once(ProtocolSource(), LiveHost(root)).frame) == expected


def test_counts_of_this_machine_lie_between_two_reads() -> None:
    here = Path("/proc/self/net/snmp")
    before = plain(here)
    found = numbers(read_once(ProtocolSource(), LiveHost()).frame)
    after = plain(here)
    for key, metric in c.SNMP.items():
        if key in before:
            assert before[key] <= found[metric.name, ()] <= after[key], key


# Changing counters ------------------------------------------------------------------------------


def server() -> FakeHost:
    host = FakeHost()
    host.files = {
        SNMP: "Tcp: MaxConn CurrEstab RetransSegs\nTcp: -1 12 348\n",
        NETSTAT: "IpExt: InCEPkts InNew\nIpExt: 5 6\n",
        SOFTNET: "00000001 00000002 00000003\n",
        CONNTRACK: "entries insert_failed drop early_drop\n00000009 00000001 00000002 00000003\n"
        "00000009 000000ff 00000000 00000000\n",
        "/proc/sys/net/netfilter/nf_conntrack_count": "900\n",
        "/proc/sys/net/netfilter/nf_conntrack_max": "1000\n",
    }
    return host


def test_a_kernel_with_few_counters() -> None:
    outcome = read_once(ProtocolSource(), server())
    assert numbers(outcome.frame) == {
        ("railscope_tcp_connections", ()): 12,
        ("railscope_tcp_retransmit_segments_total", ()): 348,
        ("railscope_ip_receive_ecn_packets_total", ("ce",)): 5,
        ("railscope_softnet_dropped_packets_total", ()): 2,
        ("railscope_softnet_squeezes_total", ()): 3,
        ("railscope_conntrack_failed_inserts_total", ()): 256,
        ("railscope_conntrack_dropped_packets_total", ()): 2,
        ("railscope_conntrack_evicted_entries_total", ()): 3,
        ("railscope_conntrack_entries", ()): 900,
        ("railscope_conntrack_entries_limit", ()): 1000,
    }
    assert "10 readings of snmp, netstat, softnet_stat, nf_conntrack" in outcome.findings[0].detail


def test_a_file_that_goes_costs_its_own_readings() -> None:
    host = server()
    reader = SourceReader(ProtocolSource(), host, ORIGIN)
    reader.run()
    host.files[SNMP] = DENIED
    host.files[NETSTAT] = "IpExt: InNew\nIpExt: 6\n"
    found = readings(reader.run().frame)
    assert found["railscope_tcp_connections", ()] is Absent.DENIED
    assert found["railscope_ip_receive_ecn_packets_total", ("ce",)] is Absent.GONE
    assert found["railscope_softnet_dropped_packets_total", ()] == 2


def test_either_directory_of_network_files_stands_in_for_the_other() -> None:
    """/proc/net is a link to /proc/self/net: a copy of a server may have only one of them."""
    expected = numbers(read_once(ProtocolSource(), server()).frame)
    for ours, other in (("/proc/net/", "/proc/self/net/"), ("/proc/self/net/", "/proc/net/")):
        host = server()
        host.files = {path.replace(ours, other): text for path, text in host.files.items()}
        assert numbers(read_once(ProtocolSource(), host).frame) == expected


@pytest.mark.parametrize("cut", range(27))
def test_a_last_line_of_softnet_without_its_end_counts_if_it_is_whole(cut: int) -> None:
    row = "00000001 00000002 00000003"
    found = parse_softnet(f"{row}\n{row}"[: -cut or None].encode())
    assert found[0] == {1: 2, 2: 3}
    whole = {0: {1: 2, 2: 3}, 8: {1: 2}, 9: {1: 2}, 17: {}, 18: {}}
    assert found.get(1) == whole.get(cut)


def test_nothing_to_read() -> None:
    outcome = read_once(ProtocolSource(), FakeHost())
    assert outcome.frame is None
    assert outcome.findings[0].verdict is ProbeVerdict.ABSENT


# Parsers ------------------------------------------------------------------------------------------


@given(
    st.dictionaries(
        st.from_regex(r"[A-Z][a-z]{1,5}", fullmatch=True),
        st.dictionaries(
            st.from_regex(r"[A-Z][A-Za-z0-9]{1,8}", fullmatch=True),
            st.integers(-1, (1 << 63) - 1),
            min_size=1,
            max_size=8,
        ),
        max_size=5,
    ),
    st.floats(0, 1),
)
def test_pairs_of_lines_whole_or_cut_short(
    counters: dict[str, dict[str, int]], share: float
) -> None:
    whole = "".join(
        f"{protocol}: {' '.join(named)}\n{protocol}: {' '.join(map(str, named.values()))}\n"
        for protocol, named in counters.items()
    ).encode()
    everything = {(p, n): value for p, named in counters.items() for n, value in named.items()}
    assert parse_pairs(whole) == everything
    short = parse_pairs(whole[: round(len(whole) * share)])
    assert short.items() <= everything.items(), "nothing is made up"


@given(st.binary(max_size=200))
def test_an_invalid_message_is_not_a_fault(content: bytes) -> None:
    for parse in (parse_pairs, parse_softnet, parse_conntrack):
        parse(content)


@given(st.lists(st.lists(COUNTS, min_size=9, max_size=9), max_size=5))
def test_processors_are_numbered_where_the_kernel_numbers_them(
    rows: list[list[int]],
) -> None:
    lines = []
    for number, row in enumerate(rows):
        fields = [*row, 0, number + 7, 0, number * 2 + 1, 0, 0]  # every second one is offline
        lines.append(" ".join(f"{field:08x}" for field in fields) + "\n")
    found = parse_softnet("".join(lines).encode())
    assert found == {
        number * 2 + 1: {1: row[1], 2: row[2], 10: number + 7} for number, row in enumerate(rows)
    }


# Sums over processors -----------------------------------------------------------------------------


@given(
    st.lists(COUNTS, min_size=1, max_size=4),
    st.lists(st.lists(st.integers(0, WRAP // 2 - 1), min_size=4, max_size=4), max_size=20),
)
def test_the_sum_goes_on_where_a_processor_wraps(start: list[int], steps: list[list[int]]) -> None:
    total = ProcessorSum()
    true = list(start)
    assert total.advance(dict(enumerate(true))) == sum(start)
    for row in steps:
        true = [count + step for count, step in zip(true, row, strict=False)]
        shown = {cpu: count % WRAP for cpu, count in enumerate(true)}
        assert total.advance(shown) == sum(true)


def test_a_processor_that_goes_offline_keeps_its_part() -> None:
    total = ProcessorSum()
    assert total.advance({0: 10, 1: 20}) == 30
    assert total.advance({0: 11}) == 31
    assert total.advance({0: 11, 1: 25}) == 36


def test_restarted_counts_are_counted_from_zero() -> None:
    total = ProcessorSum()
    total.advance({0: 1000, 1: 20})
    assert total.advance({0: 3, 1: 21}) == 24


def test_hexadecimal_fields_are_not_read_as_decimal() -> None:
    assert parse_softnet(b"00000000 00000010 00000000\n") == {0: {1: 16, 2: 0}}
