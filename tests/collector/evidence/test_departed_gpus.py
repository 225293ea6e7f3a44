"""A GPU that left its node weeks ago: what metering reads, and the result."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from archiving_site import METERING, NOW, ArchivingCollector
from ledger_days import HOURS
from support.finalizing import FinalizingCollector
from support.metered import tile
from support.story import DAY, DAY_SECONDS, NodeReporter, accept, at, gpus_of
from test_grouped_days import DAYS, Claim, compare_groups, write

from railscope.timestamps import DAY_NS, FOREVER_NS
from railscope_collector.evidence.evidence_contents import content_days, contents_table
from railscope_collector.evidence.evidence_records import EvidenceQuarantine
from railscope_collector.evidence.evidence_store import EvidenceStore, compress_interval
from railscope_collector.evidence.gpu_counters import counter_increments
from railscope_collector.evidence.gpu_evidence import AdministratorInputs
from railscope_collector.evidence.node_intervals import (
    INTERVAL_NS,
    CounterReading,
    CounterSeries,
    EvidenceInterval,
    ReportedGpu,
    SampleSpan,
    encode_interval,
)
from railscope_collector.finalization import archived_days
from railscope_collector.fleet.schema_columns import CounterSubject
from railscope_collector.ledger.database import Database
from railscope_collector.metering.counter_increments import CountedQuantity
from railscope_collector.metering.evidence import NodeStay
from railscope_collector.metering.tiling import SlotState
from railscope_collector.tables import metadata

PARTS_PER_DAY = DAY_NS // INTERVAL_NS


class DecodedParts(EvidenceQuarantine):
    """Counts the parts that are decoded."""

    count = 0

    def interval(self, name: object, packed: object) -> EvidenceInterval | None:
        """Count a part."""
        self.count += 1
        return super().interval(name, packed)


def report_of(node: str, number: int, *gpus: str) -> EvidenceInterval:
    """Return all that a node reports in a quarter of an hour."""
    start_ns = at(0) + number * INTERVAL_NS
    span = SampleSpan(start_ns, start_ns + INTERVAL_NS - 10**10)
    sighted = {gpu: ReportedGpu(at(60), i, spans=[span]) for i, gpu in enumerate(gpus)}
    return EvidenceInterval(
        node, f"{node}-boot", number, span.first_ns, span.last_ns, sighted, [span]
    )


def store_with(url: str, reports: list[EvidenceInterval]) -> tuple[EvidenceStore, DecodedParts]:
    """Return a database with reports."""
    decoded = DecodedParts()
    store = EvidenceStore(Database(url, metadata), decoded)
    write_reports(store, reports)
    return store, decoded


def write_reports(store: EvidenceStore, reports: list[EvidenceInterval]) -> None:
    """Write reports to a database."""
    encoded = [compress_interval(report, encode_interval(report)) for report in reports]
    store.write(encoded, [], lambda: at(0))


def stays_on(store: EvidenceStore, gpu: str, day: int, days: int = 1) -> list[tuple[str, int]]:
    """Meter days; return the nodes of a GPU on the last one, with its entries."""
    window = (DAY + day) * DAY_NS, (DAY + day + days) * DAY_NS
    homes = {name: set(nodes) for name, nodes in store.homes().items()}
    known = store.load(sorted(homes), homes, *window).assemble(gpu, AdministratorInputs())
    return [(stay.node, stay.end_ns) for stay in known.evidence.stays]


def test_of_the_time_since_a_gpu_left_nothing_is_read(tmp_path: Path) -> None:
    days = 12
    reports = [report_of("n1", n, "GPU-0", "GPU-1") for n in range(8)]
    reports += [report_of("n1", n, "GPU-0") for n in range(8, days * PARTS_PER_DAY)]
    store, decoded = store_with(f"sqlite:///{tmp_path / 'ledger.db'}", reports)
    first = stays_on(store, "GPU-1", days - 2)
    searched, decoded.count = decoded.count, 0
    assert stays_on(store, "GPU-1", days - 1) == first != []
    assert searched < 3 * PARTS_PER_DAY, "those of the day, and of the one on which the GPU left"
    assert decoded.count < 2 * PARTS_PER_DAY, "the latter are remembered"


def long_ago(*, days: int = 30) -> list[EvidenceInterval]:
    """Return reports of a node that lost a GPU weeks ago, with its MIG layout."""
    first = report_of("n1", 0, "GPU-0", "GPU-1")
    first.record_layout("GPU-1", (), first.reports[0])
    return [first, *(report_of("n1", n, "GPU-0") for n in range(1, days * PARTS_PER_DAY, 2))]


def test_a_gpu_that_left_weeks_ago_stays_in_its_node_until_it_is_retired(tmp_path: Path) -> None:
    store, _ = store_with(f"sqlite:///{tmp_path / 'ledger.db'}", long_ago())
    window = (DAY + 29) * DAY_NS, (DAY + 30) * DAY_NS
    known = store.evidence("GPU-1", *window)
    assert {entry.state for entry in tile(known.evidence, *window)} == {SlotState.UNKNOWN}
    assert known.evidence.layouts, "of the same part"


def test_evidence_of_an_earlier_release_is_added_to_the_index(url: str) -> None:
    decoded = DecodedParts()
    with closing(Database(url, metadata)) as earlier:
        write_reports(EvidenceStore(earlier, decoded), long_ago(days=16))
        stays = stays_on(EvidenceStore(earlier, decoded), "GPU-1", 15)
        with earlier.transaction(writes=True) as connection:
            content_days.drop(connection)
            contents_table.drop(connection)
    with closing(Database(url, metadata)) as database:
        assert stays_on(EvidenceStore(database, decoded), "GPU-1", 15) == stays
        assert stays == [("n1", FOREVER_NS)]
        decoded.count = 0
        assert stays_on(EvidenceStore(database, decoded), "GPU-1", 15) == stays
        assert decoded.count < 2 * PARTS_PER_DAY, "once"


VISITS = [(quarter, "gpu", 0) for quarter in (0, *range(100, 106))]
"""Reports of GPUs by their node: on the first day, and then at the start of the second."""


@pytest.mark.parametrize(
    "visits",
    [
        pytest.param([(10, "rdma", 0), (300, "rdma", 0)], id="a port"),
        pytest.param([(10, "parts", 0), (300, "gpu", 0)], id="a layout"),
    ],
)
async def test_a_day_does_not_depend_on_when_something_was_last_reported(
    new_ledger_file: Path, tmp_path: Path, visits: list
) -> None:
    site = write(tmp_path, new_ledger_file, [*VISITS, *visits], [])
    await site.round(DAYS * DAY_SECONDS + 7200, everything=True)
    compare_groups(site)
    site.finalizer.close()


async def test_a_port_counts_from_the_arrival_of_its_gpu(
    new_ledger_file: Path, tmp_path: Path
) -> None:
    visits = [(0, "first", 1), (1, "rdma", 1), (10, "first", 0), (20, "host", 1), (21, "rdma", 0)]
    site = write(tmp_path, new_ledger_file, visits, [])
    await site.round(DAYS * DAY_SECONDS + 7200, everything=True)
    known = site.stores.store.evidence("GPU-0", DAY * DAY_NS, (DAY + 1) * DAY_NS)
    assert {stay.node for stay in known.evidence.stays} == {"n1", "n2"}
    assert known.counted[CountedQuantity.RECEIVED].same.all(), "neither node's port is continued"
    site.finalizer.close()


async def test_a_claim_without_a_device_is_placed_on_any_gpu_of_its_node(
    new_ledger_file: Path, tmp_path: Path
) -> None:
    claims = [Claim(300, "", is_ended=True)]
    visits = [*VISITS, *((quarter, "second", 0) for quarter in (*range(200, 206), 300))]
    site = write(tmp_path, new_ledger_file, visits, claims)
    await site.round(DAYS * DAY_SECONDS + 7200, everything=True)
    store, window = site.stores.store, ((DAY + 3) * DAY_NS, (DAY + 4) * DAY_NS)
    placed = {gpu: store.evidence(gpu, *window).evidence.claims for gpu in ("GPU-0", "GPU-1")}
    assert [claim.assumed for claim in placed["GPU-0"]] == [True], "last seen two days before"
    assert not placed["GPU-1"]
    site.finalizer.close()


async def test_what_is_needed_of_a_gpu_that_left_is_not_deleted(url: str, tmp_path: Path) -> None:
    site, node = FinalizingCollector(tmp_path / "one", url, METERING), NodeReporter()
    gpus = gpus_of("GPU-0", "GPU-1")
    accept(site.core, node.envelopes_of(gpus, range(0, 2 * HOURS, 30), each=200))
    accept(site.core, node.envelopes_of(gpus_of("GPU-0"), range(2 * HOURS, NOW, 30), each=200))
    await site.round(NOW, everything=True)
    archiving = ArchivingCollector(site, tmp_path / "archive")
    assert await archiving.retention.attempt()
    deleted = archiving.retention.deleted
    assert await archiving.retention.attempt()
    assert archiving.retention.deleted == deleted > PARTS_PER_DAY
    window = (DAY + 4) * DAY_NS, (DAY + 5) * DAY_NS
    known = site.stores.store.evidence("GPU-1", *window)
    assert {entry.state for entry in tile(known.evidence, *window)} == {SlotState.UNKNOWN}
    for day in range(DAY, DAY + 3):
        recomputed = archived_days.recompute_day(archiving.archive, site.stores.ledger, day)
        assert (recomputed.equal, recomputed.problems) == (2, [])
    site.finalizer.close()


def counted_part(*seconds: int) -> EvidenceInterval:
    """Part of an interval with readings of the energy of GPU-0, each the first one that a collector has of 30 seconds."""
    counters = (CounterSubject(CountedQuantity.ENERGY, "GPU-0"),)
    cells = {
        second // 30: CounterReading(
            at(second) - at(0), at(second), second.to_bytes(8, "little", signed=True)
        )
        for second in seconds
    }
    spans = [SampleSpan(at(seconds[0]), at(seconds[-1]))]
    gpus = {"GPU-0": ReportedGpu(at(0), 0, spans=spans)}
    series = {"gpu": CounterSeries("run", counters, cells)}
    return EvidenceInterval("n1", "boot", 0, at(0), at(200), gpus, series=series)


def test_a_collector_with_some_of_the_frames_adds_no_reading_of_a_gpu_that_arrives() -> None:
    """The first reading of the 30 seconds in which a GPU arrives is from before, also if one collector lacks it."""
    whole, some = counted_part(95, 125, 155), counted_part(110, 140, 155)
    stays = [NodeStay(at(0), "n2", at(100)), NodeStay(at(100), "n1", FOREVER_NS)]
    for parts in ([whole], [whole, some], [some, whole]):
        found = counter_increments("GPU-0", parts, stays)[CountedQuantity.ENERGY]
        assert (found.starts_ns.tolist(), found.amounts.tolist()) == ([at(125)], [30])
