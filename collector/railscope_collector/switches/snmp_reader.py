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
from railscope.reading import Absent
from railscope_collector.switches import snmp_tables as tables
from railscope_collector.switches.snmp_session import SnmpSession, open_session
from railscope_collector.switches.snmp_tables import Index, Rows, SnmpValue
from railscope_collector.switches.switch_reading import SwitchReadError, SwitchReading
from railscope_collector.switches.switch_settings import ConfiguredSwitch

MAX_ROWS, MAX_BYTES = 60_000, 8 << 20
"""Values of one poll, and their size: 512 ports have up to 38,000 values of 8 bytes, and some texts."""
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

NEIGHBOUR_SECONDS = 60.0
"""Least time between two reads of neighbours, which change when cables do."""
MAX_EMPTY_POLLS = 3
"""Polls in which it is an error that a column has no rows which had some: the library returns none if the switch has an error."""
Walk: TypeAlias = Callable[[str], Awaitable[Rows]]


@dataclass(slots=True)
class SnmpReader:
    """Reads one switch by SNMP, with a session for each poll."""

    switch: ConfiguredSwitch
    monotonic: Callable[[], float]
    open: Callable[[ConfiguredSwitch], Awaitable[SnmpSession]] = open_session
    _neighbours_at: float | None = None
    """Time of the last read of neighbours."""
    _empty_polls: dict[str, int] = field(default_factory=dict)
    """Polls since the last one with rows, by column that had some."""

    async def read(self) -> SwitchReading:
        """Return the current readings. Raises SwitchReadError."""
        session = await self.open(self.switch)
        walk = partial(walk_column, session, budget=WalkBudget())
        scalars = await session.get(list(tables.SCALARS.values()))
        named = {name: scalars[oid] for name, oid in tables.SCALARS.items() if oid in scalars}
        interfaces = await self._read_fixed(walk, tables.IF_COLUMNS)
        vendor = self.switch.tables
        queues = tables.QUEUE_COLUMNS.get(vendor)
        found = tables.SwitchTables(
            named,
            tables.TableRows(interfaces),
            await _read_table(self._read_fixed(walk, tables.PFC_COLUMNS)),
            await _read_table(self._read_fixed(walk, tables.PRIORITY_COLUMNS[vendor])),
            await _read_table(self._read_fixed(walk, {"queues": queues} if queues else {})),
        )
        now_seconds = self.monotonic()
        if self._neighbours_at is None or now_seconds >= self._neighbours_at + NEIGHBOUR_SECONDS:
            # Before the read: a switch that fails it is not asked at each poll.
            self._neighbours_at = now_seconds
            found.neighbours = await _read_table(_read_columns(walk, tables.NEIGHBOUR_COLUMNS))
        return await service.run_in_thread(tables.make_reading, self.switch.name, found)

    async def _read_fixed(self, walk: Walk, columns: Mapping[str, str]) -> dict[str, Rows]:
        """Return the rows of a table that usually keeps them. Raises SwitchReadError."""
        rows, empty = await _read_columns(walk, columns), list[str]()
        for name, oid in columns.items():
            if rows[name]:
                self._empty_polls[oid] = 0
            elif oid in self._empty_polls:
                self._empty_polls[oid] += 1
                empty += [oid] * (self._empty_polls[oid] <= MAX_EMPTY_POLLS)
        if empty:
            message = f"no rows of {', '.join(empty)}: expected some, as before"
            raise SwitchReadError(message)
        return rows


async def _read_columns(walk: Walk, columns: Mapping[str, str]) -> dict[str, Rows]:
    """Return the rows of each column. Raises SwitchReadError."""
    return {name: await walk(oid) for name, oid in columns.items()}


async def _read_table(rows: Awaitable[Mapping[str, Rows]]) -> tables.TableRows:
    """Return a table that is not essential: a failure concerns it alone."""
    try:
        return tables.TableRows(await rows)
    except SwitchReadError as error:
        is_timeout = error.reason == "timeout"
        return tables.TableRows(failure=Absent.TIMEOUT if is_timeout else Absent.ERROR)
