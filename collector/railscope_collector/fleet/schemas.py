"""Known shapes and lists of names, stored as rows of `state.sqlite`.

Both are stored before frames that refer to them are acknowledged, and deleted when no segment of the frame log has such
frames: an agent that needs them again sends them again. A node can fill neither memory nor disk: its lists are bounded,
and so are the shapes of all nodes and those that a node sends first.
"""

from __future__ import annotations

import shutil
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set as AbstractSet
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import msgspec
import structlog

from railscope import envelopes, wire1
from railscope.shapes import join
from railscope.timestamps import DAY_NS, SECOND_NS
from railscope.untrusted_text import DECODING_ERRORS
from railscope.wire import (
    HASH_BYTES,
    MAX_COLUMNS,
    Batch,
    Shape,
    WireError,
    WireSchema,
    content_hash,
)
from railscope_collector.fleet.names import KnownSchema, NodeNames, decode_rows, read_rows
from railscope_collector.fleet.shapes import KnownShape
from railscope_collector.framelog.segment_files import segment_numbers
from railscope_collector.state_store import FILE, StateStore, StateStoreError

log = structlog.get_logger(__name__)

MAX_SHAPES, MAX_SHAPES_BYTES = 4096, 64 << 20
"""Of all nodes. The least recently used shapes without a current frame are forgotten above it."""
MAX_LISTS_PER_NODE, MAX_LIST_BYTES_PER_NODE = 64, 1 << 20
"""Of one node, in memory. The oldest lists are forgotten above it, and requested again when new frames refer to them."""
_SHAPES = """CREATE TABLE IF NOT EXISTS shapes
(hash BLOB PRIMARY KEY, content BLOB NOT NULL, segment INTEGER NOT NULL) WITHOUT ROWID"""
_NAMES = """CREATE TABLE IF NOT EXISTS names (hash BLOB PRIMARY KEY, keys BLOB NOT NULL, lengths BLOB NOT NULL,
bytes INTEGER NOT NULL, content BLOB NOT NULL, segment INTEGER NOT NULL, is_forgotten INTEGER NOT NULL) WITHOUT ROWID"""
_FORMER = """CREATE TABLE IF NOT EXISTS former_schemas
(hash BLOB PRIMARY KEY, shape BLOB NOT NULL, names BLOB NOT NULL) WITHOUT ROWID"""
"""`content` of names is compressed; `segment` is the last segment of the frame log with frames that refer to the row.

A forgotten list is not in memory. Its row stays, as a restart may have to read frames that refer to it.

`former_schemas` has the parts of schemas of version 1 of the wire format, by the hash that batches of it state.
"""
_KEPT_SECONDS = 7 * DAY_NS // SECOND_NS
_COLUMNS = "hash, keys, lengths, bytes, content"
FORMER_DIRECTORY, FORMER_KEPT = "schemas", "schemas.before"
"""Files of schemas until 0.3.0, and their name after the update, under which they stay for a week."""


class UnknownParts(NamedTuple):
    """Hashes that batches refer to and that are not stored, in hexadecimal."""

    shapes: list[bytes]
    names: list[bytes]
    schemas: list[bytes]
    """Of version 1 of the wire format."""


class ReceivedParts(NamedTuple):
    """Encoded shapes, lists of names and schemas of version 1 that an envelope contains."""

    shapes: Sequence[bytes] = ()
    names: Sequence[bytes] = ()
    schemas: Sequence[bytes] = ()


class NewParts(NamedTuple):
    """Valid parts of an envelope that are not stored yet."""

    shapes: dict[bytes, tuple[KnownShape, bytes]]
    """With the encoded shape."""
    names: dict[bytes, NodeNames]
    former: dict[bytes, tuple[bytes, bytes]]
    lists: list[bytes]
    """Hashes of all lists that the envelope contains."""


