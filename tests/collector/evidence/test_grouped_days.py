"""Ledger days do not depend on the days that are metered together, also of nodes that stop reporting a GPU."""

from __future__ import annotations

import shutil
import tempfile
from itertools import pairwise
from pathlib import Path

from hypothesis import example, given, strategies as st
from msgspec.structs import replace
from support.examples import fewer_examples
from support.finalizing import FinalizingCollector
from support.story import (
    DAY,
    DAY_SECONDS,
    NodeReporter,
    accept,
    claim_ended,
    claim_started,
    cut as partitions_of,
    gpus_of,
    host,
    ports_of,
)

from collector.evidence.gpu_evidence import AdministratorInputs
from collector.ledger.day_metering import MeteringComputation
from collector.ledger.day_tiling import DayTiling
from railscope.frame import Schema
from railscope.timestamps import DAY_NS

DAYS = 4
QUARTERS = DAYS * 96
COMPUTED = MeteringComputation("1", 0)
STREAMS = {
    "gpu": gpus_of("GPU-0", "GPU-1"),
    "first": gpus_of("GPU-0"),
    "host": host(),
    "rdma": ports_of(2),
    "whole": partitions_of("GPU-0"),
    "parts": partitions_of("GPU-0", "3g.40gb", "4g.40gb"),
}

quarters = st.integers(0, QUARTERS - 1)
visits = st.lists(st.tuples(quarters, st.sampled_from(sorted(STREAMS))), max_size=12)
claims = st.lists(
    st.tuples(quarters, st.sampled_from(["GPU-0", "GPU-1"]), st.booleans()), max_size=2
)


def write(directory: Path, file: Path, visited: list, held: list) -> FinalizingCollector:
    """Write the evidence of a node to a database: a visit is five minutes of one stream."""
    shutil.copyfile(file, directory / "ledger.db")
    site = FinalizingCollector(directory / "one", f"sqlite:///{directory / 'ledger.db'}")
    events: dict[int, list] = {}
    for quarter, gpu, ends in held:
        started, ended = 900 * quarter, min(900 * quarter + 7200, 900 * QUARTERS)
        events.setdefault(started, []).append(claim_started(gpu, f"job-{quarter}", started))
        if ends:
            events.setdefault(ended, []).append(claim_ended(gpu, f"job-{quarter}", ended))
    schemas: dict[tuple[str, int], Schema] = {
        ("host", second): STREAMS["host"] for second in events
    }
    for quarter, stream in visited:
        for second in range(900 * quarter, 900 * quarter + 301, 30):
            schemas[STREAMS[stream].stream, second] = STREAMS[stream]
    node = NodeReporter()
    for stream, second in sorted(schemas, key=lambda each: each[::-1]):
        happened = events if stream == "host" else None
        frames = node.frames(schemas[stream, second], [second], events=happened)
        accept(site.core, [node.record(frames)])
    return site


def days_of(site: FinalizingCollector, cuts: list[int]) -> list[DayTiling]:
    """Meter all days, those between two cuts together."""
    store = site.stores.store
    since_ns = store.homes()
    homes = {gpu: set(nodes) for gpu, nodes in since_ns.items()}
    found = []
    for first, last in pairwise(
        [DAY, *sorted({DAY + first_day for first_day in cuts}), DAY + DAYS]
    ):
        loaded = store.load(sorted(homes), homes, first * DAY_NS, last * DAY_NS)
        for gpu in sorted(homes):
            metered = loaded.assemble(gpu, AdministratorInputs()).meter()
            since_day = min(since_ns[gpu].values()) // DAY_NS
            found += [
                (gpu, day, replace(metered.day(day, COMPUTED), evidence_root=""))
                for day in range(max(first, since_day), last)
            ]
    return [tiling for *_, tiling in sorted(found, key=lambda each: each[:2])]


@fewer_examples(60)
@given(visits, claims)
@example([(0, "gpu"), (1, "host")], [(0, "GPU-0", False)])
@example([(0, "gpu"), (200, "host"), (383, "gpu")], [(0, "GPU-0", False)])
@example([(0, "gpu"), (0, "parts"), (5, "gpu")], [])
async def test_days_do_not_depend_on_the_days_that_are_metered_together(
    new_ledger_file: Path, visited: list, held: list
) -> None:
    with tempfile.TemporaryDirectory() as name:
        site = write(Path(name), new_ledger_file, visited, held)
        await site.round(DAYS * DAY_SECONDS + 7200, everything=True)
        together = days_of(site, [])
        for cuts in ([1, 2, 3], [2], [1, 3]):
            assert days_of(site, cuts) == together
        site.finalizer.close()
