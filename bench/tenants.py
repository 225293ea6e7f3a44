"""`python -m bench.tenants`: a month of claims of a whole cluster, through metering alone."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import click

from bench import alibaba
from bench.metering import DAYS, FIRST_DAY, MONTH
from bench.report import Aim, Report, mebibytes
from collector.jobs.ledger import Terms, days, with_stand_ins
from collector.jobs.reconcile import compare
from collector.metering.evidence import Claim, Evidence, Level, Sighting, Stay, Witness
from collector.metering.instants import DAY_NS
from collector.metering.tiling import GpuTimeline
from collector.metering.units import GPU_CAPACITY, Tiling

GPUS_A_NODE = 8
CLAIMS = 60
TENANTS = 200
SMALL = 10
LINEAR = Aim("<=", 1.3)
EXACT = Aim("<=", 0)
_PAGE_BYTES = 4096


def gpu(index: int) -> Evidence:
    """Return a month of a GPU with consecutive jobs; deterministic by index."""
    chance = random.Random(index)  # noqa: S311 - load, no secret
    edges = sorted(chance.randrange(MONTH.start_ns, MONTH.end_ns) for _ in range(2 * CLAIMS))
    return Evidence(
        gpu=f"GPU-{index}",
        stays=(Stay(MONTH.start_ns, f"node-{index // GPUS_A_NODE}"),),
        claims=tuple(
            Claim(Level.SCHEDULER, start, f"slurm/{index}/{at}/{start}",
                  f"tenant-{chance.randrange(TENANTS)}", end_ns=end, workload=f"{index}-{at}")
            for at, (start, end) in enumerate(zip(edges[::2], edges[1::2], strict=True))
        ),
        sightings=(Sighting(Witness.SCHEDULER, MONTH.start_ns, MONTH.end_ns),),
    )  # fmt: skip


@click.command()
@click.option("--nodes", default=1000, show_default=True, help="Number of nodes, with 8 GPUs each.")
@click.option("--quick", is_flag=True, help="Smoke run; its figures are not meaningful.")
def main(nodes: int, *, quick: bool) -> None:
    """Measure and print ratios."""
    nodes = 10 if quick else nodes
    report = Report("Tenants of a cluster")
    before = _resident()
    known = [gpu(index) for index in range(nodes * GPUS_A_NODE)]
    held = _resident() - before
    claims = sum(len(one.claims) for one in known)
    few = known[: len(known) // SMALL]
    small = _tiled(few)[0] / len(few)
    seconds, entries, found = _tiled(known)
    report.ratio("CPU a GPU, all / a tenth of them", seconds / len(known) / small, LINEAR)
    wrong = _wrong(found, known)
    report.ratio("tenants whose time is not the sum of their claims", wrong, EXACT)
    report.figure("metered", f"{len(known):,} GPUs, {DAYS} days, {claims:,} claims")
    report.figure("processor time", f"{seconds:.1f} s, {1e6 * seconds / claims:.0f} us a claim")
    report.figure("entries of the days", f"{entries:,}")
    report.figure("claims in memory", f"{mebibytes(held)}, {held / claims:.0f} B a claim")
    report.figure("resident when all is tiled", mebibytes(_resident()))
    _real(report)
    click.echo(str(report))


def _tiled(known: Iterable[Evidence]) -> tuple[float, int, Counter[str]]:
    """Return processor seconds, entries, and capacity times time by tenant; empty means no tenant."""
    found: Counter[str] = Counter()
    count = 0
    started = time.process_time()
    for one in known:
        timeline = GpuTimeline.of(one)
        for day in range(FIRST_DAY, FIRST_DAY + DAYS):
            entries = timeline.entries(day * DAY_NS, (day + 1) * DAY_NS)
            count += len(entries)
            for entry in entries:
                if entry.tiling is Tiling.COMPUTE:
                    found[entry.tenant] += int(entry.quantity)
    return time.process_time() - started, count, found


def _wrong(found: Counter[str], known: Sequence[Evidence]) -> int:
    """Return the number of tenants that differ from a plain sum; time without a tenant is the remainder."""
    expected: Counter[str] = Counter()
    for one in known:
        for claim in one.claims:
            expected[claim.tenant] += GPU_CAPACITY * (claim.end_ns - claim.start_ns)
    whole = GPU_CAPACITY * (MONTH.end_ns - MONTH.start_ns) * len(known)
    expected[""] = whole - expected.total()
    return sum(found[tenant] != expected[tenant] for tenant in expected | found)


def _real(report: Report) -> None:
    """Meter the month of a real cluster, if the captures are present beside the repository."""
    if not alibaba.TRACE.exists():
        report.figure("a real cluster's month", "its trace is not here")
        return
    started = time.process_time()
    found = alibaba.instances()
    listed = alibaba.jobs(found)
    jobs = with_stand_ins(listed)
    gpu_days = held = 0
    ledger = []
    for day in days(jobs, Terms("", 0)):
        gpu_days += 1
        ledger += [e for e in day.entries if e.tenant and e.tiling is Tiling.COMPUTE]
    held = sum(int(entry.quantity) for entry in ledger)
    seconds = time.process_time() - started
    comparison = compare(ledger, listed, 0)
    compared = time.process_time() - started - seconds
    expected = sum(GPU_CAPACITY * len(job.gpus) * job.duration_ns for job in jobs)
    what = "a real month, held - sum of its instances, GPU-ns"
    report.ratio(what, abs(held - expected) / GPU_CAPACITY, EXACT)
    differing = len(comparison.differences) + sum(bool(t.difference) for t in comparison.tenants)
    report.ratio("jobs and tenants of it that differ from its list (R3)", differing, EXACT)
    report.figure("R3 of a real month", f"{comparison.jobs:,} jobs, {compared:.1f} s")
    cards, inexact = alibaba.cards(found)
    report.figure("a real month", f"{len(jobs):,} jobs, {gpu_days:,} GPU-days, {seconds:.1f} s")
    told = f"{len(found) - len(inexact):,} exact on {len(cards):,} cards, {len(inexact):,} told"
    report.figure("its parts of network cards", told)


def _resident() -> int:
    """Return the resident pages of proc_pid_statm(5), in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES


if __name__ == "__main__":
    main()
