"""Jobs of pods: holdings of the pods of one job are joined by a pattern of their names."""

from __future__ import annotations

import re

from railscope.settings import SettingsError
from railscope_collector.workloads.job_holdings import KUBERNETES
from railscope_collector.workloads.job_roster import JobHolding, JobKey

NO_PODS = re.compile(r"(?!)")
"""A pattern that joins no pods."""


def job_of_pod(key: JobKey, pods: re.Pattern[str]) -> JobKey:
    """Return the job of a pod: names of pods of one job differ only outside the group `job`. Other jobs are returned as they are.

    The kubelet names pods and not their owners; controllers derive the names of pods from that of the job
    (kubeflow/trainer v1: pkg/core/job.go, GenGeneralName; kubernetes: pkg/controller/job/indexed_job_utils.go,
    podGenerateNameWithIndex, and the suffix of staging/src/k8s.io/apimachinery/pkg/util/rand/rand.go).
    """
    namespace, slash, pod = key.workload.partition("/")
    match = pods.fullmatch(pod) if slash and key.source == KUBERNETES else None
    return key._replace(workload=f"{namespace}/{match['job']}") if match else key


def join_pod_holdings(
    gpu_holdings: tuple[JobHolding, ...], pods: re.Pattern[str]
) -> tuple[JobHolding, ...]:
    """Join holdings of pods of one job."""
    jobs: dict[JobKey, JobHolding] = {}
    for holding in gpu_holdings:
        job = job_of_pod(holding.job, pods)
        before = jobs.get(job, holding._replace(units=0))
        start_ns = min(before.start_ns, holding.start_ns)
        jobs[job] = JobHolding(job, holding.node, before.units + holding.units, start_ns)
    return tuple(jobs[job] for job in sorted(jobs))


def compile_pattern(setting: str) -> re.Pattern[str]:
    """Compile the pattern of a setting. Raises SettingsError if it is invalid, or has no group `job`."""
    try:
        pattern = re.compile(setting) if setting else NO_PODS
    except re.error as error:
        message = f"invalid pod_job_pattern: expected a regular expression: {error}"
        raise SettingsError(message) from error
    if setting and "job" not in pattern.groupindex:
        message = "invalid pod_job_pattern: expected a group (?P<job>...)"
        raise SettingsError(message)
    return pattern
