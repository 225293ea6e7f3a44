"""Outcome of a verification of the audit log, and the errors that have it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum

from railscope_collector.audit import AuditLogError


class VerifyOutcome(IntEnum):
    """Outcome of a check: the exit status of `railscope audit verify`."""

    CONSISTENT = 0
    ALTERED = 1
    """A record, a hash, a table or a checkpoint is not what was signed."""
    TAIL_MISSING = 2
    """There are fewer records than were signed."""
    KEY_PROBLEM = 3
    """The key is not that of this log, or its policy forbids the finding."""
    FORKED = 4
    """Two signed checkpoints that no single log can have: a rollback, or two logs with one key."""
    UNREADABLE = 5
    """The database or a file that is needed cannot be read: the check has no result."""
    UNCHECKED = 6
    """Archived records were not read; everything else is consistent."""


class LogVerificationError(AuditLogError):
    """The log is not valid; the message states the defect and its location."""

    def __init__(self, outcome: VerifyOutcome, message: str) -> None:
        super().__init__(message)
        self.outcome = outcome


@contextmanager
def raise_verify_error(
    outcome: VerifyOutcome, *errors: type[Exception], prefix: str = ""
) -> Iterator[None]:
    """Raise LogVerificationError with this outcome in place of the errors; `prefix` precedes the message."""
    try:
        yield
    except errors as error:
        raise LogVerificationError(outcome, f"{prefix}{error}") from error
