"""Ledger days do not depend on the days that are metered together, also of nodes that stop reporting a GPU."""

from __future__ import annotations

import shutil
import tempfile
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from hypothesis import example, given, strategies as st
from msgspec.structs import replace
from support.examples import fewer_examples
from support.finalizing import FinalizingCollector
from support.story import (
    DAY,
    DAY_SECONDS,
    NodeReporter,
    accept,
    at,
    claim_ended,
    claim_started,
    cut as partitions_of,
    gpus_of,
    host,
    interfaces_of,
    ports_of,
)

from railscope.audit.record import RecordActor
from railscope.frame import Schema
from railscope.timestamps import DAY_NS
from railscope_collector.evidence.review_decisions import (
    PendingEvidence,
    ReviewDecision,
    record_decision,
)
from railscope_collector.evidence.review_rules import ReviewKind, ReviewSubject
from railscope_collector.ledger.day_metering import MeteringComputation
from railscope_collector.ledger.day_tiling import DayTiling

DAYS = 4
QUARTERS = DAYS * 96
COMPUTED = MeteringComputation("1", 0)
STREAMS = {
    "gpu": gpus_of("GPU-0", "GPU-1"),
    "first": gpus_of("GPU-0"),
    "second": gpus_of("GPU-1"),
    "host": host(),
    "renamed": gpus_of("GPU-0", model="NVIDIA Graphics Device"),
    "rdma": ports_of(2),
    "nic": interfaces_of(2),
    "whole": partitions_of("GPU-0"),
    "parts": partitions_of("GPU-0", "3g.40gb", "4g.40gb"),
}

quarters = st.integers(0, QUARTERS - 1)
visits = st.lists(st.tuples(quarters, st.sampled_from(sorted(STREAMS))), max_size=12)


class Claim(NamedTuple):
    """A claim of a node, in quarters of an hour; without a GPU it is one of any GPU of the node."""

    quarter: int
    gpu: str
    is_ended: bool
    node: int = 0
    length: int = 8
    name: str = ""
    delay: int = 0
    """The stated start, after the report."""


claims = st.lists(
    st.builds(
        Claim,
        quarters,
        st.sampled_from(["GPU-0", "GPU-1", ""]),
        st.booleans(),
        node=st.just(0),
        length=st.integers(1, 200),
        name=st.sampled_from(["", "a"]),
        delay=st.sampled_from([0, 0, 100]),
    ),
    max_size=4,
)


def write(
    directory: Path, file: Path, visited: list[tuple[int, str, int]], held: list[Claim]
) -> FinalizingCollector:
    """Write the evidence of two nodes to a database: a visit is five minutes of one stream of a node."""
    shutil.copyfile(file, directory / "ledger.db")
    site = FinalizingCollector(directory / "one", f"sqlite:///{directory / 'ledger.db'}")
    events: list[dict[int, list]] = [{}, {}, {}, {}]
    for claim in held:
        started = 900 * claim.quarter
        ended = min(started + 900 * claim.length, 900 * QUARTERS)
        name, of_node = claim.name or f"job-{claim.quarter}", events[claim.node]
        facts = {} if claim.gpu else {"count": "1"}
        facts["start_ns"] = str(at(started + 900 * claim.delay))
        of_node.setdefault(started, []).append(claim_started(claim.gpu, name, started, **facts))
        if claim.is_ended:
            of_node.setdefault(ended, []).append(claim_ended(claim.gpu, name, ended))
    schemas: dict[tuple[int, str, int], Schema] = {
        (second, "host", node): STREAMS["host"] for node in range(4) for second in events[node]
    }
    for quarter, stream, node in visited:
        for second in range(900 * quarter, 900 * quarter + 301, 30):
            schemas[second, STREAMS[stream].stream, node] = STREAMS[stream]
    nodes = [
        NodeReporter(),
        NodeReporter("n2", "boot-2", "run-2"),
        NodeReporter("n1", "boot-3", "run-3", booted_at=-400_000),
        NodeReporter("n1", "boot-4", "run-4", booted_at=-500_000),
    ]
    for second, stream, node in sorted(schemas):
        happened = events[node] if stream == "host" else None
        frames = nodes[node].frames(schemas[second, stream, node], [second], events=happened)
        accept(site.core, [nodes[node].record(frames)])
    return site


