"""GPU-days to write: by hand, and results of metering of any evidence."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from hypothesis import strategies as st
from support.gpu_evidence import Evidence, NodeSighting, NodeStay, timeline_of

from railscope.claim_terms import ClaimAuthority
from railscope.timestamps import DAY_NS, FOREVER_NS
from railscope_collector.metering.counter_increments import (
    CountedQuantity,
    CounterIncrements,
    CounterReadings,
    compute_increments,
)
from railscope_collector.metering.evidence import MeteredClaim, NodeEvidence
from railscope_collector.metering.metered_day import MeteredDay
from railscope_collector.metering.observation import BootSampleSpan
from railscope_collector.metering.units import WHOLE, CapacityRange, compute_slices

DAY = 20_000
START = DAY * DAY_NS
HOUR = DAY_NS // 24


def metered(
    evidence: Evidence,
    day: int = DAY,
    counted: dict[CountedQuantity, CounterIncrements] | None = None,
) -> MeteredDay:
    """Result of metering of a day."""
    return timeline_of(evidence, counted, [(0, "h100-sxm")]).meter(day)


def held(gpu: str, *tenants: str, stay: tuple[int, int] = (0, FOREVER_NS)) -> Evidence:
    """A GPU that each tenant holds from its hour of the day on, in the node from `stay` on."""
    claims = (
        MeteredClaim(ClaimAuthority.SCHEDULER, START + hour * HOUR, f"{tenant}-{hour}", tenant)
        for hour, tenant in enumerate(tenants)
    )
    return Evidence(gpu, (NodeStay(stay[0], "node1", stay[1]),), tuple(claims))


letters = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
names = st.text(letters, max_size=8)
ids = st.text(letters, min_size=1, max_size=8)
"""Every claim has one: an entry with an empty id belongs to no claim."""
timestamps_ns = st.integers(START - HOUR, START + DAY_NS + HOUR)
slots = st.one_of(
    st.just(WHOLE),
    st.integers(0, 3).map(lambda quarter: CapacityRange(210 * quarter, 210 * (quarter + 1))),
    st.integers(0, 6).map(lambda index: compute_slices(index, 1)),
)
shares = st.sampled_from([None, Fraction(1, 2), Fraction(1, 7), Fraction(2, 11)])


@st.composite
def claims(draw):
    start, end = draw(timestamps_ns), draw(st.one_of(timestamps_ns, st.just(FOREVER_NS)))
    exclusive = draw(st.booleans())
    return MeteredClaim(
        authority=draw(
            st.sampled_from([one for one in ClaimAuthority if one is not ClaimAuthority.REVIEW])
        ),
        start_ns=start,
        id=draw(ids),
        tenant=draw(names),
        end_ns=end,
        workload=draw(names),
        compute=draw(slots),
        exclusive=exclusive,
        share=None if exclusive else draw(shares),
    )


@st.composite
def histories(draw):
    """Evidence of one GPU about one day."""
    begin, end = sorted(draw(st.tuples(timestamps_ns, timestamps_ns)))
    first, last = sorted(draw(st.tuples(timestamps_ns, timestamps_ns)))
    return Evidence(
        gpu="GPU-0",
        stays=(NodeStay(begin, draw(names), draw(st.sampled_from([end, FOREVER_NS]))),),
        claims=tuple(draw(st.lists(claims(), max_size=5, unique_by=lambda claim: claim.id))),
        sample_spans=(BootSampleSpan("boot", first, last),),
        sightings=(NodeSighting(draw(st.sampled_from(NodeEvidence)), begin, end),),
    )


@st.composite
def counts(draw):
    """Counters of a GPU around one day: one or several of them, which may fall."""
    found = {}
    for measure in draw(st.sets(st.sampled_from(CountedQuantity), max_size=3)):
        steps = draw(
            st.lists(st.tuples(st.integers(1, 5 * HOUR), st.integers(0, 10**15)), max_size=6)
        )
        elapsed, counters = zip((0, 0), *steps, strict=True)
        at = draw(timestamps_ns) + np.cumsum(np.array(elapsed, np.int64))
        found[measure] = compute_increments(
            [CounterReadings("boot", at, np.array(counters, np.int64))]
        )
    return found


@st.composite
def days(draw):
    """One GPU on one day, with every kind of evidence."""
    return metered(draw(histories()), counted=draw(counts()))
