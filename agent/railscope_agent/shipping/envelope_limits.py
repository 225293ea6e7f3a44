"""Limits of one envelope, and the division of frames into envelopes within them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from railscope.frame import Frame
from railscope.wire import BYTES_PER_VALUE

MAX_FRAMES, MAX_BYTES = 4_000, 8 << 20
MAX_EVENTS = 4_000
"""Many events may be pending after a disk hang. All limits are at most half of what a collector accepts by default:
its settings limits.decompressed_bytes, limits.frames_per_envelope and limits.events_per_envelope."""


def split_into_envelopes(frames: Sequence[Frame]) -> Iterator[list[Frame]]:
    """Yield frames in groups that are within the bounds of an envelope."""
    group: list[Frame] = []
    size = events = 0
    for frame in frames:
        frame_bytes = len(frame.values) * BYTES_PER_VALUE + len(frame.reasons)
        full = len(group) >= MAX_FRAMES or size + frame_bytes > MAX_BYTES
        # A single frame above a limit is sent alone: the collector decides about it.
        if group and (full or events + len(frame.events) > MAX_EVENTS):
            yield group
            group, size, events = [], 0, 0
        group.append(frame)
        size += frame_bytes
        events += len(frame.events)
    if group:
        yield group
