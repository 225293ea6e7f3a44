"""Audited events are numbered without a gap before anything can be lost."""

from __future__ import annotations

from array import array

from hypothesis import given, strategies as st

from railscope.batch_encoding import encode_batches
from railscope.catalog.agent import GAP_EVENT, SOURCE_EVENT
from railscope.catalog.entities import DROP, SOURCE
from railscope.frame import Entity, Event, Frame, FrameOrigin, NodeTimestamp, Schema
from railscope_agent.shipping import EventNumbering

ORIGIN = FrameOrigin("n1", "run", "boot")
SCHEMA = Schema("agent", ())


def frame(sequence: int, audited: list[bool]) -> Frame:
    events = tuple(
        Event(GAP_EVENT, Entity(DROP, ("disk",)), 1, 1)
        if one
        else Event(SOURCE_EVENT, Entity(SOURCE, ("nic",)), 1, 1)
        for one in audited
    )
    return Frame(ORIGIN, SCHEMA, sequence, NodeTimestamp(1, sequence), array("q"), b"", events)


@given(st.lists(st.lists(st.booleans(), max_size=5), min_size=1, max_size=20))
def test_audited_events_and_only_they_count_on(wanted: list[list[bool]]) -> None:
    numbering = EventNumbering()
    frames = [numbering.number_events(frame(n, one)) for n, one in enumerate(wanted, 1)]
    sent = [event for batch in encode_batches(frames) for event in batch.events]
    assert [bool(event.number) for event in sent] == [one for each in wanted for one in each]
    numbers = [event.number for event in sent if event.number]
    assert numbers == list(range(1, len(numbers) + 1))
    assert [len(frame.events) for frame in frames] == [len(frame) for frame in wanted]
