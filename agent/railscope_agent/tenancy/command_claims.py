"""Claims made with `railscope claim`, written to disk before they are acknowledged.

A claim is identified by the id that its client chose: a second start with the same content changes nothing.
Ended claims are kept for a day, so that an id is not reused by mistake, and until a poll has reported their end.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path

import msgspec

from railscope import claim_terms, durable_files, reading, timestamps
from railscope.frame import NodeTimestamp
from railscope_agent.host import Host
from railscope_agent.sampling.probe_result import ProbeFinding, ProbeVerdict, format_count
from railscope_agent.tenancy import TenancyError
from railscope_agent.tenancy.claim_provider import ClaimReport
from railscope_agent.tenancy.claims import COMMAND_PROVIDER, NodeClaim
from railscope_agent.tenancy.clock_history import BootTime
from railscope_agent.tenancy.devices import ClaimableDevice, NodeDevices

SUBJECT = "claims by command"
CLAIMS_FILE = "claims-told.json"
KEEP_ENDED_NS = timestamps.DAY_NS
MAX_CLAIMS = 10_000
SCHEDULERS = frozenset({"slurm", "kubernetes"})
"""Schedulers that a workload may name: `slurm:123` is Slurm's job 123, and its owner a Slurm account."""


_JOB_PREFIX = "slurm:"


class CommandClaim(msgspec.Struct, frozen=True, omit_defaults=True):
    """A claim as received. Times are nanoseconds since the epoch."""

    id: str
    devices: tuple[ClaimableDevice, ...]
    tenant: str
    workload: str
    owner: str
    start_ns: int
    exclusive: bool = True
    system: bool = False
    end_ns: int | None = None
    share: str = ""
    start_boot: BootTime | None = None
    end_boot: BootTime | None = None

    def has_same_content(self, other: CommandClaim) -> bool:
        """True if another claim has the same content, whatever its times."""
        return _without_times(self) == _without_times(other)

    @property
    def is_job(self) -> bool:
        """True for a Slurm job, which ends with the boot of its node."""
        return self.workload.startswith(_JOB_PREFIX)

    def ended_before(self, other: CommandClaim) -> bool:
        """True if it ended before another one starts, by the boot clock if both have it."""
        if self.end_ns is None:
            return False
        end, start = self.end_boot, other.start_boot
        if end and start and end.boot_id == start.boot_id:
            return end.boot_ns <= start.boot_ns
        return self.end_ns <= other.start_ns


class ClaimConflictError(TenancyError, ValueError):
    """An id that is in use for another claim."""


class UnknownClaimError(TenancyError, LookupError):
    """An id without a claim."""


class ClaimNotStoredError(TenancyError, OSError):
    """A claim that could not be written to disk; nothing has changed."""


