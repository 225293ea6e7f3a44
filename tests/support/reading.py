"""Readings of a source, as a dictionary."""

from __future__ import annotations

from typing import TypeVar

from railscope.exposition import number
from railscope.frame import Frame, FrameOrigin
from railscope.reading import Absent, Reading
from railscope_agent.host import Host
from railscope_agent.sampling.source import Source
from railscope_agent.sampling.source_reader import ReadOutcome, SourceReader

ORIGIN = FrameOrigin("node-1", "run-1", "boot-1")

SourceT = TypeVar("SourceT", bound=Source)
Label = tuple[str, tuple[str, ...]]


def readings(frame: Frame | None) -> dict[Label, Reading]:
    """Return the readings of a frame by metric name and the key of the entity."""
    found = frame.readings() if frame else ()
    return {(metric.name, entity.key): reading for metric, entity, reading in found}


def numbers(frame: Frame | None) -> dict[Label, float]:
    """Return the present readings of a frame in base units."""
    found = frame.readings() if frame else ()
    return {
        (metric.name, entity.key): float(number(metric, reading))
        for metric, entity, reading in found
        if not isinstance(reading, Absent)
    }


def at_period(source: SourceT, seconds: float) -> SourceT:
    """Return a source with a period other than the default."""
    source.period_seconds = seconds
    return source


def read_once(source: Source, host: Host) -> ReadOutcome:
    """Return the outcome of probing and reading a source once."""
    return SourceReader(source, host, ORIGIN).run()
