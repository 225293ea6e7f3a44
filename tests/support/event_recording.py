"""An audit log that records the events of agents."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

from support.agent_events import AgentEvents
from support.audit import audit_log, running_log
from support.waiting import wait_until

from railscope.audit.record import AuditRecord, decode_audit_record
from railscope.service import run_in_thread
from railscope_collector.audit.event_recorder import EventRecorder
from railscope_collector.audit.log_secrets import PersonalSalts
from railscope_collector.fleet.recent_events import SeenEvent
from railscope_collector.state_store import StateStore


@contextlib.asynccontextmanager
async def run_observers(
    directory: Path, boot: str = "b0", again: Iterable[SeenEvent] = (), max_waiting: int = 20_000
) -> AsyncIterator[EventRecorder]:
    """A running log and what observes agents for it."""
    async with running_log(audit_log(directory / "log", boot=boot)) as log:
        await run_in_thread(log.follow)
        store = StateStore(directory)
        store.open()
        observed = EventRecorder(
            log,
            PersonalSalts(directory / "personal"),
            store,
            lambda: iter(tuple(again)),
            max_waiting,
        )
        observed.open()
        task = asyncio.create_task(observed.run())
        try:
            yield observed
        finally:
            task.cancel()
            await asyncio.wait({task})
            store.close()


async def recorded_events(
    observed: EventRecorder, events: Iterable[SeenEvent]
) -> list[AuditRecord]:
    """All that was recorded of agents and nodes, once these events are in the log."""
    for seen in events:
        observed.queue_event(seen)
    return await wait_for_records(observed)


async def wait_for_records(observed: EventRecorder) -> list[AuditRecord]:
    await wait_until(
        lambda: not observed.waiting_items and observed.snapshot() is not None,
        "all events are in the log",
        every=0.001,
    )
    await observed.audit.sign()
    return [decode_audit_record(raw) for raw in observed.audit.records(1)]


def record_events(observed: EventRecorder, tellers: Iterable[AgentEvents]) -> None:
    """An envelope of each."""
    for teller in tellers:
        observed.check_envelope(*teller.envelope(1))