class CommandClaims:
    """Claims made with `railscope claim`. Thread safe; changes block on the disk."""

    name = COMMAND_PROVIDER

    def __init__(self) -> None:
        self._directory: Path | None = None
        self._path: Path | None = None
        self._claims: dict[str, CommandClaim] = {}
        self._past: tuple[CommandClaim, ...] = ()
        """Ended claims whose id was started again."""
        self._reported: frozenset[tuple[str, int]] = frozenset()
        """Ended claims of the last poll, by id and start."""
        # Changes are made by the HTTP endpoint's threads, and polls by the thread of claim providers.
        self._turn = threading.Lock()
        self._problem = "no state directory: claims are accepted by a running agent only"

    def open_directory(self, directory: Path) -> None:
        """Store claims in a directory and read the ones there. Never raises; a failure is retried later."""
        with self._turn:
            self._directory = directory
            self._open()

    def _open(self) -> None:
        """Open or create the directory if that has not succeeded yet."""
        if self._path is not None or self._directory is None:
            return
        path = self._directory / CLAIMS_FILE
        try:
            self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            stored = durable_files.read_json(path, list[CommandClaim])
        except durable_files.DamagedFileError as error:
            self._problem, stored = str(error), None
        except OSError as error:
            self._problem = (
                f"cannot use state_directory {self._directory}: "
                f"{error.strerror or error}; claims are accepted as soon as it is "
                "writable"
            )
            return
        else:
            self._problem = ""
        # Set after a damaged file too: it was renamed, so new claims can be written.
        self._path = path
        latest = {claim.id: claim for claim in stored or ()}
        self._past = tuple(claim for claim in stored or () if latest[claim.id] is not claim)
        self._claims = latest

    def start(self, claim: CommandClaim, *, allow_restart: bool = False) -> CommandClaim:
        """Start a claim; return the existing one if it has the same content.

        With `allow_restart` an ended id may start once more: a requeued job keeps its id. Raises ClaimConflictError,
        ClaimNotStoredError.
        """
        with self._turn:
            self._open()
            existing = self._claims.get(claim.id)
            if existing is not None:
                if claim.start_boot:
                    boot = NodeTimestamp(claim.start_ns, claim.start_boot.boot_ns)
                    existing = _end_with_boot(existing, claim.start_boot.boot_id, boot)
                # A client that got no response repeats its request: the result has to be the same.
                if existing.end_ns is None and existing.has_same_content(claim):
                    return existing
                if not (allow_restart and existing.ended_before(claim)):
                    state = "has ended" if existing.end_ns is not None else "differs"
                    message = f"claim {claim.id!r} exists and {state}: expected an unused id"
                    raise ClaimConflictError(message)
            if len(self._claims) >= MAX_CLAIMS:
                message = (
                    f"too many claims: expected at most {MAX_CLAIMS}; fix: end "
                    "claims that are not in use"
                )
                raise ClaimConflictError(message)
            self._store((claim,), claim.start_ns, (existing,) if existing else ())
            return claim

    def end(self, name: str, end_ns: int, end_boot: BootTime | None = None) -> CommandClaim:
        """End a claim; one that has ended is unchanged. Raises UnknownClaimError, ClaimNotStoredError."""
        with self._turn:
            self._open()
            existing = self._claims.get(name)
            # The claims are not read yet: the id may exist.
            if existing is None and self._path is None:
                raise ClaimNotStoredError(self._problem)
            if existing is None:
                expected = (
                    "expected the ID of a claim started by command; fix: railscope claim list"
                )
                message = f"unknown claim {name!r}: {expected}"
                raise UnknownClaimError(message)
            # An epilog may run twice: the first end counts.
            if existing.end_ns is None:
                existing = _end_claim(existing, end_ns, end_boot)
                self._store((existing,), end_ns)
            return existing

    @property
    def all(self) -> tuple[CommandClaim, ...]:
        """Claims in force, and those that ended within a day."""
        with self._turn:
            return (*self._past, *self._claims.values())

    @property
    def in_force(self) -> tuple[NodeClaim, ...]:
        """Claims without an end, in the common type, one per device."""
        return tuple(
            _claim_on_device(claim, device)
            for claim in self.all
            if claim.end_ns is None
            for device in claim.devices
        )

    def _store(
        self,
        changed: Iterable[CommandClaim],
        now_ns: int,
        replaced: tuple[CommandClaim, ...] = (),
    ) -> None:
        """Store claims and drop those that ended long ago. Nothing changes if the write fails."""
        if self._path is None:
            raise ClaimNotStoredError(self._problem)

        def is_kept(claim: CommandClaim) -> bool:
            is_recent = claim.end_ns is None or claim.end_ns > now_ns - KEEP_ENDED_NS
            # Without its end, the claim would end at the poll that misses it.
            return is_recent or (claim.id, claim.start_ns) not in self._reported

        latest = self._claims | {claim.id: claim for claim in changed}
        past = tuple(filter(is_kept, (*self._past, *replaced)))
        claims = {name: claim for name, claim in latest.items() if is_kept(claim)}
        try:
            durable_files.write_json(self._path, [*past, *claims.values()])
        except OSError as error:
            message = f"cannot write {self._path}: {error.strerror or error}"
            raise ClaimNotStoredError(message) from error
        # After the write: a claim that is not on disk was not accepted.
        self._claims, self._past = claims, past

    def _end_earlier_jobs(self, host: Host) -> str:
        """End the jobs of earlier boots; return why that could not be stored, empty if it could."""
        now = host.clock.now()
        if not host.boot_id:
            return ""
        with self._turn:
            ended = [_end_with_boot(claim, host.boot_id, now) for claim in self._claims.values()]
            changed = [claim for claim in ended if claim is not self._claims[claim.id]]
            try:
                if changed:
                    self._store(changed, now.wall_ns)
            except ClaimNotStoredError as error:
                return str(error)
        return ""

    def poll(
        self, host: Host, devices: NodeDevices, in_force: tuple[NodeClaim, ...]
    ) -> ClaimReport:
        """Return the claims. No claim ends before the stored ones have been read."""
        del devices
        with self._turn:
            self._open()
        problem = self._end_earlier_jobs(host)
        claims = self.all
        self._reported = frozenset(
            (claim.id, claim.start_ns) for claim in claims if claim.end_ns is not None
        )
        # Claims in force come from the last run, while their file cannot be read: a report without them would
        # end all.
        if self._path is None and in_force:
            finding = ProbeFinding(
                SUBJECT, ProbeVerdict.BROKEN, self._problem, "check the state directory"
            )
            return ClaimReport((), (finding,), reading.Absent.GONE)
        node_claims = tuple(
            _claim_on_device(claim, device) for claim in claims for device in claim.devices
        )
        if problem:
            finding = ProbeFinding(
                SUBJECT, ProbeVerdict.BROKEN, problem, "make the state directory writable"
            )
            return ClaimReport(node_claims, (finding,))
        if self._problem:
            verdict = ProbeVerdict.BROKEN if "damaged" in self._problem else ProbeVerdict.ABSENT
            return ClaimReport(node_claims, (ProbeFinding(SUBJECT, verdict, self._problem),))
        count = sum(claim.end_ns is None for claim in claims)
        detail = f"{format_count(count, 'claim')} in force, stored in {self._path}"
        return ClaimReport(node_claims, (ProbeFinding.supported(SUBJECT, detail),))


