"""A GPU that left its node weeks ago: what metering reads, and the result."""

from __future__ import annotations

from pathlib import Path

from support.story import DAY, at

from collector.evidence.evidence_records import EvidenceQuarantine
from collector.evidence.evidence_store import EvidenceStore, compress_interval
from collector.evidence.gpu_evidence import AdministratorInputs
from collector.evidence.node_intervals import (
    INTERVAL_NS,
    EvidenceInterval,
    ReportedGpu,
    SampleSpan,
    encode_interval,
)
from collector.ledger.database import Database
from collector.tables import metadata
from railscope.timestamps import DAY_NS

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
    encoded = [compress_interval(report, encode_interval(report)) for report in reports]
    store.write(encoded, [], lambda: at(0))
    return store, decoded


def stays_on(store: EvidenceStore, gpu: str, day: int, days: int = 1) -> list[tuple[str, int]]:
    """Meter days; return the nodes of a GPU on the last one, with its entries."""
    window = (DAY + day) * DAY_NS, (DAY + day + days) * DAY_NS
    homes = {name: set(nodes) for name, nodes in store.homes().items()}
    known = store.load(sorted(homes), homes, *window).assemble(gpu, AdministratorInputs())
    return [(stay.node, stay.end_ns) for stay in known.evidence.stays]


def test_a_gpu_that_left_is_searched_once(tmp_path: Path) -> None:
    days = 12
    reports = [report_of("n1", n, "GPU-0", "GPU-1") for n in range(8)]
    reports += [report_of("n1", n, "GPU-0") for n in range(8, days * PARTS_PER_DAY)]
    store, decoded = store_with(f"sqlite:///{tmp_path / 'ledger.db'}", reports)
    first = stays_on(store, "GPU-1", days - 2)
    searched, decoded.count = decoded.count, 0
    assert stays_on(store, "GPU-1", days - 1) == first != []
    assert searched > (days - 3) * PARTS_PER_DAY
    assert decoded.count < 2 * PARTS_PER_DAY + 40
