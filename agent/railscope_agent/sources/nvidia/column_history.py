"""History of columns between reads: integrals over time, sums of counters, and changes of settings.

Integrals are counters computed by the agent from values that the driver only samples. A sample
covers the time since the previous one, if that is at most `LONGEST_SAMPLE_NS` ago on the clock of
the same boot. Time not covered by a sample is not counted: the counter does not advance. So the
difference of two counter readings is what was observed between them, and never more.

A setting of a GPU that differs from the last read is an event.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from railscope.catalog import declare, entities, gpu, gpu_health as h
from railscope.frame import Entity, Event
from railscope.reading import PRESENT, REASONS, Absent
from railscope.timestamps import SECOND_NS
from railscope_agent.host import Host
from railscope_agent.sampling.counter_total import CounterTotal
from railscope_agent.sampling.fact_readers import nonempty_facts
from railscope_agent.sampling.probe_result import ColumnBuilder
from railscope_agent.sampling.row_builder import RowBuilder

LONGEST_SAMPLE_NS = 30 * SECOND_NS
"""Longest time between two samples that metering counts as observed."""


@dataclass(frozen=True, slots=True)
class IntegratedGauge:
    """A gauge, and the counter of its integral over time.

    A value that the gauge cannot have is an error, not a sample: the counter is a basis of invoices
    and would retain the error permanently.
    """

    gauge: declare.Metric
    counter: declare.Metric


class Integral:
    """Sum of samples multiplied by the time each covers; rounded only on output."""

    def __init__(self, integrated: IntegratedGauge) -> None:
        """Convert from steps of the gauge, times nanoseconds, to steps of the counter."""
        self._step = integrated.gauge.scale / (integrated.counter.scale * SECOND_NS)
        self._sum = 0
        self._boot_id = ""
        self._last_ns: int | None = None

    def take(self, sample: int, boot_id: str, boot_ns: int) -> int:
        """Add a sample, and return the integral up to it."""
        if self._last_ns is not None and boot_id == self._boot_id:
            passed_ns = boot_ns - self._last_ns
            if 0 < passed_ns <= LONGEST_SAMPLE_NS:
                self._sum += sample * passed_ns
        self._boot_id, self._last_ns = boot_id, boot_ns
        # In integers: a float would lose single steps after months, and the counter is a basis of invoices.
        return self._sum * self._step.numerator // self._step.denominator


class Integrals:
    """Integrals of one source, retained as long as the agent runs.

    A source with samples further apart than `LONGEST_SAMPLE_NS` has none: they would not
    advance while the GPU works.
    """

    def __init__(self, gauges: Iterable[IntegratedGauge]) -> None:
        self._definitions = {each.gauge: each for each in gauges}
        self._integrals: dict[tuple[str, tuple[str, ...]], Integral] = {}
        self._columns: list[tuple[int, int, IntegratedGauge, Integral]] = []
        """Columns of a gauge and of its integral in the table."""

    def add_columns(self, columns: ColumnBuilder, period_seconds: float) -> None:
        """Add a column for the integral of each gauge that has one."""
        self._columns = []
        if period_seconds * SECOND_NS > LONGEST_SAMPLE_NS:
            return
        # A copy: columns are added in the loop.
        for position, (metric, entity) in enumerate(list(columns.columns)):
            if definition := self._definitions.get(metric):
                integral = self._integrals.setdefault(
                    (metric.name, entity.key), Integral(definition)
                )
                counter = columns.add(definition.counter, entity)
                self._columns.append((position, counter, definition, integral))

    def read(self, host: Host, into: RowBuilder) -> None:
        """Add the current values of the gauges. An absent gauge makes its integral absent."""
        if not self._columns:
            return
        boot_id, boot_ns = host.boot_id, host.clock.now().boot_ns
        for gauge, counter, integrated, integral in self._columns:
            sample, reason = into.values[gauge], into.reasons[gauge]
            if reason != PRESENT:
                into.put(counter, REASONS[reason])
            elif integrated.gauge.accepts(sample):
                into.put(counter, integral.take(sample, boot_id, boot_ns))
            else:
                into.put(counter, Absent.ERROR)


class DeviceTotals:
    """Sums of a counter over the parts of each device, retained as long as the agent runs."""

    def __init__(
        self, counter: declare.Metric, total: declare.Metric, excluded: Collection[str] = ()
    ) -> None:
        self.counter, self._total, self._excluded = counter, total, excluded
        self._sums: dict[tuple[str, ...], CounterTotal] = {}
        self._columns: list[tuple[int, CounterTotal, dict[str | tuple[str, ...], int]]] = []
        """Columns of each device: the column of its total, the sum, and the columns of the parts by their keys."""

    def add_columns(self, columns: ColumnBuilder, devices: Iterable[Entity]) -> None:
        """Add a column for the total of each device; one without the counter has none, for that reason."""
        parts: dict[tuple[str, ...], dict[str | tuple[str, ...], int]] = {}
        for position, (metric, entity) in enumerate(columns.columns):
            if metric is self.counter and entity.key[-1] not in self._excluded:
                parts.setdefault(entity.whole_key, {})[entity.key] = position
        self._columns = [
            (
                columns.add(self._total, device),
                self._sums.setdefault(device.key, CounterTotal()),
                parts.get(device.key, {}),
            )
            for device in devices
        ]

    def read(self, into: RowBuilder) -> None:
        """Add the totals of the current values; a part without a value keeps its share."""
        for column, total, parts in self._columns:
            for part in parts.values():
                # Before the sum, which would keep the error for as long as the agent runs.
                if not self.counter.accepts(into.values[part]):
                    into.put(part, Absent.ERROR)
            is_supported = parts or total.has_started
            into.put(column, total.update(into, parts) if is_supported else Absent.UNSUPPORTED)


WATCHED: Mapping[declare.Metric, tuple[str, tuple[str, ...]]] = {
    h.GPU_ECC_MODE: ("ecc_mode", ()),
    gpu.GPU_COMPUTE_MODE: ("compute_mode", ()),
    gpu.GPU_POWER_BOUNDS: ("power_limit", ("requested",)),
}
"""Watched settings by metric: the name of the change, and the part of the GPU that it belongs to."""


@dataclass(frozen=True, slots=True)
class _WatchedSetting:
    """A setting's column in the table."""

    column: int
    metric: declare.Metric
    gpu: str
    change: str


