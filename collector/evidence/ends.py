"""Ends of claims."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from collector.evidence.claim_events import Ended, Told
from collector.evidence.places import Presence
from collector.metering.units import FOREVER_NS

Ends = Mapping[tuple[str, str], int]
"""By node and claim."""


def ends_of(told: Collection[Told], ended: Iterable[Ended], presences: Iterable[Presence]) -> Ends:
    """Return the ends of a GPU's claims: as reported, or at a later boot that did not report the claim.

    An agent reports all claims in force when it starts, including those that it only remembers. One
    that remembers nothing cannot report that they have ended, but the processes on the GPU ended
    with the boot. An end that was reported late counts from the time from which its report is
    trusted.
    """
    ends: dict[tuple[str, str], int] = {}
    for key, _, believed_ns in _reported(told, ended):
        ends[key] = min(believed_ns, ends.get(key, believed_ns))
    for key, boot in _boots_after(told, presences):
        ends[key] = min(boot.believed_ns, ends.get(key, FOREVER_NS))
    return ends


def _reported(
    told: Iterable[Told], ended: Iterable[Ended]
) -> Iterator[tuple[tuple[str, str], int, int]]:
    """Yield ends by node and claim, as reported by nodes: the stated end, and the trusted end.

    An end that is reported in a later boot has only the wall clock: it counts unless another was
    reported by then. One that is reported after it cannot make the claim longer.
    """
    horizons: dict[tuple[str, str], int] = {}
    for end in ended:
        key = (end.node, end.id)
        horizons[key] = min(end.trusted_from_ns, horizons.get(key, end.trusted_from_ns))
        yield key, end.instant_ns, end.believed_ns
    for claim in told:
        key = (claim.node, claim.id)
        if claim.end_ns and claim.trusted_from_ns < horizons.get(key, FOREVER_NS):
            yield key, claim.end_ns, max(claim.end_ns, claim.trusted_from_ns)


class _Begin(NamedTuple):
    """Start of a boot: its first sample, and the time from which it is trusted."""

    first_ns: int
    believed_ns: int


class Gap(NamedTuple):
    """Time in which a claim does not hold: a boot began without it, and a late report restored it."""

    first_ns: int
    believed_ns: int
    """The time from which the start of the boot is trusted: no earlier than `first_ns`."""
    until_ns: int
    """The lowest horizon of the reports that show that the claim outlasted the start of the boot."""


def _boots_after(
    told: Iterable[Told], presences: Iterable[Presence]
) -> Iterator[tuple[tuple[str, str], _Begin]]:
    """Yield the starts of later boots in which claims were not reported, by node and id."""
    for key, begin, until_ns in _boots(told, presences):
        if until_ns == FOREVER_NS:
            yield key, begin


def gaps_of(
    told: Iterable[Told], presences: Iterable[Presence]
) -> dict[tuple[str, str], list[Gap]]:
    """Return the gaps of claims by node and id.

    A report of a claim that a boot had already ended holds nothing before its own horizon.
    """
    found: dict[tuple[str, str], list[Gap]] = {}
    for key, begin, until_ns in _boots(told, presences):
        if begin.first_ns < until_ns < FOREVER_NS:
            found.setdefault(key, []).append(Gap(*begin, until_ns))
    return found


def _boots(
    told: Iterable[Told], presences: Iterable[Presence]
) -> Iterator[tuple[tuple[str, str], _Begin, int]]:
    """Yield the starts of boots after the first report of claims, by node and id of the claim.

    Each has the lowest horizon of the reports in that boot or after its start, which show that the
    claim outlasted it: FOREVER_NS if there is none.
    """
    began: dict[str, dict[str, _Begin]] = {}
    for one in presences:
        if one.spans:
            first_ns = min(span.first_ns for span in one.spans)
            boots = began.setdefault(one.node, {})
            begin = _Begin(first_ns, one.believed_ns or first_ns)
            known = boots.get(one.boot, begin)
            boots[one.boot] = _Begin(*map(min, begin, known))
    reports: dict[tuple[str, str], list[Told]] = {}
    for claim in told:
        if claim.boot:
            reports.setdefault((claim.node, claim.id), []).append(claim)
    for key, some in reports.items():
        since_ns = min(one.told_ns for one in some)
        for boot, begin in began.get(key[0], {}).items():
            if begin.first_ns > since_ns:
                outlasted = [
                    one.trusted_from_ns
                    for one in some
                    if one.boot == boot or one.told_ns >= begin.first_ns
                ]
                yield key, begin, min(outlasted, default=FOREVER_NS)


def freed_of(
    told: Collection[Told], ended: Iterable[Ended], presences: Iterable[Presence], ends: Ends
) -> Ends:
    """Return the ends that claims would have had, had these ends not been reported late."""
    freed: dict[tuple[str, str], int] = {}
    found = [(key, instant_ns) for key, instant_ns, _ in _reported(told, ended)]
    found += [(key, begin.first_ns) for key, begin in _boots_after(told, presences)]
    for key, instant_ns in found:
        if instant_ns < ends.get(key, -FOREVER_NS):
            freed[key] = min(instant_ns, freed.get(key, instant_ns))
    return freed