def _end_with_boot(claim: CommandClaim, boot_id: str, now: NodeTimestamp) -> CommandClaim:
    """Return the claim, with an end at the start of the present boot if it is a job of an earlier one.

    The epilog does not run on a node that crashed, and no job survives a reboot.
    """
    start = claim.start_boot
    if claim.end_ns is not None or not claim.is_job or start is None or start.boot_id == boot_id:
        return claim
    return _end_claim(claim, now.wall_ns - now.boot_ns, BootTime(boot_id, 0))


def _without_times(claim: CommandClaim) -> CommandClaim:
    return msgspec.structs.replace(claim, start_ns=0, end_ns=None, start_boot=None, end_boot=None)


def _end_claim(claim: CommandClaim, end_ns: int, end_boot: BootTime | None) -> CommandClaim:
    """Return the claim with an end that is not before its start, on either clock."""
    start = claim.start_boot
    if end_boot and start and end_boot.boot_id == start.boot_id:
        end_boot = BootTime(start.boot_id, max(end_boot.boot_ns, start.boot_ns))
    return msgspec.structs.replace(claim, end_ns=max(end_ns, claim.start_ns), end_boot=end_boot)


def _claim_on_device(claim: CommandClaim, device: ClaimableDevice) -> NodeClaim:
    """Convert to the common type; a claim whose workload names a scheduler has that scheduler as source."""
    source, colon, workload = claim.workload.partition(":")
    if not colon or source not in SCHEDULERS:
        source, workload = COMMAND_PROVIDER, claim.workload
    return NodeClaim(
        source=source,
        authority=claim_terms.ClaimAuthority.SCHEDULER,
        workload=workload,
        owner=claim.owner,
        tenant=claim.tenant,
        gpu="",
        reference=claim.id,
        exclusive=claim.exclusive,
        system=claim.system,
        start_ns=claim.start_ns,
        start_boot=claim.start_boot,
        end_ns=claim.end_ns,
        end_boot=claim.end_boot,
        uncertainty_ns=0,
    ).claim_on_device(device, claim.share)
