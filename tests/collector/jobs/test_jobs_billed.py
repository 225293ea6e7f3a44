"""A cluster billed by its job history alone: imported, closed, with statements, and reconciled."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from railscope.audit.record import RecordActor
from railscope.cli import root as railscope
from railscope_collector.billing.export_provenance import provenance_of_lines
from railscope_collector.billing.period_closing import BillingBooks
from railscope_collector.jobs.imported_lists import NewList, PlacedJob
from railscope_collector.jobs.job_list_import import import_list
from railscope_collector.ledger.ledger_store import Ledger
from railscope_collector.ledger.record_draft import TimedActor
from railscope_collector.metering.units import parse_period
from railscope_collector.tables import metadata

S = 1_000_000_000
START = parse_period("2025-12").start_ns // S
HOUR = 3600
HEADER = "JobIDRaw|User|Account|Start|End|NodeList|AllocTRES"
PRICES = """
version = 1
published = 2024-01-01T00:00:00Z
currency = "EUR"

[[price]]
sku = "h100"
tariff = "allocated"
nano_per_gpu_hour = 2_000_000_000
from = 2024-01-01T00:00:00Z
version = 1
"""
TENANTS = """tenant,source,owner,from,to
institute,slurm,physics,2025-01-01T00:00:00Z,2025-12-11T00:00:00Z
faculty,slurm,physics,2025-12-11T00:00:00Z,
"""


def row(number: int, account: str, first: int, last: int | None, gpus: int) -> str:
    """A job from one hour of December to another."""
    end = "Unknown" if last is None else START + last * HOUR
    return f"{number}|u|{account}|{START + first * HOUR}|{end}|n[1-2]|cpu=1,gres/gpu={gpus}"


ROWS = [
    row(1, "physics", 0, 10, 4),
    row(2, "physics", 230, 250, 2),  # over the day on which the account changes hands
    row(3, "chemistry", 5, 100, 8),
    row(4, "chemistry", 31 * 24 - 5, 31 * 24 + 7, 1),  # runs on into January
    row(5, "biology", 31 * 24 - 3, None, 2),
]


class BilledCluster:
    """A directory with a ledger, prices and books."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.url = f"sqlite:///{directory / 'ledger.sqlite'}"
        self.tenants = self.file("tenants.csv", TENANTS)

    def file(self, name: str, text: str) -> Path:
        found = self.directory / name
        found.write_text(text)
        return found

    def books(self, *rows: str) -> Path:
        return self.file("sacct.txt", "\n".join([HEADER, *rows, ""]))

    def bill(self, *arguments: object) -> Result:
        given = [*map(str, arguments), "--ledger", self.url]
        return CliRunner().invoke(railscope, ["bill", *given])

    def publish(self) -> None:
        """Publish prices."""
        published = self.bill("prices", "publish", self.file("prices.toml", PRICES))
        assert published.exit_code == 0, published.output

    def imported(self, books: Path, period: str, *more: str) -> Result:
        return self.bill(
            "import-jobs",
            books,
            "--period",
            period,
            "--placeholder-gpus",
            "--treat-as-observed",
            "--sku",
            "h100",
            "--tenants",
            self.tenants,
            *more,
        )


@pytest.fixture
def cluster(tmp_path: Path) -> BilledCluster:
    return BilledCluster(tmp_path)


def totals(printed: str) -> dict[str, str]:
    """Amount of each tenant, as a closing prints it."""
    lines = [line.split() for line in printed.splitlines() if line.endswith("EUR")]
    return {arguments[0]: arguments[-2] for arguments in lines}


def test_history_is_billed_and_agrees_with_the_books(cluster):
    books = cluster.books(*ROWS)
    assert cluster.imported(books, "2025-12").exit_code == 0
    cluster.publish()
    closed = cluster.bill("close", "2025-12")
    assert closed.exit_code == 0, closed.output
    assert totals(closed.stdout) == {
        "institute": "120.00",  # 2 EUR for 4 x 10 and 2 x 10 hours
        "faculty": "40.00",  # 2 x 10
        "chemistry": "1,530.00",  # 8 x 95 and 1 x 5
        "biology": "12.00",  # 2 x 3, and still running
    }
    statement = cluster.bill("statement", "chemistry", "2025-12").stdout
    assert "1,530.00" in statement
    assert "Basis    job list; no agent measured it" in statement
    assert "100.000 %" not in statement
    document = cluster.bill("statement", "chemistry", "2025-12", "--format", "json").stdout
    assert json.loads(document)["observed"] is None
    ledger = Ledger.open(cluster.url, metadata)
    store = BillingBooks.for_ledger(ledger).store
    origins = [provenance_of_lines(store, invoice).values() for invoice in store.invoices()]
    ledger.close()
    assert {origin.coverage_ratio for of_invoice in origins for origin in of_invoice} == {0}
    agreed = cluster.bill("reconcile", "2025-12", "--slurm", books, "--tenants", cluster.tenants)
    assert agreed.exit_code == 0, agreed.output
    assert "jobs that differ: 0" in agreed.stdout
    assert "not compared, as they have not ended: 5" in agreed.stdout


