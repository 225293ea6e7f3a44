"""GPUs, read by tables of calls and fields, each table at its own period."""

from __future__ import annotations

from collections.abc import Callable

from agent.gpus.inventory import Gpus
from agent.host import Host
from agent.sampling.source import LONGEST_PERIOD_SECONDS, Columns, HoldsNothing, Inventory, Table
from agent.sources.nvidia import health, load, settings
from agent.sources.nvidia.calls import Questions
from agent.sources.nvidia.integrals import Integrals
from agent.sources.nvidia.modes import Modes
from agent.sources.nvidia.plan import Plans


class Gpu(HoldsNothing):
    """A table of NVML calls and fields for every GPU, at one period."""

    family = "nvml"
    longest_period_seconds = LONGEST_PERIOD_SECONDS

    def __init__(
        self,
        name: str,
        questions: Callable[[Host, int], Questions],
        period_seconds: float,
        gpus: Gpus | None = None,
    ) -> None:
        self.name = name
        self.period_seconds = period_seconds
        self._gpus = gpus or Gpus()
        self._questions = questions
        self._plans = Plans()
        self._integrals = Integrals(load.INTEGRATED, period_seconds)
        self._modes = Modes()

    @classmethod
    def load(cls, period_seconds: float = 1.0, gpus: Gpus | None = None) -> Gpu:
        """Values that change every second, and events of added and removed GPUs.

        A GPU counts as observed while its samples are at most 30 s apart: periods stay well below.
        """
        gpu = cls("gpu", load.questions, period_seconds, gpus)
        gpu.longest_period_seconds = 10.0
        return gpu

    @classmethod
    def health(cls, period_seconds: float = 10.0, gpus: Gpus | None = None) -> Gpu:
        """Actual and potential faults."""
        return cls("gpu_health", lambda *_: health.QUESTIONS, period_seconds, gpus)

    @classmethod
    def settings(cls, period_seconds: float = 60.0, gpus: Gpus | None = None) -> Gpu:
        """Values that change rarely."""
        return cls("gpu_settings", settings.questions, period_seconds, gpus)

    def probe(self, host: Host) -> Inventory:
        """Find the GPUs and plan the calls for each. Raises NvmlError if the driver fails."""
        gpus = self._gpus.look(host)
        columns = Columns()
        wanted = [
            (gpu.index, gpu.entity, self._questions(host, gpu.index)) for gpu in gpus.values()
        ]
        self._plans.place(host, self._gpus.generation, wanted, columns)
        self._integrals.place(columns)
        self._modes.place(columns)
        return Inventory(tuple(columns.columns), (), self._gpus.findings)

    def read(self, host: Host, into: Table) -> None:
        """Make every call for every GPU; a failed call affects only its own columns."""
        self._plans.read(host, into)
        self._integrals.read(host, into)
        addresses = {gpu.entity.key[0]: gpu.pci_address for gpu in self._gpus.found.values()}
        changes = self._modes.changes(host, into, addresses)
        into.events = [*self._gpus.take_events(), *changes]
        into.grown |= self._gpus.generation != self._plans.generation
