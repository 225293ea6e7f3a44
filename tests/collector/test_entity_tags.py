"""Entity tags: a document that has not changed is not sent again."""

from __future__ import annotations

import time
from pathlib import Path

import aiohttp
from makers import FrameSender, gpu_schema
from running_collector import RunningCollector, run_collector, settings_in
from support.waiting import wait_until

from railscope_collector.access.credentials import digest_token
from railscope_collector.config import DiagnosisSettings
from railscope_collector.diagnosis.incident_table import IncidentTable

VIEWS = {"cluster", "rails", "nodes", "jobs", "tenants", "gpus"}
"""Documents that are new after each refresh of the views."""
DIAGNOSED = {"incidents", "nodes", "jobs", "gpus", "rails", "tenants"}
"""Documents that are new after each diagnosis."""
NAMES = VIEWS | DIAGNOSED | {"inventory", "events"}
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
    claims, sender = tmp_path / "claims.csv", FrameSender()
    claims.write_text("tenant,holds,from,to\nvision,GPU-n1-0,2020-01-01T00:00:00Z,\n")
    settings = settings_in(
        tmp_path,
        claims_file=str(claims),
        view_refresh_seconds=3600,
        diagnosis=DiagnosisSettings(enabled=False),
    )
    with (tmp_path / "tokens.toml").open("a") as tokens:
        tokens.write(f'[tenants.vision]\nboard = "{digest_token("token-board")}"\n')
    async with run_collector(settings) as running:
        body = sender.body(sender.frames(gpu_schema("n1"), ROWS, at=0), schemas=True)
        assert (await running.post(body, at=2))[0] == 200
        tags: dict[str, str] = {}

        async def changed() -> set[str]:
            """Documents that are sent again."""
            found = set()
            for name in NAMES:
                path = f"/api/v1/{name}"
                status, tags[name] = await tag_of(running, path, "reader", tags.get(name, ""))
                found |= {name} if status == 200 else set()
            return found

        async def has_account() -> bool:
            await running.collector.refresher.refresh()
            return running.collector.refresher.views.account is not None

        await wait_until(has_account, "the ledger is read")
        running.collector.diagnosis.table = IncidentTable(time.time_ns())
        assert await changed() == NAMES
        assert await changed() == set()
        assert (await running.post(body, at=3))[0] == 200
        await running.collector.refresher.refresh()
        assert await changed() == VIEWS
        running.collector.diagnosis.table = IncidentTable(time.time_ns())
        assert await changed() == DIAGNOSED
        for path in ("/api/v1/jobs", "/api/v1/tenants", "/api/v1/account", "/api/v1/incidents"):
            _, tag = await tag_of(running, path, "reader")
            assert await tag_of(running, path, "reader", tag) == (304, tag)
            assert (await tag_of(running, path, "board", tag))[0] == 200, "of another reader"
