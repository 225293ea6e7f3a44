"""Real processes of several collectors that are stopped, continued and killed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import msgspec
import pytest
from running_collector import RunningCollector
from support import postgresql
from support.forked_program import ForkedProgram
from test_cluster_head import NODES, SPLIT, ReportingNode, report, settings_of, until

PATIENCE_SECONDS = 60


@pytest.fixture
def database(server: postgresql.PostgreSQL) -> Iterator[str]:
    url = server.database()
    yield url
    server.drop(url)


@dataclass
class CollectorProcess(RunningCollector):
    """A process, and requests to it."""

    program: ForkedProgram
    url: str

    async def extent(self) -> str:
        """Return the statement of the collectors that it shows; empty unless it is the head."""
        headers = {"Authorization": "Bearer token-reader"}
        try:
            async with (
                aiohttp.ClientSession(headers=headers) as session,
                session.get(self.url + "/api/v1/cluster", allow_redirects=False) as response,
            ):
                if response.status != 200:
                    return ""
                found = msgspec.json.decode(await response.read())
                return str(found.get("collectors", {}).get("text", ""))
        except (aiohttp.ClientError, OSError):
            return ""


@contextlib.asynccontextmanager
async def processes(directory: Path, url: str) -> AsyncIterator[dict[str, CollectorProcess]]:
    """Three processes, of which the first one is the head."""
    found: dict[str, CollectorProcess] = {}
    try:
        for name in SPLIT:
            settings = settings_of(directory, name, url)
            cluster = settings.cluster
            environment = {
                "LISTEN": settings.listen, "STATE_DIRECTORY": settings.state_directory,
                "TOKENS_FILE": settings.tokens_file, "VIEW_REFRESH_SECONDS": "0.2", "STALE_SECONDS": "300",
                "LEDGER__URL": url, "AUDIT__REQUIRED_WITNESSES": "0",
                "CLUSTER__ADVERTISED_URL": cluster.advertised_url, "CLUSTER__NAME": name,
                "CLUSTER__TOKEN_FILE": cluster.token_file,
            }  # fmt: skip
            given = {f"RAILSCOPE_COLLECTOR_{key}": text for key, text in environment.items()}
            program = ForkedProgram(name, ["collector", "run"], {**os.environ, **given})
            found[name] = CollectorProcess(program, cluster.advertised_url)
            await program.start(directory)
            await program.find_logged("head_term_started" if name == "a" else "collector_started")
        yield found
    finally:
        for each in found.values():
            each.program.signal(signal.SIGCONT)
            each.program.kill()
            await each.program.wait_for_end()


async def until_shown(one: CollectorProcess, text: str) -> None:
    async def is_shown() -> bool:
        return await one.extent() == text

    await until(is_shown)


async def test_stopped_continued_and_killed_collectors(tmp_path: Path, database: str):
    nodes = {name: ReportingNode(name) for name in NODES}
    async with processes(tmp_path, database) as three:
        await report(nodes, {node: three[name] for name, of in SPLIT.items() for node in of})
        await until_shown(three["a"], "3 of 3 collectors, 6 of 6 nodes")
        three["c"].program.signal(signal.SIGSTOP)
        await until_shown(three["a"], "2 of 3 collectors, 4 of 6 nodes")
        three["c"].program.signal(signal.SIGCONT)
        await until_shown(three["a"], "3 of 3 collectors, 6 of 6 nodes")

        three["a"].program.signal(signal.SIGSTOP)  # its lease expires

        async def next_head() -> CollectorProcess | None:
            heads = [three[name] for name in ("b", "c") if await three[name].extent()]
            return heads[0] if heads else None

        head = await until(next_head)
        await until_shown(head, "2 of 3 collectors, 4 of 6 nodes")
        three["a"].program.signal(signal.SIGCONT)
        await until_shown(three["a"], "")
        await until_shown(head, "3 of 3 collectors, 6 of 6 nodes")

        head.program.kill()
        others = [one for one in three.values() if one is not head]

        async def last_head() -> CollectorProcess | None:
            found = await asyncio.gather(*(one.extent() for one in others))
            assert not all(found), "one at a time"
            return next((one for one, text in zip(others, found, strict=True) if text), None)

        last = await until(last_head)
        await until_shown(last, "2 of 3 collectors, 4 of 6 nodes")
