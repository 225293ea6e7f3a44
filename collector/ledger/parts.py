"""Everything that has tables in the ledger's database: importing it declares them all."""

from __future__ import annotations

from collector.ledger import schema

__all__ = ["schema"]
