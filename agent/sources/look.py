"""Sources of what changes rarely: facts more than numbers, and events where one becomes another.

Facts are part of a frame's schema, which a probe makes. So these sources look at the machine in the
probe, have themselves probed before each read, and the read tells what that look found.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field

from agent.host import Host
from agent.sampling.known_devices import failures
from agent.sampling.source import Finding, HoldsNothing, Inventory, Table
from railscope.catalog.declare import EventClass
from railscope.catalog.entities import NIC, NODE
from railscope.catalog.nic_settings import UNTOLD_EVENT
from railscope.entity import Entity
from railscope.frame import Column, Event, Instant
from railscope.reading import Absent, Reading

MAX_EVENTS = 100
"""Changes that one read tells one by one; how many more there are is one event."""
MAX_KNOWN = 100_000
"""Settings that are remembered; those not read for longest are forgotten first."""
FRESH_NS = 1_000_000_000
"""How old a probe's look may be for a read to tell it."""

Part = tuple[str, str]
"""An interface and one of the questions that it is asked."""


@dataclass
class Look:
    """What one look at the machine found."""

    readings: dict[Column, Reading] = field(default_factory=dict)
    described: list[Entity] = field(default_factory=list)
    """Entities whose facts are to be told."""
    watched: dict[Part, dict[str, str]] = field(default_factory=dict)
    """By question and name, what is an event when it changes; only what could be read."""
    findings: list[Finding] = field(default_factory=list)
    columns: dict[Part, tuple[Column, ...]] = field(default_factory=dict)
    failed: dict[Part, Absent] = field(default_factory=dict)

    def told(self, part: Part, readings: Mapping[Column, Reading]) -> None:
        """Take the answer to a question; of two that tell the same, the first value counts."""
        for column, reading in readings.items():
            if isinstance(self.readings.get(column, Absent.GONE), Absent):
                self.readings[column] = reading
        self.columns[part] = tuple(readings)

    def failure(self, part: Part, reason: Absent, columns: Sequence[Column] = ()) -> None:
        """Say why a question has no answer now; `columns` is what it would usually tell."""
        self.failed[part] = reason
        self.columns[part] = tuple(columns)


@dataclass(frozen=True, slots=True)
class Change:
    """Something watched that is another than when it was last read."""

    interface: str
    name: str
    before: str
    after: str


class Memory:
    """What was last read, and by which question: kept while it cannot be read, and over probes.

    Two places may tell the same in other words. Where one of them cannot be read for a while, the
    other that stands in is not compared with it; where it has nothing to say any more, the other is
    what counts from then on.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], tuple[Part, str]] = {}

    def changes(
        self, watched: Mapping[Part, Mapping[str, str]], failed: Container[Part] = ()
    ) -> list[Change]:
        """What differs from what was last known; what is met for the first time does not."""
        found = []
        for part, texts in watched.items():
            for name, text in texts.items():
                key = part[0], name
                told_by, before = self._known.pop(key, (part, text))
                if told_by != part and told_by in failed:
                    self._known[key] = told_by, before
                    continue
                if told_by == part and before != text:
                    found.append(Change(*key, before, text))
                self._known[key] = part, text
        while len(self._known) > MAX_KNOWN:
            del self._known[next(iter(self._known))]
        return found


class Looking(HoldsNothing, ABC):
    """A source that looks in its probe and tells in its read."""

    changed: EventClass

    def __init__(self) -> None:
        self._memory = Memory()
        self._known: dict[Part, tuple[Column, ...]] = {}
        self._columns: tuple[Column, ...] = ()
        self._fresh: Look | None = None
        self._looked_ns = 0

    @abstractmethod
    def look(self, host: Host) -> Look:
        """Look at the machine."""

    def probe(self, host: Host) -> Inventory:
        """Look, and make a column of every reading."""
        look = self._fresh = self._look(host)
        self._columns = tuple(look.readings)
        return Inventory(self._columns, tuple(look.described), tuple(look.findings))

    def read(self, host: Host, into: Table) -> None:
        """Tell what the probe has just seen; where that was long ago, look again."""
        look, self._fresh = self._fresh, None
        now = host.clock.now()
        if look is None or not 0 <= now.boot_ns - self._looked_ns < FRESH_NS:
            look = self._look(host)
        for position, column in enumerate(self._columns):
            into.put(position, look.readings.get(column, Absent.GONE))
        into.events += self._events(self._memory.changes(look.watched, look.failed), now)
        into.grown = True  # facts are to be looked at before each read

    def _look(self, host: Host) -> Look:
        """Look; what cannot be read now keeps its columns, what went away says so once.

        An answer that tells less than before does not know more, as of a link that is down; where
        there is no answer at all, what it was about is gone.
        """
        look = self.look(host)
        self._looked_ns = host.clock.now().boot_ns
        for part, reason in look.failed.items():
            look.columns[part] = self._known.get(part, look.columns[part])
            for column in look.columns[part]:
                look.readings.setdefault(column, reason)
        failed = failures(host)
        incomplete = {n for call in failed.values() if call.is_incomplete for n in call.names}
        for part, columns in self._known.items():
            if part[0] in incomplete or (part not in look.columns and failed):
                continue  # hidden by a failed call, for the reason of which it is absent
            reason = Absent.UNSUPPORTED if part in look.columns else Absent.GONE
            for column in columns:
                look.readings.setdefault(column, reason)
        self._known = look.columns
        return look

    def _events(self, changes: Sequence[Change], now: Instant) -> list[Event]:
        told = [
            Event(
                self.changed,
                Entity(NIC, (change.interface,)),
                now.wall_ns,
                now.boot_ns,
                _facts(self.changed, change),
            )
            for change in changes[:MAX_EVENTS]
        ]
        if more := len(changes) - len(told):
            facts = {"event": self.changed.name, "changes": str(more)}
            told.append(Event(UNTOLD_EVENT, Entity(NODE), now.wall_ns, now.boot_ns, facts))
        return told


def _facts(event_class: EventClass, change: Change) -> dict[str, str]:
    facts = {"setting": change.name, "before": change.before, "after": change.after}
    return {name: text for name, text in facts.items() if name in event_class.facts}
