"""Bases of sources: scans of slowly changing state, and narrow counters.

Sources of slowly changing state have mostly facts, and events when one changes. Facts are part of a
frame's schema, which a probe creates. So these sources scan the node in the probe, have themselves
probed before each read, and the read returns the result of that scan.

Narrow counters are extended to 64 bits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from railscope import counter_unwrap
from railscope.catalog.declare import EntityKind, EventClass, Metric
from railscope.catalog.entities import NIC, NODE
from railscope.catalog.nic_settings import SUPPRESSED_EVENT
from railscope.frame import Column, Entity, Event, NodeTimestamp
from railscope.reading import Absent, Reading
from railscope.timestamps import SECOND_NS
from railscope_agent.host import Host
from railscope_agent.host.boot_state import BootState, BootStateFile
from railscope_agent.sampling import guard, probe_result, row_builder, source as base

MAX_EVENTS = 100
"""Maximum of changes that one read reports individually; the count of the rest is one event."""
MAX_KNOWN = 100_000
"""Maximum of remembered settings; the least recently read are dropped first."""
SAVE_EVERY_NS = 60 * SECOND_NS
"""Interval for saving the last values of counters, which reveal a reset that happened while the agent was down."""
FRESH_NS = SECOND_NS
"""Maximum age of a probe's scan for a read to use it."""

WatchedPart = tuple[str, str]
"""An interface and the name of one query for it."""


@dataclass
class NodeScan:
    """Result of one scan of the node."""

    readings: dict[Column, Reading] = field(default_factory=dict)
    described_entities: list[Entity] = field(default_factory=list)
    """Entities with facts to report."""
    watched_values: dict[WatchedPart, dict[str, str]] = field(default_factory=dict)
    """Values by query and name that raise an event when they change; only those that could be read."""
    findings: list[probe_result.ProbeFinding] = field(default_factory=list)
    columns: dict[WatchedPart, tuple[Column, ...]] = field(default_factory=dict)
    failures: dict[WatchedPart, Absent] = field(default_factory=dict)

    def add_readings(self, part: WatchedPart, readings: Mapping[Column, Reading]) -> None:
        """Add the answer to a query; if two answers contain the same column, the first value counts."""
        for column, reading in readings.items():
            if isinstance(self.readings.get(column, Absent.GONE), Absent):
                self.readings[column] = reading
        self.columns[part] = tuple(readings)

    def failure(self, part: WatchedPart, reason: Absent, columns: Sequence[Column] = ()) -> None:
        """Record the reason why a query failed; `columns` are its usual columns."""
        self.failures[part] = reason
        self.columns[part] = tuple(columns)


@dataclass(frozen=True, slots=True)
class WatchedChange:
    """A watched value that differs from the last one read."""

    interface: str
    name: str
    before: str
    after: str


class WatchedValues:
    """Last values read, with their queries; retained across failed reads and probes.

    Two queries may return the same setting in different notation. While the one that was read last
    fails, its value is not compared with that of the other; once it is unsupported, the value of the
    other replaces it.
    """

    def __init__(self) -> None:
        self._values: dict[tuple[str, str], tuple[WatchedPart, str]] = {}

    def changes(
        self, watched: Mapping[WatchedPart, Mapping[str, str]], failed: Container[WatchedPart] = ()
    ) -> list[WatchedChange]:
        """Differences from the last known values; a value read for the first time is not a difference."""
        changes = []
        for part, texts in watched.items():
            for name, text in texts.items():
                key = part[0], name
                # Removed and added again, which moves it to the end: the least recently read are dropped
                # first.
                reported_by, before = self._values.pop(key, (part, text))
                if reported_by != part and reported_by in failed:
                    self._values[key] = reported_by, before
                    continue
                if reported_by == part and before != text:
                    changes.append(WatchedChange(*key, before, text))
                self._values[key] = part, text
        while len(self._values) > MAX_KNOWN:
            del self._values[next(iter(self._values))]
        return changes


class ScanningSource(base.Source, ABC):
    """A source that scans in its probe and reports in its read."""

    changed: EventClass

    def __init__(self) -> None:
        self._memory = WatchedValues()
        self._part_columns: dict[WatchedPart, tuple[Column, ...]] = {}
        self._columns: tuple[Column, ...] = ()
        self._fresh: NodeScan | None = None
        self._polled_ns = 0

    @abstractmethod
    def scan(self, host: Host) -> NodeScan:
        """Scan the node."""

    def probe(self, host: Host) -> probe_result.ProbeResult:
        """Scan, and create a column for every reading."""
        scan = self._fresh = self._complete_scan(host)
        self._columns = tuple(scan.readings)
        return probe_result.ProbeResult(
            self._columns, tuple(scan.described_entities), tuple(scan.findings)
        )

    def read(self, host: Host, into: row_builder.RowBuilder) -> None:
        """Report the probe's scan; if it is too old, scan again."""
        scan, self._fresh = self._fresh, None
        now = host.clock.now()
        if scan is None or not 0 <= now.boot_ns - self._polled_ns < FRESH_NS:
            scan = self._complete_scan(host)
        for position, column in enumerate(self._columns):
            into.put(position, scan.readings.get(column, Absent.GONE))
        into.events += self._events(self._memory.changes(scan.watched_values, scan.failures), now)
        into.needs_probe = True  # facts need a probe before each read

    def _complete_scan(self, host: Host) -> NodeScan:
        """Scan; failed queries keep their columns, and vanished ones are reported as absent once.

        A value missing from a successful answer is unsupported, as on a down link; if a query has
        no answer at all, its subject is gone.
        """
        scan = self.scan(host)
        self._polled_ns = host.clock.now().boot_ns
        for part, reason in scan.failures.items():
            scan.columns[part] = self._part_columns.get(part, scan.columns[part])
            for column in scan.columns[part]:
                scan.readings.setdefault(column, reason)
        failures = guard.failures_of(host)
        for part, columns in self._part_columns.items():
            if part not in scan.columns and failures:
                continue  # hidden by a failed call, and absent for its reason
            reason = Absent.UNSUPPORTED if part in scan.columns else Absent.GONE
            for column in columns:
                scan.readings.setdefault(column, reason)
        self._part_columns = scan.columns
        return scan

    def _events(self, changes: Sequence[WatchedChange], now: NodeTimestamp) -> list[Event]:
        events = []
        for change in changes[:MAX_EVENTS]:
            texts = {"setting": change.name, "before": change.before, "after": change.after}
            facts = {name: text for name, text in texts.items() if name in self.changed.facts}
            about = Entity(NIC, (change.interface,))
            events.append(Event(self.changed, about, now.wall_ns, now.boot_ns, facts))
        if more := len(changes) - len(events):
            facts = {"event": self.changed.name, "changes": str(more)}
            events.append(Event(SUPPRESSED_EVENT, Entity(NODE), now.wall_ns, now.boot_ns, facts))
        return events


