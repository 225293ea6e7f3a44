"""Number of series of a collector: few of its own, and few for each node."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from running_collector import RunningCollector, run_collector, settings_in

from railscope.batch_encoding import encode_batches
from railscope.frame import Frame
from railscope.wire import SentAt, envelope, pack, to_wire_schema
from railscope_agent.config import AgentSettings
from railscope_agent.host.recorded_clock import RecordedClock
from railscope_agent.host.recorded_host import RecordedHost
from railscope_agent.service import Agent
from railscope_collector.access.credentials import digest_token
from railscope_collector.config import IngestLimits
from railscope_simulator import NodeSpec, simulate

MAX_OWN, MAX_OF_A_NODE, MAX_OF_FIVE = 1200, 60, 1500
NICS = ("cx7", "cx7", "mixed", "irdma", "bnxt")
SECOND = 1_000_000_000


async def frames_of(spec: NodeSpec) -> list[list[Frame]]:
    """Return the frames of all sources of an agent on a simulated node, at two seconds."""
    capture = simulate(spec, 2, 1)
    clock = RecordedClock(capture.about)
    host = RecordedHost(capture, clock, lambda: clock.offset_ns)
    agent = Agent(AgentSettings(node=spec.node), host, spec.node)
    found = []
    for second in (1, 2):
        clock.go_to(second * SECOND)
        await agent.once()
        frames = [status.frame for status in agent.sampler.statuses.values()]
        found.append([frame for frame in frames if frame])
    return found


async def post(one: RunningCollector, frames: list[Frame]) -> None:
    newest = max(frames, key=lambda frame: frame.timestamp.boot_ns)
    wire = [to_wire_schema(frame.schema) for frame in frames]
    body = pack(envelope(newest.origin, encode_batches(frames), wire, agent_version="test"))
    timestamp = newest.timestamp
    sent = SentAt(timestamp.wall_ns, timestamp.boot_ns, newest.origin.boot_id).to_headers()
    status, reply = await one.post(body, node=newest.origin.node, headers=sent)
    assert status == 200, reply


async def series(one: RunningCollector, reporting: str) -> list[str]:
    """Return the series of /metrics once the view contains that many reporting nodes."""
    async with asyncio.timeout(60):
        while True:
            _, text = await one.get("/metrics")
            lines = [line for line in text.splitlines() if not line.startswith("#")]
            if reporting in lines:
                return lines
            await asyncio.sleep(0.05)


@pytest.mark.thorough
async def test_a_collector_of_five_nodes_has_few_series(tmp_path: Path) -> None:
    names = [f"n{number}" for number in range(1, 6)]
    tokens = [f'{name} = "{digest_token("token-" + name)}"' for name in names]
    reader = f'[operators]\nreader = "{digest_token("token-reader")}"'
    tokens_file = str(tmp_path / "nodes.toml")
    Path(tokens_file).write_text("\n".join(["[nodes]", *tokens, reader, ""]))
    async with run_collector(
        settings_in(tmp_path, limits=IngestLimits(), tokens_file=tokens_file)
    ) as running:
        nodes = zip(names, NICS, strict=True)
        reports = [await frames_of(NodeSpec(n, s, nic=nic)) for s, (n, nic) in enumerate(nodes)]
        for turn in (0, 1):
            for report in reports:
                await post(running, report[turn])
        lines = await series(running, "railscope_cluster_nodes_reporting 5")
    assert "railscope_cluster_sum_gpu_power_watts" in {line.split(" ")[0] for line in lines}
    of_nodes = [line for line in lines if 'node="' in line]
    assert len(lines) <= MAX_OF_FIVE
    assert len(of_nodes) <= MAX_OF_A_NODE * len(names)
    assert len(lines) - len(of_nodes) <= MAX_OWN
