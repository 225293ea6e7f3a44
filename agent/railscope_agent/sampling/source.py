"""Base classes of sources.

A source states in its class what the agent needs to know of it: its name, its period, its lane. It has no timer, no
logger and no configuration beyond its constructor. `probe` determines the columns and may be called again at any time;
`read` fills the columns of the last probe; `close` releases what they opened. All run on the thread of the source's
lane, never two at once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

from railscope.catalog.declare import Metric
from railscope_agent.host import FileGroup, Host
from railscope_agent.sampling.probe_result import ProbeResult
from railscope_agent.sampling.row_builder import RowBuilder

LONGEST_PERIOD_SECONDS = 120.0
NVML, BURSTS, SYSTEM, SLOW = "nvml", "bursts", "system", "slow"
"""Lanes: calls to the NVIDIA driver, windows of bursts, what the kernel answers at once, and all else."""


class Source(ABC):
    """Reads one part of the node."""

    name: str
    period_seconds: float
    """Seconds between two reads, unless the settings have another period for the name."""
    min_period_seconds = 0.1
    """Shortest period that the settings may have."""
    longest_period_seconds = LONGEST_PERIOD_SECONDS
    """Longest period, unless the settings have a longer one, however expensive the source is: for events in a bounded
    queue, or counters that wrap.
    """
    lane = SLOW
    stage = 0
    """A source that computes its readings from the results of others is read after those of lower stages."""
    denied_remedy = "run the agent as root, or accept that these are missing"
    """Remedy in `railscope agent check` for readings that are denied."""
    is_shipped = True
    """False if its frames are only shown on the metrics endpoint."""
    selection: frozenset[str] = frozenset()
    """Names of the metrics that are read; all if empty."""

    @abstractmethod
    def probe(self, host: Host) -> ProbeResult:
        """Return the columns that exist. Raises OSError or NvmlError if that cannot be determined."""

    @abstractmethod
    def read(self, host: Host, into: RowBuilder) -> None:
        """Fill the columns of the last probe. Raises OSError or NvmlError if nothing can be read."""

    def remember(self, directory: Path, boot_id: str) -> None:  # noqa: B027 - most sources have nothing to store
        """Load the state that must survive a restart of the agent from a directory, and store it there from now on."""

    def close(self) -> None:  # noqa: B027 - most sources hold nothing open
        """Release all resources. A later probe acquires them again."""

    def selects(self, *metrics: Metric) -> bool:
        """True if one of these metrics is read."""
        return not self.selection or any(metric.name in self.selection for metric in metrics)


class SourceWithFiles(Source):
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