def days_of(site: FinalizingCollector, cuts: list[int]) -> list[DayTiling]:
    """Meter all days, those between two cuts together."""
    store = site.stores.store
    since_ns, files = store.homes(), store.files()
    homes = {gpu: set(nodes) for gpu, nodes in since_ns.items()}
    found = []
    for first, last in pairwise(
        [DAY, *sorted({DAY + first_day for first_day in cuts}), DAY + DAYS]
    ):
        loaded = store.load(sorted(homes), homes, first * DAY_NS, last * DAY_NS)
        for gpu in sorted(homes):
            metered = loaded.assemble(gpu, files).meter()
            since_day = min(since_ns[gpu].values()) // DAY_NS
            found += [
                (gpu, day, replace(metered.day(day, COMPUTED), evidence_root=""))
                for day in range(max(first, since_day), last)
            ]
    return [tiling for *_, tiling in sorted(found, key=lambda each: each[:2])]


def compare_groups(site: FinalizingCollector) -> None:
    """Compare days that are metered alone, or two or three together, with all metered together."""
    together = days_of(site, [])
    for cuts in ([1, 2, 3], [2], [1, 3]):
        assert days_of(site, cuts) == together


@fewer_examples(40)
@given(visits, claims)
@example([(0, "gpu"), (1, "host")], [Claim(0, "GPU-0", is_ended=False)])
@example([(0, "gpu"), (200, "host"), (383, "gpu")], [Claim(0, "GPU-0", is_ended=False)])
@example([(0, "gpu"), (0, "parts"), (5, "gpu")], [])
@example([(0, "gpu"), (97, "gpu")], [Claim(0, "GPU-0", is_ended=True)])
@example([(0, "gpu"), (100, "rdma"), (200, "host"), (300, "gpu"), (300, "rdma")], [])
@example(
    [(7, "gpu"), (140, "rdma"), (190, "second"), (218, "rdma"), (323, "gpu"), (345, "rdma")], []
)
@example(
    [
        *((quarter, "second") for quarter in (8, 100)),
        *((quarter, "gpu") for quarter in (7, 9, 101)),
        *((quarter, "rdma") for quarter in (7, 300)),
    ],
    [],
)
@example([(0, "renamed"), (110, "renamed"), (200, "first"), (300, "first"), (310, "first")], [])
@example(
    [
        *((quarter, "gpu") for quarter in (0, 90, 110, 210)),
        *((quarter, "nic") for quarter in (0, 80, 112)),
        *((quarter, "rdma") for quarter in (10, 300)),
    ],
    [],
)
@example(
    [(quarter, "gpu") for quarter in (0, 80, 170, 260, 370)],
    [
        Claim(2, "GPU-0", is_ended=False, name="a", delay=150),
        Claim(6, "GPU-0", is_ended=False, name="a"),
    ],
)
@example(
    [(quarter, "gpu") for quarter in (0, 80, 170, 260, 370)],
    [Claim(2, "GPU-0", is_ended=True, length=40), Claim(6, "", is_ended=False)],
)
async def test_days_do_not_depend_on_the_days_that_are_metered_together(
    new_ledger_file: Path, visited: list, held: list[Claim]
) -> None:
    with tempfile.TemporaryDirectory() as name:
        reports = [(quarter, stream, 0) for quarter, stream in visited]
        site = write(Path(name), new_ledger_file, reports, held)
        await site.round(DAYS * DAY_SECONDS + 7200, everything=True)
        compare_groups(site)
        site.finalizer.close()


boots_of_one = st.sampled_from([0, 2, 3])


@fewer_examples(40)
@given(
    st.lists(
        st.tuples(quarters, st.sampled_from(["gpu", "first", "host"]), boots_of_one), max_size=12
    ),
    st.lists(
        st.builds(
            Claim,
            quarters,
            st.sampled_from(["GPU-0", "GPU-0", ""]),
            st.just(value=False),
            boots_of_one,
            name=st.sampled_from("ab"),
        ),
        max_size=4,
    ),
)
@example(
    [(0, "gpu", 0), (50, "gpu", 2), *((quarter, "gpu", 0) for quarter in range(51, 350, 40))],
    [Claim(2, "GPU-0", is_ended=False)],
)
@example(
    [(0, "gpu", 2), *((quarter, "gpu", 0) for quarter in range(1, 350, 40)), (300, "gpu", 2)],
    [Claim(2, "GPU-0", is_ended=False)],
)
@example([(0, "gpu", 0), (100, "gpu", 2), (200, "gpu", 0), (201, "gpu", 2)], [])
@example([(0, "gpu", 0), (10, "gpu", 0), (100, "gpu", 2), (110, "gpu", 2)], [])
@example([(0, "gpu", 0), (0, "gpu", 2), (97, "gpu", 0)], [Claim(1, "GPU-0", is_ended=False)])
@example([(0, "gpu", 0), (96, "gpu", 2), (97, "first", 0), (100, "gpu", 2), (102, "gpu", 0)], [])
async def test_days_of_boots_at_the_same_time_do_not_depend_on_the_days_metered_together(
    new_ledger_file: Path, visited: list, held: list[Claim]
) -> None:
    with tempfile.TemporaryDirectory() as name:
        site = write(Path(name), new_ledger_file, visited, held)
        await site.round(DAYS * DAY_SECONDS + 7200, everything=True)
        compare_groups(site)
        site.finalizer.close()