def test_a_list_that_was_made_before_its_period_ended_does_not_close_it(cluster):
    books = cluster.books(row(1, "physics", 0, 10, 1))
    early = cluster.imported(books, "2025-12", "--as-of", "2025-12-20T12:00:00Z")
    assert early.exit_code == 0, early.output
    cluster.publish()
    rejected = cluster.bill("close", "2025-12")
    assert rejected.exit_code == 1
    assert "(job list slurm from 2025-12-20 to 2025-12-31)" in rejected.output
    fix = "fix: import the list of slurm again, made after the period ended, or close with"
    assert fix in rejected.output
    # The same jobs, but no other one began until the end of the period.
    assert cluster.imported(books, "2025-12").exit_code == 0
    closed = cluster.bill("close", "2025-12")
    assert totals(closed.stdout) == {"institute": "20.00"}


def test_a_day_that_no_later_list_changes_is_final(cluster):
    """The ledger has it as computed on that day: the later list has the same jobs."""
    period, noon = parse_period("2025-12"), (START + 14 * 24 * HOUR + 12 * HOUR) * S
    job = PlacedJob("n1/g0", noon - 6 * HOUR * S, "1", "a", noon - 4 * HOUR * S, "n1", "h100")
    ledger = Ledger.open(cluster.url, metadata)
    for now_ns in (noon, period.end_ns + HOUR * S):
        made_ns = min(now_ns, period.end_ns)
        by = TimedActor(RecordActor("operator", "op", "test"), now_ns)
        import_list(ledger, NewList("slurm", period, made_ns, as_observed=True, jobs=[job]), by)
    ledger.close()
    cluster.publish()
    closed = cluster.bill("close", "2025-12")
    assert closed.exit_code == 0, closed.output
    assert totals(closed.stdout) == {"a": "4.00"}


def test_an_account_with_the_name_of_a_tenant_is_not_billed_to_it(cluster):
    books = cluster.books(row(1, "physics", 0, 10, 1), row(2, "institute", 0, 10, 3))
    assert cluster.imported(books, "2025-12").exit_code == 0
    cluster.publish()
    closed = cluster.bill("close", "2025-12")
    assert totals(closed.stdout) == {"institute": "20.00", "slurm:institute": "60.00"}
    agreed = cluster.bill("reconcile", "2025-12", "--slurm", books, "--tenants", cluster.tenants)
    assert agreed.exit_code == 0, agreed.output


def test_a_job_keeps_the_price_of_its_start_if_its_account_changes_hands(cluster):
    assert cluster.imported(cluster.books(row(2, "physics", 230, 250, 2)), "2025-12").exit_code == 0
    head, price = PRICES.split("[[price]]")
    rise = "2025-12-11T00:00:00Z"
    before = f"{price}at_claim_start = true\nto = {rise}\n"
    after = price.replace("2_000_000_000", "5_000_000_000").replace("2024-01-01T00:00:00Z", rise)
    prices = cluster.file("prices.toml", f"{head}[[price]]{before}[[price]]{after}")
    assert cluster.bill("prices", "publish", prices).exit_code == 0
    closed = cluster.bill("close", "2025-12")
    assert totals(closed.stdout) == {"institute": "40.00", "faculty": "40.00"}


@pytest.mark.parametrize("order", [("2025-12", "2026-01"), ("2026-01", "2025-12")])
def test_a_job_in_two_lists_has_one_minimum_whatever_its_stand_ins(cluster, order):
    other = row(1, "physics", 31 * 24 - 4, 31 * 24 - 1, 1)
    job = (
        f"2|u|chemistry|{START + 31 * 24 * HOUR - 600}|{START + 31 * 24 * HOUR + 600}|n1|gres/gpu=1"
    )
    longer = (
        f"3|u|biology|{START + 31 * 24 * HOUR - 5400}|{START + 31 * 24 * HOUR - 300}|n1|gres/gpu=1"
    )
    lists = {"2025-12": [other, longer, job], "2026-01": [job]}
    for period in order:
        found = cluster.imported(cluster.books(*lists[period]), period)
        assert found.exit_code == 0, found.output
    prices = f"{PRICES}minimum_seconds = 3600\n"
    cluster.bill("prices", "publish", cluster.file("prices.toml", prices))
    first = cluster.bill("close", "2025-12")
    assert totals(first.stdout)["chemistry"] == "0.33", "it goes on in the next list"
    second = cluster.bill("close", "2026-01")
    assert totals(second.stdout) == {"chemistry": "1.67"}, second.output


