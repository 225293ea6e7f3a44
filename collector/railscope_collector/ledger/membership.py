"""Collectors that share a database.

Each collector writes its row every few seconds: its URL, the process that holds leases for it, and its nodes. Times
are those of the database. A row that was not renewed for a day is that of a collector which was removed.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa

from railscope import timestamps, untrusted_text
from railscope_collector.ledger import LedgerError, leases, schema
from railscope_collector.ledger.database import Database, UnusableLedgerError

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


class NameInUseError(LedgerError, RuntimeError):
    """Another collector that is running has the name of this one; the message names its URL."""


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
        # Bounded while decompressing: a small damaged value could expand to fill the memory.
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
        # A restarted process has a new holder, with the same URL on the same host.
        host = member.holder.partition(":")[0] + ":"
        is_restart = sa.and_(
            rows.c.url == member.url, rows.c.holder.startswith(host, autoescape=True)
        )
        other = sa.select(rows.c.url, rows.c.holder).where(
            rows.c.name == member.name,
            rows.c.holder != member.holder,
            ~is_restart,
            # A negative age too: the clock of the database may have been set back since.
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
