"""The collector reads its own audit log from time to time, all of it, as `railscope audit verify` does.

What others can find out is found out here first: a record that was changed where it lies is signed
no more once its tile is filled, and no checkpoint that agents hold contradicts it.
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
"""So long a collector that has just started has better things to do."""
_NS = 1_000_000_000


class BootClock(Protocol):
    """Nanoseconds since some fixed point, whatever happens to the wall clock."""

    def __call__(self) -> int:
        """Say what time it is."""
        ...


@dataclass(slots=True)
class Rereading:
    """Verifies a log again and again; says what came of it, and how long ago it was whole."""

    directory: Path
    key: PublicKey
    period_seconds: float
    """Zero: never."""
    clock_ns: BootClock
    database: Callable[[], Database] | None = None
    """The ledger's, which is compared with its records."""
    whole: bool | None = None
    """What the last reading found; None where none has found out anything yet."""
    _whole_ns: int = 0

    async def run(self) -> None:
        """Read at every period, until cancelled."""
        if not self.period_seconds:
            return
        await asyncio.sleep(min(self.period_seconds, FIRST_SECONDS))
        while True:
            await self.read()
            await asyncio.sleep(self.period_seconds)

    async def read(self) -> None:
        """Read the log once, on a thread of its own."""
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
        """Verify the log, then the ledger by it. Raises VerifyError."""
        found = verify(self.directory, self.key)
        if self.database is None:
            return
        try:
            compare(self.database(), found.ledger)
        except LedgerError as error:
            raise VerifyError(Outcome.UNREADABLE, str(error)) from error

    @property
    def age_seconds(self) -> float | None:
        """How long ago the log was whole; None where it has not been found to be yet."""
        return (self.clock_ns() - self._whole_ns) / _NS if self._whole_ns else None
