"""The simulated months, from evidence to the bill, checked by hand; and the commands on them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from support.demo_months import copy_demo_months, result_of_demo
from support.exports import parse_csv
from support.statement_readers import from_csv, from_json, total_amount

from railscope import timestamps
from railscope.timestamps import HOUR_NS
from railscope_collector.billing import billing_demo, statement_forms
from railscope_collector.billing.billing_demo import MONTH, NEXT_MONTH, PRICES
from railscope_collector.billing.focus_parquet import read_parquet
from railscope_collector.billing.focus_rows import billed_cost
from railscope_collector.billing.period_closing import BillingBooks
from railscope_collector.billing.tenant_statements import read_statement, statement_periods
from railscope_collector.commands.bill import bill
from railscope_collector.evidence.fact_store import FactStore
from railscope_collector.evidence.file_versions import FileStore
from railscope_collector.evidence.usage_facts import UsageFacts
from railscope_collector.ledger.ledger_store import Ledger
from railscope_collector.tables import metadata


@pytest.fixture(scope="module")
def url(demo_months: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A ledger with both months in it."""
    return copy_demo_months(demo_months, tmp_path_factory.mktemp("demo") / "ledger.sqlite")


@pytest.fixture(scope="module")
def found(demo_months: Path, url: str) -> Iterator[tuple[billing_demo.BillingDemo, BillingBooks]]:
    ledger = Ledger.open(url, metadata)
    yield result_of_demo(demo_months), BillingBooks.for_ledger(ledger)
    ledger.close()


def run(*arguments: str) -> Result:
    return CliRunner().invoke(bill, list(arguments))


def test_the_month_is_what_one_works_out_by_hand(
    found: tuple[billing_demo.BillingDemo, BillingBooks],
) -> None:
    language, vision = found[0].closed.invoices
    hours = {
        (invoice.tenant, state): sum(
            (
                line.charge.quantity / (840 * HOUR_NS)
                for line in invoice.lines
                if line.charge.kind == "usage" and line.charge.state == state
            ),
            Fraction(0),
        )
        for invoice in found[0].closed.invoices
        for state in ("observed", "inferred")
    }
    silent, too_long, down = Fraction(2, 3), 3, 2
    # 23.5 days and a fraction of a second on four GPUs, 14 days and 14.5 hours on a fifth.
    of_four = Fraction(47, 2) * 24 + Fraction(123_456_789, 10**9 * 3600) - silent - too_long
    assert hours["language", "observed"] == 4 * of_four - down + 14 * 24 + Fraction(29, 2)
    assert hours["language", "inferred"] == 4 * silent
    # 26 days on one GPU, 11 days and 9.5 hours on another.
    assert hours["vision", "observed"] == 37 * 24 + Fraction(19, 2) - 2 * (silent + too_long)
    assert hours["vision", "inferred"] == 2 * silent
    assert language.total_minor == 643_741
    assert vision.total_minor == 273_168


# Statements --------------------------------------------------------------------------------------


def test_all_forms_of_a_statement_come_to_the_same(
    found: tuple[billing_demo.BillingDemo, BillingBooks],
) -> None:
    books = found[1]
    for tenant in ("language", "vision"):
        for period in statement_periods(books):
            made = read_statement(books, tenant, period)
            payable = made.invoice.payable
            rows = from_csv(statement_forms.as_csv(made))
            document = from_json(statement_forms.as_json(made))
            assert total_amount(rows) == payable == Fraction(document.total)
            assert sum(Fraction(line.amount) for line in document.lines) == payable
            exact = sum((Fraction(line.exact) for line in document.lines), Fraction(0))
            assert exact == sum(Fraction(row["exact"]) for row in rows) == made.invoice.exact
            assert {row["charge"] for row in rows} == {
                line.charge.charge_id for line in made.invoice.lines
            }
            assert all(row["ledger_revision"] or not row["unit"] for row in rows)


