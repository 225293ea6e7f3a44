"""Text of incidents: in the terminal, in the console and in notifications."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from support.incidents import NIC, NO_REACH, incident

from railscope.api import EvidenceDocument, JobDocument
from railscope.catalog import incidents as catalog
from railscope_collector.diagnosis.evidence_words import dated_text, evidence_text
from railscope_collector.diagnosis.findings import Cause, Compared, Finding
from railscope_collector.diagnosis.incident_report import describe, lost_time
from railscope_collector.diagnosis.incident_table import IncidentTable
from railscope_collector.diagnosis.incidents import IdleGpus, Incident
from railscope_collector.sinks.incident_webhook import FIRING, DueNotification, notification
from railscope_collector.workloads.job_roster import JobKey

GONE = {
    "signal": "utilization", "device": "n1 GPU 3", "value": None, "threshold": None, "comparison": "gone",
    "window_seconds": 30.0,
}  # fmt: skip
GONE_TEXT = "n1 GPU 3: time in which any kernel runs: no value (gone)"


@pytest.mark.parametrize(
    ("signal", "value", "threshold", "comparison", "text"),
    [
        ("pausing_share", 0.9, 0.003, "peers and baseline", "pauses its switch 90 % of the time (normal: 0.3 %)"),
        ("activity", None, None, "gone", "multiprocessors with work: no value (gone)"),
        ("link_up", 0.0, 1.0, "before", "link down (before: up)"),
        ("link_up", None, 1.0, "before", "link: no value (before)"),
        ("link_speed", 25e9, 50e9, "peers and past", "speed of the link: 200 Gb/s (normal: 400 Gb/s)"),
        ("link_downs", 2.0, 0.0, "limit", "times that the link went down: 2"),
        ("device_state", 4.0, 0.0, "limit", "owner of the device: missing"),
        ("read_latency", 0.0123, 4.2, "times its past", "mean duration of a read: 12.3 ms (4.2 times its past)"),
        ("activity", 1.12, 1.05, "change of peers", "multiprocessors with work: 112 % of what is normal"),
        ("xid 79", 1.0, 0.0, "event", "Xid 79, the GPU cannot be reached over PCIe"),
        ("collective_late", 3.0, 0.0, "collectives behind other ranks", "has not entered"),
        ("trust", 8.0, 40.0, "trust pcp, 40 peers have dscp", "trust pcp, 40 peers have dscp"),
    ],
)  # fmt: skip
def test_text_of_evidence(
    signal: str, value: float | None, threshold: float | None, comparison: str, text: str
) -> None:
    window = 0.0 if "peers have" in comparison else 30.0
    given = EvidenceDocument(signal, "n1 eth1", value, threshold, comparison, window)
    assert evidence_text(given) == f"n1 eth1: {text}"


@pytest.mark.parametrize(
    ("value", "worst", "text"),
    [
        (0.2, 0.6, " 20 % of the time (limit: 10 %); worst: 60 % at 2026-01-01 00:01:40 UTC"),
        (0.201, 0.202, " 20 % of the time (limit: 10 %)"),
        (0.2, None, " 20 % of the time (limit: 10 %)"),
    ],
)
def test_evidence_names_the_worst_value_and_its_time_unless_it_reads_the_same(
    value: float, worst: float | None, text: str
) -> None:
    given = EvidenceDocument(
        "write_stall", "n1 eth1", value, 0.1, "limit", 30.0, "", worst, "2026-01-01T00:01:40.5Z"
    )
    assert dated_text(given) == f"n1 eth1: PCIe writes stall{text}"


def test_a_reason_names_a_fault_that_recovers_while_data_of_the_device_are_fresh() -> None:
    found = replace(incident("a"), recovering_slots=4)
    assert found.reason(is_fresh=True).endswith(" (recovering: no evidence for 40 s)")
    assert found.reason(is_fresh=False) == found.document.title
    assert replace(found, recovering_slots=0).reason(is_fresh=True) == found.document.title


def test_console_notification_and_terminal_state_the_same_reason_for_an_absent_value() -> None:
    found = incident("a", evidence=[GONE], victim_count=1)
    assert [*map(evidence_text, found.document.evidence)] == [GONE_TEXT]
    assert f"  {GONE_TEXT}" in list(describe(found.document, 0, 0))
    (alert,) = notification(DueNotification("a", FIRING, found), "", "")["alerts"]
    assert GONE_TEXT in alert["annotations"]["description"]


def test_a_notification_counts_victims_and_names_jobs_without_a_tenant() -> None:
    jobs = [{"kind": "job", "tenant": "", "source": "slurm", "workload": "7"}]
    found = incident(
        "a", evidence=[GONE], victim_count=1, victims=jobs, jobs=jobs, lost_gpu_time_seconds=90
    )
    (alert,) = notification(DueNotification("a", FIRING, found), "", "")["alerts"]
    assert alert["annotations"]["description"] == (
        f"A NIC is slow. Likely (80 %); {GONE_TEXT}; 1 job affected; job 7 of no tenant; 1 min 30 s of GPU time lost"
    )
    found = incident("a", lost_gpu_time_seconds=None)
    opening = notification(DueNotification("a", FIRING, found), "", "")["alerts"][0]
    assert (
        opening["annotations"]["description"]
        == "A NIC is slow. Likely (80 %); nothing else affected"
    )


def test_the_terminal_shows_cost_runbook_and_id() -> None:
    lines = list(describe(incident("b41d").document, 0, 0))
    assert lines[-3:] == [
        "  -> drain the node",
        "  runbook: /runbooks/RailscopeIncident#slow_receiver",
        "  incident: b41d",
    ]
    assert "  7 GPU-seconds lost" in lines
    assert (
        "  since 2026-01-01 00:00:00 UTC, detected 2026-01-01 00:00:40 UTC, likely (80 %)" in lines
    )
    ended = incident("b41d", ended="2026-01-01T01:00:00Z").document
    assert next(describe(ended, 0, 0)).startswith("warning")
    assert any(
        "from 2026-01-01 00:00:00 UTC to 2026-01-01 01" in line for line in describe(ended, 0, 0)
    )


def test_the_terminal_counts_only_nics_as_paused() -> None:
    node, jobs = {"kind": "node", "node": "n2"}, [JobDocument("a", "slurm", "7")]
    document = incident("a", victims=[node, NIC], victim_count=4).document
    document = msgspec.structs.replace(document, jobs=tuple(jobs))
    lines = list(describe(document, 1, 2))
    assert ("  1 NIC paused" in lines, "  1 more job" in lines) == (True, True)
    assert not any("paused" in line for line in describe(document, 0, 1))


JOB = JobKey("a", "slurm", "7")


@pytest.mark.parametrize(
    ("facts", "lost"),
    [
        ({}, 0),
        ({"holders": {JOB}, "judged_jobs": {JOB}}, 0),
        ({"holders": {JOB}}, None),
        ({"holders": {JOB}, "judged_jobs": {JOB}, "ended_jobs": {JOB: 1}}, None),
        ({"holders": {JOB}, "ended_jobs": {JOB: 1}, "lost_gpu_seconds": {"a": 12.4}}, 12),
        ({"holders": {JOB}, "ended_jobs": {JOB: 1}, "idle_gpus": {JOB: IdleGpus((), 8, 0)}}, 0),
    ],
)
def test_a_loss_of_which_nothing_is_known_is_not_zero(
    facts: dict[str, Any], lost: int | None
) -> None:
    cause = Cause("nic", 0)
    found = Incident(Finding("link_down", cause, ()), NO_REACH, 0, 0, **facts)
    assert lost_time(found) == lost_time(found, "a") == lost
    assert (
        lost_time(replace(found, holders={*found.holders, JobKey("b", "slurm", "8")}), "b") is None
    )
    document = msgspec.structs.replace(incident("a").document, lost_gpu_time_seconds=lost)
    assert ("  loss not known" in describe(document, 0, 0)) == (lost is None)


def test_evidence_of_many_devices_has_the_first_four() -> None:
    compared = Compared("paused_share", np.linspace(0.1, 0.9, 9), 0.05)
    view: Any = SimpleNamespace(
        devices=SimpleNamespace(nics=range(9)), nic_name=lambda position: f"n{position} eth0"
    )
    shown = compared.of_nics(view, range(2, 9))
    assert [(each.device, each.value) for each in shown] == [
        (f"n{number} eth0", pytest.approx(0.1 + number / 10)) for number in range(2, 6)
    ]


def test_a_job_that_an_incident_ended_has_a_metric() -> None:
    """The notification of a GPU that killed a job names the job and its tenant."""
    killed = {"kind": "job", "tenant": "language", "source": "slurm", "workload": "60937"}
    other = {"kind": "job", "tenant": "vision", "source": "slurm", "workload": "8"}
    jobs = [killed | {"ended": "2026-01-01T00:01:00Z"}, other | {"ended": "2026-01-01T00:01:00Z"}]
    table = IncidentTable(1, (incident("I1", jobs=jobs, severity="critical"),))
    found = [cell.labels[:3] for cell in table.cells() if cell.metric is catalog.JOB_INCIDENT]
    assert found == [("language", "slurm", "60937"), ("vision", "slurm", "8")]
