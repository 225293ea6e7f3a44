"""`python -m bench.tenants`: a month of claims of a whole cluster, through metering alone.

The month is that of Alibaba's disaggregated DLRM trace of 2025. Fields of each instance: application,
number of GPUs (0 or 1), percentage of a NIC, and times of scheduling and deletion in seconds from the
start of the trace; a missing time is the first or the last second. The trace names no devices, so GPUs
are placeholders, and NICs are divided into equal parts, one size per NIC.

A part that is a whole number of 840ths is metered exactly: every percentage divisible by 5. Any other part
is reported and not metered: rounding would bill one tenant for the share of another, or more than a NIC.
Source: alibaba/clusterdata:cluster-trace-gpu-v2025/README.md.
"""

from __future__ import annotations

import csv
import gzip
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from heapq import heappop, heappush
from pathlib import Path

import click

from bench.harness import Aim, BenchReport, ProcessStopwatch, benchmark, mebibytes, resident_bytes
from bench.metering import DAYS, FIRST_DAY, MONTH
from railscope.claim_terms import GPU_CAPACITY, ClaimAuthority
from railscope.timestamps import DAY_NS, SECOND_NS
from railscope_collector.jobs import (
    gpu_models,
    job_list,
    job_metering,
    job_reconciliation,
    placeholder_gpus,
)
from railscope_collector.ledger.day_metering import MeteredGpu, MeteringComputation
from railscope_collector.metering import evidence
from railscope_collector.metering.tiling import GpuTimeline
from railscope_collector.metering.units import CapacityRange, Tiling

TRACE = (
    Path(__file__).parents[2] / "shared/captures/jobs/alibaba-v2025-disaggregated_DLRM_trace.csv.gz"
)


@dataclass(frozen=True, slots=True, order=True)
class TraceInstance:
    """One instance of an application in [start, end)."""

    start_ns: int
    end_ns: int
    name: str
    application: str
    gpus: int
    nic: Fraction


def read_trace(path: Path = TRACE) -> list[TraceInstance]:
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


GPUS_PER_NODE = 8
CLAIMS = 60
TENANTS = 200
SMALL = 10
LINEAR = Aim("<=", 1.3)
EXACT = Aim("<=", 0)


def gpu(index: int) -> evidence.Evidence:
    """Return a month of a GPU with consecutive jobs; deterministic by index."""
    chance = random.Random(index)  # noqa: S311 - load, no secret
    edges = sorted(chance.randrange(MONTH.start_ns, MONTH.end_ns) for _ in range(2 * CLAIMS))
    return evidence.Evidence(
        gpu=f"GPU-{index}",
        stays=(evidence.NodeStay(MONTH.start_ns, f"node-{index // GPUS_PER_NODE}"),),
        claims=tuple(
            evidence.MeteredClaim(
                ClaimAuthority.SCHEDULER,
                start,
                f"slurm/{index}/{at}/{start}",
                f"tenant-{chance.randrange(TENANTS)}",
                end_ns=end,
                workload=f"{index}-{at}",
            )
            for at, (start, end) in enumerate(zip(edges[::2], edges[1::2], strict=True))
        ),
        sightings=(
            evidence.NodeSighting(evidence.NodeEvidence.SCHEDULER, MONTH.start_ns, MONTH.end_ns),
        ),
    )


