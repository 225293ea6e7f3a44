"""Collectors that share a database, and the part of the cluster that views of all of them contain.

A collector holds a lease on its audit log, which identifies its state directory: the records of a copy would
contradict it, and sequence numbers that it stored would delete frames which the copy received. Each collector writes its row every few seconds: its URL, the process that holds leases for it, and its nodes. Times
are those of the database. A row that was not renewed for a day is that of a collector which was removed.
"""

from __future__ import annotations

import asyncio
import hashlib
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa

from railscope import durable_files, settings, timestamps, untrusted_text
from railscope_collector.clock import this_boot
from railscope_collector.ledger import LedgerError, leases, schema
from railscope_collector.ledger.database import Database, UnusableLedgerError, call_database

HEAD = "head"
"""Lease of the collector that shows the nodes of all."""
REMOVED_SECONDS = 86_400
NAME_SECONDS = 10.0
"""Time without a renewal after which another collector may have the name, with another URL or on another host."""
MAX_NODES_BYTES = 16 << 20

rows = sa.Table(
    "collector_member",
    schema.metadata,
    sa.Column("name", sa.Text, primary_key=True),
    *schema.texts("url", "holder"),
    sa.Column("seen_at", sa.DateTime(timezone=True), nullable=False),
    sa.Column("clock_ns", sa.BigInteger, nullable=False),  # of the collector, at `seen_at`
    sa.Column("nodes", sa.LargeBinary, nullable=False),
)
"""Collectors by name. Like the table of leases it has rows that change, and nothing is billed from it."""

head_files = sa.Table(
    "collector_head_file",
    schema.metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("content", sa.LargeBinary, nullable=False),
)
"""Files of the diagnosis of the head, which the next head continues with."""
FILES = ("incidents", "baselines")
MAX_FILE_BYTES = 256 << 20


class NameInUseError(LedgerError, RuntimeError):
    """Another collector that is running has the name of this one; the message names its URL."""


class DirectoryInUseError(NameInUseError, settings.SettingsError):
    """Another collector that is running has a copy of the state directory; the message names its process."""


@dataclass(slots=True)
class DirectoryHolder:
    """Holds the state directory of a collector in a shared database, so that it ends if another one runs with a copy.

    A restart takes the lease at once: a lock on the directory shows that the previous process has ended. A directory
    that was moved is used once the lease has expired. A lease that another process renews is that of a copy.
    """

    directory: Path
    open: Callable[[], Database]
    boot_id: str = field(default_factory=this_boot)
    lease: leases.Lease | None = None
    _other: tuple[str, Any] | None = None
    """Other holder and the expiry of its lease, as of the last attempt."""
    _waiting: asyncio.Task[bool] | None = None
    """Last attempt at the start: the database may not have responded yet."""

    async def begin(self, log: str) -> None:
        """Take the lease of an audit log; a database that does not respond is queried again later.

        Raises DirectoryInUseError.
        """
        details = self.directory.stat()
        place = f"{self.boot_id} {details.st_dev} {details.st_ino}".encode()
        digest = hashlib.sha256(place).hexdigest()[:16]
        self.lease = leases.Lease(f"log {log}", place=digest if self.boot_id else "")
        while True:
            self._waiting = asyncio.create_task(call_database(self.attempt))
            responded, _ = await asyncio.wait({self._waiting}, timeout=_START_SECONDS)
            if not responded:
                return
            with suppress(*_FAILURES):  # every user of the database reports it
                if not await self._waiting:
                    await asyncio.sleep(_ATTEMPT_SECONDS)
                    continue
            return

    async def run(self) -> None:
        """Renew the lease until cancelled, then release it. Raises DirectoryInUseError."""
        try:
            while True:
                with suppress(*_FAILURES):
                    await (self._waiting or call_database(self.attempt))
                self._waiting = None
                await asyncio.sleep(leases.RENEWAL_SECONDS)
        finally:
            if self.lease:
                await call_database(self.lease.release)

    def attempt(self) -> bool:
        """Take or renew the lease; true if it is held. Blocking; raises DirectoryInUseError, UnusableLedgerError."""
        database = self.open()
        if self.lease is None or database.file is not None or self.lease.take(database):
            self._other = None
            return True
        query = sa.select(leases.rows.c.holder, leases.rows.c.expires_at)
        with database.transaction() as connection:
            row = connection.execute(query.where(leases.rows.c.name == self.lease.name)).first()
        other, self._other = self._other, (row.holder, row.expires_at) if row else None
        if row and row.expires_at and other and other != self._other:
            message = (
                f"state_directory {self.directory} is a copy of that of the running collector "
                f"{row.holder.partition('@')[0]}: expected one collector for each; fix: stop that one, or set "
                "another directory"
            )
            raise DirectoryInUseError(message)
        return False


