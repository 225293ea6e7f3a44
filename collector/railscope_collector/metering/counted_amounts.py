"""Increments of the counters of a GPU on a day, by the claims that held it from reading to reading."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import TypeAlias

import numpy as np

from railscope.claim_terms import GPU_CAPACITY
from railscope_collector.metering import metered_day
from railscope_collector.metering.counter_increments import CountedQuantity, CounterIncrements
from railscope_collector.metering.evidence import MeteredClaim
from railscope_collector.metering.metered_day import CountedAmount
from railscope_collector.metering.timeline import TimePiece, append_piece
from railscope_collector.metering.units import Units

Sizes: TypeAlias = dict[MeteredClaim, Units]
"""The size that each claim holds."""


def attribute(
    counted: Mapping[CountedQuantity, CounterIncrements],
    held: Iterable[TimePiece[Sizes]],
    span: tuple[int, int],
) -> Iterator[CountedAmount]:
    """Yield what was counted up to readings in a span, by the claims that held the same size from reading to reading.

    What is held is given for all time.
    """
    owners: list[TimePiece[Sizes]] = []
    for piece in held:
        append_piece(owners, piece)
    starts_ns = np.array([piece.start_ns for piece in owners], np.int64)
    for measure in CountedQuantity:
        increments = counted.get(measure)
        within = (
            (increments.ends_ns > span[0]) & (increments.ends_ns <= span[1]) if increments else None
        )
        if increments is None or within is None or not within.any():
            if measure is CountedQuantity.ENERGY:
                yield CountedAmount(measure, 0, reason=metered_day.ABSENT)
            continue
        within &= increments.amounts > 0
        firsts, lasts = (
            np.searchsorted(starts_ns, edges[within], "right") - 1
            for edges in (increments.starts_ns, increments.ends_ns - 1)
        )
        groups = np.column_stack((firsts, lasts, increments.same[within]))
        keys, group = np.unique(groups, axis=0, return_inverse=True)
        amounts: Counter[tuple[str, str, str]] = Counter()
        for number, (first, last, same) in enumerate(keys.tolist()):
            lasting = _find_lasting([piece.value for piece in owners[first : last + 1]], same)
            total = sum(increments.amounts[within][group == number].tolist())
            below, size_below = 0, Fraction(0)
            for claim, size in sorted(lasting.items(), key=lambda each: each[0].id):
                # Cumulative, so that the parts of a GPU add up without a rounding difference.
                size_below += size
                up_to = total * size_below.numerator // (size_below.denominator * GPU_CAPACITY)
                amounts[claim.tenant, claim.id, ""] += up_to - below
                below = up_to
            reason = metered_day.IDLE if same and last == first else metered_day.UNATTRIBUTED
            amounts["", "", reason] += total - below
        yield from sorted(
            CountedAmount(measure, amount, *key) for key, amount in amounts.items() if amount
        )


def _find_lasting(sizes: Sequence[Sizes], same: int) -> Sizes:
    """Return the size that each claim held all the time; no claim has what was counted over a reset."""
    lasting = dict(sizes[0]) if same else {}
    for others in sizes[1:]:
        lasting = {claim: min(size, others.get(claim, 0)) for claim, size in lasting.items()}
    return lasting
