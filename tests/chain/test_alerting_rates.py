"""From a slowly developing fault to a message: many senders to one port, a hung driver."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace

from alerting_support import SHORT, metrics_addresses, run_alerting
from chain_support import ProgramDirectory

from railscope.capture import SECTIONS, CaptureMoment, write_capture
from railscope_collector.access.credentials import digest_token
from railscope_simulator import NodeSpec, capture_metadata, moments

SECONDS = 300
INCAST = NodeSpec("n1", seed=1, gpus=2, scenario="incast")
STUCK = NodeSpec("n2", seed=2, gpus=2, scenario="driver_stuck")
WANTED = [
    {
        "alertname": "RailscopeIncast", "node": "n1", "severity": "warning",
        "device": "mlx5_3", "port": "1", "job": "railscope-agent",
    },
    {"alertname": "RailscopeGpuDriverStuck", "node": "n2", "severity": "critical"},
]  # fmt: skip
INHIBITED = [
    {"alertname": "RailscopeSourcePartial", "node": "n2", "source": source, "state": "partial"}
    for source in ("gpu", "gpu_health", "nvlink")
]
"""Alertmanager sends none of these after it has received the alert on the hung driver."""
NOT_REPORTED = [
    {"alertname": "RailscopeIncast", "node": "n2"},
    {"alertname": "RailscopeIncast", "device": "mlx5_0"},
    {"alertname": "RailscopeGpuDriverStuck", "node": "n1"},
    {"alertname": "RailscopeSourcePartial", "node": "n1"},
    {"alertname": "RailscopeSourceFailing"},
    *(
        {"alertname": "RailscopeSourcePartial", "source": source}
        for source in ("rdma", "nic", "host", "pcie", "kernel")
    ),
]
"""A hung GPU is stale alone and fails no source; congestion marks alone are not an incast."""


def from_second(spec: NodeSpec, first: int, seconds: int) -> Iterator[CaptureMoment]:
    """Yield the moments of a simulation from one second on: rules see no earlier data."""
    state = CaptureMoment(0)
    for moment in moments(spec, seconds):
        state.log += moment.log
        for section in SECTIONS:
            getattr(state, section).update(getattr(moment, section))
        state.offset_ns = moment.offset_ns - first * 10**9
        if state.offset_ns >= 0:
            yield state
            state = CaptureMoment(0)


def prepare(site: ProgramDirectory) -> None:
    """Record a node during an incast, and one with a driver that hangs after 10 seconds.

    The fault of a scenario begins at half time, and the recordings last longer than the test waits:
    a replay that begins again would end the fault.
    """
    site.prepare_all([], SECONDS)
    for spec, first in ((INCAST, SECONDS // 2), (STUCK, SECONDS // 2 - 10)):
        whole = capture_metadata(spec, SECONDS)
        later = replace(
            whole,
            started_wall_ns=whole.started_wall_ns + first * 10**9,
            started_boot_ns=whole.started_boot_ns + first * 10**9,
            duration_ns=(SECONDS - first) * 10**9,
        )
        write_capture(site.directory / spec.node, later, from_second(spec, first, SECONDS))
        with (site.directory / "tokens.toml").open("a") as tokens:
            tokens.write(f'"{spec.node}" = "{digest_token("token-" + spec.node)}"\n')


async def test_a_slow_fault_reaches_its_receiver(site: ProgramDirectory) -> None:
    prepare(site)
    await site.collector(RAILSCOPE_COLLECTOR_DIAGNOSIS__ENABLED="false")
    nodes = (INCAST.node, STUCK.node)
    settings = {"RAILSCOPE_AGENT_BUDGET__CPU_RATIO": "0"}
    started = await asyncio.gather(*(site.agent(node, **settings) for node in nodes))
    agents = dict(zip(nodes, started, strict=True))
    async with run_alerting(site, await metrics_addresses(agents), SHORT) as watch:
        await watch.wait_for_alerts(WANTED)
        await watch.evaluates_to(INHIBITED)
        assert [labels for labels in NOT_REPORTED if watch.hook.has(labels)] == []
    assert await agents[STUCK.node].find_logged("call_hung.*nvml/")
