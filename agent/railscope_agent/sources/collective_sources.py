"""Sources of the collectives of jobs; their modules (1.4 MiB) are loaded when a job records its collectives on this node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from railscope.reading import Absent, reason_of
from railscope_agent.collective_settings import CollectiveSettings
from railscope_agent.gpus import inventory, process_lists
from railscope_agent.host import JOB_FILES, Host
from railscope_agent.sampling import probe_result, row_builder
from railscope_agent.sampling.source import PeriodicSource, Source
from railscope_agent.sources.tenancy import ClaimSource


@dataclass
class CollectiveSources:
    """The sources, created together at the first use."""

    settings: CollectiveSettings
    gpus: inventory.GpuInventory
    lists: process_lists.ProcessLists
    claims: ClaimSource

    @cached_property
    def by_name(self) -> Mapping[str, Source]:
        """Sources by name; the first access loads their modules."""
        from railscope_agent.sources import (  # noqa: PLC0415 - their memory
            flight_recorder,
            nccl_inspector,
            nccl_ras,
            rank_places,
            source_bases,
        )

        # One for all: they share a lane.
        places = rank_places.RankPlaces(self.gpus, self.lists, self.claims.claims_of_process)
        ranks, communicators, nccl_ranks = (source_bases.ReportedReadings() for _ in range(3))
        sources: tuple[Source, ...] = (
            flight_recorder.FlightRecorderSource(self.settings, places, ranks),
            flight_recorder.CollectiveRankSource(ranks),
            nccl_inspector.NcclInspectorSource(self.settings, places, communicators),
            nccl_inspector.CommunicatorSource(communicators),
            nccl_ras.NcclRasSource(self.settings, places, nccl_ranks),
            nccl_ras.NcclRankSource(nccl_ranks),
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
            _FileSource(self, "flight_recorder", "flight recorder", "list", recorder),
            _OnDemandSource(self, "collective_rank"),
            _FileSource(self, "nccl_inspector", "NCCL Inspector", "list_inspector", inspector),
            _OnDemandSource(self, "communicator"),
            _RasSource(self, "nccl_ras"),
            _OnDemandSource(self, "nccl_rank"),
        ]


class _OnDemandSource(PeriodicSource):
    """A source with the results of another one."""

    family = "collectives"
    stage = 2

    def __init__(self, sources: CollectiveSources, name: str) -> None:
        self.name = name
        self._sources = sources

    def _finding(self, host: Host) -> probe_result.ProbeFinding | None:  # noqa: ARG002 - of the others
        """Return the finding about a source that is not used."""
        return None

    def probe(self, host: Host) -> probe_result.ProbeResult:
        """Load the source if it is used."""
        if finding := self._finding(host):
            return probe_result.ProbeResult(findings=(finding,))
        if self.stage > 1 and not self._sources.is_loaded:
            return probe_result.ProbeResult(())
        return self._sources.by_name[self.name].probe(host)

    def read(self, host: Host, into: row_builder.RowBuilder) -> None:
        """Read the source, unless it is not used."""
        if self._sources.is_loaded and (into.reasons or self.stage > 1):
            self._sources.by_name[self.name].read(host, into)

    def close(self) -> None:
        """Release the resources of the source."""
        if self._sources.is_loaded:
            self._sources.by_name[self.name].close()


class _FileSource(_OnDemandSource):
    """A source of files of jobs: used while their directory exists."""

    stage = 1
    """It is read after the sources of processes and claims."""

    def __init__(
        self, sources: CollectiveSources, name: str, subject: str, listing: str, directory: str
    ) -> None:
        super().__init__(sources, name)
        self._subject, self._listing, self._directory = subject, listing, directory

    def _finding(self, host: Host) -> probe_result.ProbeFinding | None:
        if not self._directory:
            return probe_result.ProbeFinding.absent(self._subject, "switched off")
        try:
            host.call(JOB_FILES, self._listing, self._directory)
        except OSError as error:
            if reason_of(error) is Absent.GONE:
                detail = f"{self._directory} does not exist"
                return probe_result.ProbeFinding.absent(self._subject, detail)
            return probe_result.ProbeFinding.failed(self._subject, error, "run the agent as root")
        return None


class _RasSource(_OnDemandSource):
    """NCCL's RAS subsystem: used if it is switched on."""

    stage = 1

    def _finding(self, host: Host) -> probe_result.ProbeFinding | None:  # noqa: ARG002 - it connects to nothing
        if self._sources.settings.ras == "off":
            return probe_result.ProbeFinding.absent("NCCL RAS", "switched off")
        return None
