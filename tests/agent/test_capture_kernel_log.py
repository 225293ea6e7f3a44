"""Kernel logs of real incidents: every message found, none invented."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from support.clock import NS, ManualClock
from support.machine import FakeHost
from support.reading import ORIGIN, numbers
from support.shared import capture_path

from railscope.frame import Event, Frame, NodeTimestamp
from railscope_agent.sampling.source_reader import SourceReader
from railscope_agent.streams.kernel_log import KernelLogStream
from railscope_agent.streams.kernel_messages import parse_kernel_message, strip_log_prefix

# Plain patterns, made from the lines and not from our parser.
XID = re.compile(r"Xid \(PCI:[^)]*\): (\d+)")
# Message of IPv6 about a link that its driver has reported as up: not a separate event.
READY = re.compile(r"ADDRCONF\(NETDEV_CHANGE\): \S+: link becomes ready")
AFTER_THE_LOGS = NodeTimestamp(wall_ns=1_790_000_000 * NS, boot_ns=100_000_000 * NS)
FOLLOW_UPS = ("Severity ", "Data {")
LOGS = [
    "azure-1dev_6flap_syslog",
    "dmesg_dmesg-time-format-iso.log",
    "dmesg_dmesg.decode.iso.log.0",
    "dmesg_journalctl-time-format-short-iso-2.log",
    "kmsg_kmsg.1.log",
    "kmsg_kmsg.2.peermem.log",
    "nccl_dmesg.decode.iso.log",
    "query_log_tail_fabric-manager.0.log",
]


def quoted_lines() -> list[dict[str, str]]:
    """Return the lines quoted by other projects: kind, code, class, line, origin."""
    table = capture_path("kernel-log/xid-sxid-lines.tsv").read_text().splitlines()
    head, *rows = (line.split("\t") for line in table)
    return [dict(zip(head, row, strict=True)) for row in rows]


def lines_of(name: str) -> list[str]:
    return capture_path(f"kernel-log/{name}").read_text(errors="replace").splitlines()


def follow_log(lines: list[str]) -> tuple[Frame, list[Event]]:
    """Return the last frame and all events of a log, after every message has its column."""
    host = FakeHost(ManualClock(AFTER_THE_LOGS))
    reader = SourceReader(KernelLogStream(), host, ORIGIN)
    host.log.waiting = list(lines)
    frames = [reader.run().frame for _ in range(3)]
    events = [event for frame in frames if frame for event in frame.events]
    last = frames[-1]
    assert last is not None
    return last, events


def is_follow_up(row: dict[str, str]) -> bool:
    return (
        row["kind"] == "SXid"
        and f"{row['code']}, " in row["line"]
        and any(f"{row['code']}, {follow_up}" in row["line"] for follow_up in FOLLOW_UPS)
    )


def test_every_quoted_xid_and_sxid_is_understood() -> None:
    for row in quoted_lines():
        message = parse_kernel_message(strip_log_prefix(row["line"]))
        if is_follow_up(row):
            assert message is None, row["line"]
            continue
        assert message is not None, row["line"]
        assert message.event_class.name == row["kind"].lower(), row["line"]
        assert message.entity.key[1] == row["code"].lstrip("0"), row["line"]


def test_quoted_lines_are_counted_as_a_stream() -> None:
    rows = quoted_lines()
    wanted = Counter(row["kind"] for row in rows if not is_follow_up(row))
    frame, events = follow_log([row["line"] for row in rows])
    found = numbers(frame)
    assert found["railscope_kernel_xids_total", ()] == wanted["Xid"]
    assert found["railscope_kernel_sxids_total", ()] == wanted["SXid"]
    assert Counter(event.event_class.name for event in events) == {
        "xid": wanted["Xid"],
        "sxid": wanted["SXid"],
    }
    by_gpu = [v for (name, _), v in found.items() if name == "railscope_gpu_xid_errors_total"]
    assert sum(by_gpu) == wanted["Xid"]


def test_follow_up_lines_are_there_and_left_out() -> None:
    """One error of a switch takes several lines; it is one error."""
    assert sum(is_follow_up(row) for row in quoted_lines()) == 2


@pytest.mark.parametrize("name", LOGS)
def test_a_log_gives_the_results_of_a_plain_search(name: str) -> None:
    lines = lines_of(name)
    frame, events = follow_log(lines)
    found = numbers(frame)
    xids = Counter(match[1] for line in lines if (match := XID.search(line)))
    assert found["railscope_kernel_log_records_total", ()] == len(lines)
    assert found["railscope_kernel_xids_total", ()] == xids.total()
    counted: Counter[str] = Counter()
    for (metric, key), value in found.items():
        if metric == "railscope_gpu_xid_errors_total":
            counted[key[1]] += int(value)
        assert metric != "railscope_kernel_link_changes_total"
    assert counted == xids
    event_counts = Counter(event.event_class.name for event in events)
    assert event_counts == Counter({"xid": xids.total()}) - Counter()


def test_the_logs_contain_the_tested_messages() -> None:
    assert Counter(
        match[1] for name in LOGS for line in lines_of(name) if (match := XID.search(line))
    ) == {"13": 629, "43": 7, "48": 1, "63": 1, "94": 9}
    assert sum(bool(READY.search(line)) for name in LOGS for line in lines_of(name)) > 50
    missing = {file.name for file in capture_path("kernel-log").iterdir()} - set(LOGS)
    assert missing == {"xid-sxid-lines.tsv"}


def test_messages_of_the_network_service_are_not_kernel_messages() -> None:
    """systemd-networkd logged six losses of ib6; the kernel counts them in carrier_changes."""
    lines = lines_of("azure-1dev_6flap_syslog")
    assert sum("ib6: lost carrier" in line for line in lines) == 6
    assert [
        message for line in lines if (message := parse_kernel_message(strip_log_prefix(line)))
    ] == []


def test_records_of_the_device_carry_their_own_time() -> None:
    heads = [line.split(";", 1)[0] for line in lines_of("kmsg_kmsg.1.log")]
    xid = next(row["line"] for row in quoted_lines() if row["kind"] == "Xid")
    records = [f"{head};{xid}" for head in heads]
    _, events = follow_log(records)
    assert [event.boot_ns for event in events] == [
        int(record.split(",")[2]) * 1000 for record in records
    ]
    assert len({event.wall_ns - event.boot_ns for event in events}) == 1
