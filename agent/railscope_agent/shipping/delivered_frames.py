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
# This run, and the previous one, whose envelopes may still be in the spool.
_MAX_RUNS = 2
MAX_ENVELOPE_BYTES = 64 << 20
"""Decompressed size of the largest envelope that is decoded here."""
Ranges: TypeAlias = list[tuple[int, int]]
"""Sequences from the first to the last of each range, in order."""
_Runs: TypeAlias = dict[str, dict[str, dict[str, Ranges]]]


def add_range(ranges: Ranges, first: int, last: int) -> None:
    """Add sequences, joining adjacent ranges; the oldest of too many ranges are dropped."""
    joined: Ranges = []
    # Envelopes are acknowledged out of order when collectors change, so any two ranges may become adjacent.
    for low, high in sorted([*ranges, (first, last)]):
        if joined and low <= joined[-1][1] + 1:
            joined[-1] = joined[-1][0], max(high, joined[-1][1])
        else:
            joined.append((low, high))
    # The collector rejects statements with more ranges.
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
            envelope = envelopes.open_body(body, MAX_ENVELOPE_BYTES).decode_envelope()
        except wire.WireError as error:
            log.warning("delivered_frames_lost", problem=str(error))
            return
        streams = self.runs.setdefault(envelope.run, {}).setdefault(url, {})
        for batch in envelope.batches:
            ranges = streams.setdefault(batch.stream, [])
            add_range(ranges, batch.first_sequence, batch.first_sequence + batch.rows - 1)
        for run in [*self.runs][:-_MAX_RUNS]:
            del self.runs[run]
        try:
            durable_files.replace_json(self.directory / DELIVERED_FILE, self.runs)
        except OSError as error:
            # Only a restart of the agent needs the file; it is written again with the next envelope.
            log.warning("delivered_frames_write_failed", problem=str(error))

    def elsewhere(self, url: str) -> tuple[wire.DeliveredRun, ...]:
        """Return the frames that other collectors received."""
        found = (wire.DeliveredRun(run, self._ranges(run, without=url)) for run in self.runs)
        return tuple(stated for stated in found if stated.streams)

    def _ranges(self, run: str, without: str) -> dict[str, tuple[tuple[int, int], ...]]:
        """Return the sequences of a run that collectors received, by stream, except for those of one URL."""
        streams: dict[str, Ranges] = {}
        for url, ranges_by_stream in self.runs.get(run, {}).items():
            for stream, ranges in ranges_by_stream.items() if url != without else ():
                for first, last in ranges:
                    add_range(streams.setdefault(stream, []), first, last)
        return {stream: tuple(ranges) for stream, ranges in streams.items()}
