"""Ledger days of GPUs, metered from the evidence. All calls block, and raise LedgerError."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import structlog

from collector.account.amounts import OpenTotals, Totals, counted_in, of_shares
from collector.account.tally import Sums, tally
from collector.evidence.assemble import Files
from collector.evidence.store import EvidenceStore
from collector.fleet.metered_columns import OF_THE_AGENT
from collector.ledger.metered import Computed, MeteredGpu
from collector.ledger.rows import GpuDay
from collector.ledger.store import Ledger, Written
from collector.ledger.tiling import DAY_NS, DayTiling, TilingError
from collector.metering.evidence import ClockDoubt
from collector.metering.measures import Measure, Reset

log = structlog.get_logger(__name__)

ENGINE_VERSION = "1"
GPUS_AT_ONCE = 64
Homes = Mapping[str, Mapping[str, int]]
"""For every GPU, the nodes it was in and since when."""


class Door(NamedTuple):
    """The open database: its ledger and its evidence."""

    ledger: Ledger
    store: EvidenceStore


class Job(NamedTuple):
    """Days of a GPU that are to be written."""

    gpu: str
    days: tuple[int, ...]


class Settlement(NamedTuple):
    """A GPU-day as the ledger has it, and as it was when this collector last read it."""

    gpu: str
    day: int
    revision: int
    new: Sums
    old: Sums
    new_amounts: Totals
    old_amounts: Totals
    new_suspect: tuple[ClockDoubt, ...] = ()
    old_suspect: tuple[ClockDoubt, ...] = ()


class Count(NamedTuple):
    """Counters of a GPU that are to be added up, from after a timestamp on."""

    gpu: str
    after_ns: int


class Counted(NamedTuple):
    """Amounts counted up to a timestamp."""

    gpu: str
    upto_ns: int
    days: OpenTotals
    resets: list[tuple[Measure, Reset]]
    """Resets of counters that the device keeps."""


def groups(jobs: Sequence[Any], homes: Homes) -> Iterator[list[Any]]:
    """Group jobs of GPUs that share nodes, so that a node's evidence is read once."""
    together: dict[tuple[str, ...], list[Any]] = {}
    for job in jobs:
        together.setdefault(tuple(sorted(homes[job.gpu])), []).append(job)
    waiting: list[Any] = []
    for some in together.values():
        waiting += some
        if len(waiting) >= GPUS_AT_ONCE:
            yield waiting
            waiting = []
    if waiting:
        yield waiting


def write_days(
    door: Door, homes: Homes, jobs: Sequence[Job], counted: Mapping[GpuDay, int], now_ns: int
) -> list[Settlement]:
    """Meter days of GPUs and write them; `counted` has the revisions that were last read."""
    ledger, store = door
    files = store.files()
    start_ns = min(job.days[0] for job in jobs) * DAY_NS
    end_ns = (max(job.days[-1] for job in jobs) + 1) * DAY_NS
    gpus = [job.gpu for job in jobs]
    loaded = store.load(gpus, {gpu: set(homes[gpu]) for gpu in gpus}, start_ns, end_ns)
    computed = Computed(ENGINE_VERSION, now_ns)
    tilings: list[DayTiling] = []
    for job in jobs:
        known = loaded.known(job.gpu, files)
        metered = MeteredGpu.of(
            known.evidence, known.counted, known.sku, known.profiles, doubts=known.doubts
        )
        tilings += [metered.day(day, computed) for day in job.days]
    known_days = {GpuDay(tiling.gpu, tiling.day) for tiling in tilings} & counted.keys()
    numbers = {day: counted[day] for day in known_days}
    before = {(r.tiling.gpu, r.tiling.day): r.tiling for r in ledger.revisions(numbers)}
    return [
        Settlement(
            tiling.gpu,
            tiling.day,
            written.revision,
            tally(tiling.entries),
            tally(old.entries) if old else {},
            of_shares(tiling.shares),
            of_shares(old.shares) if old else {},
            tiling.clock_suspect,
            old.clock_suspect if old else (),
        )
        for tiling, written in _written(ledger, tilings)
        for old in [before.get((tiling.gpu, tiling.day))]
    ]


def _written(ledger: Ledger, tilings: Sequence[DayTiling]) -> Iterator[tuple[DayTiling, Written]]:
    """Write all; if one is rejected, write each separately, so that one GPU does not block the others."""
    try:
        yield from zip(tilings, ledger.write_days(tilings), strict=True)
    except TilingError:
        for tiling in tilings:
            try:
                yield tiling, ledger.write(tiling)
            except TilingError as error:
                log.error("day_not_written", gpu=tiling.gpu, day=tiling.day, problem=str(error))


def open_amounts(
    store: EvidenceStore, homes: Homes, files: Files, jobs: Sequence[Count]
) -> list[Counted]:
    """Return the increments of counters after a timestamp, up to the newest readings in the database."""
    gpus = [job.gpu for job in jobs]
    start_ns = min(job.after_ns for job in jobs)
    nodes_of = {gpu: set(homes[gpu]) for gpu in gpus}
    ends = [store.newest_end_ns(node) for node in {n for gpu in gpus for n in homes[gpu]}]
    end_ns = max((end for end in ends if end is not None), default=start_ns)
    loaded = store.load(gpus, nodes_of, start_ns, max(start_ns, end_ns))
    found = []
    for job in jobs:
        known = loaded.known(job.gpu, files)
        instants = [int(i.ends_ns[-1]) for i in known.counted.values() if len(i.ends_ns)]
        upto_ns = max(instants, default=job.after_ns)
        resets = [
            (measure, reset)
            for measure, increments in known.counted.items()
            if measure not in OF_THE_AGENT
            for reset in increments.resets()
            if reset.first_ns > job.after_ns
        ]
        days = counted_in(known, job.after_ns, upto_ns)
        found.append(Counted(job.gpu, upto_ns, days, resets))
    return found
