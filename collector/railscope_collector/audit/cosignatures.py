"""The newest checkpoint that each agent has cosigned, in a table of the audit log.

It is written only occasionally: agents send their cosignatures again if some are lost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import msgspec
import sqlalchemy as sa

from railscope.audit import cosignature
from railscope_collector.audit import tables
from railscope_collector.ledger.database import Database


class CosignedCheckpoint(msgspec.Struct, frozen=True):
    """A checkpoint with the cosignature of a witness, and the key of that witness."""

    note: str
    key: str

    def seconds(self) -> int:
        """Return the time of the cosignature in seconds. Raises NoteError."""
        return cosignature.cosignature_seconds(self.note, cosignature.parse_witness_key(self.key))

    def is_named_for(self, node: str) -> bool:
        """True if the key is in the node's own name. Raises NoteError if the key is invalid."""
        return cosignature.parse_witness_key(self.key).name == cosignature.key_name(node)


@dataclass(slots=True)
class CosignatureStore:
    """Cosignatures of the agents, by node."""

    database: Callable[[], Database]
    log: str
    """Name of the log."""
    nodes: dict[str, CosignedCheckpoint] = field(default_factory=dict)
    is_read: bool = False
    """True once those in the table are known."""
    _changed: set[str] = field(default_factory=set)

    def put(self, node: str, cosigned: CosignedCheckpoint) -> None:
        """Store the cosignature of a node, after it was checked."""
        self.nodes[node] = cosigned
        self._changed.add(node)

    def read(self) -> None:
        """Read the table once; what has arrived since is newer. Blocking; raises UnusableLedgerError."""
        if not self.is_read:
            with self.database().transaction() as connection:
                self.nodes = read_witnesses(connection, self.log) | self.nodes
            self.is_read = True

    def save(self) -> None:
        """Write what has changed, durable on return. Blocking; raises UnusableLedgerError."""
        # Before the write: a cosignature that arrives meanwhile is written by the next call.
        changed, self._changed = self._changed, set()
        if not changed:
            return
        try:
            with self.database().transaction(writes=True) as connection:
                store_witnesses(
                    connection, self.log, {node: self.nodes[node] for node in sorted(changed)}
                )
        except Exception:
            self._changed |= changed
            raise


def store_witnesses(
    connection: sa.Connection, log: str, cosigned: Mapping[str, CosignedCheckpoint]
) -> None:
    """Write cosignatures of a log."""
    for node, each in cosigned.items():
        row = {"log": log, "node": node, "note": each.note, "key": each.key}
        tables.replace_row(connection, tables.witnesses, row)


def read_witnesses(connection: sa.Connection, log: str) -> dict[str, CosignedCheckpoint]:
    """Return the unchecked cosignatures of a log."""
    table = tables.witnesses
    rows = connection.execute(sa.select(table).where(table.c.log == log).order_by(table.c.node))
    return {row.node: CosignedCheckpoint(row.note, row.key) for row in rows}
