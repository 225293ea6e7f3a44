"""Lustre clients of both layouts: debugfs and /proc."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st
from support.machine import DENIED, FakeHost
from support.reading import ORIGIN, numbers, read_once, readings

from railscope.catalog.storage import IMPORT_STATES
from railscope.reading import Absent
from railscope_agent.sampling.probe_result import ProbeVerdict
from railscope_agent.sampling.source_reader import SourceReader
from railscope_agent.sources.lustre import (
    LUSTRE_DEBUG_ROOT,
    LUSTRE_HEALTH_FILES,
    MAX_TARGETS,
    LustreSource,
    parse_health,
    parse_import,
    parse_statistics,
)

OLD = "/proc/fs/lustre"
CLIENT = "ffff8800deadbe00"
LLITE = """snapshot_time             1537372234.934829123 secs.nsecs
read_bytes                120 samples [bytes] 4096 1048576 98304000
write_bytes               3 samples [bytes] 1 4 9
open                      40 samples [usec] 3 1000 65536 1234567
getattr                   7 samples [regs]
inode_permission          99 samples [usec] 1 2 100
"""
OSC = """snapshot_time             1681000000.123456789 secs.nsecs
start_time                0.000000000 secs.nsecs
req_waittime              200 samples [usec] 5 10000 500000 1234567890
req_active                200 samples [reqs] 1 16 800 3600
read_bytes                100 samples [bytes] 4096 1048576 838860800 4096
write_bytes               50 samples [bytes] 4096 1048576 4194304 4096
ost_read                  100 samples [usec] 10 50000 400000 99
ost_connect               1 samples [usec] 13811 13811 13811 190743721
obd_ping                  50 samples [usecs] 100 2000 25000
"""
IMPORT = """import:
    name: scratch-OST0000-osc-ffff8800deadbe00
    target: scratch-OST0000_UUID
    state: FULL
    connect_flags: [ write_grant, server_lock ]
    connect_data:
       flags: 0xa0425af2e3440478
       instance: 9
    import_flags: [ replayable, pingable ]
    connection:
       failover_nids: [ 192.168.1.10@o2ib ]
       current_connection: 192.168.1.10@o2ib
       connection_attempts: 1
       generation: 1
       in-progress_invalidations: 0
       idle: 3 sec
    rpcs:
       inflight: 4
       unregistering: 0
       timeouts: 2
       avg_waittime: 2500 usec
    service_estimates:
       services: 1 sec
       network: 1 sec
