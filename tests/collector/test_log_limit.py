"""A repeated event is one line, and then counts."""

from __future__ import annotations

from pathlib import Path

from makers import FrameSender
from running_collector import gpu_frames, run_collector, settings_in
from structlog.testing import capture_logs

from railscope_collector.config import IngestLimits


async def test_a_node_that_is_rejected_again_and_again_is_one_line(tmp_path: Path):
    with capture_logs() as logs:
        async with run_collector(settings_in(tmp_path)) as running:
            for _ in range(20):
                assert (await running.post(b"hello"))[0] == 400
            assert (await running.post(b"hello", node="n2"))[0] == 400
            for _ in range(20):
                assert (await running.get("/metrics", token="wrong"))[0] == 401  # noqa: S106 - a test's
            assert running.collector.core.counts.rejected["format"] == 21
            _, page = await running.get("/metrics")
            assert "\nrailscope_collector_log_lines_suppressed_total 38\n" in page
    assert [e["node"] for e in logs if e["event"] == "envelope_rejected"] == ["n1", "n2"]
    assert len([e for e in logs if e["event"] == "request_denied"]) == 1


async def test_an_agent_that_is_always_new_is_held_back(tmp_path: Path):
    limits = IngestLimits(starts_per_node_hour=3)
    async with run_collector(settings_in(tmp_path, limits=limits)) as running:
        statuses = []
        for number in range(5):
            sender = FrameSender(run=f"r{number}")
            statuses.append((await running.post(sender.body(gpu_frames(sender), schemas=True)))[0])
        assert statuses == [200, 200, 200, 429, 429]
        again = FrameSender(run="r1", sequences={"gpu": 3})
        assert (await running.post(again.body(gpu_frames(again, at=3))))[0] == 200
        other = FrameSender("n2")
        assert (await running.post(other.body(gpu_frames(other), schemas=True), node="n2"))[
            0
        ] == 200
