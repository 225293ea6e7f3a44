"""Envelopes that a node sends regularly, and envelopes received while the collector's clock was wrong."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from msgspec.structs import replace
from support.story import Envelopes, NodeReporter, gpus_of, temporary_core

from railscope.frame import Event
from railscope_collector.framelog.segment_files import (
    FrameLogStats,
    encode_record,
    frame_payload,
    start_segment,
)
from railscope_collector.state.collector_state import CollectorState
from railscope_collector.state.state_checkpointer import StateCheckpointer

HOUR = 3600
SENT = 600
"""Seconds from one envelope to the next."""
Events = dict[int, list[Event]]


def sample_envelopes(
    *gpus: str, until: int, step: int = 30, events: Events | None = None, node: str = "n1"
) -> Envelopes:
    """Return the samples of a node's GPUs from second 0 on, in an envelope every ten minutes."""
    seconds = range(0, until + 1, step)
    return NodeReporter(node).envelopes_of(
        gpus_of(*gpus), seconds, events=events, each=SENT // step
    )


def wrong_clock_envelopes(
    envelopes: Envelopes, first: int, end: int, delta_ns: int
) -> tuple[Envelopes, int]:
    """Return the envelopes, some of them received by a clock that was wrong, and the start of that time."""
    if first >= end:
        return envelopes, 0
    since_ns = envelopes[first][0].received_wall_ns - delta_ns
    wrong = [
        (replace(r, received_wall_ns=r.received_wall_ns - delta_ns, doubted_since_ns=since_ns), e)
        for r, e in envelopes[first:end]
    ]
    return [*envelopes[:first], *wrong, *envelopes[end:]], since_ns


def read_again(envelopes: Envelopes, corrections: dict[int, int]) -> CollectorState:
    """Return the state of a collector that starts from a frame log with these records."""
    with tempfile.TemporaryDirectory() as directory:
        return _read_again(Path(directory), envelopes, corrections)


def _read_again(
    directory: Path, envelopes: Envelopes, corrections: dict[int, int]
) -> CollectorState:
    (directory / "frames").mkdir()
    descriptor, marker = start_segment(directory / "frames", 1)
    with os.fdopen(descriptor, "wb") as file:
        file.writelines(frame_payload(marker, encode_record(record)) for record, _ in envelopes)
    core = temporary_core()
    for _, envelope in envelopes:
        for schema in envelope.schemas:
            core.schemas.put(schema)
    restart = StateCheckpointer(directory, core)
    restart.restore(FrameLogStats(), corrections)
    assert not restart.quarantine.records
    return core
