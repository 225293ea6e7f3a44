"""GPU-days that releases up to 0.3 wrote as rows of slots: read-only, and converted when they are read.

The root of such a day is the one that it was written with, so that closings that refer to it stay verifiable.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from hashlib import sha256
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa

from railscope.claim_terms import GPU_CAPACITY
from railscope_collector.ledger.schema import claims, entries, overlaps, revisions, shares
from railscope_collector.metering.counter_increments import CountedQuantity
from railscope_collector.metering.evidence import NodeEvidence
from railscope_collector.metering.metered_day import (
    CountedAmount,
    DayClaim,
    DayPart,
    DayPiece,
    MeteredDay,
)
from railscope_collector.metering.slot_state import SlotState
from railscope_collector.metering.units import Units, exact

_AT_ONCE = 500
_ATTRIBUTED = "attributed"


class RowRevision(NamedTuple):
    """A converted day, the number of its revision, and the root that it was written with."""

    day: MeteredDay
    number: int
    root: str
    recorded_ns: int


def newest_numbers(
    connection: sa.Connection, days: range, gpus: Collection[str] | None
) -> dict[tuple[str, int], int]:
    """Return the number of the newest revision of each GPU-day, of all GPUs or some."""
    key = (revisions.c.gpu_uuid, revisions.c.day)
    query = sa.select(*key, sa.func.max(revisions.c.revision).label("revision")).where(
        revisions.c.day >= days.start, revisions.c.day < days.stop
    )
    return {
        (row.gpu_uuid, row.day): row.revision
        for row in connection.execute(query.group_by(*key))
        if gpus is None or row.gpu_uuid in gpus
    }


def find_counted(connection: sa.Connection, day: int, gpus: Collection[str]) -> set[str]:
    """Return the GPUs that claims for a number of GPUs held on a day, as its newest rows state."""
    newest = newest_numbers(connection, range(day, day + 1), gpus)
    counted = sa.select(entries.c.gpu_uuid, entries.c.revision).distinct()
    rows = connection.execute(counted.where(entries.c.day == day, entries.c.placement != ""))
    return {gpu for gpu, revision in rows if newest.get((gpu, day)) == revision}


def read_revisions(
    connection: sa.Connection, numbers: Mapping[tuple[str, int], int]
) -> Iterator[RowRevision]:
    """Yield revisions by their numbers; missing ones are omitted. Raises ValueError for an altered one."""
    keys = sorted((gpu, day, number) for (gpu, day), number in numbers.items())
    for at in range(0, len(keys), _AT_ONCE):
        few = keys[at : at + _AT_ONCE]
        parts = {
            table.name: _read_parts(connection, table, few)
            for table in (entries, shares, claims, overlaps)
        }
        for head in _select(connection, revisions, few):
            key = (head.gpu_uuid, head.day, head.revision)
            of_day = {name: rows.get(key, []) for name, rows in parts.items()}
            name = f"revision {head.revision} of {head.gpu_uuid} on day {head.day}"
            try:
                day, root = _convert(head, of_day), _content_root(head, of_day)
            # A database that was changed by hand may contain anything.
            except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
                message = f"cannot read {name}: {error}"
                raise ValueError(message) from error
            if root != head.content_root:
                message = f"{name} does not match what was written"
                raise ValueError(message)
            yield RowRevision(day, head.revision, root, head.computed_ns)


_HALF = 1 << 32
"""Amounts of many days are summed by their upper and lower half: each sum is within 64 bits."""
_MAX_SUMMED_UNITS = 84_000
"""A GPU-day of these units is 7.3e18 units times nanoseconds, which is within 64 bits; finer ones are not."""


def read_sums(connection: sa.Connection) -> Iterator[tuple[int, str, str, Fraction]]:
    """Yield parts of the totals of all days: day, tenant, name and quantity."""
    key = (revisions.c.gpu_uuid, revisions.c.day)
    newest = (
        sa.select(*key, sa.func.max(revisions.c.revision).label("revision"))
        .group_by(*key)
        .subquery()
    )

    def is_newest(table: sa.Table) -> sa.ColumnElement[bool]:
        return sa.and_(
            *(table.c[name] == newest.c[name] for name in ("gpu_uuid", "day", "revision"))
        )

    size = entries.c.slot_hi - entries.c.slot_lo
    length = entries.c.t1_ns - entries.c.t0_ns
    names = (entries.c.day, entries.c.tenant_id, entries.c.state, revisions.c.capacity_units)

    def select_times(*columns: Any) -> sa.Select[Any]:
        return (
            sa.select(*names, *columns)
            .join_from(entries, newest, is_newest(entries))
            .join(revisions, is_newest(revisions))
            .where(entries.c.tiling == "compute")
        )

    is_coarse = revisions.c.capacity_units <= _MAX_SUMMED_UNITS
    summed = select_times(sa.func.sum(size * length)).where(is_coarse)
    for *key_of, units, total in connection.execute(summed.group_by(entries.c.gpu_uuid, *names)):
        yield (*key_of, Fraction(int(total), units))
    for *key_of, units, high_low, span in connection.execute(
        select_times(size, length).where(~is_coarse)
    ):
        yield (*key_of, Fraction(high_low * span, units))
    counted = (shares.c.day, shares.c.tenant_id, shares.c.measure, shares.c.use)
    high = sa.func.sum(shares.c.amount // _HALF).label("high")
    low = sa.func.sum(shares.c.amount % _HALF).label("low")
    amounts = sa.select(*counted, high, low).join_from(shares, newest, is_newest(shares))
    for row in connection.execute(amounts.group_by(*counted)):
        name = row.measure if row.use == _ATTRIBUTED else f"{row.measure}/{row.use}"
        yield row.day, row.tenant_id, name, Fraction(_HALF * int(row.high) + int(row.low))


def _select(
    connection: sa.Connection, table: sa.Table, keys: Sequence[tuple[str, int, int]]
) -> Sequence[sa.Row[Any]]:
    key = sa.tuple_(table.c.gpu_uuid, table.c.day, table.c.revision)
    query = sa.select(table).where(key.in_(keys)).order_by(*table.primary_key)
    return connection.execute(query).all()


def _read_parts(
    connection: sa.Connection, table: sa.Table, keys: Sequence[tuple[str, int, int]]
) -> dict[tuple[str, int, int], list[sa.Row[Any]]]:
    found: dict[tuple[str, int, int], list[sa.Row[Any]]] = defaultdict(list)
    for row in _select(connection, table, keys):
        found[row.gpu_uuid, row.day, row.revision].append(row)
    return found


# Conversion --------------------------------------------------------------------------------------


def _convert(head: sa.Row[Any], parts: Mapping[str, Sequence[sa.Row[Any]]]) -> MeteredDay:
    units = head.capacity_units
    compute = [row for row in parts[entries.name] if row.tiling == "compute"]
    counted = {row.claim_id for row in compute if row.placement}
    return MeteredDay(
        head.gpu_uuid,
        head.day,
        head.sku,
        join_parts(
            (
                row.t0_ns,
                row.t1_ns,
                row.node,
                DayPart(
                    _size(row.slot_hi - row.slot_lo, units),
                    SlotState(row.state),
                    row.tenant_id,
                    row.workload_id,
                    row.claim_id,
                    row.silence_ns if row.witness is not None else 0,
                    NodeEvidence[row.witness.upper()] if row.witness else NodeEvidence.NONE,
                    row.reason,
                ),
            )
            for row in compute
        ),
        tuple(
            join_amounts(
                CountedAmount(
                    CountedQuantity(row.measure),
                    row.amount,
                    row.tenant_id,
                    row.claim_id,
                    "" if row.use == _ATTRIBUTED else row.use,
                    row.t0_ns,
                    row.t1_ns,
                )
                for row in parts[shares.name]
            )
        ),
        tuple(
            sorted(
                DayClaim(
                    row.claim_id,
                    row.start_ns,
                    row.end_ns,
                    row.mig_profile,
                    exact(Fraction(row.instance or 0) * GPU_CAPACITY),
                    exact(Fraction(row.requested_compute or 0) * GPU_CAPACITY),
                    row.claim_id in counted,
                )
                for row in parts[claims.name]
            )
        ),
    )


def _size(value: int, units: int) -> Units:
    """Convert a size in the capacity units of a revision to the 840 of a GPU."""
    return exact(Fraction(value * GPU_CAPACITY, units))


def join_parts(sized: Iterable[tuple[int, int, str, DayPart]]) -> tuple[DayPiece, ...]:
    """Return pieces from parts in any order, each with its time and node; equal parts of a time are added up."""
    waiting = sorted(sized, key=lambda each: each[:2], reverse=True)
    edges = sorted({edge for start_ns, end_ns, *_ in waiting for edge in (start_ns, end_ns)})
    active: list[tuple[int, int, str, DayPart]] = []
    pieces: list[DayPiece] = []
    for now, until in pairwise(edges):
        active = [each for each in active if each[1] > now]
        while waiting and waiting[-1][0] <= now:
            active.append(waiting.pop())
        if not active:
            continue
        sizes: dict[DayPart, Units] = {}
        for *_, part in active:
            key = msgspec.structs.replace(part, size=0)
            sizes[key] = exact(sizes.get(key, 0) + part.size)
        parts = tuple(
            sorted(msgspec.structs.replace(part, size=size) for part, size in sizes.items())
        )
        node = active[0][2]
        last = pieces[-1] if pieces else None
        if last and (last.end_ns, last.node, last.parts) == (now, node, parts):
            pieces[-1] = DayPiece(last.start_ns, until, node, parts)
        else:
            pieces.append(DayPiece(now, until, node, parts))
    return tuple(pieces)


def join_amounts(amounts: Iterable[CountedAmount]) -> list[CountedAmount]:
    """Return amounts in order; those of one claim and time are added up."""
    sums: Counter[CountedAmount] = Counter()
    for each in amounts:
        sums[msgspec.structs.replace(each, amount=0)] += each.amount
    return sorted(msgspec.structs.replace(key, amount=amount) for key, amount in sums.items())


# Roots -------------------------------------------------------------------------------------------


def _content_root(head: sa.Row[Any], parts: Mapping[str, Sequence[sa.Row[Any]]]) -> str:
    """Return SHA-256 in hex over the content of a revision, as ordered JSON."""
    content: list[Any] = [
        head.sku,
        [_entry_content(row) for row in parts[entries.name]],
        [{"measure": row.measure, "share": _share_content(row)} for row in parts[shares.name]],
        # By code points: each database sorts texts in its own order.
        [_claim_content(row) for row in sorted(parts[claims.name], key=lambda row: row.claim_id)],
        head.capacity_units,
        [_overlap_content(row) for row in parts[overlaps.name]],
    ]
    if head.clock_suspect is not None:
        content.append({"clock_suspect": msgspec.json.decode(head.clock_suspect)})
    return sha256(msgspec.json.encode(content)).hexdigest()


def _entry_content(row: sa.Row[Any]) -> dict[str, Any]:
    optional = {
        "reason": row.reason,
        "assumed": row.placement == "assumed",
        "counted": row.placement == "counted",
    }
    return {
        "gpu": row.gpu_uuid,
        "tiling": row.tiling,
        "t0_ns": row.t0_ns,
        "slot_lo": row.slot_lo,
        "slot_hi": row.slot_hi,
        "t1_ns": row.t1_ns,
        "node": row.node,
        "state": "rogue" if row.state == SlotState.UNCLAIMED.value else row.state,
        "witness": None if row.witness is None else NodeEvidence[row.witness.upper()],
        "silence_ns": row.silence_ns,
        "tenant": row.tenant_id,
        "workload": row.workload_id,
        "claim": row.claim_id,
        "layout": row.layout_id,
        **{name: value for name, value in optional.items() if value},
    }


def _share_content(row: sa.Row[Any]) -> dict[str, Any]:
    return {
        "t0_ns": row.t0_ns,
        "t1_ns": row.t1_ns,
        "slot_lo": row.slot_lo,
        "slot_hi": row.slot_hi,
        "use": row.use,
        "amount": row.amount,
        "tenant": row.tenant_id,
        "workload": row.workload_id,
        "claim": row.claim_id,
    }


def _claim_content(row: sa.Row[Any]) -> dict[str, Any]:
    content = {
        "id": row.claim_id,
        "start_ns": row.start_ns,
        "mig_profile": row.mig_profile,
        "end_ns": row.end_ns,
        "rank": row.rank,
        "requested": (row.requested_compute, row.requested_memory),
    }
    return content | ({"instance": row.instance} if row.instance else {})


def _overlap_content(row: sa.Row[Any]) -> dict[str, Any]:
    return {
        "start_ns": row.t0_ns,
        "end_ns": row.t1_ns,
        "tiling": row.tiling,
        "claim": row.claim_id,
        "tenant": row.tenant_id,
        "other": row.other_claim_id,
        "other_tenant": row.other_tenant_id,
        "kind": row.kind,
        "units": row.units,
        "ratio": row.ratio,
    }
