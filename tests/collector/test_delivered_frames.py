"""Frames that another collector received are not missing; lost ones are, whichever collectors an agent uses."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import given, strategies as st
from makers import FrameSender, gpu_schema
from support.examples import fewer_examples

from railscope.frame import Frame
from railscope_agent.shipping.delivered_frames import DeliveredFrames
from railscope_collector.framelog.received_frames import ReceivedFrames

COLLECTORS = ("a", "b", "c")


def frames_of(sender: FrameSender, count: int) -> list[Frame]:
    first = sender.sequences.get("gpu", 0)
    rows = [[50, 60, 1000, 2000, 10 * t, 20 * t] for t in range(first, first + count)]
    return sender.frames(gpu_schema("n1"), rows, at=first)


@fewer_examples(40)
@given(
    st.lists(
        st.tuples(st.integers(1, 3), st.sampled_from([*COLLECTORS, "lost"]), st.booleans()),
        max_size=14,
    )
)
def test_exactly_the_lost_frames_are_missing(steps: list[tuple[int, str, bool]]) -> None:
    """Envelopes to some collector, or to none. An agent states what others received before it sends to another one."""
    directory = Path(tempfile.mkdtemp())
    try:
        sender, delivered = FrameSender(), DeliveredFrames(directory)
        received = {name: ReceivedFrames() for name in COLLECTORS}
        came: set[int] = set()
        own: dict[str, set[int]] = {name: set() for name in COLLECTORS}
        for count, target, is_restarted in steps:
            frames = frames_of(sender, count)
            if is_restarted:
                delivered = DeliveredFrames(directory)
            if target == "lost":
                continue
            sequences = [frame.sequence for frame in frames]
            received[target].record_delivered("n1", delivered.elsewhere(target))
            received[target].add("n1", "run-1", "gpu", sequences[0], sequences[-1], 1)
            delivered.add(target, sender.body(frames))
            came.update(sequences)
            own[target].update(sequences)
            known = range(min(own[target]), max(own[target]) + 1)
            assert received[target].count_missing() == len(set(known) - came)
    finally:
        shutil.rmtree(directory)
