"""Placement of claims for a number of GPUs without devices, and the claimed capacity of a GPU.

A pod may request a number of GPUs or shares and name none. Another provider that names devices of the same workload
(processes, `railscope claim`) places it: those devices then get the claim of the higher authority. A claim for all GPUs of
the node is certain as well. Other devices are assumed: GPUs that are free, then those that a lower authority holds. An
assumed device stays until another claim needs it. What does not fit has no device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction

import msgspec

from railscope.claim_terms import GPU_CAPACITY, parse_share
from railscope_agent.gpus.mig_slots import count_covered_slots
from railscope_agent.sampling.probe_result import ProbeFinding, format_count
from railscope_agent.tenancy.claim_tracker import ProviderReport
from railscope_agent.tenancy.claims import NodeClaim
from railscope_agent.tenancy.devices import NodeDevices

SUBJECT = "claims without a device"
_MAX_QUOTED = 5


def place_claims(
    reports: Sequence[ProviderReport],
    in_force: Callable[[str], tuple[NodeClaim, ...]],
    devices: NodeDevices,
) -> list[ProviderReport]:
    """Return the reports with devices in place of numbers of GPUs, as far as these fit."""
    claimed = [(report.adapter, claim) for report in reports for claim in report.report.claims]
    unnamed_claims = [(adapter, claim) for adapter, claim in claimed if not claim.gpu]
    if not unnamed_claims:
        return list(reports)
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
    placed_by_key: dict[tuple[str, tuple[str, ...]], list[NodeClaim]] = {}
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
        pool = {claim.part for _, claim in same if unnamed.share or not claim.profile} - own_parts
        # A device is placed for one count only.
        free = sorted(part for part in pool if (unnamed.owning_workload, part) not in claim_by_part)
        for part in free[: unnamed.count]:
            claim_by_part[unnamed.owning_workload, part] = unnamed
        placed = _assume_devices(
            msgspec.structs.replace(unnamed, count=unnamed.count - len(free[: unnamed.count])),
            {claim.gpu for _, claim in same},
            {
                before.gpu
                for before in in_force(adapter)
                if before.assumed
                and (before.workload, before.reference) == (unnamed.workload, unnamed.reference)
            },
            [claim for _, claim in claimed if claim.owning_workload != unnamed.owning_workload],
            devices,
        )
        placed_by_key[adapter, unnamed.key] = placed
        claimed += [(adapter, claim) for claim in placed if claim.gpu]

    def placed_claims(adapter: str, claim: NodeClaim) -> list[NodeClaim]:
        if not claim.gpu:
            return placed_by_key[adapter, claim.key]
        unnamed = claim_by_part.get((claim.owning_workload, claim.part))
        return [
            _transfer_authority(unnamed, claim)
            if unnamed and unnamed.authority > claim.authority
            else claim
        ]

    return [
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


def _assume_devices(
    unnamed: NodeClaim,
    named: set[str],
    before: set[str],
    others: Sequence[NodeClaim],
    devices: NodeDevices,
) -> list[NodeClaim]:
    """Return the claim on each GPU that it gets, and without a device for the number that does not fit.

    `named` are the GPUs that other claims name for the workload, `before` those that were assumed at the last poll.
    """
    # All are placed: reporting the count as well would claim them twice.
    if unnamed.count <= 0:
        return []
    # A GPU that is lost keeps its claim.
    known = [gpu for gpu in devices.all.values() if gpu in devices.present or gpu.uuid in before]
    candidates = [gpu for gpu in known if not (gpu.uuid in named or gpu.is_partitioned)]
    needed = parse_share(unnamed.share) * GPU_CAPACITY if unnamed.share else GPU_CAPACITY
    rivals: dict[str, list[NodeClaim]] = {}
    lower: dict[str, int] = {}
    for claim in others:
        if claim.authority >= unnamed.authority:
            rivals.setdefault(claim.gpu, []).append(claim)
        else:
            lower[claim.gpu] = lower.get(claim.gpu, 0) + 1
    free_slots = {
        gpu.uuid: GPU_CAPACITY - count_claimed_slots(rivals.get(gpu.uuid, ())) for gpu in candidates
    }
    fitting = sorted(
        (gpu for gpu in candidates if free_slots[gpu.uuid] >= needed),
        key=lambda gpu: (
            gpu.uuid not in before,
            lower.get(gpu.uuid, 0),
            -free_slots[gpu.uuid],
            gpu.index,
        ),
    )[: unnamed.count]
    # A share of the only GPU left is not certain: another GPU of the workload may carry it.
    is_certain = not unnamed.share and unnamed.count == len(candidates) == len(fitting)
    placed = [
        msgspec.structs.replace(
            unnamed, gpu=gpu.uuid, device=gpu.uuid, count=0, assumed=not is_certain
        )
        for gpu in fitting
    ]
    missing_count = unnamed.count - len(fitting)
    rest = [msgspec.structs.replace(unnamed, count=missing_count)] if missing_count else []
    return placed + rest


def _transfer_authority(unnamed: NodeClaim, named: NodeClaim) -> NodeClaim:
    """Return a device of one provider with the authority, share and times of another."""
    return msgspec.structs.replace(
        named,
        authority=unnamed.authority,
        share=unnamed.share,
        exclusive=named.exclusive and not unnamed.share,
        start_ns=unnamed.start_ns,
        start_boot=unnamed.start_boot,
        uncertainty_ns=unnamed.uncertainty_ns,
    )


def placement_findings(reports: Iterable[ProviderReport]) -> Iterator[ProbeFinding]:
    """Yield a line of `agent check` if devices of claims are assumed, or do not fit."""
    claims = [claim for report in reports for claim in report.report.claims]
    assumed = [claim for claim in claims if claim.assumed or claim.count]
    if not assumed:
        return
    counts: dict[str, int] = {}
    for claim in assumed:
        size = f" x {claim.share}" if claim.share else ""
        name = f"{claim.source} {claim.workload}{size}"
        counts[name] = counts.get(name, 0) + (claim.count or 1)
    examples = ", ".join(f"{name} ({count})" for name, count in [*counts.items()][:_MAX_QUOTED])
    total, missing = sum(counts.values()), sum(claim.count for claim in assumed)
    detail = f"{format_count(total, 'GPU')} that claims do not name: {examples}"
    effect = f"{missing} do not fit" if missing else "devices are assumed"
    remedy = "name the devices by `railscope claim start` in a prolog"
    yield ProbeFinding.absent(SUBJECT, f"{detail}; {effect}", remedy)


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
