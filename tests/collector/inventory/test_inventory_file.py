"""The inventory file: its content at each time, and the line and column of an error."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, strategies as st

from railscope.timestamps import FOREVER_NS
from railscope_collector.files.inventory_file import (
    INVENTORY_HEADER,
    DeviceInventory,
    ExpectedDevices,
    parse_inventory,
)
from railscope_collector.files.watched_file import FileError

HEAD = ",".join(INVENTORY_HEADER) + "\n"
START = 1_767_225_600 * 10**9


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "line 1: invalid header: expected node,gpus,rdma_ports,from,to"),
        (
            HEAD + "n1,8,2026-01-01T00:00:00Z,\n",
            "line 2: .*: expected node,gpus,rdma_ports,from,to",
        ),
        (HEAD + ",8,8,2026-01-01T00:00:00Z,\n", "line 2: empty node"),
        (
            HEAD + "n1,eight,8,2026-01-01T00:00:00Z,\n",
            "line 2, gpus: 'eight': expected a whole number",
        ),
        (
            HEAD + "n1,8,-1,2026-01-01T00:00:00Z,\n",
            "line 2, rdma_ports: '-1': expected a whole number",
        ),
        (HEAD + "n1,8,10001,2026-01-01T00:00:00Z,\n", "line 2, rdma_ports: '10001'"),
        (HEAD + "n1,\u0668,8,2026-01-01T00:00:00Z,\n", "line 2, gpus:"),
        (HEAD + "n1,8,8,today,\n", "line 2, from: invalid time 'today'"),
        (
            HEAD + "# rack 7\nn1,8,8,2026-01-01T00:00:00Z,never\n",
            "line 3, to: invalid time 'never'",
        ),
        (HEAD + "n1,8,8,2026-01-01T00:00:00Z,2026-01-01T00:00:00Z\n", "line 2, to: invalid span"),
        (HEAD + "n1,8,8,2026-01-01T00:00:00,\n", "line 2, from: invalid time .* with an offset"),
        (
            HEAD + "n1,8,8,2026-01-01T00:00:00Z,\nn1,4,4,2026-01-01T01:00:00+01:00,\n",
            "line 3: duplicate row of n1",
        ),
    ],
)
def test_a_wrong_line_and_column_is_named(text: str, problem: str):
    with pytest.raises(FileError, match=problem):
        parse_inventory(text)


def spelled(timestamp_ns: int) -> str:
    if timestamp_ns == FOREVER_NS:
        return ""
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=timestamp_ns // 1000)
    return moment.isoformat()


def as_text(inventory: DeviceInventory) -> str:
    """The inventory as an administrator would write it."""
    lines = [
        ",".join([
            row.node,
            "" if row.gpus is None else str(row.gpus),
            "" if row.rdma_ports is None else str(row.rdma_ports),
            spelled(row.start_ns),
            spelled(row.end_ns),
        ])
        for row in inventory
    ]  # fmt: skip
    return HEAD + "\n".join(lines)


counts = st.none() | st.integers(0, 64)
micros = st.integers(0, 10**9).map(lambda n: START + n * 1000)


@st.composite
def rows(draw: st.DrawFn) -> ExpectedDevices:
    start = draw(micros)
    end = draw(st.just(FOREVER_NS) | st.integers(1, 10**9).map(lambda n: start + n * 1000))
    return ExpectedDevices(
        start, end, draw(st.sampled_from(["n1", "n2", "gpu-3"])), draw(counts), draw(counts)
    )


@given(st.lists(rows(), max_size=8, unique_by=lambda row: (row.node, row.start_ns)), micros)
def test_what_is_written_is_what_is_read(found: list[ExpectedDevices], timestamp_ns: int):
    inventory = DeviceInventory.from_rows(found)
    assert parse_inventory(as_text(inventory)) == inventory
    at = inventory.expected_devices(timestamp_ns)
    for node in ("n1", "n2", "gpu-3"):
        in_force = [r for r in found if r.node == node and r.start_ns <= timestamp_ns < r.end_ns]
        assert at.get(node) == max(in_force, key=lambda row: row.start_ns, default=None)
