"""Calls of the agent to simulated GPUs and NICs: all are answered, if only as unsupported."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from support.clock import ManualClock
from support.simulated import ALL_WAYS

from railscope.frame import Frame, FrameOrigin
from railscope_agent.config import AgentSettings
from railscope_agent.host import Json
from railscope_agent.host.recorded_host import BATCH_FUNCTIONS, RecordedHost, call_key
from railscope_agent.machine_sources import machine_sources
from railscope_agent.sampling.sampler import Sampler
from railscope_agent.sampling.source import Source
from railscope_simulator import NICS, NodeSpec, simulate


class NotingHost(RecordedHost):
    """A replay that notes the calls that the capture has no answer to.

    Batches are left out: a field that is not in a capture is one the GPU does not have.
    """

    unanswered: set[str]

    def call(self, host_interface: str, function: str, *arguments: int | str) -> Json:
        try:
            return super().call(host_interface, function, *arguments)
        except FileNotFoundError:
            if function not in BATCH_FUNCTIONS:
                self.unanswered.add(call_key(host_interface, function, arguments))
            raise


def unanswered(spec: NodeSpec, sources: Sequence[Source]) -> tuple[set[str], set[str]]:
    """The calls without an answer, and the sources with readings."""
    capture = simulate(spec, 10, 10)
    host = NotingHost(capture, ManualClock(), lambda: capture.about.duration_ns)
    host.unanswered = set()
    frames: list[Frame] = []
    asyncio.run(Sampler(host, FrameOrigin("n", "r", "b"), sources, frames.append).once())
    return host.unanswered, {frame.schema.stream for frame in frames}


@pytest.mark.parametrize(("model", "mode"), ALL_WAYS)
def test_every_call_of_the_agent_is_answered(model: str, mode: str) -> None:
    sources = [s for s in machine_sources(AgentSettings()) if s.lane == "nvml"]
    missing, reported = unanswered(NodeSpec("gpu-001", gpus=2, model=model, mode=mode), sources)
    assert len(reported) >= 6
    assert missing == set()


@pytest.mark.parametrize(("model", "nic"), [("b200", "cx7"), *(("h100", nic) for nic in NICS)])
def test_every_call_about_nics_has_a_result(model: str, nic: str) -> None:
    sources = [s for s in machine_sources(AgentSettings()) if s.lane != "nvml"]
    missing, reported = unanswered(NodeSpec("gpu-001", gpus=8, model=model, nic=nic), sources)
    assert {"nic", "rdma", "link", "pcie"} <= reported
    assert {call for call in missing if call.startswith(("ethtool.", "netlink.", "lldp."))} == set()