class StoredSchemas:
    """All known shapes and names by hash. Methods that block are marked; those that write raise StateStoreError."""

    def __init__(self, store: StateStore) -> None:
        self._store = store
        self._shapes: dict[bytes, KnownShape] = {}
        self._names: dict[bytes, NodeNames] = {}
        self._former: dict[bytes, tuple[bytes, bytes]] = {}
        self._by_node: dict[str, dict[bytes, NodeNames]] = {}
        """Lists of each node, the oldest first."""
        self._lock = Lock()
        self.shown_shapes: Callable[[], AbstractSet[bytes]] = frozenset
        """Returns the shapes of the current state."""
        self.segment = 0
        """The segment of the frame log that is currently written or read."""

    def open(self) -> None:
        """Read all rows, and once the files of 0.3.0. Blocking; raises StateStoreError, OSError."""
        self._store.create(_SHAPES, _NAMES, _FORMER)
        for digest, content, segment in self._store.read(
            "SELECT hash, content, segment FROM shapes"
        ):
            try:
                shape = KnownShape.from_content(content, MAX_COLUMNS)
            except WireError as error:  # of another version of the catalog: agents send theirs
                log.warning("shape_invalid", shape=digest.hex(), problem=str(error))
                continue
            shape.segment = shape.stored_segment = segment
            self._shapes[digest] = shape
        for *row, segment in self._store.read(
            f"SELECT {_COLUMNS}, segment FROM names WHERE NOT is_forgotten"  # noqa: S608 - of a constant
        ):
            names = NodeNames(*row)
            names.has_frames = True
            names.segment = names.stored_segment = segment
            self._names[names.digest] = names
        former = self._store.read("SELECT hash, shape, names FROM former_schemas")
        self._former = {digest: (shape, names) for digest, shape, names in former}
        if not self._store.is_read_only:
            self._import_former()

    # Of a schema by its identity: the hashes of shape and names, or that of a schema of version 1.

    def get_in_memory(self, identity: bytes) -> KnownSchema | None:
        """Return a schema that new frames may refer to, or None. Raises WireError if names do not fit a shape."""
        shape_hash, names_hash = self._parts(identity)
        shape, names = self._shapes.get(shape_hash), self._names.get(names_hash)
        return names.with_shape(shape) if shape and names else None

    def get(self, identity: bytes) -> KnownSchema | None:
        """Return a schema also if its names were forgotten; None if it is not stored. Raises WireError likewise."""
        if found := self.get_in_memory(identity):
            return found
        shape_hash, names_hash = self._parts(identity)
        shape = self._shapes.get(shape_hash)
        query = f"SELECT {_COLUMNS} FROM names WHERE hash = ?"  # noqa: S608 - of a constant
        rows = self._store.read(query, (names_hash,)) if shape else ()
        return next((NodeNames(*row).with_shape(shape) for row in rows if shape), None)

    def _parts(self, identity: bytes) -> tuple[bytes, bytes]:
        return self._former.get(identity) or _divide(identity)

    def read(self, identity: bytes) -> WireSchema:
        """Return a schema with all of its entities. Raises LookupError if it is not stored."""
        schema = self.get(identity)
        if schema is None:
            message = f"unknown schema {identity.hex()}"
            raise LookupError(message)
        return schema.join()

    def find_unknown(self, batches: Iterable[Batch]) -> UnknownParts:
        """Return the shapes and names of batches that are not stored, each once."""
        unknown = UnknownParts([], [], [])
        for shape, names in dict.fromkeys((batch.shape, batch.names) for batch in batches):
            if not names:
                unknown.schemas.extend(() if self.get_in_memory(shape) else (shape,))
                continue
            if shape not in self._shapes and shape not in unknown.shapes:
                unknown.shapes.append(shape)
            if names not in self._names and names not in unknown.names:
                unknown.names.append(names)
        return unknown

    def __len__(self) -> int:
        """Return the number of shapes."""
        return len(self._shapes)

    def check(self, parts: ReceivedParts, limit: int) -> NewParts:
        """Return what is not stored yet. Blocking; raises WireError if any of it is invalid."""
        new = NewParts({}, {}, {}, [])
        former = [each for each in parts.schemas if content_hash(each) not in self._former]
        divided = [wire1.split_schema(content) for content in former]
        for content, (shape, names) in zip(former, divided, strict=True):
            new.former[content_hash(content)] = content_hash(shape), content_hash(names)
        for content in (*parts.shapes, *(shape for shape, _ in divided)):
            if (digest := content_hash(content)) not in self._shapes:
                new.shapes[digest] = KnownShape.from_content(content, limit), content
        # Those of version 1 may have more rows, as many as a schema has columns.
        lists = [(content, envelopes.decode_names) for content in parts.names]
        for content, decode in (*lists, *((names, decode_rows) for _, names in divided)):
            new.lists.append(digest := content_hash(content))
            if digest not in self._names:
                new.names[digest] = NodeNames.from_rows(decode(content), content, digest)
        return new

    def store(self, node: str, new: NewParts) -> None:
        """Store parts that a node has sent, durable on return. Blocking; raises StateStoreError."""
        with self._lock:
            if new.shapes or new.names or new.former:
                self._write(new)
            for digest in new.lists:
                # Another thread may have released it meanwhile: it is requested again.
                if names := self._names.get(digest):
                    names.segment = self.segment
                    self._by_node.setdefault(node, {}).setdefault(digest, names)
            self._bound_lists(node)
            self._bound_shapes()

    def _write(self, new: NewParts) -> None:
        segment = self.segment
        with self._store.transaction() as connection:
            connection.executemany(
                "INSERT OR IGNORE INTO shapes VALUES (?, ?, ?)",
                [(digest, content, segment) for digest, (_, content) in new.shapes.items()],
            )
            connection.executemany(
                "INSERT OR REPLACE INTO names VALUES (?, ?, ?, ?, ?, ?, 0)",
                [
                    (
                        each.digest,
                        each.keys,
                        each.lengths,
                        each.size_bytes,
                        each.compressed,
                        segment,
                    )
                    for each in new.names.values()
                ],
            )
            connection.executemany(
                "INSERT OR IGNORE INTO former_schemas VALUES (?, ?, ?)",
                [(digest, *parts) for digest, parts in new.former.items()],
            )
        for digest, (shape, _) in new.shapes.items():
            shape.segment = segment
            self._shapes.setdefault(digest, shape)
        for digest, names in new.names.items():
            names.segment = segment
            self._names.setdefault(digest, names)
        self._former |= new.former

    def record_uses(self, node: str, schemas: Iterable[KnownSchema]) -> None:
        """Record that frames of a node refer to schemas."""
        of_node = self._by_node.setdefault(node, {})
        for schema in schemas:
            schema.shape.segment = schema.names.segment = self.segment
            schema.names.has_frames = True
            of_node.setdefault(schema.names.digest, schema.names)

    # Bounds ----------------------------------------------------------------------------------------

    def _bound_lists(self, node: str) -> None:
        """Forget the oldest lists of a node above its limits."""
        of_node = self._by_node.get(node, {})
        forgotten: list[NodeNames] = []
        # The event loop may add lists meanwhile.
        lists = list(of_node.values())
        size = sum(each.size_bytes for each in lists)
        while len(lists) > MAX_LISTS_PER_NODE or size > MAX_LIST_BYTES_PER_NODE:
            oldest = lists.pop(0)
            size -= oldest.size_bytes
            del of_node[oldest.digest]
            if not any(oldest.digest in used for used in list(self._by_node.values())):
                self._names.pop(oldest.digest, None)
                forgotten.append(oldest)
        if not forgotten:
            return
        with self._store.transaction() as connection:
            connection.executemany(
                "UPDATE names SET is_forgotten = 1, segment = ? WHERE hash = ?",
                [(names.segment, names.digest) for names in forgotten if names.has_frames],
            )
        self._forget((), [names.digest for names in forgotten if not names.has_frames])

    def _bound_shapes(self) -> None:
        """Forget the least recently used shapes without a current frame above the limits of all nodes."""
        size = sum(shape.size_bytes for shape in self._shapes.values())
        if len(self._shapes) <= MAX_SHAPES and size <= MAX_SHAPES_BYTES:
            return
        shown = self.shown_shapes()
        forgotten: list[bytes] = []
        for shape in sorted(self._shapes.values(), key=lambda each: each.segment):
            if len(self._shapes) - len(forgotten) <= MAX_SHAPES and size <= MAX_SHAPES_BYTES:
                break
            if shape.digest not in shown:
                forgotten.append(shape.digest)
                size -= shape.size_bytes
        self._forget(forgotten, ())

    def release_unused(self, first_segment: int, shown: AbstractSet[bytes]) -> None:
        """Delete the rows of which neither the current state nor the log from a segment on has frames. Blocking.

        One segment more is kept, for envelopes that are checked and not appended yet.
        """
        used, oldest = {part for identity in shown for part in _divide(identity)}, first_segment - 1
        tables: dict[str, Mapping[bytes, KnownShape | NodeNames]]
        tables = {"shapes": self._shapes, "names": self._names}
        with self._lock:
            unused = [
                [d for d, e in list(parts.items()) if e.segment < oldest and d not in used]
                for parts in tables.values()
            ]
            self._forget(*unused)
            with self._store.transaction() as connection:
                query = "DELETE FROM names WHERE is_forgotten AND segment < ? RETURNING hash"
                forgotten = [digest for (digest,) in connection.execute(query, (oldest,))]
                for table, parts in tables.items():
                    changed = [e for e in list(parts.values()) if e.segment != e.stored_segment]
                    for each in changed:
                        each.stored_segment = each.segment
                    connection.executemany(
                        f"UPDATE {table} SET segment = ? WHERE hash = ?",  # noqa: S608 - of two constants
                        [(each.stored_segment, each.digest) for each in changed],
                    )
            self._forget((), forgotten)

    def _forget(self, shapes: Sequence[bytes], names: Sequence[bytes]) -> None:
        if not (shapes or names):
            return
        gone = {*shapes, *names}
        former = [digest for digest, parts in self._former.items() if gone.intersection(parts)]
        for digest in shapes:
            self._shapes.pop(digest, None)
        for digest in names:
            self._names.pop(digest, None)
        for digest in former:
            del self._former[digest]
        for of_node in list(self._by_node.values()) if names else ():
            for digest in of_node.keys() & gone:
                del of_node[digest]
        for known in list(self._names.values()) if shapes else ():
            known.schemas = tuple(e for e in known.schemas if e.shape.digest not in gone)
        with self._store.transaction() as connection:
            for table, digests in (
                ("shapes", shapes),
                ("names", names),
                ("former_schemas", former),
            ):
                connection.executemany(
                    f"DELETE FROM {table} WHERE hash = ?",  # noqa: S608 - of three constants
                    [(digest,) for digest in digests],
                )

    # Files of 0.3.0 --------------------------------------------------------------------------------

    def _import_former(self) -> None:
        """Store the schemas in the files of 0.3.0, and rename their directory; delete it a week later."""
        directory, kept = (self._store.directory / each for each in (FORMER_DIRECTORY, FORMER_KEPT))
        if directory.is_dir():
            # The log may have frames of all of them, of which the older segments are not read at a start.
            self.segment = max(segment_numbers(self._store.directory / "frames"), default=0)
            for content in _former_contents(directory):
                with suppress(WireError):  # of a damaged file: agents send it again
                    parts = ReceivedParts(schemas=[content])
                    self._write(self.check(parts, MAX_COLUMNS))
            shutil.rmtree(kept, ignore_errors=True)
            directory.rename(kept)
        elif kept.is_dir() and time.time() - kept.stat().st_mtime > _KEPT_SECONDS:
            shutil.rmtree(kept, ignore_errors=True)


