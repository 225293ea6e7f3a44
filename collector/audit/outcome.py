"""What a check of an audit log can come to."""

from __future__ import annotations

from enum import IntEnum

from collector.audit.tiles import CutError


class Outcome(IntEnum):
    """What the check came to: the exit status of `railscope audit verify`."""

    CONSISTENT = 0
    ALTERED = 1
    """A record, a tile or a checkpoint is not what was signed."""
    TAIL_MISSING = 2
    """There are fewer records than were signed."""
    KEY_PROBLEM = 3
    """The key is not that of this log, or its policy forbids what was found."""
    FORKED = 4
    """Two signed checkpoints that no one log can have: it was rolled back, or there are two."""
    UNREADABLE = 5
    """What must be read cannot be: nothing was found out."""


class VerifyError(Exception):
    """The log does not hold; says what is wrong, and where."""

    def __init__(self, outcome: Outcome, message: str) -> None:
        super().__init__(message)
        self.outcome = outcome


def missing_or_altered(error: BaseException | None) -> Outcome:
    """The outcome where a tile cannot be read for this reason."""
    if isinstance(error, FileNotFoundError | NotADirectoryError | CutError):
        return Outcome.TAIL_MISSING
    return Outcome.UNREADABLE if isinstance(error, OSError) else Outcome.ALTERED
