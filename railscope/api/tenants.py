"""Tenants: their GPUs and jobs now, GPU time so far, quotas, charges and statements."""

from __future__ import annotations

import msgspec

from railscope import api
from railscope.api import billing


class Tenant(msgspec.Struct, frozen=True):
    """A tenant in the list; null is not known."""

    tenant: str
    gpus: float | None
    """GPUs that its jobs hold now."""
    held_gpu_hours: float | None
    """GPU time that it has held so far."""
    jobs: int | None = None
    """Its running jobs."""
    incidents: int | None = None
    """Open incidents that affect them, without those that another incident explains."""


class TenantList(msgspec.Struct, frozen=True):
    """Tenants, those that hold most GPUs first, with their roll-ups as metrics."""

    timestamp_ns: int
    rows: tuple[api.MetricValue, ...] = ()
    tenants: tuple[Tenant, ...] = ()
    found: int = 0
    offset: int = 0
    view: str = "tenant"


class TenantQuota(msgspec.Struct, frozen=True):
    """A quota in force, and its use in the current period; null for no bound."""

    period: str
    gpu_hours: float | None
    used_gpu_hours: float | None
    gpus: float | None


class TenantDetail(msgspec.Struct, frozen=True):
    """One tenant. Null is what the role of the reader may not read, or is not known."""

    timestamp_ns: int
    tenant: str
    until_ns: int | None
    """Time up to which the account is computed."""
    held_gpu_hours: float | None
    gpu_hours: dict[str, float]
    """GPU time so far by state."""
    quotas: tuple[TenantQuota, ...]
    jobs: api.JobList | None = None
    """Running jobs, those with most GPUs first."""
    gpus: api.GpuList | None = None
    """A part of the GPUs that the jobs hold."""
    incidents: api.IncidentList | None = None
    """Open incidents that affect the jobs, the most urgent first."""
    charges: billing.MonthCharges | None = None
    statements: tuple[billing.IssuedInvoice, ...] | None = None
    """The newest ones."""
    statements_problem: str = ""


class TenantAccount(msgspec.Struct, frozen=True):
    """GPU time of a tenant in nanoseconds of whole GPUs, as text."""

    held_ns: str = "0"
    held_observed_ns: str = "0"
    held_unknown_ns: str = "0"
    states: dict[str, str] = {}
    gpu_hours: float | None = None
    """Time that it has held."""


class Account(msgspec.Struct, frozen=True):
    """GPU time up to a timestamp, in nanoseconds of whole GPUs.

    Integers are texts: JSON readers that use doubles are exact to 104 days only. Held, idle, unknown and the other
    states add up to the capacity. A tenant has its own part only.
    """

    until_ns: str | None = None
    tenants: dict[str, TenantAccount] = {}
    gpus: int | msgspec.UnsetType = msgspec.UNSET
    capacity_ns: str | msgspec.UnsetType = msgspec.UNSET
    held_ns: str | msgspec.UnsetType = msgspec.UNSET
    idle_ns: str | msgspec.UnsetType = msgspec.UNSET
    unknown_ns: str | msgspec.UnsetType = msgspec.UNSET
    states: dict[str, str] | msgspec.UnsetType = msgspec.UNSET
    balances: bool | msgspec.UnsetType = msgspec.UNSET
    """True if the states add up to the capacity."""
