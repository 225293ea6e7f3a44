"""SQL statements that write and read the evidence."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from typing import Any

import msgspec
from sqlalchemy import Connection, Table, and_, exists, func, or_, select, tuple_
from sqlalchemy.dialects import postgresql, sqlite

from collector.evidence.claim_events import Ended, Told
from collector.evidence.contacts import Contact, Contacts
from collector.evidence.review import Decisions, Subject, What
from collector.evidence.schema import (
    claims,
    contacts,
    decisions,
    files,
    homes,
    parts,
    releases,
    trust,
)
from collector.files import calendar_file, claims_file, inventory_file, retired_file, tenants_file
from collector.metering.units import FOREVER_NS

CONTEXT_NS = 3_600_000_000_000
"""Time around a window that is read too, so that the window's edges do not affect the result."""
_AT_ONCE = 500
PARSERS: dict[str, Callable[[str], Iterable[Any]]] = {
    "claims": claims_file.parse,
    "tenants": tenants_file.parse,
    "calendar": calendar_file.parse,
    "retired": retired_file.parse,
    "inventory": inventory_file.parse,
}
"""Parser of each kind of file that metering depends on."""


def parts_of(
    connection: Connection, node: str, start_ns: int, end_ns: int
) -> list[tuple[str, bytes]]:
    """Return parts in and around a window, and the nearest beyond on both sides."""
    mine = parts.c.node == node
    low, high = start_ns - CONTEXT_NS, end_ns + CONTEXT_NS
    before = connection.execute(
        select(func.max(parts.c.end_ns)).where(mine, parts.c.end_ns < low)
    ).scalar()
    after = connection.execute(
        select(func.min(parts.c.start_ns)).where(mine, parts.c.start_ns > high)
    ).scalar()
    within = and_(parts.c.end_ns >= low, parts.c.start_ns <= high)
    wanted = or_(within, parts.c.end_ns == before, parts.c.start_ns == after)
    query = select(parts.c.part, parts.c.content).where(mine, wanted).order_by(parts.c.part)
    return [(row.part, row.content) for row in connection.execute(query)]


def parts_before(connection: Connection, node: str, end_ns: int) -> list[tuple[str, bytes, int]]:
    """Return the last parts of a node that end before a timestamp, with their ends."""
    mine = parts.c.node == node
    last = select(func.max(parts.c.end_ns)).where(mine, parts.c.end_ns < end_ns).scalar_subquery()
    query = select(parts.c.part, parts.c.content, parts.c.end_ns)
    rows = connection.execute(query.where(mine, parts.c.end_ns == last).order_by(parts.c.part))
    return [(row.part, row.content, row.end_ns) for row in rows]


def claims_of(gpus: Sequence[str], start_ns: int, end_ns: int) -> Any:
    """Return a query for claims of GPUs that may have been in force in or around a window."""
    late = exists().where(
        trust.c.fact == releases.c.fact, trust.c.trusted_from_ns >= start_ns - CONTEXT_NS
    )
    over = exists().where(
        ~late,
        releases.c.gpu_uuid == claims.c.gpu_uuid,
        releases.c.node == claims.c.node,
        releases.c.claim_id == claims.c.claim_id,
        releases.c.instant_ns < start_ns - CONTEXT_NS,
    )
    return select(claims.c.fact, claims.c.content).where(
        claims.c.gpu_uuid.in_(gpus), claims.c.start_ns < end_ns + CONTEXT_NS, ~over
    )


def releases_of(pairs: Sequence[tuple[str, str, str]]) -> Any:
    """Return a query for the ends of claims, by GPU, node and id."""
    key = tuple_(releases.c.gpu_uuid, releases.c.node, releases.c.claim_id)
    trusted = func.coalesce(trust.c.trusted_from_ns, 0).label("trusted_from_ns")
    joined = releases.outerjoin(trust, trust.c.fact == releases.c.fact)
    return select(releases, trusted).select_from(joined).where(key.in_(pairs))


def newest_file(which: Any) -> Any:
    """Return a query for the newest version of a file."""
    return select(files).where(which).order_by(files.c.recorded_ns.desc()).limit(1)


