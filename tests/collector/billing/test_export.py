"""Exports: files that add up to the payable amount when read back, and appear together or not at all."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from fractions import Fraction
from itertools import groupby
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from support.billing import MONTH, NEXT_MONTH, books, timelines
from support.demo_months import copy_demo_months
from support.examples import fewer_examples
from support.exports import DUE_NS, SELLER, all_kinds, closed_months

from railscope.durable_files import stage_files
from railscope_collector.billing import focus_csv, focus_parquet
from railscope_collector.billing.charges import format_amount
from railscope_collector.billing.export import (
    WRITERS,
    ExportError,
    ExportFormat,
    ExportOrder,
    export_invoices,
)
from railscope_collector.billing.focus_columns import COLUMNS, NUMBERS, TIMES, FocusRow
from railscope_collector.billing.focus_csv import read_csv
from railscope_collector.billing.focus_parquet import (
    read_parquet,
)
from railscope_collector.billing.focus_rows import billed_cost, invoice_rows
from railscope_collector.billing.invoices import (
    CLOSE_AFTER_NS,
    Invoice,
    draft_invoices,
    issue_invoice,
)
from railscope_collector.billing.period_corrections import correction_charges
from railscope_collector.billing.rating import rate
from railscope_collector.ledger.ledger_store import Ledger
from railscope_collector.tables import metadata

ORDER = ExportOrder(SELLER, DUE_NS)


@pytest.fixture(scope="module")
def months(demo_months: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Invoice, ...]:
    file = tmp_path_factory.mktemp("ledger") / "ledger.sqlite"
    ledger = Ledger.open(copy_demo_months(demo_months, file), metadata)
    found = closed_months(ledger)
    ledger.close()
    return found


def parquet(*groups: Sequence[FocusRow], rows_in_a_group: int = 7) -> bytes:
    file = io.BytesIO()
    writer = focus_parquet.Writer(file, rows_in_a_group)
    for group in groups:
        writer.add(group)
    writer.close()
    return file.getvalue()


def csv_text(*groups: Sequence[FocusRow]) -> bytes:
    file = io.BytesIO()
    writer = focus_csv.Writer(file)
    for group in groups:
        writer.add(group)
    writer.close()
    return file.getvalue()


@given(timelines(), timelines(), books())
def test_invoices_and_their_corrections_read_back_to_identical_rows(usages, late, prices):
    """P18, for both formats: the rows that are read back add up to the payable amount of every invoice."""
    closed = [
        issue_invoice(draft, DUE_NS)
        for draft in draft_invoices(rate(usages, prices, MONTH).charges, MONTH, prices.currency)
    ]
    found = correction_charges(
        closed, rate(late, prices, MONTH).charges, MONTH, NEXT_MONTH.start_ns
    )
    due_ns = NEXT_MONTH.end_ns + CLOSE_AFTER_NS
    later = [
        issue_invoice(draft, due_ns) for draft in draft_invoices(found, NEXT_MONTH, prices.currency)
    ]
    groups = [list(invoice_rows(one, SELLER)) for one in (*closed, *later)]
    flat = [row for group in groups for row in group]
    for raw, read in ((parquet(*groups), read_parquet), (csv_text(*groups), read_csv)):
        again = list(read(io.BytesIO(raw)))
        assert again == flat
        payable = {one.invoice_id: one.payable for one in (*closed, *later) if one.lines}
        by_invoice = groupby(again, key=lambda row: row["InvoiceId"])
        assert {invoice: billed_cost(own) for invoice, own in by_invoice} == payable


@fewer_examples(20)
@given(st.integers(-(10**38) + 1, 10**38 - 1), st.text(st.characters(codec="utf-8"), min_size=1))
def test_any_number_and_any_text_read_back_from_parquet(counted, text):
    found: FocusRow = dict.fromkeys(COLUMNS)
    found |= dict.fromkeys(NUMBERS, Fraction(counted, 10**12))
    found |= dict.fromkeys(TIMES, datetime(2026, 10, 1, microsecond=counted % 10**6, tzinfo=UTC))
    found |= {"ChargeDescription": text}
    assert list(read_parquet(io.BytesIO(parquet([found])))) == [found]


# The whole export --------------------------------------------------------------------------------


def test_the_manifest_lists_the_content_of_the_files(months: tuple[Invoice, ...], tmp_path: Path):
    manifest = export_invoices(
        months, replace(ORDER, checkpoint="note"), tmp_path / "new" / "directory"
    )
    directory = tmp_path / "new" / "directory"
    names = ["focus-1.2.csv", "focus-1.2.parquet", "focus-1.2.manifest.json"]
    assert sorted(path.name for path in directory.iterdir()) == sorted(names)
    document = json.loads((directory / names[2]).read_text())
    for file in document["files"]:
        content = (directory / file["name"]).read_bytes()
        assert (len(content), hashlib.sha256(content).hexdigest()) == (
            file["bytes"],
            file["sha256"],
        )
    with (directory / names[1]).open("rb") as file:
        found = list(read_parquet(file))
    assert [file["rows"] for file in document["files"]] == [len(found)] * 2
    assert {one["invoice"]: one["billed"] for one in document["invoices"]} == {
        month.invoice_id: format_amount(month.payable, month.currency) for month in months
    }
    assert Fraction(document["billed"]["EUR"]) == billed_cost(found)
    assert document["audit_checkpoint"] == "note"
    assert document["exported"] == "1970-04-01T00:00:00Z"
    assert manifest.encoded == (directory / names[2]).read_bytes()


def test_nothing_is_overwritten_unless_requested(months: tuple[Invoice, ...], tmp_path: Path):
    export_invoices((all_kinds(),), ORDER, tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    (tmp_path / "focus-1.2.csv").unlink()
    reported: list[object] = []
    with pytest.raises(FileExistsError, match=r"focus-1\.2\.parquet"):
        export_invoices(months, ORDER, tmp_path, record=reported.append)
    assert reported == []
    left = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert left == {name: raw for name, raw in before.items() if name != "focus-1.2.csv"}
    export_invoices(months, ORDER, tmp_path, replace=True)
    after = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert after.keys() == before.keys()
    assert all(after[name] != raw for name, raw in before.items())


def test_no_export_is_without_its_record(tmp_path: Path):
    reported = []

    def refuse(manifest: object) -> None:
        reported.append((manifest, [path.suffix for path in tmp_path.iterdir()]))
        message = "the database is away"
        raise OSError(message)

    with pytest.raises(OSError, match="is away"):
        export_invoices((all_kinds(),), ORDER, tmp_path, record=refuse)
    assert [suffixes for _, suffixes in reported] == [[".partial"] * 3]
    assert list(tmp_path.iterdir()) == []


def losing_a_row(found: list[FocusRow]) -> list[FocusRow]:
    return found[1:]


def changing_a_cost(found: list[FocusRow]) -> list[FocusRow]:
    return [found[0] | {"BilledCost": found[0]["BilledCost"] + Fraction(1, 10**12)}, *found[1:]]


def writing_no_cost(found: list[FocusRow]) -> list[FocusRow]:
    return [found[0] | {"BilledCost": None}, *found[1:]]


@pytest.mark.parametrize("spoil", [losing_a_row, changing_a_cost, writing_no_cost])
def test_files_that_do_not_add_up_are_rejected(
    tmp_path: Path, spoil: Callable[[list[FocusRow]], list[FocusRow]]
):
    class Wrong(focus_csv.Writer):
        def add(self, found) -> None:
            super().add(spoil(list(found)))

    order = replace(ORDER, writers={**WRITERS, ExportFormat.CSV: Wrong})
    with pytest.raises(ExportError, match=r"focus-1\.2\.csv"):
        export_invoices((all_kinds(),), order, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_files_get_their_names_together_or_not_at_all(tmp_path: Path):
    with stage_files(tmp_path, replace=False) as files:
        for name in ("a", "b", "c"):
            files.create(name).write(b"ours")
        (tmp_path / "b").write_text("theirs")
        with pytest.raises(FileExistsError):
            files.publish()
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"b": "theirs"}


@fewer_examples(25)
@given(timelines(), books())
def test_a_whole_export_adds_up(tmp_path_factory: pytest.TempPathFactory, usages, prices):
    invoices: list[Invoice] = [
        issue_invoice(draft, DUE_NS)
        for draft in draft_invoices(rate(usages, prices, MONTH).charges, MONTH, prices.currency)
    ]
    directory = tmp_path_factory.mktemp("export")
    manifest = export_invoices(invoices, ORDER, directory)
    total = sum((invoice.payable for invoice in invoices), Fraction(0))
    assert sum((Fraction(text) for text in manifest.billed.values()), Fraction(0)) == total
