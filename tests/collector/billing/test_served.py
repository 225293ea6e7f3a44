"""The API returns the same content of the books as the commands write."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs
from support.demo_months import copy_demo_months

from collector.billing import billing_demo
from collector.billing.export import ExportFormat, ExportOrder, export_invoices
from collector.billing.export_provenance import with_origins
from collector.billing.focus_files import read_parquet
from collector.billing.period_closing import BillingBooks
from collector.billing.tenant_statements import BillingReader, BillingUnavailableError
from collector.ledger.ledger_store import Ledger
from collector.metering.units import parse_period
from collector.tables import metadata


@pytest.fixture(scope="module")
def books(demo_months: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BillingBooks]:
    file = tmp_path_factory.mktemp("ledger") / "ledger.sqlite"
    ledger = Ledger.open(copy_demo_months(demo_months, file), metadata)
    yield BillingBooks.for_ledger(ledger)
    ledger.close()


@pytest.fixture
def served(books: BillingBooks) -> BillingReader:
    return BillingReader(books, lambda _tenants: billing_demo.SELLER)


@pytest.mark.parametrize("tenant", [None, "vision"])
def test_an_export_is_the_file_that_the_command_writes(served, books, tmp_path: Path, tenant):
    order = ExportOrder(billing_demo.SELLER, 0, period=parse_period("2026-09"), tenant=tenant)
    export_invoices(books.store.invoices(), with_origins(order, books), tmp_path)
    assert served.export_forms == list(ExportFormat)
    for form in served.export_forms:
        written = (tmp_path / f"{order.stem}.{form}").read_bytes()
        assert served.export(tenant, "2026-09", form) == written


def test_a_tenant_gets_nothing_of_others(served):
    raw = served.export("vision", "2026-10", "parquet")
    assert {row["SubAccountId"] for row in read_parquet(io.BytesIO(raw))} == {"vision"}
    assert served.export("nobody", "2026-10", "csv") is None
    assert served.export(None, "2027-01", "csv") is None


def test_statements_come_in_their_forms(served):
    assert served.statement_forms[0] == "json"
    (invoice,) = served.books.store.invoices(parse_period("2026-09"), "vision")
    for form in served.statement_forms:
        assert invoice.invoice_id.encode() in served.statement("vision", "2026-09", form)
    assert json.loads(served.statement("vision", "2026-09", "json"))
    assert served.statement("nobody", "2026-09", "json") is None
    assert served.statement("vision", "2027-01", "json") is None


def test_what_cannot_be_made_is_one_error(served, tmp_path: Path):
    unpaid = replace(
        served, seller=lambda _tenants: structs.replace(billing_demo.SELLER, accounts={})
    )
    with pytest.raises(BillingUnavailableError, match="unknown billing account"):
        unpaid.export("vision", "2026-09", "csv")
    ledger = Ledger.open(f"sqlite:///{tmp_path}/ledger.sqlite", metadata)
    gone = replace(served, books=BillingBooks.for_ledger(ledger))
    ledger.close()
    (tmp_path / "ledger.sqlite").write_bytes(b"this was a database once, and is none any more")
    with pytest.raises(BillingUnavailableError, match=r"ledger\.sqlite"):
        gone.export("vision", "2026-09", "csv")
