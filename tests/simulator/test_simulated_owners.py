"""Owners of the simulated GPUs, as the agent finds them."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations

import pytest

from railscope.catalog import tenancy as c
from railscope.claim_terms import parse_share
from railscope.frame import Event
from railscope_agent.commands.capture_walk import CaptureWalk
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


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("scheduler", ["kubernetes", "slurm"])
def test_every_process_has_a_claim_but_the_unclaimed_one(scheduler: str, mode: str) -> None:
    for unclaimed in (False, True):
        spec = NodeSpec("n", gpus=2, mode=mode, scheduler=scheduler, unclaimed=unclaimed)
        tenancy, events, values = claims_of(spec)
        assert sum(values[c.GPU_UNCLAIMED_PROCESSES.name]) == unclaimed
        unclaimed_use = [claim.claim for claim in tenancy.active_claims if not claim.is_claim]
        assert [(held.source, held.workload) for held in unclaimed_use] == [
            ("systemd", "session-7")
        ] * unclaimed
        assert len(events) == len(tenancy.active_claims), "all began, and nothing ended"
        assert {claim.claim.source for claim in tenancy.active_claims if claim.is_claim} == {
            scheduler
        }


def test_pods_of_a_job_have_its_name_and_the_namespace_of_its_tenant() -> None:
    workloads = set()
    for node in ("gpu-node-1", "gpu-node-12"):
        spec = NodeSpec(node, gpus=2, scheduler="kubernetes", job="llama", tenant="physics")
        tenancy, _, _ = claims_of(spec)
        workloads |= {claim.claim.workload for claim in tenancy.active_claims}
    assert workloads == {"physics/llama-worker-1", "physics/llama-worker-12"}


@pytest.mark.parametrize("mode", MODES)
def test_no_two_claims_have_the_same_slots(mode: str) -> None:
    tenancy, _, values = claims_of(NodeSpec("n", gpus=2, mode=mode, scheduler="kubernetes"))
    shares: dict[str, Fraction] = {}
    for claim in tenancy.active_claims:
        if claim.claim.share:
            before = shares.get(claim.claim.device, Fraction(0))
            shares[claim.claim.device] = before + parse_share(claim.claim.share)
    assert all(total <= 1 for total in shares.values())
    for claim, other in combinations(tenancy.active_claims, 2):
        beside = claim.claim.share and other.claim.share
        if claim.claim.gpu == other.claim.gpu and not beside:
            assert not claim.claim.compute.overlaps(other.claim.compute)
            assert not claim.claim.memory.overlaps(other.claim.memory)
    assert set(values[c.GPU_CLAIMED.name]) == {840}


def test_without_a_job_there_are_no_claims() -> None:
    for scheduler in ("kubernetes", "slurm"):
        spec = NodeSpec("n", gpus=2, scenario="idle", scheduler=scheduler)
        tenancy, events, _ = claims_of(spec)
        assert (tenancy.active_claims, events) == ((), [])


def test_a_scheduler_that_there_is_not() -> None:
    with pytest.raises(ValueError, match="unknown scheduler: 'pbs'"):
        NodeSpec("n", scheduler="pbs")
