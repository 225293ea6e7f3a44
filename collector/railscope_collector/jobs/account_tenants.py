"""Tenants of a scheduler's accounts and namespaces, from the tenants file."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import msgspec

from railscope_collector.files.tenants_file import UNMAPPED, TenantMappings
from railscope_collector.jobs.job_list import JobList, ListedJob, build_job_list

CLAIM_PROVIDERS = {
    "clustercockpit": "slurm",
    "sacct": "slurm",
    "kubernetes": "kubernetes",
}
"""Provider of the claims of a format's jobs."""


def default_source(form: str, cluster: str) -> str:
    """Source of a list that is not named otherwise: its scheduler, with the cluster that it names."""
    return f"{CLAIM_PROVIDERS[form]}{cluster and f':{cluster}'}"


def map_tenants(jobs: Iterable[ListedJob], source: str, tenants: TenantMappings) -> list[ListedJob]:
    """The jobs with the tenants of their accounts, split where the tenant of an account changes."""
    mapped: list[ListedJob] = []
    names = tenant_names(tenants)
    for job in jobs:
        # Without a duration a job has no parts: it keeps its account as the tenant.
        pieces = tenants.timeline(source, job.tenant, job.start_ns, job.end_ns)
        if not pieces:
            mapped.append(job)
        for start_ns, end_ns, tenant in pieces:
            name = account_name(tenant, names)
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


def tenant_names(tenants: TenantMappings) -> frozenset[str]:
    """Names of the tenants of a file."""
    return frozenset(mapping.tenant for mapping in tenants)


def account_name(tenant: str, taken: Collection[str] = ()) -> str:
    """A tenant as named in a ledger of job lists: an account without a row, `slurm:physics`, has its own name.

    Unless a tenant has that name: a user who creates a namespace must not bill another tenant.
    """
    source, colon, owner = tenant.partition(UNMAPPED)
    is_account = colon and source in CLAIM_PROVIDERS.values()
    return owner if is_account and owner not in taken else tenant
