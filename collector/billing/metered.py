"""Usage for rating from the ledger, claim by claim and day by day.

Slots that one claim holds together are one usage with their capacity added. Unobserved time is
included, as rating depends on the length of the gap; so is unbilled time of a claim, such as an
outage, as its minimum depends on it. All other time of a GPU is omitted. A usage lies within one
UTC day, so that each charge refers to one revision of the ledger.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

from collector.billing.usage import HELD, UNSEEN, WITH_TENANT, Usage
from collector.ledger.tiling import DayTiling, HeldClaim
from collector.metering.evidence import Witness
from collector.metering.measures import Measure, Share, Use
from collector.metering.tiling import Entry, State
from collector.metering.units import FOREVER_NS, GPU_CAPACITY, Tiling, Units, exact
from railscope.reading import Absent, Reading

_RATED = WITH_TENANT | UNSEEN | {State.UNCLAIMED, State.REVIEW}


class _Holding(NamedTuple):
    """Properties that the entries of one usage have in common."""

    state: State
    witness: Witness | None
    tenant: str
    claim: str
    silence_ns: int
    reason: str
    counted_on: str


class _Stretch(NamedTuple):
    """A time in which a holding has a constant number of capacity units."""

    start_ns: int
    end_ns: int
    units: Units
    held: _Holding


def usages(days: Iterable[DayTiling]) -> list[Usage]:
    """All usage of GPU-days, in order of start."""
    found = list(days)
    began, ends = _began(found), _ends(found)
    used = [usage for day in found for usage in _of_day(day, began, ends)]
    return sorted(used, key=lambda usage: (usage.start_ns, usage.end_ns, usage.claim))


def _began(days: Iterable[DayTiling]) -> dict[tuple[str, str], int]:
    """Start of each claim on a GPU: from the ledger's claim rows, or else from its first entry."""
    found: dict[tuple[str, str], int] = {}
    for day in days:
        starts = [(claim.id, claim.start_ns) for claim in day.claims]
        starts += [(entry.claim, entry.t0_ns) for entry in day.entries if entry.claim]
        for claim, start_ns in starts:
            key = (day.gpu, claim)
            found[key] = min(start_ns, found.get(key, start_ns))
    return found


def _ends(days: Iterable[DayTiling]) -> dict[tuple[str, str], int]:
    """End of each claim on a GPU, `FOREVER_NS` if it is open on the last day that names it.

    A claim may end long after its last usage, while another one has its slots. Ledgers of earlier
    releases do not contain the end: such a claim ends with its usage, unless that lasts to the end
    of the days.
    """
    shown: dict[tuple[str, str], int] = {}
    stated: dict[tuple[str, str], int] = {}
    known_until: dict[str, int] = {}
    for day in sorted(days, key=lambda day: day.day):
        known_until[day.gpu] = day.end_ns
        for entry in day.entries:
            if entry.claim:
                shown[day.gpu, entry.claim] = max(entry.t1_ns, shown.get((day.gpu, entry.claim), 0))
        for claim in day.claims:
            if claim.rank is not None:
                stated[day.gpu, claim.id] = FOREVER_NS if claim.end_ns is None else claim.end_ns
    for key, end_ns in shown.items():
        if end_ns == known_until[key[0]]:
            shown[key] = FOREVER_NS
    return shown | stated


def _of_day(
    day: DayTiling,
    began: Mapping[tuple[str, str], int],
    ends: Mapping[tuple[str, str], int],
) -> Iterator[Usage]:
    stretches = [
        stretch
        for held, entries in _by_holding(day.entries).items()
        for stretch in _summed(held, entries)
    ]
    energy = _energies(day, stretches)
    known: dict[str, HeldClaim] = {claim.id: claim for claim in day.claims}
    for stretch in stretches:
        held = stretch.held
        claim = known.get(held.claim)
        yield Usage(
            tenant=held.tenant,
            resource=day.gpu,
            sku=day.sku,
            start_ns=stretch.start_ns,
            end_ns=stretch.end_ns,
            capacity_units=stretch.units,
            state=held.state,
            witness=held.witness or Witness.NONE,
            claim=held.claim,
            claim_start_ns=began.get((day.gpu, held.claim), stretch.start_ns),
            energy_millijoules=energy.get(stretch, Absent.UNSUPPORTED),
            mig_profile=claim.mig_profile if claim else "",
            instance_units=exact(Fraction(claim.instance or 0) * GPU_CAPACITY) if claim else 0,
            silence_ns=held.silence_ns,
            reason=held.reason,
            claim_end_ns=ends.get((day.gpu, held.claim)),
            counted_on=held.counted_on,
        )


def _by_holding(entries: Iterable[Entry]) -> Mapping[_Holding, list[Entry]]:
    found: dict[_Holding, list[Entry]] = {}
    for entry in entries:
        if entry.tiling is Tiling.COMPUTE and (entry.state in _RATED or entry.claim):
            whose = (entry.tenant, entry.claim)
            node = entry.node if entry.counted else ""
            held = _Holding(
                entry.state, entry.witness, *whose, entry.silence_ns, entry.reason, node
            )
            found.setdefault(held, []).append(entry)
    return found


def _summed(held: _Holding, entries: Iterable[Entry]) -> Iterator[_Stretch]:
    """Stretches with the total capacity of all entries; equal neighbours are merged."""
    steps: dict[int, Units] = {}
    for entry in entries:
        size = entry.slot_hi - entry.slot_lo
        steps[entry.t0_ns] = steps.get(entry.t0_ns, 0) + size
        steps[entry.t1_ns] = steps.get(entry.t1_ns, 0) - size
    changes = sorted(instant for instant, step in steps.items() if step)
    units: Units = 0
    for start_ns, end_ns in pairwise(changes):
        units = exact(units + steps[start_ns])
        if units:
            yield _Stretch(start_ns, end_ns, units, held)


# Energy ------------------------------------------------------------------------------------------


def _energies(day: DayTiling, stretches: Iterable[_Stretch]) -> dict[_Stretch, Reading]:
    """Energy of each held stretch, from the counter; empty if no counter was read.

    The ledger has energy by tenure of a claim. It is spread evenly over the time in which the claim
    is held, exact to the millijoule.
    """
    counted = [one.share for one in day.shares if one.measure is Measure.ENERGY]
    if not counted:
        return {}
    held: dict[str, list[_Stretch]] = defaultdict(list)
    for stretch in stretches:
        if stretch.held.state in HELD:
            held[stretch.held.claim].append(stretch)
    found = {stretch: 0 for own in held.values() for stretch in own}
    for share in counted:
        if share.use is Use.ATTRIBUTED and share.claim in held:
            for stretch, amount in _spread(share, sorted(held[share.claim])):
                found[stretch] += amount
    return dict(found)


def _spread(share: Share, held: Sequence[_Stretch]) -> Iterator[tuple[_Stretch, int]]:
    """Spread an amount over the stretches that overlap its time, or over the last one before it."""
    parts = [
        (stretch, length)
        for stretch in held
        if (length := min(stretch.end_ns, share.t1_ns) - max(stretch.start_ns, share.t0_ns)) > 0
    ]
    if not parts:
        before = [stretch for stretch in held if stretch.start_ns <= share.t1_ns]
        yield (before or held)[-1 if before else 0], share.amount
        return
    whole = sum(length for _, length in parts)
    passed = given = 0
    for stretch, length in parts:
        passed += length
        until = share.amount * passed // whole
        yield stretch, until - given
        given = until
