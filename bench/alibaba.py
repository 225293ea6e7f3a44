"""A month of a cluster as load: the instances of Alibaba's disaggregated DLRM trace of 2025.

Fields of each instance: application, number of GPUs (0 or 1), percentage of a NIC, and times of
scheduling and deletion in seconds from the start of the trace. An instance that began before the
trace has no start, and one that outlasts it has no end: they are assumed present from the first or
to the last second of the trace. The trace names no devices, so GPUs are stand-ins, and NICs are
divided into equal parts, one size per NIC.

A part that is a whole number of 840ths is metered exactly: every percentage divisible by 5. Any
other part is no whole number of units; it is reported and not metered. Rounding would bill one
tenant for the share of another, or more than a NIC: three parts of 33.4 % do not fit. Source:
alibaba/clusterdata:cluster-trace-gpu-v2025/README.md.
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

from collector.jobs.job import NS_PER_SECOND, Job, Unplaced
from collector.metering.evidence import Claim, Evidence, Level, Sighting, Stay, Witness
from collector.metering.units import GPU_CAPACITY, Slots

TRACE = (
    Path(__file__).parents[2] / "shared/captures/jobs/alibaba-v2025-disaggregated_DLRM_trace.csv.gz"
)


@dataclass(frozen=True, slots=True, order=True)
class Instance:
    """One instance of an application in [start, end)."""

    start_ns: int
    end_ns: int
    name: str
    application: str
    gpus: int
    card: Fraction


def instances(path: Path = TRACE) -> list[Instance]:
    """Return all instances of the trace with a duration above 0, by start."""
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    last_ns = max(_ns(row["deletion_time"]) or 0 for row in rows)
    found = (
        Instance(
            _ns(row["scheduled_time"]) or 0,
            last_ns if (end := _ns(row["deletion_time"])) is None else end,
            row["instance_sn"],
            row["app_name"],
            int(row["gpu_request"]),
            Fraction(row["rdma_request"]) / 100,
        )
        for row in rows
    )
    return sorted(one for one in found if one.start_ns < one.end_ns)


def _ns(text: str) -> int | None:
    """Convert seconds of the trace, which are rounded floating point, to nanoseconds."""
    return round(Decimal(text) * NS_PER_SECOND) if text else None


def jobs(found: Iterable[Instance]) -> list[Job]:
    """Return the instances with GPUs, as jobs of a list that names no GPUs."""
    return [
        Job(one.start_ns, one.name, one.application, "", one.end_ns,
            unplaced=(Unplaced("", one.gpus, "the trace names none"),))
        for one in found
        if one.gpus
    ]  # fmt: skip


def cards(found: Iterable[Instance]) -> tuple[list[Evidence], list[Instance]]:
    """Return usage evidence of the NICs with claims on parts, and the instances with inexact parts."""
    claims: dict[str, list[Claim]] = defaultdict(list)
    inexact: list[Instance] = []
    pools: dict[int, _Pool] = {}
    for one in sorted(found):
        units = portion(one.card)
        if units is None:
            inexact.append(one)
            continue
        card, slots = pools.setdefault(units, _Pool(units)).take(one.start_ns, one.end_ns)
        claims[card].append(
            Claim(
                Level.SCHEDULER, one.start_ns, one.name, one.application, one.end_ns, one.name,
                compute=slots, memory=slots,
            )
        )  # fmt: skip
    return list(_evidence(claims)), inexact


def _evidence(claims: dict[str, list[Claim]]) -> Iterator[Evidence]:
    for card, own in sorted(claims.items()):
        start = min(claim.start_ns for claim in own)
        end = max(claim.end_ns for claim in own)
        sighting = Sighting(Witness.SCHEDULER, start, end)
        yield Evidence(card, (Stay(start, card, end),), tuple(own), sightings=(sighting,))


def portion(part: Fraction) -> int | None:
    """Return the units of a part of a device; None if not a whole number. Raises ValueError."""
    if not 0 < part <= 1:
        message = f"{part} is no part of a device"
        raise ValueError(message)
    units = part * GPU_CAPACITY
    return int(units) if units.denominator == 1 else None


class _Pool:
    """NICs divided into parts of one size."""

    def __init__(self, units: int) -> None:
        self._units = units
        self._free: list[tuple[int, int]] = []
        self._held: list[tuple[int, int, int]] = []
        self._cards = 0

    def take(self, start_ns: int, end_ns: int) -> tuple[str, Slots]:
        """Return a part that is free in [start, end); starts must arrive in order."""
        while self._held and self._held[0][0] <= start_ns:
            _, card, part = heappop(self._held)
            heappush(self._free, (card, part))
        if not self._free:
            for part in range(GPU_CAPACITY // self._units):
                heappush(self._free, (self._cards, part))
            self._cards += 1
        card, part = heappop(self._free)
        heappush(self._held, (end_ns, card, part))
        low = part * self._units
        return f"card-{self._units}-{card}", Slots(low, low + self._units)
