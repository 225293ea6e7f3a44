"""The cost of a replay is measured separately and does not count against the budget of the agent."""

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
from railscope_agent.service import Agent
from railscope.exposition import TextFormat

async def main():
    host, node = running_host(Path("/"), Path(sys.argv[1]))
    agent = Agent(AgentSettings(), host, node)
    for _ in range(int(sys.argv[2])):
        await agent.once()
        for form in TextFormat:
            agent.endpoint.text(form)
            agent.endpoint.dcgm_text(form)
    print(agent.keeper.meter.resident_bytes(), host.cost.resident_bytes)

asyncio.run(main())
"""


@pytest.mark.thorough
def test_an_agent_of_eight_gpus_and_ten_nics_keeps_its_memory_bound(tmp_path: Path) -> None:
    """With default settings, for any request and any size of the capture."""
    capture = simulate(NodeSpec("n1"), 24, 1.0)
    write_capture(tmp_path / "capture", capture.about, capture.moments)
    command = [sys.executable, "-c", LONG_RUN, str(tmp_path / "capture"), "12"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    own, replay = map(int, done.stdout.splitlines()[-1].split())
    assert own <= AgentSettings().budget.memory_bytes
    assert replay >= 5 * MIB, "the capture is not the agent's"
