"""Claims in force, and the starts and ends since the previous poll.

A claim keeps its id from start to end, across restarts of the agent: the id consists of source,
node, workload, reference, device and start. A claim never ends because its provider cannot be
read. A claim that several providers report is reported once, by the provider with the highest
authority, for as long as the provider of lower authority has it. Starts and ends are recorded on
both clocks. The boot clock decides, because the wall clock of a node may be stepped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from agent.tenancy.claims import COMMAND_SOURCE, FILE_SOURCE, BootTime, ClaimReport, NodeClaim
from railscope.catalog import declare, entities, tenancy as c
from railscope.claim_terms import ClaimAuthority
from railscope.frame import Entity, Event, NodeTimestamp

REPEAT_EVERY_NS = 3_600_000_000_000
RESUME_NS = 300_000_000_000
"""Time for which a claim is left to a provider of higher authority after that claim ended.

A job takes some time to disappear.
"""
MAX_ENDED_CLAIMS = 1000
GONE, ENDED, CHANGED, COVERED = (
    "gone",
    "ended",
    "changed",
    "superseded by a provider of higher authority",
)


class ActiveClaim(msgspec.Struct, frozen=True):
    """A claim, or use without one, that is in force. Its `held` has a start."""

    id: str
    adapter: str
    held: NodeClaim

    @property
    def is_claim(self) -> bool:
        """True for a claim, False for unclaimed use."""
        return self.held.level is not ClaimAuthority.PROCESS


class EndedClaim(msgspec.Struct, frozen=True):
    """A claim or unclaimed use that has ended, kept until its end was emitted again."""

    open: ActiveClaim
    end_ns: int
    uncertainty_ns: int
    why: str
    end_boot: BootTime | None = None


class SupersededClaim(msgspec.Struct, frozen=True):
    """A claim that is left to a provider of higher authority, at most until a time of the boot clock."""

    key: tuple[str, ...]
    until: BootTime | None = None


class ProviderPoll(msgspec.Struct, frozen=True):
    """Time of the last poll of a provider, on both clocks."""

    boot_id: str
    boot_ns: int
    wall_ns: int


class ClaimTrackerState(msgspec.Struct):
    """State of a `ClaimTracker` that must survive a restart of the agent."""

    open: list[ActiveClaim] = []
    closed: list[EndedClaim] = []
    done: list[tuple[str, ...]] = []
    """Claims that have reached the end they specify, and that their provider still reports."""
    hidden: list[SupersededClaim] = []
    seen: dict[str, ProviderPoll] = {}


@dataclass(frozen=True, slots=True)
class ProviderReport:
    """Report of one provider, with the start and end of its poll."""

    adapter: str
    report: ClaimReport
    began: NodeTimestamp
    ended: NodeTimestamp


SOURCE_PRECEDENCE = {FILE_SOURCE: 2, COMMAND_SOURCE: 1}
"""Order of sources of equal authority: claims by a person or a prolog precede observed ones."""
ClaimEdge: TypeAlias = tuple[int, BootTime | None]
"""Time of a start or an end: wall clock, and boot clock if a clock of the node measured it."""
ClaimsByWorkload: TypeAlias = dict[tuple[str, tuple[str, str]], list[tuple[str, NodeClaim]]]
"""Reports of all providers by GPU and workload."""


class ClaimTracker:
    """The claims in force."""

    def __init__(self, node: str, boot_id: str, kept: ClaimTrackerState | None = None) -> None:
        kept = kept or ClaimTrackerState()
        self.changed = False
        """True if there is new state to save."""
        self._node, self._boot_id = node, boot_id
        self._open = {(one.adapter, *one.held.key): one for one in kept.open}
        self._closed = list(kept.closed)
        self._done = {tuple(key) for key in kept.done}
        self._hidden = {
            one.key: one.until.boot_ns
            for one in kept.hidden
            if one.until is not None and one.until.boot_id == boot_id
        }
        """Times on the boot clock; no entry survives a reboot."""
        self._seen = dict(kept.seen)
        self._events: list[Event] = []
        self._repeat_at_ns: int | None = None

    @property
    def kept(self) -> ClaimTrackerState:
        """State to save."""
        return ClaimTrackerState(
            list(self._open.values()),
            self._closed,
            sorted(self._done),
            [SupersededClaim(key, self._at(ns)) for key, ns in sorted(self._hidden.items())],
            dict(self._seen),
        )

    @property
    def open(self) -> tuple[ActiveClaim, ...]:
        """All claims and unclaimed uses that are in force."""
        return tuple(self._open.values())

    def in_force(self, adapter: str) -> tuple[NodeClaim, ...]:
        """Return the claims of one provider that are in force."""
        return tuple(one.held for key, one in self._open.items() if key[0] == adapter)

    def take_events(self) -> list[Event]:
        """Return and clear the events since the last call."""
        events, self._events = self._events, []
        return events

    def settle(self, reports: Sequence[ProviderReport], now: NodeTimestamp) -> None:
        """Process the reports of all providers.

        Emits everything in force again at the first call and every hour.
        """
        if self._repeat_at_ns is None or now.boot_ns >= self._repeat_at_ns:
            self._emit_all_again(now, forget=self._repeat_at_ns is not None)
            self._repeat_at_ns = now.boot_ns + REPEAT_EVERY_NS
        claimed = [(report.adapter, held) for report in reports for held in report.report.held]
        known = {(adapter, *held.key) for adapter, held in claimed}
        unread = {report.adapter: report.report for report in reports}
        claimed += [
            (one.adapter, one.held)
            for key, one in self._open.items()
            if key not in known
            and one.adapter in unread
            and _remains_in_force(one, unread[one.adapter])
        ]
        alike: ClaimsByWorkload = {}
        for adapter, held in claimed:
            alike.setdefault((held.gpu, held.workload_of), []).append((adapter, held))
        self._hidden = {k: until for k, until in self._hidden.items() if now.boot_ns < until}
        for report in reports:
            self._take(report, alike)
        present = {(adapter, *held.key) for adapter, held in claimed}
        polled_providers = {report.adapter for report in reports}
        self._hidden = {
            key: until
            for key, until in self._hidden.items()
            if key in present or key[0] not in polled_providers
        }
        self._done = {key for key in self._done if key in present or key[0] not in polled_providers}

    def _take(self, report: ProviderReport, alike: ClaimsByWorkload) -> None:
        """Compare the report of one provider with its previous one."""
        if report.report.unread is not None:
            return
        now, gap_ns = report.ended, self._gap_ns(report)
        present = dict(self._present(report, alike, now))
        for key, one in [(k, o) for k, o in self._open.items() if k[0] == report.adapter]:
            if key not in present:
                if not _remains_in_force(one, report.report):
                    self._end(key, now, self._edge(now), gap_ns, GONE)
            elif not present[key].agrees(one.held):
                self._end(key, now, self._edge(now), gap_ns, CHANGED)
                self._start(key, _without_start(present[key]), now, gap_ns)
        for key, held in present.items():
            self._follow(key, held, now, gap_ns)
        self._seen[report.adapter] = ProviderPoll(
            self._boot_id, report.began.boot_ns, report.began.wall_ns
        )

    def _present(
        self, report: ProviderReport, alike: ClaimsByWorkload, now: NodeTimestamp
    ) -> Iterator[tuple[tuple[str, ...], NodeClaim]]:
        """Yield the claims of a provider that have begun, except those left to a higher authority."""
        for held in report.report.held:
            key = (report.adapter, *held.key)
            higher = self._higher(report.adapter, held, alike, now)
            if higher is not None:
                self._supersede(key, higher, now)
            elif key not in self._hidden and self._has_begun(key, held, now):
                yield key, held

    def _has_begun(self, key: tuple[str, ...], held: NodeClaim, now: NodeTimestamp) -> bool:
        """True if a claim has begun. A claim in force has, even if the clock was set back since."""
        return key in self._open or held.has_begun(self._boot_id, now)

    def _higher(
        self, adapter: str, held: NodeClaim, alike: ClaimsByWorkload, now: NodeTimestamp
    ) -> NodeClaim | None:
        """Return the same claim of another provider with higher authority, the highest of several."""

        def rank(place: str, one: NodeClaim) -> tuple[int, int]:
            return one.level, SOURCE_PRECEDENCE.get(place, 0)

        found = [
            (rank(place, other), other)
            for place, other in alike[held.gpu, held.workload_of]
            if place != adapter
            and rank(place, other) > rank(adapter, held)
            and other.compute.overlaps(held.compute)
            and self._has_begun((place, *other.key), other, now)
            and not other.has_ended(self._boot_id, now)
        ]
        return max(found, key=lambda ranked: ranked[0])[1] if found else None

    def _follow(
        self, key: tuple[str, ...], held: NodeClaim, now: NodeTimestamp, gap_ns: int
    ) -> None:
        """Start a claim that is new, and end one that specifies an end in the past."""
        is_over = held.has_ended(self._boot_id, now)
        if key not in self._open and not (is_over and key in self._done):
            is_ended = key in self._done  # an ended claim does not start again at the same time
            self._done.discard(key)
            self._start(key, _without_start(held) if is_ended else held, now, gap_ns)
        if is_over and key in self._open:
            self._end(key, now, (held.end_ns or 0, held.end_boot), 0, ENDED)
            self._done.add(key)

    def _gap_ns(self, report: ProviderReport) -> int:
        """Return the time since the previous poll: a claim found now may have begun at any time in it."""
        seen = self._seen.get(report.adapter)
        if seen is None:
            return report.ended.boot_ns
        if seen.boot_id == self._boot_id and seen.boot_ns <= report.ended.boot_ns:
            return report.ended.boot_ns - seen.boot_ns
        return max(report.ended.wall_ns - seen.wall_ns, 0)

    def _supersede(self, key: tuple[str, ...], higher: NodeClaim, now: NodeTimestamp) -> None:
        """Leave a claim to a provider of higher authority, from the start of that provider's claim."""
        self.changed |= key not in self._hidden
        self._hidden[key] = now.boot_ns + RESUME_NS
        if key in self._open:
            known = higher.start_ns is not None
            end = (higher.start_ns or 0, higher.start_boot) if known else self._edge(now)
            self._end(key, now, end, 0, COVERED)

    def _at(self, boot_ns: int) -> BootTime:
        return BootTime(self._boot_id, boot_ns)

    def _edge(self, now: NodeTimestamp) -> ClaimEdge:
        return now.wall_ns, self._at(now.boot_ns)

    def _start(
        self, key: tuple[str, ...], held: NodeClaim, now: NodeTimestamp, gap_ns: int
    ) -> None:
        start_ns, start_boot = self._edge(now)
        if held.start_ns is not None:
            start_ns, start_boot = held.start_ns, held.start_boot
        uncertainty_ns = held.uncertainty_ns
        if uncertainty_ns is None or held.start_ns is None:
            uncertainty_ns = gap_ns
        begun = msgspec.structs.replace(
            held, start_ns=start_ns, start_boot=start_boot, uncertainty_ns=uncertainty_ns
        )
        parts = (
            held.source,
            self._node,
            held.workload,
            held.reference,
            held.part,
            str(start_ns),
        )
        name = "/".join(part for part in parts if part)
        if any(
            name == other.id for other in (*self._open.values(), *(c.open for c in self._closed))
        ):
            name += f"+{now.boot_ns}"  # the wall clock was set back and shows the same time again
        one = ActiveClaim(name, key[0], begun)
        self._open[key] = one
        self._emit_start(one, now)
        self.changed = True

    def _end(
        self,
        key: tuple[str, ...],
        now: NodeTimestamp,
        end: ClaimEdge,
        uncertainty_ns: int,
        why: str,
    ) -> None:
        one = self._open.pop(key)
        # A clock that was set back must not make a claim end before it began.
        end_ns, end_boot = max(end[0], one.held.start_ns or 0), end[1]
        start_boot = one.held.start_boot
        if end_boot and start_boot and end_boot.boot_id == start_boot.boot_id:
            end_boot = BootTime(end_boot.boot_id, max(end_boot.boot_ns, start_boot.boot_ns))
        closed = EndedClaim(one, end_ns, uncertainty_ns, why, end_boot)
        self._closed = [*self._closed, closed][-MAX_ENDED_CLAIMS:]
        self._record_end(closed, now)
        self.changed = True

    def _emit_all_again(self, now: NodeTimestamp, *, forget: bool) -> None:
        """Emit again everything in force, and what ended within the hour: an event may be lost."""
        for one in self._open.values():
            self._emit_start(one, now)
        for closed in self._closed:
            self._emit_ended(closed, now)
        if forget:
            self.changed |= bool(self._closed)
            self._closed = []

    def _emit_ended(self, closed: EndedClaim, now: NodeTimestamp) -> None:
        """Emit an ended claim again.

        An end in an earlier boot is given in wall clock time only; if its own event was received, that one
        counts.
        """
        if closed.end_boot is None or closed.end_boot.boot_id == self._boot_id:
            self._emit_start(closed.open, now)
            self._record_end(closed, now)
        else:
            self._emit_start(closed.open, now, {"end_ns": str(closed.end_ns)})

    def _emit_start(
        self, one: ActiveClaim, now: NodeTimestamp, more: dict[str, str] | None = None
    ) -> None:
        kind = c.CLAIM_START_EVENT if one.is_claim else c.UNCLAIMED_START_EVENT
        self._record_start(kind, one, now, one.held.facts(self._boot_id) | (more or {}))

    def _record_end(self, closed: EndedClaim, now: NodeTimestamp) -> None:
        kind = c.CLAIM_END_EVENT if closed.open.is_claim else c.UNCLAIMED_END_EVENT
        facts = {
            name: text
            for name, text in closed.open.held.facts(self._boot_id).items()
            if name in kind.facts
        }
        facts["end_ns"] = str(closed.end_ns)
        if closed.end_boot is not None:
            facts["end_boot_ns"] = str(closed.end_boot.boot_ns)
        facts["uncertainty_ns"] = str(closed.uncertainty_ns)
        facts["why"] = closed.why
        self._record_start(kind, closed.open, now, facts)

    def _record_start(
        self, kind: declare.EventClass, one: ActiveClaim, now: NodeTimestamp, facts: dict[str, str]
    ) -> None:
        about = Entity(entities.CLAIM, (one.held.gpu, one.id))
        self._events.append(Event(kind, about, now.wall_ns, now.boot_ns, facts))


def _remains_in_force(one: ActiveClaim, claim_report: ClaimReport) -> bool:
    """True if the report leaves a claim as it is because its GPU or provider could not be read."""
    return claim_report.unread is not None or one.held.gpu in claim_report.unread_gpus


def _without_start(held: NodeClaim) -> NodeClaim:
    """Return the claim with its start at the current poll."""
    return msgspec.structs.replace(held, start_ns=None, start_boot=None)


def claims_on_gpu(open_: Sequence[ActiveClaim], gpu: str) -> Iterator[NodeClaim]:
    """Return the claims in force on a GPU."""
    return (one.held for one in open_ if one.is_claim and one.held.gpu == gpu)
