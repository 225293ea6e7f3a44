"""Draining in Slurm by several collectors with one database: only the head changes nodes, and the next one continues."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from makers import SECOND, START_BOOT_NS, FrameSender
from running_collector import RunningCollector, run_collector
from support.postgresql import PostgreSQL
from test_cluster_head import settings_of, until_head, until_true

from railscope.catalog.entities import GPU
from railscope.catalog.gpu_health import GPU_HEALTH
from railscope.frame import Entity, Schema
from railscope.wire import SentAt
from railscope_collector.config import SlurmSettings
from railscope_collector.sinks.slurm_drain import NODES

FAILED = 3


@pytest.fixture
def database(server: PostgreSQL) -> Iterator[str]:
    url = server.database()
    yield url
    server.drop(url)


@dataclass
class SharedSlurm:
    """Nodes of Slurm, and what each collector did."""

    states: dict[str, str]
    queries: list[str] = field(default_factory=list)
    """Collectors that queried the nodes."""
    changes: list[tuple[str, str]] = field(default_factory=list)
    """Collectors that changed a node, and the node."""

    def run_by(self, name: str) -> Callable[[Sequence[str]], str]:
        def run(command: Sequence[str]) -> str:
            if tuple(command) == NODES:
                self.queries.append(name)
                return "".join(f"{node}|{state}\n" for node, state in self.states.items())
            node = command[2].removeprefix("NodeName=")
            self.changes.append((name, node))
            self.states[node] = f"drained|{time.time():.0f}|{command[4].removeprefix('Reason=')}"
            return ""

        return run

    def prepare(self, name: str) -> Callable[[RunningCollector], None]:
        """Return what makes a collector drain nodes here, ten times per second."""

        def ready(one: RunningCollector) -> None:
            drainer = one.collector.drainer
            drainer.settings = SlurmSettings(
                drain=True, failed_seconds=0, max_drained_ratio_per_hour=1, max_drained_ratio=1
            )
            drainer.run_program, drainer.period_seconds = self.run_by(name), 0.1

        return ready


async def report_failure(one: RunningCollector, node: str) -> None:
    """Send the verdict that the GPU of a node has failed."""
    gpu = Entity(GPU, (f"GPU-{node}",), {"rail": "0", "index": "0"})
    sender = FrameSender(node)
    frames = sender.frames(Schema("gpu_verdict", ((GPU_HEALTH, gpu),)), [[FAILED]], at=1)
    sent = SentAt(time.time_ns(), START_BOOT_NS + SECOND, "boot-1").to_headers()
    body = sender.body(frames, schemas=True)
    status, reply = await one.post(body, node=node, headers=sent)
    assert status == 200, reply


async def test_only_the_head_drains_and_the_next_one_respects_what_an_operator_resumed(
    tmp_path: Path, database: str
):
    idle = "idle|Unknown|none"
    slurm = SharedSlurm(dict.fromkeys(("n1", "n2", "n3"), idle))
    async with AsyncExitStack() as stack, AsyncExitStack() as first:
        collectors = {}
        for name, until in (("a", first), ("b", stack)):
            settings = settings_of(tmp_path, name, database)
            running = run_collector(settings, slurm.prepare(name))
            collectors[name] = await until.enter_async_context(running)
            await until_head(collectors[name].collector.cluster)
        await report_failure(collectors["a"], "n1")
        await report_failure(collectors["b"], "n2")
        await until_true(lambda: len(slurm.changes) == 2)
        assert set(slurm.changes) == {("a", "n1"), ("a", "n2")}
        slurm.states["n2"] = idle
        queries = len(slurm.queries)
        await until_true(lambda: len(slurm.queries) > queries + 10)
        assert set(slurm.queries) == {"a"}
        for name, number in (("a", 1), ("b", 0)):
            _, metrics = await collectors[name].get("/metrics")
            resumed = 'railscope_collector_slurm_waiting_nodes{reason="resumed"} 1\n'
            assert metrics.count(resumed) == number, name
        await first.aclose()
        await report_failure(collectors["b"], "n3")
        await until_true(lambda: len(slurm.changes) == 3)
        queries = len(slurm.queries)
        await until_true(lambda: len(slurm.queries) > queries + 10)
        assert slurm.changes[2:] == [("b", "n3")]
        assert slurm.states["n2"] == idle
        states = {row.node: row.state for row in collectors["b"].collector.drainer.rows()}
        assert states["n2"] == "failed"
