"""`python -m bench.export`: invoices as FOCUS files, written, read again and summed."""

from __future__ import annotations

import csv
import gc
import io
from fractions import Fraction
from functools import partial
from pathlib import Path

from bench.harness import Aim, BenchReport, benchmark, cpu_seconds, peak_resident_bytes
from railscope.timestamps import DAY_NS, HOUR_NS, SECOND_NS
from railscope_collector.billing import export
from railscope_collector.billing.charges import Charge, ChargeKind, PriceUnit, price_quantity
from railscope_collector.billing.invoices import (
    CLOSE_AFTER_NS,
    Invoice,
    draft_invoices,
    issue_invoice,
)
from railscope_collector.files import seller_file
from railscope_collector.metering.units import Period

ROWS = 100_000
TENANTS = 20
MONTH = Period(20_000 * DAY_NS, 20_030 * DAY_NS)
PRICE_NANO = 2_490_000_000
SELLER = seller_file.Seller(
    "Bench",
    {f"tenant-{at}": seller_file.PayerAccount("research", "Research") for at in range(TENANTS)},
)
WRITTEN = Aim("<=", 30, " s")
GROWTH = Aim("<=", 256, " MiB")


@benchmark("Exports", full=ROWS, quick=2_000)
def main(report: BenchReport, rows: int, directory: Path) -> None:
    """Measure exports of invoices and print ratios."""
    invoices = _invoices(rows)
    gc.freeze()
    before = peak_resident_bytes()
    seconds = {
        forms: cpu_seconds(partial(_export, invoices, forms, directory))
        for forms in (
            (export.ExportFormat.CSV,),
            (export.ExportFormat.PARQUET,),
            tuple(export.ExportFormat),
        )
    }
    grown = (peak_resident_bytes() - before) / (1 << 20)
    plain = cpu_seconds(partial(_copy_file, directory / "focus-1.2.csv"))
    sizes = [
        (directory / f"focus-1.2.{form}").stat().st_size / rows for form in export.ExportFormat
    ]
    both = seconds[tuple(export.ExportFormat)]
    report.ratio(f"CPU of {ROWS:,} rows in both forms", both * ROWS / rows, WRITTEN)
    report.ratio("memory added by the exports", grown, GROWTH)
    report.ratio(
        "CPU, CSV / reading and writing its text", seconds[export.ExportFormat.CSV,] / plain
    )
    report.ratio(
        "CPU, Parquet / CSV",
        seconds[export.ExportFormat.PARQUET,] / seconds[export.ExportFormat.CSV,],
    )
    for form, size in zip(export.ExportFormat, sizes, strict=True):
        microseconds = 1e6 * seconds[(form,)] / rows
        report.figure(f"{form}", f"{microseconds:.0f} us CPU and {size:.0f} bytes per row")


def _invoices(rows: int) -> tuple[Invoice, ...]:
    charges = [_charge(at) for at in range(rows)]
    due_ns = MONTH.end_ns + CLOSE_AFTER_NS
    return tuple(issue_invoice(draft, due_ns) for draft in draft_invoices(charges, MONTH, "EUR"))


def _charge(at: int) -> Charge:
    start_ns = MONTH.start_ns + at * SECOND_NS
    length_ns = HOUR_NS + at % 7_777_777  # so that amounts are not round numbers
    quantity = Fraction(840 * length_ns)
    return Charge(
        tenant=f"tenant-{at % TENANTS}",
        kind=ChargeKind.USAGE,
        service_t0_ns=start_ns,
        service_t1_ns=start_ns + length_ns,
        amount=price_quantity(quantity, PriceUnit.GPU_HOURS, PRICE_NANO),
        sku="h100-sxm",
        quantity=quantity,
        unit=PriceUnit.GPU_HOURS,
        price_nano=PRICE_NANO,
        list_nano=PRICE_NANO,
        price_version=1,
        resource=f"GPU-{at % 800}",
        claim=f"job-{at}",
        state="observed",
    )


def _export(
    invoices: tuple[Invoice, ...], forms: tuple[export.ExportFormat, ...], directory: Path
) -> None:
    export.export_invoices(
        invoices, export.ExportOrder(SELLER, MONTH.end_ns, forms), directory, replace=True
    )


def _copy_file(path: Path) -> None:
    with path.open(encoding="utf-8", newline="") as file:
        csv.writer(io.StringIO(newline="")).writerows(csv.reader(file))


if __name__ == "__main__":
    main()
