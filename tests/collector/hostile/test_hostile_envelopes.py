"""Hostile envelopes against a real collector, each attack in its own process.

The limits are far above what is needed (most attacks cost less than 0.1 s of CPU time) and far below
what an algorithm that is not linear needs: the first attack took 922 s.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hostile import measure
from hostile.generators import ATTACKS
from support.fork_server import ForkServer

MAX_CPU_SECONDS = 2.0
"""Of one envelope, accepted or rejected."""
MAX_LOOP_SECONDS = 0.5
"""Of CPU time without a turn for other requests."""
MAX_MEMORY_MIB = {"giant_events": 100, "large_shapes": 150}
MAX_DISK_MIB = 30
EACH_KIND = {"frames_far_apart", "claims_without_end", "large_shapes", "a_bomb_without_its_size", "huge_numbers", "a_window_of_two_gibibytes"}  # fmt: skip
"""Attacks by time, events, schemas, compression, numbers and memory."""


@cache
def server() -> ForkServer:
    return ForkServer(str(Path(measure.__file__)))


@pytest.mark.parametrize(
    "name",
    [
        name if name in EACH_KIND else pytest.param(name, marks=pytest.mark.thorough)
        for name in ATTACKS
    ],
)
def test_a_hostile_envelope_costs_little_and_others_are_served(tmp_path: Path, name: str):
    status, output = server().run(str(tmp_path), name)
    assert status == 0, output
    found: dict[str, Any] = json.loads((tmp_path / measure.RESULT).read_text())
    assert max(found["cpu_seconds"]) < MAX_CPU_SECONDS, found
    assert found["longest_seconds"] < MAX_LOOP_SECONDS, found
    assert found["memory_mib"] < MAX_MEMORY_MIB.get(name, 200), found
    assert found["disk_mib"] < MAX_DISK_MIB, found
    assert found["restart_cpu_seconds"] < MAX_CPU_SECONDS * len(found["cpu_seconds"]), found
    assert (found["faults"], found["faults_at_restart"]) == (0, 0), found
    assert 500 not in found["statuses"], found
    assert found["neighbour"] == 200, "another node's envelope is acknowledged all the same"
