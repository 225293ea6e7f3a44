"""The catalog: every metric and event, declared once, by subject.

`METRICS` and `EVENTS` contain all declarations by name, in the order of the modules; `INFO` maps an
entity kind to its info metric; `KINDS` contains all entity kinds; `rollups()` derives metrics of rails,
tenants, jobs and the cluster, computed on first use: agents never call it.
"""

from __future__ import annotations

from functools import cache
from types import ModuleType

from railscope.catalog import (
    account,
    agent,
    audit,
    bursts,
    collector,
    drives,
    entities,
    filesystems,
    gpu,
    gpu_activity,
    gpu_ecc,
    gpu_health,
    gpu_modes,
    gpu_pcie,
    gpu_power,
    gpu_sharing,
    gpudirect,
    host,
    inventory,
    jobs,
    kernel,
    memory_errors,
    neighbour,
    network,
    nfs,
    nic,
    nic_detail,
    nic_link,
    nic_settings,
    nvlink,
    optics,
    pcie,
    power,
    rdma,
    sensors,
    tenancy,
)
from railscope.catalog.declare import EntityKind, EventClass, Kind, Metric, Rollup, Unit
from railscope.catalog.rollup import Derived, derive, derive_by_job

SUBJECTS: dict[str, ModuleType] = {
    "gpu": gpu,
    "gpu_power": gpu_power,
    "gpu_modes": gpu_modes,
    "gpu_activity": gpu_activity,
    "gpu_ecc": gpu_ecc,
    "gpu_pcie": gpu_pcie,
    "gpu_health": gpu_health,
    "gpu_sharing": gpu_sharing,
    "nvlink": nvlink,
    "rdma": rdma,
    "nic": nic,
    "nic_link": nic_link,
    "nic_detail": nic_detail,
    "nic_settings": nic_settings,
    "optics": optics,
    "neighbour": neighbour,
    "pcie": pcie,
    "bursts": bursts,
    "host": host,
    "network": network,
    "gpudirect": gpudirect,
    "nfs": nfs,
    "filesystems": filesystems,
    "drives": drives,
    "power": power,
    "sensors": sensors,
    "memory_errors": memory_errors,
    "kernel": kernel,
    "tenancy": tenancy,
    "agent": agent,
    "collector": collector,
    "account": account,
    "audit": audit,
    "inventory": inventory,
    "jobs": jobs,
}


def _declared(module: ModuleType) -> list[Metric]:
    found: list[Metric] = []
    for value in vars(module).values():
        if isinstance(value, Metric):
            found.append(value)
        elif isinstance(value, tuple):
            found.extend(item for item in value if isinstance(item, Metric))
    return found


METRICS: dict[str, Metric] = {}
SUBJECT_OF: dict[str, str] = {}
EVENTS: dict[str, EventClass] = {}
for _subject, _module in SUBJECTS.items():
    for _metric in _declared(_module):
        if METRICS.setdefault(_metric.name, _metric) is not _metric:
            _message = f"metric {_metric.name} is declared twice"
            raise ValueError(_message)
        SUBJECT_OF.setdefault(_metric.name, _subject)
    EVENTS |= {v.name: v for v in vars(_module).values() if isinstance(v, EventClass)}

KINDS: dict[str, EntityKind] = {
    kind.name: kind for kind in vars(entities).values() if isinstance(kind, EntityKind)
}
INFO: dict[str, Metric] = {m.about.name: m for m in METRICS.values() if m.kind is Kind.INFO}
ORDER: dict[str, int] = {name: position for position, name in enumerate(METRICS)}


@cache
def rollups() -> dict[str, Derived]:
    """Return every roll-up of the declared metrics, by name."""
    return derive(METRICS.values()) | derive_by_job(jobs.BY_JOB)


__all__ = [
    "EVENTS",
    "INFO",
    "KINDS",
    "METRICS",
    "ORDER",
    "SUBJECTS",
    "SUBJECT_OF",
    "Derived",
    "EntityKind",
    "EventClass",
    "Kind",
    "Metric",
    "Rollup",
    "Unit",
    "rollups",
]
