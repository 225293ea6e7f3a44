"""A running collector: changes of the ledger are in its audit log."""

from __future__ import annotations

from pathlib import Path

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
