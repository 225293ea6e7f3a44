"""Tables of the audit log in the ledger's database: records, hashes of their Merkle tree, and the signed head.

    audit_record     number, hash of the leaf, content
    audit_subtree    hash of each complete subtree at every eighth level, as in C2SP's tiles: a proof reads at most 255 hashes a level
    audit_archived   hashes of the leaves of 256 records that are in the archive and no longer here
    audit_tenant     numbers of the records of each tenant, also of archived ones
    audit_head       newest signed checkpoint, replaced in the transaction that adds the records that it covers
    audit_witness    newest checkpoint that each agent has cosigned
    audit_position   number of records that a collector has moved from its own outbox into the log
    audit_group_key  secret key of the log of a group of collectors

A log is named by its key, because one key signs for one log: a database may have the logs of several groups. Nothing here has
to be trusted. Records are hashed again, and compared with the signed head and with checkpoints kept elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, TypeAlias

import sqlalchemy as sa

from railscope.audit import merkle, signed_note
from railscope_collector import archive_stores
from railscope_collector.audit import AuditLogError, record_tenants, tiles
from railscope_collector.audit.tiles import LEVELS, WIDTH, complete_root
from railscope_collector.ledger.database import Database
from railscope_collector.ledger.schema import (
    key_numbers,
    make_append_only,
    metadata,
    permit_deletion,
    texts,
)

_ROWS = 1024
"""Records that are read at once."""


def _key() -> sa.Column[str]:
    return sa.Column("log", sa.Text, primary_key=True)


def _bytes(name: str) -> sa.Column[bytes]:
    return sa.Column(name, sa.LargeBinary, nullable=False)


records = sa.Table(
    "audit_record", metadata, _key(), *key_numbers("number"), _bytes("leaf"), _bytes("content"),
    sqlite_with_rowid=False,
)  # fmt: skip
subtrees = sa.Table(
    "audit_subtree", metadata, _key(), *key_numbers("level", "place"), _bytes("hash"),
    sqlite_with_rowid=False,
)  # fmt: skip
archived = sa.Table("audit_archived", metadata, _key(), *key_numbers("bundle"), _bytes("hashes"))
tenants = sa.Table(
    "audit_tenant", metadata, _key(), sa.Column("tenant", sa.Text, primary_key=True), *key_numbers("number"),
    sqlite_with_rowid=False,
)  # fmt: skip
heads = sa.Table("audit_head", metadata, _key(), *texts("note"))
witnesses = sa.Table(
    "audit_witness", metadata, _key(), sa.Column("node", sa.Text, primary_key=True), *texts("note", "key")
)  # fmt: skip
positions = sa.Table(
    "audit_position",
    metadata,
    _key(),
    sa.Column("collector", sa.Text, primary_key=True),
    sa.Column("position", sa.BigInteger, nullable=False),
)
group_keys = sa.Table(
    "audit_group_key",
    metadata,
    sa.Column("group_name", sa.Text, primary_key=True),
    *texts("secret"),
)
APPENDED = records, subtrees, archived, tenants
"""Tables whose rows never change, and are covered by the signed head."""
for _table in (*APPENDED, group_keys):
    make_append_only(_table)
permit_deletion(
    records,
    "EXISTS (SELECT 1 FROM audit_archived a WHERE a.log = OLD.log AND a.bundle = OLD.number / 256)",
    archived,
)
TABLES = (*APPENDED, heads, witnesses, positions, group_keys)
Transaction: TypeAlias = Callable[[], AbstractContextManager[sa.Connection]]
"""Begins a transaction that reads."""


class LogDamagedError(AuditLogError, ValueError):
    """A log whose tables lack something or contradict each other; the message states the place."""


class MissingEntriesError(LogDamagedError):
    """A record that neither the database nor the archive has."""

    def __init__(self, number: int) -> None:
        super().__init__(f"missing record {number}")


class ArchivedEntriesError(LogDamagedError):
    """Archived records that cannot be read, or were altered in the archive; the message names the file."""


def log_name(key: signed_note.PublicKey) -> str:
    """Return the name of the log that a key signs."""
    return f"{key.name}+{key.key_id.hex()}"


def read_note(connection: sa.Connection, log: str) -> str | None:
    """Return the newest checkpoint of a log, unverified; None if there is none."""
    return connection.execute(
        sa.select(heads.c.note).where(heads.c.log == log)
    ).scalar_one_or_none()


def read_newest_checkpoint(database: Database) -> str | None:
    """Return the checkpoint of the log in a database, unverified; that of the longest one of several, None without one."""
    with database.transaction() as connection:
        notes = connection.execute(sa.select(heads.c.note)).scalars().all()
    # The second line is the number of records.
    return max(notes, key=lambda note: int(note.split("\n")[1]), default=None)


def count_archived(connection: sa.Connection, log: str) -> int:
    """Return the number of records, from the first on, that are in the archive and no longer in the database."""
    query = sa.select(sa.func.max(archived.c.bundle)).where(archived.c.log == log)
    newest = connection.execute(query).scalar_one()
    return 0 if newest is None else (newest + 1) * WIDTH


@dataclass(slots=True)
class StoredTree:
    """The tree of the first records of a log, for proofs, within a transaction."""

    connection: sa.Connection
    log: str
    size: int
    archive: archive_stores.ArchiveReader | None = None
    """Archive of the records that the database no longer has."""

    def node(self, level: int, index: int) -> merkle.Hash:
        """Return the hash of a complete subtree. Raises LogDamagedError."""
        stored, height = level - level % LEVELS, level % LEVELS
        first, count = index << height, 1 << height
        hashes = self.hashes(stored, first, count)
        if len(hashes) != count:
            message = f"missing hash {index} of level {level} of the audit log {self.log}"
            raise LogDamagedError(message)
        return complete_root(hashes)

    def hashes(self, level: int, first: int, count: int) -> list[merkle.Hash]:
        """Return stored hashes of a level, as many as there are; those of leaves within one bundle of 256."""
        if level:
            places = subtrees.c.place.between(first, first + count - 1)
            query = sa.select(subtrees.c.hash).where(
                subtrees.c.log == self.log, subtrees.c.level == level, places
            )
            return [
                *map(bytes, self.connection.execute(query.order_by(subtrees.c.place)).scalars())
            ]
        query = sa.select(records.c.leaf).where(
            records.c.log == self.log, records.c.number.between(first, first + count - 1)
        )
        leaves = [*map(bytes, self.connection.execute(query.order_by(records.c.number)).scalars())]
        if not leaves:
            offset = first % WIDTH
            return self.archived_leaves(first // WIDTH)[offset : offset + count]
        return leaves

    def archived_leaves(self, bundle: int) -> list[merkle.Hash]:
        """Return the hashes of the leaves of archived records; none if they are not archived."""
        query = sa.select(archived.c.hashes).where(
            archived.c.log == self.log, archived.c.bundle == bundle
        )
        row = bytes(self.connection.execute(query).scalar_one_or_none() or b"")
        return tiles.split_hashes(row)

    def record(self, number: int) -> bytes:
        """Return one record. Raises LogDamagedError."""
        for raw in self.records_from(number, 1):
            return raw
        raise MissingEntriesError(number)

    def records_from(self, first: int, at_once: int = _ROWS) -> Iterator[bytes]:
        """Yield the records of the tree from a number on, each compared with its leaf. Raises LogDamagedError."""
        while first < self.size:
            rows = self.read_rows(first, min(self.size, first + at_once))
            bundle = first // WIDTH
            if (not rows or rows[0].number != first) and (leaves := self.archived_leaves(bundle)):
                # A bundle at a time, as the archive has them.
                raws = self._archived_records(bundle, leaves)[first % WIDTH :]
                first += len(raws)
                yield from raws
                continue
            if not rows:
                raise MissingEntriesError(first)
            for row in rows:
                raw = bytes(row.content)
                if row.number != first:
                    raise MissingEntriesError(first)
                if merkle.leaf_hash(raw) != bytes(row.leaf):
                    message = f"altered record {first}: it does not match its hash"
                    raise LogDamagedError(message)
                first += 1
                yield raw

    def read_rows(self, first: int, end: int) -> Sequence[Any]:
        """Return number, leaf and content of stored records, in order, unchecked."""
        query = sa.select(records.c.number, records.c.leaf, records.c.content).where(
            records.c.log == self.log, records.c.number >= first, records.c.number < end
        )
        return self.connection.execute(query.order_by(records.c.number)).all()

    def _archived_records(self, bundle: int, leaves: Sequence[merkle.Hash]) -> list[bytes]:
        """Return 256 records from the archive, compared with their leaves. Raises ArchivedEntriesError."""
        begin = bundle * WIDTH
        if self.archive is None:
            message = f"records {begin} to {begin + WIDTH - 1} are archived; fix: name their archive (archive.url, or --archive)"
            raise ArchivedEntriesError(message)
        name = archive_name(self.node(0, 0), bundle, complete_root(leaves))
        try:
            raws = tiles.decode_bundle(self.archive.read(name, tiles.MAX_BUNDLE_BYTES))
        except archive_stores.ArchiveError as error:
            message = (
                f"cannot read records {begin} to {begin + WIDTH - 1}, which are archived: {error}"
            )
            raise ArchivedEntriesError(message) from error
        except tiles.TileError:
            raws = []
        if [*map(merkle.leaf_hash, raws)] != leaves:
            message = (
                f"altered file {self.archive.location}/{name} of the archive: its records do not match the signed"
                " ones; fix: restore the file from a copy"
            )
            raise ArchivedEntriesError(message)
        return raws


def archive_name(genesis: merkle.Hash, bundle: int, root: merkle.Hash) -> str:
    """Return the name of 256 records in the archive; the hash of the first record identifies the log."""
    return f"audit/{genesis.hex()}/entries-{bundle * WIDTH:015d}-{root.hex()}"


def read_end(stored: StoredTree) -> merkle.CompactRange:
    """Read what is needed to append to a tree. Raises LogDamagedError."""
    return merkle.CompactRange(
        stored.size, [stored.node(*subtree) for subtree in merkle.subtrees(stored.size)]
    )


def append_leaf(
    tree: merkle.CompactRange, leaf: merkle.Hash
) -> Iterator[tuple[int, int, merkle.Hash]]:
    """Append a leaf to a tree; yield level, place and hash of each stored subtree that it completes."""
    for level, hashed in enumerate(tree.append(leaf)):
        if level and level % LEVELS == 0:
            yield level, (tree.size >> level) - 1, hashed


def insert_records(
    connection: sa.Connection, log: str, tree: merkle.CompactRange, raws: Sequence[bytes]
) -> None:
    """Add records to a log, and to its tree."""
    first = tree.size
    leaves = [*map(merkle.leaf_hash, raws)]
    _insert(connection, subtrees, _append_leaves(log, tree, leaves))
    rows = zip(range(first, tree.size), leaves, raws, strict=True)
    _insert(
        connection,
        records,
        [{"log": log, "number": n, "leaf": leaf, "content": raw} for n, leaf, raw in rows],
    )
    insert_tenants(connection, log, first, raws)


def insert_tenants(connection: sa.Connection, log: str, first: int, raws: Sequence[bytes]) -> None:
    """Add the numbers of the records that belong to a tenant. Raises RecordError."""
    of_tenants = ((n, record_tenants.tenant_of(raw)) for n, raw in enumerate(raws, first))
    rows = [{"log": log, "tenant": tenant, "number": n} for n, tenant in of_tenants if tenant]
    _insert(connection, tenants, rows)


def insert_archived(
    connection: sa.Connection, log: str, tree: merkle.CompactRange, leaves: Sequence[merkle.Hash]
) -> None:
    """Add 256 records that are in the archive to a log, by their leaves, and to its tree."""
    row = {"log": log, "bundle": tree.size // WIDTH, "hashes": b"".join(leaves)}
    _insert(connection, archived, [row])
    _insert(connection, subtrees, _append_leaves(log, tree, leaves))


def _append_leaves(
    log: str, tree: merkle.CompactRange, leaves: Sequence[merkle.Hash]
) -> list[dict[str, object]]:
    """Append leaves to a tree; return the rows of the subtrees that they complete."""
    completed = (each for leaf in leaves for each in append_leaf(tree, leaf))
    return [
        {"log": log, "level": level, "place": place, "hash": hashed}
        for level, place, hashed in completed
    ]


def _insert(
    connection: sa.Connection, table: sa.Table, rows: Sequence[Mapping[str, object]]
) -> None:
    if rows:
        connection.execute(sa.insert(table), rows)


def replace_row(connection: sa.Connection, table: sa.Table, row: Mapping[str, object]) -> None:
    """Insert a row, in place of the one with its key."""
    keys = [column == row[column.name] for column in table.primary_key.columns]
    if not connection.execute(sa.update(table).where(*keys).values(row)).rowcount:
        connection.execute(sa.insert(table).values(row))
