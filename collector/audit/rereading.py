"""Periodic verification of the collector's own audit log, complete as by `railscope audit verify`.

The collector detects first what others can detect. Nothing else would show a record that was altered on
disk after its tile was full: it is not signed again, and no checkpoint that agents hold contradicts it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import structlog

from collector.audit.ledger_comparison import compare
from collector.audit.outcome import Outcome, VerifyError
from collector.audit.verify import verify
from collector.ledger.database import Database, LedgerError
from railscope.audit.note import PublicKey

log = structlog.get_logger(__name__)

FIRST_SECONDS = 300.0
"""Delay before the first verification, to keep resources free during a start."""
_NS = 1_000_000_000


class BootClock(Protocol):
    """Nanoseconds since a fixed point, independent of the wall clock."""

    def __call__(self) -> int:
        """Return the current time in nanoseconds."""
        ...


@dataclass(slots=True)
class Rereading:
    """Verifies a log periodically; provides the result, and the age of the last success."""

    directory: Path
    key: PublicKey
    period_seconds: float
    """Zero disables verification."""
    clock_ns: BootClock
    database: Callable[[], Database] | None = None
    """The ledger's database, which is compared with its records."""
    whole: bool | None = None
    """Result of the last verification; None if none has had a result yet."""
    _whole_ns: int = 0

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
        began_ns = self.clock_ns()
        try:
            await asyncio.to_thread(self._verify)
        except VerifyError as error:
            outcome = error.outcome.name.lower()
            log.error("audit_log_not_verified", outcome=outcome, problem=str(error))
            if error.outcome is not Outcome.UNREADABLE:
                self.whole = False
        else:
            self.whole, self._whole_ns = True, began_ns

    def _verify(self) -> None:
        """Verify the log, then compare the ledger with it. Raises VerifyError."""
        found = verify(self.directory, self.key)
        if self.database is None:
            return
        try:
            compare(self.database(), found.ledger)
        except LedgerError as error:
            raise VerifyError(Outcome.UNREADABLE, str(error)) from error

    @property
    def age_seconds(self) -> float | None:
        """Seconds since the log was last verified successfully; None if it has not been yet."""
        return (self.clock_ns() - self._whole_ns) / _NS if self._whole_ns else None
