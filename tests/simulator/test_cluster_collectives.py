"""Collectives of simulated jobs, as the agent's own sources read what they leave on the nodes."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from railscope.frame import Event
from railscope_agent.collective_settings import CollectiveSettings
from railscope_agent.commands.replay import ReplayedNode
from railscope_agent.config import AgentSettings
from railscope_simulator.cluster import collective_records
from railscope_simulator.cluster.captures import SampledCluster, write_cluster
from railscope_simulator.cluster.scenario import (
    ClusterScenario,
    JobPlan,
    PlannedClusterFault,
    SimulatedClusterSize,
)
from tests.collector.diagnosis.score import scoring

SETTINGS = AgentSettings(collectives=CollectiveSettings(**collective_records.SETTINGS))
SOURCES = ("gpu", "gpu_sharing", "tenancy", "flight_recorder", "nccl_inspector", "nccl_ras")
ALL: list[Any] = ["inspector", "ras", "flight_recorder"]
job = partial(
    JobPlan, "alpha", [0, 1], iteration_seconds=2.0, collectives=ALL, watchdog_seconds=70.0
)
fault = partial(
    PlannedClusterFault, begin_seconds=100.0, length_seconds=0.0, nodes=[1], indices=[5]
)


def scenario(*jobs: JobPlan, faults: tuple[Any, ...] = (), seconds: int = 220) -> ClusterScenario:
    size = SimulatedClusterSize(nodes_per_pod=2, filers=0)
    return ClusterScenario(
        seconds, step_seconds=5.0, seed=5, cluster=size, jobs=[*jobs], faults=[*faults]
    )


class Replayed(NamedTuple):
    """Events of all nodes, and the sums of the last numbers of some sources over all nodes."""

    events: list[tuple[str, Event]]
    numbers: Counter[str]

    def named(self, name: str) -> list[tuple[str, dict[str, str], tuple[str, ...]]]:
        return [
            (n, dict(e.facts), e.entity.key) for n, e in self.events if e.event_class.name == name
        ]


def replay(plan: ClusterScenario, settings: AgentSettings = SETTINGS) -> Replayed:
    cluster, events = SampledCluster(plan), []
    nodes = [ReplayedNode(about, settings, SOURCES) for about in cluster.metadata()]
    last: dict[str, int] = {}
    for offset_ns in cluster.offsets():
        cluster.advance(offset_ns)
        for node, moment in zip(nodes, cluster.changes(), strict=True):
            if moment is not None:
                node.advance(moment)
                for frame in node.read_sources():
                    events += [(node.origin.node, event) for event in frame.events]
                    if frame.schema.stream in SOURCES[3:]:
                        last |= {
                            f"{node.origin.node} {metric.name} {' '.join(entity.key)}": number
                            for metric, entity, number in frame.readings()
                            if isinstance(number, int)
                        }
    numbers: Counter[str] = Counter()
    for name, number in last.items():
        numbers[name.partition(" ")[2].strip()] += number
    return Replayed(events, numbers)


def test_a_rank_that_starts_no_collective_is_late_in_dumps_and_in_answers_of_ras() -> None:
    found = replay(scenario(job(), faults=(fault("missing_rank"),)))
    ((node, facts, key),) = found.named("collective_late")
    assert (node, key[3], facts["gpu_index"], facts["rail"]) == ("gpu-node-2", "13", "5", "5")
    assert facts["source"] == "slurm"
    ((node, _, key),) = found.named("nccl_rank_late")
    assert (node, key[3]) == ("gpu-node-1", "13"), "the node of rank 0 queries"
    ((waiting, facts, _),) = found.named("collective_waiting")
    assert (waiting, facts["waiting_ranks"]) == ("gpu-node-1", "0-7")
    assert found.numbers["railscope_nccl_ras_ranks late"] == 1
    assert found.numbers["railscope_nccl_ras_ranks waiting"] == 15


@pytest.mark.thorough
def test_in_a_collective_that_all_ranks_entered_all_wait_and_none_is_late() -> None:
    found = replay(scenario(job(), faults=(fault("hung_collective", nodes=[], job="alpha"),)))
    waits = {node: facts["sequence"] for node, facts, _ in found.named("collective_waiting")}
    assert waits.keys() == {"gpu-node-1", "gpu-node-2"}
    assert len(set(waits.values())) == 1
    assert not [event for _, event in found.events if event.event_class.name.startswith("nccl_")]
    assert not found.named("collective_late")
    assert found.numbers["railscope_nccl_ras_ranks running"] == 16


@pytest.mark.thorough
def test_the_rank_of_a_slow_gpu_arrives_last() -> None:
    found = replay(scenario(job(), faults=(fault("slow_gpu", strength=0.5),)))
    ((node, facts, key),) = found.named("collective_straggler")
    assert (node, key[3], facts["gpu_index"]) == ("gpu-node-2", "13", "5")
    assert int(facts["late_percent"]) > 20


@pytest.mark.parametrize(
    ("plan", "seconds"),
    [
        *(
            pytest.param(plan, 400, marks=pytest.mark.thorough)
            for plan in (
                job(checkpoint_period_seconds=60.0, checkpoint_seconds=20.0),
                job(uneven=0.3, pattern="pipeline"),
                job(breaks=[(300.0, 40.0)]),
            )
        ),
        (job(exchange=0.05), 200),
    ],
)
def test_a_healthy_job_keeps_its_bandwidth_and_has_no_straggler_and_no_late_rank(
    plan: JobPlan, seconds: int
) -> None:
    """A bandwidth is compared with minutes of past, so that only the longer ones could be slow."""
    found = replay(scenario(plan, seconds=seconds))
    assert not [e for _, e in found.events if e.event_class.name.startswith(("collective", "nccl"))]
    assert found.numbers["railscope_nccl_inspector_lines_total read"] > 1000
    rejected = {n: c for n, c in found.numbers.items() if "lines_total" in n and "read" not in n}
    assert not any(rejected.values()), rejected
    assert found.numbers["railscope_nccl_inspector_files read"] == 16


@pytest.mark.thorough
def test_the_diagnosis_of_captures_names_the_rank_that_did_not_arrive(tmp_path: Path) -> None:
    late, plan = fault("missing_rank", begin_seconds=200.0), job(checkpoint_period_seconds=0.0)
    plan = msgspec.structs.replace(plan, name="llama", tenant="physics")
    stopped = scenario(plan, faults=(late,), seconds=400)
    size = msgspec.structs.replace(stopped.cluster, scheduler="kubernetes")
    stopped = msgspec.structs.replace(stopped, cluster=size)
    write_cluster(stopped, tmp_path / "captures")
    (found,) = scoring.diagnose(tmp_path / "captures", scoring.DIAGNOSE)
    named = {item["signal"]: item["device"] for item in found["evidence"]}
    assert found["class"] == "nccl_hang"
    assert named["collective_late"] == "gpu-node-2 rank 13 (GPU 5, rail 5)"
    (slowed,) = found["jobs"]
    assert (slowed["tenant"], slowed["workload"]) == ("physics", "physics/llama")
    (tmp_path / "captures" / "agent.toml").write_text(
        '[collectives]\nflight_recorder_directory = ""\n', encoding="utf-8"
    )
    (found,) = scoring.diagnose(tmp_path / "captures", scoring.DIAGNOSE)
    assert {item["signal"] for item in found["evidence"]} == {"activity"}
