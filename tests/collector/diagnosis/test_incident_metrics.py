"""Metrics of incidents."""

from __future__ import annotations

from railscope.catalog import incidents as catalog
from railscope_collector.diagnosis.incident_table import IncidentTable
from tests.support.incidents import incident


def test_a_job_that_an_incident_ended_has_a_metric() -> None:
    """The notification of a GPU that killed a job names the job and its tenant."""
    killed = {"kind": "job", "tenant": "language", "source": "slurm", "workload": "60937"}
    other = {"kind": "job", "tenant": "vision", "source": "slurm", "workload": "8"}
    jobs = [killed | {"ended": "2026-01-01T00:01:00Z"}, other | {"ended": "2026-01-01T00:01:00Z"}]
    table = IncidentTable(1, (incident("I1", jobs=jobs, severity="critical"),))
    found = [cell.labels[:3] for cell in table.cells() if cell.metric is catalog.JOB_INCIDENT]
    assert found == [("language", "slurm", "60937"), ("vision", "slurm", "8")]
