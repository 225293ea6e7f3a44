"""Claims in the common type that all claim providers report.

The capacity of a GPU is 840 compute slots and 840 memory slots (lcm of 1 to 8), so that MIG slices and
shares are whole numbers of slots.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

import msgspec

from agent.gpus.slices import WHOLE, Slots
from agent.host import Host
from agent.sampling.source import Finding
from agent.tenancy.devices import Devices
from railscope.frame import Instant
from railscope.reading import Absent

_FILE_OF_EARLIER_AGENTS = 4


class BootTime(msgspec.Struct, frozen=True):
    """Time on the boot clock of one boot."""

    boot_id: str
    boot_ns: int


class Level(IntEnum):
    """Authority of a claim; the higher rank counts. Nothing on a node ranks above a scheduler."""

    PROCESS = 1
    NODE_PLUGIN = 2
    SCHEDULER = 3

    @classmethod
    def _missing_(cls, value: object) -> Level | None:
        """Map the rank that earlier agents used for a claims file."""
        return cls.SCHEDULER if value == _FILE_OF_EARLIER_AGENTS else None

    @property
    def word(self) -> str:
        """Name of the authority in events."""
        return self.name.lower()


class Held(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Claim on a GPU, a MIG device, a share of one, or a number of GPUs that are not named.

    Times are nanoseconds since the epoch, and on the boot clock if a clock of this node measured them. A
    start or an uncertainty of None is that of the poll that first found the claim. `reference`
    distinguishes claims that are equal otherwise: the id that a client chose, or the date in a file. `gpu`
    is empty if `count` GPUs are held and none is named.
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
    share: str = ""
    """`n/d` of the device, or of each of `count` GPUs; only for a claim that is not exclusive."""
    count: int = 0
    system: bool = False
    profile: str = ""
    pids: tuple[int, ...] = ()
    start_ns: int | None = None
    start_boot: BootTime | None = None
    end_ns: int | None = None
    end_boot: BootTime | None = None
    uncertainty_ns: int | None = None

    @property
    def key(self) -> tuple[str, ...]:
        """Identity of the claim across polls."""
        told = f"@{self.start_ns}" if self.reference and self.uncertainty_ns == 0 else ""
        return (self.source, self.workload, self.gpu, self.part, self.reference + told)

    @property
    def part(self) -> str:
        """Device of the GPU that is held; the GPU itself if it is held as a whole."""
        return self.device or self.gpu

    @property
    def workload_of(self) -> tuple[str, str]:
        """Source and name of the workload, also as reported by another source: `slurm:123` is Slurm's."""
        source, colon, name = self.workload.partition(":")
        if colon and self.source in SAYS_WHOSE:
            return source, name
        return self.source, self.workload

    def has_begun(self, boot_id: str, now: Instant) -> bool:
        """True if its start is not in the future, by the boot clock if it has that."""
        if self.start_boot is not None:
            return self.start_boot.boot_id != boot_id or self.start_boot.boot_ns <= now.boot_ns
        return (self.start_ns or 0) <= now.wall_ns

    def has_ended(self, boot_id: str, now: Instant) -> bool:
        """True if it has an end that is not in the future."""
        if self.end_boot is not None:
            return self.end_boot.boot_id != boot_id or self.end_boot.boot_ns <= now.boot_ns
        return self.end_ns is not None and self.end_ns <= now.wall_ns

    def agrees(self, other: Held) -> bool:
        """True if both have the same content for the same claim; processes and times may differ."""
        return _essence(self) == _essence(other)

    def facts(self, boot_id: str) -> dict[str, str]:
        """Return the facts of an event of a boot; boot clock times of another boot are left out."""
        boot = self.start_boot
        told = {
            "source": self.source,
            "level": self.level.word,
            "workload": self.workload,
            "owner": self.owner,
            "tenant": self.tenant,
            "node": self.node,
            "start_ns": str(self.start_ns or 0),
            "start_boot_ns": str(boot.boot_ns) if boot and boot.boot_id == boot_id else "",
            "uncertainty_ns": str(self.uncertainty_ns or 0),
            "compute": self.compute.word,
            "memory": self.memory.word,
            "exclusive": str(self.exclusive).lower(),
            "share": self.share,
            "count": str(self.count or ""),
            "system": str(self.system).lower(),
            "device": self.part,
            "profile": self.profile,
            "pids": " ".join(map(str, self.pids)),
        }
        return {name: text for name, text in told.items() if text}


COMMAND, FILE = "command", "file"
SAYS_WHOSE = frozenset({COMMAND, FILE})
"""Sources whose workload may name another source: `slurm:123`, `kubernetes:research/train-0`."""


def _essence(held: Held) -> Held:
    return msgspec.structs.replace(
        held, pids=(), start_ns=None, start_boot=None, end_ns=None, end_boot=None,
        uncertainty_ns=None, device=held.part,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Told:
    """Result of one poll of a claim provider.

    If `unread` is a reason, the provider could not be read and all claims in force stay. The same applies
    to the single GPUs in `unread_gpus`.
    """

    held: tuple[Held, ...] = ()
    findings: tuple[Finding, ...] = ()
    unread: Absent | None = None
    unread_gpus: frozenset[str] = frozenset()


class Adapter(Protocol):
    """A claim provider."""

    name: str

    def look(self, host: Host, devices: Devices, in_force: tuple[Held, ...]) -> Told:
        """Return the current claims. `in_force` contains this provider's claims that are in force.

        Never raises for the state of its source; a failed read returns a `Told` with a reason in `unread`.
        """
        ...
