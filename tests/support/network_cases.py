"""The case directories about the network: their metrics at both ends, and their contents."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path

from support.capture_index import index_of
from support.cases import (
    CASES,
    CaseSources,
    capture_of,
    expected_metrics,
    names,
    page,
    read_case,
)
from support.metric_samples import Sample, samples

from railscope.capture import Capture, Json
from railscope.catalog import METRICS

SECONDS, ONSET = 60, 30
AFFECTED, OTHER = "ens4f0np0", "ens3f0np0"
DRIFTED = ["ens1f0np0", "ens2f0np0", "ens3f0np0", "ens4f0np0"]
"""Rails that lose pause, congestion notification, trust and MTU."""


def gpus_by_case() -> dict[str, int]:
    """Return the number of GPUs of each simulated case about the network."""
    simulations = {name: read_case(CASES / name).simulation for name in names()}
    return {
        name: simulation.gpus
        for name, simulation in simulations.items()
        if simulation is not None and simulation.sources is CaseSources.NETWORK
    }


@cache
def end(case: str) -> dict[Sample, float]:
    """Return the metrics at the end, as stored here."""
    return samples(expected_metrics(CASES / case))


@cache
def start(case: str) -> dict[Sample, float]:
    """Return the metrics of the first moment."""
    capture = capture_of(case)
    first = Capture(replace(capture.about, duration_ns=0), capture.moments[:1])
    with tempfile.TemporaryDirectory() as directory:
        first.write(Path(directory) / case)
        return samples(page(Path(directory) / case))


def series(shown: dict[Sample, float], name: str, **labels: str) -> dict[frozenset[str], float]:
    """Return the series of a metric that have these labels, by all their labels."""
    wanted = set(labels.items())
    return {
        frozenset(f"{key}={text}" for key, text in has): value
        for (metric, has), value in shown.items()
        if metric == name and has >= wanted
    }


def value(case: str, name: str, **labels: str) -> float:
    """Return the value at the end of the one series with these labels."""
    found = series(end(case), name, **labels)
    if METRICS[name].sparse and not found:
        return 0.0
    (present,) = found.values()
    return present


def total_growth(case: str, name: str, **labels: str) -> float:
    """Return the total growth of all series with these labels."""
    before, after = (series(shown(case), name, **labels) for shown in (start, end))
    if not METRICS[name].sparse:
        assert before
        assert set(before) == set(after)
    return sum(after.values()) - sum(before.values())


def final_content(case: str, section: str, key: str) -> Json:
    """Return the content of the capture at its end."""
    return index_of(capture_of(case)).result_at(section, key, SECONDS * 10**9)
