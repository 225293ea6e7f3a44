"""From frames of agents to the reconciled bill, through the database of the collectors."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import closing
from fractions import Fraction
from hashlib import sha256
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from sqlalchemy import Connection, delete, select, update
from support.audit import without_triggers
from support.books import BOSS, PRICES
from support.metered import write_day
from support.story import (
    DAY,
    DAY_SECONDS,
    NodeReporter,
    accept,
    at,
    claim_ended,
    claim_started,
    core_in,
    gpus_of,
)

from railscope_collector.billing import administration
from railscope_collector.billing.invoices import CLOSE_AFTER_NS
from railscope_collector.billing.period_closing import BillingBooks
from railscope_collector.billing.reconciliation import reconcile_period
from railscope_collector.commands.bill import bill
from railscope_collector.evidence import fact_store, fact_tables
from railscope_collector.evidence.fact_store import FactStore
from railscope_collector.evidence.node_intervals import decode_interval, encode_interval
from railscope_collector.evidence.usage_facts import UsageFacts
from railscope_collector.files.seller_file import PayerAccount, Seller
from railscope_collector.fleet.shape_columns import sku_of
from railscope_collector.ledger.ledger_store import Ledger
from railscope_collector.ledger.record_draft import TimedActor
from railscope_collector.metering.metered_day import BEFORE_FIRST_REPORT, UnmeteredClaim
from railscope_collector.metering.units import Period, period_name
from railscope_collector.tables import metadata

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

MODEL = "NVIDIA H100 80GB HBM3"
PERIOD = Period(at(0), at(2 * DAY_SECONDS))
SELLER = Seller("Hall", {"red": PayerAccount("red"), "ns/green": PayerAccount("green")})


def kept(url: str, directory: Path) -> Ledger:
    """Two GPUs of a node over two days and a bit, stored and finalized as a collector does."""
    core = core_in(directory)
    events = {
        3600: [claim_started("GPU-0", "c1", 3600, tenant="red", node="n1")],
        90_000: [
            claim_ended("GPU-0", "c1", 90_000),
            claim_started("GPU-1", "c2", 90_000, tenant="red"),
        ],
    }
    seen = [s for s in range(-60, 2 * DAY_SECONDS + 7200, 30) if not 50_000 < s < 51_000]
    reporter = NodeReporter("n1")
    accept(
        core,
        reporter.envelopes_of(
            gpus_of("GPU-0", "GPU-1", model=MODEL), seen, each=200, events=events
        ),
    )
    ledger = Ledger.open(url, metadata)
    chunks = [one.interval for one in core.evidence.quarters.by_key.values()]
    FactStore(ledger.database).write(chunks, list(core.evidence.unwritten), range(DAY + 3))
    facts = UsageFacts.of_database(ledger.database)
    assert facts
    # Each day for itself, as they become due.
    for day in range(DAY - 1, DAY + 3):
        for metered in facts.meter(day):
            write_day(ledger, metered)
    with ledger.database.transaction(writes=True) as connection:
        for day in range(DAY - 2, DAY + 4):
            fact_store.clear_marks(connection, "n1", day)
    return ledger


def test_reports_of_agents_are_billed(url: str, tmp_path: Path) -> None:
    ledger = kept(url, tmp_path)
    evidence = UsageFacts.of_database(ledger.database)
    assert evidence is not None
    assert {key.gpu for key in evidence.gpu_days(range(DAY, DAY + 1))} == {"GPU-0", "GPU-1"}
    books = BillingBooks.for_ledger(ledger, evidence)
    prices = PRICES.replace('"h100"', f'"{sku_of(MODEL)}"')
    administration.publish(books, prices, "p", TimedActor(BOSS, at(0)))
    closed = books.close(PERIOD, TimedActor(BOSS, PERIOD.end_ns + CLOSE_AFTER_NS))
    (invoice,) = closed.invoices
    time = sum(
        (line.charge.amount for line in invoice.lines if line.charge.kind == "usage"), Fraction(0)
    )
    # 24 hours of one GPU, 23 of the other; a quarter of an hour without samples is inferred from the scheduler.
    assert time == 47 * Fraction("2.49")
    checks = reconcile_period(books, PERIOD, SELLER)
    assert [check for check in checks if not check.passes] == []
    assert {check.rule for check in checks} == {"R1", "R2", "R4", "R5", "R6", "R7", "R8"}
    assert sum(check.parts for check in checks if check.rule == "R4") == 4 * 2
    arguments = ["reconcile", period_name(PERIOD), "--ledger", url]
    result = CliRunner().invoke(bill, arguments)
    assert result.exit_code == 0, result.output
    assert "not compared" not in result.output
    ledger.close()


def test_time_of_claims_that_hold_no_gpu_is_listed_as_not_billed(url: str, tmp_path: Path) -> None:
    ledger = kept(url, tmp_path)
    day = next(iter(ledger.revisions(ledger.newest(DAY, DAY + 1, ["GPU-0"])))).day
    claim = UnmeteredClaim(at(0), at(1800), "c0", "red", BEFORE_FIRST_REPORT, size=420)
    write_day(ledger, msgspec.structs.replace(day, unmetered=(claim,)))
    books = BillingBooks.for_ledger(ledger, UsageFacts.of_database(ledger.database))
    prices = PRICES.replace('"h100"', f'"{sku_of(MODEL)}"')
    administration.publish(books, prices, "p", TimedActor(BOSS, at(0)))
    (listed,) = books.bill(PERIOD).undecided
    assert (listed.tenant, listed.claim, listed.gpu_hours) == ("red", "c0", Fraction(1, 4))
    assert str(listed).endswith("0.25 GPU-hours: before the first report of the GPU")
    checks = reconcile_period(books, PERIOD, SELLER)
    assert [check.rule for check in checks if not check.passes] == ["R7"]
    ledger.close()


def forged(connection: Connection) -> None:
    """Other samples under a name that is the hash of what is in the row now."""
    parts = fact_tables.quarters
    for row in connection.execute(select(parts).where(parts.c.start_ns >= at(0))).all():
        chunk = decode_interval(zstd.decompress(row.content))
        for sighted in chunk.gpus.values():
            del sighted.spans[:]
        content = encode_interval(chunk)
        values = {"quarter": sha256(content).hexdigest(), "content": zstd.compress(content)}
        connection.execute(update(parts).where(parts.c.quarter == row.quarter).values(**values))


def removed(connection: Connection) -> None:
    parts = fact_tables.quarters
    connection.execute(delete(parts).where(parts.c.start_ns >= at(0)))


def without_claims(connection: Connection) -> None:
    connection.execute(delete(fact_tables.claims))


@pytest.mark.parametrize(
    "change", [forged, removed, without_claims],
    ids=lambda change: change.__name__,
)  # fmt: skip
def test_rows_of_evidence_that_were_changed_after_finalizing_are_found(
    url: str, tmp_path: Path, change: Callable[[Connection], None]
) -> None:
    """No head covers them: the ledger days that they make again are not those of the ledger."""
    with closing(kept(url, tmp_path)) as ledger:
        books = BillingBooks.for_ledger(ledger, UsageFacts.of_database(ledger.database))
        prices = PRICES.replace('"h100"', f'"{sku_of(MODEL)}"')
        administration.publish(books, prices, "p", TimedActor(BOSS, at(0)))
        checks = reconcile_period(books, PERIOD, SELLER)
        assert {check.rule for check in checks if not check.passes} == set()
        with ledger.database.transaction(writes=True) as connection:
            without_triggers(connection)
            change(connection)
        checks = reconcile_period(
            BillingBooks.for_ledger(ledger, UsageFacts.of_database(ledger.database)), PERIOD, SELLER
        )
        (found,) = [check for check in checks if check.rule == "R7"]
        assert not found.passes
        assert "GPU-" in found.place


def test_a_database_without_evidence_has_none(url: str) -> None:
    ledger = Ledger.open(url, metadata)
    assert UsageFacts.of_database(ledger.database) is None
    ledger.close()
