"""The agent asks the simulated GPUs nothing that they do not answer, if only by not having it."""

from __future__ import annotations

import asyncio

import pytest
from support.clock import ManualClock
from support.simulated import ALL_WAYS

from agent.config import AgentSettings
from agent.host import Json
from agent.host.recorded import BATCHES, RecordedHost, call_key
from agent.sampler import Sampler
from agent.service import machine_sources
from railscope.frame import Origin
from railscope.simulator import NodeSpec, simulate


class NotingHost(RecordedHost):
    """A replay that notes the calls of NVML that the capture has no answer to.

    Batches are left out: a field that is not in a capture is one the GPU does not have.
    """

    unanswered: set[str]

    def call(self, seam: str, function: str, *arguments: int | str) -> Json:
        try:
            return super().call(seam, function, *arguments)
        except FileNotFoundError:
            if seam == "nvml" and function not in BATCHES:
                self.unanswered.add(call_key(seam, function, arguments))
            raise


@pytest.mark.parametrize(("model", "mode"), ALL_WAYS)
def test_every_call_of_the_agent_is_answered(model: str, mode: str) -> None:
    capture = simulate(NodeSpec("gpu-001", gpus=2, model=model, mode=mode), 10, 10)
    host = NotingHost(capture, ManualClock(), lambda: capture.about.duration_ns)
    host.unanswered = set()
    sources = [s for s in machine_sources(AgentSettings()) if s.family == "nvml"]
    frames = []
    asyncio.run(Sampler(host, Origin("n", "r", "b"), sources, frames.append).once())
    assert len({frame.schema.stream for frame in frames}) >= 6
    assert host.unanswered == set()
