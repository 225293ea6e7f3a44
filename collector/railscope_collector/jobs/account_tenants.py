"""Tenants of a scheduler's accounts and namespaces, from the tenants file."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from railscope_collector.files.tenants_file import TenantMappings, unmapped_tenant
from railscope_collector.jobs.job_list import JobList, ListedJob, build_job_list

CLAIM_PROVIDERS = {
    "clustercockpit": "slurm",
    "sacct": "slurm",
    "kubernetes": "kubernetes",
    "alibaba": "alibaba",
}
"""Provider of the claims of a format's jobs."""


def map_tenants(jobs: Iterable[ListedJob], source: str, tenants: TenantMappings) -> list[ListedJob]:
    """The jobs with the tenants of their accounts, split where the tenant of an account changes.

    An account without a row keeps its name.
    """
    mapped: list[ListedJob] = []
    for job in jobs:
        default = unmapped_tenant(source, job.tenant)
        pieces = tenants.timeline(source, job.tenant, job.start_ns, job.end_ns)
        if not pieces:
            mapped.append(job)  # it has no duration
        for start_ns, end_ns, tenant in pieces:
            name = job.tenant if tenant == default else tenant
            part = msgspec.structs.replace(job, start_ns=start_ns, end_ns=end_ns, tenant=name)
            if start_ns > job.start_ns:
                # The start of the run decides precedence and price: another tenant moves no time between jobs.
                part = msgspec.structs.replace(part, run_start_ns=job.start_ns)
            mapped.append(part)
    return sorted(mapped)


def map_list_tenants(jobs: JobList, source: str, tenants: TenantMappings) -> JobList:
    """A list with the tenants of its accounts."""
    mapped_jobs = map_tenants([*jobs.jobs, *jobs.unended], source, tenants)
    mapped = build_job_list(mapped_jobs, jobs.without_gpus, jobs.never_started)
    return msgspec.structs.replace(jobs, jobs=mapped.jobs, unended=mapped.unended)


def account_name(tenant: str) -> str:
    """A tenant of the ledger as named in a list: `slurm:physics` is an account without a row."""
    source, colon, owner = tenant.partition(":")
    return owner if colon and source in CLAIM_PROVIDERS.values() else tenant
