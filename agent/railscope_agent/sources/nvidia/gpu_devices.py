"""GPUs read by tables of calls and fields, each table at its own period."""

from __future__ import annotations

from collections.abc import Callable

from railscope.catalog.declare import Metric
from railscope.frame import Entity
from railscope_agent.gpus.inventory import GpuDevice, GpuInventory
from railscope_agent.host import Host
from railscope_agent.sampling import probe_result, row_builder, source
from railscope_agent.sources.nvidia import (
    call_plan,
    call_table,
    column_history,
    gpu_settings,
    health,
    value_tables,
)


class GpuSource(source.Source):
    """A table of NVML calls and fields for every GPU, at one period."""

    lane = source.NVML

    def __init__(
        self,
        name: str,
        period_seconds: float,
        table_of: Callable[[Host, int], call_table.CallTable],
        gpus: GpuInventory | None = None,
    ) -> None:
        self.name, self.period_seconds = name, period_seconds
        self._gpus = gpus or GpuInventory()
        self._table_of = table_of
        self._plans = call_plan.CallPlans(self._gpus)
        self._integrals = column_history.Integrals(value_tables.LOAD_INTEGRALS)
        self._totals = [column_history.DeviceTotals(*each) for each in value_tables.TOTALS]
        self._modes = column_history.SettingChanges()
        self._describe: Callable[[Host, GpuDevice], Entity] | None = None

    @classmethod
    def load(cls, gpus: GpuInventory | None = None) -> GpuSource:
        """Values that change every second, and events of added and removed GPUs.

        A GPU counts as observed while its samples are at most 30 s apart: periods stay well below.
        """
        gpu = cls("gpu", 1.0, value_tables.load_table, gpus)
        gpu.min_period_seconds, gpu.longest_period_seconds = 0.02, 10.0
        return gpu

    @classmethod
    def health(cls, gpus: GpuInventory | None = None) -> GpuSource:
        """Actual and potential faults."""
        return cls("gpu_health", 10.0, lambda *_: health.HEALTH_TABLE, gpus)

    @classmethod
    def settings(cls, gpus: GpuInventory | None = None) -> GpuSource:
        """Values that change rarely."""
        gpu = cls("gpu_settings", 60.0, value_tables.settings_table, gpus)
        gpu._describe = gpu_settings.settings_entity
        return gpu

    def probe(self, host: Host) -> probe_result.ProbeResult:
        """Find the GPUs and plan the calls for each. Raises NvmlError if the driver fails."""
        gpus = self._gpus.scan(host)
        columns = probe_result.ColumnBuilder()
        tables = [(g.index, g.entity, self._table_of(host, g.index)) for g in gpus.values()]
        self._plans.add_columns(host, tables, columns, self._needs)
        # Before the integrals add theirs: these are computed here, and need no check.
        self._integrals.add_columns(columns, self.period_seconds)
        for totals in self._totals:
            counted = (entity for _, entity, table in tables if totals.counter in table.metrics)
            totals.add_columns(columns, counted)
        self._modes.add_columns(columns)
        described = [self._describe(host, g) for g in gpus.values()] if self._describe else ()
        return columns.result(*self._gpus.findings, columnless_entities=described)

    def _needs(self, metric: Metric) -> bool:
        """True for a selected metric, one that a selected one is computed from, and a setting whose changes are events."""
        return metric in column_history.WATCHED or self.selects(
            metric, *value_tables.SUMS.get(metric, ())
        )

    def read(self, host: Host, into: row_builder.RowBuilder) -> None:
        """Make every call for every GPU; a failed call affects only its own columns."""
        self._plans.read(host, into)
        # Before integrals and totals, which would retain an implausible value permanently.
        # Before the totals: they would retain an increase that is none.
        into.check_counters()
        self._integrals.read(host, into)
        for totals in self._totals:
            totals.read(into)
        addresses = {gpu.entity.key[0]: gpu.pci_address for gpu in self._gpus.gpus.values()}
        changes = self._modes.changes(host, into, addresses)
        into.events = [*self._gpus.take_events(), *changes]
