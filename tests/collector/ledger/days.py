"""GPU-days to write: by hand, and whatever metering makes of any evidence."""

from __future__ import annotations

from hypothesis import strategies as st

from collector.ledger.tiling import DAY_NS, DayTiling, evidence_root
from collector.metering.evidence import Claim, Evidence, Level, Sighting, Stay, Stretch, Witness
from collector.metering.tiling import tile
from collector.metering.units import FOREVER_NS, WHOLE, compute_slices, memory_slices, replica

DAY = 20_000
START = DAY * DAY_NS
HOUR = DAY_NS // 24
ENGINE = "1"


def metered(evidence: Evidence, day: int = DAY, engine: str = ENGINE) -> DayTiling:
    """What metering makes of a day."""
    entries = tile(evidence, day * DAY_NS, (day + 1) * DAY_NS)
    return DayTiling(
        gpu=evidence.gpu,
        day=day,
        entries=tuple(entries),
        evidence_root=evidence_root(evidence),
        engine_version=engine,
        computed_ns=(day + 1) * DAY_NS,
    )


def held(gpu: str, *tenants: str, stay: tuple[int, int] = (0, FOREVER_NS)) -> Evidence:
    """A GPU that each tenant holds from its hour of the day on, in the node from `stay` on."""
    claims = (
        Claim(Level.SCHEDULER, START + hour * HOUR, f"{tenant}-{hour}", tenant)
        for hour, tenant in enumerate(tenants)
    )
    return Evidence(gpu, (Stay(stay[0], "node1", stay[1]),), tuple(claims))


names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
instants = st.integers(START - HOUR, START + DAY_NS + HOUR)
slots = st.one_of(
    st.just((WHOLE, WHOLE)),
    st.integers(0, 3).map(lambda index: (replica(index, 4), replica(index, 4))),
    st.integers(0, 6).map(lambda index: (compute_slices(index, 1), memory_slices(index, 1))),
)


@st.composite
def claims(draw):
    compute, memory = draw(slots)
    start, end = draw(instants), draw(st.one_of(instants, st.just(FOREVER_NS)))
    return Claim(
        level=draw(st.sampled_from(Level)),
        start_ns=start,
        id=draw(names),
        tenant=draw(names),
        end_ns=end,
        workload=draw(names),
        compute=compute,
        memory=memory,
        exclusive=draw(st.booleans()),
    )


@st.composite
def histories(draw):
    """Evidence of one GPU about one day."""
    begin, end = sorted(draw(st.tuples(instants, instants)))
    first, last = sorted(draw(st.tuples(instants, instants)))
    return Evidence(
        gpu="GPU-0",
        stays=(Stay(begin, draw(names), draw(st.sampled_from([end, FOREVER_NS]))),),
        claims=tuple(draw(st.lists(claims(), max_size=5, unique_by=lambda claim: claim.id))),
        stretches=(Stretch("boot", first, last),),
        sightings=(Sighting(draw(st.sampled_from(Witness)), begin, end),),
    )
