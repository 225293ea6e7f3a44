"""`python -m bench.metering`: from usage evidence to closed invoices, and against a loop over samples."""

from __future__ import annotations

import gc
import random
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from bench.harness import Aim, BenchReport, ProcessStopwatch, benchmark, cpu_seconds
from railscope.claim_terms import ClaimAuthority
from railscope.timestamps import DAY_NS, SECOND_NS
from railscope_collector.billing import invoices, ledger_usage, price_book, usage
from railscope_collector.billing.charges import Charge
from railscope_collector.billing.rating import rate
from railscope_collector.ledger.day_metering import MeteredGpu, MeteringComputation
from railscope_collector.metering import (
    counter_increments,
    evidence as usage_evidence,
    observation,
    units,
)

SKU = "h100-sxm"
DAYS = 30
FIRST_DAY = 20_000
MONTH = units.Period(FIRST_DAY * DAY_NS, (FIRST_DAY + DAYS) * DAY_NS)
COMPUTED = MeteringComputation("bench", MONTH.end_ns)
SAMPLE_NS = 10 * SECOND_NS
COUNTED_NS = 30 * SECOND_NS
"""One counter reading is kept in each cell of this grid."""
CLAIMS = 60
SILENCES = 10
TENANTS = 50
GPU_DAYS = 8_000
CORES = 2
MORE = (1, 2, 4, 8)
RATED = Aim("<=", 60, " s")
LINEAR = Aim("<=", 2.2)
AN_EVENT = Aim("<=", 1.3)
PER_PART = Aim("<=", 1.3)
HALVED = Aim("<=", 0.65)
BOOK = price_book.PriceBook(
    1, 0, "EUR", (price_book.Price(SKU, price_book.Tariff.ALLOCATED, 2_490_000_000, 0),)
)


@dataclass(frozen=True, slots=True)
class MeteringBenchSize:
    """Numbers of GPUs, and of claims that share one."""

    gpus: int
    gpus_on_cores: int
    gpus_with_events: int
    claims_on_a_gpu: Sequence[int]


