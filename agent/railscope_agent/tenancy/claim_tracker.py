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

from railscope.catalog import declare, entities, tenancy as c
from railscope.claim_terms import ClaimAuthority
from railscope.frame import Entity, Event, NodeTimestamp
from railscope_agent.tenancy.claim_provider import ClaimReport
from railscope_agent.tenancy.claims import COMMAND_PROVIDER, NodeClaim
from railscope_agent.tenancy.clock_history import BootTime

REPEAT_EVERY_NS = 3_600_000_000_000
RESUME_NS = 300_000_000_000
"""Time for which a claim is left to a provider of higher authority after that claim ended.

A job takes some time to disappear.
"""
# Bounds the state file; far more than end on a node within the hour for which they are kept.
MAX_ENDED_CLAIMS = 1000
GONE, ENDED, CHANGED, COVERED = (
    "gone",
    "ended",
    "changed",
    "superseded by a provider of higher authority",
)


class ActiveClaim(msgspec.Struct, frozen=True):
    """A claim, or use without one, that is in force. Its `claim` has a start."""

    id: str
    adapter: str
    claim: NodeClaim = msgspec.field(name="held")

    @property
    def is_claim(self) -> bool:
        """True for a claim, False for unclaimed use."""
        return self.claim.authority is not ClaimAuthority.PROCESS


class EndedClaim(msgspec.Struct, frozen=True):
    """A claim or unclaimed use that has ended, kept until its end was emitted again."""

    active: ActiveClaim = msgspec.field(name="open")
    end_ns: int
    uncertainty_ns: int
    reason: str = msgspec.field(name="why")
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
    polls: dict[str, ProviderPoll] = msgspec.field(default_factory=dict, name="seen")


@dataclass(frozen=True, slots=True)
class ProviderReport:
    """Report of one provider, with the start and end of its poll."""

    adapter: str
    report: ClaimReport
    began: NodeTimestamp
    ended: NodeTimestamp


PROVIDER_PRECEDENCE = {COMMAND_PROVIDER: 1}
"""Order of claim providers of equal authority: claims by a person or a prolog precede observed ones."""
ClaimEdge: TypeAlias = tuple[int, BootTime | None]
"""Time of a start or an end: wall clock, and boot clock if a clock of the node measured it."""
ClaimsByWorkload: TypeAlias = dict[tuple[str, tuple[str, str]], list[tuple[str, NodeClaim]]]
"""Reports of all providers by GPU and workload."""


