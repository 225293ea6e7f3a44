"""Result of one poll of a switch, the same for readers of all protocols, and the interface of these readers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Literal, Protocol, TypeAlias

from railscope import RailscopeError
from railscope.catalog import switches as catalog
from railscope.catalog.declare import Metric
from railscope.frame import Column
from railscope.reading import UNSIGNED_RANGE, Absent, Reading

MAX_PORTS = 512
"""Ports of one switch: a schema has at most 20,000 columns, and a port up to 32 in one stream."""
PRIORITIES = range(8)
_MAX_SUMMARY = 80
MAX_TEXT = 255
"""Characters of a text of a switch; longer ones are cut."""

PORTS, PRIORITY, QUEUES, NEIGHBOURS, SWITCH, WATERMARKS, QUEUE_MARKS, WATCHDOG, LANES = (
    "switch_ports", "switch_priorities", "switch_queues", "switch_neighbours", "switch", "switch_watermarks",
    "switch_queue_marks", "switch_queue_watchdog", "switch_lanes",
)  # fmt: skip
"""Streams of the frames of a switch."""
QUEUE_SECONDS, WATERMARK_SECONDS, NEIGHBOUR_SECONDS = 10.0, 60.0, 60.0
"""Periods in which a switch itself reads its queues and watermarks by default (SONiC); it reads its ports every second."""
_EARLY = 0.8
"""Part of a period after which a group is due: polls have jitter."""
_MAX_DIGITS = 20
_ABSENT_TEXTS = frozenset({"", "N/A"})
FailureReason: TypeAlias = Literal["timeout", "error", "limit"]


class SwitchReadError(RailscopeError):
    """A switch that cannot be read: the problem, and its reason in the metrics."""

    def __init__(self, problem: str, reason: FailureReason = "error") -> None:
        super().__init__(problem)
        self.reason: FailureReason = reason

    @property
    def absence(self) -> Absent:
        """Reason of readings that are absent for it."""
        return Absent.TIMEOUT if self.reason == "timeout" else Absent.ERROR


StreamReadings: TypeAlias = list[tuple[Column, Reading]]


@dataclass(frozen=True, slots=True)
class SwitchReading:
    """Readings of a switch by stream, as of one poll."""

    streams: Mapping[str, StreamReadings]
    uptime_ns: int | None = None
    """Time since the switch started, as it states; None if it states none."""
    uptime_range_ns: int = 1 << 63
    """Time after which the stated uptime begins again at 0."""
    dialect: str = ""
    """Dialect in which the switch was read, as in the settings; empty for a protocol with one only."""


def summarize(reading: SwitchReading) -> str:
    """Return dialect, description, ports and missing facts of a switch, for people."""
    switch = next((entity for (_, entity), _ in reading.streams.get(SWITCH, ())), None)
    facts = switch.facts if switch else {}
    ports = _values(reading, SWITCH, catalog.PORTS)
    known = _values(reading, NEIGHBOURS, catalog.NEIGHBOUR_KNOWN)
    description = facts.get("description", "")[:_MAX_SUMMARY]
    parts = [reading.dialect + (f" ({description})" if description else "")]
    parts.append(f"{sum(ports)} ports")
    parts.append(f"{sum(known)} with a neighbour")
    if missing := facts.get("missing_tables", ""):
        parts.append(f"without {missing}")
    return ", ".join(filter(None, parts))


def _values(reading: SwitchReading, stream: str, metric: Metric) -> list[int]:
    part = reading.streams.get(stream, ())
    return [value for (each, _), value in part if each is metric and isinstance(value, int)]


class SwitchReader(Protocol):
    """Reads one switch by one protocol."""

    async def read(self) -> SwitchReading:
        """Return the current readings. Raises SwitchReadError; the caller limits the duration."""


def cut_text(text: str) -> str:
    """Return a text of a switch without surrounding space, of limited length."""
    return text.strip()[:MAX_TEXT]


def as_number(value: object) -> Reading:
    """Return a value as a number of at most 64 bits; switches return text, others may return integers."""
    if isinstance(value, str):
        text = value.strip()
        if text in _ABSENT_TEXTS:
            return Absent.UNSUPPORTED
        # `isdecimal` also accepts digits of other scripts.
        is_number = text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS
        value = int(text) if is_number else -1
    if value is None:
        return Absent.UNSUPPORTED
    if isinstance(value, bool) or not isinstance(value, int):
        return Absent.ERROR
    return value if 0 <= value < UNSIGNED_RANGE else Absent.ERROR


NO_LIGHT_DBM, ONE_WATT_DBM = -100, 30
"""Transceivers measure -40 to 8 dBm (SFF-8636, 16 bits of 0.1 microwatts)."""


def as_nanowatts(dbm: float) -> Reading:
    """Return an optical power in dBm, usually negative, in nanowatts; 0 dBm is a milliwatt."""
    is_possible = NO_LIGHT_DBM <= dbm <= ONE_WATT_DBM
    return round(10 ** (dbm / 10) * 1e6) if is_possible else Absent.ERROR


def sum_counters(parts: Iterable[Reading | Decimal]) -> Reading:
    """Return the sum of counters, which counts as they do, in 64 bits; absent if one of them is."""
    total = 0
    for part in parts:
        if isinstance(part, Absent):
            return part
        total += int(part)
    # As the counters wrap at 64 bits, so does their sum; increments stay right.
    return total % UNSIGNED_RANGE


@dataclass(slots=True)
class ReadTimes:
    """Times at which groups of readings were read that have a period of their own."""

    periods: Mapping[str, float]
    """Seconds between two reads, by group."""
    _read_at: dict[str, float] = field(default_factory=dict)

    def due(self, now_seconds: float) -> set[str]:
        """Return the groups that are due."""
        return {
            name
            for name, period in self.periods.items()
            if now_seconds >= self._read_at.get(name, -period) + period * _EARLY
        }

    def note(self, groups: Iterable[str], now_seconds: float) -> None:
        """Record groups that were read."""
        self._read_at.update(dict.fromkeys(groups, now_seconds))
