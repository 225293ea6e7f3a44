"""The timeline of one GPU: every slot and instant of a window has exactly one state.

Holders and observation are worked out over all time and clipped to the window last, so that
windows add up: what is known of an instant does not depend on the window it is looked at in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain
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
from collector.metering.holders import Band, bands, claims_in_force, stays
from collector.metering.observation import silences
from collector.metering.timeline import Piece, aligned, extend, prevailing
from collector.metering.units import FOREVER_NS, Slots, Tiling, Units, exact


class State(StrEnum):
    """What a slot was at an instant."""

    OBSERVED = "observed"
    INFERRED = "inferred"
    IDLE = "idle"
    RESERVED = "reserved"
    STRANDED = "stranded"
    SYSTEM = "system"
    MAINTENANCE = "maintenance"
    DOWN = "down"
    REVIEW = "review"
    """Held only by evidence that waits for a person's decision."""
    ROGUE = "rogue"
    UNKNOWN = "unknown"


class Content(NamedTuple):
    """Everything an entry says of its slots and time.

    `claim` is the id of the claim, or of the reservation where the state is `reserved`. A claim
    within an outage is named too. `witness` is set where the state is `inferred`, and `silence_ns`
    is then how long no sample came, `FOREVER_NS` where none came on one of the sides.
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


class Entry(msgspec.Struct, frozen=True, gc=False):
    """Slots [lo, hi) of one tiling of a GPU in [t0, t1), of which one thing is true."""

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

    @property
    def quantity(self) -> Units:
        """Capacity times time, in cap-unit-nanoseconds."""
        return exact((self.slot_hi - self.slot_lo) * (self.t1_ns - self.t0_ns))


class _Scene(NamedTuple):
    """What is true of the whole GPU at an instant."""

    stay: Stay | None
    layout: Layout | None
    outage: Outage | None
    witness: Witness | None
    silence_ns: int


class _Strip(NamedTuple):
    """A band of slots over all time."""

    band: Band
    reserved: list[Piece[Reservation]]
    useless: set[Layout]
    """The layouts that leave these slots stranded."""


@dataclass(frozen=True, slots=True)
class GpuTimeline:
    """One GPU over all time. It is worked out once; windows of it are cheap."""

    gpu: str
    _whole: tuple[Sequence[Piece[Any]], ...]
    _strips: dict[Tiling, list[_Strip]]

    @classmethod
    def of(cls, evidence: Evidence) -> GpuTimeline:
        """What evidence says of a GPU."""
        claims = claims_in_force(evidence)
        boundaries = {edge for claim in claims for edge in (claim.start_ns, claim.end_ns)}
        whole = (
            stays(evidence),
            prevailing(Piece(layout.start_ns, FOREVER_NS, layout) for layout in evidence.layouts),
            prevailing(Piece(o.start_ns, o.end_ns, o) for o in evidence.outages),
            prevailing(Piece(s.start_ns, s.end_ns, s.witness) for s in evidence.sightings),
            silences(evidence.stretches, sorted(boundaries)),
        )
        strips = {tiling: _strips(evidence, claims, tiling) for tiling in Tiling}
        return cls(evidence.gpu, whole, strips)

    def entries(self, start_ns: int, end_ns: int) -> list[Entry]:
        """All entries of a window, in order: both tilings complete while the GPU was in a node."""
        scenes = [
            Piece(start, end, scene)
            for start, end, values in aligned(self._whole, start_ns, end_ns)
            if (scene := _Scene(*values)).stay
        ]
        found: list[Entry] = []
        for tiling, strips in self._strips.items():
            contents = [(s.band.slots, piece) for s in strips for piece in _contents(s, scenes)]
            found += _entries(self.gpu, tiling, contents)
        return found


def tile(evidence: Evidence, start_ns: int, end_ns: int) -> list[Entry]:
    """All entries of one window; for several of one GPU, make its `GpuTimeline` once."""
    return GpuTimeline.of(evidence).entries(start_ns, end_ns)


def _strips(evidence: Evidence, claims: list[Piece[Claim]], tiling: Tiling) -> list[_Strip]:
    """All slots of a tiling, in bands that nothing divides."""
    stranded = {layout: layout.stranded(tiling) for layout in evidence.layouts}
    kept = {reservation: reservation.slots(tiling) for reservation in evidence.reservations}
    edges = chain.from_iterable(chain(kept.values(), *stranded.values()))
    return [
        _Strip(
            band,
            prevailing(
                Piece(reservation.start_ns, reservation.end_ns, reservation)
                for reservation, slots in kept.items()
                if _has((slots,), band.slots)
            ),
            {layout for layout, parts in stranded.items() if _has(parts, band.slots)},
        )
        for band in bands(claims, tiling, edges)
    ]


def _has(parts: Iterable[Slots], slots: Slots) -> bool:
    return any(part.low <= slots.low and slots.high <= part.high for part in parts)


def _contents(strip: _Strip, scenes: list[Piece[_Scene]]) -> list[Piece[Content]]:
    """What is true of the slots of a band."""
    if not scenes:
        return []
    timelines = (scenes, strip.band.holders, strip.reserved)
    found: list[Piece[Content]] = []
    for start, end, values in aligned(timelines, scenes[0].start_ns, scenes[-1].end_ns):
        scene: _Scene | None = values[0]
        if scene is None:
            continue
        claim: Claim | None = values[1]
        reservation: Reservation | None = values[2]
        if claim:
            content = _held(claim, scene)
        else:
            content = _free(reservation, scene, stranded=scene.layout in strip.useless)
        extend(found, Piece(start, end, content))
    return found


def _held(claim: Claim, scene: _Scene) -> Content:
    """The state of a slot that has a holder."""
    if scene.outage:
        state = _outage(scene.outage)
    elif claim.level is Level.REVIEW:
        state = State.REVIEW
    elif claim.system:
        state = State.SYSTEM
    elif claim.level is Level.PROCESS:
        state = State.ROGUE
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
    )


def _free(reservation: Reservation | None, scene: _Scene, *, stranded: bool) -> Content:
    """The state of a slot that has no holder."""
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


def _entries(
    gpu: str, tiling: Tiling, found: list[tuple[Slots, Piece[Content]]]
) -> Iterator[Entry]:
    """Entries in order of time and slot; neighbouring slots with one content become one entry."""
    rows: list[tuple[int, int, Units, Units, Content]] = []
    for slots, (start, end, content) in sorted(found, key=lambda f: (f[1][:2], f[0])):
        if rows:
            t0, t1, low, high, before = rows[-1]
            if (t0, t1, high, before) == (start, end, slots.low, content):
                rows[-1] = (t0, t1, low, slots.high, content)
                continue
        rows.append((start, end, slots.low, slots.high, content))
    for t0, t1, low, high, content in rows:
        yield Entry(gpu, tiling, t0, low, high, t1, *content)
