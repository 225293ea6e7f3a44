"""Periodic verification of the collector's own audit log.

The log is verified in full like `railscope audit verify`, so the collector is the first to detect what
others can detect. Only this detects a record that was altered after it was signed: it is
not signed again, and no checkpoint that agents hold contradicts it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import structlog

from railscope import service, timestamps
from railscope.audit import signed_note
from railscope_collector import archive_stores
from railscope_collector.audit import verify_outcome
from railscope_collector.audit.verification import verify_log
from railscope_collector.ledger import schema
from railscope_collector.ledger.database import Database, UnusableLedgerError

log = structlog.get_logger(__name__)

FIRST_SECONDS = 300.0
"""Delay before the first verification, to keep resources free during a start."""


@dataclass(slots=True)
class PeriodicVerification:
    """Verifies a log periodically; provides the result, and the age of the last success."""

    database: Callable[[], Database]
    """The ledger's database, which has the log, and is compared with its records."""
    key: signed_note.PublicKey
    period_seconds: float
    """Seconds between two verifications; zero disables them."""
    clock_ns: Callable[[], int]
    """Nanoseconds since a fixed point, independent of the wall clock."""
    archive: archive_stores.ArchiveReader | None = None
    anchors: Callable[[], Iterable[str]] = tuple
    """Checkpoints of agents that the log must contain."""
    is_valid: bool | None = None
    """Result of the last verification; None if none has had a result yet."""
    _valid_ns: int = 0

    async def run(self) -> None:
        """Verify once per period, until cancelled."""
        if not self.period_seconds:
            return
        await asyncio.sleep(min(self.period_seconds, FIRST_SECONDS))
        while True:
            await self.read()
            await asyncio.sleep(self.period_seconds)

    async def read(self) -> None:
        """Verify the log once, on a separate thread."""
        # The time of the beginning: what was changed during the verification may not have been read.
        began_ns = self.clock_ns()
        try:
            await service.run_in_thread(self._verify)
        except verify_outcome.LogVerificationError as error:
            outcome = error.outcome.name.lower()
            log.error("audit_verification_failed", outcome=outcome, problem=str(error))
            # Without a result, the previous one stays; its age shows that it is old.
            if error.outcome is not verify_outcome.VerifyOutcome.UNREADABLE:
                self.is_valid = False
        else:
            self.is_valid, self._valid_ns = True, began_ns

    def _verify(self) -> None:
        """Verify the log, and compare the ledger with it. Raises LogVerificationError."""
        with verify_outcome.raise_verify_error(
            verify_outcome.VerifyOutcome.UNREADABLE, UnusableLedgerError, OSError
        ):
            begin = partial(self.database().transaction, is_snapshot=True)
            anchors = self.anchors()
        verify_log(
            begin, self.key, anchors, self.archive, known_tables=schema.metadata, ledger=begin
        )

    @property
    def age_seconds(self) -> float | None:
        """Seconds since the log was last verified successfully; None if it has not been yet."""
        return (self.clock_ns() - self._valid_ns) / timestamps.SECOND_NS if self._valid_ns else None
