"""An audit log that records the events of agents from a frame log."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec
from support.audit import audit_log, running_log
from support.waiting import wait_until

from railscope.audit.record import AuditRecord, decode_audit_record
from railscope.service import run_in_thread
from railscope.wire import VERSION, Batch, Envelope, SentAt
from railscope_collector.audit.event_recorder import EventRecorder
from railscope_collector.audit.log_secrets import PersonalSalts
from railscope_collector.fleet.recent_events import SeenEvent
from railscope_collector.framelog.framelog import FrameLog
from railscope_collector.framelog.segment_files import FrameRecord


@dataclass
class RecordingLog:
    """A frame log, and the recorder that follows it."""

    frames: FrameLog
    recorder: EventRecorder

    async def receive(self, *seen: SeenEvent) -> None:
        """Store events in the frame log, each in an envelope of its own."""
        for each in seen:
            await self.store(*envelope_of(each))

    async def store(self, record: FrameRecord, envelope: Envelope) -> None:
        """Store an envelope in the frame log."""
        fields = (
            record.node,
            record.received_wall_ns,
            record.sent,
            msgspec.msgpack.encode(envelope),
        )
        await self.frames.append(FrameRecord(*fields), lambda _end: None)

    async def recorded(self, *seen: SeenEvent) -> list[AuditRecord]:
        """All that was recorded of agents and nodes, once these events are in the log."""
        await self.receive(*seen)
        end = (self.frames.number, self.frames.offset)
        await wait_until(
            lambda: self.recorder.position >= end, "all events are recorded", every=0.001
        )
        await self.recorder.audit.sign()
        return [decode_audit_record(raw) for raw in self.recorder.audit.records(1)]


def envelope_of(seen: SeenEvent) -> tuple[FrameRecord, Envelope]:
    """Return an envelope with an event, with the record of its arrival."""
    event, position = seen.event, seen.position
    assert position is not None
    times = (position.received_ns,), (1,)
    batch = Batch(
        position.stream, b"", b"", position.sequence - event.row, *times, b"", b"", events=(event,)
    )
    envelope = Envelope(VERSION, seen.node, position.run, seen.boot_id, batches=(batch,))
    sent = SentAt(position.received_ns, 1, seen.boot_id)
    return FrameRecord(seen.node, position.received_ns, sent, b""), envelope


@contextlib.asynccontextmanager
async def run_recorder(
    directory: Path, boot: str = "b0", segment_bytes: int = 1 << 20, copy_records: int = 10_000
) -> AsyncIterator[RecordingLog]:
    """A running log, a frame log, and the recorder between them."""
    frames = FrameLog(directory / "log" / "frames", segment_bytes, 0)
    frames.open()
    frames.begin()
    storing = asyncio.create_task(frames.run())
    async with running_log(audit_log(directory / "log", boot=boot)) as log:
        await run_in_thread(log.follow)
        recorder = EventRecorder(
            log,
            PersonalSalts(directory / "personal"),
            frames.directory,
            # Without the checks of ingest, which reject most hostile texts.
            lambda record: (record, msgspec.msgpack.decode(record.body, type=Envelope)),
            poll_seconds=0.001,
            copy_records=copy_records,
        )
        recorder.open()
        task = asyncio.create_task(recorder.run())
        try:
            yield RecordingLog(frames, recorder)
        finally:
            task.cancel()
            storing.cancel()
            await asyncio.wait({task, storing})
            frames.close()


async def recorded_events(
    recording: RecordingLog, events: Iterable[SeenEvent]
) -> list[AuditRecord]:
    """Records of events, without the start of their node."""
    found = await recording.recorded(*events)
    return [record for record in found if record.type != "node.join" or "event" in record.data]
