"""Several collectors with one database: the head shows the nodes of all, and states whose it contains."""

from __future__ import annotations

import asyncio
import contextlib
import re
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

from railscope.api.status import WORST_FIRST
from railscope.catalog.entities import CLAIM
from railscope.catalog.tenancy import CLAIM_START_EVENT
from railscope.frame import Entity, Event
from railscope.service import run_in_thread
from railscope.wire import SentAt
from railscope_agent.shipping import EventNumbering
from railscope_collector.access.credentials import digest_token
from railscope_collector.cluster_head import ClusterHead, HeadState
from railscope_collector.config import (
    ClusterSettings,
    CollectorSettings,
    DiagnosisSettings,
    LedgerSettings,
    MeteringSettings,
)
from railscope_collector.diagnosis.saved_state import decode_diagnosis
from railscope_collector.ledger import head_files
from railscope_collector.ledger.database import SharedDatabase
from railscope_collector.tables import metadata
from railscope_simulator.demo.process import free_port

NODES = ("n1", "n2", "n3", "n4", "n5", "n6")
SPLIT = {"a": ("n1", "n4"), "b": ("n2", "n6"), "c": ("n3", "n5")}
"""Nodes of each collector; the job has GPUs of n1 (a), n2 (b) and n3 (c)."""
IN_JOB = {"n1", "n2", "n3"}
PATIENCE_SECONDS = 60
_VARYING = ("age_seconds", "offset_seconds", "_ns", "gpu_time_seconds", "gpu_hours")


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
    await until_true(
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


async def until_true(check: Callable[[], Any]) -> Any:
    """Wait until a check without requests returns something true; return it."""

    async def found() -> Any:
        return check()

    return await until(found)


async def until(check: Callable[[], Any]) -> Any:
    """Wait until a check returns something true; return it."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            found = await check()
            if found:
                return found
            await asyncio.sleep(0.05)


def comparable(content: Any) -> Any:
    """The content of a document without what differs between two refreshes, in a fixed order."""
    if isinstance(content, dict):
        if "metric" in content and content["metric"].endswith(_VARYING):
            return None
        return {
            key: comparable(value) for key, value in content.items() if not key.endswith(_VARYING)
        }
    if isinstance(content, float):
        return round(content, 6)  # means over time depend on the instants of the refreshes
    if isinstance(content, list):
        return sorted(filter(None, map(comparable, content)), key=repr)
    return content


async def documents(one: RunningCollector, *paths: str) -> dict[str, Any]:
    found = {}
    for path in paths:
        content = await one.json(path)
        content.pop("collectors", None)
        found[path] = comparable(content)
    return found


PATHS = (
    "/api/v1/cluster", "/api/v1/rails", "/api/v1/nodes", "/api/v1/gpus", "/api/v1/jobs", "/api/v1/tenants",
    "/api/v1/nodes/n1", "/api/v1/nodes/n2", "/api/v1/jobs/red/slurm/4711",
)  # fmt: skip


async def same_views(
    head: RunningCollector, alone: RunningCollector, paths: Sequence[str] = PATHS
) -> None:
    """Wait until both show the same views."""

    async def are_same() -> bool:
        return await documents(head, *paths) == await documents(alone, *paths)

    try:
        await until(are_same)
    except TimeoutError:
        for path in paths:
            assert await documents(head, path) == await documents(alone, path)
        raise


async def extent_of(one: RunningCollector) -> dict[str, Any]:
    found = (await one.json("/api/v1/cluster"))["collectors"]
    assert isinstance(found, dict)
    return found


async def until_text(one: RunningCollector, text: str) -> None:
    """Wait until the head contains these collectors."""

    async def contains() -> bool:
        return bool((await extent_of(one))["text"] == text)

    await until(contains)


async def test_the_head_shows_what_one_collector_shows_that_received_everything(
    tmp_path: Path, database: str
):
    nodes = {name: ReportingNode(name) for name in NODES}
    async with (
        running(tmp_path, "", ["alone"]) as single,
        running(tmp_path, database, ["a", "b", "c"]) as three,
    ):
        alone, everything = single["alone"], dict.fromkeys(NODES, single["alone"])
        await report(nodes, everything, by_node(three))
        assert three["a"].collector.cluster.role.state, "the first one is the head"
        await report(nodes, everything, by_node(three))
        await until_text(three["a"], "3 of 3 collectors, 6 of 6 nodes")
        await same_views(three["a"], alone)
        jobs = (await three["a"].json("/api/v1/jobs"))["rows"]
        assert [job["nodes"] for job in jobs] == [3], "a job of three collectors"
        extent = await extent_of(three["a"])
        assert extent["text"] == "3 of 3 collectors, 6 of 6 nodes"
        status, text = await three["b"].get("/metrics")
        assert status == 200
        assert "railscope_cluster_nodes 2\n" in text, "its own nodes only"


async def quota_use(one: RunningCollector) -> dict[str, float]:
    """The use of the quota of a tenant, as a collector exposes it."""
    _, text = await one.get("/metrics")
    found = re.findall(
        r'^railscope_tenant_(quota_used_\w+|held_gpus){.*"} (\S+)$', text, re.MULTILINE
    )
    return {name: float(value) for name, value in found}


async def test_the_use_of_quotas_counts_a_node_once_that_changed_its_collector(
    tmp_path: Path, database: str
):
    quotas = tmp_path / "quotas.csv"
    quotas.write_text(
        "tenant,gpu_hours,period,gpus,from,to\nred,1000,day,2,2020-01-01T00:00:00Z,\n"
    )
    nodes = {name: ReportingNode(name) for name in ("n1", "n2")}
    async with contextlib.AsyncExitStack() as stack:
        two = {}
        for name in ("a", "b"):
            settings = settings_of(tmp_path, name, database)
            given = msgspec.structs.replace(settings, quotas_file=str(quotas))
            two[name] = await stack.enter_async_context(run_collector(given))
            await until_head(two[name].collector.cluster)
        await report(nodes, by_node(two))
        await until_text(two["a"], "2 of 2 collectors, 2 of 2 nodes")
        await report({"n1": nodes["n1"]}, {"n1": two["b"]})

        async def is_held() -> bool:
            held = [(await quota_use(one)).get("held_gpus") for one in two.values()]
            used = (await quota_use(two["a"])).get("quota_used_gpus")
            return (held, used) == ([1, 2], 2)

        await until(is_held)
        assert not any(name.startswith("quota_used") for name in await quota_use(two["b"]))
        assert "quota_used_gpu_time_seconds" in await quota_use(two["a"])


async def test_a_head_without_nodes_holds_back_if_its_clock_is_not_that_of_the_others(
    tmp_path: Path, database: str
):
    """It would finalize days early, and search what the others record from a later time on."""
    nodes = {name: ReportingNode(name) for name in NODES}

    def set_ahead(one: RunningCollector) -> None:
        one.collector.clock.wall_ns = lambda: time.time_ns() + 600 * SECOND

    async with contextlib.AsyncExitStack() as stack:
        settings = {name: settings_of(tmp_path, name, database) for name in "ab"}
        other = await stack.enter_async_context(run_collector(settings["b"]))
        await report(nodes, dict.fromkeys(NODES, other))
        head = await stack.enter_async_context(run_collector(settings["a"], set_ahead))
        await until_true(lambda: head.collector.clock.problem)
        assert "of all 1 other collectors" in head.collector.clock.problem
        await until_true(lambda: other.collector.finalizer.lease.term)
        assert not head.collector.finalizer.lease.term
        assert not other.collector.clock.hold_reason


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


async def test_another_head_has_the_same_views_when_the_first_one_ends(
    tmp_path: Path, database: str
):
    nodes = {name: ReportingNode(name) for name in NODES}
    async with contextlib.AsyncExitStack() as stack:
        single = await stack.enter_async_context(running(tmp_path, "", ["alone"]))
        first = contextlib.AsyncExitStack()
        one = await first.enter_async_context(running(tmp_path, database, ["a"]))
        others = await stack.enter_async_context(running(tmp_path, database, ["b", "c"]))
        three = one | others
        everything = dict.fromkeys(NODES, single["alone"])
        for _ in range(2):
            await report(nodes, everything, by_node(three))
        await until_text(three["a"], "3 of 3 collectors, 6 of 6 nodes")
        await same_views(three["a"], single["alone"])
        diagnosis = one["a"].collector.cluster.role.state.diagnosis
        await until_true(lambda: diagnosis.table.timestamp_ns)
        await first.aclose()  # releases the lease
        files = Path(one["a"].collector.directory / "head" / "diagnosis")
        shared, restored = SharedDatabase(database, metadata), tmp_path / "restored"
        await run_in_thread(lambda: head_files.read_files(shared.open(), restored))
        shared.close()
        for name in head_files.FILES:
            assert (restored / name).read_bytes() == (files / name).read_bytes()
        assert decode_diagnosis((restored / "incidents").read_bytes()).nodes, "not empty"
        # The agents of its nodes continue with another collector; the slow ones have not reported yet.
        moved = by_node(others) | {"n1": others["c"]}
        head = await until_true(
            lambda: next(
                (each for each in others.values() if each.collector.cluster.role.state), None
            )
        )
        await report({"n1": nodes["n1"]}, {"n1": single["alone"]}, moved)

        async def extent() -> Any:
            # Until the views of a new head are computed, the answer is why there are none.
            found = (await head.json("/api/v1/cluster")).get("collectors", {"parts": ()})
            parts = {part["name"]: part for part in found["parts"]}
            included = all(name in parts and parts[name]["is_included"] for name in ("b", "c"))
            return found if included and parts["c"]["nodes"] == 3 else None

        found = await until(extent)
        assert found["text"] == "2 of 3 collectors, 5 of 6 nodes", "n4 is not reported by anyone"
        assert not found["complete"]
        rows = (await head.json("/api/v1/nodes"))["rows"]
        assert [row["node"] for row in rows] == list(NODES), "the unknown one is listed"
        same = ("/api/v1/jobs", "/api/v1/nodes/n1", "/api/v1/nodes/n2", "/api/v1/nodes/n3")

        await same_views(head, single["alone"], same)


async def test_another_collector_becomes_the_head_if_all_terms_of_one_fail(
    tmp_path: Path, database: str
):
    async with running(tmp_path, database, ["a", "b"]) as two:
        first, second = two["a"].collector.cluster, two["b"].collector.cluster
        state = first.role.state
        assert state, "the first one is the head"
        assert state.task

        async def fail() -> None:
            message = "invalid"
            raise ArithmeticError(message)

        def add_failure(state: HeadState) -> None:
            state.work.append(fail)

        first.on_term.append(add_failure)
        state.task.cancel()
        await until_true(lambda: second.role.state)


async def test_the_part_of_a_collector_that_ends_is_unknown_and_stated(
    tmp_path: Path, database: str
):
    nodes = {name: ReportingNode(name) for name in NODES}
    async with running(tmp_path, database, ["a"]) as one:
        async with running(tmp_path, database, ["b", "c"]) as others:
            await report(nodes, by_node(one | others))
            await until_text(one["a"], "3 of 3 collectors, 6 of 6 nodes")
            page = await until_page(one["a"], "Contains 3 of 3 collectors, 6 of 6 nodes.")
            assert "Unknown: 2 nodes" not in page
        extent = await until_extent(one["a"], "1 of 3 collectors, 2 of 6 nodes")
        unknown = [part for part in extent["parts"] if not part["is_included"]]
        assert [part["name"] for part in unknown] == ["b", "c"]
        assert all(part["problem"] for part in unknown)
        page = await until_page(one["a"], "Contains 1 of 3 collectors, 2 of 6 nodes.")
        assert "Unknown: 2 nodes of b: " in page
        state = one["a"].collector.cluster.role.state
        assert state
        assert state.unknown_nodes() == {"n2", "n6", "n3", "n5"}
        status, text = await one["a"].get("/api/v1/jobs", "token-red")
        collectors = msgspec.json.decode(text)["collectors"]
        assert (status, collectors) == (
            200,
            {"text": "1 of 3 collectors", "complete": False, "parts": []},
        ), "a tenant reads neither names nor numbers of nodes"
        assert f"{one['a'].url}" not in text


async def until_extent(one: RunningCollector, text: str) -> dict[str, Any]:
    """Wait until the head contains these collectors; return them."""
    await until_text(one, text)
    return await extent_of(one)


async def until_page(one: RunningCollector, text: str) -> str:
    """Wait until the overview contains a text; return it."""

    async def page() -> str:
        _, found = await one.get("/?fragment=1")
        return str(found) if text in found else ""

    found: str = await until(page)
    return found
