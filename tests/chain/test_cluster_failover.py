"""Collectors and a database server fail under a simulated cluster; the ledger does not differ."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from simulator.failover.database_pair import DatabaseServerError, find_program

NODES, SECONDS = 6, 60


@pytest.mark.timeout(600)
def test_the_ledger_is_that_of_one_collector_that_received_everything(tmp_path: Path) -> None:
    try:
        find_program("initdb")
    except DatabaseServerError as error:
        pytest.skip(str(error))
    command = [sys.executable, "-P", "-m", "simulator.failover", "--directory", str(tmp_path)]
    command += ["--nodes", str(NODES), "--seconds", str(SECONDS)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    rows = (tmp_path / "ledger.jsonl").read_text().splitlines()
    assert rows == sorted(rows)
    assert rows == (tmp_path / "reference.jsonl").read_text().splitlines()
    assert ended.stdout.splitlines()[-1] == f"books: {len(rows)} rows, 0 differences"
    entries = [json.loads(row) for row in rows if json.loads(row)["part"] == "entries"]
    assert len({entry["gpu"] for entry in entries}) == NODES * 8