two_nodes = st.integers(0, 1)
visits_of_two = st.lists(
    st.tuples(
        quarters, st.sampled_from(["first", "host", "nic", "rdma", "renamed", "second"]), two_nodes
    ),
    max_size=10,
)
claims_of_two = st.lists(
    st.builds(
        Claim,
        quarters,
        st.sampled_from(["GPU-0", "GPU-0", ""]),
        st.booleans(),
        two_nodes,
        st.integers(1, 200),
        st.sampled_from("ab"),
        st.sampled_from([0, 0, 100]),
    ).filter(lambda claim: claim.gpu or not claim.is_ended),
    max_size=3,
)
verdicts = st.dictionaries(st.sampled_from(["n1", "n2"]), st.booleans())


@fewer_examples(40)
@given(visits_of_two, claims_of_two, verdicts)
@example([(0, "first", 0), (0, "first", 1), (1, "host", 0)], [], {})
@example([(0, "first", 0), (0, "first", 1), (1, "host", 0), (2, "host", 1)], [], {"n2": False})
@example(
    [(0, "first", 0), (10, "first", 1), (120, "first", 0), (200, "first", 1), (300, "first", 0)],
    [
        Claim(120, "GPU-0", is_ended=False, name="a"),
        Claim(10, "GPU-0", is_ended=True, node=1, length=40, name="a"),
    ],
    {},
)
@example(
    [(0, "first", 0), (1, "host", 0), (2, "first", 1), (300, "first", 1)],
    [
        Claim(0, "GPU-0", is_ended=True, length=1, name="a"),
        Claim(290, "GPU-0", is_ended=True, node=1, length=20, name="a"),
    ],
    {},
)
@example(
    [(0, "first", 0), (1, "host", 0), (101, "host", 1), (102, "first", 1), (103, "first", 0)],
    [Claim(0, "GPU-0", is_ended=False, name="a")],
    {},
)
@example(
    [
        *((quarter, "first", 0) for quarter in (28, 92, 308)),
        *((quarter, "rdma", 0) for quarter in (101, 140, 221)),
        (86, "first", 1),
        (127, "rdma", 1),
    ],
    [Claim(259, "GPU-0", is_ended=False, node=1, length=100, name="b")],
    {},
)
@example(
    [
        *((quarter, "first", 0) for quarter in (128, 265)),
        *((quarter, "first", 1) for quarter in (54, 379)),
        (147, "rdma", 1),
    ],
    [],
    {"n1": False, "n2": False},
)
@example(
    [(0, "first", 1), (1, "first", 0), (196, "first", 1), (232, "host", 0), (233, "first", 0)],
    [Claim(0, "GPU-0", is_ended=False, length=1, name="a")],
    {},
)
@example(
    [(0, "first", 1), (1, "first", 0), (1, "first", 1), (2, "host", 1), (3, "first", 0)],
    [Claim(0, "GPU-0", is_ended=False, length=1, name="a")],
    {},
)
async def test_days_of_a_gpu_of_two_nodes_do_not_depend_on_the_days_metered_together(
    new_ledger_file: Path, visited: list, held: list[Claim], decided: dict[str, bool]
) -> None:
    with tempfile.TemporaryDirectory() as name:
        site = write(Path(name), new_ledger_file, visited, held)
        await site.round(DAYS * DAY_SECONDS + 7200, everything=True)
        for node, is_accepted in decided.items():
            subject = ReviewSubject(ReviewKind.GPU, node, "GPU-0")
            pending = PendingEvidence(subject, ("GPU-0",), (), (), 0, 0, Fraction(0))
            decision = ReviewDecision(is_accepted, RecordActor("operator", "x"), at(0))
            record_decision(site.stores.ledger.database, [pending], decision)
        compare_groups(site)
        site.finalizer.close()
