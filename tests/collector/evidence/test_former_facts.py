"""Facts of release 0.3.0 are copied once; days that its ledger has stay as they were billed."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from hashlib import sha256

import msgspec
import pytest
import sqlalchemy as sa
from fact_stores import HOURS
from support.story import (
    DAY,
    DAY_SECONDS,
    NodeReporter,
    accept,
    at,
    claim_ended,
    claim_started,
    gpus_of,
    temporary_core,
)

from railscope.timestamps import DAY_NS
from railscope_collector.evidence import former_facts
from railscope_collector.evidence.claim_events import ClaimFact, ReportedClaim, ReportedEnd
from railscope_collector.evidence.evidence_records import EvidenceQuarantine
from railscope_collector.evidence.fact_store import FactStore
from railscope_collector.evidence.fact_tables import claim_ends, claims, read_places
from railscope_collector.evidence.file_versions import FileStore
from railscope_collector.evidence.former_facts import copy_once
from railscope_collector.evidence.node_intervals import EvidenceInterval, encode_interval
from railscope_collector.evidence.usage_facts import UsageFacts
from railscope_collector.finalization.marked_days import mark_missing
from railscope_collector.ledger import schema
from railscope_collector.ledger.database import Database
from railscope_collector.ledger.ledger_store import Ledger
from railscope_collector.tables import metadata

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

WINDOW = range(DAY, DAY + 3)
GPUS = ("GPU-0", "GPU-1")


def former_rows(
    quarters: Iterable[EvidenceInterval], facts: Iterable[ClaimFact]
) -> Iterator[tuple[sa.Table, dict[str, object]]]:
    for each in quarters:
        content = encode_interval(each)
        edges = {"node": each.node, "start_ns": each.start_ns, "end_ns": each.end_ns}
        row = {"part": sha256(content).hexdigest(), "content": zstd.compress(content)}
        yield former_facts.parts, row | edges | {"recorded_ns": each.end_ns}
    for fact in facts:
        content = msgspec.msgpack.encode(fact)
        row = {"fact": sha256(content).hexdigest(), "recorded_ns": at(0)}
        row |= {"gpu_uuid": fact.gpu, "node": fact.node, "claim_id": fact.id}
        if isinstance(fact, ReportedClaim):
            yield former_facts.claims, row | {"start_ns": fact.start_ns, "content": content}
        else:
            yield former_facts.ends, row | {"instant_ns": fact.timestamp_ns}


def revision(gpu: str, day: int) -> dict[str, object]:
    row = {"gpu_uuid": gpu, "day": day, "revision": 1, "computed_ns": (day + 1) * DAY_NS}
    return row | dict.fromkeys(("sku", "content_root", "evidence_root", "engine_version"), "")


def reports() -> tuple[list[EvidenceInterval], list[ClaimFact]]:
    """A node that reports hourly until now, with one claim before the window and one that ends in it; and a silent node."""
    core, before = temporary_core(), -2 * DAY_SECONDS
    node = NodeReporter(booted_at=before - HOURS)
    events = {
        before: [claim_started("GPU-0", "before", before, tenant="red")],
        before + HOURS: [claim_ended("GPU-0", "before", before + HOURS)],
        2 * HOURS: [claim_started("GPU-0", "within", 2 * HOURS, tenant="red")],
        DAY_SECONDS: [claim_ended("GPU-0", "within", DAY_SECONDS)],
    }
    for begin in range(before, 3 * DAY_SECONDS, HOURS):
        frames = node.frames(gpus_of(*GPUS), [begin, begin + 30], events=events)
        accept(core, [node.record(frames)])
    silent = NodeReporter("n2", "boot of n2", booted_at=before - HOURS)
    accept(core, [silent.record(silent.frames(gpus_of("GPU-2"), [before]))])
    quarters = [kept.interval for kept in core.evidence.quarters.by_key.values()]
    return quarters, list(core.evidence.unwritten)


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    """A database of release 0.3.0: of one GPU a day is missing, the newest day is only that of a job list."""
    found = Database(url, metadata)
    days = [(gpu, day) for gpu in (*GPUS, "GPU-2") for day in WINDOW[:2]]
    days.remove(("GPU-1", DAY + 1))
    with found.transaction(writes=True) as connection:
        for table, row in former_rows(*reports()):
            connection.execute(table.insert().values(row))
        revisions = [revision(*key) for key in [*days, ("n1/0000:01:00.0", DAY + 2)]]
        connection.execute(schema.revisions.insert(), revisions)
        permission = "DROP TRIGGER ledger_schema_no_delete"
        if connection.dialect.name == "postgresql":
            permission = "ALTER TABLE ledger_schema DISABLE TRIGGER USER"
        connection.execute(sa.text(permission))
        connection.execute(sa.delete(schema.schema_version))
        former = schema.schema_version.insert().values(version=schema.DOCUMENTS_VERSION)
        connection.execute(former)
    yield found
    found.close()


def test_a_late_end_counts_up_to_three_days_before_its_receipt(database: Database):
    """Release 0.3.0 left what was more than an hour before the receipt to a person."""
    with database.transaction(writes=True) as connection:
        late = connection.execute(sa.select(former_facts.ends)).all()
        rows = [
            {"fact": row.fact, "trusted_from_ns": row.instant_ns + HOURS * 10**9} for row in late
        ]
        connection.execute(former_facts.trust.insert(), rows)
    copy_once(database, EvidenceQuarantine(), WINDOW)
    with database.transaction() as connection:
        ends = connection.execute(sa.select(claim_ends.c.claim, claim_ends.c.end_ns)).all()
    assert ("within", at(DAY_SECONDS)) in [tuple(row) for row in ends]


def names_of_claims(store: FactStore) -> set[str]:
    with store.database.transaction() as connection:
        return set(connection.execute(sa.select(claims.c.claim)).scalars())


def test_days_that_the_ledger_lacks_are_metered_and_no_others(database: Database):
    copy_once(database, EvidenceQuarantine(), WINDOW)
    store = FactStore(database)
    assert not store.marked_days(range(DAY - 9, WINDOW.stop))
    mark_missing(UsageFacts(store, FileStore(database)), Ledger(database), WINDOW)
    marks = [("n1", DAY + 1), ("n1", DAY + 2), ("n2", DAY + 2)]
    assert store.marked_days(range(DAY - 9, WINDOW.stop)) == marks
    assert names_of_claims(store) == {"within"}
    with database.transaction() as connection:
        nodes = {gpu: rows[0].value for gpu, rows in read_places(connection).items()}
    assert nodes == {"GPU-0": "n1", "GPU-1": "n1", "GPU-2": "n2"}
    late = ReportedEnd(at(2 * HOURS + 60), "GPU-0", "n1", "within")
    store.write((), [late], WINDOW)
    copy_once(database, EvidenceQuarantine(), WINDOW)
    assert ("n1", DAY) in store.marked_days(WINDOW)
