"""Step period of each job, from what its NICs send second by second.

A synchronous job exchanges once in each step, so that the traffic of its NICs has the period of its steps. The period is the
first strong maximum of the autocorrelation, refined by its multiples. It is unknown if samples are more than
2.5 seconds apart, and for steps shorter than three samples.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from railscope import api
from railscope_collector.diagnosis.slot_sums import Floats, Positions

WINDOW_SECONDS = 120
MAX_LATE_SECONDS = 100
"""Time after the window in which it may still be evaluated."""
_GROWTH_FACTOR = 1.125
MIN_PERIOD_SECONDS, MAX_PERIOD_SECONDS = 3, 40
MAX_SAMPLE_SECONDS = 2.5
MIN_KNOWN_SHARE = 0.8
MIN_CORRELATION = 0.35
FIRST_PEAK_SHARE = 0.7
"""Correlation of the first maximum, relative to the largest one: multiples of a period correlate as well."""
MIN_HALF_CORRELATION = 0.2
"""Correlation from which on half of a period is the period: a short one between two bins correlates less than twice it."""
MIN_VARIATION = 0.1
"""Deviation relative to the mean, below which traffic is even."""


class TrafficTraces:
    """Bytes per second that each NIC sends, in bins of one second, for the last `bins` seconds."""

    def __init__(self, bins: int) -> None:
        self._bins = bins
        self._newest = -1
        self._rates = np.full((bins, 8), np.nan, np.float32)

    def add(
        self,
        times: Positions,
        seconds: Floats,
        devices: Positions,
        amounts: Floats,
        valid: NDArray[np.bool_],
    ) -> None:
        """Add increases between two samples, shape (nodes, devices, samples), as is `valid`.

        `devices` has the shape (nodes, devices); `times`, the bins of the ends, and `seconds` that of (nodes, samples).
        """
        if devices.size and devices.max() >= self._rates.shape[1]:
            more = int(devices.max() * _GROWTH_FACTOR) + 1 - self._rates.shape[1]
            self._rates = np.pad(self._rates, ((0, 0), (0, more)), constant_values=np.nan)
        is_used = (seconds > 0) & (seconds <= MAX_SAMPLE_SECONDS)
        if not is_used.any():
            return
        self._begin(int(times[is_used].max()))
        is_used &= (times > self._newest - self._bins) & (times >= 0)
        rates = np.where(valid, amounts / np.where(is_used, seconds, 1.0)[:, None], np.nan)
        for back in (1, 0):  # a sample of two seconds fills two bins
            is_covered = is_used & (times >= back) & (np.round(seconds) >= 2 * back)
            nodes, samples = np.nonzero(is_covered)
            bins = (times[nodes, samples] - back) % self._bins
            self._rates[bins[:, None], devices[nodes]] = rates[nodes, :, samples]

    def _begin(self, newest: int) -> None:
        """Clear the bins up to a new one."""
        if newest > self._newest:
            first = max(self._newest + 1, newest - self._bins + 1)
            self._rates[np.arange(first, newest + 1) % self._bins] = np.nan
            self._newest = newest

    def mean(self, devices: Positions, end: int, count: int) -> Floats:
        """Return the mean of devices in `count` bins before `end`; NaN where none is known."""
        bins = np.arange(end - count, end)
        held_bins = bins[(bins >= 0) & (bins > self._newest - self._bins) & (bins <= self._newest)]
        known_devices = devices[devices < self._rates.shape[1]]
        if not len(held_bins) or not len(known_devices):
            return np.full(count, np.nan)
        values = self._rates[np.ix_(held_bins % self._bins, known_devices)].astype(np.float64)
        counts = (~np.isnan(values)).sum(axis=1)
        found = np.full(count, np.nan)
        found[held_bins - bins[0]] = np.divide(
            np.nansum(values, axis=1), counts, out=np.full(len(held_bins), np.nan), where=counts > 0
        )
        return found


def find_step(rates: Floats) -> api.JobStep | None:
    """Return the steps that rates per second show; None if they show none."""
    known_values = rates[~np.isnan(rates)]
    if len(known_values) < max(MIN_KNOWN_SHARE * len(rates), 3 * MIN_PERIOD_SECONDS):
        return None
    mean, deviation = known_values.mean(), known_values.std()
    if not deviation > MIN_VARIATION * mean:
        return None
    series = np.where(np.isnan(rates), 0.0, rates - mean)
    correlation = _autocorrelation(series)
    period = _first_peak(correlation)
    if period is None:
        return None
    period = _refined(correlation, period)
    half = period / 2
    at_half = max(correlation[math.floor(half)], correlation[math.ceil(half)])
    if (
        half >= MIN_PERIOD_SECONDS
        and at_half > MIN_HALF_CORRELATION
        and _jitter(series, half) < half / 4
    ):
        period = half
    high = float(np.quantile(known_values, 0.95))
    return api.JobStep(
        round(period, 2), round(_jitter(series, period), 2), round(float(min(mean / high, 1)), 3)
    )


def _autocorrelation(series: Floats) -> Floats:
    """Return the correlation with itself for each shift, each relative to the number of its products."""
    size = len(series)
    spectrum = np.fft.rfft(series, 2 * size)
    products = np.fft.irfft(np.abs(spectrum) ** 2)[:size] / np.arange(size, 0, -1)
    found: Floats = products / products[0]
    return found


def _first_peak(correlation: Floats) -> float | None:
    last = min(MAX_PERIOD_SECONDS, len(correlation) // 3)
    shifts = np.arange(MIN_PERIOD_SECONDS, last + 1)
    at = correlation[shifts]
    is_peak = (at >= correlation[shifts - 1]) & (at >= correlation[shifts + 1])
    is_peak &= at >= MIN_CORRELATION
    if not is_peak.any():
        return None
    strong = is_peak & (at >= FIRST_PEAK_SHARE * at[is_peak].max())
    return _vertex(correlation, int(shifts[np.argmax(strong)]))


def _vertex(correlation: Floats, shift: int) -> float:
    """Return the position of the maximum of a parabola through three values."""
    before, at, after = correlation[shift - 1 : shift + 2]
    curvature = before - 2 * at + after
    return shift + (float(0.5 * (before - after) / curvature) if curvature < 0 else 0.0)


def _refined(correlation: Floats, period: float) -> float:
    """Return a period from the maxima at its multiples: an error of a shift is divided by the multiple."""
    for multiple in range(2, math.ceil(len(correlation) / 2 / period)):
        center = round(multiple * period)
        if center >= len(correlation) // 2:  # the period has grown
            break
        best = max(range(center - 1, center + 2), key=correlation.__getitem__)
        is_peak = correlation[best] >= max(correlation[best - 1], correlation[best + 1])
        if not is_peak or correlation[best] < MIN_CORRELATION:
            break
        period = _vertex(correlation, best) / multiple
    return period


def _jitter(series: Floats, period: float) -> float:
    """Return the deviation of the distances between the begins of exchanges from the period."""
    above = series > 0
    begins = np.flatnonzero(~above[:-1] & above[1:])
    steps = series[begins + 1] - series[begins]
    times = begins + -series[begins] / np.where(steps > 0, steps, 1.0)
    distances = np.diff(times)
    single = distances[np.abs(distances - period) < period / 2]
    return float(np.sqrt(np.mean((single - period) ** 2))) if len(single) > 1 else 0.0
