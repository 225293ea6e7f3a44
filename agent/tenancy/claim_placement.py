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

from agent.gpus.mig_slots import count_covered_slots
from agent.sampling.source import ProbeFinding, format_count
from agent.tenancy import claim_tracker
from agent.tenancy.claims import NodeClaim
from agent.tenancy.devices import NodeDevices
from railscope.claim_terms import GPU_CAPACITY, parse_share

SUBJECT = "claims without a device"
_MAX_QUOTED = 5


def place_claims(
    reports: Sequence[claim_tracker.ProviderReport],
    in_force: Callable[[str], tuple[NodeClaim, ...]],
    devices: NodeDevices,
) -> tuple[list[claim_tracker.ProviderReport], list[NodeClaim]]:
    """Return the reports with devices from other providers, and the claims without a device."""
    claimed = [(report.adapter, held) for report in reports for held in report.report.held]
    counts = [(adapter, held) for adapter, held in claimed if not held.gpu]
    if not counts:
        return list(reports), []
    claimed += [
        (report.adapter, h)
        for report in reports
        if report.report.unread
        for h in in_force(report.adapter)
    ]
    counts.sort(key=lambda one: (-one[1].level, one[1].key))
    taken: dict[tuple[tuple[str, str], str], NodeClaim] = {}
    rests: dict[tuple[str, tuple[str, ...]], list[NodeClaim]] = {}
    for adapter, count in counts:
        same = [
            (a, held) for a, held in claimed if held.gpu and held.workload_of == count.workload_of
        ]
        own = {h.part for a, h in same if a == adapter and h.level == count.level}
        pool = {held.part for _, held in same} - own
        free = sorted(part for part in pool if (count.workload_of, part) not in taken)
        for part in free[: count.count]:
            taken[count.workload_of, part] = count
        left = count.count - len(free[: count.count])
        rivals = {
            h.gpu
            for _, h in claimed
            if h.workload_of != count.workload_of and h.level >= count.level
        }
        named = {held.gpu for _, held in same}
        rests[adapter, count.key] = _remaining_claims(count, left, named, devices, rivals)

    def of(adapter: str, held: NodeClaim) -> list[NodeClaim]:
        if not held.gpu:
            return rests[adapter, held.key]
        count = taken.get((held.workload_of, held.part))
        return [_transfer_authority(count, held) if count and count.level > held.level else held]

    found = [
        replace(
            report,
            report=replace(
                report.report,
                held=tuple(one for held in report.report.held for one in of(report.adapter, held)),
            ),
        )
        for report in reports
    ]
    return found, [held for rest in rests.values() for held in rest if not held.gpu]


def _remaining_claims(
    count: NodeClaim, left: int, named: set[str], devices: NodeDevices, rivals: set[str]
) -> list[NodeClaim]:
    """Return the remaining claim: its devices if no other GPUs are left, else their number."""
    if left <= 0:
        return []
    others = [gpu for gpu in devices.present if gpu.uuid not in named]
    is_whole = not count.share and not any(gpu.parts for gpu in devices.present)
    if is_whole and left == len(others) and not rivals & {gpu.uuid for gpu in others}:
        return [
            msgspec.structs.replace(count, gpu=gpu.uuid, device=gpu.uuid, count=0) for gpu in others
        ]
    return [msgspec.structs.replace(count, count=left)]


def _transfer_authority(count: NodeClaim, named: NodeClaim) -> NodeClaim:
    """Return a device of one provider with the authority, share and times of another."""
    return msgspec.structs.replace(
        named,
        level=count.level,
        share=count.share,
        exclusive=named.exclusive and not count.share,
        start_ns=count.start_ns,
        start_boot=count.start_boot,
        uncertainty_ns=count.uncertainty_ns,
    )


def unplaced_findings(unplaced: Iterable[NodeClaim]) -> Iterator[ProbeFinding]:
    """Yield a line of `agent check` if claims do not name their devices."""
    held = list(unplaced)
    if not held:
        return
    some = ", ".join(
        f"{one.source} {one.workload} ({_format_gpu_count(one)})" for one in held[:_MAX_QUOTED]
    )
    total = sum(one.count for one in held)
    detail = f"{format_count(total, 'GPU')} of {format_count(len(held), 'claim')} without a device: {some}"
    remedy = (
        "run `railscope claim start --from-slurm` in a prolog, or set tenancy.slurm_job_directory"
    )
    yield ProbeFinding.absent(SUBJECT, f"{detail}; bills assume the devices", remedy)


def _format_gpu_count(held: NodeClaim) -> str:
    return f"{held.count} x {held.share}" if held.share else str(held.count)


def count_claimed_slots(claims: Iterable[NodeClaim]) -> int:
    """Return the claimed compute slots of a GPU, of 840. Shares are added to whole devices."""
    whole, shares = [], Fraction(0)
    for held in claims:
        if held.share:
            shares += parse_share(held.share) * (held.compute.high - held.compute.low)
        else:
            whole.append(held.compute)
    return min(GPU_CAPACITY, count_covered_slots(whole) + int(shares))
