"""From the metering of a GPU to what is rated: usage, claim by claim.

Slots that one claim holds together are one usage with their capacity added. What no one saw is
kept, too: rating asks how long a silence lasted. Nothing else of a GPU's time is anyone's to pay.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import NamedTuple

from collector.billing.usage import HELD, UNSEEN, WITH_TENANT, Usage
from collector.metering.evidence import Evidence, Witness
from collector.metering.holders import claims_in_force
from collector.metering.measures import Increments, Owners, Use, owners, shares
from collector.metering.tiling import Entry, GpuTimeline, State
from collector.metering.units import Tiling
from railscope.reading import Absent, Reading

_RATED = WITH_TENANT | UNSEEN | {State.ROGUE}


class _Holding(NamedTuple):
    """What entries must share to be one usage."""

    state: State
    witness: Witness | None
    tenant: str
    claim: str


def usages(
    evidence: Evidence, sku: str, until_ns: int, counted: Increments | None = None
) -> list[Usage]:
    """All usage of a GPU since the first evidence of it, in order of start.

    `counted` is what its energy counter counted; without it the energy is not known.
    """
    since_ns = min((stay.start_ns for stay in evidence.stays), default=until_ns)
    entries = [
        entry
        for entry in GpuTimeline.of(evidence).entries(since_ns, until_ns)
        if entry.tiling is Tiling.COMPUTE and entry.state in _RATED
    ]
    began: dict[str, int] = {}
    for claim in claims_in_force(evidence):
        began[claim.id] = min(claim.start_ns, began.get(claim.id, claim.start_ns))
    owned = owners(evidence) if counted else []
    found = [
        Usage(
            tenant=held.tenant,
            resource=evidence.gpu,
            sku=sku,
            start_ns=start_ns,
            end_ns=end_ns,
            capacity_units=units,
            state=held.state,
            witness=held.witness or Witness.NONE,
            claim=held.claim,
            claim_start_ns=began.get(held.claim, start_ns),
            energy_millijoules=_energy(held, owned, counted, (start_ns, end_ns)),
        )
        for held, own in _by_holding(entries).items()
        for start_ns, end_ns, units in _summed(own)
    ]
    return sorted(found, key=lambda usage: (usage.start_ns, usage.end_ns, usage.claim))


def _by_holding(entries: Iterable[Entry]) -> Mapping[_Holding, list[Entry]]:
    found: dict[_Holding, list[Entry]] = {}
    for entry in entries:
        held = _Holding(entry.state, entry.witness, entry.tenant, entry.claim)
        found.setdefault(held, []).append(entry)
    return found


def _summed(entries: Iterable[Entry]) -> Iterator[tuple[int, int, int]]:
    """Stretches with the capacity that all entries hold in them; equal neighbours are one."""
    steps: dict[int, int] = {}
    for entry in entries:
        units = entry.slot_hi - entry.slot_lo
        steps[entry.t0_ns] = steps.get(entry.t0_ns, 0) + units
        steps[entry.t1_ns] = steps.get(entry.t1_ns, 0) - units
    changes = sorted(instant for instant, step in steps.items() if step)
    units = 0
    for start_ns, end_ns in pairwise(changes):
        units += steps[start_ns]
        if units:
            yield start_ns, end_ns, units


def _energy(
    held: _Holding, owned: Iterable[Owners], counted: Increments | None, span: tuple[int, int]
) -> Reading:
    """What the counter says of a claim in a stretch, in millijoules."""
    if counted is None or held.state not in HELD:
        return Absent.UNSUPPORTED
    return sum(
        share.amount
        for share in shares(owned, counted, *span)
        if share.use is Use.ATTRIBUTED and share.claim == held.claim
    )
