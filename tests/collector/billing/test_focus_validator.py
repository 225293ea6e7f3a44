"""Results of the official validator of FOCUS 1.2 for our exports, and for invalid ones."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import pytest
from support.demo_months import copy_demo_months
from support.exports import DUE_NS, SELLER, closed_months, parse_csv
from support.focus_validator import ARTEFACT, readable_rules, validate

from railscope_collector.billing.charges import ChargeKind
from railscope_collector.billing.export import (
    ExportFormat,
    ExportManifest,
    ExportOrder,
    export_invoices,
)
from railscope_collector.billing.export_provenance import with_origins
from railscope_collector.billing.focus_columns import COLUMNS
from railscope_collector.billing.period_closing import BillingBooks
from railscope_collector.ledger.ledger_store import Ledger
from railscope_collector.tables import metadata

pytestmark = pytest.mark.thorough
RESERVATIONS = "CAPACITY_RESERVATION_SUPPORTED"
# There is one pricing category and one currency; the columns are for several.
STRICTER = (
    "MULTIPLE_PRICING_CATEGORIES_SUPPORTED",
    "PRICING_BILLING_CURRENCY_DIFFERENCES_SUPPORTED",
    "VIRTUAL_CURRENCY_SUPPORTED",
)
# Not checked as a whole: there are no commitment discounts, and some rules about the effective cost
# cannot be checked by a program.
UNJUDGED = {"CommitmentDiscountStatus", "EffectiveCost"}
NOTE = "example.com/log\n17\nq1L0gfMIcEgE3nUm3GMAHmCnIGbf6WrjRsMjXFWXmrA=\n\n\N{EM DASH} example.com/log AA==\n"
OF_RESERVATIONS = {"CapacityReservationId", "CapacityReservationStatus"}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("export")


@pytest.fixture(scope="module")
def manifest(
    demo_months: Path, directory: Path, tmp_path_factory: pytest.TempPathFactory
) -> ExportManifest:
    """Of months in a ledger, so that rows lead to it."""
    file = tmp_path_factory.mktemp("ledger") / "ledger.sqlite"
    ledger = Ledger.open(copy_demo_months(demo_months, file), metadata)
    months = closed_months(ledger)
    order = with_origins(
        ExportOrder(SELLER, DUE_NS, checkpoint=NOTE), BillingBooks.for_ledger(ledger)
    )
    found = export_invoices(months, order, directory)
    ledger.close()
    return found


def file_of(manifest: ExportManifest, directory: Path, form: ExportFormat) -> Path:
    (name,) = (file.name for file in manifest.files if file.name.endswith(f".{form}"))
    return directory / name


def test_the_month_has_rows_of_every_kind(manifest, directory):
    rows = parse_csv(file_of(manifest, directory, ExportFormat.CSV).read_text(encoding="utf-8"))
    assert {row["x_ChargeKind"] for row in rows} == set(ChargeKind)
    assert {row["ResourceType"] for row in rows} == {"GPU", "MIG instance", None}
    assert {row["ChargeClass"] for row in rows} == {"Correction", None}
    assert {row["CapacityReservationStatus"] for row in rows} == {"Unused", None}
    assert {row["SkuMeter"] for row in rows} == {"GPU Time", "MIG Instance Time", "Energy", None}
    assert {row["x_AuditCheckpoint"] is None for row in rows} == {False}
    assert {row["x_EvidenceHash"] is None for row in rows} == {True, False}
    assert {row["SubAccountType"] for row in rows} == {"Account", "Namespace"}
    assert set(manifest.applicability_criteria) >= {
        RESERVATIONS,
        "ACCOUNT_NAMING_SUPPORTED",
        "REGION_SUPPORTED",
        "TAGGING_SUPPORTED",
    }


@pytest.mark.parametrize("form", list(ExportFormat))
def test_no_rule_fails(manifest, directory, form):
    """As published, without what the validator misreads: see the next test."""
    criteria = {*manifest.applicability_criteria, *STRICTER} - {RESERVATIONS}
    outcome = validate(file_of(manifest, directory, form), sorted(criteria))
    assert outcome.failing_composites == set()
    assert outcome.failing == {ARTEFACT}
    for column in {name for name in COLUMNS if not name.startswith("x_")} - UNJUDGED:
        expected = "SKIPPED" if column in OF_RESERVATIONS else "PASS"
        assert (column, outcome.of_column(column)) == (column, expected)
    assert outcome.rules["EffectiveCost-C-003-M"] == "PASS"


@pytest.mark.parametrize(
    "form",
    # The same rows, of which the test above checks both forms.
    [pytest.param(ExportFormat.CSV, marks=pytest.mark.thorough), ExportFormat.PARQUET],
)
def test_no_rule_fails_with_reservations(manifest, directory, tmp_path, form):
    """Two rules about reservations have conditions that the validator does not read; we add them."""
    mended = readable_rules(tmp_path)
    assert mended == {"CapacityReservationStatus-C-003-C", "CapacityReservationStatus-C-004-C"}
    outcome = validate(
        file_of(manifest, directory, form), manifest.applicability_criteria, rules=tmp_path
    )
    assert outcome.failing == {ARTEFACT}
    assert {outcome.of_column(column) for column in OF_RESERVATIONS} == {"PASS"}
    assert all(outcome.rules[rule] == "PASS" for rule in mended)


def without_a_column(rows: list[dict[str, str]]) -> None:
    for row in rows:
        del row["PricingUnit"]


def without_a_cost(rows: list[dict[str, str]]) -> None:
    rows[3]["BilledCost"] = ""


def with_a_reservation_without_a_name(rows: list[dict[str, str]]) -> None:
    (unused, *_) = (row for row in rows if row["CapacityReservationStatus"])
    unused["CapacityReservationId"] = ""


def with_a_resource_of_no_type(rows: list[dict[str, str]]) -> None:
    (row, *_) = (row for row in rows if row["ResourceId"])
    row["ResourceType"] = ""


DEFECTS: dict[Callable[[list[dict[str, str]]], None], str] = {
    without_a_column: "PricingUnit-C-000-M",
    without_a_cost: "BilledCost-C-000-M",
    with_a_reservation_without_a_name: "CapacityReservationStatus-C-000-C",
    with_a_resource_of_no_type: "ResourceType-C-000-C",
}
"""Changes that make an export invalid, with the rule that each breaks."""
KINDS = ("x_ChargeKind", "ResourceType", "ChargeClass", "CapacityReservationStatus", "SkuMeter")


@pytest.mark.parametrize(
    "defects",
    [
        pytest.param(list(DEFECTS), id="all"),
        # A run of the validator takes seconds; in one file, each defect breaks the same rule.
        *(pytest.param([one], id=one.__name__, marks=pytest.mark.thorough) for one in DEFECTS),
    ],
)
def test_a_wrong_export_fails(
    manifest: ExportManifest,
    directory: Path,
    tmp_path: Path,
    defects: list[Callable[[list[dict[str, str]]], None]],
):
    with file_of(manifest, directory, ExportFormat.CSV).open(encoding="utf-8", newline="") as file:
        every = csv.DictReader(file)
        rows = list({tuple(row[name] for name in KINDS): row for row in every}.values())
    for spoil in defects:
        spoil(rows)
    spoilt = tmp_path / "spoilt.csv"
    with spoilt.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    readable_rules(tmp_path)
    outcome = validate(spoilt, manifest.applicability_criteria, rules=tmp_path)
    assert {DEFECTS[spoil] for spoil in defects} <= outcome.failing_composites
