"""GPUs, asked by tables of calls and fields, each table at its own period."""

from __future__ import annotations

from collections.abc import Callable

from agent.host import Host
from agent.source import Columns, HoldsNothing, Inventory, Table
from agent.sources.nvidia import health, load, settings
from agent.sources.nvidia.calls import Questions
from agent.sources.nvidia.inventory import Gpus
from agent.sources.nvidia.plan import Plan


class Gpu(HoldsNothing):
    """A table of NVML calls and fields for every GPU, at one period."""

    family = "nvml"

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
        self._generation = 0
        self._questions = questions
        self._plans: list[Plan] = []

    @classmethod
    def load(cls, period_seconds: float = 1.0, gpus: Gpus | None = None) -> Gpu:
        """What changes from second to second; tells what came and went, too."""
        return cls("gpu", lambda *_: load.QUESTIONS, period_seconds, gpus)

    @classmethod
    def health(cls, period_seconds: float = 10.0, gpus: Gpus | None = None) -> Gpu:
        """What is or may go wrong."""
        return cls("gpu_health", lambda *_: health.QUESTIONS, period_seconds, gpus)

    @classmethod
    def settings(cls, period_seconds: float = 60.0, gpus: Gpus | None = None) -> Gpu:
        """What changes rarely."""
        return cls("gpu_settings", settings.questions, period_seconds, gpus)

    def probe(self, host: Host) -> Inventory:
        """Look for GPUs and plan what to ask each. Raises NvmlError where the driver is sick."""
        gpus = self._gpus.look(host)
        self._generation = self._gpus.generation
        columns = Columns()
        self._plans = [
            Plan(gpu.index, gpu.entity, self._questions(host, gpu.index), columns)
            for gpu in gpus.values()
        ]
        return Inventory(tuple(columns.columns), (), self._gpus.findings)

    def read(self, host: Host, into: Table) -> None:
        """Make every call for every GPU; a failed call costs only its own columns."""
        for plan in self._plans:
            plan.read(host, into)
        into.events = self._gpus.take_events()
        into.grown = self._gpus.generation != self._generation