_FAILURES = (UnusableLedgerError, sa.exc.SQLAlchemyError)
_START_SECONDS = 5.0
_ATTEMPT_SECONDS = 1.0
"""Period of attempts while another process has the lease: it expires, or is renewed, within LEASE_SECONDS."""


class ClusterMember(NamedTuple):
    """A collector as the database has it."""

    name: str
    url: str
    holder: str
    """Process, as the holder of leases."""
    age_seconds: float
    """Time since it wrote its row."""
    nodes: Mapping[str, int] = {}
    """Time of the last report of each of its nodes, in nanoseconds."""
    clock_lead_ns: int = 0
    """Lead of its clock over that of the database when it wrote its row."""


class ClusterMembers(NamedTuple):
    """All collectors, and the one that holds the lease of the head."""

    members: Sequence[ClusterMember]
    head: ClusterMember | None

    def lead_ns(self, name: str, other: str) -> int:
        """Return the lead of the clock of a collector over that of another one; 0 if one is not present."""
        leads_ns = {member.name: member.clock_lead_ns for member in self.members}
        return leads_ns[name] - leads_ns[other] if {name, other} <= leads_ns.keys() else 0

    def leads_over(self, name: str) -> list[int]:
        """Return the lead of the clock of each other collector that is present over that of one, in nanoseconds."""
        present = (each for each in self.members if abs(each.age_seconds) < NAME_SECONDS)
        return [self.lead_ns(each.name, name) for each in present if each.name != name]


def encode_nodes(nodes: Mapping[str, int]) -> bytes:
    """Encode the nodes of a collector."""
    return zlib.compress(msgspec.msgpack.encode(nodes), 1)


def decode_nodes(content: bytes) -> dict[str, int]:
    """Decode the nodes of a collector; none if they are invalid or too many."""
    unpacker = zlib.decompressobj()
    try:
        unpacked = unpacker.decompress(content, MAX_NODES_BYTES)
        return msgspec.msgpack.decode(unpacked, type=dict[str, int]) if unpacker.eof else {}
    except (zlib.error, *untrusted_text.DECODING_ERRORS):
        return {}


def exchange(
    database: Database,
    member: ClusterMember,
    nodes: bytes | None,
    wall_ns: Callable[[], int],
    *,
    reads_nodes: bool = True,
) -> ClusterMembers:
    """Write the row of a collector, and return all rows. `nodes` are written unless they are None.

    Those of other collectors are read for the head only: they grow with the cluster. `wall_ns` is the clock of the collector. Blocking; raises UnusableLedgerError, NameInUseError.
    """
    clock: Any = sa.func.clock_timestamp(type_=sa.DateTime(timezone=True))
    values = {"url": member.url, "holder": member.holder, "seen_at": clock}
    if nodes is not None:
        values["nodes"] = nodes
    age = sa.extract("epoch", clock - rows.c.seen_at)
    with database.transaction(writes=True) as connection:
        host = member.holder.partition(":")[0] + ":"
        is_restart = sa.and_(
            rows.c.url == member.url, rows.c.holder.startswith(host, autoescape=True)
        )
        other = sa.select(rows.c.url, rows.c.holder).where(
            rows.c.name == member.name,
            rows.c.holder != member.holder,
            ~is_restart,
            age.between(-NAME_SECONDS, NAME_SECONDS),
        )
        if row := connection.execute(other).first():
            message = (
                f"collector {row.url} on {row.holder.partition(':')[0]} has the name {member.name} too: expected a"
                " name and a URL for each collector; fix: set cluster.name and cluster.advertised_url"
            )
            raise NameInUseError(message)
        values["clock_ns"] = wall_ns()  # just before the database's: a transaction may have waited
        changed = sa.update(rows).where(rows.c.name == member.name).values(**values)
        if not connection.execute(changed).rowcount:
            new = {"name": member.name, "nodes": b""} | values
            connection.execute(schema.insert_new(connection, rows).values(**new))
        seconds = (wall_ns() - values["clock_ns"]) / timestamps.SECOND_NS
        if seconds > NAME_SECONDS:  # the difference of the clocks would contain it
            message = (
                f"the database responded after {seconds:.0f} s: expected at most {NAME_SECONDS:g} s"
            )
            raise UnusableLedgerError(message)
        written_seconds = sa.extract("epoch", rows.c.seen_at)
        columns = [c for c in rows.c if c is not rows.c.nodes]
        known_nodes = rows.c.nodes if reads_nodes else sa.literal(b"").label("nodes")
        query = (
            sa.select(
                *columns, known_nodes, age.label("age"), written_seconds.label("written_seconds")
            )
            .where(age < REMOVED_SECONDS)
            .order_by(rows.c.name)
        )
        found = connection.execute(query).all()
        lease = sa.select(leases.rows.c.holder).where(
            leases.rows.c.name == HEAD, leases.rows.c.expires_at > clock
        )
        holder = connection.execute(lease).scalar()
    members = [
        ClusterMember(
            row.name,
            row.url,
            row.holder,
            float(row.age),
            decode_nodes(row.nodes),
            row.clock_ns - round(row.written_seconds * timestamps.SECOND_NS),
        )
        for row in found
    ]
    head = next((each for each in members if each.holder == holder), None)
    return ClusterMembers(members, head)