@click.option("--nodes", type=int, help="Number of nodes, with 8 GPUs each.")
@benchmark("Tenants of a cluster", full=1000, quick=10)
def main(report: BenchReport, size: int, _: Path, *, nodes: int | None) -> None:
    """Measure metering of a month of claims and print ratios."""
    nodes = nodes or size
    before = resident_bytes()
    gpus = [gpu(index) for index in range(nodes * GPUS_PER_NODE)]
    memory_bytes = resident_bytes() - before
    claims = sum(len(gpu_evidence.claims) for gpu_evidence in gpus)
    few = gpus[: len(gpus) // SMALL]
    small = _tile_usage(few)[0] / len(few)
    seconds, entries, found = _tile_usage(gpus)
    report.ratio("CPU per GPU, all / a tenth of them", seconds / len(gpus) / small, LINEAR)
    wrong = _wrong(found, gpus)
    report.ratio("tenants whose time is not the sum of their claims", wrong, EXACT)
    report.figure("metered", f"{len(gpus):,} GPUs, {DAYS} days, {claims:,} claims")
    report.figure("processor time", f"{seconds:.1f} s, {1e6 * seconds / claims:.0f} us per claim")
    report.figure("entries of the days", f"{entries:,}")
    report.figure(
        "claims in memory", f"{mebibytes(memory_bytes)}, {memory_bytes / claims:.0f} B per claim"
    )
    report.figure("resident after metering", mebibytes(resident_bytes()))
    _real(report)


def _tile_usage(gpus: Iterable[evidence.Evidence]) -> tuple[float, int, Counter[str]]:
    """Return processor seconds, entries, and capacity times time by tenant; empty means no tenant."""
    counts: Counter[str] = Counter()
    count = 0
    with ProcessStopwatch() as spent:
        for gpu_evidence in gpus:
            timeline = GpuTimeline.compute(gpu_evidence)
            for day in range(FIRST_DAY, FIRST_DAY + DAYS):
                entries = timeline.entries(day * DAY_NS, (day + 1) * DAY_NS)
                count += len(entries)
                for entry in entries:
                    if entry.tiling is Tiling.COMPUTE:
                        counts[entry.tenant] += int(entry.quantity)
    return spent.cpu_seconds, count, counts


def _wrong(counts: Counter[str], gpus: Sequence[evidence.Evidence]) -> int:
    """Return the number of tenants that differ from a plain sum; time without a tenant is the remainder."""
    expected: Counter[str] = Counter()
    for gpu_evidence in gpus:
        for claim in gpu_evidence.claims:
            expected[claim.tenant] += GPU_CAPACITY * (claim.end_ns - claim.start_ns)
    whole = GPU_CAPACITY * (MONTH.end_ns - MONTH.start_ns) * len(gpus)
    expected[""] = whole - expected.total()
    return sum(counts[tenant] != expected[tenant] for tenant in expected | counts)


def _real(report: BenchReport) -> None:
    """Meter the month of a real cluster, if the captures are present beside the repository."""
    if not TRACE.exists():
        report.figure("a real cluster's month", f"not measured: {TRACE} is missing")
        return
    with ProcessStopwatch() as metering:
        instances = read_trace()
        listed = jobs_of_trace(instances)
        jobs = placeholder_gpus.number_placeholders(listed, "", gpu_models.GpuModels()).jobs
        gpu_days = 0
        ledger = []
        for gpu_evidence in job_metering.job_evidence(jobs).values():
            (stay,) = gpu_evidence.stays
            gpu = MeteredGpu.compute(gpu_evidence, {})
            for day in range(stay.start_ns // DAY_NS, -(-stay.end_ns // DAY_NS)):
                gpu_days += 1
                tiling = gpu.day(day, MeteringComputation("", 0))
                ledger += [e for e in tiling.entries if e.tenant and e.tiling is Tiling.COMPUTE]
        held_time = sum(int(entry.quantity) for entry in ledger)
    with ProcessStopwatch() as comparing:
        comparison = job_reconciliation.compare_jobs(ledger, listed, 0)
    expected = sum(GPU_CAPACITY * len(job.gpus) * job.duration_ns for job in jobs)
    title = "a real month, held - sum of its instances, GPU-ns"
    report.ratio(title, abs(held_time - expected) / GPU_CAPACITY, EXACT)
    differing = len(comparison.differences) + sum(bool(t.difference) for t in comparison.tenants)
    report.ratio("its jobs and tenants that differ from the job list (R3)", differing, EXACT)
    report.figure("R3 of a real month", f"{comparison.jobs:,} jobs, {comparing.cpu_seconds:.1f} s")
    nics, inexact = nic_evidence(instances)
    seconds = metering.cpu_seconds
    report.figure("a real month", f"{len(jobs):,} jobs, {gpu_days:,} GPU-days, {seconds:.1f} s")
    exact = f"{len(instances) - len(inexact):,} exact on {len(nics):,} NICs"
    report.figure("its parts of NICs", f"{exact}, {len(inexact):,} reported as inexact")


if __name__ == "__main__":
    main()
