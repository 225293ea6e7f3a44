"""Usages of one resource in sequence: length of observation gaps, and overlaps."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter

from collector.billing.usage import UNSEEN, WITH_TENANT, Usage
from collector.metering.units import GPU_CAPACITY

_RESOURCE = attrgetter("resource")


class DoubleUsageError(ValueError):
    """Time that would be billed twice; the message contains the resource and the usage."""


def silences(ordered: Sequence[Usage]) -> list[int]:
    """For every usage, the length of the observation gap that contains it; zero if observed.

    A gap extends over claims and days as long as the resource is not observed. Usages are in order
    of resource and start.
    """
    lengths = [0] * len(ordered)
    run: list[int] = []
    until_ns = 0
    for at, usage in enumerate(ordered):
        if usage.state not in UNSEEN:
            continue
        if run and (usage.resource != ordered[run[0]].resource or usage.start_ns > until_ns):
            _set(lengths, run, until_ns - ordered[run[0]].start_ns)
            run = []
        until_ns = max(until_ns, usage.end_ns) if run else usage.end_ns
        run.append(at)
    if run:
        _set(lengths, run, until_ns - ordered[run[0]].start_ns)
    return lengths


def _set(lengths: list[int], run: Sequence[int], length_ns: int) -> None:
    for at in run:
        lengths[at] = length_ns


def refuse_doubles(ordered: Sequence[Usage]) -> None:
    """Reject a claim that uses one resource twice at once, and a resource used beyond one GPU.

    Slots of one resource that one claim holds together are one usage with their capacity added.
    Usages are in order of resource and start. Raises DoubleUsageError.
    """
    for _, group in groupby(ordered, key=_RESOURCE):
        running: list[Usage] = []
        for usage in group:
            if usage.state not in WITH_TENANT:
                continue
            running = [other for other in running if other.end_ns > usage.start_ns]
            running.append(usage)
            claims = {(other.tenant, other.claim) for other in running}
            units = sum(other.capacity_units for other in running)
            if len(claims) < len(running) or units > GPU_CAPACITY:
                message = f"billed twice at once: {usage}"
                raise DoubleUsageError(message)
