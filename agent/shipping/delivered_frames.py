"""Frames that each collector received, and that have left the spool.

They are missing at the other collectors. The agent states them when it sends to another one: only frames that no
collector received are lost.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import structlog

from railscope import durable_files, envelopes, wire

log = structlog.get_logger(__name__)

DELIVERED_FILE = "delivered.json"
"""File in the state directory of an agent with several collectors."""
_MAX_RUNS = 2
_MAX_BYTES = 64 << 20
Ranges: TypeAlias = list[tuple[int, int]]
"""Sequences from the first to the last of each range, in order."""
_Runs: TypeAlias = dict[str, dict[str, dict[str, Ranges]]]


def add_range(ranges: Ranges, first: int, last: int) -> None:
    """Add sequences, joining adjacent ranges; the oldest of too many ranges are dropped."""
    joined: Ranges = []
    for low, high in sorted([*ranges, (first, last)]):
        if joined and low <= joined[-1][1] + 1:
            joined[-1] = joined[-1][0], max(high, joined[-1][1])
        else:
            joined.append((low, high))
    ranges[:] = joined[-wire.MAX_DELIVERED_RANGES :]


@dataclass(slots=True)
class DeliveredFrames:
    """Sequences of the frames that have left the spool, by run, URL of the collector that received them, and stream.

    Methods block. Those of earlier runs than the previous one are dropped.
    """

    directory: Path
    runs: _Runs = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Read the file. Raises OSError."""
        try:
            found = durable_files.read_json(self.directory / DELIVERED_FILE, _Runs)
        except durable_files.DamagedFileError as error:
            log.warning("delivered_frames_lost", problem=str(error))
        else:
            self.runs = found or {}

    def add(self, url: str, body: bytes) -> None:
        """Add the frames of an envelope that a collector received, and write the file."""
        try:
            envelope = envelopes.open_body(body, _MAX_BYTES).decode_envelope()
        except wire.WireError as error:
            log.warning("delivered_frames_lost", problem=str(error))
            return
        streams = self.runs.setdefault(envelope.run, {}).setdefault(url, {})
        for batch in envelope.batches:
            last = batch.first_sequence + batch.rows - 1
            add_range(streams.setdefault(batch.stream, []), batch.first_sequence, last)
        for run in [*self.runs][:-_MAX_RUNS]:
            del self.runs[run]
        try:
            durable_files.replace_json(self.directory / DELIVERED_FILE, self.runs)
        except OSError as error:
            # Only a restart of the agent needs the file; it is written again with the next envelope.
            log.warning("delivered_frames_write_failed", problem=str(error))

    def elsewhere(self, url: str) -> tuple[wire.DeliveredRun, ...]:
        """Return the frames that other collectors received."""
        found = []
        for run, urls in self.runs.items():
            streams: dict[str, Ranges] = {}
            for other, ranges_by_stream in urls.items():
                for stream, ranges in ranges_by_stream.items() if other != url else ():
                    for first, last in ranges:
                        add_range(streams.setdefault(stream, []), first, last)
            if streams:
                found.append(wire.DeliveredRun(run, {s: tuple(r) for s, r in streams.items()}))
        return tuple(found)
