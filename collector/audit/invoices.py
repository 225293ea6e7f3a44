"""Invoices of the ledger against their records: each has one, with the hash of what it says."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from collector.audit.outbox import placed
from collector.billing.store import ISSUE, BillingStore
from railscope.audit.record import Record


class Compared(NamedTuple):
    """What does not fit, and what is to come."""

    wrong: list[str]
    waiting: list[str]


def compare_invoices(issued: Iterable[Record], store: BillingStore) -> Compared:
    """Compare records of the log with the ledger, both ways. Blocking; raises LedgerError."""
    wrong: list[str] = []
    waiting: list[str] = []
    hashes: dict[str, str] = {}
    for record in issued:
        invoice = str(record.data.get("invoice", ""))
        if invoice in hashes:
            wrong.append(f"record {record.seq}: invoice {invoice} was issued before")
        hashes[invoice] = str(record.data.get("content_hash", ""))
    for one in store.invoices():
        recorded = hashes.pop(one.invoice_id, None)
        if recorded is None:
            with store.database.transaction() as connection:
                leaf = placed(connection, ISSUE + one.invoice_id)
            where = f"is in record {leaf} of another log" if leaf is not None else "is not recorded"
            (wrong if leaf is not None else waiting).append(f"invoice {one.invoice_id} {where}")
        elif recorded != one.content_hash:
            wrong.append(f"invoice {one.invoice_id} is not what was recorded when it was issued")
    wrong += [f"invoice {invoice} was issued and is not in the ledger" for invoice in hashes]
    return Compared(wrong, waiting)
