"""The account as cells of views and as JSON, with the quotas of tenants."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction

import msgspec

from railscope.api import tenants as api
from railscope.catalog import account as catalog, declare
from railscope.claim_terms import GPU_CAPACITY
from railscope.timestamps import HOUR_NS, SECOND_NS
from railscope_collector.account import account_sums
from railscope_collector.files.quotas_file import Quotas
from railscope_collector.fleet.view_cells import ViewCell
from railscope_collector.metering import counter_increments, slot_state
from railscope_collector.metering.units import Units


def quota_days(period: str, timestamp_ns: int) -> tuple[int, int]:
    """Return the days [first, end) of the period that contains a timestamp, counted from the epoch."""
    day = timestamp_ns // (24 * HOUR_NS)
    if period == "day":
        return day, day + 1
    first = account_sums.month_start(day)
    return first, account_sums.month_start(first + 31)


_UNIT_SECONDS = GPU_CAPACITY * SECOND_NS
_AMOUNTS: dict[counter_increments.CountedQuantity, declare.Metric] = {
    counter_increments.CountedQuantity.ENERGY: catalog.TENANT_ENERGY,
    counter_increments.CountedQuantity.USED: catalog.TENANT_BUSY,
    counter_increments.CountedQuantity.MEMORY: catalog.TENANT_MEMORY,
    counter_increments.CountedQuantity.RECEIVED: catalog.TENANT_RECEIVED,
    counter_increments.CountedQuantity.TRANSMITTED: catalog.TENANT_TRANSMITTED,
}


def cluster_cells(account: account_sums.GpuTimeAccount) -> Iterator[ViewCell]:
    """Yield the GPU time of the cluster by state."""
    yield ViewCell(catalog.GPU_CAPACITY, (), float(account.capacity / _UNIT_SECONDS))
    for state, units in account.states().items():
        yield ViewCell(catalog.GPU_TIME, (state.value,), float(units / _UNIT_SECONDS))


def tenant_cells(
    account: account_sums.GpuTimeAccount,
    amounts: account_sums.AmountTotals,
    held_units: Mapping[str, Units],
    quotas: Quotas,
) -> Iterator[ViewCell]:
    """Yield GPU time, amounts and quotas of each tenant; `held` are the units that it holds now."""
    tenants = account.tenants()
    for tenant, states in tenants.items():
        for state, units in sorted(states.items()):
            yield ViewCell(
                catalog.TENANT_GPU_TIME, (tenant, state.value), float(units / _UNIT_SECONDS)
            )
        yield ViewCell(
            catalog.TENANT_GPUS, (tenant,), float(held_units.get(tenant, 0) / GPU_CAPACITY)
        )
    for key, amount in sorted(amounts.items()):
        if not key.reason and key.tenant:
            metric = _AMOUNTS[key.measure]
            value = amount * metric.scale.numerator / metric.scale.denominator
            yield ViewCell(metric, (key.tenant,), value)
    yield from _quota_cells(account, held_units, quotas)


def _quota_cells(
    account: account_sums.GpuTimeAccount, held_units: Mapping[str, Units], quotas: Quotas
) -> Iterator[ViewCell]:
    """Yield the quotas of each tenant with their use.

    GPU time has a quota per day and one per month. A bound of GPUs has no period: of two in force, the
    lower one counts.
    """
    max_gpus: dict[str, Fraction] = {}
    for quota in quotas.in_force(account.until_ns):
        labels = (quota.tenant, quota.period)
        if quota.gpu_time_ns is not None:
            yield ViewCell(catalog.QUOTA_TIME, labels, float(quota.gpu_time_ns) / SECOND_NS)
            used = account.held_time(*quota_days(quota.period, account.until_ns)).get(
                quota.tenant, 0
            )
            yield ViewCell(catalog.QUOTA_TIME_USED, labels, float(used / _UNIT_SECONDS))
        if quota.gpus is not None:
            max_gpus[quota.tenant] = min(quota.gpus, max_gpus.get(quota.tenant, quota.gpus))
    for tenant, gpus in max_gpus.items():
        yield ViewCell(catalog.QUOTA_GPUS, (tenant,), float(gpus))
        held_gpus = float(held_units.get(tenant, 0) / GPU_CAPACITY)
        yield ViewCell(catalog.QUOTA_GPUS_USED, (tenant,), held_gpus)


def account_document(
    account: account_sums.GpuTimeAccount, tenant: str | None = None
) -> api.Account:
    """Return an account; with a tenant only its part, without the size of the cluster and its free capacity."""
    tenants = {
        name: _tenant_account(account_sums.gpu_nanoseconds(of_tenant))
        for name, of_tenant in account.tenants().items()
        if tenant in {None, name}
    }
    document = api.Account(str(account.until_ns), tenants)
    if tenant is not None:
        return document
    states = account_sums.gpu_nanoseconds(account.states())
    return msgspec.structs.replace(
        document,
        gpus=account.gpus,
        capacity_ns=str(account.capacity // GPU_CAPACITY),
        held_ns=str(sum(states[state] for state in slot_state.HELD_STATES)),
        idle_ns=str(states[slot_state.SlotState.IDLE]),
        unknown_ns=str(states[slot_state.SlotState.UNKNOWN]),
        states={state.value: str(ns) for state, ns in states.items()},
        balances=account.balances,
    )


def _tenant_account(states: Mapping[slot_state.SlotState, int]) -> api.TenantAccount:
    observed, inferred = (states.get(state, 0) for state in slot_state.HELD_STATES)
    return api.TenantAccount(
        held_ns=str(observed + inferred),
        held_observed_ns=str(observed),
        held_unknown_ns=str(inferred),
        states={state.value: str(ns) for state, ns in sorted(states.items())},
        gpu_hours=(observed + inferred) / HOUR_NS,
    )
