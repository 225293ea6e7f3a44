"""`python -m bench.otlp`: cost of an export by OTLP, compared with new objects and with the metrics endpoint."""

from __future__ import annotations

import gzip
import statistics
from array import array
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import TypeVar

from bench import harness
from railscope.catalog import METRICS, declare
from railscope.exposition import Exposition, TextFormat
from railscope.frame import Entity, Frame, FrameOrigin, NodeTimestamp, Schema
from railscope.timestamps import SECOND_NS

METRIC_COUNT, DEVICES = 300, 10
ROUNDS, QUICK_ROUNDS = 200, 3
PERIOD_NS = 10 * SECOND_NS
STARTED_NS = 1_790_000_000 * SECOND_NS
GZIP_LEVEL = 1

KEPT_OBJECTS = harness.Aim("<=", 1.5, " ms")
RATIO_TO_NEW = harness.Aim("<=", 0.2)
RATIO_TO_PAGE = harness.Aim("<=", 1.5)


def node_schema() -> Schema:
    """Return the columns of a source: counters and gauges of the catalog, each of all devices."""
    numbers = (
        metric
        for metric in METRICS.values()
        if metric.kind in {declare.MetricKind.COUNTER, declare.MetricKind.GAUGE}
        and metric.about.labels
    )
    columns = [
        (metric, Entity(metric.about, tuple(f"{label}-{device}" for label in metric.about.labels)))
        for metric in islice(numbers, METRIC_COUNT)
        for device in range(DEVICES)
    ]
    return Schema("bench", tuple(columns))


def frames(schema: Schema) -> Iterator[Frame]:
    """Yield reads of which every value differs from the one before."""
    origin, values = (
        FrameOrigin("node-1", "run", "boot"),
        array("q", range(1, len(schema.columns) + 1)),
    )
    for sequence in range(1 << 30):
        at_ns = sequence * PERIOD_NS
        timestamp = NodeTimestamp(STARTED_NS + at_ns, at_ns)
        yield Frame(origin, schema, sequence + 1, timestamp, values)
        values = array("q", (value + 1 + position % 7 for position, value in enumerate(values)))


Read = TypeVar("Read")


def milliseconds(work: Callable[[Read], object], reads: Iterator[Read], rounds: int) -> float:
    """Return the median of the processor time per read, after one that is not counted."""
    work(next(reads))
    costs = []
    for read in islice(reads, rounds):
        with harness.ProcessStopwatch() as spent:
            work(read)
        costs.append(spent.cpu_seconds * 1e3)
    return statistics.median(costs)


def collector_cost(rounds: int) -> float:
    """Return the median of the processor time of the collector's request with as many samples, in milliseconds."""
    from railscope_collector.sinks.otlp_format import OtlpMetricsFormat  # noqa: PLC0415 - after the agent's, whose memory is measured

    built = OtlpMetricsFormat()
    built.is_compressed = False
    series = [
        built.encode_series(metric, zip(metric.about.labels, entity.key, strict=True))
        for metric, entity in node_schema().columns
    ]

    reads = (
        (list(zip(series, map(float, read.values), strict=True)), read.sequence)
        for read in frames(node_schema())
    )
    return milliseconds(lambda read: built.encode_samples(*read), reads, rounds)


@harness.benchmark("Export by OTLP", full=ROUNDS, quick=QUICK_ROUNDS)
def main(report: harness.BenchReport, rounds: int, _directory: Path) -> None:
    """Measure exports of 3,000 points of which all have changed."""
    before_bytes = harness.resident_bytes()
    from railscope_agent.otlp.metric_messages import MetricMessages  # noqa: PLC0415 - its memory is measured

    import_bytes = harness.resident_bytes() - before_bytes
    resource = {"service.name": "railscope-agent", "service.instance.id": "node-1"}
    schema = node_schema()
    messages, exposition = MetricMessages(resource, STARTED_NS), Exposition()

    def build(built: MetricMessages, read: Frame) -> None:
        built.build([read], 0)

    def expose(read: Frame) -> bytes:
        return exposition.render([read], TextFormat.PROMETHEUS).encode()

    works: dict[str, Callable[[Frame], object]] = {
        "kept objects": lambda read: build(messages, read),
        "new objects": lambda read: build(MetricMessages(resource, STARTED_NS), read),
        "metrics endpoint": expose,
    }
    costs = {name: milliseconds(work, frames(schema), rounds) for name, work in works.items()}
    ((body, points),) = MetricMessages(resource, STARTED_NS).build([next(frames(schema))], 0)
    compression = milliseconds(
        lambda _: gzip.compress(body, GZIP_LEVEL), frames(schema), min(rounds, 20)
    )
    whole = costs["kept objects"]
    report.ratio(f"processor time of {points} points, kept objects", whole, KEPT_OBJECTS)
    report.ratio(
        f"the collector's request of {points} points", collector_cost(rounds), KEPT_OBJECTS
    )
    report.ratio("kept objects / new objects", whole / costs["new objects"], RATIO_TO_NEW)
    report.ratio(
        "kept objects / metrics endpoint", whole / costs["metrics endpoint"], RATIO_TO_PAGE
    )
    for name, cost in costs.items():
        report.figure(name, f"{cost:.2f} ms for {points} points")
    compressed = len(gzip.compress(body, GZIP_LEVEL))
    report.figure("gzip, in addition", f"{compression:.2f} ms")
    report.figure(
        "body", f"{len(body)} bytes, {compressed} compressed: {compressed / points:.1f} per point"
    )
    report.figure("memory of protobuf and the messages", harness.mebibytes(import_bytes))


if __name__ == "__main__":
    main()
