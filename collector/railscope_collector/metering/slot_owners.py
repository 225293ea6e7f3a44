"""Owners of the compute slots of a GPU over time, and the tenures in which they do not change."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import numpy as np

from railscope.timestamps import FOREVER_NS
from railscope_collector.metering import holders, timeline, units
from railscope_collector.metering.counter_increments import Column
from railscope_collector.metering.evidence import Evidence, MeteredClaim


class OwnedSlots(NamedTuple):
    """Slots with their owner (None if free), and the index of the tenure without a change."""

    slots: units.CapacityRange
    claim: MeteredClaim | None
    tenure: int


class SlotOwners(msgspec.Struct, frozen=True, eq=False):
    """Owners of all compute slots of a GPU, over all time."""

    pieces: list[timeline.TimePiece[tuple[OwnedSlots, ...]]]
    """Complete in time and slots."""
    tenures: list[tuple[int, int]]
    """Start and end of each time in which slots have one owner without a change."""
    starts_ns: Column
    ends_ns: Column


def find_owners(evidence: Evidence) -> SlotOwners:
    """Return the owners of a GPU. Outages have no owner, even within a claim."""
    outages = timeline.resolve_overlaps(
        timeline.TimePiece(o.start_ns, o.end_ns, o) for o in evidence.outages
    )
    claim_pieces = holders.divide_claims(holders.claims_in_force(evidence), units.Tiling.COMPUTE)
    pieces: list[timeline.TimePiece[tuple[OwnedSlots, ...]]] = []
    tenures: list[tuple[int, int]] = []
    before: dict[tuple[units.CapacityRange, MeteredClaim | None], int] = {}
    for start, end, (held_slots, outage) in timeline.align_timelines(
        (claim_pieces, outages), -FOREVER_NS, FOREVER_NS
    ):
        present: dict[tuple[units.CapacityRange, MeteredClaim | None], int] = {}
        # During an outage no claim can have used the GPU: counters of that time have no owner.
        for part in holders.fill_free_slots(() if outage else held_slots or ()):
            if part in before:
                tenure = before[part]
                tenures[tenure] = (tenures[tenure][0], end)
            else:
                tenure = len(tenures)
                tenures.append((start, end))
            present[part] = tenure
        pieces.append(
            timeline.TimePiece(
                start, end, tuple(OwnedSlots(*part, at) for part, at in present.items())
            )
        )
        before = present
    return SlotOwners(
        pieces,
        tenures,
        np.array([piece.start_ns for piece in pieces], np.int64),
        np.array([piece.end_ns for piece in pieces], np.int64),
    )
