"""Bills name the GPU-days whose evidence was received while the collector's clock was suspect."""

from __future__ import annotations

import json

from msgspec.structs import replace
from support.books import (
    ALL,
    FIRST_DAY,
    ONE,
    START,
    books_after,
    books_with,
    evidence_of,
    exact_amounts,
    manager_after,
)
from support.metered import revision_of
from support.statement_readers import from_csv, from_json

from railscope.timestamps import DAY_NS, HOUR_NS
from railscope_collector.billing.evidence_reconciliation import evidence_checks
from railscope_collector.billing.statement_html import as_html
from railscope_collector.billing.statement_rows import as_csv, as_json
from railscope_collector.billing.statement_text import as_text
from railscope_collector.billing.tenant_statements import preview_statement, read_statement
from railscope_collector.metering.evidence import ClockDoubt
from railscope_collector.metering.timeline import TimePiece

DOUBT = ClockDoubt(START + DAY_NS + HOUR_NS, -HOUR_NS)
RETURNED = ClockDoubt(START + DAY_NS + 5 * HOUR_NS)
TERMS = "since 2024-10-05T01:00:00Z, accepted -3,600.000000000 s later"


def doubted(*doubts: ClockDoubt):
    """The same two GPUs; GPU-0 has evidence of a suspect time on its second day."""
    start_ns = START + DAY_NS + HOUR_NS
    pieces = [TimePiece(start_ns, start_ns + HOUR_NS, doubt) for doubt in doubts]
    return evidence_of(replace(ALL.assembled["GPU-0"], doubts=pieces), ALL.assembled["GPU-1"])


def test_a_statement_names_marked_days_and_why(ledger):
    known = doubted(DOUBT, RETURNED)
    books = books_with(ledger, known)
    early = preview_statement(books.bill(ONE), "red")
    closed = books.close(ONE, manager_after(ONE))
    issued = read_statement(books, "red", ONE)
    for one in (early, issued):
        assert dict(one.proof)["Clock suspect"].startswith(f"1 GPU-day: {TERMS}; since 2024")
        assert TERMS in as_text(one)
        assert TERMS in as_html(one)
        lines = from_json(as_json(one)).lines
        marked = {line.start[:10] for line in lines if line.clock_suspect}
        assert marked == {"2024-10-05"}
        assert {line.resource for line in lines if line.clock_suspect} == {"GPU-0"}
        rows = from_csv(as_csv(one))
        assert [row["clock_suspect"] for row in rows] == [line.clock_suspect for line in lines]
    assert "Clock suspect" not in dict(read_statement(books, "green", ONE).proof)
    assert not any(check.difference for check in evidence_checks(ledger, known, ONE))
    plain = [invoice.total_minor for invoice in closed.invoices]
    assert plain == [invoice.total_minor for invoice in books.store.invoices()]


def test_a_mark_changes_no_amount_and_corrects_nothing(ledger):
    """Evidence of a suspect time comes for a closed period: a revision, and no correction."""
    books = books_with(ledger, ALL)
    books.close(ONE, manager_after(ONE))
    before = exact_amounts(books.store.invoices())
    number = revision_of(ledger, "GPU-0", FIRST_DAY + 1).number
    books = books_after(books, doubted(DOUBT))
    assert revision_of(ledger, "GPU-0", FIRST_DAY + 1).number == number + 1
    assert [charge for _, some in books.find_pending().corrections for charge in some] == []
    assert exact_amounts(books.store.invoices()) == before
    assert "Clock suspect" not in dict(read_statement(books, "red", ONE).proof), (
        "it rests on the first"
    )


def test_a_mark_that_evidence_does_not_have_is_found(ledger):
    """R7 compares the mark with the rest."""
    books_with(ledger, doubted(DOUBT))
    wrong = [check for check in evidence_checks(ledger, ALL, ONE) if check.difference]
    assert [one.rule for one in wrong] == ["R7"]


def test_statements_of_earlier_releases_have_no_mark(ledger):
    books = books_with(ledger, ALL)
    found = json.loads(as_json(preview_statement(books.bill(ONE), "red")))
    for line in found["lines"]:
        del line["clock_suspect"]
    assert {line.clock_suspect for line in from_json(json.dumps(found).encode()).lines} == {""}
