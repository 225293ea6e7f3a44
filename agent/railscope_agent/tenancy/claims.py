"""Claims in the common type that all claim providers report, and the times of their starts and ends.

The capacity of a GPU is 840 compute slots and 840 memory slots (lcm of 1 to 8), so that MIG
slices and shares are whole numbers of slots.

For a claim provider that could not be read, a report has findings and remedies, and the claims in
force stay.

`ClockHistory` has the offset between the wall clock and the boot clock of a node at each time of
this boot. Slurm and people specify wall clock times. If that clock was stepped since, the offset
at that time, not the current one, converts them to the boot clock, which is never stepped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import msgspec

from railscope.claim_terms import MAX_NODE_AUTHORITY, ClaimAuthority
from railscope.frame import NodeTimestamp
from railscope.reading import Absent, reason_of
from railscope_agent.gpus.mig_slots import WHOLE_GPU, GpuSlotRange
from railscope_agent.host import Host
from railscope_agent.sampling.source import ProbeFinding, ProbeVerdict
from railscope_agent.tenancy.devices import ClaimableDevice, NodeDevices


class BootTime(msgspec.Struct, frozen=True):
    """Time on the boot clock of one boot."""

    boot_id: str
    boot_ns: int


class NodeClaim(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Claim on a GPU, a MIG device, a share of one, or a number of GPUs that are not named.

    Times are nanoseconds since the epoch, and on the boot clock if a clock of this node measured them. A
    start or an uncertainty of None is that of the poll that first found the claim. `reference`
    distinguishes claims that are equal otherwise: the id that a client chose, or the date in a file. `gpu`
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
        if colon and self.source in SOURCES_FOR_OTHERS:
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
            return self.start_boot.boot_id != boot_id or self.start_boot.boot_ns <= now.boot_ns
        return (self.start_ns or 0) <= now.wall_ns

    def has_ended(self, boot_id: str, now: NodeTimestamp) -> bool:
        """True if it has an end that is not in the future."""
        if self.end_boot is not None:
            return self.end_boot.boot_id != boot_id or self.end_boot.boot_ns <= now.boot_ns
        return self.end_ns is not None and self.end_ns <= now.wall_ns

    def has_same_content(self, other: NodeClaim) -> bool:
        """True if both have the same content for the same claim; processes and times may differ."""
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
            "device": self.part,
            "profile": self.profile,
            "pids": " ".join(map(str, self.pids)),
        }
        return {name: text for name, text in facts_present.items() if text}


COMMAND_SOURCE, FILE_SOURCE = "command", "file"
SOURCES_FOR_OTHERS = frozenset({COMMAND_SOURCE, FILE_SOURCE})
"""Sources whose workload may name another source: `slurm:123`, `kubernetes:research/train-0`."""


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


@dataclass(frozen=True, slots=True)
class ClaimReport:
    """Result of one poll of a claim provider.

    If `absence` is a reason, the provider could not be read and all claims in force stay. The same applies
    to the single GPUs in `unreadable_gpus`.
    """

    claims: tuple[NodeClaim, ...] = ()
    findings: tuple[ProbeFinding, ...] = ()
    absence: Absent | None = None
    unreadable_gpus: frozenset[str] = frozenset()


class ClaimProvider(Protocol):
    """A claim provider."""

    name: str

    def poll(
        self, host: Host, devices: NodeDevices, in_force: tuple[NodeClaim, ...]
    ) -> ClaimReport:
        """Return the current claims. `in_force` contains this provider's claims that are in force.

        Never raises for the state of its source; a failed read returns a `ClaimReport` with a reason in `absence`.
        """
        ...


RUN_AS_ROOT = "run the agent as root, or with the drop-in of deploy/systemd/tenancy.conf"


def failure_finding(subject: str, error: Exception, remedy: str) -> ProbeFinding:
    """Return the finding for a provider that could not be read."""
    reason = reason_of(error) if isinstance(error, OSError) else Absent.ERROR
    if reason is Absent.DENIED:
        return ProbeFinding(subject, ProbeVerdict.DENIED, str(error), RUN_AS_ROOT)
    return ProbeFinding(subject, ProbeVerdict.BROKEN, str(error), remedy)


def failed_report(subject: str, error: Exception, remedy: str) -> ClaimReport:
    """Return the result of a failed poll: claims in force stay."""
    reason = reason_of(error) if isinstance(error, OSError) else Absent.ERROR
    return ClaimReport((), (failure_finding(subject, error, remedy),), reason)


def absent_report(subject: str, detail: str) -> ClaimReport:
    """Return the result of a poll without claims, because the node does not have this provider."""
    return ClaimReport(findings=(ProbeFinding.absent(subject, detail),))


def select_claims(in_force: tuple[NodeClaim, ...], **properties: object) -> tuple[NodeClaim, ...]:
    """Return the claims in force with these properties, which stay as they are after a failed read."""
    return tuple(
        claim
        for claim in in_force
        if all(getattr(claim, name) == value for name, value in properties.items())
    )


STEP_NS = 20_000_000
"""Smaller differences are the time between the reads of the two clocks."""
MAX_OFFSETS = 128
"""Maximum number of steps kept per boot; the oldest are dropped."""


class ClockOffset(msgspec.Struct, frozen=True):
    """Wall clock minus boot clock, from a time of the boot clock to the next offset."""

    since_boot_ns: int
    offset_ns: int


class ClockOffsets(msgspec.Struct, frozen=True):
    """Offsets of one boot, saved across restarts of the agent."""

    boot_id: str
    offsets: tuple[ClockOffset, ...]


class ClockHistory:
    """Conversion of wall clock times to boot clock times."""

    def __init__(self, boot_id: str = "", saved: ClockOffsets | None = None) -> None:
        self.boot_id = boot_id
        self.changed = False
        """True if there is a step that is not saved yet."""
        self._now_ns = 0
        self._offsets = saved.offsets if saved and saved.boot_id == boot_id else ()

    @property
    def state(self) -> ClockOffsets:
        """Offsets to save."""
        return ClockOffsets(self.boot_id, self._offsets)

    def observe(self, now: NodeTimestamp) -> None:
        """Record the current offset if the wall clock was stepped."""
        offset_ns = now.wall_ns - now.boot_ns
        self._now_ns = max(self._now_ns, now.boot_ns)
        if self._offsets and abs(offset_ns - self._offsets[-1].offset_ns) <= STEP_NS:
            return
        since_ns = now.boot_ns if self._offsets else 0
        self._offsets = (*self._offsets, ClockOffset(since_ns, offset_ns))[-MAX_OFFSETS:]
        self.changed = True

    def convert_wall_time(self, wall_ns: int) -> BootTime | None:
        """Convert a wall clock time; None if it is before this boot.

        A time that the wall clock showed twice becomes the later one, a time that a step skipped becomes
        that of the step, and a time in the future is converted with the current offset.
        """
        spans = list(self._spans())
        shown = [span for span in spans if span[0] <= wall_ns - span[2] < span[1]]
        if shown:
            return self._boot_time(wall_ns - shown[-1][2])
        passed = [span for span in spans if wall_ns - span[2] >= span[0]]
        if not passed:
            return None
        _, until_ns, offset_ns = passed[-1]
        is_last = passed[-1] is spans[-1]
        return self._boot_time(wall_ns - offset_ns if is_last else until_ns)

    def now(self, now: NodeTimestamp) -> BootTime | None:
        """Return the current time on the boot clock; None if the boot id is not known yet."""
        return self._boot_time(now.boot_ns)

    def _boot_time(self, boot_ns: int) -> BootTime | None:
        return BootTime(self.boot_id, boot_ns) if self.boot_id else None

    def _spans(self) -> Iterator[tuple[int, int, int]]:
        """Yield start and end of each offset on the boot clock, and the offset; the last ends now."""
        ends: Iterable[ClockOffset | None] = (*self._offsets, None)
        for offset, following in pairwise(ends):
            if offset is not None:
                until_ns = following.since_boot_ns if following else self._now_ns + 1
                yield offset.since_boot_ns, until_ns, offset.offset_ns
