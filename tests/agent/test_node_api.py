"""The node as the API shows it: the list of GPUs and the status, from the frames of its sources."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st

from railscope import api
from railscope.api.status import Status
from railscope.catalog import METRICS
from railscope.catalog.entities import GPU, GPU_REASON, NIC, RDMA_PORT
from railscope.frame import Entity, Frame, FrameOrigin, NodeTimestamp, Schema
from railscope.timestamps import SECOND_NS
from railscope_agent.config import AgentSettings
from railscope_agent.endpoint.node_api import NodeApi
from railscope_agent.machine_sources import machine_sources
from railscope_agent.sampling.status import OK, SourceState
from railscope_agent.sources.gpu_verdicts import GpuVerdictSource
from railscope_agent.streams.xid_matcher import XidMatcher

NOW_NS = 1000 * SECOND_NS
SOURCES = {source.name: source for source in machine_sources(AgentSettings())}
SOURCES["gpu_verdict"] = GpuVerdictSource(dict, XidMatcher())
UNKNOWN, HEALTHY, DEGRADED, BROKEN = range(4)
GPUS = [
    Entity(GPU, (f"GPU-{n}",), {"index": str(n), "pci_address": f"0000:0{n}:00.0", "rail": str(n)})
    for n in range(2)
]
ETH0 = Entity(NIC, ("eth0",), {"rail": "0"})
IB0 = Entity(NIC, ("ib0",), {"rail": "0", "rdma_device": "mlx5_0"})
PORT = Entity(RDMA_PORT, ("mlx5_0", "1"))
ROW_REMAP = Entity(GPU_REASON, ("GPU-1", "row_remap_pending"))


def state_of(
    source: str,
    *readings: tuple[str, Entity, int],
    nics: tuple[Entity, ...] = (),
    age: float = 0.0,
    delay_us: int = 0,
) -> SourceState:
    """A source with a frame of these readings; each was read after a delay."""
    columns = tuple((METRICS[f"railscope_{name}"], entity) for name, entity, _ in readings)
    at = NodeTimestamp(1, NOW_NS - round(age * SECOND_NS))
    values = array("q", [value for *_, value in readings])
    delays = delay_us.to_bytes(4, "little") * len(columns) if delay_us else b""
    schema = Schema(source, columns, nics)
    frame = Frame(FrameOrigin("n1", "r", "b"), schema, 1, at, values, read_delays=delays)
    return SourceState(SOURCES[source], state=OK, frame=frame)


def sources(
    verdict: int = HEALTHY, link: int = 1, age: float = 0.0, gpu_age: float = 0.0
) -> dict[str, SourceState]:
    """Two GPUs that are healthy except for the changes; the first one is claimed."""
    first, second = GPUS
    use = [("gpu_claimed_ratio", first, 420), ("gpu_unclaimed_processes", first, 0)]
    use += [("gpu_claimed_ratio", second, 0), ("gpu_unclaimed_processes", second, 2)]
    health = [("gpu_health", first, HEALTHY), ("gpu_health", second, verdict)]
    reason = [("gpu_health_reason_active", ROW_REMAP, int(verdict != HEALTHY))]
    return {
        "gpu": state_of("gpu", ("gpu_power_watts", first, 500_500), ("gpu_power_watts", second, 1), age=gpu_age),
        "gpu_verdict": state_of("gpu_verdict", *health, *reason, age=age),
        "link": state_of("link", ("network_link_up", Entity(NIC, ETH0.key), link), nics=(ETH0,)),
        "tenancy": state_of("tenancy", *use),
    }  # fmt: skip


def status_of(states: Mapping[str, SourceState]) -> Status:
    found = NodeApi("n1").document("/api/v1/status", list(states.values()), NOW_NS)
    return msgspec.json.decode(found, type=Status)


def gpus_of(states: Mapping[str, SourceState]) -> tuple[api.Gpu, ...]:
    found = NodeApi("n1").document("/api/v1/gpus", list(states.values()), NOW_NS)
    return msgspec.json.decode(found, type=api.GpuList).rows


@pytest.mark.parametrize(
    ("changes", "status", "reason"),
    [
        ({}, "healthy", ""),
        ({"verdict": DEGRADED}, "degraded", "GPU 1: memory row to be replaced at a reset"),
        ({"verdict": BROKEN}, "failed", "GPU 1: "),
        ({"verdict": UNKNOWN}, "unknown", "GPU 1: "),
        ({"link": 0}, "degraded", "the link of eth0 is down"),
        ({"age": 200.0}, "unknown", "stale: read 3 min 20 s ago"),
    ],
)  # fmt: skip
def test_the_status_is_the_worst_of_gpus_links_and_sources(
    changes: dict[str, Any], status: str, reason: str
) -> None:
    found = status_of(sources(**changes))
    assert found.status == status
    assert any(reason in each.text for each in found.reasons) if reason else not found.reasons
    assert found.gpus == {"claimed": 1, "unclaimed": 1, "idle": 0, "unknown": 0}


@pytest.mark.parametrize(("port", "is_up"), [(1, True), (0, False)])
def test_gpus_are_listed_worst_first_with_the_nic_of_their_rail(port: int, is_up: bool) -> None:  # noqa: FBT001 - a case
    states = sources(verdict=DEGRADED)
    nic = ("nic_receive_bytes_total", IB0, 0)  # without a network interface that has a link
    states["link"] = state_of("nic", nic)
    states["rdma"] = state_of("rdma", ("rdma_port_up", PORT, port))
    worst, other = gpus_of(states)
    assert (worst.index, worst.state, worst.use, worst.reasons) == (
        "1", "degraded", "unclaimed", ("row_remap_pending",),
    )  # fmt: skip
    assert (other.nics, other.link_up, other.rail) == (("ib0",), is_up, 0)
    assert other.nic_state == ("" if is_up else "down")
    assert (other.use, other.holders[0].held_ratio, other.power_watts) == ("claimed", 0.5, 500.5)


LINE = 50_000
"""Bytes per microsecond of a port of 400 Gb/s."""


@given(st.lists(st.integers(0, 900_000), min_size=2, max_size=12))
def test_reads_that_are_late_show_no_rate_above_that_of_the_line(delays_us: list[int]) -> None:
    served = NodeApi("n1")
    for number, delay_us in enumerate(delays_us):
        age = len(delays_us) - number
        received = ("nic_receive_bytes_total", ETH0, LINE * (delay_us + number * 1_000_000))
        states = sources()
        states["nic"] = state_of("nic", received, age=age, delay_us=delay_us)
        now_ns = NOW_NS - age * SECOND_NS
        found = served.document("/api/v1/gpus", list(states.values()), now_ns)
        rate = msgspec.json.decode(found, type=api.GpuList).rows[0].receive_bytes_per_second
        if number:
            assert rate == pytest.approx(LINE * 1_000_000, rel=0.01)