def test_a_difference_from_the_books_is_named_and_fails(cluster):
    cluster.imported(cluster.books(*ROWS), "2025-12")
    cluster.publish()
    other = cluster.books(ROWS[0], *ROWS[2:4], row(6, "biology", 1, 2, 1))
    found = cluster.bill("reconcile", "2025-12", "--slurm", other, "--tenants", cluster.tenants)
    assert found.exit_code == 1
    differing = [line for line in found.stdout.splitlines() if line.startswith("  job ")]
    assert [line.split()[1] for line in differing] == ["2", "5", "6"]
    assert "in the ledger and not in the scheduler's records" in differing[0]
    assert "in the scheduler's records and not in the ledger" in differing[2]


def test_a_comparison_without_a_bad_line_is_not_complete(cluster):
    books = cluster.books(*ROWS)
    cluster.imported(books, "2025-12")
    cluster.publish()
    cluster.books(*ROWS, row(7, "biology", 5, 4, 1))
    found = cluster.bill("reconcile", "2025-12", "--slurm", books, "--tenants", cluster.tenants)
    assert found.exit_code == 1
    lines = found.stdout.splitlines()
    assert "jobs that differ: 0" in lines
    assert lines[-2] == "NOT COMPLETE, not compared: 1 line"
    assert lines[-1].startswith(f"  {books}: line 7: End: ")


def test_months_follow_one_another_and_a_gpu_that_no_list_names_is_not_idled(cluster):
    cluster.imported(cluster.books(*ROWS), "2025-12")
    later = cluster.books(*ROWS[:4], row(5, "biology", 31 * 24 - 3, 31 * 24 + 1, 2))
    january = cluster.imported(later, "2026-01")
    assert january.exit_code == 0, january.output
    # Only the jobs that run on have GPUs in January: the list states nothing about the others.
    assert january.stdout.splitlines()[-1] == f"ledger: {3 * 31} GPU-days written, 0 unchanged"
    cluster.publish()
    for period in ("2025-12", "2026-01"):
        closed = cluster.bill("close", period)
        assert closed.exit_code == 0, closed.output
    assert totals(closed.stdout) == {"chemistry": "14.00", "biology": "4.00"}


def test_books_that_cannot_be_read_are_one_clear_line(cluster):
    cluster.imported(cluster.books(*ROWS), "2025-12")
    wrong = cluster.file("wrong.txt", "hello\n")
    for option in ("--slurm", "--kubernetes"):
        found = cluster.bill("reconcile", "2025-12", option, wrong)
        assert found.exit_code == 1
        assert found.stderr.startswith(f"Error: cannot read the scheduler's records {wrong}: ")
    refused = cluster.bill("reconcile", "2025-12", "--slurm", wrong, "--tenants", wrong)
    assert refused.exit_code == 1
    assert len(refused.stderr.splitlines()) == 1


def test_a_month_without_the_list_of_a_source_is_not_closed(cluster):
    cluster.imported(cluster.books(*ROWS), "2025-12")
    cluster.publish()
    assert cluster.bill("close", "2025-12").exit_code == 0
    refused = cluster.bill("close", "2026-01")
    assert refused.exit_code == 1
    assert "job list slurm from 2026-01-01 to 2026-01-31" in refused.stderr


def test_a_closing_names_the_lines_that_are_not_imported(cluster):
    bad = ROWS[0].replace("gres/gpu=4", "gres/gpu=four")
    found = cluster.imported(cluster.books(*ROWS[1:4], bad), "2025-12")
    assert found.exit_code == 0, found.output
    cluster.publish()
    for command in ("preview", "close"):
        lines = cluster.bill(command, "2025-12").stdout.splitlines()
        at = lines.index("incomplete job list slurm 2025-12: 1 line not imported")
        assert lines[at + 1].startswith("  line 5: AllocTRES: ")


@pytest.mark.parametrize("last", [None, 31 * 24 + 1])
def test_a_minimum_is_charged_in_the_period_in_which_the_job_ends(cluster, last):
    first = 31 * 24 - 1
    assert (
        cluster.imported(cluster.books(row(1, "physics", first, last, 1)), "2025-12").exit_code == 0
    )
    minimum = PRICES + "minimum_seconds = 36000\n"
    cluster.bill("prices", "publish", cluster.file("minimum.toml", minimum))
    december = cluster.bill("close", "2025-12")
    assert totals(december.stdout) == {"faculty": "2.00"}
    ended = cluster.books(row(1, "physics", first, 31 * 24 + 1, 1))
    assert cluster.imported(ended, "2026-01").exit_code == 0
    january = cluster.bill("close", "2026-01")
    assert totals(january.stdout) == {"faculty": "18.00"}  # 10 hours in all


def test_a_job_that_ends_with_its_period_has_its_minimum_there(cluster):
    ended = cluster.books(row(1, "physics", 31 * 24 - 1, 31 * 24, 1))
    assert cluster.imported(ended, "2025-12").exit_code == 0
    minimum = PRICES + "minimum_seconds = 36000\n"
    cluster.bill("prices", "publish", cluster.file("minimum.toml", minimum))
    assert totals(cluster.bill("close", "2025-12").stdout) == {"faculty": "20.00"}
