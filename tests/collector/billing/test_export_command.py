"""`railscope bill export`: from the ledger to files, with the provenance of every row."""

from __future__ import annotations

import json
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from sqlalchemy import select
from support import postgresql
from support.demo_months import copy_demo_months
from support.exports import parse_csv
from support.metered import revision_of

from railscope.timestamps import DAY_NS, from_datetime
from railscope_collector.billing import billing_demo
from railscope_collector.billing.billing_demo import MONTH, NEXT_MONTH
from railscope_collector.billing.export_provenance import provenance_of_lines
from railscope_collector.billing.focus_columns import FocusRow
from railscope_collector.billing.period_closing import BillingBooks
from railscope_collector.commands.bill import bill
from railscope_collector.ledger.audit_outbox import outbox_rows
from railscope_collector.ledger.ledger_store import Ledger
from railscope_collector.metering.slot_state import SlotState
from railscope_collector.tables import metadata


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def url(
    request: pytest.FixtureRequest, demo_months: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """A ledger with the demo's two months, closed."""
    if request.param == "sqlite":
        yield copy_demo_months(demo_months, tmp_path_factory.mktemp("ledger") / "ledger.sqlite")
        return
    server: postgresql.PostgreSQL = request.getfixturevalue("server")
    address = server.database()
    ledger = Ledger.open(address, metadata)
    billing_demo.run_demo(ledger)
    ledger.close()
    yield address
    server.drop(address)


@pytest.fixture
def books(url: str) -> Iterator[BillingBooks]:
    ledger = Ledger.open(url, metadata)
    yield BillingBooks.for_ledger(ledger)
    ledger.close()


def run(url: str, directory: Path, *options: str) -> Result:
    return CliRunner().invoke(bill, ["export", str(directory), "--ledger", url, *options])


def rows_of(path: Path) -> list[FocusRow]:
    return parse_csv(path.read_text(encoding="utf-8"))


def test_a_month_is_written_with_its_totals(url: str, tmp_path: Path):
    result = run(url, tmp_path / "out", "--period", "2026-09")
    assert result.exit_code == 0, result.output
    assert "billed: 9169.09 EUR" in result.output.splitlines()
    names = [f"focus-1.2-2026-09.{suffix}" for suffix in ("csv", "manifest.json", "parquet")]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == names
    rows = rows_of(tmp_path / "out" / names[0])
    assert sum(Fraction(row["BilledCost"]) for row in rows) == Fraction("9169.09")
    again = run(url, tmp_path / "out", "--period", "2026-09")
    assert again.exit_code == 1
    assert "already exists" in again.output
    forced = run(url, tmp_path / "out", "--period", "2026-09", "--force")
    assert forced.exit_code == 0


def test_the_audit_log_is_to_record_each_export_and_what_was_in_it(
    url: str, books: BillingBooks, tmp_path: Path
):
    run(url, tmp_path, "--period", "2026-10", "--tenant", "vision", "--as", "Ada")
    manifest = json.loads((tmp_path / "focus-1.2-2026-10-vision.manifest.json").read_text())
    with books.ledger.database.transaction() as connection:
        query = select(outbox_rows).where(outbox_rows.c.type == "billing.export")
        recorded = list(connection.execute(query.order_by(outbox_rows.c.number)))
    assert json.loads(recorded[-1].actor)["id"] == "Ada"
    assert json.loads(recorded[-1].data) == {
        "billed": {"EUR": "-150.16"},
        "files": {file["name"]: file["sha256"] for file in manifest["files"]},
        "focus": "1.2",
        "start": "2026-10-01T00:00:00Z",
        "end": "2026-11-01T00:00:00Z",
        "invoices": 1,
        "rows": manifest["files"][0]["rows"],
        "tenant": "vision",
    }
    assert len({row.id for row in recorded}) == len(recorded)


def test_every_charge_leads_to_its_gpu_days_as_the_ledger_had_them(books: BillingBooks):
    (invoice,) = (
        invoice for invoice in books.store.invoices(MONTH, "language") if invoice.period == MONTH
    )
    known = provenance_of_lines(books.store, invoice)
    for line in invoice.lines:
        charge, origin = line.charge, known[line.charge.charge_id]
        day = charge.service_t0_ns // DAY_NS
        assert day == (charge.service_t1_ns - 1) // DAY_NS
        found = revision_of(books.ledger, charge.resource, day, 1)
        assert origin.evidence_hash == found.root
        times = [
            (part.state, part.size * (piece.end_ns - piece.start_ns))
            for piece in found.day.pieces
            for part in piece.parts
        ]
        unseen = sum(
            time for state, time in times if state in (SlotState.INFERRED, SlotState.UNKNOWN)
        )
        total = sum(time for _, time in times)
        assert origin.coverage_ratio == 1 - Fraction(unseen, total)
        assert origin.ledger_revision == 1
    ratios = {origin.coverage_ratio for origin in known.values()}
    assert 1 in ratios
    assert any(ratio < 1 for ratio in ratios), "the agent was away for a while"


def test_corrections_lead_to_the_revision_that_they_follow_from(url: str, tmp_path: Path):
    assert run(url, tmp_path, "--period", "2026-10", "--format", "csv").exit_code == 0
    rows = rows_of(tmp_path / "focus-1.2-2026-10.csv")
    corrections = [row for row in rows if row["ChargeClass"] == "Correction"]
    assert corrections
    for row in corrections:
        assert from_datetime(row["ChargePeriodEnd"]) <= MONTH.end_ns
        assert from_datetime(row["BillingPeriodStart"]) == NEXT_MONTH.start_ns
        assert "2" in str(row["x_LedgerRevision"]).split(",")
        assert row["x_EvidenceHash"]
    assert {row["x_ChargeKind"] for row in rows} >= {"usage", "energy", "credit", "rounding"}
    (rounding,) = (
        row for row in rows if row["x_ChargeKind"] == "rounding" and row["SubAccountId"] == "vision"
    )
    assert (rounding["x_EvidenceHash"], rounding["x_LedgerRevision"]) == (None, None)


@pytest.mark.parametrize(
    ("options", "expected_text"),
    [
        (["--format", "csv,xml"], "separated by commas"),
        (["--format", ""], "separated by commas"),
        (["--period", "October"], "invalid period"),
    ],
)
def test_invalid_options_are_reported(
    url: str, tmp_path: Path, options: list[str], expected_text: str
):
    result = run(url, tmp_path, *options)
    assert result.exit_code == 2
    assert expected_text in result.output
