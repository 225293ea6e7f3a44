"""Resident memory of an agent with its default settings."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from railscope.capture import write_capture
from railscope_agent.config import AgentSettings
from railscope_simulator import NodeSpec, simulate

MIB = 1 << 20


LONG_RUN = """
import asyncio, sys
from pathlib import Path
from railscope_agent.commands.run import running_host
from railscope_agent.config import AgentSettings
from railscope_agent.sampling.meter import ProcessMeter
from railscope_agent.service import Agent
from railscope.exposition import TextFormat

async def main():
    meter = ProcessMeter()
    meter.release_memory()
    before = meter.resident_bytes()
    host, node = running_host(Path("/"), Path(sys.argv[1]))
    meter.release_memory()
    of_capture = meter.resident_bytes() - before
    agent = Agent(AgentSettings(), host, node)
    for _ in range(int(sys.argv[2])):
        await agent.once()
        for form in TextFormat:
            agent.endpoint.text(form)
            agent.endpoint.dcgm_text(form)
    print(meter.resident_bytes() - of_capture, of_capture)

asyncio.run(main())
"""


@pytest.mark.thorough
def test_an_agent_of_eight_gpus_and_ten_nics_keeps_its_memory_bound(tmp_path: Path) -> None:
    """With default settings, for any request and any size of the capture."""
    capture = simulate(NodeSpec("n1"), 24, 1.0)
    write_capture(tmp_path / "capture", capture.about, capture.moments)
    command = [sys.executable, "-c", LONG_RUN, str(tmp_path / "capture"), "12"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    own, of_capture = map(int, done.stdout.splitlines()[-1].split())
    assert own <= AgentSettings().budget.memory_bytes
    assert of_capture >= 5 * MIB, "the capture is not the agent's"
