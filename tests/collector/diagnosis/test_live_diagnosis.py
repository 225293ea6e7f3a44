"""Diagnosis of a running collector: frames as they arrive, restarts, records, and what each reader sees."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import cast

import pytest
from running_collector import RunningCollector, run_collector, settings_in
from support.arriving_frames import STEP_NS, ArrivingFrames
from support.fed_diagnosis import FedDiagnosis

from railscope.audit.record import decode_audit_record
from railscope.timestamps import HOUR_NS, SECOND_NS
from railscope_collector.access.credentials import digest_token
from railscope_collector.config import DiagnosisSettings
from railscope_collector.diagnosis.incident_classes import ChangeKind
from railscope_collector.diagnosis.incident_report import NicDocument
from railscope_collector.diagnosis.incidents import IncidentChange
from railscope_collector.live_diagnosis import diagnosis_engine
from railscope_collector.live_diagnosis.diagnosis_engine import DiagnosisEngine
from railscope_collector.workloads.job_roster import JobGpu, JobHolding, JobKey, RunningJob


@pytest.fixture(scope="module")
def frames(frame_log: Path) -> ArrivingFrames:
    found = ArrivingFrames()
    found.read(frame_log)
    return found


def opened(frames: ArrivingFrames, directory: Path, at_ns: int) -> DiagnosisEngine:
    engine = DiagnosisEngine(directory, frames.schemas.__getitem__)
    engine.open(at_ns)
    return engine


def run_until(
    engine: DiagnosisEngine, frames: ArrivingFrames, from_ns: int, to_ns: int
) -> Iterator[tuple[int, IncidentChange]]:
    """Feed an engine every 10 seconds; yield each change with its time."""
    for now_ns in range(from_ns + STEP_NS, to_ns + STEP_NS, STEP_NS):
        arrived = frames.between(now_ns - STEP_NS, now_ns)
        for change in engine.process(arrived, frames.jobs, now_ns):
            yield now_ns, change


def test_an_incident_opens_while_frames_arrive_and_closes_an_hour_after_them(
    frames: ArrivingFrames, tmp_path: Path
) -> None:
    engine = opened(frames, tmp_path, frames.start_ns)
    end_ns = frames.start_ns + 560 * SECOND_NS
    changes = list(run_until(engine, frames, frames.start_ns, end_ns))
    assert [change.kind for _, change in changes] == [ChangeKind.OPENED]
    (closed,) = run_until(engine, frames, end_ns, end_ns + HOUR_NS)
    assert closed[1].kind is ChangeKind.CLOSED
    onset_ns = frames.start_ns + 300 * SECOND_NS
    assert onset_ns < changes[0][0] <= onset_ns + 60 * SECOND_NS
    (incident,) = engine.table.incidents
    document = incident.document
    assert isinstance(document.cause, NicDocument)
    assert (document.incident_class, document.cause.node) == ("slow_receiver", "gpu-node-2")
    assert document.ended is not None
    assert document.lost_gpu_time_seconds > 0
    (curve,) = incident.curves
    values = [point.value for point in curve.points]
    before, after = (
        max(value for value in part if value is not None) for part in (values[:25], values[30:])
    )
    assert curve.signal == "pausing_share"
    assert before < 0.01 < after


def test_a_restart_continues_an_incident(frames: ArrivingFrames, tmp_path: Path) -> None:
    middle_ns = frames.start_ns + 360 * SECOND_NS
    before = opened(frames, tmp_path, frames.start_ns)
    list(run_until(before, frames, frames.start_ns, middle_ns))
    before.save_all()
    after = opened(frames, tmp_path, middle_ns + 5 * SECOND_NS)
    assert [each.document for each in after.table.incidents] == [
        each.document for each in before.table.incidents
    ]
    assert list(run_until(after, frames, middle_ns, middle_ns + 50 * SECOND_NS)) == []
    (incident,) = after.table.incidents
    assert incident.is_open
    lost, earlier = incident.lost_gpu_seconds, before.table.incidents[0].lost_gpu_seconds
    assert sum(lost.values()) > sum(earlier.values()) > 0
    assert after.table.opened == {"slow_receiver": 1}
    assert [each.sequence for each in after.changes] == [1]
    assert after.acknowledged == 0


def test_an_incident_that_ended_during_an_interruption_closes(
    frames: ArrivingFrames, tmp_path: Path
) -> None:
    middle_ns = frames.start_ns + 360 * SECOND_NS
    before = opened(frames, tmp_path, frames.start_ns)
    list(run_until(before, frames, frames.start_ns, middle_ns))
    before.save_all()
    later_ns = middle_ns + 7200 * SECOND_NS
    after = opened(frames, tmp_path, later_ns)
    changes = list(run_until(after, frames, later_ns, later_ns + 200 * SECOND_NS))
    assert [change.kind for _, change in changes] == [ChangeKind.CLOSED]
    assert changes[0][1].incident.ended_ns <= middle_ns + STEP_NS


@pytest.mark.parametrize("content", [b"", b"\x81\xa7version\x09"])
def test_a_damaged_state_is_set_aside(
    frames: ArrivingFrames, tmp_path: Path, content: bytes
) -> None:
    (tmp_path / diagnosis_engine.STATE_FILE).write_bytes(content)
    engine = opened(frames, tmp_path, frames.start_ns)
    assert engine.table.incidents == ()
    assert (tmp_path / f"{diagnosis_engine.STATE_FILE}.damaged").read_bytes() == content


def test_the_table_keeps_the_time_of_the_last_evaluation_that_succeeded(
    frames: ArrivingFrames, tmp_path: Path
) -> None:
    engine = opened(frames, tmp_path, frames.start_ns)
    middle_ns = frames.start_ns + 20 * STEP_NS
    list(run_until(engine, frames, frames.start_ns, middle_ns))
    evaluated_ns = engine.table.timestamp_ns
    assert middle_ns - 2 * STEP_NS <= evaluated_ns <= middle_ns
    invalid = {JobKey("physics", "slurm", "7"): 7}
    engine.process([], cast("dict[JobKey, list[str]]", invalid), middle_ns + 5 * STEP_NS)
    assert engine.failures
    assert engine.table.timestamp_ns == evaluated_ns
    engine.save_all()
    later_ns = middle_ns + 100 * STEP_NS
    assert opened(frames, tmp_path, later_ns).table.timestamp_ns == evaluated_ns


@contextlib.asynccontextmanager
async def diagnosed(frames: ArrivingFrames, directory: Path) -> AsyncIterator[RunningCollector]:
    """A collector whose diagnosis has received the frames, by their clock."""
    now_ns = frames.start_ns
    settings = settings_in(directory, diagnosis=DiagnosisSettings(enabled=False))
    tokens = directory / "tokens.toml"
    tenants = [
        f'[tenants.{name}]\nreader = "{digest_token("token-" + name)}"\n'
        for name in ("physics", "other")
    ]
    tokens.write_text("".join([tokens.read_text(), *tenants]))

    jobs = [
        RunningJob(
            key,
            number,
            tuple(
                JobGpu(gpu, place, JobHolding(key, "", 840, now_ns), is_alone=True)
                for place, gpu in enumerate(gpus)
            ),
        )
        for number, (key, gpus) in enumerate(frames.jobs.items())
    ]

    def replace_diagnosis(one: RunningCollector) -> None:
        diagnosis = one.collector.diagnosis
        diagnosis.wall_ns, diagnosis.jobs = lambda: now_ns, lambda: jobs

    async with run_collector(settings, replace_diagnosis) as one:
        service = one.collector.diagnosis
        service.open()
        diagnosis = FedDiagnosis(service, frames.schemas.__getitem__)
        await diagnosis.evaluate()
        for _ in range(40):
            for record in frames.records(now_ns, now_ns + STEP_NS):
                diagnosis.log.records.append(record)
            now_ns += STEP_NS
            await diagnosis.evaluate()
        await service.record_changes()
        yield one


async def test_an_incident_is_in_the_api_the_metrics_the_events_and_the_audit_log(
    frames: ArrivingFrames, tmp_path: Path
) -> None:
    """A tenant reads it if it touches one of its jobs."""
    async with diagnosed(frames, tmp_path) as one:
        (row,) = (await one.json("/api/v1/incidents?class=slow_receiver&severity=warning"))["rows"]
        assert row["cause"]["interface"]
        assert row["lost_gpu_time_seconds"] > 0
        for state, expected in (("all", [row]), ("open", [row]), ("closed", [])):
            found = (await one.json(f"/api/v1/incidents?state={state}"))["rows"]
            assert found == expected
        whole = await one.json(f"/api/v1/incidents/{row['id']}")
        assert whole["cause"] == row["cause"]
        assert len(whole["curves"][0]["points"]) > 30
        status, text = await one.get("/api/v1/incidents?class=unheard")
        assert (status, "invalid class 'unheard': expected one of" in text) == (400, True)
        assert (await one.get("/api/v1/incidents/none"))[0] == 404
        _, metrics = await one.get("/metrics")
        assert f'railscope_incident_onset_timestamp_seconds{{incident="{row["id"]}"' in metrics
        assert 'railscope_incidents{class="slow_receiver",severity="warning"} 1' in metrics
        assert "railscope_job_step_seconds" not in metrics, "samples are too rare"
        events = (await one.json("/api/v1/events"))["events"]
        assert [(each["name"], each["entity"][1]) for each in events] == [
            ("incident_opened", [row["id"]])
        ]
        records = map(decode_audit_record, one.collector.trail.log.records(0))
        (record,) = [each for each in records if each.type == "evidence.incident_open"]
        assert record.obj.node == "gpu-node-2"
        assert (record.data["incident"], record.data["class"]) == (row["id"], "slow_receiver")
        (own,) = (await one.json("/api/v1/incidents", "token-physics"))["rows"]
        same = "id", "jobs", "lost_gpu_time_seconds"
        assert [own[name] for name in same] == [row[name] for name in same]
        lost = 'railscope_tenant_incident_lost_gpu_seconds_total{tenant="physics",class="slow_receiver"}'
        assert lost in (await one.get("/metrics", "token-physics"))[1]
        assert "lost_gpu_seconds_total{" not in (await one.get("/metrics", "token-other"))[1]
        assert (await one.json("/api/v1/incidents", "token-other"))["rows"] == []
        assert (await one.get(f"/api/v1/incidents/{row['id']}", "token-other"))[0] == 404