THOROUGH = MeteringBenchSize(64, -(-GPU_DAYS // DAYS), 16, (16, 32, 64, 128))
QUICK = MeteringBenchSize(4, 4, 2, (2, 4))


@dataclass(frozen=True, slots=True)
class GpuMonth:
    """Usage evidence of one GPU: a month of samples with gaps, and consecutive jobs."""

    evidence: usage_evidence.Evidence
    counted: counter_increments.CounterIncrements
    timestamps_ns: NDArray[np.int64]


def month(index: int, times: int = 1) -> GpuMonth:
    """Return a month of a GPU with a multiple of the usual claims and gaps; deterministic by index."""
    chance = random.Random(index)  # noqa: S311 - load, no secret
    timestamps_ns = np.arange(MONTH.start_ns, MONTH.end_ns + 1, SAMPLE_NS, dtype=np.int64)
    is_sampled = np.ones(len(timestamps_ns), np.bool_)
    for _ in range(SILENCES * times):
        start = chance.randrange(len(timestamps_ns))
        is_sampled[start : start + chance.randrange(3, 180)] = False
    timestamps_ns = timestamps_ns[is_sampled]
    edges = sorted(
        chance.randrange(MONTH.start_ns, MONTH.end_ns) for _ in range(2 * CLAIMS * times)
    )
    claims = tuple(
        usage_evidence.MeteredClaim(
            ClaimAuthority.SCHEDULER,
            start,
            f"job-{index}-{at}",
            f"tenant-{chance.randrange(TENANTS)}",
            end_ns=end,
        )
        for at, (start, end) in enumerate(zip(edges[::2], edges[1::2], strict=True))
    )
    evidence = usage_evidence.Evidence(
        gpu=f"GPU-{index}",
        stays=(usage_evidence.NodeStay(MONTH.start_ns, f"node-{index // 8}"),),
        claims=claims,
        sample_spans=tuple(observation.join_samples("boot", timestamps_ns)),
        sightings=(
            usage_evidence.NodeSighting(
                usage_evidence.NodeEvidence.SCHEDULER, MONTH.start_ns, MONTH.end_ns
            ),
        ),
    )
    _, firsts = np.unique(timestamps_ns // COUNTED_NS, return_index=True)
    read = timestamps_ns[firsts]
    counters = (read - MONTH.start_ns) // 1_000_000 * 500
    return GpuMonth(
        evidence,
        counter_increments.compute_increments(
            [counter_increments.CounterReadings("boot", read, counters)]
        ),
        timestamps_ns,
    )


@benchmark("Metering and rating", full=THOROUGH, quick=QUICK)
def main(report: BenchReport, size: MeteringBenchSize, _: Path) -> None:
    """Measure metering and rating and print ratios."""
    gpus = size.gpus
    months = [month(index) for index in range(gpus)]
    half = _bill(months[: gpus // 2])[0]
    whole, metering, charges = _bill(months)
    days = gpus * DAYS
    report.ratio(f"{GPU_DAYS:,} GPU-days metered, rated and closed", whole * GPU_DAYS / days, RATED)
    report.ratio("time of twice as many GPUs / time", whole / half, LINEAR)
    _on_cores(report, size.gpus_on_cores)
    _by_events(report, size.gpus_with_events)
    _by_shares(report, size.claims_on_a_gpu)
    sampled = [(month.evidence.claims, month.timestamps_ns.tolist()) for month in months[:4]]
    with ProcessStopwatch() as spent:
        held_ns = sum(_by_sample(*month_samples) for month_samples in sampled)
    naive = spent.cpu_seconds * gpus / 4
    report.ratio("CPU of a loop over samples, held time only / metering", naive / metering)
    report.figure("measured", f"{days:,} GPU-days, {gpus * CLAIMS:,} claims, {charges:,} charges")
    report.figure("metering", f"{1e3 * metering / days:.2f} ms CPU per GPU-day")
    report.figure("rating and closing", f"{1e3 * (whole - metering) / days:.2f} ms CPU per GPU-day")
    report.figure("loop over samples", f"{1e3 * naive / days:.2f} ms CPU per GPU-day")
    report.figure(
        "held time by that loop", f"{held_ns / (4 * DAYS * DAY_NS):.3f} of the time, not exact"
    )


def _bill(months: Sequence[GpuMonth]) -> tuple[float, float, int]:
    """Return processor seconds in total and of metering alone, and the number of charges."""
    used: list[usage.Usage] = []
    with ProcessStopwatch() as metering:
        for gpu_month in months:
            used += _meter_usage(gpu_month)
    with ProcessStopwatch() as rating:
        charges = rate(used, BOOK, MONTH).charges
        invoices.draft_invoices(charges, MONTH, BOOK.currency)
    return metering.cpu_seconds + rating.cpu_seconds, metering.cpu_seconds, len(charges)


def _meter_usage(gpu_month: GpuMonth) -> list[usage.Usage]:
    """Meter a GPU's month, by the days that would be in the ledger."""
    gpu = MeteredGpu.compute(
        gpu_month.evidence,
        {counter_increments.CountedQuantity.ENERGY: gpu_month.counted},
        [(0, SKU)],
    )
    return ledger_usage.usages_of_days(gpu.day(FIRST_DAY + day, COMPUTED) for day in range(DAYS))


def _on_cores(report: BenchReport, gpus: int) -> None:
    """Measure everything in one process, and with metering and rating in several."""
    _SharedMemory.months = [month(index) for index in range(gpus)]
    gc.freeze()  # or garbage collection copies the memory that forked processes share
    days = gpus * DAYS
    alone, single_process = _close_days(gpus, 1)
    wall, busiest = _close_days(gpus, CORES)
    gc.unfreeze()
    title = f"{GPU_DAYS:,} GPU-days, {CORES} processes, wall time"
    report.ratio(title, wall * GPU_DAYS / days, RATED)
    report.ratio(
        f"CPU of the busier of {CORES} processes / of one alone", busiest / single_process, HALVED
    )
    report.figure("wall time", f"{days:,} GPU-days: {alone:.2f} s, {CORES} processes {wall:.2f} s")


class _SharedMemory:
    """Memory that forked processes share."""

    months: Sequence[GpuMonth] = ()


def _close_days(gpus: int, processes: int) -> tuple[float, float]:
    """Return the seconds until all is closed, and processor seconds of the busiest rating process."""
    parts = [range(first, gpus, processes) for first in range(processes)]
    with ProcessStopwatch() as spent:
        if processes == 1:
            rated = [_rate_gpus(parts[0])]
        else:
            with ProcessPoolExecutor(processes, get_context("fork")) as pool:
                rated = list(pool.map(_rate_gpus, parts))
        invoices.draft_invoices(
            [charge for _, charges in rated for charge in charges], MONTH, BOOK.currency
        )
    return spent.wall_seconds, max(seconds for seconds, _ in rated)


def _rate_gpus(part: range) -> tuple[float, list[Charge]]:
    """Return processor seconds and charges of some of the GPUs."""
    used: list[usage.Usage] = []
    with ProcessStopwatch() as spent:
        for index in part:
            used += _meter_usage(_SharedMemory.months[index])
        charges = list(rate(used, BOOK, MONTH).charges)
    return spent.cpu_seconds, charges


def _by_events(report: BenchReport, gpus: int) -> None:
    """Measure the metering cost per event at growing counts: starts and ends of claims, and gaps."""
    costs = []
    for times in MORE:
        months = [month(index, times) for index in range(gpus)]
        events = sum(2 * len(m.evidence.claims) + len(m.evidence.sample_spans) for m in months)
        with ProcessStopwatch() as spent:
            for gpu_month in months:
                _meter_usage(gpu_month)
        costs.append(spent.cpu_seconds / events)
    title = f"CPU per event, {MORE[-1]} times as many / minimum"
    report.ratio(title, costs[-1] / min(costs), AN_EVENT)
    shown = ", ".join(f"{1e6 * cost:.1f}" for cost in costs)
    report.figure("CPU per event", f"{shown} us with {', '.join(map(str, MORE))} times as many")


def _by_shares(report: BenchReport, counts: Sequence[int]) -> None:
    """Measure the cost of a part held by a share for a time, with growing counts of claims on a GPU."""
    costs = []
    for count in counts:
        gpu_month = month(0)
        apart_ns = DAYS * DAY_NS // (count + 1)
        claims = tuple(
            usage_evidence.MeteredClaim(
                ClaimAuthority.SCHEDULER,
                MONTH.start_ns + at * apart_ns,
                f"share-{at}",
                f"tenant-{at % 8}",
                exclusive=False,
                share=Fraction(1, 8 + at),
            )
            for at in range(count)
        )
        shared = replace(gpu_month, evidence=structs.replace(gpu_month.evidence, claims=claims))
        costs.append(cpu_seconds(partial(_meter_usage, shared)) / (count * (count + 1) / 2))
    title = f"CPU per part held, {counts[-1]} / {counts[0]} claims that share a GPU"
    report.ratio(title, costs[-1] / costs[0], PER_PART)
    shown = ", ".join(f"{1e6 * cost:.0f}" for cost in costs)
    report.figure("CPU per part held", f"{shown} us with {', '.join(map(str, counts))} claims")


def _by_sample(held_by: Sequence[usage_evidence.MeteredClaim], timestamps_ns: Sequence[int]) -> int:
    """Meter by samples, the usual alternative: the holder at a sample held the GPU since the last one."""
    claims = sorted((claim.start_ns, claim.end_ns) for claim in held_by)
    held_ns = at = 0
    before = timestamps_ns[0]
    for timestamp_ns in timestamps_ns[1:]:
        while at < len(claims) and claims[at][1] <= timestamp_ns:
            at += 1
        if (
            at < len(claims)
            and claims[at][0] <= timestamp_ns
            and timestamp_ns - before <= observation.GAP_NS
        ):
            held_ns += timestamp_ns - before
        before = timestamp_ns
    return held_ns


if __name__ == "__main__":
    main()
