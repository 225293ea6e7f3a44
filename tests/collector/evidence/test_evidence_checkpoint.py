"""Snapshots that are made while frames arrive."""

from __future__ import annotations

from itertools import islice

import numpy as np
from fleet_history import fleet_histories
from hypothesis import given, strategies as st
from support.checkpoints import facts_of, resume_from
from support.examples import fewer_examples
from support.story import accept, temporary_core

from railscope_collector.state.collector_state import CollectorState
from railscope_collector.state.snapshot_parts import encode_part, make_parts


def present_of(core: CollectorState) -> dict[tuple[str, str], tuple[int, list[int], list[float]]]:
    """Content of the newest frame of each stream."""
    return {
        (name, stream): (
            row.timestamp_ns,
            row.block.values_of(row.index).tolist(),
            row.block.rates[row.index].tolist(),
        )
        for name, node in core.fleet.nodes.items()
        for stream, row in node.rows.items()
    }


@fewer_examples(60)
@given(fleet_histories(), st.lists(st.integers(1, 30), min_size=1, max_size=4), st.data())
def test_facts_during_a_snapshot_are_neither_lost_nor_counted_twice(story, sizes, data):
    """A restart reads the snapshot, and all records after the position at which it was begun."""
    envelopes = story.envelopes(sizes)
    cut = data.draw(st.integers(0, len(envelopes)))
    before, restarted, late = temporary_core(), temporary_core(), temporary_core()
    accept(before, envelopes[:cut])
    parts, written = make_parts(before), []
    for envelope in envelopes[cut:]:
        written += map(encode_part, islice(parts, data.draw(st.integers(0, 4))))
        accept(before, [envelope])
    written += map(encode_part, parts)
    resume_from(restarted, written)
    accept(restarted, envelopes[cut:])
    assert restarted.received == before.received
    assert facts_of(restarted)[0] == facts_of(before)[0]
    assert restarted.evidence.unwritten.keys() == before.evidence.unwritten.keys()
    intervals = [
        {key: kept.interval.sorted_copy() for key, kept in core.evidence.quarters.by_key.items()}
        for core in (restarted, before)
    ]
    assert intervals[0] == intervals[1]
    assert {seen.key for seen in restarted.events} == {seen.key for seen in before.events}
    accept(late, envelopes[cut:])
    for stream, reported in present_of(late).items():
        assert present_of(restarted)[stream][:2] == present_of(before)[stream][:2], stream
        np.testing.assert_equal(present_of(restarted)[stream][2], reported[2])
    for name, node in before.fleet.nodes.items():
        assert restarted.fleet.nodes[name].timestamp_ns == node.timestamp_ns
