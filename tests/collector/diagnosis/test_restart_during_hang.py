"""Ranks that a hang names, and pauses of a job, across a restart of the collector."""

from __future__ import annotations

from pathlib import Path

import pytest

from railscope.shapes import SchemaTable
from railscope.timestamps import SECOND_NS
from railscope.wire import Envelope
from railscope_agent.collective_settings import CollectiveSettings
from railscope_agent.commands.replay import CaptureReplay
from railscope_agent.config import AgentSettings
from railscope_collector.live_diagnosis.diagnosis_engine import DiagnosisEngine, ReceivedBatches
from railscope_collector.workloads.job_roster import JobKey
from railscope_simulator.cluster import captures, collective_records, scenario

STEP_NS = 10 * SECOND_NS
SECONDS = 480
SOURCES = (
    "gpu", "gpu_activity", "nvlink", "rdma", "gpu_sharing", "nic", "link", "host", "tenancy",
    "flight_recorder", "nccl_ras",
)  # fmt: skip


class HungJob:
    """Frames of the nodes of a job whose rank 13 starts no more collective at 200 s."""

    def __init__(self, directory: Path) -> None:
        job = scenario.JobPlan(
            "alpha",
            [0, 1],
            iteration_seconds=2.0,
            checkpoint_period_seconds=0.0,
            collectives=["ras", "flight_recorder"],
            watchdog_seconds=70.0,
        )
        late = scenario.PlannedClusterFault("missing_rank", 200.0, nodes=[1], indices=[5])
        size = scenario.SimulatedClusterSize(nodes_per_pod=2, filers=0)
        plan = scenario.ClusterScenario(
            SECONDS, 5.0, seed=5, cluster=size, jobs=[job], faults=[late]
        )
        captures.write_cluster(plan, directory)
        read = CollectiveSettings(**collective_records.SETTINGS)
        self.schemas = SchemaTable()
        self.jobs: dict[JobKey, list[str]] = {}
        self.envelopes: list[Envelope] = []
        for name in ("gpu-node-1", "gpu-node-2"):
            replay = CaptureReplay(directory / name, AgentSettings(collectives=read), SOURCES)
            self.envelopes += replay.envelopes(samples=1)
        for envelope in self.envelopes:
            self.schemas.add(envelope)
            for event in (event for batch in envelope.batches for event in batch.events):
                if event.name == "claim_start":
                    key = JobKey("research", event.facts["source"], event.facts["workload"])
                    self.jobs.setdefault(key, []).append(event.entity.key[0])
        self.start_ns = min(map(sent_ns, self.envelopes))

    def open(self, directory: Path, seconds: int) -> DiagnosisEngine:
        engine = DiagnosisEngine(directory, self.schemas.__getitem__)
        engine.open(self.start_ns + seconds * SECOND_NS)
        return engine

    def run(self, engine: DiagnosisEngine, from_seconds: int, to_seconds: int) -> None:
        for seconds in range(from_seconds, to_seconds, 10):
            begin_ns = self.start_ns + seconds * SECOND_NS
            items = [
                ReceivedBatches(each.node, each.run, sent_ns(each), 0, each.batches)
                for each in self.envelopes
                if begin_ns <= sent_ns(each) < begin_ns + STEP_NS
            ]
            engine.process(items, self.jobs, begin_ns + STEP_NS)


def sent_ns(envelope: Envelope) -> int:
    return max(batch.wall_ns[-1] for batch in envelope.batches)


def named(engine: DiagnosisEngine) -> set[str]:
    (found,) = [each for each in engine.table.incidents if each.is_open]
    assert found.document.incident_class == "nccl_hang"
    return {item.device for item in found.document.evidence if " rank " in item.device}


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> HungJob:
    return HungJob(tmp_path_factory.mktemp("hung"))


@pytest.mark.thorough
@pytest.mark.parametrize("interruption", [10, 60])
def test_a_restart_keeps_the_ranks_that_did_not_arrive(
    job: HungJob, interruption: int, tmp_path: Path
) -> None:
    before = job.open(tmp_path, 0)
    job.run(before, 0, 380)
    assert "gpu-node-2 rank 13 (GPU 5, rail 5)" in named(before)
    before.save_all()
    again = 380 + interruption
    after = job.open(tmp_path, again)
    assert named(after) == named(before)
    job.run(after, again, SECONDS)
    assert named(after) == named(before)
