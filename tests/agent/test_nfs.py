"""NFS mounts: every kernel counter, once per mount, without access to the mount."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from support.machine import DENIED, FakeHost
from support.reading import ORIGIN, Label, numbers, read_once, readings
from support.trees import server_tree

from railscope.catalog import storage as c
from railscope.reading import Absent
from railscope_agent.host.live_host import LiveHost
from railscope_agent.sampling.probe_result import ProbeVerdict
from railscope_agent.sampling.source_reader import SourceReader
from railscope_agent.sources.nfs import (
    FIRST_PROCESS,
    MAX_MOUNTS,
    OWN_PROCESS,
    REPORTED_EVENTS,
    NfsSource,
)
from railscope_agent.sources.nfs_mountstats import (
    EVENTS as ALL_EVENTS,
    OPERATION_FIELDS,
    OPERATIONS,
    decode_octal_escapes,
    parse_mountstats,
    parse_superblocks,
)

MOUNTSTATS, MOUNTINFO = f"{OWN_PROCESS}/mountstats", f"{OWN_PROCESS}/mountinfo"
TCP = "tcp 832 0 2 0 11 6428 6427 1 12154 7 24 26 5726"
RDMA = "rdma 0 0 1 1 3 500 499 1 900 8 100 200 300 4000 5000 60 70 80 9 10 11 12 13 14 15 16 17"
SILLY = 18_446_743_919_241_604_546
"""A time that fell below 0, as a kernel printed it."""


def mount(
    export: str = "filer:/data",
    place: str = "/data",
    xprt: tuple[str, ...] = (TCP,),
    operations: str = "\t        READ: 10 12 1 2080 40960 5 60 70 2\n",
    proto: str = "tcp",
) -> str:
    events = " ".join(str(number) for number in range(27))
    transports = "".join(f"\txprt:\t{line}\n" for line in xprt)
    return (
        f"device {export} mounted on {place} with fstype nfs4 statvers=1.1\n"
        f"\topts:\trw,vers=4.2,rsize=1048576,hard,proto={proto},timeo=600,sec=krb5p,local_lock=none\n"
        "\tage:\t13968\n\tcaps:\tcaps=0xfff7,wtmult=512\n\tsec:\tflavor=6,pseudoflavor=390005\n"
        f"\tevents:\t{events}\n\tbytes:\t1 2 3 4 5 6 7 8\n"
        f"\tRPC iostats version: 1.1  p/v: 100003/4 (nfs)\n{transports}\tper-op statistics\n"
        f"\t        NULL: 1 1 0 44 24 0 1 1 0\n{operations}\n"
    )


def host_with(*mounts: str, info: str = "") -> FakeHost:
    host = FakeHost()
    others = (
        "device proc mounted on /proc with fstype proc\nno device mounted on / with fstype rootfs\n"
    )
    host.files[MOUNTSTATS] = others + "".join(mounts)
    if info:
        host.files[MOUNTINFO] = info
    return host


KEY = ("filer:/data", "/data", "tcp")


def test_a_mount_over_tcp() -> None:
    found = numbers(read_once(NfsSource(), host_with(mount())).frame)
    expected: dict[Label, float] = {
        ("railscope_nfs_mounts", ()): 1,
        ("railscope_nfs_unread_mounts", ()): 0,
        ("railscope_nfs_mount_age_seconds", KEY): 13968,
        ("railscope_nfs_operations_total", (*KEY, "READ")): 10,
        ("railscope_nfs_transmissions_total", (*KEY, "READ")): 12,
        ("railscope_nfs_major_timeouts_total", (*KEY, "READ")): 1,
        ("railscope_nfs_sent_bytes_total", (*KEY, "READ")): 2080,
        ("railscope_nfs_received_bytes_total", (*KEY, "READ")): 40960,
        ("railscope_nfs_queue_seconds_total", (*KEY, "READ")): 0.005,
        ("railscope_nfs_response_seconds_total", (*KEY, "READ")): 0.06,
        ("railscope_nfs_execution_seconds_total", (*KEY, "READ")): 0.07,
        ("railscope_nfs_operation_errors_total", (*KEY, "READ")): 2,
        ("railscope_nfs_transport_connects_total", KEY): 2,
        ("railscope_nfs_transport_requests_total", KEY): 6428,
        ("railscope_nfs_transport_replies_total", KEY): 6427,
        ("railscope_nfs_transport_unknown_replies_total", KEY): 1,
        ("railscope_nfs_transport_in_flight_total", KEY): 12154,
        ("railscope_nfs_transport_backlog_total", KEY): 7,
    }
    expected |= {(metric.name, KEY): number for number, metric in enumerate(c.NFS_BYTES, 1)}
    expected |= {
        (c.NFS_EVENTS.name, (*KEY, event)): ALL_EVENTS.index(event) for event in REPORTED_EVENTS
    }
    assert found == expected


def test_a_mount_over_rdma_has_fields_of_its_own() -> None:
    found = numbers(read_once(NfsSource(), host_with(mount(xprt=(RDMA,), proto="rdma"))).frame)
    key = (*KEY[:2], "rdma")
    ours = {
        name: value for (name, about), value in found.items() if about == key and "rdma" in name
    }
    assert ours == {
        "railscope_nfs_rdma_request_bytes_total": 4000,
        "railscope_nfs_rdma_reply_bytes_total": 5000,
        "railscope_nfs_rdma_copied_bytes_total": 130,
        "railscope_nfs_rdma_failed_marshals_total": 9,
        "railscope_nfs_rdma_bad_replies_total": 10,
        "railscope_nfs_rdma_recycled_regions_total": 12,
        "railscope_nfs_rdma_orphaned_regions_total": 13,
        "railscope_nfs_rdma_send_queue_full_total": 16,
        "railscope_nfs_rdma_reply_waits_total": 17,
    }
    assert found["railscope_nfs_transport_requests_total", key] == 500


def test_several_connections_are_summed_up() -> None:
    frame = read_once(NfsSource(), host_with(mount(xprt=(TCP, TCP, TCP)))).frame
    assert numbers(frame)["railscope_nfs_transport_requests_total", KEY] == 3 * 6428
    assert frame is not None
    facts = {entity.key: entity.facts for _, entity, _ in frame.readings()}
    assert facts[KEY] == {"version": "4.2", "security": "krb5p", "connections": "3"}


def test_kernels_without_errors_and_with_times_below_zero() -> None:
    lines = f"\t       WRITE: 1 1 0 100 200 {SILLY} 5 6\n"
    found = readings(read_once(NfsSource(), host_with(mount(operations=lines))).frame)
    about = (*KEY, "WRITE")
    assert found["railscope_nfs_queue_seconds_total", about] is Absent.ERROR
    assert found["railscope_nfs_response_seconds_total", about] == 5
    assert ("railscope_nfs_operation_errors_total", about) not in found


def mounted(place: str, file_system: str = "0:51") -> str:
    """A line of mountinfo."""
    return f"99 28 {file_system} / {place} rw,relatime shared:7 - nfs4 filer:/data rw,vers=4.2\n"


def test_a_file_system_mounted_several_times_is_reported_once() -> None:
    places = ["/data", "/pods/one", "/pods/two\\040words", "/other"]
    info = "".join(mounted(place) for place in places[:3]) + mounted(places[3], "0:52")
    host = host_with(*(mount(place=place) for place in places), info=info)
    outcome = read_once(NfsSource(), host)
    found = numbers(outcome.frame)
    assert found["railscope_nfs_mounts", ()] == 2
    assert found["railscope_nfs_unread_mounts", ()] == 0
    assert {key[1] for _, key in found if key} == {"/data", "/other"}
    assert outcome.findings[0].detail == "2 file systems, 2 further mounts of them"


def test_mounts_stacked_on_one_mount_point_are_distinguished() -> None:
    """Two exports, one over the other: mountinfo lists both at the same place, in the same order."""
    info = mounted("/data", "0:51") + mounted("/data", "0:52") + mounted("/again", "0:51")
    read = "\t        READ: {} 12 1 2080 40960 5 60 70 2\n"
    host = host_with(
        mount("filer:/old", operations=read.format(1)),
        mount("filer:/new", operations=read.format(2)),
        mount("filer:/old", "/again", operations=read.format(1)),
        info=info,
    )
    outcome = read_once(NfsSource(), host)
    found = numbers(outcome.frame)
    operations = "railscope_nfs_operations_total"
    assert {label[1]: n for label, n in found.items() if label[0] == operations} == {
        ("filer:/old", "/data", "tcp", "READ"): 1,
        ("filer:/new", "/data", "tcp", "READ"): 2,
    }
    assert (found["railscope_nfs_mounts", ()], found["railscope_nfs_unread_mounts", ()]) == (2, 0)


def test_of_mounts_with_equal_names_the_uppermost_counts() -> None:
    info = mounted("/data", "0:51") + mounted("/data", "0:52")
    read = "\t        READ: {} 12 1 2080 40960 5 60 70 2\n"
    host = host_with(mount(operations=read.format(1)), mount(operations=read.format(2)), info=info)
    reader = SourceReader(NfsSource(), host, ORIGIN)
    for _ in range(2):
        found = numbers(reader.run().frame)
        assert found["railscope_nfs_operations_total", (*KEY, "READ")] == 2
        assert found["railscope_nfs_mounts", ()] == 2
        assert found["railscope_nfs_unread_mounts", ()] == 1


def test_mounts_beyond_the_bound_are_counted() -> None:
    host = host_with(*(mount(place=f"/data/{i}") for i in range(MAX_MOUNTS + 3)))
    outcome = read_once(NfsSource(), host)
    found = numbers(outcome.frame)
    assert found["railscope_nfs_mounts", ()] == MAX_MOUNTS + 3
    assert found["railscope_nfs_unread_mounts", ()] == 3
    assert len({key[1] for _, key in found if key}) == MAX_MOUNTS
    assert "3 beyond the first 16 are omitted" in outcome.findings[0].detail


def test_mounts_come_and_go() -> None:
    host = host_with()
    reader = SourceReader(NfsSource(), host, ORIGIN)
    outcome = reader.run()
    assert outcome.frame is None
    assert outcome.findings[0].verdict is ProbeVerdict.ABSENT
    host.files[MOUNTSTATS] = mount()
    reader.run()
    assert numbers(reader.run().frame)["railscope_nfs_mounts", ()] == 1
    host.files[MOUNTSTATS] = mount(place="/new")
    found = readings(reader.run().frame)
    assert found["railscope_nfs_mount_age_seconds", KEY] is Absent.GONE
    assert found["railscope_nfs_unread_mounts", ()] == 1, "not reported before the next probe"
    host.clock.advance(6)
    assert ("railscope_nfs_mount_age_seconds", (KEY[0], "/new", "tcp")) in numbers(
        reader.run().frame
    )


def test_a_file_that_cannot_be_read_costs_all_readings() -> None:
    host = host_with(mount())
    reader = SourceReader(NfsSource(), host, ORIGIN)
    reader.run()
    host.files[MOUNTSTATS] = DENIED
    assert set(readings(reader.run().frame).values()) == {Absent.DENIED}


def test_nothing_but_the_two_files_is_touched() -> None:
    class ReadTrackingHost(FakeHost):
        touched: set[str]

        def read(self, path: str) -> bytes:
            self.touched.add(path)
            return super().read(path)

    host = ReadTrackingHost()
    host.touched = set()
    host.files[MOUNTSTATS] = mount()
    read_once(NfsSource(), host)
    assert host.touched == {
        f"{process}/{file}"
        for process in (FIRST_PROCESS, OWN_PROCESS)
        for file in ("mountstats", "mountinfo")
    }
    assert not host.asked


# Mounts of other processes
# -------------------------------------------------------------------------------------


def test_the_mounts_of_the_first_process_are_those_of_the_machine() -> None:
    host = host_with()  # /home is hidden from the agent itself
    host.files[f"{FIRST_PROCESS}/mountstats"] = mount(place="/home")
    host.files[f"{FIRST_PROCESS}/mountinfo"] = mounted("/home")
    outcome = read_once(NfsSource(), host)
    found = numbers(outcome.frame)
    assert found["railscope_nfs_mount_age_seconds", ("filer:/data", "/home", "tcp")] == 13968
    assert found["railscope_nfs_unread_mounts", ()] == 0


@pytest.mark.parametrize("own", [[], ["/data"]])
def test_mounts_hidden_from_the_agent_are_counted(own: list[str]) -> None:
    host = host_with(*(mount(place=place) for place in own))
    host.files[f"{FIRST_PROCESS}/mountstats"] = DENIED
    host.files[f"{FIRST_PROCESS}/mountinfo"] = mounted("/home", "0:60") + mounted("/data")
    host.files[MOUNTINFO] = "".join(mounted(place) for place in own)
    outcome = read_once(NfsSource(), host)
    found = numbers(outcome.frame)
    assert found["railscope_nfs_mounts", ()] == 2
    assert found["railscope_nfs_unread_mounts", ()] == 2 - len(own)
    hidden = outcome.findings[-1]
    assert hidden.verdict is ProbeVerdict.DENIED
    assert "ProtectHome" in hidden.remedy


# The parser ---------------------------------------------------------------------------------------


def test_every_number_of_the_copied_machine(tmp_path_factory: pytest.TempPathFactory) -> None:
    root = server_tree(tmp_path_factory)
    lines = (root / "proc/26231/mountstats").read_text().splitlines()
    counters = {
        line.split()[0].rstrip(":"): line.split()[1:] for line in lines if line.startswith("\t")
    }
    key = ("192.168.1.1:/srv/test", "/mnt/nfs/test", "tcp")
    expected: dict[Label, float] = {
        ("railscope_nfs_mounts", ()): 1,
        ("railscope_nfs_unread_mounts", ()): 0,
        ("railscope_nfs_mount_age_seconds", key): int(counters["age"][0]),
    }
    for metric, value in zip(c.NFS_BYTES, counters["bytes"], strict=True):
        expected[metric.name, key] = int(value)
    for event, value in zip(ALL_EVENTS, counters["events"], strict=True):
        if event in REPORTED_EVENTS:
            expected[c.NFS_EVENTS.name, (*key, event)] = int(value)
    _, _, _, connects, _, _, sends, receives, bad, requests, backlog, *_ = counters["xprt"]
    for part, value in (
        ("connects", connects), ("sends", sends), ("receives", receives), ("bad_xids", bad),
        ("in_flight", requests), ("backlog", backlog),
    ):  # fmt: skip
        expected[c.NFS_TRANSPORT[part].name, key] = int(value)
    for operation in set(OPERATIONS) & set(counters):
        for field, value in zip(OPERATION_FIELDS, counters[operation], strict=False):
            scale = 1000 if c.NFS_OPERATIONS[field].unit == "seconds" else 1
            expected[c.NFS_OPERATIONS[field].name, (*key, operation)] = int(value) / scale
    silly = (c.NFS_OPERATIONS["queue"].name, (*key, "ACCESS"))
    assert expected.pop(silly) == SILLY / 1000
    frame = read_once(NfsSource(), LiveHost(root)).frame
    assert readings(frame)[silly] is Absent.ERROR
    assert numbers(frame) == expected


@given(st.floats(0, 1))
def test_a_file_cut_short_makes_nothing_up(share: float) -> None:
    whole = (mount() + mount(place="/two", xprt=(TCP, RDMA))).encode()
    everything = {m.mount_point: m for m in parse_mountstats(whole)}
    for found in parse_mountstats(whole[: round(len(whole) * share)]):
        known = everything[found.mount_point].values
        summed = {key for key in found.values if key[0] == "transport"}
        assert {k: v for k, v in found.values.items() if k not in summed}.items() <= known.items()
        assert found.values.keys() <= known.keys()


@given(
    st.lists(st.sampled_from([*mount().splitlines(), "\txprt:", "\tevents:\tx 1", "\t: 1", "x"]))
)
def test_lines_in_any_order_are_not_a_fault(lines: list[str]) -> None:
    host = host_with("\n".join(lines) + "\n")
    assert read_once(NfsSource(), host).problem == ""


@given(st.binary(max_size=300))
def test_an_invalid_message_is_not_a_fault(content: bytes) -> None:
    parse_mountstats(content)
    parse_superblocks(content)


@given(st.text("ab \t\n\\/é", max_size=20))
def test_names_come_back_as_they_were(name: str) -> None:
    escaped = "".join(rf"\{ord(char):03o}" if char in " \t\n\\" else char for char in name)
    assert decode_octal_escapes(escaped) == name


def test_this_machine() -> None:
    shown = Path(MOUNTSTATS).read_text()
    outcome = read_once(NfsSource(), LiveHost())
    assert outcome.problem == ""
    assert (outcome.frame is not None) == (
        " with fstype nfs statvers" in shown or " nfs4 " in shown
    )
