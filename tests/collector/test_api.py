"""Responses for readers: views, node page, account and tenants, over real HTTP."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from makers import FrameSender, rdma_schema
from running_collector import RunningCollector, gpu_frames, run_collector, settings_in
from support.waiting import wait_until

from railscope.catalog import collector as catalog
from railscope.service import run_in_thread
from railscope.settings import SettingsError
from railscope.timestamps import HOUR_NS
from railscope_collector.config import LedgerSettings

CLAIMS = "tenant,holds,from,to\nvision,n1,2020-01-01T00:00:00Z,\n"


async def seen(one: RunningCollector, path: str, wanted: Callable[[int, Any], bool]) -> Any:
    """Wait until a page contains the expected content; return it."""

    async def content() -> Any:
        status, text = await one.get(path)
        found = msgspec.json.decode(text)
        return found if wanted(status, found) else None

    return await wait_until(content, f"{path} contains the expected content")


async def test_views_over_the_api(tmp_path: Path):
    sender = FrameSender()
    claims = tmp_path / "claims.csv"
    claims.write_text("tenant,holds,from,to\nvision,GPU-n1-0,2026-01-01T00:00:00Z,\n")
    async with run_collector(settings_in(tmp_path, claims_file=str(claims))) as running:
        frames = gpu_frames(sender) + sender.frames(
            rdma_schema(), [[0, 0, 0, 0], [1000, 2000, 4, 6]], at=0
        )
        assert (await running.post(sender.body(frames, schemas=True), at=3))[0] == 200
        await running.collector.refresher.refresh()
        await run_in_thread(running.collector.files.refresh)
        # Later: the account is as of the last quarters in the database.
        running.collector.finalizer.wall_ns = lambda: time.time_ns() + HOUR_NS
        assert await running.collector.finalizer.attempt()
        await running.collector.refresher.refresh()
        cluster = {r["metric"]: r["value"] for r in (await running.json("/api/v1/cluster"))["rows"]}
        assert cluster["railscope_cluster_sum_gpu_power_watts"] == 3.0
        assert cluster["railscope_cluster_sum_rdma_transmit_bytes_per_second"] == 3000.0
        rails = [
            (r["labels"]["rail"], r["value"])
            for r in (await running.json("/api/v1/rails"))["rows"]
            if r["metric"] == "railscope_rail_sum_rdma_transmit_bytes_per_second"
        ]
        assert rails == [("0", 1000.0), ("1", 2000.0)]
        tenants = {
            r["metric"]: r["value"]
            for r in (await running.json("/api/v1/tenants"))["rows"]
            if r["labels"]["tenant"] == "vision"
        }
        assert tenants["railscope_tenant_sum_gpu_power_watts"] == 1.0
        assert tenants["railscope_tenant_sum_rdma_transmit_bytes_per_second"] == 1000.0, "its rail"
        node = await running.json("/api/v1/nodes/n1")
        readings = {
            (r["metric"], *r["entity"]): r["value"] for r in node["streams"]["rdma"]["readings"]
        }
        assert readings["railscope_rdma_transmit_bytes_total", "mlx5_1", "1"] == 2000
        assert (await running.get("/api/v1/nodes/nowhere"))[0] == 404
        status, body = await running.get("/api/v1/foo")
        expected = "Not Found: expected a path and method of the API such as GET /api/v1/nodes"
        assert (status, msgspec.json.decode(body)["error"]) == (404, expected)
        account = await running.json("/api/v1/account")
        assert account["balances"]
        assert account["gpus"] == 2
        parts = sum(int(account[part]) for part in ("held_ns", "idle_ns", "unknown_ns"))
        assert parts == int(account["capacity_ns"]) > 0


def ledger_away(directory: Path) -> LedgerSettings:
    """A ledger whose directory is made later: no earlier version of a file can be read from it."""
    return LedgerSettings(url=f"sqlite:///{directory / 'away' / 'ledger.sqlite'}")


async def test_a_broken_file_without_an_earlier_version_stops_the_first_start(tmp_path: Path):
    claims = tmp_path / "claims.csv"
    claims.write_text("tenant,holds,from,to\nvision,n1,yesterday,\n")
    settings = settings_in(tmp_path, claims_file=str(claims))
    with pytest.raises(SettingsError, match=r"claims_file .*claims.csv: line 2"):
        async with run_collector(settings):
            pass


async def test_a_broken_file_at_a_restart_leaves_the_stored_version_in_force(tmp_path: Path):
    claims = tmp_path / "claims.csv"
    claims.write_text(CLAIMS)
    settings = settings_in(tmp_path, claims_file=str(claims))
    async with run_collector(settings) as running:
        assert await running.collector.finalizer.attempt()
    claims.write_text("broken\n")
    async with run_collector(settings) as running:
        assert running.collector.files.claims.content.node_holder("n1", time.time_ns()) == "vision"
        assert not running.collector.files.unknown
        _, text = await running.get("/metrics")
        assert f'{catalog.FILE_VALID.name}{{file="claims"}} 0' in text


async def test_there_is_no_account_before_the_claims_are_known(tmp_path: Path):
    claims = tmp_path / "claims.csv"
    claims.write_text("who,knows\n")
    away = ledger_away(tmp_path)
    async with run_collector(
        settings_in(tmp_path, claims_file=str(claims), ledger=away)
    ) as running:
        await running.collector.refresher.refresh()
        assert (await running.get("/api/v1/account"))[0] == 503
        assert "claims file has never been valid" in (await running.get("/-/ready"))[1]
        (tmp_path / "away").mkdir()
        claims.write_text("tenant,holds,from,to\nvision,n1,2026-01-01T00:00:00Z,\n")
        await run_in_thread(running.collector.files.refresh)
        assert await running.collector.finalizer.attempt()
        await running.collector.refresher.refresh()
        assert (await running.get("/api/v1/account"))[0] == 200
