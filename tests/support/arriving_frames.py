"""Frames of recorded nodes, as a running collector receives them."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from railscope.envelopes import unpack
from railscope.shapes import SchemaTable
from railscope.timestamps import SECOND_NS
from railscope.wire import Envelope, SentAt, pack
from railscope_agent.commands.replay import CaptureReplay
from railscope_agent.config import AgentSettings
from railscope_collector.commands.diagnose import MAX_ENVELOPE_BYTES
from railscope_collector.framelog import segment_files
from railscope_collector.live_diagnosis.diagnosis_engine import ReceivedBatches
from railscope_collector.workloads.job_roster import JobKey

STEP_NS = 10 * SECOND_NS
DELAY_NS = SECOND_NS // 5
OFFSET_NS = -3 * SECOND_NS
"""The nodes' clocks are behind the collector's."""


def write_frame_log(
    captures: Path, directory: Path, sources: Collection[str] = (), metrics: Collection[str] = ()
) -> None:
    """Write the frame log of a collector that received captures of nodes: one sample in each envelope."""
    (directory / "frames").mkdir(parents=True)
    descriptor, marker = segment_files.start_segment(directory / "frames", 1)
    for node in sorted(path for path in captures.iterdir() if path.is_dir()):
        for envelope in CaptureReplay(node, AgentSettings(), sources, metrics).envelopes(1):
            batch = envelope.batches[0]
            sent = SentAt(batch.wall_ns[-1], batch.boot_ns[-1], envelope.boot_id)
            record = segment_files.FrameRecord(envelope.node, sent.wall_ns, sent, pack(envelope))
            content = segment_files.encode_record(record)
            os.write(descriptor, segment_files.frame_payload(marker, content))
    os.close(descriptor)


@dataclass
class ArrivingFrames:
    """Frames of recorded nodes, as a collector receives them: one sample in each envelope."""

    envelopes: list[tuple[int, Envelope]] = field(default_factory=list)
    schemas: SchemaTable = field(default_factory=SchemaTable)
    jobs: dict[JobKey, list[str]] = field(default_factory=dict)

    def read(self, frame_log: Path) -> None:
        """Read the frame log of a collector."""
        segment = segment_files.segment_path(frame_log / "frames", 1)
        for _, record in segment_files.read_segment(segment, segment_files.FrameLogStats()):
            self._add(unpack(record.body, MAX_ENVELOPE_BYTES), record.received_wall_ns)
        self.envelopes.sort(key=lambda each: each[0])

    def _add(self, envelope: Envelope, sent_ns: int) -> None:
        self.schemas.add(envelope)
        self.envelopes.append((sent_ns - OFFSET_NS + DELAY_NS, envelope))
        for event in (event for batch in envelope.batches for event in batch.events):
            if event.name == "claim_start":
                facts = event.facts
                key = JobKey("physics", facts["source"], facts["workload"])
                self.jobs.setdefault(key, []).append(event.entity.key[0])

    @property
    def start_ns(self) -> int:
        """Time of the first receipt."""
        return self.envelopes[0][0]

    def records(self, from_ns: int, to_ns: int) -> list[segment_files.FrameRecord]:
        """Return the records of what arrives in a time."""
        return [
            segment_files.FrameRecord(
                each.node,
                received_ns,
                SentAt(received_ns + OFFSET_NS - DELAY_NS, 1, each.boot_id),
                pack(each),
            )
            for received_ns, each in self.envelopes
            if from_ns <= received_ns < to_ns
        ]

    def between(self, from_ns: int, to_ns: int) -> list[ReceivedBatches]:
        """Return what arrives in a time."""
        return [
            ReceivedBatches(each.node, each.run, received_ns, OFFSET_NS - DELAY_NS, each.batches)
            for received_ns, each in self.envelopes
            if from_ns <= received_ns < to_ns
        ]
