"""The inventory file: its content at each time, and the line and column of an error."""

from __future__ import annotations

import pytest

from railscope_collector.files.inventory_file import (
    INVENTORY_HEADER,
    parse_inventory,
)
from railscope_collector.files.watched_file import FileError

HEAD = ",".join(INVENTORY_HEADER) + "\n"


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
