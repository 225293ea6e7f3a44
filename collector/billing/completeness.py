"""Completeness of a period in the ledger: GPU-days that are missing or not final."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from collector.billing.rated import Source, days_of
from collector.jobs.lists import Listed, is_listed, uncovered
from collector.ledger.rows import GpuDay
from collector.metering.evidence import ClockDoubt, Evidence
from collector.metering.holders import stays
from collector.metering.instants import DAY_NS, Period, spelled
from collector.metering.measures import Increments, Measure
from collector.metering.timeline import Piece

_SHOWN = 8


class Known(Protocol):
    """Evidence of one GPU: claims and samples, counter increments, model."""

    @property
    def evidence(self) -> Evidence:
        """Input of metering."""
        ...

    @property
    def counted(self) -> Mapping[Measure, Increments]:
        """Counter increments by measure."""
        ...

    @property
    def sku(self) -> str:
        """Model, as prices name it."""
        ...

    @property
    def profiles(self) -> Mapping[str, str]:
        """The MIG profiles of claims that have one."""
        ...

    @property
    def doubts(self) -> Sequence[Piece[ClockDoubt]]:
        """Evidence that was received while the collector's clock was suspect."""
        ...


class EvidenceStore(Protocol):
    """Store of usage evidence."""

    def gpus(self, start_ns: int, end_ns: int) -> list[str]:
        """GPUs with any evidence in [start, end)."""
        ...

    def evidence(self, gpu: str, start_ns: int, end_ns: int) -> Known:
        """Evidence of a GPU for entries and shares of [start, end)."""
        ...


class Lacking(NamedTuple):
    """GPU-days that are missing in the ledger, and those computed before the day was over."""

    missing: tuple[GpuDay, ...]
    provisional: tuple[GpuDay, ...]

    def __str__(self) -> str:
        parts = []
        if self.missing:
            parts.append(f"the ledger lacks {spelled_days(self.missing)}")
        if self.provisional:
            parts.append(f"not final in the ledger: {spelled_days(self.provisional)}")
        return "; ".join(parts)

    @property
    def all(self) -> tuple[GpuDay, ...]:
        """Missing and provisional GPU-days, sorted."""
        return tuple(sorted({*self.missing, *self.provisional}))


def lacking(
    period: Period,
    sources: Mapping[GpuDay, Source],
    evidence: EvidenceStore | None = None,
    imported: Sequence[Listed] = (),
) -> Lacking:
    """GPU-days that are missing or not final in a period.

    A GPU in the ledger is expected on every day from its first one on, unless the evidence places
    it in no node on that day. With evidence, GPUs without any ledger day are found, too. GPUs of
    job lists are expected only on the days of lists that name them; each source of lists is
    expected to have a list for every day from its first one on.
    """
    days = days_of(period)
    first: dict[str, int] = {}
    for key in sources:
        if key.day < days.stop and not is_listed(key.gpu):
            first[key.gpu] = min(key.day, first.get(key.gpu, key.day))
    if evidence is not None:
        # In the order in which evidence is read most efficiently.
        known = evidence.gpus(period.start_ns, period.end_ns)
        first = {gpu: first.get(gpu, days.start) for gpu in known} | first
    missing = [
        GpuDay(gpu, day)
        for gpu, since in first.items()
        for day in range(max(since, days.start), days.stop)
        if GpuDay(gpu, day) not in sources
    ]
    if evidence is not None and missing:
        missing = _present(missing, period, evidence)
    missing += [GpuDay(f"job list {source}", day) for source, day in uncovered(imported, days)]
    early = [
        key
        for key, source in sources.items()
        if key.day in days and source.computed_ns < (key.day + 1) * DAY_NS
    ]
    return Lacking(tuple(sorted(missing)), tuple(sorted(early)))


def _present(missing: Iterable[GpuDay], period: Period, evidence: EvidenceStore) -> list[GpuDay]:
    """Those GPU-days on which the GPU was in a node for some time."""
    found = []
    places: dict[str, list[tuple[int, int]]] = {}
    for key in missing:
        if key.gpu not in places:
            known = evidence.evidence(key.gpu, period.start_ns, period.end_ns)
            places[key.gpu] = [(stay.start_ns, stay.end_ns) for stay in stays(known.evidence)]
        start_ns, end_ns = key.day * DAY_NS, (key.day + 1) * DAY_NS
        if any(start < end_ns and start_ns < end for start, end in places[key.gpu]):
            found.append(key)
    return found


def spelled_days(days: Iterable[GpuDay]) -> str:
    """Format some GPU-days, consecutive days as one range, with the number of those left out."""
    found = sorted(set(days))
    rows: list[tuple[str, int, int]] = []
    for key in found:
        if rows and rows[-1][0] == key.gpu and rows[-1][2] == key.day - 1:
            rows[-1] = (key.gpu, rows[-1][1], key.day)
        else:
            rows.append((key.gpu, key.day, key.day))
    shown = ", ".join(f"{gpu} {_named(first, last)}" for gpu, first, last in rows[:_SHOWN])
    rest = sum(last - first + 1 for _, first, last in rows[_SHOWN:])
    more = f" and {rest:,} more" if rest else ""
    return f"{len(found):,} GPU-{'day' if len(found) == 1 else 'days'} ({shown}{more})"


def _named(first: int, last: int) -> str:
    start, end = (spelled(day * DAY_NS)[:10] for day in (first, last))
    return f"on {start}" if first == last else f"from {start} to {end}"
