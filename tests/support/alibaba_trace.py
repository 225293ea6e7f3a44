"""A month of a whole cluster: Alibaba's disaggregated DLRM trace of 2025.

Fields of each instance: application, number of GPUs (0 or 1), percentage of a NIC, and times of scheduling and deletion in
seconds from the start of the trace; a missing time is the first or the last second. The trace names no devices, so GPUs are
placeholders, and NICs are divided into equal parts, one size per NIC.

A part that is a whole number of 840ths is metered exactly: every percentage divisible by 5. Any other part is reported and not
metered: rounding would bill one tenant for the share of another, or more than a NIC.
Source: alibaba/clusterdata:cluster-trace-gpu-v2025/README.md.
"""

from __future__ import annotations

import csv
import gzip
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from heapq import heappop, heappush
from pathlib import Path

from railscope.claim_terms import GPU_CAPACITY, ClaimAuthority
from railscope.timestamps import SECOND_NS
from railscope_collector.jobs import job_list
from railscope_collector.metering import evidence
from railscope_collector.metering.units import CapacityRange


@dataclass(frozen=True, slots=True, order=True)
class TraceInstance:
    """One instance of an application in [start, end)."""

    start_ns: int
    end_ns: int
    name: str
    application: str
    gpus: int
    nic: Fraction


def read_trace(path: Path) -> list[TraceInstance]:
    """Return all instances of the trace with a duration above 0, by start."""
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    last_ns = max(_ns(row["deletion_time"]) or 0 for row in rows)
    instances = (
        TraceInstance(
            _ns(row["scheduled_time"]) or 0,
            last_ns if (end := _ns(row["deletion_time"])) is None else end,
            row["instance_sn"],
            row["app_name"],
            int(row["gpu_request"]),
            Fraction(row["rdma_request"]) / 100,
        )
        for row in rows
    )
    return sorted(instance for instance in instances if instance.start_ns < instance.end_ns)


def _ns(text: str) -> int | None:
    """Convert seconds of the trace, which are rounded floating point, to nanoseconds."""
    return round(Decimal(text) * SECOND_NS) if text else None


def jobs_of_trace(instances: Iterable[TraceInstance]) -> list[job_list.ListedJob]:
    """Return the instances with GPUs, as jobs of a list that names no GPUs."""
    return [
        job_list.ListedJob(
            instance.start_ns,
            instance.name,
            instance.application,
            "",
            instance.end_ns,
            unplaced=(job_list.UnnamedGpus("", instance.gpus, "the trace names none"),),
        )
        for instance in instances
        if instance.gpus
    ]


def nic_evidence(
    instances: Iterable[TraceInstance],
) -> tuple[list[evidence.Evidence], list[TraceInstance]]:
    """Return usage evidence of the NICs with claims on parts, and the instances with inexact parts."""
    claims: dict[str, list[evidence.MeteredClaim]] = defaultdict(list)
    inexact: list[TraceInstance] = []
    pools: dict[int, _NicPool] = {}
    for instance in sorted(instances):
        units = units_of_share(instance.nic)
        if units is None:
            inexact.append(instance)
            continue
        nic, slots = pools.setdefault(units, _NicPool(units)).take(
            instance.start_ns, instance.end_ns
        )
        claims[nic].append(
            evidence.MeteredClaim(
                ClaimAuthority.SCHEDULER,
                instance.start_ns,
                instance.name,
                instance.application,
                instance.end_ns,
                instance.name,
                compute=slots,
                memory=slots,
            )
        )
    return list(_evidence(claims)), inexact


def _evidence(claims: dict[str, list[evidence.MeteredClaim]]) -> Iterator[evidence.Evidence]:
    for nic, nic_claims in sorted(claims.items()):
        start = min(claim.start_ns for claim in nic_claims)
        end = max(claim.end_ns for claim in nic_claims)
        sighting = evidence.NodeSighting(evidence.NodeEvidence.SCHEDULER, start, end)
        yield evidence.Evidence(
            nic, (evidence.NodeStay(start, nic, end),), tuple(nic_claims), sightings=(sighting,)
        )


def units_of_share(part: Fraction) -> int | None:
    """Return the units of a part of a device; None if not a whole number. Raises ValueError."""
    if not 0 < part <= 1:
        message = f"invalid part of a device: {part}: expected more than 0, and at most 1"
        raise ValueError(message)
    units = part * GPU_CAPACITY
    return int(units) if units.denominator == 1 else None


class _NicPool:
    """NICs divided into parts of one size."""

    def __init__(self, units: int) -> None:
        self._units = units
        self._free: list[tuple[int, int]] = []
        self._shares_in_use: list[tuple[int, int, int]] = []
        self._nics = 0

    def take(self, start_ns: int, end_ns: int) -> tuple[str, CapacityRange]:
        """Return a part that is free in [start, end); starts must arrive in order."""
        while self._shares_in_use and self._shares_in_use[0][0] <= start_ns:
            _, nic, part = heappop(self._shares_in_use)
            heappush(self._free, (nic, part))
        if not self._free:
            for part in range(GPU_CAPACITY // self._units):
                heappush(self._free, (self._nics, part))
            self._nics += 1
        nic, part = heappop(self._free)
        heappush(self._shares_in_use, (end_ns, nic, part))
        low = part * self._units
        return f"nic-{self._units}-{nic}", CapacityRange(low, low + self._units)
