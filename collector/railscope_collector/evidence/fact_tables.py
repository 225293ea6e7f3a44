"""Tables of facts, and rows of them.

fact_quarter     what a node's frames of 15 minutes show; several rows if several collectors received them
fact_claim       first report of a claim in each boot of its node
fact_claim_end   ends of claims that were reported
fact_boot        first report of each boot of a node
claim_span       first start and lowest end of each claim
gpu_state        node of a GPU, another one that lists it, its rail and SKU, and its MIG layout, from a time on,
with a row for each change
marked_day       days of nodes that are to be metered, added in the transaction of the fact that changes them
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa

from railscope.timestamps import DAY_NS, FOREVER_NS
from railscope_collector.evidence.day_facts import DatedValue, DatedValues
from railscope_collector.ledger import day_documents, schema

KINDS = NODE, CONTESTED, MODEL, LAYOUT = ("node", "contested", "model", "layout")
PLACES = NODE, CONTESTED

metadata = schema.metadata
quarters = sa.Table(
    "fact_quarter",
    metadata,
    sa.Column("quarter", sa.Text, primary_key=True),
    sa.Column("node", sa.Text, nullable=False),
    *schema.integers("start_ns", "end_ns"),
    sa.Column("content", sa.LargeBinary, nullable=False),
    sa.Index("fact_quarter_ends", "node", "end_ns"),
    sa.Index("fact_quarter_starts", "node", "start_ns"),
)
"""The key is the SHA-256 of the content before compression."""
claims = sa.Table(
    "fact_claim",
    metadata,
    *schema.key_texts("gpu", "node", "claim", "boot", "report"),
    sa.Column("start_ns", sa.BigInteger, nullable=False),
    sa.Column("content", sa.LargeBinary, nullable=False),
)
"""`report` is the SHA-256 of the content."""
claim_ends = sa.Table(
    "fact_claim_end",
    metadata,
    *schema.key_texts("gpu", "node", "claim"),
    *schema.key_numbers("end_ns"),
)
claim_spans = sa.Table(
    "claim_span",
    metadata,
    *schema.key_texts("gpu", "node", "claim"),
    *schema.integers("start_ns", "end_ns"),
    sa.Index("claim_span_end", "node", "gpu", "end_ns"),
)
"""Of claims that ended before a day, which become more with time, the reading of the day reads none.

An end without a claim has a start of FOREVER_NS, and a claim without an end has such an end.
"""
boots = sa.Table(
    "fact_boot",
    metadata,
    *schema.key_texts("node", "boot"),
    sa.Column("first_ns", sa.BigInteger, nullable=False),
)
states = sa.Table(
    "gpu_state",
    metadata,
    *schema.key_texts("gpu", "kind"),
    *schema.key_numbers("since_ns"),
    sa.Column("value", sa.Text, nullable=False),
    sa.Index("gpu_state_value", "kind", "value"),
)
"""`value` is JSON."""
marked_days = sa.Table(
    "marked_day",
    metadata,
    sa.Column("number", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
    sa.Column("node", sa.Text, nullable=False),
    sa.Column("day", sa.BigInteger, nullable=False),
    sa.Index("marked_day_day", "day", "node"),
)
for _table in (quarters, claims, claim_ends):
    schema.make_append_only(_table)


def read_states(
    connection: sa.Connection, gpus: Sequence[str], kind: str, end_ns: int = FOREVER_NS
) -> DatedValues:
    """Return the values of a kind of GPUs, from before a timestamp."""
    query = sa.select(states).where(
        states.c.gpu.in_(gpus), states.c.kind == kind, states.c.since_ns < end_ns
    )
    found: DatedValues = {}
    for row in connection.execute(query.order_by(states.c.gpu, states.c.since_ns)):
        value = DatedValue(row.since_ns, msgspec.json.decode(row.value))
        found.setdefault(row.gpu, []).append(value)
    return found


def read_places(connection: sa.Connection) -> DatedValues:
    """Return the nodes of all GPUs over time."""
    known = sa.select(states.c.gpu).distinct().where(states.c.kind == NODE)
    gpus = connection.execute(known).scalars().all()
    found: DatedValues = {}
    for few in day_documents.split_items(gpus):
        found |= read_states(connection, few, NODE)
    return found


def insert(connection: sa.Connection, table: sa.Table, row: dict[str, Any]) -> bool:
    """Insert a row unless it exists; true if it is new."""
    new = schema.insert_new(connection, table).values(row).returning(*table.primary_key)
    return connection.execute(new).first() is not None


def encode(value: Any) -> str:
    """Return a value of a state as JSON."""
    return msgspec.json.encode(value).decode()


def mark_since(connection: sa.Connection, node: str, since_ns: int, days: range) -> None:
    """Mark those of some days that a change since a timestamp affects."""
    mark_days(connection, node, range(max(since_ns // DAY_NS, days.start), days.stop))


def mark_days(connection: sa.Connection, node: str, days: Iterable[int]) -> None:
    """Mark days of a node. Plain inserts: a mark that is committed while a day is metered stays."""
    rows = [{"node": node, "day": day} for day in days]
    if rows:
        connection.execute(sa.insert(marked_days), rows)
