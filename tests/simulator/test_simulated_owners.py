"""Owners of the simulated GPUs, as the agent finds them."""

from __future__ import annotations

from itertools import combinations

import pytest

from railscope.catalog import tenancy as c
from railscope.frame import Event
from railscope_agent.commands.read_once import CaptureWalk
from railscope_agent.config import TenancySettings
from railscope_agent.gpus.inventory import GpuInventory
from railscope_agent.gpus.process_lists import ProcessLists
from railscope_agent.sampling.row_builder import RowBuilder
from railscope_agent.sources.nvidia.gpu_sharing import GpuSharingSource
from railscope_agent.sources.tenancy import ClaimSource
from railscope_simulator import NodeSpec, simulate

SECONDS = 20
MODES = ("whole", "mig", "mps", "time_slicing")
NS = 10**9


def claims_of(spec: NodeSpec) -> tuple[ClaimSource, list[Event], dict[str, list[int]]]:
    """Tenancy after polls of a simulated node every five seconds; events; the columns."""
    walk = CaptureWalk(simulate(spec, SECONDS))
    gpus, lists = GpuInventory(), ProcessLists()
    sharing, tenancy = (
        GpuSharingSource(gpus, lists),
        ClaimSource(TenancySettings(), "", gpus, lists),
    )
    events: list[Event] = []
    values: dict[str, list[int]] = {}
    for second in range(0, SECONDS + 1, 5):
        walk._clock.go_to(second * NS)  # noqa: SLF001 - one poll at each time
        sharing.read(walk.host, RowBuilder(len(sharing.probe(walk.host).columns)))
        columns = tenancy.probe(walk.host).columns
        table = RowBuilder(len(columns))
        tenancy.read(walk.host, table)
        events += table.events
        assert not any(table.reasons)
        values = {}
        for (metric, _), value in zip(columns, table.values, strict=True):
            values.setdefault(metric.name, []).append(value)
    return tenancy, events, values


@pytest.mark.parametrize(
    ("scheduler", "mode", "unclaimed"),
    [
        ("kubernetes", "whole", 0),
        ("slurm", "whole", 1),
        ("kubernetes", "mig", 0),
        ("slurm", "mps", 0),
        ("kubernetes", "time_slicing", 0),
    ],
)
def test_claims_hold_each_gpu_once_and_own_every_process_but_the_unclaimed_one(
    scheduler: str, mode: str, unclaimed: int
) -> None:
    spec = NodeSpec("n", gpus=2, mode=mode, scheduler=scheduler, unclaimed=bool(unclaimed))
    tenancy, events, values = claims_of(spec)
    assert sum(values[c.GPU_UNCLAIMED_PROCESSES.name]) == unclaimed
    active = [claim.claim for claim in tenancy.active_claims if claim.is_claim]
    assert {claim.source for claim in active} == {scheduler}
    assert len(events) == len(active) + unclaimed, "all began, and nothing ended"
    assert set(values[c.GPU_CLAIMED.name]) == {840}
    for claim, other in combinations(active, 2):
        if claim.gpu == other.gpu and not (claim.share and other.share):
            assert not claim.compute.overlaps(other.compute)
            assert not claim.memory.overlaps(other.memory)
