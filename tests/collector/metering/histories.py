"""Histories of one GPU with random events, for property tests."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from random import Random

import msgspec
import numpy as np
from hypothesis import strategies as st
from support.gpu_evidence import (
    ClaimRelease,
    Evidence,
    NodeSighting,
    NodeStay,
    PartitionLayout,
)
from support.metered import replica

from railscope.claim_terms import ClaimAuthority
from railscope.timestamps import FOREVER_NS
from railscope_collector.metering.counter_increments import CounterReadings
from railscope_collector.metering.evidence import (
    GpuOutage,
    MeteredClaim,
    NodeEvidence,
    SlotReservation,
)
from railscope_collector.metering.observation import BootSampleSpan
from railscope_collector.metering.units import WHOLE, CapacityRange, compute_slices

S = 1_000_000_000
LAST = 400
PROFILES = [(1, 1), (1, 2), (2, 2), (3, 4), (4, 4), (7, 8)]
"""Compute and memory slices of the MIG profiles of an H100."""


@dataclass(frozen=True)
class MeteringCase:
    """A history, a window divided in two, and further inputs of properties."""

    evidence: Evidence
    readings: tuple[CounterReadings, ...]
    start: int
    middle: int
    end: int
    points: tuple[int, ...]
    """Instants to compare with the model."""
    extra: MeteredClaim
    """A claim that is not part of the history."""
    other_sample_spans: tuple[BootSampleSpan, ...]
    random: Random

    def shuffled(self) -> Evidence:
        """The same facts in another order, some of them more than once."""
        fields = {
            name: self.mixed(value)
            for name, value in msgspec.structs.asdict(self.evidence).items()
            if isinstance(value, tuple)
        }
        return msgspec.structs.replace(self.evidence, **fields)

    def mixed(self, facts: tuple[object, ...]) -> tuple[object, ...]:
        """Facts in another order, some of them more than once."""
        again = [*facts, *(fact for fact in facts if self.random.random() < 0.3)]
        self.random.shuffle(again)
        return tuple(again)


seconds = st.integers(0, LAST).map(lambda second: second * S)
lengths = st.integers(10, LAST).map(lambda second: second * S)
ends = st.one_of(seconds, st.just(FOREVER_NS))
tenants = st.sampled_from(["red", "green", "blue"])


@st.composite
def slot_ranges(draw):
    """Slots of a whole GPU, a replica of a shared one, or a MIG instance."""
    kind = draw(st.sampled_from(["whole", "replica", "instance"]))
    if kind == "whole":
        return WHOLE
    if kind == "replica":
        of = draw(st.integers(2, 9))
        return replica(draw(st.integers(0, of - 1)), of)
    compute, _ = draw(st.sampled_from(PROFILES))
    return compute_slices(draw(st.integers(0, 7 - compute)), compute)


starts = st.one_of(seconds, st.integers(0, 4).map(lambda step: step * 100 * S))
"""Any second, or one of few, so that claims begin at the same time."""
names = st.one_of(
    st.text("abc", min_size=1, max_size=4),
    st.integers(0, 12).map("j{}".format),
    st.integers(0, 120).map("{:03d}x".format),
)
sizes = st.one_of(
    st.sampled_from([Fraction(1, n) for n in (1, 2, 3, 4, 9, 16, 840)]),
    st.integers(1, 1000).map(lambda n: Fraction(n, 1000)),
    st.integers(1, 81_559).map(lambda n: Fraction(n, 81_559)),
)
"""Shares of a device: parts, thousandths, and MiB of 81,559."""
reported = [level for level in ClaimAuthority if level is not ClaimAuthority.REVIEW]
levels = st.sampled_from([ClaimAuthority.SCHEDULER, ClaimAuthority.SCHEDULER, *reported])


@st.composite
def claims(draw, ids=names):
    start = draw(starts)
    level = draw(levels)
    exclusive = draw(st.sampled_from([True, True, False]))
    return MeteredClaim(
        authority=level,
        start_ns=start,
        id=draw(ids),
        tenant=draw(tenants),
        end_ns=draw(st.one_of(lengths.map(lambda length: start + length), st.just(FOREVER_NS))),
        workload=draw(st.sampled_from(["", "job"])),
        node=draw(st.sampled_from(["", "", "", "n1", "n2"])),
        compute=draw(slot_ranges()),
        exclusive=exclusive,
        system=draw(st.sampled_from([False] * 6 + [True])),
        source=draw(st.sampled_from(["slurm", "file"])),
        share=None if exclusive else draw(st.one_of(st.none(), sizes, sizes)),
    )


@st.composite
def claim_sets(draw):
    """Claims with ids of their own; some lie within an earlier one, some are reported twice."""
    found = draw(st.lists(claims(), max_size=7, unique_by=lambda claim: claim.id))
    for at in range(1, len(found)):
        outer = found[draw(st.integers(0, at - 1))]
        if outer.end_ns < FOREVER_NS and draw(st.booleans()):
            end = draw(st.integers(outer.start_ns // S, outer.end_ns // S)) * S
            start = min(found[at].start_ns, end)
            inner = {"start_ns": max(start, outer.start_ns), "end_ns": end}
            found[at] = msgspec.structs.replace(found[at], **inner, authority=outer.authority)
    if found and draw(st.booleans()):
        found.append(msgspec.structs.replace(found[0], end_ns=found[0].start_ns + draw(lengths)))
    return tuple(found)


@st.composite
def layouts(draw):
    compute = memory = 0
    instances = []
    for compute_size, memory_size in draw(st.lists(st.sampled_from(PROFILES), max_size=7)):
        if compute + compute_size <= 7 and memory + memory_size <= 8:
            instances.append(
                (
                    compute_slices(compute, compute_size),
                    CapacityRange(105 * memory, 105 * (memory + memory_size)),
                )
            )
            compute += compute_size
            memory += memory_size
    return PartitionLayout(
        draw(seconds), draw(st.sampled_from(["l1", "l2", "l3"])), tuple(instances)
    )


@st.composite
def samples(draw, uncertainty_ns=0):
    """Every sample as a span of its own: runs of one boot, in steps below and above a gap."""
    found = []
    for _ in range(draw(st.integers(0, 4))):
        boot, first = draw(st.sampled_from("ab")), draw(st.integers(0, LAST))
        step, count = draw(st.sampled_from([10, 30, 7, 31, 45])), draw(st.integers(1, 20))
        found += [
            BootSampleSpan(boot, (first + at * step) * S, (first + at * step) * S, uncertainty_ns)
            for at in range(count)
        ]
    return tuple(found)


@st.composite
def readings(draw):
    """Runs of a counter, which may fall at any time: a small one, or one of 60 bits."""
    found = []
    scale = draw(st.sampled_from([1, 1, 10**14]))
    for boot in draw(st.lists(st.sampled_from("abc"), max_size=3)):
        first, counter = draw(st.integers(0, LAST)), draw(st.integers(0, 5000))
        steps = draw(st.lists(st.tuples(st.integers(1, 40), st.integers(-60, 900)), max_size=8))
        instants, counters = [first * S], [counter]
        for length, more in steps:
            instants.append(instants[-1] + length * S)
            counters.append(max(0, counters[-1] + more) if more >= 0 else -more)
        ages = draw(st.sampled_from([None, 0, 5 * S, LAST * S]))
        found.append(
            CounterReadings(
                boot,
                np.array(instants, np.int64),
                scale * np.array(counters, np.int64),
                ages_ns=None if ages is None else np.full(len(instants), ages, np.int64),
            )
        )
    return tuple(found)


@st.composite
def reservations(draw):
    name = draw(st.sampled_from(["r1", "r2"]))
    return SlotReservation(draw(seconds), name, draw(tenants), draw(ends))


def few(strategy, most=2):
    return st.lists(strategy, max_size=most).map(tuple)


@st.composite
def histories(draw):
    held = draw(claim_sets())
    ids = st.sampled_from([claim.id for claim in held] or ["unheard of"])
    nodes = st.sampled_from(["n1", "n2"])
    moves = st.lists(st.builds(NodeStay, seconds, nodes, ends), min_size=1, max_size=3).map(tuple)
    return Evidence(
        gpu="GPU-1",
        stays=draw(st.one_of(st.just((NodeStay(0, "n1"),)), moves)),
        claims=held,
        releases=draw(few(st.builds(ClaimRelease, ids, seconds), 3)),
        sample_spans=draw(samples(draw(st.sampled_from([0, 0, 2 * S])))),
        layouts=draw(few(layouts())),
        outages=draw(few(st.builds(GpuOutage, st.booleans(), seconds, seconds))),
        reservations=draw(few(reservations())),
        sightings=draw(few(st.builds(NodeSighting, st.sampled_from(NodeEvidence), seconds, ends))),
    )


@st.composite
def metering_cases(draw):
    evidence = draw(histories())
    wide = st.tuples(st.just(0), seconds, st.just(LAST * S))
    start, middle, end = sorted(draw(st.one_of(wide, st.tuples(seconds, seconds, seconds))))
    return MeteringCase(
        evidence=evidence,
        readings=draw(readings()),
        start=start,
        middle=middle,
        end=end,
        points=tuple(draw(st.lists(seconds, min_size=1, max_size=6))),
        extra=draw(claims(st.just("extra"))),
        other_sample_spans=draw(samples()),
        random=draw(st.randoms(use_true_random=False)),
    )
