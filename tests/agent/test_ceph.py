"""Ceph clients of the kernel, with the tables in one file and in a directory."""

from __future__ import annotations

from hypothesis import given, strategies as st
from support.machine import DENIED, FakeHost
from support.reading import ORIGIN, numbers, read_once, readings

from railscope.reading import Absent
from railscope_agent.sampling.probe_result import ProbeVerdict
from railscope_agent.sampling.source_reader import SourceReader
from railscope_agent.sources.ceph import (
    CEPH_ROOT,
    CephSource,
    parse_mdsc,
    parse_metrics,
    parse_osdc,
)

CLUSTER, CLIENT = "0c93a60d-5645-4c46-8568-4c8f63db4c7f", "client4267"
DIRECTORY = f"{CEPH_ROOT}/{CLUSTER}.{CLIENT}"
OSDC = "REQUESTS 2 homeless 1\n14\tosd3\t2.6fb1\n15\tosd-1\t2.6fb2\nLINGER REQUESTS\nBACKOFFS\n"
MDSC = "101\tmds0\tgetattr\t #10000000000\n102\t(no request)\tcreate\t #1/x (x)\n"
FILES = """item                               total
------------------------------------------
opened files  / total inodes       0 / 4
pinned i_caps / total inodes       5 / 4

"""
LATENCY = """item          total       avg_lat(us)     min_lat(us)     max_lat(us)     stdev(us)
-----------------------------------------------------------------------------------
read          798         32000           4000            196000          560.3
write         5           914013          824797          1092343         103476
metadata      79          12856           1572            114572          13262
copyfrom      1           10              10              10              0
"""
SIZE = """
item          total       avg_sz(bytes)   min_sz(bytes)   max_sz(bytes)  total_sz(bytes)
----------------------------------------------------------------------------------------
read          700         10              1               20             7000
write         5           4194304         4194304         4194304        20971520
"""
CAPS = """
item          total           miss            hit
-------------------------------------------------
d_lease       11              0               29
caps          5               68              10702
"""
ABOUT = (CLUSTER, CLIENT)
EXPECTED = {
    ("railscope_ceph_osd_requests_in_flight", ABOUT): 2,
    ("railscope_ceph_homeless_requests_in_flight", ABOUT): 1,
    ("railscope_ceph_mds_requests_in_flight", ABOUT): 2,
    ("railscope_ceph_operations_total", (*ABOUT, "read")): 798,
    ("railscope_ceph_operations_total", (*ABOUT, "write")): 5,
    ("railscope_ceph_operations_total", (*ABOUT, "metadata")): 79,
    ("railscope_ceph_operations_total", (*ABOUT, "copy_from")): 1,
    ("railscope_ceph_average_latency_seconds", (*ABOUT, "read")): 0.032,
    ("railscope_ceph_average_latency_seconds", (*ABOUT, "write")): 0.914013,
    ("railscope_ceph_average_latency_seconds", (*ABOUT, "metadata")): 0.012856,
    ("railscope_ceph_average_latency_seconds", (*ABOUT, "copy_from")): 0.00001,
    ("railscope_ceph_longest_latency_seconds", (*ABOUT, "read")): 0.196,
    ("railscope_ceph_longest_latency_seconds", (*ABOUT, "write")): 1.092343,
    ("railscope_ceph_longest_latency_seconds", (*ABOUT, "metadata")): 0.114572,
    ("railscope_ceph_longest_latency_seconds", (*ABOUT, "copy_from")): 0.00001,
    ("railscope_ceph_transferred_bytes_total", (*ABOUT, "read")): 7000,
    ("railscope_ceph_transferred_bytes_total", (*ABOUT, "write")): 20_971_520,
    ("railscope_ceph_capability_hits_total", ABOUT): 10_702,
    ("railscope_ceph_capability_misses_total", ABOUT): 68,
}


def host_with(**files: str) -> FakeHost:
    host = FakeHost()
    host.files = {
        f"{DIRECTORY}/osdc": OSDC,
        f"{DIRECTORY}/mdsc": MDSC,
        f"{DIRECTORY}/caps": "total\t\t9\n",
    }
    host.files |= {f"{DIRECTORY}/{name}": text for name, text in files.items()}
    return host


def test_tables_in_one_file() -> None:
    outcome = read_once(CephSource(), host_with(metrics=FILES + LATENCY + SIZE + CAPS))
    assert numbers(outcome.frame) == EXPECTED
    assert outcome.findings[0].detail == "1 client"


def test_tables_in_a_directory() -> None:
    files = {
        "metrics/file": FILES,
        "metrics/latency": LATENCY,
        "metrics/size": SIZE,
        "metrics/caps": CAPS,
    }
    assert numbers(read_once(CephSource(), host_with(**files)).frame) == EXPECTED


def test_a_mapped_disk_has_no_metadata_server() -> None:
    host = FakeHost()
    host.files[f"{DIRECTORY}/osdc"] = "REQUESTS 0 homeless 0\nLINGER REQUESTS\nBACKOFFS\n"
    assert numbers(read_once(CephSource(), host).frame) == {
        ("railscope_ceph_osd_requests_in_flight", ABOUT): 0,
        ("railscope_ceph_homeless_requests_in_flight", ABOUT): 0,
    }


def test_no_request_in_flight_is_zero_and_unreadable_is_absent() -> None:
    host = host_with()
    reader = SourceReader(CephSource(), host, ORIGIN)
    reader.run()
    host.files[f"{DIRECTORY}/mdsc"] = ""
    host.files[f"{DIRECTORY}/osdc"] = DENIED
    found = readings(reader.run().frame)
    assert found["railscope_ceph_mds_requests_in_flight", ABOUT] == 0
    assert found["railscope_ceph_osd_requests_in_flight", ABOUT] is Absent.DENIED


def test_findings_without_a_client() -> None:
    class DebugfsDeniedHost(FakeHost):
        def names(self, path: str) -> list[str]:
            if path.startswith("/sys/kernel/debug"):
                raise DENIED
            return super().names(path)

    assert read_once(CephSource(), FakeHost()).findings[0].verdict is ProbeVerdict.ABSENT
    for host, verdict in (
        (FakeHost(), ProbeVerdict.ABSENT),
        (DebugfsDeniedHost(), ProbeVerdict.DENIED),
    ):
        host.files["/sys/module/libceph/refcnt"] = "1\n"
        assert read_once(CephSource(), host).findings[0].verdict is verdict
    assert (
        read_once(CephSource(), DebugfsDeniedHost()).findings[0].verdict is ProbeVerdict.ABSENT
    ), "not loaded"


@given(st.sampled_from([FILES + LATENCY + SIZE + CAPS, LATENCY, CAPS]), st.floats(0, 1))
def test_a_file_cut_short_makes_nothing_up(whole: str, share: float) -> None:
    found = parse_metrics(whole.encode()[: round(len(whole) * share)])
    assert found.items() <= parse_metrics(whole.encode()).items()


@given(st.binary(max_size=200))
def test_an_invalid_message_is_not_a_fault(content: bytes) -> None:
    for parse in (parse_metrics, parse_osdc, parse_mdsc):
        parse(content)
