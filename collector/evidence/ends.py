"""When claims ended."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

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
    began: dict[str, dict[str, int]] = {}
    for one in presences:
        first_ns = min((span.first_ns for span in one.spans), default=FOREVER_NS)
        boots = began.setdefault(one.node, {})
        boots[one.boot] = min(first_ns, boots.get(one.boot, first_ns))
    tellings: dict[tuple[str, str], dict[str, int]] = {}
    for claim in told:
        if claim.boot:
            boots = tellings.setdefault((claim.node, claim.id), {})
            boots[claim.boot] = min(claim.told_ns, boots.get(claim.boot, claim.told_ns))
    for key, boots in tellings.items():
        last_ns = max(boots.values())
        others = (ns for boot, ns in began.get(key[0], {}).items() if boot not in boots)
        after = [ns for ns in others if ns > last_ns]
        if after:
            ends[key] = min(*after, ends.get(key, FOREVER_NS))
    return ends


def freed_of(told: Iterable[Told], ended: Iterable[Ended], ends: Ends) -> Ends:
    """Where claims would have ended before their end counts, had it not been reported late."""
    freed: dict[tuple[str, str], int] = {}
    found = [((end.node, end.id), end.instant_ns) for end in ended]
    found += [((claim.node, claim.id), claim.end_ns) for claim in told if claim.end_ns]
    for key, instant_ns in found:
        if instant_ns < ends.get(key, -FOREVER_NS):
            freed[key] = min(instant_ns, freed.get(key, instant_ns))
    return freed
