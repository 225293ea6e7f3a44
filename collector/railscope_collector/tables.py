"""All tables of the database: importing `metadata` from this module declares all of them.

Each package declares its own. Triggers keep every table append-only, except those
of leases and of the collectors.
"""

from __future__ import annotations

from railscope_collector.billing import tables as billing
from railscope_collector.evidence import (
    evidence_contents,
    evidence_tables as evidence,
    first_receipts,
)
from railscope_collector.jobs import imported_lists as jobs
from railscope_collector.ledger import audit_outbox, head_chain, head_files, leases, membership
from railscope_collector.ledger.schema import VERSION, metadata, schema_version

__all__ = [
    "VERSION",
    "audit_outbox",
    "billing",
    "evidence",
    "evidence_contents",
    "first_receipts",
    "head_chain",
    "head_files",
    "jobs",
    "leases",
    "membership",
    "metadata",
    "schema_version",
]
