"""Tables of the audit log in the ledger's database: records, hashes of their Merkle tree, and the signed head.

    audit_record     number, hash of the leaf, content
    audit_subtree    hash of each complete subtree at every eighth level, as in C2SP's tiles: a proof reads at most 255 hashes a level
    audit_archived   hashes of the leaves of 256 records that are in the archive and no longer here
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
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import sqlalchemy as sa

from railscope.audit import merkle, signed_note
from railscope_collector import archive_stores
from railscope_collector.audit import AuditLogError, tiles
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
for _table in (records, subtrees, archived, group_keys):
    make_append_only(_table)
permit_deletion(
    records,
    "EXISTS (SELECT 1 FROM audit_archived a WHERE a.log = OLD.log AND a.bundle = OLD.number / 256)",
    archived,
)
TABLES = (records, subtrees, archived, heads, witnesses, positions, group_keys)
Transaction: TypeAlias = Callable[[], AbstractContextManager[sa.Connection]]
"""Begins a transaction that reads."""


class LogDamagedError(AuditLogError, ValueError):
    """A log whose tables lack something or contradict each other; the message states the place."""


class MissingEntriesError(LogDamagedError):
    """Records that the database does not have; they may be in an archive."""


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
        message = f"missing record {number} of the audit log {self.log}"
        raise LogDamagedError(message)

    def records_from(self, first: int, at_once: int = _ROWS) -> Iterator[bytes]:
        """Yield the records of the tree from a number on, each compared with its leaf. Raises LogDamagedError."""
        while first < self.size:
            rows = self.read_rows(first, min(self.size, first + at_once))
            if not rows or rows[0].number != first:
                # A bundle at a time, as the archive has them.
                bundle = first // WIDTH
                raws = self.archived_records(bundle)[first % WIDTH : self.size - bundle * WIDTH]
                first += len(raws)
                yield from raws
                continue
            for row in rows:
                raw = bytes(row.content)
                if row.number != first or merkle.leaf_hash(raw) != bytes(row.leaf):
                    message = f"altered or missing record {first} of the audit log {self.log}"
                    raise LogDamagedError(message)
                first += 1
                yield raw

    def read_rows(self, first: int, end: int) -> Sequence[Any]:
        """Return number, leaf and content of stored records, in order, unchecked."""
        query = sa.select(records.c.number, records.c.leaf, records.c.content).where(
            records.c.log == self.log, records.c.number >= first, records.c.number < end
        )
        return self.connection.execute(query.order_by(records.c.number)).all()

    def archived_records(self, bundle: int) -> list[bytes]:
        """Return 256 records from the archive, compared with their leaves.

        Raises MissingEntriesError, ArchivedEntriesError.
        """
        leaves, begin = self.archived_leaves(bundle), bundle * WIDTH
        if not leaves or self.archive is None:
            message = (
                f"records {begin} to {begin + WIDTH - 1} are not in the database; fix: name their archive (archive.url, or"
                " --archive), if they were archived, else run `railscope audit verify`"
            )
            raise MissingEntriesError(message)
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


@dataclass(slots=True)
class GrowingTree:
    """The end of a tree, to which leaves are added."""

    range: merkle.CompactRange = field(default_factory=merkle.CompactRange)
    rows: list[list[merkle.Hash]] = field(default_factory=lambda: [[]])
    """The hashes after the last stored subtree, of each stored level."""

    @property
    def head(self) -> merkle.TreeHead:
        """Size and root."""
        return merkle.TreeHead(self.range.size, self.range.root)

    @classmethod
    def read(cls, stored: StoredTree) -> GrowingTree:
        """Read the end of a stored tree. Raises LogDamagedError."""
        tree = cls(rows=[])
        level, complete = 0, stored.size
        while not tree.rows or complete:
            begin = complete - complete % WIDTH
            row = stored.hashes(level, begin, complete % WIDTH) if complete % WIDTH else []
            if len(row) != complete % WIDTH:
                message = (
                    f"missing hashes of level {level} from {begin} on of the audit log {stored.log}"
                )
                raise LogDamagedError(message)
            tree.rows.append(row)
            level, complete = level + LEVELS, complete // WIDTH
        for row_level, row in reversed(list(enumerate(tree.rows))):
            for hashed in row:
                tree.range.extend(hashed, 1 << (row_level * LEVELS))
        return tree

    def copy(self) -> GrowingTree:
        """Return a tree that grows separately."""
        copied = merkle.CompactRange(self.range.size, list(self.range.roots))
        return GrowingTree(copied, [list(row) for row in self.rows])

    def add(self, leaf: merkle.Hash) -> Iterator[tuple[int, int, merkle.Hash]]:
        """Add a leaf; yield level, place and hash of each subtree that it completes."""
        self.range.append(leaf)
        hashed, level = leaf, 0
        while True:
            if level == len(self.rows):
                self.rows.append([])
            row = self.rows[level]
            row.append(hashed)
            if level:
                yield level * LEVELS, (self.range.size >> (level * LEVELS)) - 1, hashed
            if len(row) < WIDTH:
                return
            hashed, self.rows[level] = complete_root(row), []
            level += 1


def insert_records(
    connection: sa.Connection, log: str, tree: GrowingTree, raws: Sequence[bytes]
) -> None:
    """Add records to a log, and to its tree."""
    rows, completed = [], list[tuple[int, int, merkle.Hash]]()
    for raw in raws:
        leaf = merkle.leaf_hash(raw)
        rows.append({"log": log, "number": tree.range.size, "leaf": leaf, "content": raw})
        completed += tree.add(leaf)
    if rows:
        connection.execute(sa.insert(records), rows)
    _insert_subtrees(connection, log, completed)


def insert_archived(
    connection: sa.Connection, log: str, tree: GrowingTree, leaves: Sequence[merkle.Hash]
) -> None:
    """Add 256 records that are in the archive to a log, by their leaves, and to its tree."""
    row = {"log": log, "bundle": tree.range.size // WIDTH, "hashes": b"".join(leaves)}
    connection.execute(sa.insert(archived), row)
    _insert_subtrees(connection, log, [each for leaf in leaves for each in tree.add(leaf)])


def _insert_subtrees(
    connection: sa.Connection, log: str, completed: Sequence[tuple[int, int, merkle.Hash]]
) -> None:
    if completed:
        rows = [
            {"log": log, "level": level, "place": place, "hash": hashed}
            for level, place, hashed in completed
        ]
        connection.execute(sa.insert(subtrees), rows)


def replace_row(connection: sa.Connection, table: sa.Table, row: Mapping[str, object]) -> None:
    """Insert a row, in place of the one with its key."""
    keys = [column == row[column.name] for column in table.primary_key.columns]
    if not connection.execute(sa.update(table).where(*keys).values(row)).rowcount:
        connection.execute(sa.insert(table).values(row))