"""


@pytest.fixture
def server() -> FakeHost:
    """A client whose statistics are in debugfs and whose imports are in /proc, as of 2.12."""
    host = FakeHost()
    host.files[LUSTRE_HEALTH_FILES[0]] = "healthy\n"
    host.files[f"{LUSTRE_DEBUG_ROOT}/llite/scratch-{CLIENT}/stats"] = LLITE
    host.files[f"{LUSTRE_DEBUG_ROOT}/osc/scratch-OST0000-osc-{CLIENT}/stats"] = OSC
    host.files[f"{OLD}/osc/scratch-OST0000-osc-{CLIENT}/import"] = IMPORT
    host.files[f"{OLD}/osc/scratch-OST0000-osc-MDT0000/stats"] = OSC  # of a metadata server
    host.files[f"{LUSTRE_DEBUG_ROOT}/mdc/scratch-MDT0001-mdc-{CLIENT}/stats"] = (
        "mds_getattr               9 samples [usec] 50 5735 45029 60616599\n"
    )
    return host


def test_all_metrics_are_reported(server: FakeHost) -> None:
    outcome = read_once(LustreSource(), server)
    client = ("scratch", CLIENT)
    target, metadata = (*client, "OST0000"), (*client, "MDT0001")
    assert numbers(outcome.frame) == {
        ("railscope_lustre_healthy", ()): 1,
        ("railscope_lustre_read_bytes_total", client): 98_304_000,
        ("railscope_lustre_write_bytes_total", client): 9,
        ("railscope_lustre_operations_total", (*client, "open")): 40,
        ("railscope_lustre_operation_seconds_total", (*client, "open")): 0.065536,
        ("railscope_lustre_operations_total", (*client, "getattr")): 7,
        ("railscope_lustre_target_requests_total", target): 200,
        ("railscope_lustre_target_wait_seconds_total", target): 0.5,
        ("railscope_lustre_target_read_bytes_total", target): 838_860_800,
        ("railscope_lustre_target_write_bytes_total", target): 4_194_304,
        ("railscope_lustre_requests_total", (*target, "ost_read")): 100,
        ("railscope_lustre_request_seconds_total", (*target, "ost_read")): 0.4,
        ("railscope_lustre_requests_total", (*target, "obd_ping")): 50,
        ("railscope_lustre_request_seconds_total", (*target, "obd_ping")): 0.025,
        ("railscope_lustre_target_state", target): 9,
        ("railscope_lustre_target_requests_in_flight", target): 4,
        ("railscope_lustre_target_timeouts_total", target): 2,
        ("railscope_lustre_requests_total", (*metadata, "mds_getattr")): 9,
        ("railscope_lustre_request_seconds_total", (*metadata, "mds_getattr")): 0.045029,
    }
    assert outcome.findings[0].detail == "1 client, 2 targets"


def test_the_old_layout_gives_the_same_values(server: FakeHost) -> None:
    old = FakeHost()
    old.files = {path.replace(LUSTRE_DEBUG_ROOT, OLD): text for path, text in server.files.items()}
    assert numbers(read_once(LustreSource(), old).frame) == numbers(
        read_once(LustreSource(), server).frame
    )


@pytest.mark.parametrize("number", IMPORT_STATES)
def test_states_of_a_connection(server: FakeHost, number: int) -> None:
    path = f"{OLD}/osc/scratch-OST0000-osc-{CLIENT}/import"
    server.files[path] = IMPORT.replace("FULL", IMPORT_STATES[number].upper())
    key = ("railscope_lustre_target_state", ("scratch", CLIENT, "OST0000"))
    assert readings(read_once(LustreSource(), server).frame)[key] == number


def test_an_unknown_state_is_an_error() -> None:
    assert parse_import(b"import:\n    state: SLEEPY\n") == {"state": Absent.ERROR}


@pytest.mark.parametrize(
    ("text", "reading"),
    [
        ("healthy\n", 1),
        ("NOT HEALTHY\n", 0),
        ("LBUG\n", 0),
        ("hm\n", Absent.ERROR),
        ("device scratch-OST0000 reported unhealthy\nNOT HEALTHY\n", 0),
    ],
)
def test_health(text: str, reading: object) -> None:
    assert parse_health(text.encode()) == {"healthy": reading}


def test_a_target_that_goes_takes_its_readings_along(server: FakeHost) -> None:
    reader = SourceReader(LustreSource(), server, ORIGIN)
    reader.run()
    server.files = {path: text for path, text in server.files.items() if "OST0000" not in path}
    found = readings(reader.run().frame)
    key = ("railscope_lustre_target_requests_total", ("scratch", CLIENT, "OST0000"))
    assert found[key] is Absent.GONE
    assert found["railscope_lustre_healthy", ()] == 1


def test_the_first_operation_of_a_kind_is_there_at_the_next_read(server: FakeHost) -> None:
    reader = SourceReader(LustreSource(), server, ORIGIN)
    reader.run()
    path = f"{LUSTRE_DEBUG_ROOT}/llite/scratch-{CLIENT}/stats"
    server.files[path] = LLITE + "mkdir                     1 samples [usec] 5 5 5 25\n"
    reader.run()
    found = numbers(reader.run().frame)
    assert found["railscope_lustre_operations_total", ("scratch", CLIENT, "mkdir")] == 1


def test_targets_beyond_the_bound_are_counted(server: FakeHost) -> None:
    for number in range(MAX_TARGETS + 5):
        server.files[f"{LUSTRE_DEBUG_ROOT}/osc/scratch-OST{number:04x}-osc-{CLIENT}/stats"] = OSC
    outcome = read_once(LustreSource(), server)
    found = numbers(outcome.frame)
    targets = {key for name, key in found if name == "railscope_lustre_target_requests_total"}
    assert len(targets) == MAX_TARGETS - 1, "the metadata target is one of them"
    assert "6 beyond the first 128 are omitted" in outcome.findings[0].detail


def test_without_rights_there_is_a_remedy() -> None:
    class DebugfsDeniedHost(FakeHost):
        def names(self, path: str) -> list[str]:
            if path.startswith("/sys/kernel/debug"):
                raise DENIED
            return super().names(path)

    host = DebugfsDeniedHost()
    host.files[LUSTRE_HEALTH_FILES[0]] = "healthy\n"
    outcome = read_once(LustreSource(), host)
    assert outcome.findings[0].verdict is ProbeVerdict.DENIED
    assert outcome.findings[0].remedy
    assert numbers(outcome.frame) == {("railscope_lustre_healthy", ()): 1}


def test_a_server_without_lustre() -> None:
    outcome = read_once(LustreSource(), FakeHost())
    assert outcome.frame is None
    assert outcome.findings[0].verdict is ProbeVerdict.ABSENT


@given(st.sampled_from([LLITE, OSC]), st.floats(0, 1))
def test_a_file_cut_short_makes_nothing_up(whole: str, share: float) -> None:
    found = parse_statistics(whole.encode()[: round(len(whole) * share)])
    assert found.items() <= parse_statistics(whole.encode()).items()


@given(st.binary(max_size=200))
def test_an_invalid_message_is_not_a_fault(content: bytes) -> None:
    for parse in (parse_statistics, parse_import, parse_health):
        parse(content)
