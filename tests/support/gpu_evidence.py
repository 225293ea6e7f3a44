"""Immutable facts about one GPU in any order, and its timeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from railscope.timestamps import FOREVER_NS
from railscope_collector.metering.counter_increments import CountedQuantity, CounterIncrements
from railscope_collector.metering.evidence import (
    GpuOutage,
    MeteredClaim,
    NodeEvidence,
    SlotReservation,
)
from railscope_collector.metering.gpu_timeline import GpuTimeline, find_stranded, place_claims
from railscope_collector.metering.observation import BootSampleSpan, observation_gaps
from railscope_collector.metering.timeline import TimePiece, resolve_overlaps
from railscope_collector.metering.units import CapacityRange


class ClaimRelease(msgspec.Struct, frozen=True, order=True, gc=False):
    """End of a claim; the earliest one counts."""

    claim: str
    timestamp_ns: int


class NodeStay(msgspec.Struct, frozen=True, order=True, gc=False):
    """The GPU is in a node in [start, end). Of two stays the later counts."""

    start_ns: int
    node: str
    end_ns: int = FOREVER_NS


class PartitionLayout(msgspec.Struct, frozen=True, order=True, gc=False):
    """MIG instances from a timestamp on, each with its slots of compute and of memory."""

    start_ns: int
    id: str
    instances: tuple[tuple[CapacityRange, CapacityRange], ...] = ()


class NodeSighting(msgspec.Struct, frozen=True, order=True, gc=False):
    """A sign of the node in [start, end)."""

    node_evidence: NodeEvidence
    start_ns: int
    end_ns: int


class Evidence(msgspec.Struct, frozen=True):
    """All facts about one GPU. Neither order nor repetition matters."""

    gpu: str
    stays: tuple[NodeStay, ...]
    claims: tuple[MeteredClaim, ...] = ()
    releases: tuple[ClaimRelease, ...] = ()
    sample_spans: tuple[BootSampleSpan, ...] = ()
    layouts: tuple[PartitionLayout, ...] = ()
    outages: tuple[GpuOutage, ...] = ()
    reservations: tuple[SlotReservation, ...] = ()
    sightings: tuple[NodeSighting, ...] = ()


def timeline_of(
    evidence: Evidence,
    counted: Mapping[CountedQuantity, CounterIncrements] | None = None,
    skus: Sequence[tuple[int, str]] = (),
) -> GpuTimeline:
    """Return the timeline of a GPU."""
    stays = resolve_overlaps(TimePiece(s.start_ns, s.end_ns, s) for s in evidence.stays)
    service = [TimePiece(stay.start_ns, stay.end_ns, stay.value.node) for stay in stays]
    claims = place_claims(set(ended_claims(evidence)), service)
    edges = {edge for piece in claims for edge in (piece.value.start_ns, piece.value.end_ns)}
    layouts = resolve_overlaps(
        TimePiece(each.start_ns, FOREVER_NS, each) for each in evidence.layouts
    )
    return GpuTimeline(
        evidence.gpu,
        service,
        claims,
        observation_gaps(evidence.sample_spans, sorted(edges)),
        [TimePiece(each.start_ns, each.end_ns, each.node_evidence) for each in evidence.sightings],
        evidence.outages,
        evidence.reservations,
        find_stranded(
            TimePiece(each.start_ns, each.end_ns, each.value.instances) for each in layouts
        ),
        [TimePiece(since_ns, FOREVER_NS, sku) for since_ns, sku in skus],
        counted or {},
    )


def ended_claims(evidence: Evidence) -> list[MeteredClaim]:
    """Return the claims with the earliest end that a report or a release gave them."""
    ends: dict[str, int] = {}
    for claim in evidence.claims:
        ends[claim.id] = min(claim.end_ns, ends.get(claim.id, claim.end_ns))
    for release in evidence.releases:
        if release.claim in ends:
            ends[release.claim] = min(release.timestamp_ns, ends[release.claim])
    return [msgspec.structs.replace(claim, end_ns=ends[claim.id]) for claim in evidence.claims]
