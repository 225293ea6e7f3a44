"""Outcomes of a check of an audit log."""

from __future__ import annotations

from enum import IntEnum

from collector.audit.tiles import CutError


class Outcome(IntEnum):
    """Outcome of a check: the exit status of `railscope audit verify`."""

    CONSISTENT = 0
    ALTERED = 1
    """A record, a tile or a checkpoint is not what was signed."""
    TAIL_MISSING = 2
    """There are fewer records than were signed."""
    KEY_PROBLEM = 3
    """The key is not that of this log, or its policy forbids the finding."""
    FORKED = 4
    """Two signed checkpoints that no single log can have: a rollback, or two logs with one key."""
    UNREADABLE = 5
    """A file that is needed cannot be read: the check has no result."""


class VerifyError(Exception):
    """The log is not valid; the message states the defect and its location."""

    def __init__(self, outcome: Outcome, message: str) -> None:
        super().__init__(message)
        self.outcome = outcome


def missing_or_altered(error: BaseException | None) -> Outcome:
    """Return the outcome if a tile cannot be read for this reason."""
    if isinstance(error, FileNotFoundError | NotADirectoryError | CutError):
        return Outcome.TAIL_MISSING
    return Outcome.UNREADABLE if isinstance(error, OSError) else Outcome.ALTERED
