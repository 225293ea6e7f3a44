"""Envelopes stay within the limits of a collector for any number of pending frames."""

from __future__ import annotations

from array import array

from hypothesis import given, strategies as st

from railscope.catalog.agent import GAP_EVENT
from railscope.catalog.entities import DROP
from railscope.frame import Entity, Event, Frame, FrameOrigin, NodeTimestamp, Schema
from railscope_agent.shipping.envelope_limits import (
    MAX_BYTES,
    MAX_EVENTS,
    MAX_FRAMES,
    split_into_envelopes,
)

SCHEMA = Schema("gpu", ())
ABOUT = Entity(DROP, ("disk",))


def frame(columns: int, events: int) -> Frame:
    gap_events = (Event(GAP_EVENT, ABOUT, 1, 1),) * events
    values = array("q", bytes(8 * columns))
    return Frame(
        FrameOrigin("n", "r", "b"), SCHEMA, 1, NodeTimestamp(1, 1), values, events=gap_events
    )


@given(
    st.lists(
        st.tuples(st.sampled_from([0, 10, 200_000]), st.sampled_from([0, 1, 1500])), max_size=30
    )
)
def test_parts_have_all_frames_in_order_and_are_bounded(shapes: list[tuple[int, int]]):
    frames = [frame(*shape) for shape in shapes]
    groups = list(split_into_envelopes(frames))
    assert [one for group in groups for one in group] == frames
    for group in groups:
        assert sum(8 * len(one.values) for one in group) <= MAX_BYTES
        assert sum(len(one.events) for one in group) <= MAX_EVENTS


def test_twenty_thousand_small_frames_are_five_envelopes():
    sizes = [len(group) for group in split_into_envelopes([frame(1, 0)] * 20_000)]
    assert sizes == [MAX_FRAMES] * 5
