"""Placement of claims for a number of GPUs without devices, and the claimed capacity of a GPU.

Slurm may report `gres/gpu=8` without indices. Another provider that names devices of the same workload (the
job's control group, `railscope claim`) places it: those devices then get the claim of the higher authority.
A claim for all GPUs of the node is certain as well. The rest has no device, and the collector assumes one
(docs/tenancy.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction

import msgspec

from railscope.claim_terms import GPU_CAPACITY, parse_share
from railscope.slurm.resources import mig_profile
from railscope_agent.gpus.mig_slots import count_covered_slots
from railscope_agent.sampling.probe_result import ProbeFinding, format_count
from railscope_agent.tenancy import claim_tracker
from railscope_agent.tenancy.claims import NodeClaim
from railscope_agent.tenancy.devices import NodeDevices

SUBJECT = "claims without a device"
_MAX_QUOTED = 5


def place_claims(
    reports: Sequence[claim_tracker.ProviderReport],
    in_force: Callable[[str], tuple[NodeClaim, ...]],
    devices: NodeDevices,
) -> tuple[list[claim_tracker.ProviderReport], list[NodeClaim]]:
    """Return the reports with devices from other providers, and the claims without a device."""
    claimed = [(report.adapter, claim) for report in reports for claim in report.report.claims]
    unnamed_claims = [(adapter, claim) for adapter, claim in claimed if not claim.gpu]
    if not unnamed_claims:
        return list(reports), []
    # A provider that could not be read has not released its devices: they are no places for others.
    claimed += [
        (report.adapter, other)
        for report in reports
        if report.report.absence
        for other in in_force(report.adapter)
    ]
    # The highest authority chooses first; the key makes the result the same in every poll.
    unnamed_claims.sort(key=lambda counted: (-counted[1].authority, counted[1].key))
    claim_by_part: dict[tuple[tuple[str, str], str], NodeClaim] = {}
    remaining_claims: dict[tuple[str, tuple[str, ...]], list[NodeClaim]] = {}
    for adapter, unnamed in unnamed_claims:
        same = [
            (provider, claim)
            for provider, claim in claimed
            if claim.gpu and claim.owning_workload == unnamed.owning_workload
        ]
        # Devices that the provider names are no part of those that it only counts.
        own_parts = {
            other.part
            for provider, other in same
            if provider == adapter and other.authority == unnamed.authority
        }
        pool = {claim.part for _, claim in same if _is_of_kind(claim, unnamed)} - own_parts
        # A device is placed for one count only.
        free = sorted(part for part in pool if (unnamed.owning_workload, part) not in claim_by_part)
        for part in free[: unnamed.count]:
            claim_by_part[unnamed.owning_workload, part] = unnamed
        missing_count = unnamed.count - len(free[: unnamed.count])
        rivals = {
            other.gpu
            for _, other in claimed
            if other.owning_workload != unnamed.owning_workload
            and other.authority >= unnamed.authority
        }
        named = {claim.gpu for _, claim in same}
        remaining_claims[adapter, unnamed.key] = _remaining_claims(
            unnamed, missing_count, named, devices, rivals
        )

    def placed_claims(adapter: str, claim: NodeClaim) -> list[NodeClaim]:
        if not claim.gpu:
            return remaining_claims[adapter, claim.key]
        unnamed = claim_by_part.get((claim.owning_workload, claim.part))
        return [
            _transfer_authority(unnamed, claim)
            if unnamed and unnamed.authority > claim.authority
            else claim
        ]

    placed = [
        replace(
            report,
            report=replace(
                report.report,
                claims=tuple(
                    placed_claim
                    for claim in report.report.claims
                    for placed_claim in placed_claims(report.adapter, claim)
                ),
            ),
        )
        for report in reports
    ]
    return placed, [
        claim for remaining in remaining_claims.values() for claim in remaining if not claim.gpu
    ]


def _remaining_claims(
    unnamed: NodeClaim, missing_count: int, named: set[str], devices: NodeDevices, rivals: set[str]
) -> list[NodeClaim]:
    """Return the remaining claim: its devices if no other GPUs are left, else their number."""
    # All are placed: reporting the count as well would claim them twice.
    if missing_count <= 0:
        return []
    free_gpus = [gpu for gpu in devices.present if not (gpu.uuid in named or gpu.is_partitioned)]
    if (
        # A share of the only GPU left is not certain: another GPU of the workload may carry it.
        not unnamed.share
        and missing_count == len(free_gpus)
        and not rivals & {gpu.uuid for gpu in free_gpus}
    ):
        return [
            msgspec.structs.replace(unnamed, gpu=gpu.uuid, device=gpu.uuid, count=0)
            for gpu in free_gpus
        ]
    return [msgspec.structs.replace(unnamed, count=missing_count)]


def _is_of_kind(named: NodeClaim, unnamed: NodeClaim) -> bool:
    """True if a device can be one of those that were counted: of the same MIG profile, or whole."""
    is_share = bool(unnamed.share) and not unnamed.profile
    return is_share or mig_profile(named.profile) == unnamed.profile


def _transfer_authority(unnamed: NodeClaim, named: NodeClaim) -> NodeClaim:
    """Return a device of one provider with the authority, share and times of another."""
    share = "" if unnamed.profile else unnamed.share  # of a GPU, not of its MIG device
    return msgspec.structs.replace(
        named,
        authority=unnamed.authority,
        share=share,
        exclusive=named.exclusive and not share,
        start_ns=unnamed.start_ns,
        start_boot=unnamed.start_boot,
        uncertainty_ns=unnamed.uncertainty_ns,
    )


def unplaced_findings(unplaced: Iterable[NodeClaim]) -> Iterator[ProbeFinding]:
    """Yield a line of `agent check` if claims do not name their devices."""
    claims = list(unplaced)
    if not claims:
        return
    examples = ", ".join(
        f"{claim.source} {claim.workload} ({claim.count}{f' x {claim.share}' if claim.share else ''})"
        for claim in claims[:_MAX_QUOTED]
    )
    total = sum(claim.count for claim in claims)
    detail = f"{format_count(total, 'GPU')} of {format_count(len(claims), 'claim')} without a device: {examples}"
    remedy = "name the devices by `railscope claim start` in a prolog"
    yield ProbeFinding.absent(SUBJECT, f"{detail}; bills assume the devices", remedy)


def count_claimed_slots(claims: Iterable[NodeClaim]) -> int:
    """Return the claimed compute slots of a GPU, of 840. Shares are added to whole devices."""
    # Slot ranges overlap and are united; shares have no place on the GPU, so they are added up.
    slot_ranges, shares = [], Fraction(0)
    for claim in claims:
        if claim.share:
            shares += parse_share(claim.share) * (claim.compute.high - claim.compute.low)
        else:
            slot_ranges.append(claim.compute)
    # More than the capacity is oversubscription, which is no further capacity.
    return min(GPU_CAPACITY, count_covered_slots(slot_ranges) + int(shares))
