"""Timeline of one GPU: every slot of a window has exactly one state at every time.

Holders and observation are computed over all time and clipped to the window last, so that windows
add up: the state at a time does not depend on the requested window.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec

from railscope.claim_terms import ClaimAuthority
from railscope.timestamps import FOREVER_NS
from railscope_collector.metering import evidence, holders, observation, timeline, units


class SlotState(StrEnum):
    """State of a slot at a time."""

    OBSERVED = "observed"
    INFERRED = "inferred"
    IDLE = "idle"
    RESERVED = "reserved"
    STRANDED = "stranded"
    SYSTEM = "system"
    MAINTENANCE = "maintenance"
    DOWN = "down"
    REVIEW = "review"
    """Held only by evidence that is pending review."""
    UNCLAIMED = "unclaimed"
    """Used without a claim."""
    UNKNOWN = "unknown"


MEANINGS: Mapping[SlotState, str] = {
    SlotState.OBSERVED: "held, as an agent measured it or, without agents, the job list states it",
    SlotState.INFERRED: "held as the scheduler reported it, not measured",
    SlotState.IDLE: "free, and observed",
    SlotState.RESERVED: "reserved, and not used",
    SlotState.STRANDED: "unusable remainder of a MIG layout",
    SlotState.SYSTEM: "held by the operator, as for a health check",
    SlotState.MAINTENANCE: "unavailable by a maintenance of the calendar",
    SlotState.DOWN: "unavailable by an outage of the calendar",
    SlotState.REVIEW: "held only by evidence under review",
    SlotState.UNCLAIMED: "used without a claim",
    SlotState.UNKNOWN: "no claim and no samples",
}
"""Meaning of each state, for people."""
HELD_STATES = (SlotState.OBSERVED, SlotState.INFERRED)
"""States in which a slot is held by a tenant."""


class EntryContent(NamedTuple):
    """Content of an entry, without its slots and time.

    `claim` is the id of the claim, or of the reservation if the state is `reserved`. A claim within
    an outage is named too. `node_evidence` is set if the state is `inferred`; `gap_ns` is then the
    time without a sample, `FOREVER_NS` if there is none on one of the sides.
    """

    node: str
    state: SlotState
    node_evidence: evidence.NodeEvidence | None = None
    gap_ns: int = 0
    tenant: str = ""
    workload: str = ""
    claim: str = ""
    layout: str = ""
    reason: str = ""
    """Reason of a review."""
    assumed: bool = False
    """True if the GPU of the claim was chosen by metering."""
    counted: bool = False
    """True if the claim is for a number of GPUs of the node."""


class TilingEntry(msgspec.Struct, frozen=True, gc=False):
    """Slots [lo, hi) of one tiling of a GPU in [t0, t1), with one content."""

    gpu: str
    tiling: units.Tiling
    t0_ns: int
    slot_lo: units.Units
    slot_hi: units.Units
    t1_ns: int
    node: str
    state: SlotState
    node_evidence: evidence.NodeEvidence | None = msgspec.field(name="witness")
    gap_ns: int = msgspec.field(name="silence_ns")
    tenant: str
    workload: str
    claim: str
    layout: str
    reason: str = ""
    assumed: bool = False
    counted: bool = False

    @property
    def quantity(self) -> units.Units:
        """Capacity times time, in cap-unit-nanoseconds."""
        return units.exact((self.slot_hi - self.slot_lo) * (self.t1_ns - self.t0_ns))


class _GpuConditions(NamedTuple):
    """Properties of the whole GPU at a time."""

    stay: evidence.NodeStay | None
    layout: evidence.PartitionLayout | None
    outage: evidence.GpuOutage | None
    node_evidence: evidence.NodeEvidence | None
    gap_ns: int
    """Time between the samples around it; 0 while the GPU was observed."""


class _TilingDivision(NamedTuple):
    """One tiling of a GPU over all time."""

    held_slots: list[timeline.TimePiece[tuple[holders.HeldSlots, ...]]]
    reserved: dict[units.CapacityRange, list[timeline.TimePiece[evidence.SlotReservation]]]
    """Reservations by the slots that they name, which may overlap."""
    stranded: dict[evidence.PartitionLayout, tuple[units.CapacityRange, ...]]


_SlotEntries = list[tuple[units.CapacityRange, "EntryContent"]]


@dataclass(frozen=True, slots=True)
class GpuTimeline:
    """One GPU over all time. It is computed once; windows of it are cheap."""

    gpu: str
    _whole: tuple[Sequence[timeline.TimePiece[Any]], ...]
    _divided: dict[units.Tiling, _TilingDivision]

    @classmethod
    def compute(
        cls, facts: evidence.Evidence, tilings: Iterable[units.Tiling] = units.Tiling
    ) -> GpuTimeline:
        """Compute the timeline of a GPU from its evidence, in some tilings."""
        claims = holders.claims_in_force(facts)
        boundaries = {edge for claim in claims for edge in (claim.start_ns, claim.end_ns)}
        whole = (
            holders.resolve_stays(facts),
            timeline.resolve_overlaps(
                timeline.TimePiece(layout.start_ns, FOREVER_NS, layout) for layout in facts.layouts
            ),
            timeline.resolve_overlaps(
                timeline.TimePiece(o.start_ns, o.end_ns, o) for o in facts.outages
            ),
            timeline.resolve_overlaps(
                timeline.TimePiece(s.start_ns, s.end_ns, s.node_evidence) for s in facts.sightings
            ),
            observation.observation_gaps(facts.sample_spans, sorted(boundaries)),
        )
        divided = {tiling: _divide_slots(facts, claims, tiling) for tiling in tilings}
        return cls(facts.gpu, whole, divided)

    def entries(self, start_ns: int, end_ns: int) -> list[TilingEntry]:
        """Return all entries of a window, in order: all tilings, complete while the GPU was in a node."""
        scenes = [
            timeline.TimePiece(start, end, scene)
            for start, end, values in timeline.align_timelines(self._whole, start_ns, end_ns)
            if (scene := _GpuConditions(*values)).stay
        ]
        all_entries: list[TilingEntry] = []
        for tiling, divided in self._divided.items():
            all_entries += _entries(self.gpu, tiling, _contents(divided, scenes))
        return all_entries


def clip_entries(
    entries: Iterable[TilingEntry], start_ns: int, end_ns: int
) -> Iterator[TilingEntry]:
    """Yield the parts of entries in a window."""
    for entry in entries:
        low_ns, high_ns = max(start_ns, entry.t0_ns), min(end_ns, entry.t1_ns)
        if low_ns < high_ns:
            yield msgspec.structs.replace(entry, t0_ns=low_ns, t1_ns=high_ns)


def _divide_slots(
    facts: evidence.Evidence,
    claims: list[timeline.TimePiece[evidence.MeteredClaim]],
    tiling: units.Tiling,
) -> _TilingDivision:
    """Return the claims, reservations and stranded slots of a tiling."""
    by_slots: dict[units.CapacityRange, list[timeline.TimePiece[evidence.SlotReservation]]] = {}
    for reservation in facts.reservations:
        by_slots.setdefault(reservation.slots(tiling), []).append(
            timeline.TimePiece(reservation.begins_ns, reservation.end_ns, reservation)
        )
    return _TilingDivision(
        holders.divide_claims(claims, tiling),
        {slots: timeline.resolve_overlaps(pieces) for slots, pieces in by_slots.items()},
        {layout: layout.stranded_slots(tiling) for layout in facts.layouts},
    )


def _contents(
    divided: _TilingDivision, scenes: list[timeline.TimePiece[_GpuConditions]]
) -> Iterator[timeline.TimePiece[_SlotEntries]]:
    """Yield the content of all slots, while the GPU was in a node."""
    if not scenes:
        return
    timelines: list[list[timeline.TimePiece[Any]]] = [
        scenes,
        divided.held_slots,
        *divided.reserved.values(),
    ]
    for start, end, values in timeline.align_timelines(
        timelines, scenes[0].start_ns, scenes[-1].end_ns
    ):
        scene: _GpuConditions | None = values[0]
        if scene is None:
            continue
        reserved = [
            (slots, hold) for slots, hold in zip(divided.reserved, values[2:], strict=True) if hold
        ]
        useless = divided.stranded.get(scene.layout, ()) if scene.layout else ()
        parts: _SlotEntries = []
        for slots, claim in holders.fill_free_slots(values[1] or ()):
            if claim:
                _append(parts, slots, _held_content(claim, scene))
                continue
            # Stranded slots and reservations may be parts of the free ones.
            for part in _split_slots(
                slots, [*useless, *(reserved_slots for reserved_slots, _ in reserved)]
            ):
                # Of several reservations, the one that began last.
                by = max(
                    (hold for reserved_slots, hold in reserved if _is_within(part, reserved_slots)),
                    default=None,
                )
                stranded = any(_is_within(part, span) for span in useless)
                _append(parts, part, _free_content(by, scene, stranded=stranded))
        yield timeline.TimePiece(start, end, parts)


def _append(parts: _SlotEntries, slots: units.CapacityRange, content: EntryContent) -> None:
    """Append slots in order; join them with the last ones if the content is equal."""
    if parts and parts[-1][1] == content:
        slots = units.CapacityRange(parts.pop()[0].low, slots.high)
    parts.append((slots, content))


def _split_slots(
    slots: units.CapacityRange, divisions: Iterable[units.CapacityRange]
) -> Iterator[units.CapacityRange]:
    """Divide slots wherever others begin or end."""
    inner = {edge for other in divisions for edge in other if slots.low < edge < slots.high}
    for low, high in pairwise((slots.low, *sorted(inner), slots.high)):
        yield units.CapacityRange(low, high)


def _is_within(part: units.CapacityRange, slots: units.CapacityRange) -> bool:
    return slots.low <= part.low and part.high <= slots.high


def _held_content(claim: evidence.MeteredClaim, scene: _GpuConditions) -> EntryContent:
    """Return the content of a slot that has a holder."""
    # First: what is held or not, nothing can run on a GPU that is down.
    if scene.outage:
        state = _outage(scene.outage)
    elif claim.review:
        state = SlotState.REVIEW
    elif claim.system:
        state = SlotState.SYSTEM
    elif claim.authority is ClaimAuthority.PROCESS:
        state = SlotState.UNCLAIMED
    else:
        state = SlotState.INFERRED if scene.gap_ns else SlotState.OBSERVED
    inferred = state is SlotState.INFERRED
    return EntryContent(
        node=scene.stay.node if scene.stay else "",
        state=state,
        node_evidence=(scene.node_evidence or evidence.NodeEvidence.NONE) if inferred else None,
        gap_ns=scene.gap_ns if inferred else 0,
        tenant=claim.tenant,
        workload=claim.workload,
        claim=claim.id,
        layout=scene.layout.id if scene.layout else "",
        reason=claim.review if state is SlotState.REVIEW else "",
        assumed=claim.assumed,
        counted=claim.counted,
    )


def _free_content(
    reservation: evidence.SlotReservation | None, scene: _GpuConditions, *, stranded: bool
) -> EntryContent:
    """Return the content of a slot without a holder."""
    tenant = claim = ""
    if scene.outage:
        state = _outage(scene.outage)
    elif stranded:
        state = SlotState.STRANDED
    elif reservation:
        state, tenant, claim = SlotState.RESERVED, reservation.tenant, reservation.id
    else:
        # Without samples nothing proves that no process used the free slots.
        state = SlotState.UNKNOWN if scene.gap_ns else SlotState.IDLE
    return EntryContent(
        node=scene.stay.node if scene.stay else "",
        state=state,
        tenant=tenant,
        claim=claim,
        layout=scene.layout.id if scene.layout else "",
    )


def _outage(outage: evidence.GpuOutage) -> SlotState:
    return SlotState.MAINTENANCE if outage.announced else SlotState.DOWN


def _entries(
    gpu: str, tiling: units.Tiling, pieces: Iterable[timeline.TimePiece[_SlotEntries]]
) -> Iterator[TilingEntry]:
    """Yield entries in order of time and slot; slots with unchanged content have one entry."""
    rows: list[tuple[units.CapacityRange, timeline.TimePiece[EntryContent]]] = []
    lasting: dict[units.CapacityRange, timeline.TimePiece[EntryContent]] = {}
    for now, until, parts in pieces:
        present: dict[units.CapacityRange, timeline.TimePiece[EntryContent]] = {}
        for slots, content in parts:
            before = lasting.get(slots)
            if before and (before.end_ns, before.value) == (now, content):
                present[slots] = timeline.TimePiece(before.start_ns, until, content)
                del lasting[slots]
            else:
                present[slots] = timeline.TimePiece(now, until, content)
        rows += lasting.items()
        lasting = present
    rows += lasting.items()
    for (low, high), (start, end, content) in sorted(rows, key=lambda row: (row[1][:2], row[0])):
        yield TilingEntry(gpu, tiling, start, low, high, end, *content)
