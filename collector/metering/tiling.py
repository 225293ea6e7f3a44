"""Timeline of one GPU: every slot of a window has exactly one state at every time.

Holders and observation are computed over all time and clipped to the window last, so that windows
add up: the state at a time does not depend on the requested window.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec

from collector.metering.evidence import (
    Claim,
    Evidence,
    Layout,
    Level,
    Outage,
    Reservation,
    Stay,
    Witness,
)
from collector.metering.holders import Hold, claims_in_force, complete, divisions, stays
from collector.metering.observation import silences
from collector.metering.timeline import Piece, aligned, prevailing
from collector.metering.units import FOREVER_NS, Slots, Tiling, Units, exact

FORMER_UNCLAIMED = "rogue"
"""Former name of `State.UNCLAIMED`; content roots of ledger revisions still cover this name."""


class State(StrEnum):
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

    @classmethod
    def _missing_(cls, value: object) -> State | None:
        """Return the state by its former name, which ledgers of earlier versions contain."""
        return cls.UNCLAIMED if value == FORMER_UNCLAIMED else None


HELD = (State.OBSERVED, State.INFERRED)
"""States in which a slot is held by a tenant."""


class Content(NamedTuple):
    """Content of an entry, without its slots and time.

    `claim` is the id of the claim, or of the reservation if the state is `reserved`. A claim within
    an outage is named too. `witness` is set if the state is `inferred`; `silence_ns` is then the
    time without a sample, `FOREVER_NS` if there is none on one of the sides.
    """

    node: str
    state: State
    witness: Witness | None = None
    silence_ns: int = 0
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


class Entry(msgspec.Struct, frozen=True, gc=False):
    """Slots [lo, hi) of one tiling of a GPU in [t0, t1), with one content."""

    gpu: str
    tiling: Tiling
    t0_ns: int
    slot_lo: Units
    slot_hi: Units
    t1_ns: int
    node: str
    state: State
    witness: Witness | None
    silence_ns: int
    tenant: str
    workload: str
    claim: str
    layout: str
    reason: str = ""
    assumed: bool = False
    counted: bool = False

    @property
    def quantity(self) -> Units:
        """Capacity times time, in cap-unit-nanoseconds."""
        return exact((self.slot_hi - self.slot_lo) * (self.t1_ns - self.t0_ns))


class _Scene(NamedTuple):
    """Properties of the whole GPU at a time."""

    stay: Stay | None
    layout: Layout | None
    outage: Outage | None
    witness: Witness | None
    silence_ns: int


class _Divided(NamedTuple):
    """One tiling of a GPU over all time."""

    held: list[Piece[tuple[Hold, ...]]]
    reserved: dict[Slots, list[Piece[Reservation]]]
    """By the slots that reservations name, which may overlap."""
    stranded: dict[Layout, tuple[Slots, ...]]


_Parts = list[tuple[Slots, "Content"]]


@dataclass(frozen=True, slots=True)
class GpuTimeline:
    """One GPU over all time. It is computed once; windows of it are cheap."""

    gpu: str
    _whole: tuple[Sequence[Piece[Any]], ...]
    _divided: dict[Tiling, _Divided]

    @classmethod
    def of(cls, evidence: Evidence) -> GpuTimeline:
        """Compute the timeline of a GPU from its evidence."""
        claims = claims_in_force(evidence)
        boundaries = {edge for claim in claims for edge in (claim.start_ns, claim.end_ns)}
        whole = (
            stays(evidence),
            prevailing(Piece(layout.start_ns, FOREVER_NS, layout) for layout in evidence.layouts),
            prevailing(Piece(o.start_ns, o.end_ns, o) for o in evidence.outages),
            prevailing(Piece(s.start_ns, s.end_ns, s.witness) for s in evidence.sightings),
            silences(evidence.stretches, sorted(boundaries)),
        )
        divided = {tiling: _divided(evidence, claims, tiling) for tiling in Tiling}
        return cls(evidence.gpu, whole, divided)

    def entries(self, start_ns: int, end_ns: int) -> list[Entry]:
        """Return all entries of a window, in order: both tilings, complete while the GPU was in a node."""
        scenes = [
            Piece(start, end, scene)
            for start, end, values in aligned(self._whole, start_ns, end_ns)
            if (scene := _Scene(*values)).stay
        ]
        found: list[Entry] = []
        for tiling, divided in self._divided.items():
            found += _entries(self.gpu, tiling, _contents(divided, scenes))
        return found


def tile(evidence: Evidence, start_ns: int, end_ns: int) -> list[Entry]:
    """Return all entries of one window; for several windows of one GPU, create its `GpuTimeline` once."""
    return GpuTimeline.of(evidence).entries(start_ns, end_ns)


def _divided(evidence: Evidence, claims: list[Piece[Claim]], tiling: Tiling) -> _Divided:
    """Return the claims, reservations and stranded slots of a tiling."""
    kept: dict[Slots, list[Piece[Reservation]]] = {}
    for one in evidence.reservations:
        kept.setdefault(one.slots(tiling), []).append(Piece(one.start_ns, one.end_ns, one))
    return _Divided(
        divisions(claims, tiling),
        {slots: prevailing(pieces) for slots, pieces in kept.items()},
        {layout: layout.stranded(tiling) for layout in evidence.layouts},
    )


def _contents(divided: _Divided, scenes: list[Piece[_Scene]]) -> Iterator[Piece[_Parts]]:
    """Yield the content of all slots, while the GPU was in a node."""
    if not scenes:
        return
    timelines: list[list[Piece[Any]]] = [scenes, divided.held, *divided.reserved.values()]
    for start, end, values in aligned(timelines, scenes[0].start_ns, scenes[-1].end_ns):
        scene: _Scene | None = values[0]
        if scene is None:
            continue
        reserved = [
            (slots, one) for slots, one in zip(divided.reserved, values[2:], strict=True) if one
        ]
        useless = divided.stranded.get(scene.layout, ()) if scene.layout else ()
        parts: _Parts = []
        for slots, claim in complete(values[1] or ()):
            if claim:
                _append(parts, slots, _held(claim, scene))
                continue
            for part in _cut(slots, [*useless, *(kept for kept, _ in reserved)]):
                by = max((one for kept, one in reserved if _within(part, kept)), default=None)
                stranded = any(_within(part, one) for one in useless)
                _append(parts, part, _free(by, scene, stranded=stranded))
        yield Piece(start, end, parts)


def _append(parts: _Parts, slots: Slots, content: Content) -> None:
    """Append slots in order; join them with the last ones if the content is equal."""
    if parts and parts[-1][1] == content:
        slots = Slots(parts.pop()[0].low, slots.high)
    parts.append((slots, content))


def _cut(slots: Slots, others: Iterable[Slots]) -> Iterator[Slots]:
    """Divide slots wherever others begin or end."""
    inner = {edge for one in others for edge in one if slots.low < edge < slots.high}
    for low, high in pairwise((slots.low, *sorted(inner), slots.high)):
        yield Slots(low, high)


def _within(part: Slots, slots: Slots) -> bool:
    return slots.low <= part.low and part.high <= slots.high


def _held(claim: Claim, scene: _Scene) -> Content:
    """Return the content of a slot that has a holder."""
    if scene.outage:
        state = _outage(scene.outage)
    elif claim.review:
        state = State.REVIEW
    elif claim.system:
        state = State.SYSTEM
    elif claim.level is Level.PROCESS:
        state = State.UNCLAIMED
    else:
        state = State.INFERRED if scene.silence_ns else State.OBSERVED
    inferred = state is State.INFERRED
    return Content(
        node=scene.stay.node if scene.stay else "",
        state=state,
        witness=(scene.witness or Witness.NONE) if inferred else None,
        silence_ns=scene.silence_ns if inferred else 0,
        tenant=claim.tenant,
        workload=claim.workload,
        claim=claim.id,
        layout=scene.layout.id if scene.layout else "",
        reason=claim.review if state is State.REVIEW else "",
        assumed=claim.assumed,
        counted=claim.counted,
    )


def _free(reservation: Reservation | None, scene: _Scene, *, stranded: bool) -> Content:
    """Return the content of a slot without a holder."""
    tenant = claim = ""
    if scene.outage:
        state = _outage(scene.outage)
    elif stranded:
        state = State.STRANDED
    elif reservation:
        state, tenant, claim = State.RESERVED, reservation.tenant, reservation.id
    else:
        state = State.UNKNOWN if scene.silence_ns else State.IDLE
    return Content(
        node=scene.stay.node if scene.stay else "",
        state=state,
        tenant=tenant,
        claim=claim,
        layout=scene.layout.id if scene.layout else "",
    )


def _outage(outage: Outage) -> State:
    return State.MAINTENANCE if outage.announced else State.DOWN


def _entries(gpu: str, tiling: Tiling, found: Iterable[Piece[_Parts]]) -> Iterator[Entry]:
    """Yield entries in order of time and slot; slots with unchanged content have one entry."""
    rows: list[tuple[Slots, Piece[Content]]] = []
    lasting: dict[Slots, Piece[Content]] = {}
    for now, until, parts in found:
        present: dict[Slots, Piece[Content]] = {}
        for slots, content in parts:
            before = lasting.get(slots)
            if before and (before.end_ns, before.value) == (now, content):
                present[slots] = Piece(before.start_ns, until, content)
                del lasting[slots]
            else:
                present[slots] = Piece(now, until, content)
        rows += lasting.items()
        lasting = present
    rows += lasting.items()
    for (low, high), (start, end, content) in sorted(rows, key=lambda row: (row[1][:2], row[0])):
        yield Entry(gpu, tiling, start, low, high, end, *content)