@dataclass(slots=True)
class ReportedReadings:
    """Readings that a source has computed, by entity; replaced as a whole, as their reader is on another thread."""

    readings: Mapping[Entity, Sequence[Reading]] = field(default_factory=dict)


class ReportingSource(base.Source):
    """The readings that another source has computed, each kind of entity with its metrics."""

    stage = 3
    is_shipped = False
    """Every job would add a schema that all collectors have to store."""

    def __init__(
        self,
        name: str,
        period_seconds: float,
        results: ReportedReadings,
        metrics: Mapping[EntityKind, tuple[Metric, ...]],
    ) -> None:
        self.name, self.period_seconds = name, period_seconds
        self.metrics, self._results = metrics, results
        self._entities: tuple[Entity, ...] = ()

    def probe(self, host: Host) -> probe_result.ProbeResult:  # noqa: ARG002 - it reads the result of another source
        """Create the columns of each entity."""
        self._entities = tuple(self._results.readings)
        columns = probe_result.ColumnBuilder()
        for entity in self._entities:
            columns.add_each(self.metrics[entity.kind], entity)
        return columns.result()

    def read(self, host: Host, into: row_builder.RowBuilder) -> None:  # noqa: ARG002 - as above
        """Report the last readings."""
        readings, position = self._results.readings, 0
        into.needs_probe = tuple(readings) != self._entities
        for entity in self._entities:
            absent = (Absent.GONE,) * len(self.metrics[entity.kind])
            into.put_readings(position, readings.get(entity, absent))
            position += len(absent)


class _SavedCounters(BootState, frozen=True):
    sets: dict[str, dict[str, tuple[int, int]]]


class UnwrappingSource(base.Source):
    """Base class of sources with narrow counters, whose wraps survive probes and restarts.

    Unwrappers are named by a device or a directory. The saved state is the number of wraps, because a driver shows the
    low 32 bits only. Without it, a restarted agent would lower the counter by all wraps so far, which consumers of the
    metrics would treat as a reset.
    """

    def __init__(self) -> None:
        self._unwraps: dict[str, counter_unwrap.CounterUnwrapper] = {}
        self._file: BootStateFile | None = None
        self._saved_wraps = self._saved_ns = 0
        self._before: dict[str, counter_unwrap.CounterStates] = {}
        """Counters before a restart, or hidden from the last probe by failed calls."""

    def remember(self, directory: Path, boot_id: str) -> None:
        """Load and store the counters of sets in which one has wrapped, a few kilobytes each."""
        path = directory / f"{self.name}-counter-wraps.json"
        self._file = BootStateFile(path, boot_id, "counter_wraps")
        if saved := self._file.read(_SavedCounters):
            self._before = dict(saved.sets)

    @property
    def _counter_states(self) -> dict[str, counter_unwrap.CounterStates]:
        return {name: unwrap.state for name, unwrap in self._unwraps.items()}

    def _replace_unwraps(
        self, host: Host, unwraps: dict[str, counter_unwrap.CounterUnwrapper]
    ) -> None:
        """Use the unwrappers of a new probe, which started with the state in `_before`."""
        self._unwraps = unwraps
        # States that this probe did not find are kept if a failed call has hidden them.
        self._before = self._before if guard.failures_of(host) else {}

    def _save_unwraps(self, host: Host) -> None:
        """Save each wrap and each reset at once, and the values of wrapped sets at intervals."""
        wraps = sum(unwrap.wraps for unwrap in self._unwraps.values())
        now_ns = host.clock.now().boot_ns
        due = now_ns - self._saved_ns >= SAVE_EVERY_NS
        # Nothing has wrapped on most nodes: the file is not written then.
        if self._file and (wraps != self._saved_wraps or (wraps and due)):
            wrapped = {name: dict(each.state) for name, each in self._unwraps.items() if each.wraps}
            self._file.write(_SavedCounters(self._file.boot_id, wrapped))
            self._saved_wraps, self._saved_ns = wraps, now_ns