def read_files(database: Database, directory: Path) -> None:
    """Replace the files of a directory by those that the previous head stored.

    Blocking; raises UnusableLedgerError, OSError.
    """
    with database.transaction() as connection:
        found = connection.execute(sa.select(head_files)).all()
    durable_files.make_directory(directory)
    for row in found:
        if row.name in FILES:
            durable_files.write_durably(directory / row.name, row.content)


def store_files(
    database: Database, term: leases.LeaseTerm, directory: Path, stored: dict[str, int]
) -> None:
    """Store the files of a directory that have changed; `stored` are the times of those that were stored.

    Blocking; raises LostLeaseError, UnusableLedgerError, OSError.
    """
    for name in FILES:
        path = directory / name
        if not path.exists():
            continue
        details = path.stat()
        if details.st_mtime_ns == stored.get(name) or details.st_size > MAX_FILE_BYTES:
            continue
        content = path.read_bytes()
        with database.transaction(writes=True) as connection:
            term.check(connection)
            connection.execute(sa.delete(head_files).where(head_files.c.name == name))
            connection.execute(sa.insert(head_files).values(name=name, content=content))
        stored[name] = details.st_mtime_ns


class CollectorPart(msgspec.Struct, frozen=True):
    """A collector, and whether views contain its nodes."""

    name: str
    url: str
    nodes: int
    is_included: bool
    problem: str = ""
    """Reason why its nodes are unknown."""
    clock_offset_seconds: float = 0.0
    """Lead of the head's clock over its own, as far as it is corrected."""
    rejected: int = 0
    """Records and facts of its nodes that the head did not accept."""
    rejected_problem: str = ""
    """Reason of the last one."""
    lag_seconds: float | None = None
    """Age of the last time up to which the head applied all of its records; None before the first snapshot."""


@dataclass(frozen=True, slots=True)
class ClusterExtent:
    """Collectors with their nodes in views."""

    parts: tuple[CollectorPart, ...]
    is_summary: bool = False
    """True if neither nodes nor collectors are stated individually, as for tenants."""

    def for_tenant(self) -> ClusterExtent:
        """Return what a tenant may read."""
        return ClusterExtent(self.parts, is_summary=True)

    @property
    def is_complete(self) -> bool:
        """True if all collectors are included."""
        return all(part.is_included for part in self.parts)

    @property
    def text(self) -> str:
        """Return the numbers of collectors and nodes in words."""
        included = [part for part in self.parts if part.is_included]
        collectors = f"{len(included)} of {len(self.parts)} collectors"
        if self.is_summary:
            return collectors
        nodes = sum(part.nodes for part in included)
        total = sum(part.nodes for part in self.parts)
        return f"{collectors}, {nodes:,} of {total:,} nodes"

    def to_json(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        parts = () if self.is_summary else self.parts
        return {"text": self.text, "complete": self.is_complete, "parts": parts}

    def add_to(self, document: bytes) -> bytes:
        """Return a JSON object with the collectors in it as its last member."""
        if not document.endswith(b"}") or document == b"{}":
            return document
        return document[:-1] + b',"collectors":' + msgspec.json.encode(self.to_json()) + b"}"
