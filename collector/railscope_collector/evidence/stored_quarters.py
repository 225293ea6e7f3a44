"""Quarters of nodes as they are stored. All calls block, and raise UnusableLedgerError."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

import sqlalchemy as sa

from railscope_collector.evidence.day_facts import CONTEXT_NS
from railscope_collector.evidence.evidence_records import EvidenceQuarantine
from railscope_collector.evidence.fact_tables import quarters
from railscope_collector.evidence.node_intervals import EvidenceInterval

_AT_ONCE = 16
"""Quarters that are read backwards in one statement: usually the newest one is enough."""


@dataclass(frozen=True, slots=True)
class StoredQuarters:
    """Quarters of a database, without damaged ones."""

    connection: sa.Connection
    quarantine: EvidenceQuarantine

    def read(
        self,
        node: str,
        start_ns: int,
        end_ns: int,
        *,
        nearest: bool = False,
    ) -> list[EvidenceInterval]:
        """Return the quarters of a node in a span; with `nearest` also the last one before it."""
        is_of_node, edge = quarters.c.node == node, quarters.c.end_ns
        if nearest:
            last = sa.select(sa.func.max(edge)).where(is_of_node, edge < start_ns)
            before_ns = self.connection.execute(last).scalar()
            start_ns = start_ns if before_ns is None else before_ns - CONTEXT_NS
        query = (
            sa.select(quarters.c.quarter, quarters.c.content)
            .where(is_of_node, edge >= start_ns, quarters.c.start_ns < end_ns)
            .order_by(quarters.c.quarter)
        )
        found = (
            self.quarantine.interval(row.quarter, row.content, quarters.name)
            for row in self.connection.execute(query)
        )
        return [interval for interval in found if interval]

    def read_backwards(self, node: str, until_ns: int) -> Iterator[EvidenceInterval]:
        """Yield the quarters of a node that began before a timestamp, the latest end first."""
        query = (
            sa.select(quarters.c.quarter, quarters.c.content)
            .where(quarters.c.node == node, quarters.c.start_ns < until_ns)
            .order_by(quarters.c.end_ns.desc(), quarters.c.quarter)
            .limit(_AT_ONCE)
        )
        for first in count(0, _AT_ONCE):
            rows = self.connection.execute(query.offset(first)).all()
            for row in rows:
                if interval := self.quarantine.interval(row.quarter, row.content, quarters.name):
                    yield interval
            if len(rows) < _AT_ONCE:
                return
