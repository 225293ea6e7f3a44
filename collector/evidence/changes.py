"""Facts that were added to the database since the last poll, and may change finalized days."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, and_, func, select

from collector.evidence import queries
from collector.evidence.schema import claims, decisions, files, parts, releases
from collector.ledger.tiling import DAY_NS
from collector.metering.units import FOREVER_NS


class Change(NamedTuple):
    """A new fact in the database, about a node or a GPU between `start_ns` and `end_ns`."""

    fact: str
    """Its name: another fact about the same time is another change."""
    node: str
    gpu: str
    start_ns: int
    end_ns: int


class Late(NamedTuple):
    """Condition for late facts: recorded more than `delay_ns` after the day that they concern.

    Only facts about days since `since_ns`.
    """

    since_ns: int
    delay_ns: int

    def of(self, start_ns: Any, recorded_ns: Any) -> Any:
        """Return the condition for a fact with this start and this time of recording."""
        return recorded_ns > (start_ns // DAY_NS + 1) * DAY_NS + self.delay_ns


def recorded_after(connection: Connection, instant_ns: int) -> Iterator[Change]:
    """Yield the facts that were recorded after a timestamp, with their node or GPU and time."""
    yield from _parts(connection, parts.c.recorded_ns > instant_ns)
    yield from _claims(connection, claims.c.recorded_ns > instant_ns)
    yield from _releases(connection, releases.c.recorded_ns > instant_ns)
    new_files = select(files).where(files.c.recorded_ns > instant_ns)
    for version in connection.execute(new_files).all():
        older = and_(files.c.kind == version.kind, files.c.recorded_ns < version.recorded_ns)
        last_one = connection.execute(queries.newest_file(older)).first()
        before_it = last_one.content if last_one else ""
        name = f"{version.kind} {version.recorded_ns} {version.digest}"
        for about in queries.differences(version.kind, before_it, version.content):
            yield Change(name, *about)
    new_decisions = select(decisions).where(decisions.c.recorded_ns > instant_ns)
    for row in connection.execute(new_decisions):
        yield Change(row.id, row.node, "", row.start_ns, row.end_ns)


def late(
    connection: Connection, gpus: Sequence[str], nodes: Sequence[str], which: Late
) -> Iterator[Change]:
    """Yield the late facts about some GPUs and the nodes that they were in."""
    for some in queries.groups_of(nodes):
        mine = and_(parts.c.node.in_(some), parts.c.end_ns >= which.since_ns)
        yield from _parts(connection, and_(mine, which.of(parts.c.start_ns, parts.c.recorded_ns)))
    for some in queries.groups_of(gpus):
        is_late = which.of(claims.c.start_ns, claims.c.recorded_ns)
        yield from _claims(connection, and_(claims.c.gpu_uuid.in_(some), is_late))
        is_late = which.of(releases.c.instant_ns, releases.c.recorded_ns)
        yield from _releases(connection, and_(releases.c.gpu_uuid.in_(some), is_late))


def _parts(connection: Connection, where: Any) -> Iterator[Change]:
    """Yield changes by chunks; one that ends a gap in the reports concerns all of the gap."""
    earlier = parts.alias()
    before = select(func.max(earlier.c.end_ns)).where(
        earlier.c.node == parts.c.node, earlier.c.end_ns < parts.c.start_ns
    )
    last = before.scalar_subquery().label("last")
    columns = (parts.c.part, parts.c.node, parts.c.start_ns, parts.c.end_ns)
    for row in connection.execute(select(*columns, last).where(where)):
        start_ns = row.start_ns if row.last is None else row.last
        yield Change(row.part, row.node, "", start_ns, row.end_ns)


def _claims(connection: Connection, where: Any) -> Iterable[Change]:
    query = select(claims.c.fact, claims.c.gpu_uuid, claims.c.start_ns)
    return _of_gpus(connection.execute(query.where(where)))


def _releases(connection: Connection, where: Any) -> Iterable[Change]:
    query = select(releases.c.fact, releases.c.gpu_uuid, releases.c.instant_ns)
    return _of_gpus(connection.execute(query.where(where)))


def _of_gpus(rows: Iterable[Any]) -> Iterator[Change]:
    return (Change(fact, "", gpu, since_ns, FOREVER_NS) for fact, gpu, since_ns in rows)
