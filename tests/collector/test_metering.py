"""GPU time over real HTTP: from reports of agents to pages, metrics and the ledger."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from running_collector import RunningCollector, run_collector, settings_in
from support.story import (
    SECOND,
    NodeReporter,
    accept,
    claim_ended,
    claim_started,
    gpus_of,
    temporary_core,
)

from railscope.timestamps import DAY_NS
from railscope_collector.config import IngestLimits, LedgerSettings, MeteringSettings
from railscope_collector.evidence.fact_store import FactStore
from railscope_collector.ledger.ledger_store import Ledger
from railscope_collector.tables import metadata

HOURS = 3600
LONG = 30 * HOURS
LAG_SECONDS = 1000
"""A quarter, a minute, and time for the test."""
METERING = MeteringSettings(period_seconds=0.2, quiet_seconds=0.1, finalize_delay_seconds=0)
MANY = IngestLimits(requests_per_second=10_000)
EPOCH = "2020-01-01T00:00:00Z"


def reporter() -> NodeReporter:
    """An agent with a history of thirty hours up to now."""
    now_ns = time.time_ns() // SECOND * SECOND
    return NodeReporter(booted_at=-6000, origin_ns=now_ns - LONG * SECOND)


def report_before(directory: Path, origin_ns: int) -> None:
    """Another collector that shares the database received the node's GPUs at the beginning."""
    node, core = NodeReporter(booted_at=-6000, origin_ns=origin_ns), temporary_core()
    accept(core, [node.record(node.frames(gpus_of("GPU-0", "GPU-1"), [0]))])
    quarters = [one.interval for one in core.evidence.quarters.by_key.values()]
    (directory / "state").mkdir()
    ledger = Ledger.open(f"sqlite:///{directory / 'state' / 'ledger.sqlite'}", metadata)
    FactStore(ledger.database).write(quarters, [], range(origin_ns // DAY_NS))
    ledger.close()


async def report(one: RunningCollector, node: NodeReporter) -> None:
    """Thirty hours of two GPUs; a namespace holds one of them for the first day of the story."""

    def claim_event(event: Any, second: int, fact: str) -> Any:
        event.facts[fact] = str(node.origin_ns + second * SECOND)
        return event

    begins = claim_started("GPU-0", "job", 0, owner="ns", source="kubernetes")
    events = {
        3 * HOURS: [claim_event(begins, 3 * HOURS, "start_ns")],
        27 * HOURS: [claim_event(claim_ended("GPU-0", "job", 0), 27 * HOURS, "end_ns")],
    }
    frames = node.frames(gpus_of("GPU-0", "GPU-1"), range(0, LONG, 20), events=events)
    for at in range(0, len(frames), 400):
        record, _ = node.record(frames[at : at + 400], sent=LONG)
        status, reply = await one.post(record.body, headers=record.sent.to_headers())
        assert status == 200, reply


def files(directory: Path) -> dict[str, str]:
    (directory / "tenants.csv").write_text(
        f"tenant,source,owner,from,to\nvision,kubernetes,ns,{EPOCH},\n"
    )
    (directory / "quotas.csv").write_text(
        f"tenant,gpu_hours,period,gpus,from,to\nvision,9,day,2,{EPOCH},\n"
    )
    (directory / "calendar.toml").write_text(
        f"[[reservation]]\nname = 'r'\ntenant = 'speech'\nholds = 'GPU-1'\nfrom = {EPOCH}\n"
    )
    return {
        "tenants_file": str(directory / "tenants.csv"),
        "quotas_file": str(directory / "quotas.csv"),
        "calendar_file": str(directory / "calendar.toml"),
    }


async def metrics(one: RunningCollector) -> dict[str, float]:
    status, text = await one.get("/metrics")
    assert status == 200
    lines = (line.rsplit(" ", 1) for line in text.splitlines() if line and line[0] != "#")
    return {name: float(value) for name, value in lines}


async def test_thirty_hours_become_a_day_of_the_ledger_and_an_account(tmp_path: Path):
    settings = settings_in(tmp_path, metering=METERING, limits=MANY, **files(tmp_path))
    node = reporter()
    midnight_ns = time.time_ns() // DAY_NS * DAY_NS
    report_before(tmp_path, node.origin_ns)
    async with run_collector(settings) as running:
        await report(running, node)
        await running.collector.finalizer.round(everything=True)
        await running.collector.refresher.refresh()
        account = await running.json("/api/v1/account")
        page = await metrics(running)
    assert account["balances"]
    assert account["gpus"] == 2
    assert sum(map(int, account["states"].values())) == int(account["capacity_ns"])
    assert account["tenants"]["vision"]["held_observed_ns"] == str(24 * HOURS * SECOND)
    reserved_ns = int(account["tenants"]["speech"]["states"]["reserved"])
    assert reserved_ns >= (LONG - LAG_SECONDS) * SECOND
    assert page['railscope_tenant_gpu_time_seconds{tenant="vision",state="observed"}'] == 24 * HOURS
    assert page['railscope_cluster_gpu_time_seconds{state="observed"}'] == 24 * HOURS
    energy = 'railscope_tenant_energy_joules{tenant="vision"}'
    assert page[energy] == pytest.approx(0.5 * 24 * HOURS, rel=0.001)
    assert (
        page['railscope_tenant_quota_gpu_time_seconds{tenant="vision",period="day"}'] == 9 * HOURS
    )
    held_today_ns = max(0, node.origin_ns + 27 * HOURS * SECOND - midnight_ns)
    used = page['railscope_tenant_quota_used_gpu_time_seconds{tenant="vision",period="day"}']
    assert used == held_today_ns / SECOND
    assert page['railscope_tenant_quota_gpus{tenant="vision"}'] == 2
    assert page['railscope_tenant_held_gpus{tenant="vision"}'] == 0
    assert page['railscope_collector_file_valid{file="tenants"}'] == 1
    assert page["railscope_collector_ledger_failures_total"] == 0
    async with run_collector(settings) as running:
        await running.collector.finalizer.round(everything=True)
        await running.collector.refresher.refresh()
        again = await running.json("/api/v1/account")
        page_again = await metrics(running)
    assert again["balances"]
    assert again["tenants"]["vision"] == account["tenants"]["vision"]
    assert page_again[energy] == page[energy]
    ledger = Ledger.open(f"sqlite:///{tmp_path / 'state' / 'ledger.sqlite'}", metadata)
    first_day = node.origin_ns // DAY_NS
    totals = ledger.totals(range(first_day, midnight_ns // DAY_NS))
    ledger.close()
    finalized_ns = midnight_ns - node.origin_ns - 3 * HOURS * SECOND
    vision = sum(q for (_, of), q in totals.items() if of == ("vision", "observed"))
    assert vision == min(finalized_ns, 24 * HOURS * SECOND)


async def test_a_tenants_file_that_was_never_valid_names_no_tenants(tmp_path: Path):
    path = tmp_path / "tenants.csv"
    path.write_text("nonsense\n")
    away = LedgerSettings(url=f"sqlite:///{tmp_path / 'away' / 'ledger.db'}")
    settings = settings_in(tmp_path, metering=METERING, ledger=away, tenants_file=str(path))
    async with run_collector(settings) as running:
        (tmp_path / "away").mkdir()
        assert await running.collector.finalizer.attempt()
        await running.collector.refresher.refresh()
        status, text = await running.get("/api/v1/account")
        assert (status, "the tenants file has never been valid" in text) == (503, True)


async def test_a_collector_without_its_database_accepts_frames_and_reports_it(tmp_path: Path):
    nowhere = LedgerSettings(url=f"sqlite:///{tmp_path / 'nowhere' / 'ledger.db'}")
    async with run_collector(settings_in(tmp_path, metering=METERING, ledger=nowhere)) as running:
        node = NodeReporter(origin_ns=time.time_ns())
        record, _ = node.record(node.frames(gpus_of("GPU-0"), range(0, 60, 10)))
        assert (await running.post(record.body, headers=record.sent.to_headers()))[0] == 200
        assert not await running.collector.finalizer.attempt()
        await running.collector.refresher.refresh()
        status, text = await running.get("/api/v1/account")
        assert (status, "the ledger has not been read yet" in text) == (503, True)
        page = await metrics(running)
        assert page["railscope_collector_ledger_failures_total"] >= 1
        assert page["railscope_collector_evidence_pending_intervals"] == 1
        (tmp_path / "nowhere").mkdir()
        assert await running.collector.finalizer.attempt()
        await running.collector.refresher.refresh()
        assert (await running.json("/api/v1/account"))["balances"]
