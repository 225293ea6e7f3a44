"""Output of the demo: incidents as they change, and a summary of the faults in words."""

from __future__ import annotations

import subprocess
import sys
from itertools import islice
from pathlib import Path
from typing import Any

from support.incidents import incident

from railscope import api
from railscope.timestamps import SECOND_NS, format_timestamp
from railscope_simulator.demo.faults import FaultChange, changes
from railscope_simulator.demo.report import FaultReport

STARTED_NS = 1_800_000_000 * SECOND_NS
MEMORY, RECEIVER, HOT, UNCLAIMED, LINK = islice((each for each in changes() if each.begins), 5)


def found(change: FaultChange, seconds: float, **more: Any) -> api.IncidentDocument:
    """Incident of a fault, with an onset some seconds after its start."""
    onset = format_timestamp(STARTED_NS + round((change.seconds + seconds) * SECOND_NS))
    cause = {"kind": "node", "node": change.fault.node}
    content = {"class": change.fault.incident, "cause": cause, "onset": onset, "detected": onset}
    return incident(f"{change.fault.name}{seconds}", **(content | more)).document


def test_an_incident_is_a_line_when_it_begins_is_explained_and_ends():
    job = {"kind": "job", "tenant": "language", "source": "slurm", "workload": "7"}
    texts = {"title": "Hot GPU", "severity": "critical", "jobs": [job], "action": "clean it", "detected": "2027-01-15T08:04:00Z"}  # fmt: skip
    states = ({}, {}, {"explained_by": "b1"}, {"ended": "2027-01-15T08:09:00Z"}, {"ended": "2027-01-15T08:09:00Z"})  # fmt: skip
    report = FaultReport(STARTED_NS)
    lines = [line for state in states for line in report.changes([found(HOT, 5, **texts, **state)])]
    assert lines == [
        "INCIDENT      critical: Hot GPU; found 10 s after its onset; affected: job 7 of language; clean it",
        "EXPLAINED     Hot GPU: an effect of incident b1",
        "INCIDENT ENDS Hot GPU",
    ]


def test_the_summary_states_what_became_of_each_fault():
    report = FaultReport(STARTED_NS)
    assert report.summary(5, 10.0) == "SUMMARY: 5 nodes ran. No fault began."
    report.begun = [MEMORY, RECEIVER, HOT, UNCLAIMED, LINK]
    assert (UNCLAIMED.fault.incident, MEMORY.fault.node) == ("", LINK.fault.node)
    other_round = found(HOT, 1140)
    list(
        report.changes(
            [found(MEMORY, 3, ended="2027-01-15T08:09:00Z"), found(RECEIVER, -20), other_round]
        )
    )
    end = LINK.seconds + 1
    assert not report.missed(end)
    assert report.summary(5, end) == (
        "SUMMARY: 5 nodes ran. 5 faults began: 2 found as incidents, 2 just before the end, "
        "1 with an alert only, by design."
    )
    assert report.missed(end + 1000) == [HOT.fault, LINK.fault]
    assert report.summary(5, end + 1000).endswith(
        "NOT FOUND: hot_gpu on gpu-node-4, link_down on gpu-node-1."
    )
    list(report.changes([found(HOT, 9, **{"class": "gpu_straggler"})]))
    assert report.missed(end + 1000) == [LINK.fault]
    assert "1 found as another incident" in report.summary(5, end)


def test_the_demo_ends_at_once_without_standard_output(tmp_path: Path) -> None:
    demo = f"exec {sys.executable} -m railscope_simulator.demo --directory {tmp_path} >&-"
    outcome = subprocess.run(["sh", "-c", demo], capture_output=True, text=True, check=False)
    assert outcome.returncode == 1
    assert outcome.stderr == (
        "Error: standard output is closed: expected a terminal or file; fix: redirect it to /dev/null\n"
    )
