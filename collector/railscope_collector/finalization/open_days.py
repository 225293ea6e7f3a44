"""Documents of the days that are not over, or not in the ledger yet, by the same function as the days of the ledger.

They follow from the facts in the database, whichever collector stored them, and are computed again where these changed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from railscope_collector.evidence import day_metering, fact_store, file_versions
from railscope_collector.ledger.day_documents import GpuDay
from railscope_collector.metering.metered_day import MeteredDay

NodeDay: TypeAlias = tuple[str, int]


@dataclass(slots=True)
class OpenDays:
    """Documents of open days. Its methods block; they raise UnusableLedgerError."""

    _by_node: dict[NodeDay, list[MeteredDay]] = field(default_factory=dict)
    _versions: dict[NodeDay, tuple[int, int]] = field(default_factory=dict)
    """Version of the facts that each document follows from."""
    _files: file_versions.AdministratorInputs | None = None

    def find_stale(
        self,
        store: fact_store.FactStore,
        files: file_versions.AdministratorInputs,
        days: range,
    ) -> list[tuple[NodeDay, tuple[int, int]]]:
        """Return the days of nodes whose documents are missing or old, with the version of their facts.

        Of the day before, what there is stays until the ledger has it.
        """
        # A file may change any of them.
        if files != self._files:
            self._versions.clear()
            self._files = files
        for known in (self._by_node, self._versions):
            for node_day in [each for each in known if each[1] < days.start - 1]:
                del known[node_day]
        present = store.mark_versions(days)
        all_days = ((node, day) for day in days for node in store.nodes())
        newest = {node_day: present.get(node_day, (0, 0)) for node_day in all_days}
        return [each for each in newest.items() if self._versions.get(each[0]) != each[1]]

    def meter(
        self,
        store: fact_store.FactStore,
        files: file_versions.AdministratorInputs,
        node_day: NodeDay,
        version: tuple[int, int],
    ) -> None:
        """Meter a day of a node."""
        node, day = node_day
        with store.database.transaction(is_snapshot=True) as connection:
            gpus = fact_store.gpus_on(connection, node, day)
            facts = store.read_day(connection, gpus, day)
        self._by_node[node_day] = [
            *map(day_metering.DayMeter.of_facts(day, facts, files).meter, gpus)
        ]
        self._versions[node_day] = version

    def documents(self) -> dict[GpuDay, MeteredDay]:
        """Return all documents: of a GPU that moved, those of its nodes are equal once both are new."""
        return {
            GpuDay(each.gpu, each.day): each
            for of_node in self._by_node.values()
            for each in of_node
        }