class SettingChanges:
    """Comparison of settings between reads, as long as the agent runs."""

    def __init__(self) -> None:
        """Start without known values."""
        self._places: list[_WatchedSetting] = []
        self._last: dict[tuple[str, str], int] = {}

    def add_columns(self, columns: ColumnBuilder) -> None:
        """Find the settings among the columns."""
        self._places = []
        for position, (metric, entity) in enumerate(columns.columns):
            change, part = WATCHED.get(metric, ("", ()))
            if change and entity.key[1:] == part:
                self._places.append(_WatchedSetting(position, metric, entity.key[0], change))

    def changes(self, host: Host, row: RowBuilder, addresses: Mapping[str, str]) -> Iterable[Event]:
        """Events of changed settings; a setting that is absent now is compared when it is present again.

        `addresses` are the PCI addresses of GPUs by UUID.
        """
        for place in self._places:
            if row.reasons[place.column] != PRESENT:
                continue
            value, key = row.values[place.column], (place.gpu, place.change)
            before = self._last.get(key)
            self._last[key] = value
            if before is None or before == value:
                continue
            now = host.clock.now()
            about = Entity(entities.GPU_ADDRESS, (addresses.get(place.gpu, "unknown"),))
            facts = nonempty_facts(
                change=place.change,
                gpu=place.gpu,
                before=_format_setting(place.metric, before),
                after=_format_setting(place.metric, value),
            )
            yield Event(h.GPU_CHANGE_EVENT, about, now.wall_ns, now.boot_ns, facts)


def _format_setting(metric: declare.Metric, stored: int) -> str:
    """A setting as its state name, or in base units."""
    return metric.states.get(stored) or f"{float(stored * metric.scale):g}"
