"""Live copies at a collector: current readings only, in no view until the primary collector fails."""

from __future__ import annotations

from pathlib import Path

import pytest
from makers import FrameSender
from running_collector import gpu_frames, logged_envelopes, run_collector, settings_in

from railscope.wire import COPIES_PATH, PRIMARY_FAILING, PRIMARY_HEADER

FAILING = {PRIMARY_HEADER: PRIMARY_FAILING}


async def test_a_copy_is_not_shown_not_stored_and_not_counted(tmp_path: Path):
    sender = FrameSender()
    async with run_collector(settings_in(tmp_path)) as running:
        core = running.collector.core
        status, reply = await running.post(sender.body(gpu_frames(sender)), path=COPIES_PATH)
        assert (status, len(reply["unknown_schemas"])) == (409, 1)
        for at in (3, 6):
            body = sender.body(gpu_frames(sender, at=at), schemas=True)
            status, reply = await running.post(body, path=COPIES_PATH)
            assert (status, reply) == (200, {"copied_frames": 3})
        assert not core.fleet.nodes
        assert not core.received.nodes
        assert not core.evidence.gpus
        assert (core.counts.frames, core.counts.envelopes, core.counts.copies) == (0, 0, 6)
        views = await running.collector.refresher.refresh()
        assert (views.node.cells, views.gpus.gpus) == ((), {})
        _, text = await running.get("/metrics")
        assert "railscope_collector_copied_frames_total 6\n" in text
        assert "railscope_cluster_nodes 0\n" in text, "a sum over collectors contains the node once"
        assert (await running.json("/api/v1/nodes"))["rows"] == []
    assert logged_envelopes(tmp_path) == 0


async def test_a_node_is_shown_with_its_rates_when_the_primary_collector_fails(tmp_path: Path):
    sender = FrameSender()
    async with run_collector(settings_in(tmp_path, stale_seconds=10**9)) as running:
        core = running.collector.core
        body = sender.body(gpu_frames(sender), schemas=True)
        await running.post(body, path=COPIES_PATH)
        one = sender.body(gpu_frames(sender, at=10, rows=1))
        await running.post(one, path=COPIES_PATH, headers=FAILING)
        row = core.fleet.nodes["n1"].rows["gpu"]
        assert row.block.values_of(row.index).tolist() == [50, 60, 1000, 2000, 10, 20]
        rates = row.block.rates_of(row.index).tolist()
        assert rates == pytest.approx([10 / 8, 20 / 8]), "since the copy before"
        assert core.gpus_by_rail("n1") == {0: "GPU-n1-0", 1: "GPU-n1-1"}
        assert core.fleet.nodes["n1"].agent_version == "test"
        views = await running.collector.refresher.refresh()
        assert views.cluster.cells
        assert not core.fleet.standby
        assert core.counts.frames == 0
        for sent, count in ((body, 3), (one, 1)):
            _, reply = await running.post(sent)
            assert reply == {"accepted_frames": count, "duplicate_frames": 0}, "sent again"
    assert logged_envelopes(tmp_path) == 2
