"""The API returns the same content of the books as the commands write."""

from __future__ import annotations

import io
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import pytest
from support.books import (
    ALL,
    FIRST_DAY,
    GREEN,
    START,
    THREE,
    books_with,
    gpu,
    released_gpu,
)
from support.demo_months import copy_demo_months

from railscope.timestamps import DAY_NS, HOUR_NS
from railscope_collector.billing import billing_demo
from railscope_collector.billing.billing_reader import (
    BillingReader,
)
from railscope_collector.billing.export import ExportFormat, ExportOrder, export_invoices
from railscope_collector.billing.export_provenance import with_origins
from railscope_collector.billing.focus_parquet import read_parquet
from railscope_collector.billing.period_closing import BillingBooks
from railscope_collector.ledger.day_metering import MeteredGpu, MeteringComputation
from railscope_collector.ledger.ledger_store import Ledger
from railscope_collector.metering.observation import BootSampleSpan
from railscope_collector.metering.units import parse_period
from railscope_collector.tables import metadata


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


def test_charges_so_far_have_the_finalized_days_only(ledger: Ledger):
    reader = BillingReader(books_with(ledger, ALL), lambda _tenants: billing_demo.SELLER)
    before, head = reader.month_charges(), reader.ledger_head()
    assert set(before.totals) == {"red", "green"}
    last_day = THREE.end_ns // DAY_NS
    assert before.last_day == last_day
    samples = (BootSampleSpan("boot", START - DAY_NS, (last_day + 2) * DAY_NS),)
    holding = gpu("GPU-1", GREEN, sample_spans=samples)
    released = released_gpu(holding, "green-12", 24 * (last_day + 1 - FIRST_DAY) + 6)
    for known, computed_ns in (
        (holding, (last_day + 1) * DAY_NS + HOUR_NS),
        (released, (last_day + 2) * DAY_NS),
    ):
        assert reader.month_charges() == before, "the next day is not finalized"
        computed = MeteringComputation("1", computed_ns)
        metered = MeteredGpu.compute(known.evidence, known.counted, known.skus)
        ledger.write(metered.day(last_day + 1, computed))
        assert reader.ledger_head() != head
    after = reader.month_charges()
    assert after.last_day == last_day + 1
    # Six hours more; their energy is unknown.
    assert after.totals == before.totals | {"green": before.totals["green"] + 6 * Fraction("2.49")}
