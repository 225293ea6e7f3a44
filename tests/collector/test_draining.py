"""A draining collector accepts no frames and is not ready, and serves everything else."""

from __future__ import annotations

from pathlib import Path

from makers import FrameSender
from running_collector import gpu_frames, logged_envelopes, run_collector, settings_in

from railscope_agent.config import CollectorLink
from railscope_agent.shipping.collector_client import CollectorClient
from railscope_agent.shipping.delivery_result import ChangeReason, EnvelopeDecision


async def test_agents_of_a_draining_collector_send_to_another_one(tmp_path: Path) -> None:
    sender = FrameSender("n1")
    body = sender.body(gpu_frames(sender), schemas=True)
    async with run_collector(settings_in(tmp_path, draining=True)) as running:
        status, reply = await running.post(body)
        assert (status, reply["draining"]) == (503, True)
        link = CollectorLink(url=running.url, token="token-n1", timeout_seconds=60)  # noqa: S106 - a test's
        async with CollectorClient(link) as client:
            answer = await client.post(body, sender.sent(100))
            assert answer.verdict is EnvelopeDecision.LATER
            assert answer.change_reason is ChangeReason.DRAINING
            assert answer.retry_after_seconds == 5
            assert "draining" in answer.problem
        assert await running.get("/-/ready") == (503, "not ready: draining\n")
        assert (await running.get("/api/v1/nodes"))[0] == 200
        assert logged_envelopes(tmp_path) == 0
        metrics = (await running.get("/metrics"))[1]
        assert 'railscope_collector_rejected_envelopes_total{reason="draining"} 2' in metrics

        running.collector.core.draining = ""
        assert (await running.post(body))[0] == 200
