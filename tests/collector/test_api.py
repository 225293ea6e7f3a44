"""Responses for readers: views, node page, account and tenants, over real HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from math import inf, nan
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import numpy as np
import pytest
from aiohttp import web
from makers import FrameSender, gpu_schema, rdma_schema
from running_collector import RunningCollector, gpu_frames, run_collector, settings_in

from railscope.catalog import account as account_catalog, collector as catalog
from railscope.service import run_in_thread
from railscope.settings import SettingsError
from railscope.wire import Batch
from railscope_collector.access.access_trail import AccessTrail
from railscope_collector.access.credentials import Credentials
from railscope_collector.access.tokens_file import RecordedCredentials
from railscope_collector.account.live_account import LiveAccount
from railscope_collector.config import LedgerSettings
from railscope_collector.evidence.evidence_book import EvidenceBook
from railscope_collector.evidence.gpu_evidence import AdministratorInputs
from railscope_collector.fleet.sheets import PendingBatch
from railscope_collector.fleet.view_cells import View, ViewCell
from railscope_collector.http.access_control import RequestAuthorizer, make_application
from railscope_collector.http.collector_metrics import CollectorMetrics
from railscope_collector.http.read_api import ViewApi
from railscope_collector.http.route_table import ROUTES
from railscope_collector.view_refresh import CollectorViews, ViewRefresher
from railscope_collector.views.fresh_rows import find_fresh_rows
from railscope_collector.views.rollups import Rollups

CLAIMS = "tenant,holds,from,to\nvision,n1,2020-01-01T00:00:00Z,\n"


@contextlib.asynccontextmanager
async def filled(directory: Path, **more: Any) -> AsyncIterator[RunningCollector]:
    """A collector that has taken three frames of n1, the last of them just now."""
    sender = FrameSender()
    async with run_collector(settings_in(directory, **more)) as running:
        rows = [[50, 60, 1000, 2000, 10 + r, 20 + r] for r in range(3)]
        frames = sender.frames(gpu_schema("n1"), rows, at=0)
        status, reply = await running.post(sender.body(frames, schemas=True), at=2)
        assert status == 200, reply
        yield running


async def seen(one: RunningCollector, path: str, wanted: Callable[[int, Any], bool]) -> Any:
    """Wait until a page contains the expected content; return it."""
    async with asyncio.timeout(60):
        while True:
            status, text = await one.get(path)
            content = msgspec.json.decode(text)
            if wanted(status, content):
                return content
            await asyncio.sleep(0.05)


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
        rolled = {(r["metric"], r["rollup"]): r["value"] for r in node["rollups"]}
        assert rolled["railscope_gpu_power_watts", "sum"] == 3.0
        assert rolled["railscope_gpu_power_watts", "max"] == 2.0
        assert rolled["railscope_rdma_transmit_bytes_total", "sum"] == 3000.0
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


async def test_an_older_refresh_replaces_no_newer_views(tmp_path: Path):
    """The first one waits for the account, as on a loaded machine: the second one has not begun."""
    async with run_collector(settings_in(tmp_path, view_refresh_seconds=3600)) as running:
        refresher, begun = running.collector.refresher, list[int]()
        await running.collector.finalizer.attempt()
        refresher.wall_ns = lambda: begun.append(len(begun)) or time.time_ns()
        async with running.collector.live.lock:
            both = [asyncio.create_task(refresher.refresh()) for _ in range(2)]
            while not begun:  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0)
            assert begun == [0]
        first, second = await asyncio.gather(*both)
        assert first.timestamp_ns < second.timestamp_ns == refresher.views.timestamp_ns


async def test_ready_only_while_the_ledger_takes_writes(tmp_path: Path):
    async with run_collector(settings_in(tmp_path, ledger=ledger_away(tmp_path))) as running:
        await running.collector.refresher.refresh()
        status, text = await running.get("/-/ready")
        assert (status, "ledger" in text) == (503, True)
        assert str(tmp_path) not in text, "a stranger learns no path"
        (tmp_path / "away").mkdir()
        assert await running.collector.finalizer.attempt()
        await until_ready(running)


async def until_ready(one: RunningCollector) -> None:
    async with asyncio.timeout(60):
        while (await one.get("/-/ready"))[0] != 200:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.1)


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


async def test_a_stale_node_is_counted_as_stale_and_its_values_do_not_count(tmp_path: Path):
    sender = FrameSender()
    async with run_collector(settings_in(tmp_path)) as running:
        assert (await running.post(sender.body(gpu_frames(sender), schemas=True), at=300))[0] == 200
        views = await running.collector.refresher.refresh()
        cluster = {cell.metric.name: cell.value for cell in views.cluster.cells}
        assert cluster["railscope_cluster_nodes"] == 1
        assert cluster["railscope_cluster_nodes_reporting"] == 0
        assert "railscope_cluster_sum_gpu_power_watts" not in cluster
        status, text = await running.get("/metrics")
        assert status == 200
        assert 'railscope_node_reporting{node="n1"} 0' in text


async def test_the_answer_for_a_node_has_the_age_of_each_stream(tmp_path: Path):
    async with filled(tmp_path) as running:
        page = await running.json("/api/v1/nodes/n1")
    stream = page["streams"]["gpu"]
    assert 0 <= stream["age_seconds"] < 20
    assert stream["age_seconds"] == pytest.approx(
        (page["timestamp_ns"] - stream["timestamp_ns"]) / 1e9
    )
    rolled = {(r["metric"], r["rollup"]): r["value"] for r in page["rollups"]}
    assert rolled["railscope_gpu_power_watts", "sum"] == 3.0


async def test_a_reading_without_a_valid_scale_is_absent(tmp_path: Path):
    async with filled(tmp_path) as running:
        core = running.collector.core
        row = core.fleet.nodes["n1"].rows["gpu"]
        reasons = bytes([77, *bytes(row.block.layout.columns - 1)])
        last = Batch("gpu", row.schema, 9, (9,), (row.boot_ns,), bytes(48), bytes(1), b"", reasons)
        row.sheet.put(PendingBatch(row.block, row.index, last, 0, resumed=False))
        whole = core.schemas.read(row.schema)
        broken = msgspec.structs.replace(whole.groups[-1], scale=(1, 0))
        schema = msgspec.structs.replace(whole, groups=(*whole.groups[:-1], broken))
        core.schemas.read = lambda _: schema  # type: ignore[assignment,method-assign]
        page = await running.json("/api/v1/nodes/n1")
    readings = page["streams"]["gpu"]["readings"]
    assert [r.get("absent") for r in readings] == ["error", None, None, None, "error", "error"]
    assert all(("value" in r) != ("absent" in r) for r in readings)


@contextlib.asynccontextmanager
async def served(api: ViewApi) -> AsyncIterator[str]:
    routes = [route for route in ROUTES if route.name in api.handlers()]
    gate = RequestAuthorizer(
        Credentials,
        AccessTrail(api.metrics.trail, RecordedCredentials(Path())),
        allow_anonymous_read=True,
    )
    runner = web.AppRunner(make_application(gate, api.handlers(), 1 << 20, routes))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def fetch(api: ViewApi, path: str) -> tuple[int, str]:
    async with (
        served(api) as url,
        aiohttp.ClientSession() as session,
        session.get(url + path) as response,
    ):
        return response.status, await response.text()


def api_of(one: RunningCollector, views: Callable[[], CollectorViews], **more: Any) -> ViewApi:
    collector = one.collector
    own = CollectorMetrics(
        collector.core,
        collector.log,
        collector.files,
        collector.finalizer,
        collector.trail,
        collector.tokens,
        collector.connections,
        collector.identity_conflicts,
        collector.checkpointer.quarantine,
    )
    return ViewApi(collector.core, own, views, **more)


async def test_a_stale_stream_is_shown_with_its_age_and_not_rolled_up(tmp_path: Path):
    async with filled(tmp_path) as running:
        now_ns = running.collector.core.fleet.nodes["n1"].timestamp_ns + 31_000_000_000
        for stale_seconds, counts in ((40.0, True), (30.0, False)):
            api = api_of(
                running, CollectorViews, stale_seconds=stale_seconds, wall_ns=lambda: now_ns
            )
            status, text = await fetch(api, "/api/v1/nodes/n1")
            page = msgspec.json.decode(text)
            assert status == 200
            assert bool(page["rollups"]) is counts
            assert page["streams"]["gpu"]["age_seconds"] == 31.0
            assert page["streams"]["gpu"]["readings"]


async def test_no_answer_contains_a_number_that_json_lacks(tmp_path: Path):
    cells = tuple(ViewCell(catalog.NODE_UP, (str(v),), v) for v in (nan, inf, -inf, 1.0))
    views = CollectorViews(1, cluster=View("cluster", 1, cells), node=View("node", 1, cells))
    async with filled(tmp_path) as running:
        row = running.collector.core.fleet.nodes["n1"].rows["gpu"]
        row.block.rates[row.index] = np.inf
        api = api_of(running, lambda: views)
        for path in ("/api/v1/cluster", "/api/v1/nodes", "/api/v1/nodes/n1"):
            status, text = await fetch(api, path)
            assert status == 200
            assert msgspec.json.decode(text)
            assert "NaN" not in text
            assert "Infinity" not in text


async def test_there_are_no_tenant_metrics_while_the_claims_are_unknown(tmp_path: Path):
    path = tmp_path / "claims.csv"
    path.write_text("broken\n")
    away = ledger_away(tmp_path)
    async with filled(tmp_path, claims_file=str(path), ledger=away) as running:
        (tmp_path / "away").mkdir()
        collector = running.collector
        refresher = ViewRefresher(
            collector.core, collector.live, 30.0, 1.0, is_known=lambda: not collector.files.unknown
        )
        api = api_of(running, lambda: refresher.views)
        status, text = await fetch(api, "/api/v1/account")
        assert (status, "not been computed" in text) == (503, True)

        await refresher.refresh()
        status, text = await fetch(api, "/api/v1/account")
        assert (status, "claims file has never been valid" in text) == (503, True)
        _, text = await fetch(api, "/api/v1/tenants")
        assert msgspec.json.decode(text)["rows"] == []
        _, text = await fetch(api, "/metrics")
        assert "railscope_cluster_sum_gpu_power_watts" in text
        assert account_catalog.GPU_CAPACITY.name not in text
        assert account_catalog.GPU_TIME.name not in text

        path.write_text(CLAIMS)
        collector.files.refresh()
        assert await collector.finalizer.attempt()
        await refresher.refresh()
        status, text = await fetch(api, "/api/v1/account")
        assert status == 200
        account = msgspec.json.decode(text)
        assert account["balances"]
        assert account["tenants"].keys() == {"vision"}
        _, text = await fetch(api, "/metrics")
        assert account_catalog.GPU_CAPACITY.name in text

        path.write_text("broken\n")
        collector.files.refresh()
        assert (await refresher.refresh()).account, "the last good claims stay in force"


async def test_without_claims_no_tenants_of_rails_are_computed(tmp_path: Path):
    async with filled(tmp_path) as running:
        rollups = Rollups(None, [])
        fleet = running.collector.core.fleet
        for block in fleet.blocks():
            reduced = find_fresh_rows(block, fleet.fresh_rows(block, 0, 0))
            if reduced:
                rollups.add(reduced)
        assert list(rollups.cells("cluster"))
        assert not list(rollups.cells("tenant"))
        views = await seen(
            running, "/api/v1/tenants", lambda _, content: content["timestamp_ns"] > 0
        )
        assert views["rows"] == []
        account = await seen(running, "/api/v1/account", lambda status, _: status == 200)
        assert account["balances"]


async def test_a_long_account_lets_others_go_first(tmp_path: Path):
    async with filled(tmp_path) as running:
        core = running.collector.core
        memory = next(iter(core.evidence.gpus.values()))
        many = EvidenceBook({f"GPU-{i}": memory for i in range(5_000)})
        many.changed.update(many.gpus)
        refresher = ViewRefresher(core, LiveAccount(many, AdministratorInputs), 30.0, 1.0)
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(other())
        views = await refresher.refresh()
        task.cancel()
        assert views.account
        assert views.account.gpus == 5_000
        assert views.account.balances
        assert turns > 5
