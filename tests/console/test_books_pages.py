"""Pages of tenants, billing and the audit log contain what the API and the commands return, to the digit."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from console_site import TOKENS, browser, console
from running_collector import RunningCollector
from support.demo_months import copy_demo_months

from collector.access.credentials import Role
from collector.audit.tiles import check_proof
from collector.billing import billing_demo, reconciliation, statement_formats
from collector.billing.charges import format_decimal
from collector.billing.period_closing import BillingBooks
from collector.billing.tenant_statements import (
    BillingReader,
    BillingUnavailableError,
    read_statement,
)
from collector.console.billing_pages import check_row
from collector.ledger.audit_outbox import RecordDraft, put_record
from collector.ledger.ledger_store import Ledger
from collector.metering.units import parse_period
from collector.tables import metadata
from railscope.audit.record import RecordActor, RecordSubject
from railscope.audit.signed_note import read_checkpoint
from railscope.service import run_in_thread

CLAIMS = "tenant,gpu,from,to,workload,share\nvision,n1,2026-01-01T00:00:00Z,,train,3/7\n"
QUOTAS = "tenant,gpu_hours,period,gpus,from,to\nvision,40.5,month,32,2020-01-01T00:00:00Z,\n"
FINANCE, AUDITOR, TENANT, OPERATOR = (
    TOKENS[role] for role in (Role.FINANCE, Role.AUDITOR, Role.TENANT, Role.OPERATOR)
)


@contextlib.asynccontextmanager
async def booked(
    directory: Path, months: Path
) -> AsyncIterator[tuple[RunningCollector, BillingBooks]]:
    """A running collector with the books of two closed months."""
    ledger = Ledger.open(copy_demo_months(months, directory / "months.sqlite"), metadata)
    books = BillingBooks.for_ledger(ledger)
    reader = BillingReader(books, lambda _: billing_demo.SELLER)
    files = {"claims": CLAIMS, "quotas": QUOTAS}
    for name, content in files.items():
        (directory / f"{name}.csv").write_text(content)

    def prepare(running: RunningCollector) -> None:
        running.collector.billing = lambda: reader

    paths = {f"{name}_file": str(directory / f"{name}.csv") for name in files}
    try:
        async with console(directory, prepare, **paths) as running:
            yield running, books
    finally:
        ledger.close()


async def twin(running: RunningCollector, path: str, token: str) -> Any:
    return await running.json(f"/api/v1/pages{path}", token)


async def text_of(running: RunningCollector, path: str, role: Role) -> str:
    async with browser(running.url) as reader:
        await reader.sign_in(TOKENS[role])
        page = await reader.get(path)
        assert page.status == 200, page.text
        return re.sub(r"<[^>]+>", " ", page.text)


async def test_a_statement_is_that_of_the_command(tmp_path: Path, demo_months: Path) -> None:
    async with booked(tmp_path, demo_months) as (running, books):
        for period in ("2026-09", "2026-10"):
            model = await twin(running, f"/statements/vision/{period}", TENANT)
            found = read_statement(books, "vision", parse_period(period), model["facts"][0][1])
            written = statement_formats.as_text(found)
            assert f"{model['total_label']}: {model['total']} {model['currency']}" in written
            assert model["title"] in written
            amounts = [line["amount"].replace(",", "") for line in model["summary"]]
            assert sum(map(Fraction, amounts)) == found.invoice.payable
            for line in (*model["summary"], *model["claims"]):
                assert all(text in written for text in line.values()), line
            page = await text_of(running, f"/statements/vision/{period}", Role.TENANT)
            assert model["total"] in page


async def test_periods_have_the_totals_of_their_valid_invoices(
    tmp_path: Path, demo_months: Path
) -> None:
    async with booked(tmp_path, demo_months) as (running, books):
        model = await twin(running, "/billing", FINANCE)
        assert [row["period"] for row in model["rows"]] == ["2026-10", "2026-09"]
        for row in model["rows"]:
            period = parse_period(row["period"])
            valid = books.store.valid_invoices(period.start_ns)
            payable = sum(each.payable for each in valid if each.period == period)
            (total,) = row["totals"]
            assert total == f"{format_decimal(payable, 2)} EUR"
            one = await twin(running, f"/billing/{row['period']}", AUDITOR)
            assert one["totals"] == [total]
            assert [each["tenant"] for each in one["invoices"]] == [
                head.tenant for head in books.store.heads(period) if head.period == period
            ]
            checks = reconciliation.reconcile_period(books, period, billing_demo.SELLER)
            again = await twin(running, f"/billing/{row['period']}/reconciliation", FINANCE)
            assert [each["title"] for each in again["rows"]] == [each.title for each in checks]
            assert again["failed"] == sum(not check.passes for check in checks) == 0


async def test_a_period_is_reconciled_again_after_a_change_of_the_ledger(
    tmp_path: Path, demo_months: Path
) -> None:
    async with booked(tmp_path, demo_months) as (running, books):
        path = "/billing/2026-09/reconciliation"
        first = await twin(running, path, FINANCE)
        await running.collector.refresher.refresh()
        assert await twin(running, path, AUDITOR) == first, "computed once for all readers"
        with books.store.write_transaction() as connection:
            put_record(connection, "test", next(drafts()))
        await running.collector.refresher.refresh()
        again = await twin(running, path, FINANCE)
        assert again["computed_ns"] > first["computed_ns"]
        assert (again["failed"], len(again["rows"])) == (0, len(first["rows"]))


def test_a_difference_is_shown_exactly() -> None:
    wrong = reconciliation.ReconciliationCheck(
        "R5", "a = b", Fraction(1, 3), Fraction(2, 3), 2, "vision"
    )
    row = check_row(wrong)
    assert (row.found, row.expected, row.difference) == ("1/3", "2/3", "-1/3")
    assert (row.result, row.passes) == ("DIFFERS: vision", False)
    above = replace(wrong, expected=Fraction(0), bound=Fraction(1, 100))
    row = check_row(above)
    assert (row.found, row.expected, row.result) == ("33.333 %", "≤ 1.000 %", "ABOVE")


async def test_a_tenant_has_its_account_quotas_and_holdings(
    tmp_path: Path, demo_months: Path
) -> None:
    async with booked(tmp_path, demo_months) as (running, _):
        while not (await twin(running, "/tenants/vision", TENANT))["until_ns"]:
            await running.collector.refresher.refresh()
        model = await twin(running, "/tenants/vision", TENANT)
        assert model["quotas"][0]["gpu_hours"] == "40.500"
        assert model["quotas"][0]["gpus"] == "32"
        assert [gpu["share"] for gpu in model["holdings"]["gpus"]] == ["3/7", "3/7"]
        assert [job["workload"] for job in model["holdings"]["jobs"]] == ["train"]
        newest = {statement["period"] for statement in model["statements"]}
        assert newest == {"2026-09", "2026-10"}
        operator = await twin(running, "/tenants/vision", OPERATOR)
        assert operator["holdings"] == model["holdings"]
        assert operator["statements"] is None, "operators read no statements"
        finance = await twin(running, "/tenants/vision", FINANCE)
        assert (finance["holdings"], finance["incidents"]) == (None, None)
        assert finance["statements"] == model["statements"]
        listed = await twin(running, "/tenants", OPERATOR)
        (row,) = (row for row in listed["rows"] if row["tenant"] == "vision")
        assert row["gpus"] == "0.857"
        own = await twin(running, "/tenants", TENANT)
        assert [row["tenant"] for row in own["rows"]] == ["vision"]


async def test_without_a_ledger_the_rest_of_a_tenant_is_shown(tmp_path: Path) -> None:
    def prepare(running: RunningCollector) -> None:
        running.collector.billing = unavailable

    async with console(tmp_path, prepare) as running:
        model = await twin(running, "/tenants/vision", TENANT)
        assert model["statements_problem"] == "the ledger is unavailable"
        assert (await running.get("/api/v1/pages/billing", FINANCE))[0] == 503


async def test_a_slow_ledger_delays_no_other_page(tmp_path: Path) -> None:
    released, reading = threading.Event(), threading.Semaphore(0)

    def prepare(running: RunningCollector) -> None:
        def wait() -> BillingReader:
            reading.release()
            released.wait()
            return unavailable()

        running.collector.billing = wait

    async with console(tmp_path, prepare) as running:
        paths = ("/billing", "/statements", "/tenants/vision")
        waiting = [asyncio.create_task(twin(running, path, AUDITOR)) for path in paths]
        try:
            for _ in paths:
                await run_in_thread(reading.acquire)
            for path in ("/", "/nodes", "/tenants"):
                assert (await running.get(f"/api/v1/pages{path}", AUDITOR))[0] == 200
            assert not any(task.done() for task in waiting)
        finally:
            released.set()
            await asyncio.gather(*waiting, return_exceptions=True)


def unavailable() -> BillingReader:
    message = "no such database"
    raise BillingUnavailableError(message)


def drafts() -> Iterator[RecordDraft]:
    operator, subject = RecordActor("person", "op"), RecordSubject("n1", "GPU-1")
    for number, tenant in enumerate(("speech", "vision", "vision")):
        references = ("slurm/speech/7",) if number == 2 else ()
        yield RecordDraft(
            "tenancy.assign",
            operator,
            1000 + number,
            "done",
            subject,
            {"tenant": tenant},
            references,
        )


async def test_the_audit_log_has_proofs_that_verify(tmp_path: Path) -> None:
    async with console(tmp_path) as running:
        log = running.collector.trail.log
        for draft in drafts():
            await log.append(draft)
        await log.sign()
        model = await twin(running, "/audit", AUDITOR)
        checkpoint = read_checkpoint(model["checkpoint"], log.signer.public)
        assert checkpoint.tree.size == model["size"] > len(list(drafts()))
        assert model["health"]["records"] >= model["size"]
        indexes = {row["time_ns"]: row["index"] for row in model["rows"]}
        for time_ns in (1000, 1001, 1002):
            index = indexes[time_ns]
            record = await twin(running, f"/audit/{index}", AUDITOR)
            proven = json.loads(check_proof(record["proof"], log.signer.public))
            assert proven == json.loads(record["record"])
        assert "railscope audit check-proof" in await text_of(
            running, f"/audit/{index}", Role.AUDITOR
        )

        own = await twin(running, "/audit", TENANT)
        assert {row["tenant"] for row in own["rows"]} == {"vision"}
        assert (own["health"], own["read_problem"]) == (None, "")
        assert await running.get(f"/api/v1/pages/audit/{indexes[1000]}", TENANT) == (
            await running.get("/api/v1/pages/audit/99999999", TENANT)
        ), "a record of another tenant is not distinguishable from one that does not exist"
        whole = await twin(running, f"/audit/{indexes[1001]}", TENANT)
        assert json.loads(check_proof(whole["proof"], log.signer.public)) == proven_of(whole)
        partial = await twin(running, f"/audit/{indexes[1002]}", TENANT)
        assert (partial["proof"], partial["withheld"]) == ("", ["ref"])
        assert "speech" not in json.dumps(partial)


def proven_of(model: Any) -> Any:
    return json.loads(model["record"])
