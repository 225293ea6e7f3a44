"""Records about the collector's clock: that it became suspect, or recovered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from railscope.audit import record
from railscope.service import run_in_thread
from railscope_collector.audit.audit_trail import AuditTrail
from railscope_collector.clock import ClockState, CollectorClock
from railscope_collector.ledger import record_draft

log = structlog.get_logger(__name__)

RELOAD_AGAIN_SECONDS = 10.0


@dataclass(slots=True)
class ClockRecords:
    """Records that the collector's clock became suspect or recovered; `run` it while the log runs."""

    trail: AuditTrail
    clock: CollectorClock
    reload: Callable[[], None]
    """Restarts the collector, to assign frames new timestamps by an accepted clock."""
    _drafts: list[record_draft.RecordDraft] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Follow the clock."""
        self.clock.on_change.append(self._add)

    def _add(self, state: ClockState) -> None:
        data: record.RecordData = {
            "problem": state.problem,
            "reference_ns": str(state.reference_ns),
        }
        if self.clock.is_replaced:
            decided = state.corrections[-1]
            data["since_ns"], data["delta_ns"] = str(decided.since_ns), str(decided.delta_ns)
        outcome = "failed" if state.problem else "done"
        self._drafts.append(self.trail.draft("evidence.clock_step", data, outcome=outcome))

    async def run(self) -> None:
        """Check the clock every second, store its reference, and record changes, until cancelled."""
        reload_at = 0.0
        while True:
            await asyncio.sleep(1)
            self.clock.now_ns()
            if self.clock.is_store_due:
                await run_in_thread(self.clock.store)
            while self._drafts:
                # Removed only when it is durable: a failed append is repeated.
                await self.trail.log.append(self._drafts[0])
                self._drafts.pop(0)
            loop_time = asyncio.get_running_loop().time()
            if self.clock.is_replaced and loop_time >= reload_at:
                # Repeated if it was rejected: nothing is stored before the restart.
                reload_at = loop_time + RELOAD_AGAIN_SECONDS
                log.info("restart_requested", reason="accepted clock")
                self.reload()
