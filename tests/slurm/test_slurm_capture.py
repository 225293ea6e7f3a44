"""Output of the Slurm of a real cluster."""

from __future__ import annotations

from datetime import UTC

import pytest
from support.shared import capture_path

from railscope.slurm.job_record import NodeAllocation, SlurmJob, seconds, times
from railscope.slurm.node_lists import expand_nodes
from railscope.slurm.resources import Gres, parse_gres, parse_tres
from railscope.slurm.scontrol import parse_text

EIGHT = tuple(range(8))
_STATE, _NODE_COUNT, _NODES, _START, _TRES = 9, 12, 15, 18, 28
"""Columns of the recorded output of squeue."""


def jobs(name: str) -> tuple[SlurmJob, ...]:
    return parse_text(capture_path(f"jobs/slurm/{name}").read_text(), UTC)


def a100s(*indices: int, count: int) -> tuple[Gres, ...]:
    return (Gres("gpu", "ampere", count, indices),)


def test_a_job_that_holds_a_server():
    (job,) = jobs("scontrol_out_all_gpus.txt")
    assert job == SlurmJob(
        id=30214,
        user="test_username",
        account="test_account",
        state="RUNNING",
        start_seconds=1_727_229_251,
        end_seconds=None,
        nodes=("node1751",),
        allocations=(NodeAllocation("node1751", a100s(*EIGHT, count=8)),),
        gres_counts={"gpu": 8},
    )


def test_two_elements_of_arrays_share_a_server():
    first, second = jobs("scontrol_out_main_array_job.txt")
    assert (first.account, second.account) == ("test2_account", "test_account")
    assert second.user == "test_username_2"
    assert first.allocations == (NodeAllocation("node1751", a100s(0, 1, 2, 3, count=8)),)
    assert second.allocations == (NodeAllocation("node1751", a100s(5, 6, 7, count=8)),)


def test_a_job_on_many_nodes_is_reported_node_by_node():
    (job,) = jobs("scontrol_out_multi_node.txt")
    names = [f"node{n}" for n in (1433, 1787, 1795, 1854, 1889, 1890, 1968, 1969)]
    assert job.nodes == tuple(names)
    assert job.allocations == tuple(NodeAllocation(name, a100s(*EIGHT, count=8)) for name in names)
    assert job.gres_counts == {"gpu": 64}
    assert job.end_seconds is None


@pytest.fixture(scope="module")
def queue() -> list[list[str]]:
    lines = capture_path("jobs/slurm/sample-squeue-output.txt").read_text().splitlines()
    return [line.split("|#") for line in lines if line]


def test_the_queue_lists_nodes_and_resources_as_jobs_do(queue):
    for row in queue:
        held = parse_tres(row[_TRES])
        is_running = row[_STATE] == "RUNNING"
        nodes = expand_nodes(row[_NODES])
        assert len(nodes) == len(set(nodes)) == (int(row[_NODE_COUNT]) if is_running else 0)
        start, _ = times(row[_STATE], seconds(row[_START], UTC), None)
        assert (start is not None) == is_running
        if row[0] != "N/A" and is_running:
            (asked,) = parse_gres(row[0].removeprefix("gres/"))
            assert held["gpu"] == asked.count * len(nodes)
    assert [parse_tres(row[_TRES]).get("gpu", 0) for row in queue] == [2, 1, 256, 0, 160]
