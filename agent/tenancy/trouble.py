"""Claim providers that could not be read: findings, remedies and the claims that stay."""

from __future__ import annotations

from agent.sampling.source import Finding, Verdict
from agent.tenancy.held import Held, Told
from railscope.reading import Absent, reason_of

AS_ROOT = "run the agent as root, or with the drop-in of deploy/systemd/tenancy.conf"


def finding(what: str, error: Exception, remedy: str) -> Finding:
    """Return the finding for a provider that could not be read."""
    reason = reason_of(error) if isinstance(error, OSError) else Absent.ERROR
    if reason is Absent.DENIED:
        return Finding(what, Verdict.DENIED, str(error), AS_ROOT)
    return Finding(what, Verdict.BROKEN, str(error), remedy)


def unread(what: str, error: Exception, remedy: str) -> Told:
    """Return the result of a failed poll: claims in force stay."""
    reason = reason_of(error) if isinstance(error, OSError) else Absent.ERROR
    return Told((), (finding(what, error, remedy),), reason)


def carried(in_force: tuple[Held, ...], **of: object) -> tuple[Held, ...]:
    """Return the claims in force with these properties, which stay as they are after a failed read."""
    return tuple(
        held for held in in_force if all(getattr(held, name) == value for name, value in of.items())
    )