class SchemaReader:
    """Reads schemas in the state directory of a collector that may be running, in another process."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE
        self._connection: sqlite3.Connection | None = None
        self._shapes: dict[bytes, Shape] = {}

    def read(self, identity: bytes) -> WireSchema:
        """Return a schema by its identity. Blocking; raises LookupError if it is not stored, OSError."""
        shape_hash, names_hash = _divide(identity)
        if not names_hash:
            query = "SELECT shape, names FROM former_schemas WHERE hash = ?"
            shape_hash, names_hash = self._find(query, identity)
        if shape_hash not in self._shapes:
            (content,) = self._find("SELECT content FROM shapes WHERE hash = ?", shape_hash)
            self._shapes[shape_hash] = msgspec.msgpack.decode(content, type=Shape)
        (compressed,) = self._find("SELECT content FROM names WHERE hash = ?", names_hash)
        return join(self._shapes[shape_hash], read_rows(compressed))

    def _find(self, query: str, digest: bytes) -> tuple[Any, ...]:
        try:
            if self._connection is None:
                uri = f"{self._path.absolute().as_uri()}?mode=ro"
                self._connection = sqlite3.connect(uri, uri=True, isolation_level=None)
            row: tuple[Any, ...] | None = self._connection.execute(query, (digest,)).fetchone()
        except sqlite3.Error as error:
            message = f"reading {self._path} failed: {error}"
            raise StateStoreError(message) from error
        if row is None:
            message = f"unknown schema: {self._path} has no row {digest.hex()}"
            raise LookupError(message)
        return row


def _divide(identity: bytes) -> tuple[bytes, bytes]:
    return identity[:HASH_BYTES], identity[HASH_BYTES:]


def _former_contents(directory: Path) -> Iterator[bytes]:
    """Yield the encoded schemas in files of 0.3.0: `.schema` has one, `.schemas` several. Damaged ones are left out."""
    for path in sorted(directory.iterdir()):
        content = path.read_bytes()
        if path.suffix == ".schema":
            yield content
        elif path.suffix == ".schemas":
            with suppress(*DECODING_ERRORS):
                yield from msgspec.msgpack.decode(content, type=list[bytes])