# Commands ----------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_the_demo_prints_it_and_writes_what_others_read(tmp_path: Path) -> None:
    place = ("--ledger", f"sqlite:///{tmp_path}/ledger.sqlite")
    result = run("demo", *place)
    assert result.exit_code == 0
    used = "GPU-7, claim pid-4711, 2026-09-08 14:00 UTC to 2026-09-08 16:00 UTC"
    assert f"not billed until decided, process:nobody: {used}" in result.output
    assert run("export", str(tmp_path), *place).exit_code == 0
    rows = parse_csv((tmp_path / "focus-1.2.csv").read_text())
    assert billed_cost(rows) == Fraction(643_741 + 273_168 + 16_383 - 15_016, 100)
    with (tmp_path / "focus-1.2.parquet").open("rb") as file:
        assert list(read_parquet(file)) == rows


@pytest.mark.thorough
def test_months_go_through_the_commands(tmp_path: Path) -> None:
    """Steps of an accountant, with prices that change in between."""
    ledger_file, prices = tmp_path / "ledger.sqlite", tmp_path / "prices.toml"
    place = ("--ledger", f"sqlite:///{ledger_file}")
    ledger = Ledger.open(place[1], metadata)
    facts = UsageFacts(FactStore(ledger.database), FileStore(ledger.database))
    days = range(MONTH.start_ns // timestamps.DAY_NS, 20_760)
    billing_demo.write_facts(facts, days)
    billing_demo.meter_days(ledger, facts, days, NEXT_MONTH.end_ns)
    ledger.close()
    missing = run("close", "2026-09", *place)
    assert (missing.exit_code, "no price book is published" in missing.output) == (1, True)
    prices.write_text(PRICES)
    assert run("prices", "publish", str(prices), *place).output == "version 1 is published\n"
    assert "already published" in run("prices", "publish", str(prices), *place).output
    assert "tenant language" in run("prices", "check", str(prices)).output
    preview = run("preview", "2026-09", *place)
    assert re.search(r"vision +inv-\w+ +draft +104 +2,731\.68  EUR", preview.output)
    assert "Would be: 2,731.68 EUR" in run("preview", "vision", "2026-09", *place).output
    closed = run("close", "2026-09", "--as", "accountant", *place)
    assert closed.exit_code == 0
    assert "by accountant" in closed.output
    assert "is already closed" in run("close", "2026-09", *place).output
    invoice = re.search(r"vision +(inv-\w+)", closed.output)[1]  # type: ignore[index]
    shown = json.loads(run("statement", "vision", "2026-09", "--format", "json", *place).output)
    assert (shown["invoice"], shown["total"]) == (invoice, "2731.68")
    voided = run("void", invoice, "--reason", "name on it", *place)
    assert voided.output == f"{invoice} of vision is void\n"
    old = run("statement", "vision", "2026-09", "--invoice", invoice, *place).output
    assert old.startswith("VOID STATEMENT")
    assert "name on it" in old
    reconciled = run("reconcile", *place)
    assert reconciled.exit_code == 0
    assert "not compared" not in reconciled.output


ADDED = """
[[price]]
sku = "b200"
tariff = "allocated"
nano_per_gpu_hour = 4_000_000_000
from = 2026-10-01T12:00:00Z
version = 2
"""


def test_a_published_price_book_is_printed_edited_and_published_again(tmp_path: Path) -> None:
    place = ("--ledger", f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    Ledger.open(place[1], metadata).close()
    file = tmp_path / "prices.toml"
    file.write_text(PRICES + "# agreed on with the board\n")
    run("prices", "publish", str(file), *place)
    shown = run("prices", "show", *place).output
    assert shown == file.read_text()
    file.write_text(shown)
    assert "already published" in run("prices", "publish", str(file), *place).output
    edited = shown.replace(
        "version = 1\npublished = 2026-08-20", "version = 2\npublished = 2026-10-01"
    )
    edited += ADDED
    file.write_text(edited)
    assert run("prices", "publish", str(file), *place).output == "version 2 is published\n"
    assert run("prices", "show", *place).output == edited
    assert run("prices", "show", "--version", "1", *place).output == shown
