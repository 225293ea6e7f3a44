"""Ranks that a hang names, and pauses of a job, across a restart of the collector."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.arriving_frames import ArrivingFrames, write_frame_log

from railscope.timestamps import SECOND_NS
from railscope.wire import Envelope, WireSchema, schema_hash
from railscope_agent.collective_settings import CollectiveSettings
from railscope_agent.commands.replay import CaptureReplay
from railscope_agent.config import AgentSettings
from railscope_collector.commands.diagnose import REPLAYED_METRICS, REPLAYED_SOURCES
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
        self.schemas: dict[bytes, WireSchema] = {}
        self.jobs: dict[JobKey, list[str]] = {}
        self.envelopes: list[Envelope] = []
        for name in ("gpu-node-1", "gpu-node-2"):
            replay = CaptureReplay(directory / name, AgentSettings(collectives=read), SOURCES)
            self.envelopes += replay.envelopes(samples=1)
        for envelope in self.envelopes:
            self.schemas |= {schema_hash(schema): schema for schema in envelope.schemas}
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


@pytest.fixture(scope="module")
def paused(tmp_path_factory: pytest.TempPathFactory) -> ArrivingFrames:
    """Frames of a job whose ranks spin twice for 90 seconds, as behind a checkpoint."""
    directory = tmp_path_factory.mktemp("paused")
    pauses = [
        scenario.PlannedClusterFault("missing_rank", begin, 90.0, nodes=[1], indices=[5])
        for begin in (240.0, 440.0)
    ]
    job = scenario.JobPlan("alpha", [0, 1, 2], iteration_seconds=2.0, checkpoint_period_seconds=0.0)
    size = scenario.SimulatedClusterSize(nodes_per_pod=3, filers=0)
    plan = scenario.ClusterScenario(620, 10.0, seed=5, cluster=size, jobs=[job], faults=pauses)
    captures.write_cluster(plan, directory / "captures")
    write_frame_log(directory / "captures", directory, REPLAYED_SOURCES, REPLAYED_METRICS)
    frames = ArrivingFrames()
    frames.read(directory)
    return frames


@pytest.mark.parametrize(("restart", "cut"), [(400, 440), (460, 480)])
def test_a_node_is_not_down_if_its_job_pauses_as_before_a_restart(
    paused: ArrivingFrames, restart: int, cut: int, tmp_path: Path
) -> None:
    """A node is cut off in the second pause; running jobs are not known for 20 seconds after the restart."""
    engine = DiagnosisEngine(tmp_path, paused.schemas.__getitem__)
    engine.open(paused.start_ns)
    for seconds in range(0, 620, 10):
        begin_ns = paused.start_ns + seconds * SECOND_NS
        if seconds == restart:
            engine.save_all()
            engine = DiagnosisEngine(tmp_path, paused.schemas.__getitem__)
            engine.open(begin_ns)
        items = [
            each._replace(offset_ns=0)
            for each in paused.between(begin_ns, begin_ns + STEP_NS)
            if seconds < cut or each.node != "gpu-node-3"
        ]
        jobs = {} if restart <= seconds < restart + 20 else paused.jobs
        engine.process(items, jobs, begin_ns + STEP_NS)
        assert engine.table.incidents == () or seconds > 530
    (found,) = engine.table.incidents
    assert found.document.incident_class == "agent_partition"
