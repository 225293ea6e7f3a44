"""Sources of the collectives of jobs; their modules (1.4 MiB) are loaded when a job records its collectives on this node."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from railscope.catalog import collectives as c, entities
from railscope.reading import Absent, reason_of
from railscope_agent.collective_settings import CollectiveSettings
from railscope_agent.gpus import inventory, process_lists
from railscope_agent.host import JOB_FILES, Host
from railscope_agent.sampling import probe_result, row_builder
from railscope_agent.sampling.source import Source
from railscope_agent.sources.source_bases import ReportedReadings, ReportingSource
from railscope_agent.sources.tenancy import ClaimSource

_OF_RANKS = {
    entities.COLLECTIVE_RANK: (c.RANK_STATE, c.RANK_WAIT, c.RANK_ENQUEUED, c.RANK_COMPLETED)
}
_OF_COMMUNICATORS = {
    entities.COMMUNICATOR_CALL: (
        c.COMMUNICATOR_CALLS,
        c.COMMUNICATOR_BYTES,
        c.COMMUNICATOR_SECONDS,
        c.COMMUNICATOR_BUS_BYTES,
    ),
    entities.COMMUNICATOR_RANK: (c.RANK_COMPARED, c.RANK_LAST, c.RANK_SECONDS, c.RANK_LATE),
}
_OF_NCCL_RANKS = {entities.NCCL_RANK: (c.NCCL_STATE, c.NCCL_LAUNCHED, c.NCCL_LAG, c.NCCL_UNCHANGED)}


@dataclass
class CollectiveSources:
    """The sources, created together at the first use."""

    settings: CollectiveSettings
    gpus: inventory.GpuInventory
    lists: process_lists.ProcessLists
    claims: ClaimSource
    ranks: ReportedReadings = field(default_factory=ReportedReadings)
    communicators: ReportedReadings = field(default_factory=ReportedReadings)
    nccl_ranks: ReportedReadings = field(default_factory=ReportedReadings)

    @cached_property
    def by_name(self) -> Mapping[str, Source]:
        """Sources that compute, by name; the first access loads their modules."""
        from railscope_agent.sources import (  # noqa: PLC0415 - their memory
            flight_recorder,
            nccl_inspector,
            nccl_ras,
            rank_places,
        )

        # One for all: they share a lane.
        places = rank_places.RankPlaces(self.gpus, self.lists, self.claims.claims_of_process)
        sources: tuple[Source, ...] = (
            flight_recorder.FlightRecorderSource(self.settings, places, self.ranks),
            nccl_inspector.NcclInspectorSource(self.settings, places, self.communicators),
            nccl_ras.NcclRasSource(self.settings, places, self.nccl_ranks),
        )
        return {source.name: source for source in sources}

    @property
    def is_loaded(self) -> bool:
        """True if a source was used."""
        return "by_name" in self.__dict__

    def on_demand(self) -> list[Source]:
        """Return the sources as they are sampled: those that compute first, then those with their results."""
        recorder, inspector = (
            self.settings.flight_recorder_directory,
            self.settings.nccl_inspector_directory,
        )
        return [
            _FileSource(self, "flight_recorder", 10.0, "list", recorder),
            ReportingSource("collective_rank", 10.0, self.ranks, _OF_RANKS),
            _FileSource(self, "nccl_inspector", 5.0, "list_inspector", inspector),
            ReportingSource("communicator", 5.0, self.communicators, _OF_COMMUNICATORS),
            _RasSource(self, "nccl_ras", 60.0),
            ReportingSource("nccl_rank", 10.0, self.nccl_ranks, _OF_NCCL_RANKS),
        ]


class _OnDemandSource(Source, ABC):
    """A source that is loaded when a job uses it."""

    stage = 2
    """It is read after the sources of processes and claims."""

    def __init__(self, sources: CollectiveSources, name: str, period_seconds: float) -> None:
        self.name, self.period_seconds = name, period_seconds
        self._sources = sources

    @abstractmethod
    def _is_used(self, host: Host) -> bool:
        """True if a job may use the source. Raises OSError."""

    def probe(self, host: Host) -> probe_result.ProbeResult:
        """Load the source if it is used."""
        if not self._is_used(host):
            return probe_result.ProbeResult()
        source = self._sources.by_name[self.name]
        source.period_seconds = self.period_seconds
        return source.probe(host)

    def read(self, host: Host, into: row_builder.RowBuilder) -> None:
        """Read the source, unless it is not used."""
        if self._sources.is_loaded and into.reasons:
            self._sources.by_name[self.name].read(host, into)

    def close(self) -> None:
        """Release the resources of the source."""
        if self._sources.is_loaded:
            self._sources.by_name[self.name].close()


class _FileSource(_OnDemandSource):
    """A source of files of jobs: used while their directory exists."""

    def __init__(
        self,
        sources: CollectiveSources,
        name: str,
        period_seconds: float,
        listing: str,
        directory: str,
    ) -> None:
        super().__init__(sources, name, period_seconds)
        self._listing, self._directory = listing, directory

    def _is_used(self, host: Host) -> bool:
        try:
            return bool(self._directory and host.call(JOB_FILES, self._listing, self._directory))
        except OSError as error:
            if reason_of(error) is Absent.GONE:
                return False
            raise


class _RasSource(_OnDemandSource):
    """NCCL's RAS subsystem: used if it is switched on."""

    min_period_seconds = 15.0
    """A query gathers data from all ranks of the job."""

    def _is_used(self, host: Host) -> bool:  # noqa: ARG002 - it connects to nothing
        return self._sources.settings.ras != "off"
