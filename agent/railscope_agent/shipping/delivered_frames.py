"""Frames that each collector received, and that have left the spool.

They are missing at the other collectors. The agent states them when it sends to another one: only frames that no
collector received are lost. While several collectors respond at one URL, it states to each of them what the shared
database has, and up to which sequences it sends nothing again: what is missing after these may only be at another one.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import structlog

from railscope import durable_files, envelopes, timestamps, wire

log = structlog.get_logger(__name__)

DELIVERED_FILE = "delivered.json"
"""File in the state directory of an agent with several collectors."""
STATEMENT_NS = 60 * timestamps.SECOND_NS
"""Minimum time between two statements of new deliveries to collectors behind one URL."""
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
    is_always_recorded: bool = True
    """False for one URL: nothing is recorded until a second collector responds there."""
    runs: _Runs = field(default_factory=dict)
    _last: dict[int, tuple[str, dict[str, int]]] = field(default_factory=dict)
    """Run and last sequences of each envelope that has left the spool before an older one, by its number."""
    _decided: dict[str, dict[str, int]] = field(default_factory=dict)
    """Last sequences of the envelopes before the oldest one in the spool, by run."""

    def __post_init__(self) -> None:
        """Read the file. Raises OSError."""
        try:
            found = durable_files.read_json(self.directory / DELIVERED_FILE, _Runs)
        except durable_files.DamagedFileError as error:
            log.warning("delivered_frames_lost", problem=str(error))
        else:
            self.runs = found or {}

    def add(self, url: str, body: bytes, number: int = 0) -> None:
        """Add the frames of an envelope that a collector received, and write the file.

        `number` is that in the spool, if several collectors respond at the URL.
        """
        try:
            envelope = envelopes.open_body(body, MAX_ENVELOPE_BYTES).decode_envelope()
        except wire.WireError as error:
            log.warning("delivered_frames_lost", problem=str(error))
            return
        streams = self.runs.setdefault(envelope.run, {}).setdefault(url, {})
        last_sequences = {b.stream: b.first_sequence + b.rows - 1 for b in envelope.batches}
        for batch in envelope.batches:
            ranges = streams.setdefault(batch.stream, [])
            add_range(ranges, batch.first_sequence, last_sequences[batch.stream])
        if number:
            self._last[number] = envelope.run, last_sequences
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

    def of_shared_url(
        self, run: str, oldest: int, *, is_previous_decided: bool
    ) -> tuple[wire.DeliveredRun, ...]:
        """Return the frames that a shared database has, for any of the collectors behind one URL.

        `oldest` is the number of the oldest envelope in the spool: those before it are not sent again.
        """
        # Only then: an older envelope in the spool may have earlier sequences, which are still sent.
        for number in [number for number in self._last if number < oldest]:
            of_run, last_sequences = self._last.pop(number)
            decided = self._decided.setdefault(of_run, {})
            decided |= {s: max(n, decided.get(s, 0)) for s, n in last_sequences.items()}
        # An earlier run without envelopes in the spool sends nothing again, so all of its sequences are
        # decided.
        undecided_runs = [run] if is_previous_decided else [*self.runs, run]
        decided_by_run = {name: self._decided.get(name, {}) for name in undecided_runs}
        return tuple(
            wire.DeliveredRun(name, self._ranges(name), decided_by_run.get(name))
            for name in [*dict.fromkeys([*self.runs, run])][-_MAX_RUNS:]
        )

    def _ranges(self, run: str, without: str = "") -> dict[str, tuple[tuple[int, int], ...]]:
        """Return the sequences of a run that collectors received, by stream, except for those of one URL."""
        streams: dict[str, Ranges] = {}
        for url, ranges_by_stream in self.runs.get(run, {}).items():
            for stream, ranges in ranges_by_stream.items() if url != without else ():
                for first, last in ranges:
                    add_range(streams.setdefault(stream, []), first, last)
        return {stream: tuple(ranges) for stream, ranges in streams.items()}


@dataclass(slots=True)
class StatementSchedule:
    """Decides when to send a statement to collectors behind one URL: each of them needs it, and none can be chosen.

    A statement is repeated until all have received it, but at most twice per collector: some may not respond.
    """

    _receivers: set[str] = field(default_factory=set)
    """Logs of the collectors that have received frames of this run."""
    _informed: set[str] = field(default_factory=set)
    """Logs of those that have the newest statement."""
    _attempts: int = 0
    _changed: bool = False
    _since_ns: int = 0

    def record_envelope(self, log_name: str) -> None:
        """Record that a collector received an envelope."""
        self._receivers.add(log_name)
        # A collector that receives frames after the last attempts was not there to receive the statement.
        if log_name not in self._informed:
            self._attempts = 0

    def record_statement(self, log_name: str) -> None:
        """Record that a collector received a statement; without frames of the run, it has ignored it."""
        self._attempts += 1
        self._informed |= self._receivers & {log_name}

    def record_change(self) -> None:
        """Record that the database has further frames."""
        self._changed = True

    def is_due(self, logs: Collection[str], boot_ns: int) -> bool:
        """True if one of the collectors with these logs needs a statement."""
        if self._changed and boot_ns - self._since_ns >= STATEMENT_NS:
            self._informed.clear()
            self._attempts, self._changed, self._since_ns = 0, False, boot_ns
        waiting = self._receivers.intersection(logs) - self._informed
        # A load balancer chooses the receiver, so that one collector may get several statements before
        # another gets its first.
        return bool(waiting) and self._attempts < 2 * len(logs)
