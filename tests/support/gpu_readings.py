"""Readings of all GPU sources of a host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from support.reading import Label, numbers, read_once, readings

from railscope.reading import Absent
from railscope_agent.gpus.inventory import GpuInventory
from railscope_agent.host import Host
from railscope_agent.sampling.source import Source
from railscope_agent.sources.nvidia.activity import GpuActivitySource
from railscope_agent.sources.nvidia.gpu_devices import GpuSource
from railscope_agent.sources.nvidia.gpu_sharing import GpuSharingSource
from railscope_agent.sources.nvidia.mig_devices import MigSource
from railscope_agent.sources.nvidia.nvlink import NvLinkSource
from railscope_agent.sources.nvidia.processes import GpuProcessSource


@dataclass
class GpuReadings:
    """Numbers in base units, reasons for absent ones, and the facts of entities by kind."""

    numbers: dict[Label, float] = field(default_factory=dict)
    absent: dict[Label, Absent] = field(default_factory=dict)
    facts: dict[tuple[str, tuple[str, ...]], Mapping[str, str]] = field(default_factory=dict)

    def number(self, metric: str, *key: str) -> float | None:
        """Return a number; None if absent."""
        return self.numbers.get((f"railscope_{metric}", key))

    def named(self, metric: str) -> dict[tuple[str, ...], float]:
        """Return all numbers of a metric, by key."""
        return {k: v for (name, k), v in self.numbers.items() if name == f"railscope_{metric}"}


def sources() -> list[Source]:
    """Return every source of the driver's thread that reads GPUs, with one inventory."""
    gpus = GpuInventory()
    return [
        GpuSource.load(gpus=gpus),
        GpuSource.health(gpus=gpus),
        GpuSource.settings(gpus=gpus),
        GpuActivitySource(gpus=gpus),
        MigSource(gpus=gpus),
        GpuSharingSource(gpus=gpus),
        GpuProcessSource(gpus=gpus),
        NvLinkSource.traffic(gpus=gpus),
        NvLinkSource.signal(gpus=gpus),
    ]


def read_gpus(host: Host) -> GpuReadings:
    """Read every GPU source once; none may fail."""
    reported = GpuReadings()
    for source in sources():
        outcome = read_once(source, host)
        assert outcome.problem == "", f"{source.name}: {outcome.problem}"
        reported.numbers |= numbers(outcome.frame)
        found = readings(outcome.frame)
        reported.absent |= {label: r for label, r in found.items() if isinstance(r, Absent)}
        for _, entity in outcome.frame.schema.columns if outcome.frame else ():
            reported.facts[entity.kind.name, entity.key] = entity.facts
    return reported
