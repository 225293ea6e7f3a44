"""Baselines: the usual values of signals over the last minutes, of each device's own past."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from railscope_collector.diagnosis.quantities import DeviceKind
from railscope_collector.diagnosis.signals import SignalTable
from railscope_collector.diagnosis.slot_sums import Floats, PackedValues, compress, decompress

_Flags: TypeAlias = NDArray[np.bool_]

_MAX_MINUTES = 30
_ROW_TYPE: np.dtype[np.float32] = np.dtype("<f4")
_MIN_VARIATION_MINUTES = 4
_NEEDED_MINUTES = MappingProxyType({None: 2, 0.0: 2, 1.0: 2, 0.5: 3})
"""Minutes of the past from which on a quantile is known; None is the usual value."""
GAP_MINUTES = 2
"""Minutes before the present that a baseline leaves out: a fault is not part of its own baseline."""

_JOB = "job"
"""Name of the row of the jobs to which the values of a minute belong."""
_SEVERAL_JOBS = -1.0
_NO_JOBS: NDArray[np.float32] = np.zeros(0, np.float32)

WORK_SIGNALS = frozenset({"receive", "send", "utilization", "activity", "power", "nvlink"})
WORK_QUANTILE = 0.7
"""Quantile of the signals of work: it is that of a working job, although checkpoints and pauses lower a part of them."""

BASELINE_SIGNALS: Mapping[DeviceKind, tuple[str, ...]] = MappingProxyType({
    DeviceKind.NIC: ("receive", "send", "pausing_share", "paused_share", "marked_share", "marks", "bit_errors", "naks", "out_of_order", "adaptive_retransmissions"),
    DeviceKind.GPU: ("utilization", "activity", "power", "clock", "nvlink"),
    DeviceKind.NODE: ("cpu", "cpu_pressure", "io_pressure"),
    DeviceKind.MOUNT: ("read_latency", "write_latency", "reads", "writes"),
})  # fmt: skip
"""Signals that are compared with their own past."""


class Baselines:
    """Usual values of signals over the last minutes, of each device's own past: medians, or a quantile for work.

    One row of 32-bit floats per minute and signal, compressed, as most are zero or unknown; values of devices whose job has
    an open incident, or did not run for the whole minute, are left out. Devices that are held keep the values that they had.
    The past of a device consists of minutes with its present job only.
    """

    def __init__(self) -> None:
        self._rows: dict[tuple[DeviceKind, str], deque[PackedValues]] = defaultdict(
            lambda: deque(maxlen=_MAX_MINUTES)
        )
        self._usual: dict[tuple[DeviceKind, str, int, float], Floats] = {}
        self._minutes: dict[tuple[DeviceKind, str, int], Floats] = {}
        self._jobs: dict[DeviceKind, NDArray[np.float32]] = {}
        self._minute_jobs: dict[DeviceKind, NDArray[np.float32]] = {}
        self._is_other: dict[DeviceKind, _Flags] = {}

    def set_jobs(self, jobs: Mapping[DeviceKind, NDArray[np.float32]]) -> None:
        """Set the numbers of the jobs to which the past of each device belongs now."""
        for kind, numbers in jobs.items():
            before = self._jobs.get(kind, _NO_JOBS)
            if not np.array_equal(numbers, before):
                self._clear_results()
            of_minute = np.array(numbers)
            earlier = self._minute_jobs.get(kind, of_minute)
            of_minute[: len(earlier)][earlier != of_minute[: len(earlier)]] = _SEVERAL_JOBS
            self._jobs[kind], self._minute_jobs[kind] = numbers, of_minute

    def add_minute(
        self,
        table_of: Callable[[DeviceKind], SignalTable],
        excluded: Mapping[DeviceKind, _Flags],
        held_devices: Mapping[DeviceKind, _Flags],
        comparisons: Mapping[str, Floats] = MappingProxyType({}),
    ) -> None:
        """Add the last minute of the devices that are not excluded.

        Of held devices, which must be excluded too, the minute that would leave is added again: however long a fault lasts,
        it is compared with the time before it. `comparisons` are differences of nodes from their peers, by name.
        """
        for kind, names in BASELINE_SIGNALS.items():
            table = table_of(kind)
            rows = {name: table[name] for name in names}
            rows |= comparisons if kind == DeviceKind.NODE else {}
            minutes = {name: np.where(excluded[kind], np.nan, row) for name, row in rows.items()}
            if kind in self._minute_jobs:
                minutes[_JOB] = self._minute_jobs[kind]
            for name, values in minutes.items():
                minute = values.astype(_ROW_TYPE)
                past = self._rows[kind, name]
                if len(past) == _MAX_MINUTES and held_devices[kind].any():
                    oldest = decompress(past[0], _ROW_TYPE)
                    positions = np.flatnonzero(held_devices[kind][: len(oldest)])
                    minute[positions] = oldest[positions]
                past.append(compress(minute))
        self._minute_jobs.clear()
        self._clear_results()

    def drop_gap(self, devices: Mapping[DeviceKind, _Flags]) -> None:
        """Drop the minutes of the gap of devices: a fault of them was concluded now, and had begun."""
        for (kind, name), rows in self._rows.items():
            if name == _JOB or not devices[kind].any():
                continue
            for number in range(1, min(GAP_MINUTES, len(rows)) + 1):
                row = decompress(rows[-number], _ROW_TYPE).copy()
                row[devices[kind][: len(row)]] = np.nan
                rows[-number] = compress(row)
        self._clear_results()

    def _clear_results(self) -> None:
        self._usual.clear()
        self._minutes.clear()
        self._is_other.clear()

    def rows(self) -> dict[str, list[bytes]]:
        """Return all rows as 32-bit floats, by kind and signal."""
        return {
            f"{kind}/{name}": [decompress(row, _ROW_TYPE).tobytes() for row in rows]
            for (kind, name), rows in self._rows.items()
        }

    def restore(self, rows: Mapping[str, Iterable[bytes]]) -> None:
        """Continue with the rows of before a restart."""
        kinds = {str(kind): kind for kind in DeviceKind}
        for key, found in rows.items():
            kind, _, name = key.partition("/")
            if kind in kinds:
                self._rows[kinds[kind], name].extend(
                    compress(np.frombuffer(row[: len(row) // 4 * 4], _ROW_TYPE)) for row in found
                )
        self._clear_results()

    def usual(
        self, kind: DeviceKind, name: str, count: int, quantile: float | None = None
    ) -> Floats:
        """Return the baseline of a signal for `count` devices; NaN for devices without a past.

        A quantile other than the usual one shows how much the signal varied, after more minutes; the lowest and the highest
        value, 0 and 1, do after few, the median after three.
        """
        needed = _NEEDED_MINUTES.get(quantile, _MIN_VARIATION_MINUTES)
        if quantile is None:
            quantile = WORK_QUANTILE if name in WORK_SIGNALS else 0.5
        key = kind, name, needed, quantile
        if key not in self._usual or len(self._usual[key]) != count:
            padded = self._read_minutes(kind, name, count)
            counts = (~np.isnan(padded)).sum(axis=0)
            values = np.full(count, np.nan)
            enough = np.flatnonzero(counts >= needed)
            places = np.rint(quantile * (counts[enough] - 1)).astype(np.intp)
            values[enough] = np.sort(padded, axis=0)[places, enough]  # NaN sorts last
            self._usual[key] = values
        return self._usual[key]

    def minutes(self, kind: DeviceKind, name: str, count: int) -> Floats:
        """Return the values of a signal in the minutes of the past, shape (minutes, devices), for `count` devices."""
        key = kind, name, count
        if key not in self._minutes:
            self._minutes[key] = self._read_minutes(kind, name, count)
        return self._minutes[key]

    def _read_minutes(self, kind: DeviceKind, name: str, count: int) -> Floats:
        padded = self._read_rows(kind, name, count)
        if kind in self._jobs:
            if kind not in self._is_other:
                earlier_jobs = self._read_rows(kind, _JOB, len(self._jobs[kind]))
                is_other = ~np.isnan(earlier_jobs) & (earlier_jobs != self._jobs[kind])
                self._is_other[kind] = is_other
            is_other = self._is_other[kind][:, :count]
            minutes = min(len(padded), len(is_other))
            newest = padded[len(padded) - minutes :, : is_other.shape[1]]
            newest[is_other[len(is_other) - minutes :]] = np.nan
        return padded

    def _read_rows(self, kind: DeviceKind, name: str, count: int) -> Floats:
        rows = list(self._rows[kind, name])[:-GAP_MINUTES]
        padded = np.full((len(rows), count), np.nan)
        for number, packed in enumerate(rows):
            row = decompress(packed, _ROW_TYPE)[:count]
            padded[number, : len(row)] = row
        return padded
