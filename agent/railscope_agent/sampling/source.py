"""Interface of a source, and base classes of sources.

A source has no timer, no logger and no configuration beyond its constructor. `probe` determines the
columns and may be called again at any time; `read` fills the columns of the last probe; `close`
releases what they opened. All run on the thread of the source's lane, never two at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from railscope.catalog.declare import Metric
from railscope_agent.config import SourcePeriods
from railscope_agent.host import FileGroup, Host
from railscope_agent.sampling.probe_result import ProbeResult
from railscope_agent.sampling.row_builder import RowBuilder

LONGEST_PERIOD_SECONDS = 120.0


class Source(Protocol):
    """Reads one part of the node.

    A source may define `longest_period_seconds`, the longest period at which it may be read however
    expensive it is: for events in a bounded queue, or counters that wrap. The default is
    `LONGEST_PERIOD_SECONDS`. It never lowers a configured period.

    A source that computes its readings from the results of others defines `stage`: it is read after the
    sources of lower stages of its lane that are due at the same time. The default is 0.
    """

    name: str
    family: str
    period_seconds: float

    def probe(self, host: Host) -> ProbeResult:
        """Return the columns that exist. Raises OSError or NvmlError if that cannot be determined."""
        ...

    def read(self, host: Host, into: RowBuilder) -> None:
        """Fill the columns of the last probe. Raises OSError or NvmlError if nothing can be read."""
        ...

    def close(self) -> None:
        """Release all resources. A later probe acquires them again."""
        ...


SYSTEM, SLOW = "system", "slow"
_LANES = {
    "nvml": "nvml",
    "gpu_verdict": "nvml",  # after the readings that it judges
    "nic_burst": "bursts",
    **dict.fromkeys(
        ("network", "host", "kernel", "pcie", "neighbour", "agent", "nic_settings"), SYSTEM
    ),
}


def lane_of(source: Source) -> str:
    """Return the name of the lane of a source."""
    return _LANES.get(source.family, SLOW)


def longest_period_seconds(source: Source) -> float:
    """Return the longest period at which a source may be read."""
    longest: float = getattr(source, "longest_period_seconds", LONGEST_PERIOD_SECONDS)
    return max(longest, source.period_seconds)


def selected_metrics(source: Source) -> frozenset[str]:
    """Return the names of the metrics that frames of a source are limited to; none if they have all."""
    selection: frozenset[str] = getattr(source, "selection", frozenset())
    return selection


def source_stage(source: Source) -> int:
    """Return the stage of a source."""
    stage: int = getattr(source, "stage", 0)
    return stage


_DEFAULT_PERIODS = SourcePeriods()


class PeriodicSource:
    """Base class of sources: the period is the default of the setting with their name, unless it is set."""

    name: str
    selection: frozenset[str] = frozenset()
    """Names of the metrics that are read; all if empty."""
    _period_seconds = 0.0

    def selects(self, *metrics: Metric) -> bool:
        """True if one of these metrics is read."""
        return not self.selection or any(metric.name in self.selection for metric in metrics)

    @property
    def period_seconds(self) -> float:
        """Seconds between two reads."""
        period: float = self._period_seconds or getattr(_DEFAULT_PERIODS, self.name)
        return period

    @period_seconds.setter
    def period_seconds(self, seconds: float) -> None:
        self._period_seconds = seconds


class SourceWithoutResources(PeriodicSource):
    """Base class of sources without open files: nothing to release."""

    def close(self) -> None:
        """Do nothing."""


class SourceWithFiles(PeriodicSource):
    """Base class of sources that hold files open between reads, in groups."""

    _files: tuple[FileGroup, ...] = ()

    def _keep(self, host: Host, *groups: Sequence[str]) -> None:
        """Open groups of files in place of those of the last probe."""
        self.close()
        self._files = tuple(host.open_file_group(paths) for paths in groups)

    def close(self) -> None:
        """Close the open files."""
        for files in self._files:
            files.close()
        self._files = ()


class CounterFileSource(SourceWithFiles):
    """Base class of sources with one group of files that contain one integer each."""

    def read(self, host: Host, into: RowBuilder) -> None:  # noqa: ARG002 - its files are held open
        """Read every file."""
        for files in self._files:
            files.read_into(into.values, into.reasons, 0)
