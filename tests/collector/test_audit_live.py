"""A running collector: events of agents, and changes of the ledger, are in its audit log."""

from __future__ import annotations

import shutil
from pathlib import Path

from makers import ClaimingAgent
from running_collector import RunningCollector, run_collector, settings_in
from support.audit import draft
from support.metered import record_number
from support.waiting import wait_until

from railscope.audit.record import AuditRecord, decode_audit_record
from railscope_collector.ledger.audit_outbox import put_record
from railscope_collector.ledger.database import Database
from railscope_collector.tables import metadata


def records(one: RunningCollector) -> list[AuditRecord]:
    return [decode_audit_record(raw) for raw in one.collector.trail.log.records(0)]


def assigned(one: RunningCollector) -> list[tuple[str, int, object]]:
    found = [record for record in records(one) if record.type == "tenancy.assign"]
    return [(record.src.id, record.src.n, record.data["claim"]) for record in found]


async def until_recorded(one: RunningCollector, count: int) -> None:
    await wait_until(lambda: len(assigned(one)) >= count, f"{count} claims are in the log")


async def sign_all(one: RunningCollector) -> None:
    """Sign what has come, now and not at the next minute. After that nothing writes the log."""
    log, observed = one.collector.trail.log, one.collector.audit.observed
    await wait_until(lambda: not observed.waiting_items, "all events are in the log")
    await log.sign()


async def test_what_was_acknowledged_and_not_recorded_is_recorded_after_a_crash(
    tmp_path: Path,
) -> None:
    """The collector is gone between the acknowledgement and the record."""
    agent = ClaimingAgent()
    async with run_collector(settings_in(tmp_path)) as running:
        running.collector.core.listeners.clear()
        assert (await running.post(agent.body(), at=agent.at))[0] == 200
        assert assigned(running) == []
        await sign_all(running)  # or else the copy is of a log that is being written
        elsewhere = shutil.ignore_patterns("ledger.sqlite*", "*.partial")  # written meanwhile
        shutil.copytree(tmp_path / "state", tmp_path / "crashed", ignore=elsewhere)
    shutil.rmtree(tmp_path / "state")
    (tmp_path / "crashed").rename(tmp_path / "state")
    async with run_collector(settings_in(tmp_path)) as running:
        await until_recorded(running, 3)
        assert len(assigned(running)) == 3


async def test_what_changes_the_ledger_is_recorded_while_the_collector_runs(tmp_path: Path) -> None:
    async with run_collector(settings_in(tmp_path)) as running:
        database = Database(running.collector.database.url, metadata)
        with database.transaction(writes=True) as connection:
            put_record(connection, "fact/1", draft(1, kind="billing.price"))

        def leaf() -> int | None:
            with database.transaction() as connection:
                return record_number(connection, "fact/1")

        await wait_until(lambda: leaf() is not None, "the record is in the log")
        found = records(running)[leaf() or 0]
        database.close()
    assert (found.type, found.ref[0]) == ("billing.price", "outbox/fact/1")
