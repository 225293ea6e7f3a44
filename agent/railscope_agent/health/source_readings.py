"""Facts about devices from the frames of one source: the readings that rules use, and increases of counters.

The facts of a device are the same objects for as long as nothing has changed: rules whose facts are the same
need no evaluation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from railscope.catalog import declare
from railscope.counter_unwrap import column_picker
from railscope.frame import Entity, Frame, Schema
from railscope.reading import Absent, Reading
from railscope_agent.health import counter_window, health_facts, rule

DeviceName = tuple[str, ...]
"""Kind and key of a device: ("gpu", UUID), ("nic", interface), ("pcie", address)."""
_ReadingKey = tuple[DeviceName, declare.Metric, health_facts.DevicePart]


@dataclass(frozen=True, slots=True)
class RuleMetrics:
    """Metrics that a table of rules uses, and those of them whose increase it uses."""

    used: frozenset[declare.Metric]
    followed: frozenset[declare.Metric]


def metrics_of_rules(rules: Iterable[rule.HealthRule], *more: declare.Metric) -> RuleMetrics:
    """Return the metrics of rules, and `more` metrics."""
    pairs = [(metric, each.compares_readings) for each in rules for metric in each.metrics]
    followed = (
        metric
        for metric, compares in pairs
        if compares and metric.kind is declare.MetricKind.COUNTER
    )
    return RuleMetrics(frozenset({*more, *(metric for metric, _ in pairs)}), frozenset(followed))


class _FrameColumns:
    """Some columns of a schema, and their readings in the last frame."""

    def __init__(self, places: Sequence[int]) -> None:
        self._places = places
        self._pick = column_picker(places)
        self._last: tuple[Sequence[int], Sequence[int]] = (), ()
        self._readings: Sequence[Reading] = ()

    def readings(self, frame: Frame) -> Sequence[Reading]:
        """Return the readings of a frame: the same object as before if they have not changed."""
        last = self._pick(frame.values), self._pick(frame.reasons) if frame.reasons else ()
        if last != self._last:
            self._last = values, reasons = last
            # A counter of more than 63 bits is stored as a negative number.
            is_plain = not any(reasons) and min(values, default=0) >= 0
            self._readings = values if is_plain else tuple(map(frame.reading, self._places))
        return self._readings


class _MetricColumns:
    """The columns of one metric of a device.

    Facts that are the same as those of the frame before are the same objects: rules whose facts are the
    same objects need no evaluation.
    """

    def __init__(self, places: Mapping[health_facts.DevicePart, int], window_places: slice) -> None:
        self.places = places
        self._window_places = window_places
        self.is_followed = window_places.start < window_places.stop
        """False for a metric whose increase no rule uses: it is not in the window of counters."""
        self._columns = _FrameColumns(tuple(places.values()))
        self._values: Sequence[Reading] = ()
        self._readings: dict[health_facts.DevicePart, Reading] = {}
        self._increases: dict[health_facts.DevicePart, health_facts.CounterIncrease] = {}
        self._ages: tuple[bool, ...] | None = None
        """If the counters stand still: whether they are followed for as long as shares and rates need."""

    def readings(self, frame: Frame) -> dict[health_facts.DevicePart, Reading]:
        """Return the readings of a frame by part."""
        values = self._columns.readings(frame)
        if values is not self._values:
            self._values, self._readings = values, dict(zip(self.places, values, strict=True))
        return self._readings

    def increases(
        self, window: counter_window.CounterWindow[_ReadingKey]
    ) -> dict[health_facts.DevicePart, health_facts.CounterIncrease]:
        """Return the increase of each counter up to a frame, without those that were read once.

        While counters stand still, only the time that rates and shares need matters.
        """
        places = self._window_places
        first = window.change_of_place(places.start)
        if first and window.stand_still(places):
            ages = (
                first.over_ns >= health_facts.MINUTE_NS,
                first.recent_ns >= health_facts.MINUTE_NS,
                first.recent_ns >= health_facts.SHORTEST_RATE_NS,
            )
            if ages != self._ages:
                self._ages, self._increases = ages, dict.fromkeys(self.places, first)
            return self._increases
        self._ages = None
        increases = map(window.change_of_place, range(places.start, places.stop))
        pairs = zip(self.places, increases, strict=False)
        self._increases = {part: increase for part, increase in pairs if increase}
        return self._increases


SourceFacts = tuple[
    dict[declare.Metric, dict[health_facts.DevicePart, Reading]],
    dict[declare.Metric, dict[health_facts.DevicePart, health_facts.CounterIncrease]],
]
"""Readings of a device in one frame, and increases of its counters up to that frame."""


@dataclass(slots=True)
class SourceReadings:
    """Readings of one source: its current frame, and the increase of its counters."""

    metrics: RuleMetrics
    frame: Frame | None = None
    columns: dict[DeviceName, dict[declare.Metric, _MetricColumns]] = field(default_factory=dict)
    """Columns that rules use, by device."""
    devices: tuple[Entity, ...] = ()
    """Devices of the current schema, without their parts."""
    _facts: dict[DeviceName, SourceFacts] = field(default_factory=dict)
    """Facts of the current frame by device."""
    _schema: Schema | None = None
    _growing: _FrameColumns = field(default_factory=lambda: _FrameColumns(()))
    """Counters in the window."""
    _window: counter_window.CounterWindow[_ReadingKey] = field(
        default_factory=counter_window.CounterWindow
    )
    _taken_ns: int = -1

    def add(self, frame: Frame | None) -> None:
        """Process the latest frame; None if it is stale."""
        if frame is not self.frame:
            self._facts.clear()
        self.frame = frame
        if frame is None:
            return
        if frame.schema is not self._schema:
            self._plan(frame.schema)
        # A frame is read for several verdicts: its increases count once.
        if frame.timestamp.boot_ns > self._taken_ns:
            self._taken_ns = frame.timestamp.boot_ns
            self._window.add(self._taken_ns, self._growing.readings(frame))

    def facts_of_device(self, device: DeviceName) -> SourceFacts:
        """Return the current readings of a device, and the increases of its counters."""
        if device not in self._facts:
            self._facts[device] = self._read_facts(device)
        return self._facts[device]

    def _read_facts(self, device: DeviceName) -> SourceFacts:
        if self.frame is None:
            return {}, {}
        columns = self.columns.get(device, {})
        increases = {
            metric: increase
            for metric, of in columns.items()
            if of.is_followed and (increase := of.increases(self._window))
        }
        return {metric: of.readings(self.frame) for metric, of in columns.items()}, increases

    def reading_of_device(self, device: DeviceName, metric: declare.Metric) -> tuple[Reading, int]:
        """Return a reading of a device itself, and its time on the boot clock."""
        columns = self.columns.get(device, {}).get(metric) if self.frame else None
        if self.frame and columns and () in columns.places:
            return self.frame.reading(columns.places[()]), self.frame.timestamp.boot_ns
        return Absent.UNSUPPORTED, -1

    def _plan(self, schema: Schema) -> None:
        self._schema, self.columns = schema, {}
        self.devices = tuple(each for each in schema.entities if each.kind.part_of is None)
        parts: dict[tuple[DeviceName, declare.Metric], dict[health_facts.DevicePart, int]] = {}
        for place, (metric, entity) in enumerate(schema.columns):
            if metric in self.metrics.used:
                whole = entity.whole_key
                device = (entity.kind.outermost.name, *whole)
                parts.setdefault((device, metric), {})[entity.key[len(whole) :]] = place
        followed: dict[_ReadingKey, int] = {}
        for (device, metric), places in parts.items():
            first = len(followed)
            if metric in self.metrics.followed:
                followed |= {(device, metric, part): place for part, place in places.items()}
            of_device = self.columns.setdefault(device, {})
            of_device[metric] = _MetricColumns(places, slice(first, len(followed)))
        self._growing = _FrameColumns(tuple(followed.values()))
        self._window.set_keys(tuple(followed))


def merge_source_facts(sources: Iterable[SourceFacts]) -> SourceFacts:
    """Return the facts of all sources of a device."""
    readings: dict[declare.Metric, dict[health_facts.DevicePart, Reading]] = {}
    increases: dict[
        declare.Metric, dict[health_facts.DevicePart, health_facts.CounterIncrease]
    ] = {}
    for of_source, increases_of_source in sources:
        for metric in readings.keys() & of_source.keys():
            of_source = {**of_source, metric: readings[metric] | of_source[metric]}  # noqa: PLW2901 - with those of other sources
        readings |= of_source
        for metric in increases.keys() & increases_of_source.keys():
            merged = increases[metric] | increases_of_source[metric]
            increases_of_source = {**increases_of_source, metric: merged}  # noqa: PLW2901 - as above
        increases |= increases_of_source
    return readings, increases
