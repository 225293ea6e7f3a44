"""Collectors, links and a database server fail under a simulated cluster; nothing that is recorded differs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.failover.comparisons import compare_statements
from tests.failover.database_pair import DatabaseServerError, find_program

NODES, SECONDS = 6, 60


def run(directory: Path, *options: str) -> list[str]:
    """Run to the end; return the lines of standard output."""
    try:
        find_program("initdb")
    except DatabaseServerError as error:
        pytest.skip(str(error))
    command = [
        sys.executable,
        "-P",
        "-m",
        "tests.failover",
        "--directory",
        str(directory),
    ]
    command += ["--nodes", str(NODES), "--seconds", str(SECONDS), *options]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout.splitlines()


@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_ledger_and_statements_are_those_of_one_collector_that_received_everything(tmp_path: Path):
    lines = run(tmp_path)
    rows = (tmp_path / "ledger.jsonl").read_text().splitlines()
    assert rows == sorted(rows)
    assert rows == (tmp_path / "reference.jsonl").read_text().splitlines()
    assert lines[-1] == f"books: {len(rows)} rows, 0 differences"
    entries = [json.loads(row) for row in rows if json.loads(row)["part"] == "entries"]
    assert len({entry["gpu"] for entry in entries}) == NODES * 8
    for pattern in (
        r"lease: the late write of collector \w, with epoch \d+, was rejected",
        r"closed period: 2 statements with \d{2,} lines, 0 differences",
        r"audit log: consistent: \d+ records, \d checkpoints",
        r"audit records of the ledger: \d+ .*1 billing.close.*, 0 differences",
    ):
        assert any(re.match(pattern, line) for line in lines), (pattern, lines)
    assert_that_differences_are_found(tmp_path)


def assert_that_differences_are_found(directory: Path) -> None:
    """Compare the run with an altered statement."""
    statements = {
        path.stem: path.read_bytes() for path in (directory / "statements-a").glob("*.json")
    }
    altered = {tenant: text.replace(b"0", b"1", 1) for tenant, text in statements.items()}
    assert compare_statements(statements, statements).differences == 0
    assert compare_statements(altered, statements).differences == len(statements)
    assert compare_statements({}, {}).differences == 1, "nothing was compared"


@pytest.mark.thorough
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(3))
def test_nothing_differs_after_drawn_failures(tmp_path: Path, seed: int):
    assert run(tmp_path, "--seed", str(seed))[-1].endswith(" rows, 0 differences")
