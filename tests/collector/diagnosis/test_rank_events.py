"""Events about ranks: any event of a node is evidence or ignored, and those that are kept are bounded."""

from __future__ import annotations

from hypothesis import given, strategies as st

from railscope.timestamps import SECOND_NS
from railscope.wire import WireEntity, WireEvent
from railscope_collector.diagnosis.node_readings import NodeEvent
from railscope_collector.diagnosis.rank_events import (
    KEEP_NS,
    MAX_EVENTS_PER_NODE,
    MAX_NAMED,
    MAX_TEXT,
    RankEvents,
    explain_hang,
)

KINDS = ["collective_rank", "collective_group", "nccl_job", "nccl_rank"]


def late(rank: int, workload: str) -> WireEvent:
    entity = WireEntity("collective_rank", ("4711", "1000", "0", str(rank)))
    facts = {"source": "slurm", "workload": workload, "owner": "tenant", "sequence": "5000"}
    return WireEvent("collective_late", 0, entity, SECOND_NS, 0, facts)


FACTS = ("sequence", "last_sequence", "lag", "source", "gpu", "host", "collective", "waits_in")


@given(
    st.lists(
        st.builds(
            lambda name, kind, key, facts: WireEvent(
                name, 0, WireEntity(kind, tuple(key)), 0, 0, facts
            ),
            st.sampled_from(["collective_late", "collective_waiting", "nccl_rank_dead", "xid"]),
            st.sampled_from(KINDS),
            st.lists(st.text(max_size=8), max_size=5),
            st.dictionaries(st.sampled_from(FACTS), st.text(max_size=100)),
        ),
        max_size=8,
    )
)
def test_any_event_of_a_node_is_evidence_or_ignored(events: list[WireEvent]) -> None:
    ranks = RankEvents()
    ranks.add((NodeEvent(0, "node-1", each) for each in events), 0)
    found = explain_hang(ranks.of_node("node-1"), ("node-1", "node-2"))
    assert len(found) <= MAX_NAMED
    assert all(text.isprintable() and len(text) < 10 * MAX_TEXT for _, text in found)
    ranks.add((), KEEP_NS + 1)
    assert ranks.of_node("node-1") == []


def test_events_of_one_job_do_not_displace_those_of_another_on_its_node() -> None:
    ranks = RankEvents()
    own = [late(rank, "own") for rank in range(4)]
    many = [late(rank, "another") for rank in range(100, MAX_EVENTS_PER_NODE + 300)]
    for each in (*own, *many):
        ranks.add([NodeEvent(SECOND_NS, "node", each)], 2 * SECOND_NS)
    kept = [each.event for each in ranks.of_node("node")]
    assert len(kept) == MAX_EVENTS_PER_NODE
    assert kept[:4] == own
    assert kept[4:] == many[4 - MAX_EVENTS_PER_NODE :]
    ranks.add((), KEEP_NS + 2 * SECOND_NS)
    assert ranks.of_node("node") == []
