"""Claims in the common type that all claim providers report.

The capacity of a GPU is 840 compute slots and 840 memory slots (lcm of 1 to 8), so that MIG
slices and shares are whole numbers of slots.
"""

from __future__ import annotations

import msgspec

from railscope.claim_terms import MAX_NODE_AUTHORITY, ClaimAuthority
from railscope.frame import NodeTimestamp
from railscope_agent.gpus.mig_slots import WHOLE_GPU, GpuSlotRange
from railscope_agent.tenancy.clock_history import BootTime
from railscope_agent.tenancy.devices import ClaimableDevice

COMMAND_PROVIDER = "command"
"""Claim provider whose workload may name another provider: `slurm:123`, `kubernetes:research/train-0`."""


class NodeClaim(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Claim on a GPU, a MIG device, a share of one, or a number of GPUs that are not named.

    Times are nanoseconds since the epoch, and on the boot clock if a clock of this node measured them. A
    start or an uncertainty of None is that of the poll that first found the claim. `reference`
    distinguishes claims that are equal otherwise: the id that a client chose. `gpu`
    is empty if `count` GPUs are claimed and none is named.
    """

    source: str
    authority: ClaimAuthority = msgspec.field(name="level")
    workload: str
    gpu: str
    device: str = ""
    reference: str = ""
    owner: str = ""
    tenant: str = ""
    node: str = ""
    compute: GpuSlotRange = WHOLE_GPU
    memory: GpuSlotRange = WHOLE_GPU
    exclusive: bool = True
    share: str = ""
    """`n/d` of the device, or of each of `count` GPUs; only for a claim that is not exclusive."""
    count: int = 0
    system: bool = False
    assumed: bool = False
    """True if the provider reported a number of GPUs, and the agent chose the device."""
    allocated_twice: bool = False
    """True if the scheduler gave the device to another claim as well, or one of the two has admin access."""
    profile: str = ""
    pids: tuple[int, ...] = ()
    start_ns: int | None = None
    start_boot: BootTime | None = None
    end_ns: int | None = None
    end_boot: BootTime | None = None
    uncertainty_ns: int | None = None

    def __post_init__(self) -> None:
        """Lower the authority to that of a scheduler: earlier agents stored a higher one for a claims file."""
        if self.authority > MAX_NODE_AUTHORITY:
            msgspec.structs.force_setattr(self, "authority", MAX_NODE_AUTHORITY)

    @property
    def key(self) -> tuple[str, ...]:
        """Identity of the claim across polls."""
        # A client may start an id again after its end; the exact start distinguishes the two claims.
        suffix = f"@{self.start_ns}" if self.reference and self.uncertainty_ns == 0 else ""
        return (self.source, self.workload, self.gpu, self.part, self.reference + suffix)

    @property
    def part(self) -> str:
        """Device of the GPU that is held; the GPU itself if it is held as a whole."""
        return self.device or self.gpu

    @property
    def owning_workload(self) -> tuple[str, str]:
        """Source and name of the workload, also as reported by another source: `slurm:123` is Slurm's."""
        source, colon, name = self.workload.partition(":")
        if colon and self.source == COMMAND_PROVIDER:
            return source, name
        return self.source, self.workload

    def claim_on_device(self, device: ClaimableDevice, share: str = "") -> NodeClaim:
        """Return the claim on a device, or on a share of it.

        It is not exclusive on a share, nor on a device with unknown slots.
        """
        return msgspec.structs.replace(
            self,
            gpu=device.gpu,
            device=device.id,
            compute=device.compute,
            memory=device.memory,
            profile=device.profile,
            share=share,
            exclusive=self.exclusive and device.exact and not share,
        )

    def has_begun(self, boot_id: str, now: NodeTimestamp) -> bool:
        """True if its start is not in the future, by the boot clock if it has that."""
        if self.start_boot is not None:
            # A start in another boot is in the past, whatever the wall clock shows.
            return self.start_boot.boot_id != boot_id or self.start_boot.boot_ns <= now.boot_ns
        return (self.start_ns or 0) <= now.wall_ns

    def has_ended(self, boot_id: str, now: NodeTimestamp) -> bool:
        """True if it has an end that is not in the future."""
        if self.end_boot is not None:
            return self.end_boot.boot_id != boot_id or self.end_boot.boot_ns <= now.boot_ns
        return self.end_ns is not None and self.end_ns <= now.wall_ns

    def has_same_content(self, other: NodeClaim) -> bool:
        """True if both have the same content for the same claim; processes and times may differ."""
        # Processes come and go while the holder stays the same: a difference in them must not end the claim.
        return _compared_content(self) == _compared_content(other)

    def facts(self, boot_id: str) -> dict[str, str]:
        """Return the facts of an event of a boot; boot clock times of another boot are left out."""
        boot = self.start_boot
        facts_present = {
            "source": self.source,
            "level": self.authority.label,
            "workload": self.workload,
            "owner": self.owner,
            "tenant": self.tenant,
            "node": self.node,
            "start_ns": str(self.start_ns or 0),
            "start_boot_ns": str(boot.boot_ns) if boot and boot.boot_id == boot_id else "",
            "uncertainty_ns": str(self.uncertainty_ns or 0),
            "compute": str(self.compute),
            "memory": str(self.memory),
            "exclusive": str(self.exclusive).lower(),
            "share": self.share,
            "count": str(self.count or ""),
            "system": str(self.system).lower(),
            "assumed": "true" if self.assumed else "",
            "allocated_twice": "true" if self.allocated_twice else "",
            "device": self.part,
            "profile": self.profile,
            "pids": " ".join(map(str, self.pids)),
        }
        return {name: text for name, text in facts_present.items() if text}


def _compared_content(claim: NodeClaim) -> NodeClaim:
    return msgspec.structs.replace(
        claim,
        pids=(),
        start_ns=None,
        start_boot=None,
        end_ns=None,
        end_boot=None,
        uncertainty_ns=None,
        device=claim.part,
    )
