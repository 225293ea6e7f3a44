"""Deletion of facts that no open day reads: the days before are in final files of the archive, or out of the window.

Of each node the last quarter before the first open day stays, with what the hour around it contains: a gap and an
increment of that day may begin there. Damaged quarters stay: no file contains them. All calls block, and raise
UnusableLedgerError.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import sqlalchemy as sa

from railscope.timestamps import DAY_NS, FOREVER_NS
from railscope_collector.evidence.claim_events import ReportedClaim
from railscope_collector.evidence.day_facts import CONTEXT_NS, group_reports, spans_of
from railscope_collector.evidence.day_metering import find_ending_boot
from railscope_collector.evidence.fact_store import FactStore
from railscope_collector.evidence.fact_tables import (
    NODE,
    boots,
    claim_ends,
    claim_spans,
    claims,
    marked_days,
    quarters,
    read_states,
    states,
)
from railscope_collector.ledger.day_documents import split_items


def delete_facts(store: FactStore, first_day: int) -> Iterator[int]:
    """Delete what no day from `first_day` on reads; yield the number of facts of each transaction."""
    end_ns = first_day * DAY_NS - CONTEXT_NS
    read_since: dict[str, int] = {}
    for node in _find_nodes(store):
        with store.database.transaction(writes=True) as connection:
            count, read_since[node] = _delete_quarters(store, connection, node, end_ns)
            _delete_states(connection, node, read_since[node])
        yield count
    with store.database.transaction() as connection:
        gpus = {
            *connection.execute(
                sa.select(claims.c.gpu).distinct().where(claims.c.start_ns < end_ns)
            ).scalars(),
            *connection.execute(
                sa.select(claim_ends.c.gpu).distinct().where(claim_ends.c.end_ns < end_ns)
            ).scalars(),
        }
    for few in split_items(sorted(gpus)):
        with store.database.transaction(writes=True) as connection:
            count = sum(_delete_claims(store, connection, gpu, read_since, end_ns) for gpu in few)
        yield count
    with store.database.transaction(writes=True) as connection:
        # After the claims: a boot that is deleted would no longer end them.
        for node, since_ns in read_since.items():
            _delete_boots(connection, node, since_ns)
        # Days before are closed: their marks are never taken.
        connection.execute(sa.delete(marked_days).where(marked_days.c.day < first_day))


def _find_nodes(store: FactStore) -> list[str]:
    """Return all nodes with quarters."""
    found: list[str] = []
    with store.database.transaction() as connection:
        node = connection.execute(sa.select(sa.func.min(quarters.c.node))).scalar()
        while node is not None:  # one step in the index per node
            found.append(node)
            following = sa.select(sa.func.min(quarters.c.node)).where(quarters.c.node > node)
            node = connection.execute(following).scalar()
    return found


def _delete_quarters(
    store: FactStore, connection: sa.Connection, node: str, end_ns: int
) -> tuple[int, int]:
    """Delete the quarters of a node that are not read; return their number, and the start of those that are."""
    is_of_node, edge = quarters.c.node == node, quarters.c.end_ns
    last_ns = connection.execute(
        sa.select(sa.func.max(edge)).where(is_of_node, edge < end_ns)
    ).scalar()
    if last_ns is None:
        return 0, end_ns
    # As `FactStore` reads them: the last one, and those that end within the hour before.
    is_read = edge >= last_ns - CONTEXT_NS
    old = sa.select(quarters.c.quarter, quarters.c.content).where(is_of_node, ~is_read)
    intact = [
        row.quarter
        for row in connection.execute(old)
        if store.quarantine.interval(row.quarter, row.content, quarters.name)
    ]
    for few in split_items(intact):
        connection.execute(sa.delete(quarters).where(quarters.c.quarter.in_(few)))
    start = sa.select(sa.func.min(quarters.c.start_ns)).where(is_of_node, is_read)
    return len(intact), min(connection.execute(start).scalar_one(), end_ns)


def _delete_boots(connection: sa.Connection, node: str, since_ns: int) -> None:
    """Delete boots that end no claim which is read; the newest one may still run, and would be recorded again."""
    of_node = boots.c.node == node
    newest = sa.select(sa.func.max(boots.c.first_ns)).where(of_node).scalar_subquery()
    is_old = sa.and_(boots.c.first_ns < since_ns, boots.c.first_ns < newest)
    connection.execute(sa.delete(boots).where(of_node, is_old))


def _delete_states(connection: sa.Connection, node: str, since_ns: int) -> None:
    """Delete states that were replaced before a timestamp, of GPUs that were in this node only since then."""
    was_there = sa.and_(states.c.kind == NODE, states.c.value == msgspec.json.encode(node).decode())
    query = sa.select(states.c.gpu).distinct().where(was_there)
    gpus = connection.execute(query).scalars().all()
    for few in split_items(gpus):
        places = read_states(connection, few, NODE)
        here = [
            gpu
            for gpu in few
            if all(s.value == node for s in spans_of(places[gpu]) if since_ns < s.end_ns)
        ]
        later = states.alias()
        is_later = sa.and_(
            later.c.gpu == states.c.gpu,
            later.c.kind == states.c.kind,
            later.c.since_ns > states.c.since_ns,
            later.c.since_ns <= since_ns,
        )
        is_replaced = sa.exists().where(is_later)
        connection.execute(sa.delete(states).where(states.c.gpu.in_(here), is_replaced))


def _delete_claims(
    store: FactStore,
    connection: sa.Connection,
    gpu: str,
    read_since: dict[str, int],
    end_ns: int,
) -> int:
    """Delete the claims on a GPU that ended before what is read of their node, and ends; return the number of rows."""
    ends: dict[tuple[str, str], int] = {}
    for row in connection.execute(sa.select(claim_ends).where(claim_ends.c.gpu == gpu)):
        key = (row.node, row.claim)
        ends[key] = min(row.end_ns, ends.get(key, FOREVER_NS))
    reports: list[ReportedClaim] = []
    for row in connection.execute(sa.select(claims).where(claims.c.gpu == gpu)):
        report = store.quarantine.claim(row.report, row.content, claims.name)
        reports += [report] if report else []
    deleted = 0
    for (node, claim), of_claim in group_reports(reports).items():
        since_ns = read_since.get(node, end_ns)
        ended_ns = ends.get((node, claim), FOREVER_NS)
        if ended_ns >= since_ns and any(report.boot for report in of_claim):
            query = sa.select(boots.c.boot, boots.c.first_ns).where(boots.c.node == node)
            booted = {row.boot: row.first_ns for row in connection.execute(query)}
            ended_ns = min(ended_ns, find_ending_boot(of_claim, booted))
        if ended_ns < since_ns:
            deleted += _delete(connection, claims, gpu, node, claims.c.claim == claim)
            _delete(connection, claim_spans, gpu, node, claim_spans.c.claim == claim)
    for node in {node for node, _ in ends}:
        since_ns = read_since.get(node, end_ns)
        deleted += _delete(connection, claim_ends, gpu, node, claim_ends.c.end_ns < since_ns)
        # Also those of ends whose claims were never reported.
        _delete(connection, claim_spans, gpu, node, claim_spans.c.end_ns < since_ns)
    return deleted


def _delete(
    connection: sa.Connection,
    table: sa.Table,
    gpu: str,
    node: str,
    condition: sa.ColumnElement[bool],
) -> int:
    """Delete the rows of a GPU in a node that satisfy a condition; return their number."""
    of_gpu = (table.c.gpu == gpu, table.c.node == node)
    return connection.execute(sa.delete(table).where(*of_gpu, condition)).rowcount
