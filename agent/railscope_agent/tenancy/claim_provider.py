"""Interface of a claim provider, and its report.

For a claim provider that could not be read, a report has findings and remedies, and the claims in
force stay.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from railscope.reading import Absent, reason_of
from railscope_agent.host import Host
from railscope_agent.sampling.probe_result import ProbeFinding, ProbeVerdict
from railscope_agent.tenancy.claims import NodeClaim
from railscope_agent.tenancy.devices import NodeDevices

RUN_AS_ROOT = "run the agent as root, or with the drop-in of deploy/systemd/tenancy.conf"


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


def unread_claims(
    in_force: Iterable[NodeClaim], read: Collection[NodeClaim]
) -> Iterator[NodeClaim]:
    """Yield claims in force that could not be read, except those on a device that a claim in `read` has got since."""
    for claim in in_force:
        is_granted_again = claim.gpu and any(
            other.gpu == claim.gpu
            and (claim.exclusive or other.exclusive)
            and claim.compute.overlaps(other.compute)
            for other in read
        )
        if not is_granted_again:
            yield claim
