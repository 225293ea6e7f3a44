"""Several collectors with one database: the head shows the nodes of all, and states whose it contains."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from makers import SECOND, START_BOOT_NS, START_WALL_NS, FrameSender, gpu_schema, rdma_schema
from running_collector import RunningCollector, run_collector, settings_in
from support import postgresql
from support.waiting import wait_until

from railscope.api.status import WORST_FIRST
from railscope.catalog.entities import CLAIM
from railscope.catalog.tenancy import CLAIM_START_EVENT
from railscope.frame import Entity, Event
from railscope.wire import SentAt
from railscope_agent.shipping import EventNumbering
from railscope_collector.access.credentials import digest_token
from railscope_collector.cluster_head import ClusterHead
from railscope_collector.config import (
    ClusterSettings,
    CollectorSettings,
    DiagnosisSettings,
    LedgerSettings,
    MeteringSettings,
)
from railscope_simulator.demo.process import free_port

NODES = ("n1", "n2", "n3", "n4", "n5", "n6")
SPLIT = {"a": ("n1", "n4"), "b": ("n2", "n6"), "c": ("n3", "n5")}
"""Nodes of each collector; the job has GPUs of n1 (a), n2 (b) and n3 (c)."""
IN_JOB = {"n1", "n2", "n3"}
PATIENCE_SECONDS = 60


@pytest.fixture
def database(server: postgresql.PostgreSQL) -> Iterator[str]:
    url = server.database()
    yield url
    server.drop(url)


def settings_of(directory: Path, name: str, url: str) -> CollectorSettings:
    """Settings of one of several collectors; without a URL of a database, of one that is alone."""
    own = directory / name
    own.mkdir()
    settings = settings_in(
        own,
        stale_seconds=300,
        metering=MeteringSettings(period_seconds=0.2),
        diagnosis=DiagnosisSettings(),
    )
    nodes = "".join(f'{node} = "{digest_token("token-" + node)}"\n' for node in NODES)
    (own / "tokens.toml").write_text(
        f'[nodes]\n{nodes}[operators]\nreader = "{digest_token("token-reader")}"\n'
        f'[tenants.red]\nred = "{digest_token("token-red")}"\n'
        f'[collectors]\nothers = "{digest_token("token-collector")}"\n'
    )
    if not url:
        return settings
    (own / "token").write_text("token-collector\n")
    address = f"127.0.0.1:{free_port()}"
    cluster = ClusterSettings(
        advertised_url=f"http://{address}", name=name, token_file=str(own / "token")
    )
    return msgspec.structs.replace(
        settings, listen=address, ledger=LedgerSettings(url=url), cluster=cluster
    )


@dataclass
class ReportingNode:
    """A node with two GPUs and two NICs; a job has the first GPU of some nodes."""

    name: str
    at: int = 0

    def __post_init__(self) -> None:
        self.sender = FrameSender(self.name)
        self.numbering = EventNumbering()

    def body(self) -> bytes:
        """Frames of three seconds."""
        first, number = self.at, NODES.index(self.name)
        self.at += 3
        rows = [
            [50 + number, 60, 1000 + number, 2000, 10 * t, 20 * t] for t in range(first, self.at)
        ]
        frames = self.sender.frames(gpu_schema(self.name), rows, at=first)
        if self.name in IN_JOB and not first:
            frames[0] = replace(frames[0], events=(self._claim(),))
        frames = [self.numbering.number_events(frame) for frame in frames]
        traffic = [
            [1000 * t * (number + 1), 2000 * t * number, 0, 0] for t in range(first, self.at)
        ]
        frames += self.sender.frames(rdma_schema(), traffic, at=first)
        return self.sender.body(frames, schemas=True)

    def _claim(self) -> Event:
        facts = {
            "source": "slurm", "level": "scheduler", "owner": "zoe", "tenant": "red", "compute": "0-840",
            "memory": "0-840", "exclusive": "true", "node": "", "start_ns": str(START_WALL_NS), "uncertainty_ns": "0",
            "workload": "4711",
        }  # fmt: skip
        claim = Entity(CLAIM, (f"GPU-{self.name}-0", f"slurm/{self.name}/4711"))
        return Event(CLAIM_START_EVENT, claim, START_WALL_NS, START_BOOT_NS, facts)


async def report(
    nodes: Mapping[str, ReportingNode], *targets: Mapping[str, RunningCollector]
) -> None:
    """Send three seconds of each node to its collector in each of the targets."""
    for name, node in nodes.items():
        body = node.body()
        sent = SentAt(time.time_ns(), START_BOOT_NS + node.at * SECOND, "boot-1").to_headers()
        for target in targets:
            if name in target:
                status, reply = await target[name].post(body, node=name, headers=sent)
                assert status == 200, reply


@contextlib.asynccontextmanager
async def running(
    directory: Path, url: str, names: Sequence[str]
) -> AsyncIterator[dict[str, RunningCollector]]:
    async with contextlib.AsyncExitStack() as stack:
        found = {}
        for name in names:
            settings = settings_of(directory, name, url)
            found[name] = await stack.enter_async_context(run_collector(settings))
            if url:
                await until_head(found[name].collector.cluster)
        yield found


async def until_head(cluster: ClusterHead) -> None:
    """Wait until another collector is the head for this one, or it is the head and has the first views of its term."""
    await until(
        lambda: (
            cluster.other_head
            or (cluster.role.state is not None and cluster.role.state.refresher.views.timestamp_ns)
        )
    )


def by_node(collectors: Mapping[str, RunningCollector]) -> dict[str, RunningCollector]:
    return {
        node: collectors[name]
        for name, nodes in SPLIT.items()
        if name in collectors
        for node in nodes
    }


async def until(check: Callable[[], Any]) -> Any:
    """Wait until a check returns something true; return it."""
    return await wait_until(check, "the check is true", patience=PATIENCE_SECONDS)


@pytest.mark.thorough
async def test_other_collectors_refer_to_the_head(tmp_path: Path, database: str):
    nodes = {name: ReportingNode(name) for name in NODES}
    async with running(tmp_path, database, ["a", "b"]) as two:
        await report(nodes, by_node(two))
        head, other = two["a"], two["b"]
        assert (await head.json("/api/v1/status"))["status"] in WORST_FIRST
        referred_paths = ("/api/v1/cluster?x=1", "/api/v1/incidents", "/api/v1/status", "/nodes")
        for path in (*referred_paths, "/nodes/n1/history"):
            answer = await referred(other, path)
            assert answer == (307, head.url + path)
        assert await referred(other, "/nodes/n2/history") == (200, ""), "its own node"
        assert await referred(other, "/metrics") == (200, "")
        assert await referred(other, "/v1/records") == (403, ""), "only for collectors"

        async def refers_back() -> bool:
            return await referred(head, "/nodes/n2/history") == (
                307,
                other.url + "/nodes/n2/history",
            )

        await until(refers_back)


async def referred(one: RunningCollector, path: str) -> tuple[int, str]:
    """The status of an answer, and the URL that it refers to."""
    headers = {"Authorization": "Bearer token-reader"}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.get(one.url + path, allow_redirects=False) as response,
    ):
        return response.status, response.headers.get("Location", "")
