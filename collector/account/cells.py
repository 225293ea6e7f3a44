"""The account as cells of views and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from collector.account.amounts import Totals
from collector.account.quotas import Quotas, days_of
from collector.account.tally import Account, nanoseconds
from collector.fleet.cell import Cell
from collector.metering.measures import Measure, Use
from collector.metering.tiling import HELD, State
from collector.metering.units import GPU_CAPACITY, Units
from railscope.catalog import account as catalog
from railscope.catalog.declare import Metric

NS = 1_000_000_000
_UNIT_SECONDS = GPU_CAPACITY * NS
_AMOUNTS: dict[Measure, Metric] = {
    Measure.ENERGY: catalog.TENANT_ENERGY,
    Measure.USED: catalog.TENANT_BUSY,
    Measure.MEMORY: catalog.TENANT_MEMORY,
    Measure.RECEIVED: catalog.TENANT_RECEIVED,
    Measure.TRANSMITTED: catalog.TENANT_TRANSMITTED,
}


def cluster_cells(account: Account) -> Iterator[Cell]:
    """Yield the GPU time of the cluster by state."""
    yield Cell(catalog.GPU_CAPACITY, (), float(account.capacity / _UNIT_SECONDS))
    for state, units in account.states().items():
        yield Cell(catalog.GPU_TIME, (state.value,), float(units / _UNIT_SECONDS))


def tenant_cells(
    account: Account, amounts: Totals, held: Mapping[str, Units], quotas: Quotas
) -> Iterator[Cell]:
    """Yield GPU time, amounts and quotas of each tenant; `held` are the units that it holds now."""
    tenants = account.tenants()
    for tenant, states in tenants.items():
        for state, units in sorted(states.items()):
            yield Cell(catalog.TENANT_GPU_TIME, (tenant, state.value), float(units / _UNIT_SECONDS))
        yield Cell(catalog.TENANT_GPUS, (tenant,), float(held.get(tenant, 0) / GPU_CAPACITY))
    for whose, amount in sorted(amounts.items()):
        if whose.use is Use.ATTRIBUTED and whose.tenant:
            metric = _AMOUNTS[whose.measure]
            value = amount * metric.scale.numerator / metric.scale.denominator
            yield Cell(metric, (whose.tenant,), value)
    for quota in quotas.in_force(account.until_ns):
        labels = (quota.tenant, quota.period)
        if quota.gpu_time_ns is not None:
            yield Cell(catalog.QUOTA_TIME, labels, float(quota.gpu_time_ns) / NS)
            used = account.held(*days_of(quota.period, account.until_ns)).get(quota.tenant, 0)
            yield Cell(catalog.QUOTA_TIME_USED, labels, float(used / _UNIT_SECONDS))
        if quota.gpus is not None:
            yield Cell(catalog.QUOTA_GPUS, (quota.tenant,), float(quota.gpus))


def account_json(account: Account) -> dict[str, Any]:
    """Return an account in integers as strings: JSON readers that use doubles are exact to 104 days only.

    All values are in nanoseconds of whole GPUs. Held, idle, unknown and the other states add up to
    the capacity.
    """
    states = nanoseconds(account.states())
    held_ns = sum(states[state] for state in HELD)
    return {
        "until_ns": str(account.until_ns),
        "gpus": account.gpus,
        "capacity_ns": str(account.capacity // GPU_CAPACITY),
        "held_ns": str(held_ns),
        "idle_ns": str(states[State.IDLE]),
        "unknown_ns": str(states[State.UNKNOWN]),
        "states": {state.value: str(ns) for state, ns in states.items()},
        "balances": account.balances,
        "clock_suspect": [
            {"since_ns": str(one.since_ns), "delta_ns": str(one.delta_ns), "gpu_days": days}
            for one, days in sorted(account.clock_suspect.items())
        ],
        "tenants": {
            tenant: _tenant(nanoseconds(found)) for tenant, found in account.tenants().items()
        },
    }


def _tenant(states: Mapping[State, int]) -> dict[str, Any]:
    observed, inferred = states.get(State.OBSERVED, 0), states.get(State.INFERRED, 0)
    return {
        "held_ns": str(observed + inferred),
        "held_observed_ns": str(observed),
        "held_unknown_ns": str(inferred),
        "states": {state.value: str(ns) for state, ns in sorted(states.items())},
    }
