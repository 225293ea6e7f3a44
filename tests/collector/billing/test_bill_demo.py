"""The simulated month, from evidence to the bill, checked by hand."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from click.testing import CliRunner

from collector.billing import demo, focus_csv
from collector.billing.command import demo as demo_command
from collector.billing.command import prices
from collector.billing.demo import CLOSED_NS, GPUS, MONTH, SELLER, SKU
from collector.billing.focus import billed
from collector.billing.focus_parquet import read_from
from collector.billing.instants import HOUR_NS, Period
from collector.billing.invoice import close, issue
from collector.billing.metered import usages
from collector.billing.reconcile import amounts, capacity, energy, recomputed
from collector.billing.statement import statement
from collector.metering.evidence import Evidence, Stay
from collector.metering.tiling import State
from railscope.reading import Absent

FOUND = demo.run()


def test_the_month_is_what_one_works_out_by_hand() -> None:
    language, vision = FOUND.invoices
    hours = {
        (one.tenant, state): sum(
            (
                line.charge.quantity / (840 * HOUR_NS)
                for line in one.lines
                if line.charge.kind == "usage" and line.charge.state == state
            ),
            Fraction(0),
        )
        for one in FOUND.invoices
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


def test_what_comes_late_is_taken_back_in_the_next_month() -> None:
    (correction,) = FOUND.later
    time = [line for line in correction.lines if line.charge.kind == "usage"]
    hours = sum((line.charge.quantity for line in time), Fraction(0)) / (840 * HOUR_NS)
    assert hours == -36  # from the 29th at noon to the end
    assert sum(line.minor for line in time) == -36 * 259
    assert correction.tenant == "vision"


def test_what_must_be_equal_is() -> None:
    assert FOUND.balances
    assert [check.rule for check in FOUND.checks] == ["R1", "R2", "R4", "R5", "R5", "R5", "R7"]
    assert next(check for check in FOUND.checks if check.rule == "R1").parts == GPUS * 30 * 2


def test_a_statement_adds_up_as_printed() -> None:
    for invoice in (*FOUND.invoices, *FOUND.later):
        lines = statement(invoice, FOUND.reviews).split("\n")
        body = lines[4 : lines.index("", 4)]
        printed = sum(Fraction(line.split()[-1].replace(",", "")) for line in body)
        assert printed == invoice.payable
        assert f"To pay: {float(invoice.payable):,.2f} EUR" in lines
    assert "GPU-4, 2026-09-14T12:00:00Z" in statement(FOUND.invoices[1], FOUND.reviews)
    assert "GPU-4" not in statement(FOUND.later[0], FOUND.reviews)


def test_the_command_prints_it_and_writes_what_others_read(tmp_path: Path) -> None:
    result = CliRunner().invoke(demo_command, ["--focus", str(tmp_path)])
    assert result.exit_code == 0
    assert f"root of the month  {FOUND.root}" in result.output.splitlines()
    assert result.output.count("difference 0\n") == len(FOUND.checks)
    assert "GPU-7, 2026-09-08T14:00:00Z to 2026-09-08T16:00:00Z" in result.output
    rows = focus_csv.parse((tmp_path / "focus-1.2.csv").read_text())
    assert billed(rows) == Fraction(643_741 + 273_168 - 10_016, 100)
    with (tmp_path / "focus-1.2.parquet").open("rb") as file:
        assert list(read_from(file)) == rows
    assert "billed: 9068.93 EUR" in result.output.splitlines()
    again = CliRunner().invoke(demo_command, ["--focus", str(tmp_path), "--format", "csv"])
    assert again.output.splitlines()[-1].startswith("written focus-1.2.csv: 72 rows")


# Reconciliation finds what is wrong --------------------------------------------------------------


def test_capacity_that_is_in_two_nodes_at_once_counts_once() -> None:
    gpu = Evidence("g", (Stay(0, "a", 30), Stay(20, "b", 50), Stay(70, "c", 90)))
    per_day, cluster = capacity([gpu], Period(10, 80))
    assert cluster.expected == 2 * 840 * (40 + 10)
    assert (per_day.difference, cluster.difference, per_day.parts) == (0, 0, 2)


def test_a_lost_charge_and_a_lost_invoice_are_differences() -> None:
    charges = [line.charge for one in FOUND.invoices for line in one.lines]
    lost_charge = amounts(charges[1:], FOUND.invoices, SELLER)
    assert [check.difference != 0 for check in lost_charge] == [True, False, False]
    lost_invoice = amounts(charges, FOUND.invoices[1:], SELLER)
    assert lost_invoice[0].difference == -FOUND.invoices[0].exact
    assert not replace(FOUND, checks=tuple(lost_charge)).balances


def test_another_closing_is_a_difference() -> None:
    charges = [line.charge for line in FOUND.invoices[0].lines]
    other = tuple(issue(one, CLOSED_NS) for one in close(charges[1:], MONTH, "EUR"))
    assert recomputed(FOUND.invoices[:1], FOUND.invoices[:1]).difference == 0
    assert recomputed(FOUND.invoices[:1], other).difference == -1


def test_energy_is_compared_with_the_counters() -> None:
    gpu, counted = demo._evidence(3), demo._counted(demo._evidence(3))  # noqa: SLF001 - the demo's
    check = energy([(gpu, counted)], MONTH)
    assert check.difference == 0
    assert check.expected == int(counted.amounts[counted.ends_ns <= MONTH.end_ns].sum())


def test_energy_that_nobody_counted_is_not_known() -> None:
    held = [one for one in usages(demo._evidence(0), SKU, CLOSED_NS) if one.claim]  # noqa: SLF001
    assert held
    assert {one.energy_millijoules for one in held} == {Absent.UNSUPPORTED}
    assert {one.state for one in held} == {State.OBSERVED, State.INFERRED}


# Price books on the command line -----------------------------------------------------------------


def test_a_price_book_is_checked_and_printed(tmp_path: Path) -> None:
    first, second = tmp_path / "1.toml", tmp_path / "2.toml"
    first.write_text(demo.PRICES)
    second.write_text(demo.PRICES.replace("2_290_000_000", "1_990_000_000"))
    printed = CliRunner().invoke(prices, [str(first)])
    assert printed.exit_code == 0
    assert printed.output.startswith("version 1, published 2026-08-20T09:00:00Z, EUR\n")
    assert "tenant language" in printed.output
    changed = CliRunner().invoke(prices, [str(second), "--before", str(first)])
    assert changed.exit_code == 1
    assert str(second) in changed.output


@pytest.mark.parametrize("text", ["version = 1", "nonsense", "\xff"])
def test_what_is_no_price_book_is_one_clear_line(tmp_path: Path, text: str) -> None:
    file = tmp_path / "prices.toml"
    file.write_bytes(text.encode("latin-1"))
    result = CliRunner().invoke(prices, [str(file)])
    assert result.exit_code == 1
    assert result.output.startswith("Error: ")
    assert len(result.output.splitlines()) == 1
