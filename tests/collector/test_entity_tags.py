"""Entity tags: the terminal reads a document that has not changed without its content."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack, closing
from pathlib import Path
from typing import Any

import aiohttp
from makers import FrameSender, gpu_schema
from railscope.client.cluster_reading import DOCUMENTS, READY, ClusterReader, gpus_request
from running_collector import RunningCollector, run_collector, settings_in

from railscope.client.connection import MAX_CONNECTIONS, ReadClient, ServerAddress
from railscope.service import run_in_thread
from railscope_collector.access.credentials import digest_token
from railscope_collector.config import DiagnosisSettings
from railscope_collector.diagnosis.incident_table import IncidentTable

VIEWS = {"cluster", "rails", "nodes", "jobs", "tenants", "gpus"}
"""Documents that are new after each refresh of the views."""
SAME = {"inventory", "events", "incidents"}
ROWS = [[50, 60, 1000, 2000, 10, 20]] * 3


async def tag_of(one: RunningCollector, path: str, token: str, tag: str = "") -> tuple[int, str]:
    headers = {"Authorization": f"Bearer token-{token}", "If-None-Match": tag}
    async with (
        aiohttp.ClientSession() as session,
        session.get(one.url + path, headers=headers) as response,
    ):
        assert (await response.read() == b"") == (response.status == 304)
        return response.status, response.headers["ETag"]


async def test_documents_that_have_not_changed_are_not_sent_again(tmp_path: Path) -> None:
    claims, token, sender = tmp_path / "claims.csv", tmp_path / "token", FrameSender()
    claims.write_text("tenant,holds,from,to\nvision,GPU-n1-0,2020-01-01T00:00:00Z,\n")
    token.write_text("token-reader")
    token.chmod(0o600)
    settings = settings_in(
        tmp_path,
        claims_file=str(claims),
        view_refresh_seconds=3600,
        diagnosis=DiagnosisSettings(enabled=False),
    )
    with (tmp_path / "tokens.toml").open("a") as tokens:
        tokens.write(f'[tenants.vision]\nboard = "{digest_token("token-board")}"\n')
    async with AsyncExitStack() as stack:
        running = await stack.enter_async_context(run_collector(settings))
        address = ServerAddress(running.url, token_file=str(token))
        client = stack.enter_context(closing(ReadClient(address)))
        reader = ClusterReader(client)
        body = sender.body(sender.frames(gpu_schema("n1"), ROWS, at=0), schemas=True)
        assert (await running.post(body, at=2))[0] == 200

        async def read() -> dict[str, Any]:
            names = [name for name in DOCUMENTS if name != READY]
            found = await run_in_thread(lambda: reader.read(names, gpus=gpus_request({})))
            assert not found.errors, found.errors
            return dict(found.documents)

        async with asyncio.timeout(60):
            while not running.collector.refresher.views.jobs.timestamp_ns:
                await running.collector.refresher.refresh()
                await asyncio.sleep(0.01)  # the ledger is read meanwhile
        running.collector.diagnosis.table = IncidentTable(time.time_ns())
        first, again = await read(), await read()
        assert [name for name in first if again[name] is not first[name]] == []
        assert running.collector.connections.accepted <= MAX_CONNECTIONS + 1
        assert (await running.post(body, at=3))[0] == 200
        await running.collector.refresher.refresh()
        later = await read()
        assert {name for name in first if later[name] is not first[name]} == VIEWS
        running.collector.diagnosis.table = IncidentTable(time.time_ns())
        diagnosed = await read()
        changed = {name for name in first if diagnosed[name] is not later[name]}
        assert changed == {"incidents", "nodes", "jobs", "gpus", "rails"}
        assert set(first) == VIEWS | SAME
        for path in ("/api/v1/jobs", "/api/v1/tenants", "/api/v1/account", "/api/v1/incidents"):
            _, tag = await tag_of(running, path, "reader")
            assert await tag_of(running, path, "reader", tag) == (304, tag)
            assert (await tag_of(running, path, "board", tag))[0] == 200, "of another reader"
