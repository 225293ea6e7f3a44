"""`python -m bench.metering`: from evidence to closed bills, and against a loop over samples."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass

import click
import numpy as np

from bench.report import Aim, Report
from collector.billing.instants import DAY_NS, SECOND_NS, Period
from collector.billing.invoice import close
from collector.billing.metered import usages
from collector.billing.prices import Price, PriceBook, Tariff
from collector.billing.rating import rate
from collector.billing.usage import Usage
from collector.metering.evidence import Claim, Evidence, Level, Sighting, Stay, Witness
from collector.metering.measures import Increments, Readings, increments
from collector.metering.observation import GAP_NS, stretches

SKU = "h100-sxm"
DAYS = 30
MONTH = Period(20_000 * DAY_NS, (20_000 + DAYS) * DAY_NS)
SAMPLE_NS = 10 * SECOND_NS
CLAIMS = 60
TENANTS = 50
GPU_DAYS = 8_000
RATED = Aim("<=", 60, " s")
LINEAR = Aim("<=", 2.2)
BOOK = PriceBook(
    1, 0, "EUR",
    (Price(SKU, Tariff.ALLOCATED, 2_490_000_000, 0), ),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Month:
    """What is known of one GPU: a month of samples with silences, and jobs one after the other."""

    evidence: Evidence
    counted: Increments
    instants_ns: Sequence[int]


def month(index: int) -> Month:
    """A month of a GPU; the same for the same index."""
    chance = random.Random(index)  # noqa: S311 - load, no secret
    instants = np.arange(MONTH.start_ns, MONTH.end_ns + 1, SAMPLE_NS, dtype=np.int64)
    seen = np.ones(len(instants), np.bool_)
    for _ in range(10):
        start = chance.randrange(len(instants))
        seen[start : start + chance.randrange(3, 180)] = False
    instants = instants[seen]
    edges = sorted(chance.randrange(MONTH.start_ns, MONTH.end_ns) for _ in range(2 * CLAIMS))
    claims = tuple(
        Claim(Level.SCHEDULER, start, f"job-{index}-{at}", f"tenant-{chance.randrange(TENANTS)}",
              end_ns=end)
        for at, (start, end) in enumerate(zip(edges[::2], edges[1::2], strict=True))
    )  # fmt: skip
    evidence = Evidence(
        gpu=f"GPU-{index}",
        stays=(Stay(MONTH.start_ns, f"node-{index // 8}"),),
        claims=claims,
        stretches=tuple(stretches("boot", instants)),
        sightings=(Sighting(Witness.SCHEDULER, MONTH.start_ns, MONTH.end_ns),),
    )
    counters = (instants - MONTH.start_ns) // 1_000_000 * 500
    return Month(evidence, increments([Readings("boot", instants, counters)]), instants.tolist())


@click.command()
@click.option("--quick", is_flag=True, help="A smoke run: the figures mean nothing.")
def main(*, quick: bool) -> None:
    """Measure and print ratios."""
    gpus = 4 if quick else 64
    months = [month(index) for index in range(gpus)]
    report = Report("Metering and rating")
    half, _, _ = _bill(months[: gpus // 2])
    whole, metering, charges = _bill(months)
    days = gpus * DAYS
    report.ratio(f"{GPU_DAYS:,} GPU-days metered, rated and closed", whole * GPU_DAYS / days, RATED)
    report.ratio("time of twice as many GPUs / time", whole / half, LINEAR)
    started = time.process_time()
    held = sum(_by_sample(one) for one in months[:4])
    naive = (time.process_time() - started) * gpus / 4
    report.ratio("CPU of a loop over samples, held time only / metering", naive / metering)
    report.figure("measured", f"{days:,} GPU-days, {gpus * CLAIMS:,} claims, {charges:,} charges")
    report.figure("metering", f"{1e3 * metering / days:.2f} ms CPU a GPU-day")
    report.figure("rating and closing", f"{1e3 * (whole - metering) / days:.2f} ms CPU a GPU-day")
    report.figure("loop over samples", f"{1e3 * naive / days:.2f} ms CPU a GPU-day")
    report.figure("held by that loop", f"{held / (4 * DAYS * DAY_NS):.3f} of the time, not exact")
    click.echo(str(report))


def _bill(months: Sequence[Month]) -> tuple[float, float, int]:
    """Processor seconds of everything, and of metering alone; how many charges it came to."""
    started = time.process_time()
    used: list[Usage] = []
    for one in months:
        used += usages(one.evidence, SKU, MONTH.end_ns, one.counted)
    metered = time.process_time()
    charges = rate(used, BOOK, MONTH).charges
    close(charges, MONTH, BOOK.currency)
    return time.process_time() - started, metered - started, len(charges)


def _by_sample(one: Month) -> int:
    """What is often done instead: whoever holds the GPU at a sample held it since the last one."""
    claims = sorted((claim.start_ns, claim.end_ns) for claim in one.evidence.claims)
    held = at = 0
    before = one.instants_ns[0]
    for instant in one.instants_ns[1:]:
        while at < len(claims) and claims[at][1] <= instant:
            at += 1
        if at < len(claims) and claims[at][0] <= instant and instant - before <= GAP_NS:
            held += instant - before
        before = instant
    return held


if __name__ == "__main__":
    main()
