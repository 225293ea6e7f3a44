"""Events about ranks of all nodes of a job, as evidence of its hang."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, strategies as st
from support.drawn_cluster import START_NS, DrawnCluster, Row, gpu_uuid, node_name
from support.drawn_faults import hang
from support.drawn_readings import drawn_feed, healthy_feed

from railscope.timestamps import SECOND_NS
from railscope.wire import WireEntity, WireEvent
from railscope_collector.diagnosis.incidents import Incident
from railscope_collector.diagnosis.node_readings import NodeEvent
from railscope_collector.diagnosis.rank_events import (
    KEEP_NS,
    MAX_EVENTS_PER_NODE,
    MAX_NAMED,
    MAX_TEXT,
    RankEvents,
    explain_hang,
    stragglers,
)

SLOTS, ONSET, REPORTED = 44, 26, 34
CLUSTER = DrawnCluster(9, 1, 6, benign=False)
JOB = CLUSTER.jobs[0]
RANKS = 8 * len(JOB.nodes)
CLAIM = {"source": "slurm", "workload": JOB.name, "owner": f"tenant-{JOB.name}"}
GROUP = ("4711", "1000", "0")
KINDS = {4: "collective_rank", 3: "collective_group", 2: "nccl_job"}


def event(name: str, *key: str, **facts: str) -> WireEvent:
    kind = "nccl_rank" if name.startswith("nccl_rank") else KINDS[len(key)]
    return WireEvent(name, 0, WireEntity(kind, key), START_NS, 0, CLAIM | facts)


def late(node: int, rank: int, last: int, **facts: str) -> tuple[int, WireEvent]:
    place = {"gpu": gpu_uuid(JOB.nodes[node], 2), "gpu_index": "2", "rail": "2"}
    called = {"collective": "all_reduce", "sequence": "5000", "last_sequence": str(last)}
    return node, event("collective_late", *GROUP, str(rank), **(place | called | facts))


def waiting(node: int, sequence: int = 5000, **facts: str) -> tuple[int, WireEvent]:
    called = {"collective": "all_reduce", "sequence": str(sequence)}
    return node, event("collective_waiting", *GROUP, **(called | facts))


def slow(cluster: DrawnCluster, row: Row, _: int) -> None:
    cluster.slow_job(row, cluster.jobs[0], 0.6, (JOB.nodes[1], 2))


def hung(*events: tuple[int, WireEvent], slot: int = REPORTED) -> Incident:
    """Return the incident of a job that hangs, with events of its nodes."""
    found = incidents(hang(DrawnCluster(9, 1, 6, benign=False)).effect, *events, slot=slot)
    return found["nccl_hang"]


def incidents(
    effect: Callable[[DrawnCluster, Row, int], None],
    *events: tuple[int, WireEvent],
    slot: int = REPORTED,
) -> dict[str, Incident]:
    """Return the incidents of a faulty cluster by class, with events of its nodes."""
    feed = healthy_feed(onset=ONSET) if slot >= ONSET else drawn_feed()
    cluster = feed.cluster
    for number in range(cluster.slot, SLOTS):
        row = cluster.draw()
        if number >= ONSET:
            effect(cluster, row, number - ONSET)
        feed.put(number, row)
        for node, of_node in events if number == slot else ():
            timestamp_ns = feed.diagnosis.end_of(number) - SECOND_NS
            name = node_name(JOB.nodes[node])
            feed.diagnosis.add_event(NodeEvent(timestamp_ns, name, of_node))
        feed.diagnosis.arrange()
        feed.diagnosis.evaluate(number)
    return {each.class_name: each for each in feed.diagnosis.tracker.incidents}


def evidence(incident: Incident) -> list[tuple[str, float, str]]:
    return [(each.signal, each.value, each.device) for each in incident.evidence[1:]]


def name(node: int) -> str:
    return node_name(JOB.nodes[node])


def test_a_hang_without_events_has_the_evidence_of_counters_only() -> None:
    found = hung()
    assert (evidence(found), found.detail) == ([], "")


def test_the_last_rank_of_all_nodes_comes_first() -> None:
    found = hung(late(0, 2, 4999), late(1, 10, 4990), waiting(2))
    assert evidence(found) == [
        ("collective_late", 10.0, f"{name(1)} rank 10 (GPU 2, rail 2)"),
        ("collective_late", 1.0, f"{name(0)} rank 2 (GPU 2, rail 2)"),
    ]
    assert found.detail.startswith(
        f"{name(1)} rank 10 (GPU 2, rail 2) has not entered all_reduce 5000; {name(0)} rank 2"
    )


def test_a_late_rank_that_waits_elsewhere_is_not_named_beside_one_that_does_not() -> None:
    other = late(0, 2, 4990, waits_in="all_gather 7 of group 5")
    assert [device for *_, device in evidence(hung(other, late(1, 10, 4999)))] == [
        f"{name(1)} rank 10 (GPU 2, rail 2)"
    ]
    assert len(evidence(hung(other))) == 1


def test_a_dead_process_comes_before_late_ranks() -> None:
    dead = event("nccl_process_dead", "4711", "1000", host="10.0.0.9", pid="77")
    lag = event("nccl_rank_late", "4711", "1000", "0xa1", "3", host="10.0.0.8", lag="4")
    assert evidence(hung((0, lag), (0, dead))) == [
        ("nccl_process_dead", 0.0, "10.0.0.9 process 77"),
        ("nccl_rank_late", 4.0, "10.0.0.8 rank 3"),
    ]


def of_ras(event_name: str, rank: int, size: int = RANKS, **facts: str) -> tuple[int, WireEvent]:
    """Return an event of the node of rank 0 about a rank of any node."""
    key = ("4711", "1000", "0xa1", str(rank))
    return 0, event(event_name, *key, **({"size": str(size)} | facts))


def test_a_rank_of_another_node_is_named_once_by_its_node() -> None:
    remote = of_ras("nccl_rank_late", 10, host="10.0.0.2", lag="1")
    assert evidence(hung(remote, late(1, 10, 4999))) == [
        ("collective_late", 1.0, f"{name(1)} rank 10 (GPU 2, rail 2)")
    ]
    dead = of_ras("nccl_rank_dead", 10, host="10.0.0.2")
    assert evidence(hung(dead, late(1, 10, 4999))) == [
        ("nccl_rank_dead", 0.0, f"{name(1)} rank 10 (GPU 2, rail 2)")
    ]


def test_an_address_is_replaced_by_the_node_of_another_rank_that_has_it() -> None:
    ranks = [of_ras("nccl_rank_missing", rank, host="10.0.0.2") for rank in (10, 11)]
    named = [device for *_, device in evidence(hung(*ranks, late(1, 10, 4999)))]
    assert named == [f"{name(1)} rank 10 (GPU 2, rail 2)", f"{name(1)} rank 11"]


def test_a_rank_of_this_node_is_named_once() -> None:
    place = {"gpu": gpu_uuid(JOB.nodes[0], 2), "gpu_index": "2", "rail": "2"}
    both = hung(of_ras("nccl_rank_late", 1, 4, host="10.0.0.1", lag="1", **place), late(0, 2, 4999))
    assert evidence(both) == [("collective_late", 1.0, f"{name(0)} rank 2 (GPU 2, rail 2)")]


def test_ranks_of_other_communicators_and_of_two_nodes_stay_apart() -> None:
    remote = of_ras("nccl_rank_late", 10, 8, host="10.0.0.2", lag="1")
    assert len(evidence(hung(remote, late(1, 10, 4999)))) == 2
    remote = of_ras("nccl_rank_late", 10, host="10.0.0.2", lag="1")
    assert len(evidence(hung(remote, late(1, 10, 4999), late(2, 10, 4999)))) == 3


def test_the_node_without_a_waiting_rank_is_named_if_most_others_wait() -> None:
    count = len(JOB.nodes)
    found = hung(*(waiting(node) for node in range(1, count)))
    assert evidence(found) == [("nodes_waiting", count - 1.0, name(0))]
    assert found.detail == (
        f"{name(0)} reports no rank that waits, while ranks of {count - 1} nodes wait in all_reduce 5000"
    )
    assert evidence(hung(waiting(1))) == []
    assert evidence(hung(*(waiting(node) for node in range(count)))) == []


def test_the_node_that_waits_in_an_earlier_collective_is_named() -> None:
    nodes = [waiting(node, 4998 if node == 1 else 5000) for node in range(len(JOB.nodes))]
    found = hung(*nodes)
    assert [device for *_, device in evidence(found)] == [name(1)]
    assert found.detail.startswith(f"{name(1)} waits in collective 4998, while")


@pytest.mark.parametrize(
    "facts",
    [
        {"source": "", "gpu": ""},
        {"workload": "other", "gpu": "GPU-of-another-node"},
    ],
)
def test_events_of_other_jobs_are_ignored(facts: dict[str, str]) -> None:
    assert evidence(hung(late(0, 2, 4999, **facts))) == []


def test_a_pod_of_the_job_is_recognized_by_its_gpu() -> None:
    pod = {"source": "kubernetes", "workload": "team/train-worker-1"}
    assert len(evidence(hung(late(0, 2, 4999, **pod)))) == 1


def test_events_before_the_hang_are_ignored() -> None:
    assert evidence(hung(late(0, 2, 4999), slot=12)) == []


def straggler(node: int, rank: int, index: int) -> tuple[int, WireEvent]:
    place = {"gpu": gpu_uuid(JOB.nodes[node], index), "gpu_index": str(index)}
    key = ("4711", "1000", "0xa1", str(rank))
    entity = WireEntity("communicator_rank", key)
    facts = CLAIM | place | {"late_percent": "40"}
    return node, WireEvent("collective_straggler", 0, entity, START_NS, 0, facts)


def test_a_slow_gpu_has_the_evidence_of_its_rank_only() -> None:
    found = incidents(slow, straggler(1, 10, 2), straggler(1, 11, 3), straggler(0, 2, 2))
    incident = found["gpu_straggler"]
    assert ("collective_straggler", 40.0, f"{name(1)} rank 10 (GPU 2)") in evidence(incident)
    assert [signal for signal, *_ in evidence(incident)].count("collective_straggler") == 1
    assert incident.detail.endswith("arrives last at nearly all collectives of its node")


def test_an_old_report_of_a_straggler_is_ignored() -> None:
    found = incidents(slow, straggler(1, 10, 2))["gpu_straggler"]
    ranks, (node, of_node) = RankEvents(), straggler(1, 10, 2)
    ranks.add([NodeEvent(0, name(node), of_node)], 0)
    assert "collective_straggler" in {signal for signal, *_ in evidence(found)}
    assert stragglers(ranks.of_node(name(node)), 0, gpu_uuid(JOB.nodes[1], 2))
    assert not stragglers(ranks.of_node(name(node)), 1, gpu_uuid(JOB.nodes[1], 2))


def slow_without_outlier(cluster: DrawnCluster, row: Row, _: int) -> None:
    cluster.slow_job(row, cluster.jobs[0], 0.85)


def test_a_rank_that_arrives_last_in_a_job_that_became_slower_is_a_straggler() -> None:
    found = incidents(slow_without_outlier, straggler(1, 10, 2))["gpu_straggler"]
    assert (found.cause.kind, found.cause.position) == ("gpu", 8 * JOB.nodes[1] + 2)
    assert [each.signal for each in found.evidence] == ["collective_straggler"]
    assert "gpu_straggler" not in incidents(slow_without_outlier)


def test_a_late_rank_without_a_new_slowdown_or_on_many_nodes_is_none() -> None:
    late_rank = straggler(1, 10, 2)
    assert "gpu_straggler" not in incidents(lambda *_: None, late_rank)
    assert "gpu_straggler" not in incidents(slow_without_outlier, late_rank, slot=4)
    of_nodes = [straggler(node, 8 * node, 0) for node in range(len(JOB.nodes))]
    assert "gpu_straggler" not in incidents(slow_without_outlier, *of_nodes)
    node, other = straggler(1, 10, 2)
    facts = dict(other.facts) | {"source": "kubernetes", "workload": "x/y", "gpu": "GPU-0"}
    foreign = WireEvent(other.name, 0, other.entity, START_NS, 0, facts)
    assert "gpu_straggler" not in incidents(slow_without_outlier, (node, foreign))


FACTS = ("sequence", "last_sequence", "lag", "source", "gpu", "host", "collective", "waits_in")


@given(
    st.lists(
        st.builds(
            lambda name, kind, key, facts: WireEvent(
                name, 0, WireEntity(kind, tuple(key)), 0, 0, facts
            ),
            st.sampled_from(["collective_late", "collective_waiting", "nccl_rank_dead", "xid"]),
            st.sampled_from([*KINDS.values(), "nccl_rank"]),
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


def test_events_of_a_node_are_bounded_and_forgotten() -> None:
    ranks = RankEvents()
    many = [late(0, rank, 4999)[1] for rank in range(MAX_EVENTS_PER_NODE + 10)]
    ranks.add((NodeEvent(0, "node-1", each) for each in many), 0)
    assert len(ranks.of_node("node-1")) == MAX_EVENTS_PER_NODE
    ranks.add((), KEEP_NS + 1)
    assert ranks.of_node("node-1") == []


def test_events_of_one_job_do_not_displace_those_of_another_on_its_node() -> None:
    ranks, now_ns = RankEvents(), START_NS + SECOND_NS
    own = [late(0, rank, 4999)[1] for rank in range(4)]
    many = [
        late(0, rank, 4999, workload="another")[1] for rank in range(100, MAX_EVENTS_PER_NODE + 300)
    ]
    for each in (*own, *many):
        ranks.add([NodeEvent(START_NS, "node", each)], now_ns)
    kept = [each.event for each in ranks.of_node("node")]
    assert len(kept) == MAX_EVENTS_PER_NODE
    assert kept[:4] == own
    assert kept[4:] == many[4 - MAX_EVENTS_PER_NODE :]


def slow_path(
    node: int, rails: str = "2", percent: str = "40", **facts: str
) -> tuple[int, WireEvent]:
    key = ("4711", "1000", "0xa1", "AllReduce", "64MiB")
    numbers = {"bytes_per_second": "40000000000", "expected_bytes_per_second": "100000000000"}
    about = CLAIM | numbers | {"rails": rails, "gpus": rails, "percent": percent}
    entity = WireEntity("communicator_call", key)
    return node, WireEvent("collective_slow_path", 0, entity, START_NS, 0, about | facts)


def pausing(cluster: DrawnCluster, row: Row, _: int) -> None:
    """A NIC of rail 2 pauses its switch port, and its job is slow."""
    cluster.slow_job(row, cluster.jobs[0], 0.6)
    row.nic["pausing"][JOB.nodes[1], 2] = 0.2


def test_a_slow_receiver_has_the_evidence_of_communicators_on_its_rail() -> None:
    events = [slow_path(0), slow_path(2, rails="0 1"), slow_path(1, rails="1 2", percent="30")]
    found = incidents(pausing, *events)["slow_receiver"]
    paths = [each for each in evidence(found) if each[0] == "collective_slow_path"]
    device = "AllReduce up to 64MiB of communicator 0xa1"
    assert paths == [
        ("collective_slow_path", 4e10, f"{name(1)} {device}"),
        ("collective_slow_path", 4e10, f"{name(0)} {device}"),
    ]
    assert f"{name(1)} {device} has 30% of its usual bus bandwidth" in found.detail


def test_paths_of_jobs_with_a_late_rank_and_of_other_jobs_are_ignored() -> None:
    for events in (
        [slow_path(0), straggler(1, 10, 2)],
        [slow_path(0, workload="other"), slow_path(0, source="")],
    ):
        found = incidents(pausing, *events)["slow_receiver"]
        assert "collective_slow_path" not in {signal for signal, *_ in evidence(found)}


def nvlink(cluster: DrawnCluster, row: Row, _: int) -> None:
    cluster.slow_job(row, cluster.jobs[0], 0.7)
    row.gpu["nvlink_errors"][JOB.nodes[1], 2] = 5.0


def test_errors_of_an_nvlink_have_the_evidence_of_communicators_on_its_gpu() -> None:
    found = incidents(nvlink, slow_path(1), slow_path(0))["nvlink_errors"]
    devices = [device for signal, _, device in evidence(found) if signal == "collective_slow_path"]
    assert devices == [f"{name(1)} AllReduce up to 64MiB of communicator 0xa1"]
