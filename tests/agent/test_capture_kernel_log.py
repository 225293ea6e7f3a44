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
AFTER_THE_LOGS = NodeTimestamp(wall_ns=1_790_000_000 * NS, boot_ns=100_000_000 * NS)
FOLLOW_UPS = ("Severity ", "Data {")
LOGS = [
    "azure-1dev_6flap_syslog",
    "dmesg_dmesg.decode.iso.log.0",
    "kmsg_kmsg.2.peermem.log",
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
