"""Reader of SONiC switches by gNMI: requests for whole tables, with a connection for each poll.

An answer is for the path and target of its request. It is decoded in a thread, as bytes until then.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from railscope import service, untrusted_text
from railscope.reading import Absent
from railscope_collector.switches import (
    gnmi_messages,
    sonic_tables as tables,
    switch_reading as base,
)
from railscope_collector.switches.fact_readings import KnownSwitch
from railscope_collector.switches.gnmi_session import GnmiSession, TablePath, open_session
from railscope_collector.switches.switch_settings import ConfiguredSwitch

GROUPS = {
    "watermarks": base.WATERMARK_SECONDS,
    "queues": base.QUEUE_SECONDS,
    "neighbours": base.NEIGHBOUR_SECONDS,
}
_OID_START, _MAX_OID = "oid:0x", 32


def decode_answer(body: bytes, target: str, *, is_row: bool = False) -> tables.SonicTable:
    """Return the table in an answer; `is_row` if it is a single row, which has no key. Raises SwitchReadError."""
    answer = gnmi_messages.decode("GetResponse", body)
    # One path was requested, so more than one update is of something else.
    if len(answer.notification) != 1 or len(answer.notification[0].update) != 1:
        text = "unexpected answer: expected one update in one notification"
        raise base.SwitchReadError(text)
    notification = answer.notification[0]
    answered = notification.prefix.target
    if answered and answered != target:
        text = f"answer of target {untrusted_text.quote_text(answered)}: expected {target}"
        raise base.SwitchReadError(text)
    value = notification.update[0].val
    kind = value.WhichOneof("value")
    if kind not in {"json_ietf_val", "json_val"}:
        text = f"unexpected answer: {kind or 'no value'}: expected a value in JSON"
        raise base.SwitchReadError(text)
    rows = gnmi_messages.decode_json(getattr(value, kind), dict[str, Any])
    return tables.SonicTable({"": rows} if is_row else rows)


# Polls -------------------------------------------------------------------------------------------


@dataclass(slots=True)
class SonicReader:
    """Reads one switch; a group of counters no more often than the switch itself does."""

    switch: ConfiguredSwitch
    monotonic: Callable[[], float]
    _known: KnownSwitch = field(default_factory=KnownSwitch)
    _times: base.ReadTimes = field(default_factory=lambda: base.ReadTimes(GROUPS))

    async def read(self) -> base.SwitchReading:
        """Return the current readings. Raises SwitchReadError."""
        now_seconds = self.monotonic()
        due = self._times.due(now_seconds)
        async with open_session(self.switch) as session:
            ports = await _read_table(session, "COUNTERS_DB", ("COUNTERS", "Ethernet*"))
            if ports.failure:
                text = "no COUNTERS/Ethernet* in COUNTERS_DB: expected a switch with SONiC"
                raise base.SwitchReadError(text)
            # Essential: without it, ports would have other names
            states = await _read_table(session, "APPL_DB", ("PORT_TABLE",))
            found = tables.SonicTables(ports, states)
            if due & {"queues", "watermarks"}:  # the watermarks of queues are in the same answer
                path = ("COUNTERS", "Ethernet*", "Queues")
                found.queues = await _read_optional(session, "COUNTERS_DB", path)
                due.add("queues")
            if "watermarks" in due:
                path = ("PERIODIC_WATERMARKS", "Ethernet*", "PriorityGroups")
                found.groups = await _read_optional(session, "COUNTERS_DB", path)
                found.pools = await _read_pools(session)
                found.profile_names, found.profiles = [
                    await _read_optional(session, "APPL_DB", (table,))
                    for table in ("BUFFER_PG_TABLE", "BUFFER_PROFILE_TABLE")
                ]
            if "neighbours" in due:
                found.neighbours = await _read_optional(session, "APPL_DB", ("LLDP_ENTRY_TABLE",))
                found.chassis = await _read_optional(
                    session, "APPL_DB", ("LLDP_LOC_CHASSIS",), is_row=True
                )
        # Only after all requests: a poll that failed reads the same groups again.
        self._times.note(due, now_seconds)
        return await service.run_in_thread(
            tables.make_reading, self.switch.name, found, self._known
        )


async def _read_table(
    session: GnmiSession, target: str, path: TablePath, *, is_row: bool = False
) -> tables.SonicTable:
    """Return a table, unsupported if the switch does not have it. Raises SwitchReadError."""
    body = await session.get(target, path)
    if body is None:
        return tables.SonicTable(failure=Absent.UNSUPPORTED)
    return await service.run_in_thread(decode_answer, body, target, is_row=is_row)


async def _read_optional(
    session: GnmiSession, target: str, path: TablePath, *, is_row: bool = False
) -> tables.SonicTable:
    """Return a table that is not essential: a failure concerns it alone."""
    try:
        return await _read_table(session, target, path, is_row=is_row)
    except base.SwitchReadError as error:
        return tables.SonicTable(failure=error.absence)


async def _read_pools(session: GnmiSession) -> tables.SonicTable:
    """Return the watermarks of the buffer pools by their names."""
    path = ("COUNTERS_BUFFER_POOL_NAME_MAP",)
    named = await _read_optional(session, "COUNTERS_DB", path, is_row=True)
    rows: dict[str, object] = {}
    row = named.rows.get("")
    for name, oid in sorted(row.items() if isinstance(row, dict) else ())[: tables.MAX_POOLS]:
        if not isinstance(oid, str) or not oid.startswith(_OID_START) or len(oid) > _MAX_OID:
            rows[name] = oid
            continue
        table = await _read_optional(
            session, "COUNTERS_DB", ("PERIODIC_WATERMARKS", oid), is_row=True
        )
        # One failure is enough: further pools of a switch that hangs would each wait for a timeout.
        if table.failure not in {None, Absent.UNSUPPORTED}:
            return table
        rows[name] = table.rows.get("", {})
    return tables.SonicTable(rows, named.failure)
