"""Reader of switches by SNMP: bounded walks over tables.

A switch may be broken or hostile. A walk ends with an error if rows do not ascend, as an agent could otherwise continue
it forever, and if a poll has more rows or bytes than any switch needs. Texts are cut.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

from railscope import service
from railscope_collector.switches import snmp_columns as columns
from railscope_collector.switches.snmp_session import SnmpSession, open_session
from railscope_collector.switches.snmp_tables import SwitchTables, make_reading
from railscope_collector.switches.snmp_values import Index, Rows, SnmpValue, TableRows
from railscope_collector.switches.switch_facts import COMWARE
from railscope_collector.switches.switch_reading import SwitchReadError, SwitchReading
from railscope_collector.switches.switch_settings import ConfiguredSwitch

MAX_ROWS, MAX_BYTES = 100_000, 8 << 20
"""Values of one poll, and their size: 512 ports have up to 85,000 values of 8 bytes, and some texts."""
MAX_INDEX = 32
"""Numbers in the index of a row."""


@dataclass(slots=True)
class WalkBudget:
    """Rows and bytes that the rest of a poll may have."""

    rows: int = MAX_ROWS
    size: int = MAX_BYTES

    def spend(self, value: SnmpValue) -> None:
        """Count a value. Raises SwitchReadError."""
        self.rows -= 1
        self.size -= len(value) if isinstance(value, bytes | str) else 8
        if self.rows < 0 or self.size < 0:
            message = (
                f"too much data: expected at most {MAX_ROWS} rows of {MAX_BYTES} bytes per poll"
            )
            raise SwitchReadError(message, "limit")


async def walk_column(session: SnmpSession, column: str, budget: WalkBudget) -> Rows:
    """Return the values of a column of a table; none if the switch does not have it. Raises SwitchReadError."""
    prefix, rows, last = f"{column}.", Rows(), Index()
    async for oid, value in session.walk(column):
        if not oid.startswith(prefix):
            break
        index = _parse_index(oid[len(prefix) :])
        if index <= last:
            message = f"rows of {column} do not ascend: {oid[: len(prefix) + 100]}"
            raise SwitchReadError(message, "limit")
        budget.spend(value)
        rows[index] = value
        last = index
    return rows


def _parse_index(text: str) -> Index:
    parts = text.split(".", MAX_INDEX)
    if len(parts) > MAX_INDEX or not all(part.isascii() and part.isdecimal() for part in parts):
        message = f"invalid index of a row: {text[:100]}"
        raise SwitchReadError(message)
    return tuple(map(int, parts))


# The reader --------------------------------------------------------------------------------------

SLOW_SECONDS = 60.0
"""Least time between two reads of neighbours, which change when cables do, and of transceivers."""
PROBE_SECONDS = 600.0
"""Time after which a table without rows is read again: a switch that is updated may have it."""
MAX_EMPTY_POLLS = 3
"""Polls in which it is an error that a column has no rows which had some: the library returns none if the switch has an error."""
AUTO, STANDARD_DIALECT = "auto", "snmp"
Walk: TypeAlias = Callable[[str], Awaitable[Rows]]


@dataclass(slots=True)
class SnmpReader:
    """Reads one switch by SNMP, with a session for each poll."""

    switch: ConfiguredSwitch
    monotonic: Callable[[], float]
    vendor: str = ""
    """Manufacturer whose tables are read; empty before the first poll."""
    _slow_at: float | None = None
    """Time of the last read of slow tables."""
    _probe_at: dict[tuple[str, ...], float] = field(default_factory=dict)
    """Time of the next read of each table that never had rows, by its columns."""
    _missing: dict[str, bool] = field(default_factory=dict)
    _port_ids: dict[tuple[str, ...], str] = field(default_factory=dict)
    _empty_polls: dict[str, int] = field(default_factory=dict)
    """Polls since the last one with rows, by column that had some."""

    async def read(self) -> SwitchReading:
        """Return the current readings. Raises SwitchReadError."""
        session = await open_session(self.switch)
        walk = partial(walk_column, session, budget=WalkBudget())
        scalars = await session.get(list(columns.SCALARS.values()))
        named = {name: scalars[oid] for name, oid in columns.SCALARS.items() if oid in scalars}
        self.vendor = self._find_vendor(named.get("sysObjectID"))
        interfaces = await self._read_fixed(walk, columns.IF_COLUMNS)
        now_seconds = self.monotonic()
        is_due = self._slow_at is None or now_seconds >= self._slow_at + SLOW_SECONDS
        if is_due:
            # Before the read: a switch that fails it is not asked at each poll.
            self._slow_at = now_seconds
        optional = {
            table: await self._read_optional(walk, columns.TABLE_COLUMNS[table])
            if is_due or not table.changes_slowly
            else None
            for table in columns.VENDOR_TABLES[self.vendor]
        }
        neighbours = (
            await _read_table(_read_columns(walk, columns.NEIGHBOUR_COLUMNS)) if is_due else None
        )
        found = SwitchTables(
            named, TableRows(interfaces), optional, neighbours, self._missing, self._port_ids
        )
        dialect = COMWARE if self.vendor == COMWARE else STANDARD_DIALECT
        return await service.run_in_thread(make_reading, self.switch.name, found, dialect)

    def _find_vendor(self, object_id: SnmpValue | None) -> str:
        """Return the manufacturer of the settings, or else the one that the switch identifies itself with."""
        if self.switch.tables != AUTO:
            return self.switch.tables
        # An answer without the object is no other switch.
        is_known = object_id is None and self.vendor
        return self.vendor if is_known else columns.find_vendor(object_id)

    async def _read_optional(self, walk: Walk, names: Mapping[str, str]) -> TableRows:
        """Return a table that a switch need not have: a failure concerns it alone."""
        now_seconds, oids = self.monotonic(), tuple(names.values())
        if self._probe_at.get(oids, now_seconds) > now_seconds:
            return TableRows()
        table = await _read_table(self._read_fixed(walk, names))
        if table.is_missing and not self._empty_polls.keys() & oids:
            self._probe_at[oids] = now_seconds + PROBE_SECONDS
        return table

    async def _read_fixed(self, walk: Walk, names: Mapping[str, str]) -> dict[str, Rows]:
        """Return the rows of a table that usually keeps them. Raises SwitchReadError."""
        rows, empty = await _read_columns(walk, names), list[str]()
        for name, oid in names.items():
            if rows[name]:
                self._empty_polls[oid] = 0
            elif oid in self._empty_polls:
                self._empty_polls[oid] += 1
                empty += [oid] * (self._empty_polls[oid] <= MAX_EMPTY_POLLS)
        if empty:
            message = f"no rows of {', '.join(empty)}: expected some, as before"
            raise SwitchReadError(message)
        return rows


async def _read_columns(walk: Walk, names: Mapping[str, str]) -> dict[str, Rows]:
    """Return the rows of each column. Raises SwitchReadError."""
    return {name: await walk(oid) for name, oid in names.items()}


async def _read_table(rows: Awaitable[Mapping[str, Rows]]) -> TableRows:
    """Return a table that is not essential: a failure concerns it alone."""
    try:
        return TableRows(await rows)
    except SwitchReadError as error:
        return TableRows(failure=error.absence)