def differences(kind: str, before: str, after: str) -> list[tuple[str, str, int, int]]:
    """Return the node, GPU (empty for any) and time of each difference between two versions of a file."""
    if kind not in PARSERS:
        return []
    told = [set(PARSERS[kind](text)) if text else set() for text in (before, after)]
    different = told[0] ^ told[1]
    if kind == "retired":
        return sorted({("", one.gpu, one.start_ns, one.end_ns) for one in different})
    if kind == "inventory" and before and after:
        return sorted({(one.node, "", one.start_ns, one.end_ns) for one in different})
    if not different:
        return []
    start_ns, end_ns = min(one.start_ns for one in different), max(one.end_ns for one in different)
    return [("", "", start_ns, end_ns)]


def new_homes(connection: Connection, since: dict[tuple[str, str], int]) -> list[dict[str, Any]]:
    """Return rows for the GPUs that were not recorded in their nodes as early as in `since`."""
    least: dict[tuple[str, str], int] = {}
    for some in groups_of(sorted({gpu for gpu, _ in since})):
        query = select(homes).where(homes.c.gpu_uuid.in_(some))
        for row in connection.execute(query):
            key = (row.gpu_uuid, row.node)
            least[key] = min(row.since_ns, least.get(key, row.since_ns))
    return [
        {"gpu_uuid": gpu, "node": node, "since_ns": first_ns}
        for (gpu, node), first_ns in since.items()
        if first_ns < least.get((gpu, node), FOREVER_NS)
    ]


def contacts_of(
    connection: Connection, nodes: Sequence[str] | None = None
) -> dict[str, dict[str, Contact]]:
    """Return the first receipts of the GPUs of some nodes, or of all."""
    found: dict[str, dict[str, Contact]] = {}
    query = select(contacts)
    wanted = [query] if nodes is None else [
        query.where(contacts.c.node.in_(some)) for some in groups_of(nodes)
    ]  # fmt: skip
    for one in wanted:
        for row in connection.execute(one):
            contact = Contact(row.heard_ns, row.pci)
            gpus = found.setdefault(row.node, {})
            gpus[row.gpu_uuid] = min(contact, gpus.get(row.gpu_uuid, contact))
    return found


def contact_rows(found: Contacts) -> list[dict[str, Any]]:
    """Return first receipts as rows."""
    return [
        {"node": node, "gpu_uuid": gpu, "heard_ns": contact.heard_ns, "pci": contact.pci}
        for node, gpus in found.items()
        for gpu, contact in gpus.items()
    ]


def claim_row(one: Told, recorded_ns: int) -> dict[str, Any]:
    """Return a claim as a row; its name is the hash of its content."""
    content = msgspec.msgpack.encode(one)
    return {
        "fact": sha256(content).hexdigest(),
        "gpu_uuid": one.gpu,
        "node": one.node,
        "claim_id": one.id,
        "start_ns": one.start_ns,
        "recorded_ns": recorded_ns,
        "content": content,
    }


def release_row(one: Ended, recorded_ns: int) -> dict[str, Any]:
    """Return the end of a claim as a row."""
    return {
        "fact": sha256(msgspec.msgpack.encode(one)).hexdigest(),
        "gpu_uuid": one.gpu,
        "node": one.node,
        "claim_id": one.id,
        "instant_ns": one.instant_ns,
        "recorded_ns": recorded_ns,
    }


def trust_rows(ends: Iterable[Ended]) -> list[dict[str, Any]]:
    """Return rows with the time from which ends that were reported late are trusted."""
    return [
        {"fact": release_row(one, 0)["fact"], "trusted_from_ns": one.trusted_from_ns}
        for one in ends
        if one.trusted_from_ns
    ]


def decisions_of(connection: Connection) -> Decisions:
    """Return the decisions of people; of two decisions the later one counts."""
    query = select(decisions).order_by(decisions.c.recorded_ns, decisions.c.id)
    return Decisions({
        Subject(What(row.what), row.node, row.name): bool(row.accepted)
        for row in connection.execute(query)
    })  # fmt: skip


def insert(connection: Connection, table: Table, rows: Sequence[dict[str, Any]]) -> None:
    """Insert rows that do not exist yet."""
    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    for some in groups_of(rows):
        connection.execute(dialect.insert(table).on_conflict_do_nothing(), some)


def groups_of(items: Sequence[Any]) -> Iterable[Sequence[Any]]:
    """Divide items into groups small enough for one statement."""
    return (items[at : at + _AT_ONCE] for at in range(0, len(items), _AT_ONCE))
