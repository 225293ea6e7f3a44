"""Live copies and the head: each node is shown once, and without a gap when its collector is lost."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from running_collector import RunningCollector
from support.postgresql import PostgreSQL
from test_cluster_head import (
    NODES,
    SECOND,
    START_BOOT_NS,
    ReportingNode,
    by_node,
    report,
    running,
    same_views,
    until_text,
    until_true,
)

from railscope.wire import COPIES_PATH, PRIMARY_FAILING, PRIMARY_HEADER, SentAt
from railscope_collector.cluster_head import MIN_COPIES

READINGS = ("/api/v1/rails", "/api/v1/gpus", "/api/v1/nodes/n2", "/api/v1/nodes/n6")
LOST = ("n2", "n6")
"""Nodes of the collector that is lost."""


@pytest.fixture
def database(server: PostgreSQL) -> Iterator[str]:
    url = server.database()
    yield url
    server.drop(url)


class SentEnvelope(NamedTuple):
    """An envelope of a node, as it can be sent again."""

    node: str
    body: bytes
    headers: dict[str, str]

    async def send(self, one: RunningCollector, path: str = "/v1/frames", **more: str) -> None:
        status, reply = await one.post(
            self.body, node=self.node, headers=self.headers | more, path=path
        )
        assert status == 200, reply
        if path == COPIES_PATH:
            assert reply.keys() == {"copied_frames"}, "neither positions nor a receipt"


def next_envelopes(nodes: dict[str, ReportingNode]) -> list[SentEnvelope]:
    """Return the next envelope of each node that loses its collector."""
    found = []
    for name in LOST:
        body, at = nodes[name].body(), nodes[name].at
        sent = SentAt(time.time_ns(), START_BOOT_NS + at * SECOND, "boot-1").to_headers()
        found.append(SentEnvelope(name, body, sent))
    return found


async def test_the_head_shows_the_nodes_of_a_lost_collector_by_their_copies(
    tmp_path: Path, database: str
):
    nodes = {name: ReportingNode(name) for name in NODES}
    async with (
        running(tmp_path, "", ["alone"]) as single,
        running(tmp_path, database, ["a"]) as first,
    ):
        alone, head = single["alone"], first["a"]
        async with running(tmp_path, database, ["c"]) as third:
            second = third["c"]
            async with running(tmp_path, database, ["b"]) as lost:
                await report(nodes, dict.fromkeys(NODES, alone), by_node(first | lost | third))
                for sent in next_envelopes(nodes):
                    await sent.send(second, COPIES_PATH)
                    await sent.send(alone)
                    await sent.send(lost["b"])
                await until_text(head, "3 of 3 collectors, 6 of 6 nodes")
                await same_views(head, alone)
                _, text = await second.get("/metrics")
                assert "railscope_cluster_nodes 2\n" in text, "a sum over collectors is correct"
            state = head.collector.cluster.role.state
            assert state
            await until_text(head, "2 of 3 collectors, 4 of 6 nodes")
            waiting = []
            for _ in range(MIN_COPIES):
                for sent in next_envelopes(nodes):
                    await sent.send(alone)
                    await sent.send(second, COPIES_PATH, **{PRIMARY_HEADER: PRIMARY_FAILING})
                    waiting.append(sent)
            await until_text(head, "2 of 3 collectors, 6 of 6 nodes")
            await same_views(head, alone, READINGS)
            unknown, shown_by = state.unknown_nodes(), [*map(state.find_collector, LOST)]
            assert unknown == set(LOST), "nothing follows from missing records"
            assert shown_by == ["c", "c"]
            _, text = await second.get("/metrics")
            assert "railscope_cluster_nodes 4\n" in text
            for sent in waiting:
                await sent.send(second)
            await until_true(lambda: not state.unknown_nodes())
            owners, copies = [state.owners[node] for node in LOST], state.copies
            assert owners == ["c", "c"]
            await same_views(head, alone)
            duplicates = second.collector.core.counts.duplicates
            assert (duplicates, copies) == (0, {})


async def test_a_node_whose_records_are_missing_while_its_collector_responds(
    tmp_path: Path, database: str
):
    """The link between the node and its collector is interrupted: the diagnosis does not conclude that the node is."""
    nodes = {name: ReportingNode(name) for name in NODES}
    async with running(tmp_path, database, ["a", "b", "c"]) as three:
        await report(nodes, by_node(three))
        await until_text(three["a"], "3 of 3 collectors, 6 of 6 nodes")
        state = three["a"].collector.cluster.role.state
        assert state
        for count in range(1, MIN_COPIES + 1):
            for sent in next_envelopes(nodes):
                await sent.send(three["c"], COPIES_PATH)
            await until_true(
                lambda: {n: each.copies for n, each in state.copies.items()} == dict.fromkeys(LOST, count)  # noqa: B023 - called at once
            )  # fmt: skip
            unknown, shown_by = state.unknown_nodes(), [*map(state.find_collector, LOST)]
            assert unknown == (set(LOST) if count == MIN_COPIES else set())
            assert shown_by == ["b", "b"]
        await report({node: nodes[node] for node in LOST}, by_node(three))
        await until_true(lambda: not state.copies)
        unknown = state.unknown_nodes()
        assert unknown == set()