class ClaimTracker:
    """The claims in force."""

    def __init__(self, node: str, boot_id: str, saved: ClaimTrackerState | None = None) -> None:
        saved = saved or ClaimTrackerState()
        self.changed = False
        """True if there is new state to save."""
        self._node, self._boot_id = node, boot_id
        self._active = {(active.adapter, *active.claim.key): active for active in saved.open}
        self._ended = list(saved.closed)
        self._completed = {tuple(key) for key in saved.done}
        self._superseded = {
            active.key: active.until.boot_ns
            for active in saved.hidden
            if active.until is not None and active.until.boot_id == boot_id
        }
        """Times on the boot clock; no entry survives a reboot."""
        self._polls = dict(saved.polls)
        self._events: list[Event] = []
        # None: the first call emits everything again, since the events of the last run may have been lost
        # with it.
        self._repeat_at_ns: int | None = None

    @property
    def state(self) -> ClaimTrackerState:
        """State to save."""
        return ClaimTrackerState(
            list(self._active.values()),
            self._ended,
            sorted(self._completed),
            [
                SupersededClaim(key, self._boot_time(ns))
                for key, ns in sorted(self._superseded.items())
            ],
            dict(self._polls),
        )

    @property
    def active_claims(self) -> tuple[ActiveClaim, ...]:
        """All claims and unclaimed uses that are in force."""
        return tuple(self._active.values())

    def in_force(self, adapter: str) -> tuple[NodeClaim, ...]:
        """Return the claims of one provider that are in force."""
        return tuple(active.claim for key, active in self._active.items() if key[0] == adapter)

    def take_events(self) -> list[Event]:
        """Return and clear the events since the last call."""
        events, self._events = self._events, []
        return events

    def process_reports(self, reports: Sequence[ProviderReport], now: NodeTimestamp) -> None:
        """Process the reports of all providers.

        Emits everything in force again at the first call and every hour.
        """
        if self._repeat_at_ns is None or now.boot_ns >= self._repeat_at_ns:
            self._emit_all_again(now, forget=self._repeat_at_ns is not None)
            self._repeat_at_ns = now.boot_ns + REPEAT_EVERY_NS
        claimed = [(report.adapter, claim) for report in reports for claim in report.report.claims]
        reported = {(adapter, *claim.key) for adapter, claim in claimed}
        report_by_provider = {report.adapter: report.report for report in reports}
        claimed += [
            (active.adapter, active.claim)
            for key, active in self._active.items()
            if key not in reported
            and active.adapter in report_by_provider
            # Claims that could not be read still supersede those of lower authority.
            and _remains_in_force(active, report_by_provider[active.adapter])
        ]
        by_workload: ClaimsByWorkload = {}
        for adapter, claim in claimed:
            by_workload.setdefault((claim.gpu, claim.owning_workload), []).append((adapter, claim))
        # Expired entries are removed before the reports are processed, so that a claim resumes in this poll.
        self._superseded = {
            k: until for k, until in self._superseded.items() if now.boot_ns < until
        }
        for report in reports:
            self._process_report(report, by_workload)
        present = {(adapter, *claim.key) for adapter, claim in claimed}
        # Entries of a provider that was not polled stay: it may still report these claims.
        polled_providers = {report.adapter for report in reports}
        self._superseded = {
            key: until
            for key, until in self._superseded.items()
            if key in present or key[0] not in polled_providers
        }
        self._completed = {
            key for key in self._completed if key in present or key[0] not in polled_providers
        }

    def _process_report(self, report: ProviderReport, by_workload: ClaimsByWorkload) -> None:
        """Compare the report of one provider with its previous one."""
        if report.report.absence is not None:
            return
        now, gap_ns = report.ended, self._gap_ns(report)
        present = dict(self._effective_claims(report, by_workload, now))
        for key, active in [
            (k, item) for k, item in self._active.items() if k[0] == report.adapter
        ]:
            if key not in present:
                if not _remains_in_force(active, report.report):
                    self._end_claim(key, now, self._edge_at(now), gap_ns, GONE)
            elif not present[key].has_same_content(active.claim):
                # Two claims: what was held until now must not be billed under the new content.
                self._end_claim(key, now, self._edge_at(now), gap_ns, CHANGED)
                # The start that the provider reports is that of the former content.
                self._start_claim(key, _without_start(present[key]), now, gap_ns)
        for key, claim in present.items():
            self._update_claim(key, claim, now, gap_ns)
        # The begin of the poll, not its end: a claim may have started while the provider was read.
        self._polls[report.adapter] = ProviderPoll(
            self._boot_id, report.began.boot_ns, report.began.wall_ns
        )

    def _effective_claims(
        self, report: ProviderReport, by_workload: ClaimsByWorkload, now: NodeTimestamp
    ) -> Iterator[tuple[tuple[str, ...], NodeClaim]]:
        """Yield the claims of a provider that have begun, except those left to a higher authority."""
        for claim in report.report.claims:
            key = (report.adapter, *claim.key)
            higher = self._find_higher_claim(report.adapter, claim, by_workload, now)
            if higher is not None:
                self._supersede(key, higher, now)
            # A claim that was superseded a moment ago stays so: the other provider's claim and the job end at
            # different times.
            elif key not in self._superseded and self._has_begun(key, claim, now):
                yield key, claim

    def _has_begun(self, key: tuple[str, ...], claim: NodeClaim, now: NodeTimestamp) -> bool:
        """True if a claim has begun. A claim in force has, even if the clock was set back since."""
        return key in self._active or claim.has_begun(self._boot_id, now)

    def _find_higher_claim(
        self, adapter: str, claim: NodeClaim, by_workload: ClaimsByWorkload, now: NodeTimestamp
    ) -> NodeClaim | None:
        """Return the same claim of another provider with higher authority, the highest of several."""

        def precedence(provider: str, candidate: NodeClaim) -> tuple[int, int]:
            return candidate.authority, PROVIDER_PRECEDENCE.get(provider, 0)

        higher = [
            (precedence(provider, other), other)
            for provider, other in by_workload[claim.gpu, claim.owning_workload]
            if provider != adapter
            # Strictly higher: two providers of equal rank would otherwise supersede each other.
            and precedence(provider, other) > precedence(adapter, claim)
            and other.compute.overlaps(claim.compute)
            and self._has_begun((provider, *other.key), other, now)
            and not other.has_ended(self._boot_id, now)
        ]
        return max(higher, key=lambda item: item[0])[1] if higher else None

    def _update_claim(
        self, key: tuple[str, ...], claim: NodeClaim, now: NodeTimestamp, gap_ns: int
    ) -> None:
        """Start a claim that is new, and end one that specifies an end in the past."""
        is_over = claim.has_ended(self._boot_id, now)
        if key not in self._active and not (is_over and key in self._completed):
            is_ended = (
                key in self._completed
            )  # an ended claim does not start again at the same time
            self._completed.discard(key)
            self._start_claim(key, _without_start(claim) if is_ended else claim, now, gap_ns)
        if is_over and key in self._active:
            # The end is the stated one, not the time of the poll: it is exact.
            self._end_claim(key, now, (claim.end_ns or 0, claim.end_boot), 0, ENDED)
            # Without this, the next poll would start the same claim again, as its provider still reports it.
            self._completed.add(key)

    def _gap_ns(self, report: ProviderReport) -> int:
        """Return the time since the previous poll: a claim found now may have begun at any time in it."""
        previous = self._polls.get(report.adapter)
        if previous is None:
            # At the first poll ever, the claim may have begun at any time since boot.
            return report.ended.boot_ns
        if previous.boot_id == self._boot_id and previous.boot_ns <= report.ended.boot_ns:
            return report.ended.boot_ns - previous.boot_ns
        # After a reboot only the wall clock connects the two polls; it may have been set back.
        return max(report.ended.wall_ns - previous.wall_ns, 0)

    def _supersede(self, key: tuple[str, ...], higher: NodeClaim, now: NodeTimestamp) -> None:
        """Leave a claim to a provider of higher authority, from the start of that provider's claim."""
        self.changed |= key not in self._superseded
        # Extended with each poll: the time counts from the end of the higher claim.
        self._superseded[key] = now.boot_ns + RESUME_NS
        if key in self._active:
            has_start = higher.start_ns is not None
            # The start of the other claim, so that the two neither overlap nor leave a gap.
            end = (higher.start_ns or 0, higher.start_boot) if has_start else self._edge_at(now)
            self._end_claim(key, now, end, 0, COVERED)

    def _boot_time(self, boot_ns: int) -> BootTime:
        return BootTime(self._boot_id, boot_ns)

    def _edge_at(self, now: NodeTimestamp) -> ClaimEdge:
        return now.wall_ns, self._boot_time(now.boot_ns)

    def _start_claim(
        self, key: tuple[str, ...], claim: NodeClaim, now: NodeTimestamp, gap_ns: int
    ) -> None:
        start_ns, start_boot = self._edge_at(now)
        if claim.start_ns is not None:
            start_ns, start_boot = claim.start_ns, claim.start_boot
        uncertainty_ns = claim.uncertainty_ns
        if uncertainty_ns is None or claim.start_ns is None:
            uncertainty_ns = gap_ns
        begun = msgspec.structs.replace(
            claim, start_ns=start_ns, start_boot=start_boot, uncertainty_ns=uncertainty_ns
        )
        parts = (
            claim.source,
            self._node,
            claim.workload,
            claim.reference,
            claim.part,
            str(start_ns),
        )
        name = "/".join(part for part in parts if part)
        if any(
            name == other.id
            # The collector joins events by this id: two claims with one id would become one.
            for other in (*self._active.values(), *(ended.active for ended in self._ended))
        ):
            name += f"+{now.boot_ns}"  # the wall clock was set back and shows the same time again
        active = ActiveClaim(name, key[0], begun)
        self._active[key] = active
        self._emit_start(active, now)
        self.changed = True

    def _end_claim(
        self,
        key: tuple[str, ...],
        now: NodeTimestamp,
        end: ClaimEdge,
        uncertainty_ns: int,
        reason: str,
    ) -> None:
        active = self._active.pop(key)
        # A clock that was set back must not make a claim end before it began.
        end_ns, end_boot = max(end[0], active.claim.start_ns or 0), end[1]
        start_boot = active.claim.start_boot
        if end_boot and start_boot and end_boot.boot_id == start_boot.boot_id:
            end_boot = BootTime(end_boot.boot_id, max(end_boot.boot_ns, start_boot.boot_ns))
        ended = EndedClaim(active, end_ns, uncertainty_ns, reason, end_boot)
        self._ended = [*self._ended, ended][-MAX_ENDED_CLAIMS:]
        self._record_end(ended, now)
        self.changed = True

    def _emit_all_again(self, now: NodeTimestamp, *, forget: bool) -> None:
        """Emit again everything in force, and what ended within the hour: an event may be lost."""
        for active in self._active.values():
            self._emit_start(active, now)
        for ended in self._ended:
            self._emit_ended(ended, now)
        # Not at the first call: what ended just before a restart is repeated for another hour.
        if forget:
            self.changed |= bool(self._ended)
            self._ended = []

    def _emit_ended(self, ended: EndedClaim, now: NodeTimestamp) -> None:
        """Emit an ended claim again.

        An end in an earlier boot is given in wall clock time only; if its own event was received, that one
        counts.
        """
        # Events carry boot clock times of the present boot only.
        if ended.end_boot is None or ended.end_boot.boot_id == self._boot_id:
            self._emit_start(ended.active, now)
            self._record_end(ended, now)
        else:
            self._emit_start(ended.active, now, {"end_ns": str(ended.end_ns)})

    def _emit_start(
        self, active: ActiveClaim, now: NodeTimestamp, further_facts: dict[str, str] | None = None
    ) -> None:
        kind = c.CLAIM_START_EVENT if active.is_claim else c.UNCLAIMED_START_EVENT
        self._record_event(
            kind, active, now, active.claim.facts(self._boot_id) | (further_facts or {})
        )

    def _record_end(self, ended: EndedClaim, now: NodeTimestamp) -> None:
        kind = c.CLAIM_END_EVENT if ended.active.is_claim else c.UNCLAIMED_END_EVENT
        facts = {
            name: text
            for name, text in ended.active.claim.facts(self._boot_id).items()
            if name in kind.facts
        }
        facts["end_ns"] = str(ended.end_ns)
        if ended.end_boot is not None:
            facts["end_boot_ns"] = str(ended.end_boot.boot_ns)
        facts["uncertainty_ns"] = str(ended.uncertainty_ns)
        facts["why"] = ended.reason
        self._record_event(kind, ended.active, now, facts)

    def _record_event(
        self,
        kind: declare.EventClass,
        active: ActiveClaim,
        now: NodeTimestamp,
        facts: dict[str, str],
    ) -> None:
        about = Entity(entities.CLAIM, (active.claim.gpu, active.id))
        self._events.append(Event(kind, about, now.wall_ns, now.boot_ns, facts))


def _remains_in_force(active: ActiveClaim, claim_report: ClaimReport) -> bool:
    """True if the report leaves a claim as it is because its GPU or provider could not be read."""
    return claim_report.absence is not None or active.claim.gpu in claim_report.unreadable_gpus


def _without_start(claim: NodeClaim) -> NodeClaim:
    """Return the claim with its start at the current poll."""
    return msgspec.structs.replace(claim, start_ns=None, start_boot=None)


def claims_on_gpu(active_claims: Sequence[ActiveClaim], gpu: str) -> Iterator[NodeClaim]:
    """Return the claims in force on a GPU."""
    return (active.claim for active in active_claims if active.is_claim and active.claim.gpu == gpu)
