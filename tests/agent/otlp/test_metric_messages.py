"""Metrics as OTLP: the same series and values as on the metrics endpoint, with times, starts and ends."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings as hypothesis_settings, strategies as st
from opentelemetry.proto.metrics.v1 import metrics_pb2
from support.cases import capture_of, names, third_of
from support.clock import NS, START
from support.metric_samples import exported_samples, sample, samples
from support.otlp_decoding import DecodedMetrics, prometheus_name
from support.reading import ORIGIN
from support.textfiles import TextfileDirectory, page_of

from railscope import otlp_points
from railscope.catalog import METRICS, declare, entities
from railscope.catalog.declare import MetricKind
from railscope.exposition import EVERYTHING, ExpositionTemplate, TextFormat
from railscope.frame import Column, Entity, Frame, NodeTimestamp, Schema
from railscope.reading import Absent, to_stored
from railscope_agent.commands.capture_walk import find_read_offsets
from railscope_agent.config import AgentSettings, MetricsSettings
from railscope_agent.host.recorded_clock import RecordedClock
from railscope_agent.host.recorded_host import RecordedHost
from railscope_agent.otlp.metric_messages import MetricMessages
from railscope_agent.service import Agent

FULL = AgentSettings(metrics=MetricsSettings(detail="full"), read_timeout_seconds=60)
RESOURCE = {"service.name": "railscope-agent"}
AGENT_NS, WALL_NS, BOOT_NS = 1_700_000_000 * NS, 1_790_000_000 * NS, 1_000 * NS
GPU = Entity(entities.GPU, ("GPU-0",))


def metric(
    kind: MetricKind, number: str = "", *, about: declare.EntityKind = entities.GPU, **columns: Any
) -> declare.Metric:
    """A metric of GPUs."""
    suffix = "_total" if kind is MetricKind.COUNTER else ""
    return declare.Metric(
        f"railscope_gpu_made_up_{kind}{number}{suffix}",
        kind,
        about,
        help="Made up.",
        origin="test",
        **columns,
    )


COUNTER, GAUGE = metric(MetricKind.COUNTER), metric(MetricKind.GAUGE)
SPARSE = metric(MetricKind.COUNTER, "_2", sparse=True)
SPARSE_GAUGE = metric(MetricKind.GAUGE, "_2", sparse=True)
STATE = metric(MetricKind.STATE, states={0: "idle", 1: "busy"})


def frame(
    columns: Sequence[Column],
    readings: Sequence[int | Absent],
    second: int = 0,
    stream: str = "gpu",
) -> Frame:
    """A frame read some seconds after the first."""
    values = array("q", (0 if isinstance(each, Absent) else to_stored(each) for each in readings))
    codes = bytes(each.value if isinstance(each, Absent) else 0 for each in readings)
    at = NodeTimestamp(WALL_NS + second * NS, BOOT_NS + second * NS)
    return Frame(
        ORIGIN, Schema(stream, tuple(columns)), second + 1, at, values, codes if any(codes) else b""
    )


class Export:
    """An exporter and the decoder of its requests."""

    def __init__(self) -> None:
        self.messages = MetricMessages(RESOURCE, AGENT_NS)
        self.decoded = DecodedMetrics()

    def send(self, *frames: Frame, now_ns: int = WALL_NS) -> int:
        """Export; return the number of points."""
        batches = self.messages.build(frames, now_ns)
        counts = [self.decoded.add(batch.body) for batch in batches]
        assert counts == [batch.size for batch in batches]
        return sum(counts)

    def point(self, name: str = COUNTER.name, **labels: str) -> metrics_pb2.NumberDataPoint:
        """Return the last point of a series, by default that of the counter of the GPU."""
        point = self.decoded.points[
            sample(name, **(labels if labels or name[:5] == "site_" else {"gpu": "GPU-0"}))
        ]
        assert isinstance(point, metrics_pb2.NumberDataPoint)
        return point


@pytest.mark.parametrize("case", third_of(names()))
async def test_an_export_has_the_series_and_values_of_the_metrics_endpoint(case: str) -> None:
    """At each read of a capture: also where series begin, change and end."""
    capture = capture_of(case)
    clock = RecordedClock(capture.about)
    node = Agent(FULL, RecordedHost(capture, clock, lambda: clock.offset_ns), "n1")
    export = Export()
    kinds = set()
    for offset_ns in find_read_offsets(capture):
        clock.go_to(offset_ns)
        await node.once()
        export.send(*node.endpoint.fresh_frames(), now_ns=clock.now().wall_ns)
        assert export.decoded.samples == exported_samples(node.endpoint.text(TextFormat.PROMETHEUS))
        kinds |= {METRICS[name].kind for name in export.decoded.messages}
    assert kinds >= {MetricKind.COUNTER, MetricKind.GAUGE, MetricKind.STATE, MetricKind.INFO}


def test_all_kinds_have_the_values_of_the_page() -> None:
    histogram = metric(
        MetricKind.HISTOGRAM, about=entities.GPU_WINDOW, bounds=(Fraction(1, 2), Fraction(1)),
        scale=Fraction(1, 1000),
    )  # fmt: skip
    windows = [
        (histogram, Entity(entities.GPU_WINDOW, ("GPU-0", le)))
        for le in (*histogram.buckets, "sum")
    ]
    half = metric(MetricKind.GAUGE, scale=Fraction(1, 1000))
    info_gpu = Entity(entities.GPU, ("GPU-0",), {"model": 'H100 "SXM"', "index": "0"})
    for columns, readings in (
        ([(COUNTER, GPU)], [2**63 - 1]),
        ([(GAUGE, info_gpu)], [-5]),
        ([(half, GPU)], [1234567]),
        ([(STATE, GPU)], [1]),
        ([(STATE, GPU)], [7]),
        ([(SPARSE, GPU)], [0]),
        (windows, [1, 3, 7, 2500]),
        (windows, [Absent.NOT_DUE] * 4),
    ):
        export, read = Export(), frame(columns, readings)
        export.send(read)
        text = _page(read)
        assert export.decoded.samples == samples(text), text


def _page(*frames: Frame) -> str:
    """Lines of the samples; made-up metrics have no header."""
    lines = []
    for each in frames:
        template = ExpositionTemplate(each.schema, EVERYTHING)
        lines += template.render(each).values()
        lines += [line for of_metric in template.info.values() for line in of_metric.values()]
    return "".join(lines)


def test_names_and_units_result_in_the_names_of_the_catalog() -> None:
    for declared in METRICS.values():
        message_scope = metrics_pb2.ScopeMetrics()
        otlp_points.add_metric(message_scope, declared).add()
        assert prometheus_name(message_scope.metrics[0]) == declared.name


def test_kinds_are_those_of_the_data_model() -> None:
    scope = metrics_pb2.ScopeMetrics()
    info = next(each for each in METRICS.values() if each.kind is MetricKind.INFO)
    histogram = next(each for each in METRICS.values() if each.kind is MetricKind.HISTOGRAM)
    for declared in (COUNTER, GAUGE, STATE, info, histogram):
        otlp_points.add_metric(scope, declared).add()
    counter, *gauges, of_info, of_histogram = scope.metrics
    assert counter.sum.is_monotonic
    assert {
        counter.sum.aggregation_temporality,
        of_histogram.histogram.aggregation_temporality,
    } == {metrics_pb2.AGGREGATION_TEMPORALITY_CUMULATIVE}
    assert {each.WhichOneof("data") for each in (*gauges, of_info)} == {"gauge"}
    assert [(each.key, each.value.string_value) for each in of_info.metadata] == [
        ("prometheus.type", "info")
    ]


@pytest.mark.parametrize("value", [0, 5, 2**53 + 1, 2**63 - 1])
def test_integers_are_exact(value: int) -> None:
    export = Export()
    export.send(frame([(COUNTER, GPU)], [value]))
    assert (export.point().WhichOneof("value"), export.point().as_int) == ("as_int", value)


def test_a_number_beyond_signed_64_bits_is_a_double() -> None:
    export = Export()
    export.send(frame([(COUNTER, GPU)], [2**63]))
    assert export.point().as_double == float(2**63)
    export.send(frame([(COUNTER, GPU)], [2**63 + 4096], 1))
    assert export.point().as_double == float(2**63 + 4096)
    assert export.point().start_time_unix_nano == WALL_NS


def test_a_point_has_the_time_of_its_read_and_is_sent_once() -> None:
    export = Export()
    slow, fast = frame([(GAUGE, GPU)], [1], stream="a"), frame([(COUNTER, GPU)], [1], 2, "b")
    assert export.send(slow, fast) == 2
    assert export.point(GAUGE.name, gpu="GPU-0").time_unix_nano == WALL_NS
    assert export.point().time_unix_nano == WALL_NS + 2 * NS
    assert export.send(slow, frame([(COUNTER, GPU)], [1], 3, "b")) == 1
    assert export.send(slow) == 1  # the end of the counter
    assert export.send(slow) == 0


def test_the_start_of_a_counter_is_known_or_the_time_of_its_first_point() -> None:
    starts = {
        declare.AGENT_START: AGENT_NS,
        declare.BOOT_START: WALL_NS - BOOT_NS,
        "Unknown.": WALL_NS,
    }
    for resets, start_ns in starts.items():
        export, counter = Export(), metric(MetricKind.COUNTER, resets=resets)
        for second in range(3):
            export.send(frame([(counter, GPU)], [100 + second], second))
            assert export.point().start_time_unix_nano == start_ns
    counters = [each for each in METRICS.values() if each.kind is MetricKind.COUNTER]
    stated = {each.resets for each in counters} & starts.keys()
    assert stated == {declare.AGENT_START, declare.BOOT_START}


def test_a_counter_that_falls_has_a_new_start() -> None:
    export = Export()
    for second, value in enumerate((100, 200, 5, 6)):
        export.send(frame([(COUNTER, GPU)], [value], second))
    assert export.point().start_time_unix_nano == WALL_NS + 2 * NS


@pytest.mark.parametrize(("value", "start_second"), [(100, 0), (99, 2)])
def test_a_counter_that_was_absent_keeps_its_start_unless_it_fell(
    value: int, start_second: int
) -> None:
    export, columns = Export(), [(COUNTER, GPU)]
    for second, read in enumerate((100, Absent.TIMEOUT, value)):
        export.send(frame(columns, [read], second))
    assert export.point().start_time_unix_nano == WALL_NS + start_second * NS


def test_a_counter_keeps_its_start_when_the_schema_changes() -> None:
    export = Export()
    export.send(frame([(COUNTER, GPU)], [100]))
    other = (COUNTER, Entity(entities.GPU, ("GPU-1",)))
    export.send(frame([other, (COUNTER, GPU)], [7, 101], 1))
    assert export.decoded.ended == []
    assert export.point().start_time_unix_nano == WALL_NS
    assert export.point(gpu="GPU-1").start_time_unix_nano == WALL_NS + NS


def test_the_first_error_counts_from_the_last_read_without_one() -> None:
    export = Export()
    for second, value in enumerate((0, 0, 1)):
        export.send(frame([(SPARSE, GPU)], [value], second))
    point = export.point(SPARSE.name, gpu="GPU-0")
    assert point.as_int == 1
    assert point.start_time_unix_nano == WALL_NS + NS


def test_no_start_is_after_its_point_when_the_clock_is_set_back() -> None:
    export = Export()
    export.send(frame([(COUNTER, GPU)], [1], 100))
    for value in (1, 2):
        export.send(frame([(COUNTER, GPU)], [value], 50 + value))
        assert export.point().start_time_unix_nano == WALL_NS + 51 * NS


def test_a_series_that_ends_has_one_point_without_a_value() -> None:
    gone = sample(COUNTER.name, gpu="GPU-0")
    others = [(COUNTER, Entity(entities.GPU, ("GPU-1",)))]
    ends = {
        "absent": [frame([(COUNTER, GPU)], [Absent.GONE], 1)],
        "another schema": [frame(others, [1], 1)],
        "stale": [],
    }
    for frames in ends.values():
        export = Export()
        export.send(frame([(COUNTER, GPU)], [1]))
        export.send(*frames, now_ns=WALL_NS + NS)
        export.send(*frames, now_ns=WALL_NS + 2 * NS)
        assert export.decoded.ended == [gone]
        export.send(frame([(COUNTER, GPU)], [2], 3))
        assert export.decoded.samples[gone] == 2
        assert export.point().start_time_unix_nano == WALL_NS


def test_a_state_that_changes_ends_the_former_one() -> None:
    export = Export()
    for second, value in enumerate((0, 0, 1)):
        export.send(frame([(STATE, GPU)], [value], second))
    assert export.decoded.ended == [sample(STATE.name, gpu="GPU-0", state="idle")]
    assert export.decoded.samples == {sample(STATE.name, gpu="GPU-0", state="busy"): 1}


def test_a_series_that_another_source_continues_does_not_end() -> None:
    export = Export()
    export.send(frame([(GAUGE, GPU)], [1], stream="a"))
    export.send(frame([(GAUGE, GPU)], [2], 1, "b"))
    assert export.decoded.ended == []


def test_changed_facts_end_the_former_series_and_the_last_source_states_them() -> None:
    old, new = (Entity(entities.GPU, ("GPU-0",), {"vbios": text}) for text in ("96.1", "96.2"))
    export = Export()
    first = frame([(GAUGE, old)], [1], stream="a")
    export.send(first, frame([(COUNTER, old)], [1], stream="b"))
    export.send(first, frame([(COUNTER, new)], [1], 1, "b"))
    (info,) = (key for key in export.decoded.samples if key[0] == "railscope_gpu_info")
    assert ("vbios", "96.2") in info[1]
    assert [("vbios", "96.1") in key[1] for key in export.decoded.ended] == [True]


@hypothesis_settings(deadline=None)
@given(st.lists(st.lists(st.none() | st.integers(0, 3), min_size=4, max_size=4), max_size=8))
def test_any_sequence_of_reads_has_the_samples_of_the_page(
    reads: list[list[int | None]],
) -> None:
    other = Entity(entities.GPU, ("GPU-1",))
    columns = [(COUNTER, GPU), (COUNTER, other), (SPARSE_GAUGE, GPU), (STATE, GPU)]
    export = Export()
    for second, values in enumerate(reads):
        read = frame(columns, [Absent.ERROR if each is None else each for each in values], second)
        export.send(read)
        assert export.decoded.samples == samples(_page(read))
        for point in export.decoded.points.values():
            assert point.start_time_unix_nano <= point.time_unix_nano == read.timestamp.wall_ns


def test_an_export_above_the_bound_is_divided() -> None:
    gpus = [Entity(entities.GPU, (f"GPU-{number}",)) for number in range(100)]
    gauges = [
        replace(GAUGE, name=f"railscope_gpu_made_up_{i}", help="x" * 1_000_000 + ".")
        for i in range(9)
    ]
    columns = [(each, gpu) for each in gauges for gpu in gpus]
    export = Export()
    assert export.send(frame(columns, range(900))) == 900
    assert len(export.decoded.samples) == 900
    assert len(export.decoded.resources) == 3


TEXTFILE = """\
# HELP site_jobs_total Jobs.
# TYPE site_jobs_total counter
site_jobs_total{queue="a\\\\b\\"c\\nd"} 9007199254740993
# TYPE site_done counter
site_done 5
# TYPE site_load gauge
site_load{a="1",b="x,y}"} -1.5e-3
site_load{a="2",b=""} NaN
# TYPE site_wait histogram
site_wait_bucket{le="0.5"} 1
site_wait_bucket{le="+Inf"} 3
site_wait_sum 2.5
site_wait_count 3
# TYPE site_size summary
site_size{quantile="0.5"} 4
site_size_sum 40
site_size_count 10
site_untyped 18446744073709551615
"""


def test_series_of_textfiles_have_their_own_names_and_exact_values(tmp_path: Path) -> None:
    directory, export = TextfileDirectory(tmp_path), Export()
    directory.write({"site.prom": TEXTFILE})
    read = directory.read()
    export.send(read)
    page = samples(page_of(read))
    page[sample("site_done")] = page.pop(sample("site_done_total"))  # a name that the parser makes
    sent = export.decoded.samples
    absent = {key for key in sent if math.isnan(sent[key])}
    assert absent == {sample("site_load", a="2")}
    assert sent.keys() == page.keys()
    assert {key for key in page if float(sent[key]) != float(page[key])} == absent
    point = export.point("site_jobs_total", queue='a\\b"c\nd')
    assert point.as_int == 9007199254740993
    assert export.decoded.messages["site_jobs_total"].sum.is_monotonic
    assert export.decoded.messages["site_jobs_total"].description == "Jobs."


def test_a_counter_of_a_textfile_has_a_start_until_it_falls_or_ends(tmp_path: Path) -> None:
    directory, export = TextfileDirectory(tmp_path), Export()
    starts = []
    for second, text in enumerate(("7", "9", "2", "", "3")):
        content = f"# TYPE site_jobs_total counter\nsite_jobs_total {text}\n" if text else ""
        directory.write({"site.prom": content} if text else {})
        export.send(directory.read())
        if text:
            start_ns = export.point("site_jobs_total").start_time_unix_nano
            starts.append((start_ns - START.wall_ns) // NS)
        else:
            assert sample("site_jobs_total") in export.decoded.ended
        assert second < 5
        directory.clock.advance(1)
    assert starts == [0, 0, 2, 2]
