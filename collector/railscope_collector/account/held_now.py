"""Holders of a GPU at a time, by the claims in memory and the administrators' files.

The same rules as in metering (`railscope_collector.metering.holders`), for one moment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from railscope.claim_terms import ClaimAuthority
from railscope.timestamps import DAY_NS, FOREVER_NS
from railscope_collector.evidence import day_facts, day_metering
from railscope_collector.evidence.file_versions import AdministratorInputs
from railscope_collector.evidence.open_claims import OpenClaims
from railscope_collector.metering import holders
from railscope_collector.metering.units import Units, exact
from railscope_collector.workloads import job_holdings, job_roster


@dataclass(frozen=True, slots=True)
class HeldGpu:
    """Units by tenant, holdings of jobs, and the time at which they change without a report."""

    units: Mapping[str, Units] = field(default_factory=dict)
    holdings: tuple[job_roster.JobHolding, ...] = ()
    next_ns: int = FOREVER_NS


def find_holders(
    claims: OpenClaims, node: str, gpu: str, files: AdministratorInputs, now_ns: int
) -> HeldGpu:
    """Return the holders of a GPU in a node at a time.

    Memory has claims in force only, so the reports of ends and boots have been applied.
    """
    facts = day_facts.DayFacts(
        nodes={gpu: [day_facts.DatedValue(-FOREVER_NS, node)]},
        contested={},
        models={},
        layouts={},
        quarters={},
        claims={gpu: list(claims.on_gpu(node, gpu))},
        ends={},
        boots={},
    )
    in_force, is_down, edges = day_metering.claims_in_force(gpu, facts, files, now_ns)
    next_ns = min((edge for edge in edges if edge > now_ns), default=FOREVER_NS)
    next_ns = min(next_ns, (now_ns // DAY_NS + 1) * DAY_NS)
    if is_down:
        return HeldGpu(next_ns=next_ns)
    held = holders.allocate(in_force)
    counted = [
        (slots, claim)
        for slots, claim in held
        if not claim.system and claim.authority is not ClaimAuthority.PROCESS
    ]
    units: dict[str, Units] = {}
    for slots, claim in counted:
        units[claim.tenant] = exact(units.get(claim.tenant, 0) + slots.high - slots.low)
    return HeldGpu(units, job_holdings.find_holdings(gpu, node, in_force, counted), next_ns)
