"""Tenants of a scheduler's accounts and namespaces, from the tenants file."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from collector.files.tenants_file import Tenants, unmapped
from collector.jobs.job import Job, JobList, job_list

SOURCES = {
    "clustercockpit": "slurm",
    "sacct": "slurm",
    "kubernetes": "kubernetes",
    "alibaba": "alibaba",
}
"""Source of claims of a format's jobs."""


def with_tenants(jobs: Iterable[Job], source: str, tenants: Tenants) -> list[Job]:
    """The jobs with the tenants of their accounts, split where the tenant of an account changes.

    An account without a row keeps its name.
    """
    found: list[Job] = []
    for job in jobs:
        no_one = unmapped(source, job.tenant)
        pieces = tenants.pieces(source, job.tenant, job.start_ns, job.end_ns)
        if not pieces:
            found.append(job)  # it has no duration
        for start_ns, end_ns, tenant in pieces:
            name = job.tenant if tenant == no_one else tenant
            part = msgspec.structs.replace(job, start_ns=start_ns, end_ns=end_ns, tenant=name)
            found.append(part)
    return sorted(found)


def listed_with_tenants(jobs: JobList, source: str, tenants: Tenants) -> JobList:
    """A list with the tenants of its accounts."""
    every = with_tenants([*jobs.jobs, *jobs.unended], source, tenants)
    found = job_list(every, jobs.without_gpus, jobs.never_started)
    return msgspec.structs.replace(jobs, jobs=found.jobs, unended=found.unended)


def as_listed(tenant: str) -> str:
    """A tenant of the ledger as named in a list: `slurm:physics` is an account without a row."""
    source, colon, owner = tenant.partition(":")
    return owner if colon and source in SOURCES.values() else tenant
