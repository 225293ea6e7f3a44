"""When claims ended."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from collector.evidence.places import Presence
from collector.evidence.told import Ended, Told
from collector.metering.units import FOREVER_NS

Ends = Mapping[tuple[str, str], int]
"""By node and claim."""


def ends_of(told: Collection[Told], ended: Iterable[Ended], presences: Iterable[Presence]) -> Ends:
    """The ends of a GPU's claims: as they were told, or when a node came up again and told no more.

    An agent tells all claims in force when it starts, those that it only remembers, too. One that
    remembers nothing cannot tell that they have ended; but what held the GPU is gone with the boot.
    An end that is reported in a later boot has only the wall clock: it counts where there is no other.
    An end that was reported late counts from the instant on from which its report is believed.
    """
    ends: dict[tuple[str, str], int] = {}
    for end in ended:
        key = (end.node, end.id)
        ends[key] = min(end.believed_ns, ends.get(key, end.believed_ns))
    late: dict[tuple[str, str], int] = {}
    for claim in told:
        key = (claim.node, claim.id)
        if claim.end_ns and key not in ends:
            end_ns = max(claim.end_ns, claim.trusted_from_ns)
            late[key] = min(end_ns, late.get(key, end_ns))
    ends |= late
    for key, boot in _boots_after(told, presences):
        ends[key] = min(boot.believed_ns, ends.get(key, FOREVER_NS))
    return ends


class _Begin(NamedTuple):
    """The begin of a boot: its first sample, and the instant from which it is believed."""

    first_ns: int
    believed_ns: int


def _boots_after(
    told: Iterable[Told], presences: Iterable[Presence]
) -> Iterator[tuple[tuple[str, str], _Begin]]:
    """For claims by node and id, the begins of later boots in which they were not reported."""
    began: dict[str, dict[str, _Begin]] = {}
    for one in presences:
        if one.spans:
            first_ns = min(span.first_ns for span in one.spans)
            boots = began.setdefault(one.node, {})
            begin = _Begin(first_ns, one.believed_ns or first_ns)
            known = boots.get(one.boot, begin)
            boots[one.boot] = _Begin(*map(min, begin, known))
    tellings: dict[tuple[str, str], dict[str, int]] = {}
    for claim in told:
        if claim.boot:
            reported = tellings.setdefault((claim.node, claim.id), {})
            reported[claim.boot] = min(claim.told_ns, reported.get(claim.boot, claim.told_ns))
    for key, reported in tellings.items():
        last_ns = max(reported.values())
        for boot, begin in began.get(key[0], {}).items():
            if boot not in reported and begin.first_ns > last_ns:
                yield key, begin


def freed_of(
    told: Collection[Told], ended: Iterable[Ended], presences: Iterable[Presence], ends: Ends
) -> Ends:
    """Where claims would have ended before their end counts, had it not been reported late."""
    freed: dict[tuple[str, str], int] = {}
    found = [((end.node, end.id), end.instant_ns) for end in ended]
    found += [((claim.node, claim.id), claim.end_ns) for claim in told if claim.end_ns]
    found += [(key, begin.first_ns) for key, begin in _boots_after(told, presences)]
    for key, instant_ns in found:
        if instant_ns < ends.get(key, -FOREVER_NS):
            freed[key] = min(instant_ns, freed.get(key, instant_ns))
    return freed
