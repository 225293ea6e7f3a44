"""All tables of the database: importing `metadata` from this module declares all of them.

Each package declares its own. Triggers keep every table append-only, except those
of leases and of the collectors.
"""

from __future__ import annotations

from railscope_collector.audit import tables as audit
from railscope_collector.billing import tables as billing
from railscope_collector.evidence import (
    day_archive,
    fact_tables,
    file_versions,
    first_receipts,
    former_facts,
)
from railscope_collector.jobs import imported_lists as jobs
from railscope_collector.ledger import active_files, audit_outbox, head_chain, leases
from railscope_collector.ledger.schema import VERSION, metadata, schema_version

__all__ = [
    "VERSION",
    "active_files",
    "audit",
    "audit_outbox",
    "billing",
    "day_archive",
    "fact_tables",
    "file_versions",
    "first_receipts",
    "former_facts",
    "head_chain",
    "jobs",
    "leases",
    "metadata",
    "schema_version",
]
