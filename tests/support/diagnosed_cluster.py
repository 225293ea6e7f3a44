"""A simulated cluster with its switches, diagnosed as a collector does: frames of nodes and polls of switches.

Nodes and switches advance together in simulated time; the real reader of gNMI polls the switches, without a network.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Collection
from pathlib import Path

from support.audit import audit_log
from support.fed_diagnosis import FedDiagnosis
from support.switch_dialects import PolledSwitch

from railscope.capture import CaptureWriter
from railscope.envelopes import open_body
from railscope.timestamps import SECOND_NS
from railscope.wire import SentAt, pack
from railscope_agent.commands.replay import CaptureReplay
from railscope_agent.config import AgentSettings
from railscope_collector.audit.audit_trail import AuditTrail
from railscope_collector.commands.diagnose import REPLAYED_METRICS, REPLAYED_SOURCES
from railscope_collector.diagnosis.incident_report import IncidentDocument
from railscope_collector.fleet.schemas import StoredSchemas
from railscope_collector.framelog.segment_files import FrameRecord
from railscope_collector.live_diagnosis.diagnosis_service import DiagnosisService
from railscope_collector.state.collector_state import CollectorState
from railscope_collector.workloads.job_roster import JobGpu, JobHolding, JobKey, RunningJob
from railscope_simulator.cluster.captures import SampledCluster
from railscope_simulator.cluster.cluster_switches import ClusterSwitches
from railscope_simulator.cluster.scenario import read_scenario

_MAX_BYTES, _STEP_NS = 64 << 20, 10 * SECOND_NS
_DELAY_NS = SECOND_NS // 10


async def record_cluster(
    scenario: Path, directory: Path, switches: Collection[str]
) -> list[FrameRecord]:
    """Return what a collector receives of the nodes of a scenario, and of those of its switches that it polls."""
    cluster = SampledCluster(read_scenario(scenario))
    fabric = ClusterSwitches(cluster.model)
    polled = [PolledSwitch(fabric.switches[name], "sonic") for name in switches]
    started_ns = cluster.model.specs[0].started_wall_ns
    records: list[FrameRecord] = []
    nodes = list(cluster.metadata())
    with contextlib.ExitStack() as stack:
        writers = [
            stack.enter_context(CaptureWriter(directory / about.node, about)) for about in nodes
        ]
        for offset_ns in cluster.offsets():
            span = cluster.advance(offset_ns)
            if offset_ns:
                fabric.count(span)
            for writer, moment in zip(writers, cluster.changes(), strict=True):
                if moment is not None:
                    writer.write(moment)
            for switch in polled:
                wall_ns = started_ns + offset_ns + _DELAY_NS
                envelope = await switch.poll(wall_ns, offset_ns)
                records.append(FrameRecord(envelope.node, wall_ns, envelope.sent, envelope.body))
    for about in nodes:
        for envelope in _replay(directory / about.node).envelopes(1):
            batch = envelope.batches[0]
            sent = SentAt(batch.wall_ns[-1], batch.boot_ns[-1], envelope.boot_id)
            received_ns = sent.wall_ns + _DELAY_NS
            records.append(FrameRecord(envelope.node, received_ns, sent, pack(envelope)))
    return sorted(records, key=lambda record: record.received_wall_ns)


def _replay(capture: Path) -> CaptureReplay:
    return CaptureReplay(capture, AgentSettings(), REPLAYED_SOURCES, REPLAYED_METRICS)


async def diagnose_records(records: list[FrameRecord], directory: Path) -> list[IncidentDocument]:
    """Return the incidents of a collector that receives these records."""
    core = CollectorState(StoredSchemas(directory / "schemas"))
    core.schemas.open()
    now_ns, jobs = records[0].received_wall_ns, defaultdict[JobKey, list[str]](list)
    trail = AuditTrail(audit_log(directory / "audit"), "1.0", lambda: now_ns)
    service = DiagnosisService(
        core,
        directory / "diagnosis",
        trail,
        lambda: now_ns,
        lambda: [_running(key, gpus) for key, gpus in jobs.items()],
        has_log=False,
    )
    service.open()
    diagnosis = FedDiagnosis(service, core.schemas.read)
    core.on_new_batches.append(service.forward)
    await diagnosis.evaluate()
    for record in records:
        while now_ns + _STEP_NS <= record.received_wall_ns:
            now_ns += _STEP_NS
            await diagnosis.evaluate()
        opened = open_body(record.body, _MAX_BYTES)
        core.schemas.put_all([core.schemas.recognize(content) for content in opened.schemas])
        envelope = opened.decode_envelope()
        for event in (event for batch in envelope.batches for event in batch.events):
            if event.name == "claim_start":
                key = JobKey("physics", event.facts["source"], event.facts["workload"])
                jobs[key].append(event.entity.key[0])
        core.accept(record, envelope)
    assert diagnosis.child.engine.failures == 0
    assert not core.counts.rejected
    return [each.document for each in service.table.incidents]


def _running(key: JobKey, gpus: list[str]) -> RunningJob:
    places = (
        JobGpu(gpu, n, JobHolding(key, "", 840, 0), is_alone=True) for n, gpu in enumerate(gpus)
    )
    return RunningJob(key, 0, tuple(places))
