"""GPU-days by the facts in a database: which there are, which are not final, and each one metered again.

All calls block, and raise UnusableLedgerError.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from railscope.timestamps import DAY_NS
from railscope_collector.evidence import (
    day_archive,
    day_facts,
    day_metering,
    fact_store,
    fact_tables,
    file_versions,
)
from railscope_collector.ledger.database import Database
from railscope_collector.ledger.day_documents import GpuDay
from railscope_collector.metering.counter_increments import CountedQuantity
from railscope_collector.metering.metered_day import MeteredDay


@dataclass(frozen=True, slots=True)
class UsageFacts:
    """Facts and administrators' files of a database."""

    facts: fact_store.FactStore
    files: file_versions.FileStore

    @classmethod
    def of_database(cls, database: Database) -> Self | None:
        """Return the facts of a database; None if it never contained any."""
        found = cls(fact_store.FactStore(database), file_versions.FileStore(database))
        return found if found.facts.has_any() else None

    def gpu_days(self, days: range) -> set[GpuDay]:
        """Return the GPU-days on which a GPU was in service in a node for some time."""
        with self.facts.database.transaction(is_snapshot=True) as connection:
            files = self.files.read_in(connection)
            places = fact_tables.read_places(connection)
        return {
            GpuDay(gpu, day)
            for gpu, values in places.items()
            for stay in day_metering.find_service(gpu, day_facts.spans_of(values), files)
            for day in range(
                max(days.start, stay.start_ns // DAY_NS),
                min(days.stop, -(-stay.end_ns // DAY_NS)),
            )
        }

    def first_day(self) -> int:
        """Return the first day whose facts are in the database; those of days before were deleted, or never copied."""
        with self.facts.database.transaction() as connection:
            open_day = day_archive.find_first_open_day(connection)
            return max(open_day, fact_store.find_first_day(connection))

    def unfinished(self, days: range) -> set[GpuDay]:
        """Return the GPU-days that facts have changed, and that are not metered yet."""
        marked: dict[int, set[str]] = {}
        for node, day in self.facts.marked_days(days):
            marked.setdefault(day, set()).add(node)
        with self.facts.database.transaction() as connection:
            places = fact_tables.read_places(connection)
        return {
            GpuDay(gpu, day)
            for gpu, values in places.items()
            for day, nodes in marked.items()
            if any(span.value in nodes for span in day_facts.spans_on(values, day))
        }

    def meter(self, day: int) -> Iterator[MeteredDay]:
        """Yield all GPU-days of a day, metered again, node by node."""
        for meter, gpus in self._meters(day):
            yield from map(meter.meter, gpus)

    def recount(self, day: int) -> Iterator[tuple[MeteredDay, dict[CountedQuantity, int]]]:
        """Yield all GPU-days of a day, metered again, with the increments of their counters, node by node."""
        for meter, gpus in self._meters(day):
            yield from map(meter.recount, gpus)

    def _meters(self, day: int) -> Iterator[tuple[day_metering.DayMeter, list[str]]]:
        files, seen = self.files.read_all(), set[str]()
        for node in self.facts.nodes():
            with self.facts.database.transaction() as connection:
                gpus = [g for g in fact_store.gpus_on(connection, node, day) if g not in seen]
                found = self.facts.read_day(connection, gpus, day)
            seen.update(gpus)
            yield day_metering.DayMeter.of_facts(day, found, files), gpus
