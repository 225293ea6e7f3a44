"""The inventory against what is shown: the states add up, and what is not known is not missing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from collector.files.inventory_file import Expected
from collector.fleet.shown_devices import GPU, RDMA_PORT, Shown
from collector.inventory.compare import Counts, Heard, State, count, stand, standing
from collector.metering.units import FOREVER_NS

EIGHT = Expected(0, FOREVER_NS, "n1", 8, 8)


def shown(present: int, gone: int = 0, unknown: int = 0) -> Shown:
    return Shown(*([f"{word}-{n}" for n in range(number)] for word, number in
                   (("p", present), ("g", gone), ("u", unknown))))  # fmt: skip


def heard(gpus: Shown | str, ports: Shown | str, *, reporting: bool = True) -> Heard:
    return Heard(reporting, 1, {GPU: gpus, RDMA_PORT: ports})


def test_a_lost_gpu_is_missing_and_a_hung_one_is_unknown():
    found = standing("n1", EIGHT, heard(shown(6, gone=1, unknown=1), shown(8)))
    assert found.state is State.PRESENT
    assert found.counts == {GPU: Counts(6, 1, 1, 0), RDMA_PORT: Counts(8, 0, 0, 0)}


def test_the_devices_of_a_silent_node_are_unknown_and_not_missing():
    silent = heard("the node is stale", "the node is stale", reporting=False)
    found = standing("n1", EIGHT, silent)
    assert found.state is State.STALE
    assert found.counts == {GPU: Counts(0, 0, 8, 0), RDMA_PORT: Counts(0, 0, 8, 0)}
    assert found.reasons == {GPU: "the node is stale", RDMA_PORT: "the node is stale"}


def test_a_node_that_was_never_heard_of_is_missing_with_all_it_should_have():
    found = standing("n1", EIGHT, None)
    assert found.state is State.MISSING
    assert found.counts == {GPU: Counts(0, 8, 0, 0), RDMA_PORT: Counts(0, 8, 0, 0)}


def test_nothing_is_said_of_what_the_inventory_does_not_tell():
    found = standing("n1", Expected(0, FOREVER_NS, "n1", 2, None), heard(shown(3), shown(9)))
    assert found.counts == {GPU: Counts(2, 0, 0, 1)}


def test_only_a_node_that_reports_is_unexpected():
    there = {
        "n1": heard(shown(8), shown(8)),
        "n2": heard(shown(1), shown(1)),
        "n3": heard("silent", "silent", reporting=False),
    }
    states = {one.node: one.state for one in stand({"n1": EIGHT, "n9": EIGHT}, there)}
    assert states == {"n1": State.PRESENT, "n2": State.UNEXPECTED, "n9": State.MISSING}


devices = st.builds(shown, st.integers(0, 10), st.integers(0, 10), st.integers(0, 10))


@given(st.integers(0, 16), devices)
def test_the_states_add_up_to_the_inventory(expected: int, found: Shown):
    counts = count(expected, found)
    assert counts.expected == expected
    assert min(counts) >= 0
    assert counts.present + counts.unexpected == len(found.present)
    certainly_there, perhaps_there = len(found.present), len(found.present) + len(found.unknown)
    assert counts.missing == max(expected - perhaps_there, 0), "certainly missing"
    assert counts.unexpected == max(certainly_there - expected, 0), "certainly too many"
