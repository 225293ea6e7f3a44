"""Pages of tenants, billing and the audit log contain what the API and the commands return, to the digit."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from console_site import TOKENS, browser, console
from running_collector import RunningCollector
from support.books import PRICES, SimulatedEvidence, books_with, claim, evidence_of, gpu, meter
from support.demo_months import copy_demo_months

from railscope.audit.log_checkpoint import read_checkpoint
from railscope.audit.record import RecordActor, RecordSubject
from railscope.timestamps import DAY_NS
from railscope_collector.access.credentials import Role
from railscope_collector.audit.entry_proof import check_proof
from railscope_collector.billing import (
    billing_demo,
    reconciliation_check,
    statement_forms,
)
from railscope_collector.billing.billing_reader import (
    BillingReader,
    BillingUnavailableError,
    MonthCharges,
)
from railscope_collector.billing.charges import format_decimal
from railscope_collector.billing.period_closing import BillingBooks
from railscope_collector.billing.tenant_statements import read_statement
from railscope_collector.console.tenant_pages import charges_row
from railscope_collector.ledger.ledger_store import Ledger
from railscope_collector.ledger.record_draft import RecordDraft
from railscope_collector.metering.units import parse_period
from railscope_collector.tables import metadata

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
    async with serving(directory, ledger, QUOTAS) as found:
        yield found


@contextlib.asynccontextmanager
async def serving(
    directory: Path, ledger: Ledger, quotas: str, reader_type: type[BillingReader] = BillingReader
) -> AsyncIterator[tuple[RunningCollector, BillingBooks]]:
    """A running collector with the books of a ledger, which it closes at the end."""
    books = BillingBooks.for_ledger(ledger)
    reader = reader_type(books, lambda _: billing_demo.SELLER)
    files = {"claims": CLAIMS, "quotas": quotas}
    for name, content in files.items():
        (directory / f"{name}.csv").write_text(content)

    paths = {f"{name}_file": str(directory / f"{name}.csv") for name in files}
    try:
        async with console(directory, billing=lambda: reader, **paths) as running:
            yield running, books
    finally:
        ledger.close()


async def document(running: RunningCollector, path: str, token: str) -> Any:
    return await running.json(path, token)


async def text_of(running: RunningCollector, path: str, role: Role) -> str:
    async with browser(running.url) as reader:
        await reader.sign_in(TOKENS[role])
        page = await reader.get(path)
        assert page.status == 200, page.text
        return re.sub(r"<[^>]+>", " ", page.text)


async def test_a_statement_is_that_of_the_command(tmp_path: Path, demo_months: Path) -> None:
    async with booked(tmp_path, demo_months) as (running, books):
        for period in ("2026-09", "2026-10"):
            model = await document(running, f"/statements/vision/{period}", TENANT)
            found = read_statement(books, "vision", parse_period(period), model["facts"][0][1])
            written = statement_forms.as_text(found)
            assert f"{model['total_label']}: {model['total']} {model['currency']}" in written
            assert model["title"] in written
            amounts = [line["amount"].replace(",", "") for line in model["summary"]]
            assert sum(map(Fraction, amounts)) == found.invoice.payable
            for line in (*model["summary"], *model["claims"]):
                assert all(text in written for text in line.values()), line
            page = await text_of(running, f"/statements/vision/{period}", Role.TENANT)
            assert model["total"] in page


def test_a_difference_is_shown_exactly() -> None:
    wrong = reconciliation_check.ReconciliationCheck(
        "R5", "a = b", Fraction(1, 3), Fraction(2, 3), 2, "vision"
    )
    row = wrong.row
    assert (row.found, row.expected, row.difference) == ("1/3", "2/3", "-1/3")
    assert (row.result, row.passes) == ("worst: vision", False)
    above = replace(wrong, expected=Fraction(0), bound=Fraction(1, 100))
    row = above.row
    assert (row.found, row.expected, row.result) == (
        "33.333 %",
        "≤ 1.000 %",
        "33.333 %, ABOVE 1.000 %",
    )
    row = replace(above, parts=0, absence="not observed").row
    assert (row.found, row.expected, row.result, row.passes) == ("", "", "not observed", None)


async def test_a_tenant_has_its_account_quotas_and_holdings(
    tmp_path: Path, demo_months: Path
) -> None:
    async with booked(tmp_path, demo_months) as (running, _):
        while not (await document(running, "/tenants/vision", TENANT))["until_ns"]:
            await running.collector.refresher.refresh()
        model = await document(running, "/tenants/vision", TENANT)
        assert model["quotas"][0]["gpu_hours"] == 40.5
        assert model["quotas"][0]["gpus"] == 32
        shares = [each["held_ratio"] for gpu in model["gpus"]["rows"] for each in gpu["holders"]]
        assert shares == pytest.approx([3 / 7, 3 / 7])
        assert [job["workload"] for job in model["jobs"]["rows"]] == ["train"]
        newest = {statement["period"] for statement in model["statements"]}
        assert newest == {"2026-09", "2026-10"}
        operator = await document(running, "/tenants/vision", OPERATOR)
        for name in ("jobs", "gpus"):
            # The age of what is known grows between two requests.
            seen = [
                [row | {"age_seconds": None} for row in each[name]["rows"]]
                for each in (operator, model)
            ]
            assert seen[0] == seen[1]
        assert operator["statements"] is None, "operators read no statements"
        finance = await document(running, "/tenants/vision", FINANCE)
        assert (finance["jobs"], finance["gpus"], finance["incidents"]) == (None, None, None)
        assert finance["statements"] == model["statements"]
        listed = await document(running, "/tenants", OPERATOR)
        (row,) = (row for row in listed["tenants"] if row["tenant"] == "vision")
        assert row["gpus"] == pytest.approx(6 / 7)
        own = await document(running, "/tenants", TENANT)
        assert [row["tenant"] for row in own["tenants"]] == ["vision"]


BUDGETS = (
    "tenant,gpu_hours,period,gpus,from,to,budget\n"
    "vision,,month,,2020-01-01T00:00:00Z,,150.5\n"
    "speech,,month,,2020-01-01T00:00:00Z,,7777\n"
)


def held(hours_of_vision: float) -> SimulatedEvidence:
    """A GPU of this tenant and one of another."""
    claims = claim("vision", 5, hours_of_vision), claim("speech", 12)
    return evidence_of(*(gpu(f"GPU-{number}", each) for number, each in enumerate(claims)))


async def rated(running: RunningCollector, token: str) -> dict[str, Any]:
    """Return the charges of a tenant after they have been computed."""
    while True:
        charges: dict[str, Any] = (await document(running, "/tenants/vision", token))["charges"]
        if charges["problem"] != "being computed":
            return charges


async def test_a_tenant_has_its_charges_so_far_and_its_budget(tmp_path: Path) -> None:
    ledger = Ledger.open(f"sqlite:///{tmp_path / 'ledger.sqlite'}", metadata)
    books_with(ledger, held(60))
    async with serving(tmp_path, ledger, BUDGETS) as (running, books):
        charges = await rated(running, TENANT)
        while not charges["budget"]:
            await running.collector.refresher.refresh()
            charges = await rated(running, TENANT)
        (draft,) = [
            draft
            for draft in books.bill(parse_period("2024-10"), correcting=False).drafts
            if draft.tenant == "vision"
        ]
        remaining = Fraction("150.5") - draft.payable
        assert charges == {
            "period": "2024-10",
            "last_day": "2024-10-13",
            "currency": "EUR",
            "problem": "",
            "amount": format_decimal(draft.payable, 2),
            "budget": "150.50",
            "used_percent": format_decimal(draft.exact / Fraction("150.5") * 100, 1),
            "remaining": format_decimal(remaining, 2),
            "is_outdated": False,
        }
        assert Fraction(0) < remaining < draft.payable
        shown = await text_of(running, "/tenants/vision", Role.TENANT)
        assert f"{charges['amount']} EUR" in shown
        assert f"{charges['used_percent']} %" in shown
        assert "finalized days through 2024-10-13" in shown
        for token in (FINANCE, AUDITOR):
            assert (await document(running, "/tenants/vision", token))["charges"] == charges
        assert (await document(running, "/tenants/speech", FINANCE))["charges"][
            "budget"
        ] == "7,777.00"
        assert (await document(running, "/tenants/vision", OPERATOR))["charges"] is None
        assert (await running.get("/tenants/speech", TENANT))[0] == 403
        assert "7,777" not in shown

        meter(ledger, held(90))
        changed = charges
        while changed["amount"] == charges["amount"]:
            await running.collector.refresher.refresh()
            changed = (await document(running, "/tenants/vision", TENANT))["charges"]
        assert Fraction(changed["amount"]) > Fraction("150.5")
        assert changed["remaining"].startswith("-")
        assert Fraction(changed["used_percent"]) > 100


async def test_the_reason_for_missing_charges_names_no_other_tenant(tmp_path: Path) -> None:
    ledger = Ledger.open(f"sqlite:///{tmp_path / 'ledger.sqlite'}", metadata)
    only_vision = PRICES.replace('sku = "h100"', 'sku = "h100"\ntenant = "vision"')
    books_with(ledger, held(60), only_vision)
    async with serving(tmp_path, ledger, BUDGETS) as (running, _):
        while (await running.get("/tenants/vision", AUDITOR))[0] == 404:
            await running.collector.refresher.refresh()
        own = await rated(running, TENANT)
        assert (own["problem"], own["amount"]) == ("some usage has no price", "")
        assert (own["used_percent"], own["remaining"]) == ("", "")
        assert "some usage has no price" in await text_of(running, "/tenants/vision", Role.TENANT)
        whole = await rated(running, AUDITOR)
        assert "no price of time" in whole["problem"]
        assert "speech" in whole["problem"]


@pytest.mark.parametrize(
    ("exact", "budget", "shown"),
    [
        ("0", None, ("0.00", "", "", "")),
        ("0", "10", ("0.00", "10.00", "0.0", "10.00")),
        ("10.005", "10", ("10.00", "10.00", "100.0", "0.00")),
        ("1/3", "1", ("0.33", "1.00", "33.3", "0.67")),
        ("1234.56", "1000", ("1,234.56", "1,000.00", "123.5", "-234.56")),
        ("5", "0", ("5.00", "0.00", "", "-5.00")),
    ],
)
def test_an_amount_is_rounded_once(exact: str, budget: str | None, shown: tuple[str, ...]) -> None:
    october = parse_period("2026-10")
    last_day = october.end_ns // DAY_NS - 1
    month = MonthCharges(october, last_day, "EUR", {"vision": Fraction(exact)})
    row = charges_row(month, "vision", None if budget is None else Fraction(budget), "")
    assert (row.amount, row.budget, row.used_percent, row.remaining) == shown
    assert (row.period, row.last_day) == ("2026-10", "2026-10-31")


async def test_without_a_ledger_the_rest_of_a_tenant_is_shown(tmp_path: Path) -> None:
    async with console(tmp_path, billing=unavailable) as running:
        model = await document(running, "/tenants/vision", TENANT)
        assert model["statements_problem"] == "the ledger is unavailable"
        assert model["charges"]["problem"] == "the ledger is unavailable"
        assert (await running.get("/billing", FINANCE))[0] == 503


def unavailable() -> BillingReader:
    message = "no such database"
    raise BillingUnavailableError(message)


def drafts() -> Iterator[RecordDraft]:
    operator, subject = RecordActor("person", "op"), RecordSubject("n1", "GPU-1", "GPU-1")
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
        model = await document(running, "/audit", AUDITOR)
        checkpoint = read_checkpoint(model["checkpoint"], log.signer.public)
        assert checkpoint.tree.size == model["size"] > len(list(drafts()))
        assert model["health"]["records"] >= model["size"]
        indexes = {int(each["record"]["t"]): each["index"] for each in model["entries"]}
        for time_ns in (1000, 1001, 1002):
            index = indexes[time_ns]
            (entry,) = (await document(running, f"/audit/{index}", AUDITOR))["entries"]
            assert await proven_record(running, index, AUDITOR) == entry["record"]
        text = await text_of(running, f"/audit/{index}", Role.AUDITOR)
        assert "railscope audit check-proof" in text
        assert "n1 GPU-1 " in text
        assert "GPU-1 GPU-1" not in text

        own = await document(running, "/audit", TENANT)
        shown = {each["index"] for each in own["entries"]}
        assert {indexes[1001], indexes[1002]} <= shown
        assert indexes[1000] not in shown, "it names another tenant"
        assert own["health"] is None
        assert await running.get(f"/audit/{indexes[1000]}", TENANT) == (
            await running.get("/audit/99999999", TENANT)
        ), "a record of another tenant is not distinguishable from one that does not exist"
        (whole,) = (await document(running, f"/audit/{indexes[1001]}", TENANT))["entries"]
        assert await proven_record(running, indexes[1001], TENANT) == whole["record"]
        (partial,) = (await document(running, f"/audit/{indexes[1002]}", TENANT))["entries"]
        assert partial["withheld"] == ["ref"]
        text = await text_of(running, f"/audit/{indexes[1002]}", Role.TENANT)
        assert "There is no proof for you" in text
        assert "speech" not in json.dumps(partial)


async def proven_record(running: RunningCollector, index: int, token: str) -> Any:
    status, proof = await running.get(f"/api/v1/audit/entries/{index}", token)
    assert status == 200, proof
    return json.loads(check_proof(proof, running.collector.trail.log.signer.public))
