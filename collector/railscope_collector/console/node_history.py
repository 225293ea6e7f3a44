"""History of a device of a node: its frames of a period, read from the frame log on demand.

A curve names metrics of the catalog in order of preference: the first one with a value is shown. Counters become rates between two readings of one run of the agent, as in the diagnosis. A value that a frame states as
absent, a missing frame, and a period that is not stored are gaps with their reasons; nothing is interpolated.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import numpy as np

from railscope import device_names, reading, wire
from railscope.catalog import METRICS
from railscope.timestamps import HOUR_NS, SECOND_NS, utc_text
from railscope_collector.console.curves import CurveGap, Floats, HistoryCurve, TimeRange, Times
from railscope_collector.console.device_figures import CurveSource, NamedCurve, NamedFigure
from railscope_collector.console.stored_frames import FoundFrames, StoredBatch, StoredFrames
from railscope_collector.fleet.shape_columns import columns_of
from railscope_collector.fleet.sheets import Codes, Integers

SOURCE = "the frame log of the collector"
MAX_PERIOD_NS = 6 * HOUR_NS
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


class NodeCurves(NamedTuple):
    """Curves by name, and the receipt from which on frames are stored; 0 if there are none."""

    curves: dict[str, HistoryCurve]
    oldest_ns: int

    def missing(self, from_ns: int) -> str:
        """Return what the frame log lacks of a period that begins at a time; empty for nothing."""
        if 0 < self.oldest_ns <= from_ns:
            return ""
        if not self.oldest_ns:
            return "no frame of this period is stored"
        return f"stored since {utc_text(self.oldest_ns)}"


class _UsedColumn(NamedTuple):
    """A column that curves use."""

    key: _TrackKey
    scale: float


@dataclass(slots=True)
class _Track:
    """Readings of one entity for one source of a curve, batch by batch."""

    times_ns: list[Times] = field(default_factory=list)
    read_ns: list[Times] = field(default_factory=list)
    """When the device was read, on the boot clock of the node."""
    values: list[Floats] = field(default_factory=list)
    codes: list[Codes] = field(default_factory=list)
    runs: list[Integers] = field(default_factory=list)


def read_curves(
    frames: StoredFrames,
    node: str,
    keys: DeviceKeys,
    figures: Iterable[NamedFigure],
    period: TimeRange,
) -> NodeCurves:
    """Return the curves of figures of devices of a node. Blocking; raises OSError."""
    # The first rate of the period needs a reading before it.
    before = period._replace(from_ns=period.from_ns - MAX_STEP_NS)
    named = [(curve, figure.unit) for figure in figures for curve in figure.curves]
    columns = _CurveColumns.of(keys, [curve for curve, _ in named])
    found = frames.read(node, before, columns.choose)
    tracks = _collect_tracks(found.batches)
    outside = _reason_outside(found, period)
    curves = {}
    for curve, unit in named:
        times_ns, values, codes = _first_known(tracks[curve.name], curve)
        inside = (times_ns >= period.from_ns) & (times_ns <= period.to_ns)
        points = times_ns[inside], values[inside], codes[inside]
        times_ns, values, gaps = with_gaps(*points, period, outside)
        curves[curve.name] = HistoryCurve(
            curve.name, curve.label, unit, times_ns, values, tuple(gaps)
        )
    return NodeCurves(curves, found.records.oldest_ns)


def _reason_outside(frames: FoundFrames[_UsedColumn], period: TimeRange) -> Sequence[CurveGap]:
    """Return the period of which the log has nothing, if any, and the gap of a curve without a reading."""
    gaps, found = [], frames.records
    if not found.oldest_ns or found.oldest_ns > period.from_ns:
        until_ns = min(found.oldest_ns or period.to_ns, period.to_ns)
        gaps.append(CurveGap(period.from_ns, until_ns, NOT_STORED))
    reason = NOT_REPORTED if found.records else REASONS[_NO_FRAME]
    reason = TOO_MANY if found.is_truncated else NO_SCHEMA if frames.has_unknown_schema else reason
    return [*gaps, CurveGap(period.from_ns, period.to_ns, reason)]


class _CurveColumns(NamedTuple):
    """The columns of any schema that curves use, by metric."""

    keys: DeviceKeys
    sources: Mapping[str, Sequence[tuple[NamedCurve, int, CurveSource]]]

    @classmethod
    def of(cls, keys: DeviceKeys, curves: Iterable[NamedCurve]) -> _CurveColumns:
        sources = defaultdict(list)
        for curve in curves:
            for number, source in enumerate(curve.sources):
                sources[source.metric].append((curve, number, source))
        return cls(keys, sources)

    def choose(self, schema: wire.WireSchema) -> Iterator[tuple[int, _UsedColumn]]:
        """Yield the columns of a schema."""
        for position, group, member in columns_of(schema):
            entity, scale = schema.entities[member], group.scale[0] / group.scale[1]
            for curve, number, source in self.sources.get(group.metric, ()):
                device = device_names.device_key(entity.kind, entity.key)
                part = "/".join(wire.part_of_key(entity) if device else entity.key)
                if device in self.keys[curve.device] and source.selects(part):
                    yield position, _UsedColumn((curve.name, number, entity.key), scale)


def _collect_tracks(
    batches: Iterable[StoredBatch[_UsedColumn]],
) -> Mapping[str, dict[_TrackKey, _Track]]:
    """Return the readings of each column, by name of the curve."""
    tracks: dict[str, dict[_TrackKey, _Track]] = defaultdict(dict)
    runs: dict[str, int] = {}
    for batch in batches:
        run = np.full(len(batch.times_ns), runs.setdefault(batch.run, len(runs)))
        for number, column in enumerate(batch.columns):
            track = tracks[column.key[0]].setdefault(column.key, _Track())
            track.times_ns.append(batch.times_ns)
            track.read_ns.append(batch.boot_ns + batch.delays_ns[:, number])
            track.values.append((batch.values[:, number] * column.scale).astype(np.float64))
            track.codes.append(batch.codes[:, number])
            track.runs.append(run)
    return tracks


def _first_known(
    tracks: Mapping[_TrackKey, _Track], curve: NamedCurve
) -> tuple[Times, Floats, Codes]:
    """Return times, values and absence reasons of a curve by its first source with a value, or by the largest of its sources."""
    known: list[tuple[Times, Floats, Codes]] = []
    unknown: list[tuple[Times, Floats, Codes]] = []
    for number, source in enumerate(curve.sources):
        parts = [_readings(track, source) for key, track in tracks.items() if key[1] == number]
        if parts:
            found = _combined(parts, curve.combine)
            (known if np.isfinite(found[1]).any() else unknown).append(found)
    if curve.takes_largest and known:
        return _combined(known, "max")
    none = np.zeros(0, np.int64), np.zeros(0), np.zeros(0, np.uint8)
    return next(iter((*known, *unknown)), none)


def _readings(track: _Track, source: CurveSource) -> tuple[Times, Floats, Codes]:
    """Return the readings of an entity in order of time, each once; those of a counter as rates."""
    times_ns, order = np.unique(np.concatenate(track.times_ns), return_index=True)
    codes = np.concatenate(track.codes)[order]
    # A value that is not due is no gap: its source is read less often.
    is_due = codes != reading.Absent.NOT_DUE.value
    times_ns, codes, order = times_ns[is_due], codes[is_due], order[is_due]
    values = np.concatenate(track.values)[order]
    values = np.where(codes == reading.PRESENT, values, np.nan)
    if not source.is_counter:
        return times_ns, values, codes
    # By the boot clock: receipts of envelopes are delayed by different times.
    steps_ns = np.diff(np.concatenate(track.read_ns)[order])
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
    rates = np.minimum(increases * SECOND_NS / steps_ns, METRICS[source.metric].max_per_second)
    return times_ns[1:], np.where(codes == reading.PRESENT, rates, np.nan), codes


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
