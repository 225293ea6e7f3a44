"""What somebody holds, as one place tells it.

The capacity of a GPU is 840 slots of compute and 840 of memory (lcm of 1 to 8), so that MIG slices
and shares are whole numbers of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

import msgspec

from agent.host import Host
from agent.source import Finding
from agent.sources.nvidia.slices import WHOLE, Slots
from agent.tenancy.devices import Devices
from railscope.reading import Absent


class Level(IntEnum):
    """Whose word a claim is; the higher one counts."""

    PROCESS = 1
    NODE_PLUGIN = 2
    SCHEDULER = 3
    ADMINISTRATOR = 4

    @property
    def word(self) -> str:
        """As events have it."""
        return self.name.lower()


class Held(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A GPU, a MIG device or a share of a GPU that somebody holds.

    Instants are nanoseconds since the epoch. A start or an uncertainty that is None is that of the
    look that saw it first. `reference` tells claims apart that are alike in all else: the id that
    somebody gave, the date that a file says.
    """

    source: str
    level: Level
    workload: str
    gpu: str
    device: str = ""
    reference: str = ""
    owner: str = ""
    tenant: str = ""
    node: str = ""
    compute: Slots = WHOLE
    memory: Slots = WHOLE
    exclusive: bool = True
    system: bool = False
    profile: str = ""
    pids: tuple[int, ...] = ()
    start_ns: int | None = None
    end_ns: int | None = None
    uncertainty_ns: int | None = None

    @property
    def key(self) -> tuple[str, ...]:
        """What makes it the same claim at the next look."""
        told = f"@{self.start_ns}" if self.reference and self.uncertainty_ns == 0 else ""
        return (self.source, self.workload, self.gpu, self.part, self.reference + told)

    @property
    def part(self) -> str:
        """What of the GPU it is; the GPU itself where it is all of it."""
        return self.device or self.gpu

    @property
    def workload_of(self) -> tuple[str, str]:
        """Source and name of the workload, where another told of it: `slurm:123` is Slurm's 123."""
        source, colon, name = self.workload.partition(":")
        if colon and self.source in SAYS_WHOSE:
            return source, name
        return self.source, self.workload

    def agrees(self, other: Held) -> bool:
        """Whether it says the same of the same claim; processes and times may differ."""
        return _essence(self) == _essence(other)

    def facts(self) -> dict[str, str]:
        """As facts of an event."""
        told = {
            "source": self.source,
            "level": self.level.word,
            "workload": self.workload,
            "owner": self.owner,
            "tenant": self.tenant,
            "node": self.node,
            "start_ns": str(self.start_ns or 0),
            "uncertainty_ns": str(self.uncertainty_ns or 0),
            "compute": self.compute.word,
            "memory": self.memory.word,
            "exclusive": str(self.exclusive).lower(),
            "system": str(self.system).lower(),
            "device": self.part,
            "profile": self.profile,
            "pids": " ".join(map(str, self.pids)),
        }
        return {name: text for name, text in told.items() if text}


COMMAND, FILE = "command", "file"
SAYS_WHOSE = frozenset({COMMAND, FILE})
"""Sources whose workloads may name that of another: `slurm:123`, `kubernetes:research/train-0`."""


def _essence(held: Held) -> Held:
    return msgspec.structs.replace(
        held, pids=(), start_ns=None, end_ns=None, uncertainty_ns=None, device=held.part
    )


@dataclass(frozen=True, slots=True)
class Told:
    """What a place tells at one look.

    Where `unread` is a reason, it could not be asked: all that was in force stays. The same goes for
    single GPUs of `unread_gpus`.
    """

    held: tuple[Held, ...] = ()
    findings: tuple[Finding, ...] = ()
    unread: Absent | None = None
    unread_gpus: frozenset[str] = frozenset()


class Adapter(Protocol):
    """One place that knows who holds what."""

    name: str

    def look(self, host: Host, devices: Devices, in_force: tuple[Held, ...]) -> Told:
        """What is held now. `in_force` is what this place has told and not taken back.

        Never raises for what the place is like: that is a `Told` without an answer.
        """
        ...
