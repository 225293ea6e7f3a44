"""History of a device of a node: its frames of a period, read from the frame log on demand.

A curve names metrics of the catalog in order of preference: the first one with a value is shown. Counters become rates between two readings of one run of the agent, as in the diagnosis. A value that a frame states as
absent, a missing frame, and a period that is not stored are gaps with their reasons; nothing is interpolated.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np

from railscope import device_names, envelopes, reading, wire
from railscope.timestamps import HOUR_NS, SECOND_NS
from railscope_collector.console.curves import (
    NIC_FIGURES,
    CurveGap,
    CurveSource,
    Floats,
    HistoryCurve,
    NamedCurve,
    NamedFigure,
    TimeRange,
    Times,
    make_figure,
)
from railscope_collector.fleet.sheets import Codes, Integers, rows_at
from railscope_collector.framelog.record_index import FoundRecords, RecordIndex

_NODE_FIGURES = (
    make_figure("node_cpu", "Processors in use", "processors", "node", {
        "cpu_busy": ("Busy", "cpu_seconds_total{user,nice,system,irq,softirq,steal}"),
        "cpu_waiting": ("Waiting for disks", "cpu_seconds_total{iowait}"),
    }),
    make_figure("node_memory", "Memory of the node", "bytes", "node", {
        "memory_available": ("Available", "memory_available_bytes"),
        "memory_cached": ("Cached files", "memory_cached_bytes"),
    }),
    make_figure("node_gpus", "Utilization of the GPUs", "ratio", "gpu", {
        "gpu_mean": ("Mean", "gpu_utilization_ratio"),
        "gpu_min": ("Lowest", "gpu_utilization_ratio"),
        "gpu_max": ("Highest", "gpu_utilization_ratio"),
    }, gpu_mean="mean", gpu_min="min"),
    make_figure("node_gpu_power", "Power of all GPUs", "watts", "gpu", {
        "gpu_power": ("Power", "gpu_power_watts gpu_power_average_watts"),
    }),
    make_figure("node_gpu_temperature", "Temperature of the GPUs", "celsius", "gpu", {
        "gpu_temperature_max": ("Highest", "gpu_temperature_celsius"),
        "gpu_temperature_min": ("Lowest", "gpu_temperature_celsius"),
    }, gpu_temperature_max="max", gpu_temperature_min="min"),
)  # fmt: skip
MAX_RAIL_CURVES = 8
"""Rails of a node with curves of their own, in colors that differ."""


def node_figures(rails: Sequence[int]) -> Sequence[NamedFigure]:
    """Return the figures of a node whose NICs are on these rails."""
    sent, received = NIC_FIGURES[0].curves
    by_rail = [
        NamedFigure(
            f"node_{curve.name}",
            f"NIC traffic by rail: {curve.label.lower()}",
            "bytes per second",
            tuple(
                replace(
                    curve,
                    name=f"{curve.name}_{rail}",
                    label=f"Rail {rail}",
                    device=f"rail {rail}",
                )
                for rail in rails[:MAX_RAIL_CURVES]
            ),
        )
        for curve in (sent, received)
    ]
    return (*_NODE_FIGURES, *(by_rail if rails else ()), *(NIC_FIGURES[1:2] if rails else ()))


_OF_GROUPS = {
    "gpu_mean", "gpu_power", "gpu_temperature_max", "nic_sent", "nic_received", "paused", "pausing", "marked", "cnp_sent",
}  # fmt: skip
GROUP_FIGURES = tuple(
    NamedFigure(f"group_{curve.name}", f"{figure.title}: {curve.label}", figure.unit, (curve,))
    for figure in (*NIC_FIGURES, *_NODE_FIGURES)
    for curve in figure.curves
    if curve.name in _OF_GROUPS
)
"""Figures of the devices of a rail or a job on one node, with a curve each."""
MAX_PERIOD_NS = 6 * HOUR_NS
MAX_BYTES = 1 << 30
"""Above any decompressed envelope that was accepted."""
MAX_RECORDS = 6000
"""Envelopes that one page reads; of a node that sends every 5 seconds, those of eight hours, and of eight nodes those of one."""
MAX_LATE_NS = HOUR_NS // 6
"""Delay of an envelope up to which its frames are found."""
MAX_STEP_NS = 60 * SECOND_NS
"""Time between two readings of a counter up to which its rate is known."""
MIN_GAP_NS, MIN_LAST_GAP_NS = 3 * SECOND_NS, 30 * SECOND_NS
"""Shortest times without a frame that are gaps, within a period and at its end."""
_NO_FRAME, _FIRST_OF_RUN, _DECREASE, _LONG_STEP, NO_SERVER_VALUE = range(101, 106)
REASONS: Mapping[int, str] = {
    **{code: f"not read: {absent.label}" for code, absent in reading.REASONS.items()},
    _NO_FRAME: "this collector received no frame",
    _FIRST_OF_RUN: "the agent was started again",
    _DECREASE: "the counter was reset",
    _LONG_STEP: "too long between two readings",
    NO_SERVER_VALUE: "the server with history has no value",
}
NOT_STORED = "not in the frame log"
NOT_REPORTED = "the node does not report it"
NO_SCHEMA = "the schema of these frames is no longer stored"
TOO_MANY = "more envelopes than one page reads: choose a shorter period"
DeviceKeys: TypeAlias = Mapping[str, frozenset[device_names.DeviceKey]]
"""Keys by the device that curves name; that of the node itself is empty."""
_TrackKey: TypeAlias = tuple[str, int, tuple[str, ...]]
"""Curve, number of its source, key of the entity."""


class PairDevices(NamedTuple):
    """A GPU and the NICs on its rail: their names, and the keys of their entities."""

    gpu: device_names.Names
    nics: tuple[device_names.Names, ...]
    rail: int | None
    keys: DeviceKeys
    labels: Mapping[str, Mapping[str, Sequence[str]]]
    """Values of the labels of their metrics, by the device that curves name."""


def nic_labels(nics: Iterable[device_names.Names]) -> Mapping[str, Sequence[str]]:
    """Return the values of the labels of metrics of NICs."""
    shown = list(nics)
    return {name: [nic[name] for nic in shown if nic[name]] for name in ("interface", "device")}


class NodeCurves(NamedTuple):
    """Curves by name, and the receipt from which on frames are stored; 0 if there are none."""

    curves: dict[str, HistoryCurve]
    oldest_ns: int


class _UsedColumn(NamedTuple):
    key: _TrackKey
    scale: float
    is_counter: bool


@dataclass(frozen=True, slots=True)
class _UsedColumns:
    """The columns of a schema that curves use."""

    width: int
    positions: Integers
    columns: Sequence[_UsedColumn]


@dataclass(slots=True)
class _Track:
    """Readings of one entity for one source of a curve, batch by batch."""

    times_ns: list[Times] = field(default_factory=list)
    boot_ns: list[Times] = field(default_factory=list)
    values: list[Floats] = field(default_factory=list)
    codes: list[Codes] = field(default_factory=list)
    runs: list[Integers] = field(default_factory=list)


@dataclass(slots=True)
class NodeHistory:
    """Reads curves of nodes from the frame log. Methods block."""

    records: RecordIndex
    find_schema: Callable[[bytes], wire.WireSchema]
    """Returns a stored schema; raises OSError."""

    @classmethod
    def from_directory(
        cls, directory: Path, find_schema: Callable[[bytes], wire.WireSchema]
    ) -> NodeHistory:
        """Return the history in a frame log."""
        return cls(RecordIndex(directory), find_schema)

    def read(
        self,
        node: str,
        keys: DeviceKeys,
        figures: Iterable[NamedFigure],
        period: TimeRange,
        max_records: int = MAX_RECORDS,
    ) -> NodeCurves:
        """Return the curves of figures of a GPU and its NIC. Blocking; raises OSError."""
        # The first rate of the period needs a reading before it.
        from_ns, to_ns = period.from_ns - MAX_STEP_NS, period.to_ns + MAX_LATE_NS
        found = self.records.find(node, from_ns, to_ns, max_records)
        named = [(curve, figure.unit) for figure in figures for curve in figure.curves]
        reader = _TrackReader(self.find_schema, keys, [curve for curve, _ in named])
        for record in found.records:
            opened = envelopes.open_body(record.body, MAX_BYTES).decode_envelope()
            reader.add(opened, record.received_wall_ns, record.sent)
        outside = _reason_outside(found, period, has_unknown_schema=reader.has_unknown_schema)
        curves = {}
        for curve, unit in named:
            times_ns, values, codes = reader.curve(curve)
            inside = (times_ns >= period.from_ns) & (times_ns <= period.to_ns)
            points = times_ns[inside], values[inside], codes[inside]
            times_ns, values, gaps = with_gaps(*points, period, outside)
            curves[curve.name] = HistoryCurve(
                curve.name, curve.label, unit, times_ns, values, tuple(gaps)
            )
        return NodeCurves(curves, found.oldest_ns)


def _reason_outside(
    found: FoundRecords, period: TimeRange, *, has_unknown_schema: bool
) -> Sequence[CurveGap]:
    """Return the period of which the log has nothing, if any, and the gap of a curve without a reading."""
    gaps = []
    if not found.oldest_ns or found.oldest_ns > period.from_ns:
        until_ns = min(found.oldest_ns or period.to_ns, period.to_ns)
        gaps.append(CurveGap(period.from_ns, until_ns, NOT_STORED))
    reason = NOT_REPORTED if found.records else REASONS[_NO_FRAME]
    reason = TOO_MANY if found.is_truncated else NO_SCHEMA if has_unknown_schema else reason
    return [*gaps, CurveGap(period.from_ns, period.to_ns, reason)]


class _TrackReader:
    """Collects the readings of the columns that curves use."""

    def __init__(
        self,
        find_schema: Callable[[bytes], wire.WireSchema],
        keys: DeviceKeys,
        curves: Iterable[NamedCurve],
    ) -> None:
        self.has_unknown_schema = False
        self._find_schema, self._keys = find_schema, keys
        self._sources: dict[str, list[tuple[NamedCurve, int, CurveSource]]] = defaultdict(list)
        for curve in curves:
            for number, source in enumerate(curve.sources):
                self._sources[source.metric].append((curve, number, source))
        self._used: dict[bytes, _UsedColumns] = {}
        self._tracks: dict[str, dict[_TrackKey, _Track]] = defaultdict(dict)
        self._runs: dict[str, int] = {}

    def add(self, envelope: wire.Envelope, received_ns: int, sent: wire.SentAt) -> None:
        """Add the frames of an envelope."""
        run = self._runs.setdefault(envelope.run, len(self._runs))
        is_same_boot = envelope.boot_id == sent.boot_id != ""
        for batch in envelope.batches:
            used = self._used.get(batch.schema) or self._find_used(batch.schema)
            if not len(used.positions):
                continue
            sent_ns = sent.boot_ns if is_same_boot else sent.wall_ns
            boot_ns = np.array(batch.boot_ns, np.int64)
            clock_ns = boot_ns if is_same_boot else np.array(batch.wall_ns, np.int64)
            times_ns = received_ns - np.maximum(sent_ns - clock_ns, 0)
            runs = np.full(batch.rows, run)
            rows = rows_at(batch, range(batch.rows), used.positions, used.width)
            codes = _codes_of(batch, used)
            for number, column in enumerate(used.columns):
                track = self._tracks[column.key[0]].setdefault(column.key, _Track())
                track.times_ns.append(times_ns)
                track.boot_ns.append(boot_ns)
                track.values.append((rows[:, number] * column.scale).astype(np.float64))
                track.codes.append(codes[:, number])
                track.runs.append(runs)

    def _find_used(self, digest: bytes) -> _UsedColumns:
        try:
            schema = self._find_schema(digest)
        except OSError:
            self.has_unknown_schema = True
            used = _UsedColumns(0, np.zeros(0, np.int64), ())
        else:
            found = list(self._columns_of(schema))
            width = sum(len(group.entities) for group in schema.groups)
            positions = np.array([position for position, _ in found], np.int64)
            used = _UsedColumns(width, positions, [column for _, column in found])
        self._used[digest] = used
        return used

    def _columns_of(self, schema: wire.WireSchema) -> Iterator[tuple[int, _UsedColumn]]:
        start = 0
        for group in schema.groups:
            scale = group.scale[0] / group.scale[1]
            for curve, number, source in self._sources.get(group.metric, ()):
                for position, member in enumerate(group.entities, start):
                    entity = schema.entities[member]
                    device = device_names.device_key(entity.kind, entity.key)
                    part = "/".join(wire.part_of_key(entity) if device else entity.key)
                    if device in self._keys[curve.device] and source.selects(part):
                        key = curve.name, number, entity.key
                        yield position, _UsedColumn(key, scale, source.is_counter)
            start += len(group.entities)

    def curve(self, curve: NamedCurve) -> tuple[Times, Floats, Codes]:
        """Return times, values and absence reasons of a curve by its first source with a value."""
        best = np.zeros(0, np.int64), np.zeros(0), np.zeros(0, np.uint8)
        tracks = self._tracks.get(curve.name, {})
        for number, source in enumerate(curve.sources):
            parts = [
                _readings(track, is_counter=source.is_counter)
                for key, track in tracks.items()
                if key[1] == number
            ]
            if parts:
                found = _combined(parts, curve.combine)
                if np.isfinite(found[1]).any():
                    return found
                best = best if len(best[0]) else found
        return best


def _codes_of(batch: wire.Batch, used: _UsedColumns) -> Codes:
    """Return the absence reasons of the used columns, shape (rows, columns)."""
    if not batch.reasons:
        return np.zeros((batch.rows, len(used.positions)), np.uint8)
    codes = np.frombuffer(batch.reasons, np.uint8).reshape(-1, used.width)[:, used.positions]
    return np.broadcast_to(codes, (batch.rows, len(used.positions)))


def _readings(track: _Track, *, is_counter: bool) -> tuple[Times, Floats, Codes]:
    """Return the readings of an entity in order of time, each once; those of a counter as rates."""
    times_ns, order = np.unique(np.concatenate(track.times_ns), return_index=True)
    codes = np.concatenate(track.codes)[order]
    # A value that is not due is no gap: its source is read less often.
    is_due = codes != reading.Absent.NOT_DUE.value
    times_ns, codes, order = times_ns[is_due], codes[is_due], order[is_due]
    values = np.concatenate(track.values)[order]
    values = np.where(codes == reading.PRESENT, values, np.nan)
    if not is_counter:
        return times_ns, values, codes
    # By the boot clock: receipts of envelopes are delayed by different times.
    steps_ns = np.diff(np.concatenate(track.boot_ns)[order])
    runs, increases = np.concatenate(track.runs)[order], np.diff(values)
    codes, before = codes[1:].copy(), codes[:-1]
    for applies, code in (
        (before != reading.PRESENT, before),
        ((np.diff(runs) != 0) | (steps_ns <= 0), _FIRST_OF_RUN),
        (steps_ns > MAX_STEP_NS, _LONG_STEP),
        (increases < 0, _DECREASE),
    ):
        codes = np.where((codes == reading.PRESENT) & applies, code, codes).astype(np.uint8)
    steps_ns = np.maximum(steps_ns, 1)
    rates = np.where(codes == reading.PRESENT, increases * SECOND_NS / steps_ns, np.nan)
    return times_ns[1:], rates, codes


def _combined(
    parts: Sequence[tuple[Times, Floats, Codes]], combine: str
) -> tuple[Times, Floats, Codes]:
    """Return the sums, means or extremes of the known values of parts, by time."""
    times_ns = np.unique(np.concatenate([part[0] for part in parts]))
    values = np.full(len(times_ns), np.nan)
    codes, counts = np.zeros(len(times_ns), np.uint8), np.zeros(len(times_ns))
    for part_times_ns, part_values, part_codes in parts:
        places = np.searchsorted(times_ns, part_times_ns)
        codes[places] = np.maximum(codes[places], part_codes)
        before = values[places]
        counts[places] += np.isfinite(part_values)
        both = _COMBINED[combine](before, part_values)
        values[places] = np.where(
            np.isnan(before), part_values, np.where(np.isnan(part_values), before, both)
        )
    if combine == "mean":
        values /= np.maximum(counts, 1)
    return times_ns, values, codes


_COMBINED: Mapping[str, np.ufunc] = {
    "sum": np.add,
    "mean": np.add,
    "max": np.fmax,
    "min": np.fmin,
}


def with_gaps(  # noqa: PLR0913, PLR0917 - columns of the readings
    times_ns: Times,
    values: Floats,
    codes: Codes,
    period: TimeRange,
    outside: Sequence[CurveGap],
    missing: int = _NO_FRAME,
) -> tuple[Times, Floats, list[CurveGap]]:
    """Return a curve with an unknown value in each gap, and the gaps."""
    *before, without_reading = outside
    if not len(times_ns):
        from_ns = before[0].to_ns if before else period.from_ns
        rest = CurveGap(from_ns, period.to_ns, without_reading.reason)
        gaps = [rest] if from_ns < period.to_ns else []
        return times_ns, values, [*before, *gaps]
    steps_ns = np.diff(times_ns)
    usual_ns = int(np.median(steps_ns)) if len(steps_ns) else SECOND_NS
    # A single missing frame is no gap.
    limit_ns = max(5 * usual_ns // 2, MIN_GAP_NS)
    late = np.flatnonzero(steps_ns > limit_ns)
    # An unknown value where the next frame was due: no line is drawn through the gap.
    missing_ns = times_ns[late] + usual_ns
    times_ns = np.insert(times_ns, late + 1, missing_ns)
    values = np.insert(values, late + 1, np.nan)
    codes = np.insert(codes, late + 1, missing)
    end_reason = TOO_MANY if without_reading.reason == TOO_MANY else REASONS[missing]
    gaps = []
    if times_ns[0] - period.from_ns > limit_ns:
        from_ns = min(before[0].to_ns, int(times_ns[0])) if before else period.from_ns
        gaps = [*before, CurveGap(from_ns, int(times_ns[0]), REASONS[missing])]
        gaps = gaps[: 1 if before and times_ns[0] - from_ns <= limit_ns else 2]
    is_unknown = np.isnan(values)
    begins = np.flatnonzero(is_unknown & ~np.append([False], is_unknown[:-1]))
    ends = np.flatnonzero(is_unknown & ~np.append(is_unknown[1:], [False]))
    for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
        from_ns = int(times_ns[max(begin - 1, 0)])
        to_ns = int(times_ns[min(end + 1, len(times_ns) - 1)])
        gaps.append(CurveGap(from_ns, to_ns, REASONS.get(int(codes[begin]), "unknown reason")))
    if period.to_ns - times_ns[-1] > max(limit_ns, MIN_LAST_GAP_NS):
        gaps.append(CurveGap(int(times_ns[-1]), period.to_ns, end_reason))
    return times_ns, values, gaps
