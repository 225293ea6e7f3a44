"""All tables of the database: importing `metadata` from this module declares all of them.

Each package declares its own. Triggers keep every table append-only.
"""

from __future__ import annotations

from collector.billing import tables as billing
from collector.evidence import schema as evidence
from collector.jobs import tables as jobs
from collector.ledger import heads, outbox
from collector.ledger.schema import VERSION, metadata, schema_version

__all__ = [
    "VERSION",
    "billing",
    "evidence",
    "heads",
    "jobs",
    "metadata",
    "outbox",
    "schema_version",
]
