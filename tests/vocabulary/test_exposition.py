"""Expositions: the text, exact numbers, and the results of Prometheus' own parsers."""

from __future__ import annotations

from array import array
from pathlib import Path

import pytest
from hypothesis import assume, given, strategies as st
from support.frames import STORED, runs
from support.metric_samples import Sample, sample, samples

from railscope.catalog import METRICS, agent, bursts, gpu, host, nic, nvlink, pcie, rdma, rollups
from railscope.catalog.declare import SUM, Metric, MetricKind
from railscope.catalog.entities import (
    GPU,
    GPU_CLOCK,
    NIC,
    NIC_PRIORITY,
    NIC_WINDOW,
    NODE,
    NVLINK_ERROR,
    PCIE,
    RDMA_PORT,
    SOURCE,
    TEXTFILE_SERIES,
)
from railscope.exposition import (
    Exposition,
    TextFormat,
    entity_prefix,
    number,
    render_blocks,
)
from railscope.frame import Entity, Frame, FrameOrigin, NodeTimestamp, Schema
from railscope.reading import Absent, Reading, from_stored, to_stored

PAGES = Path(__file__).parent / "pages"
ORIGIN = FrameOrigin("node-1", "run-1", "boot-1")
ODD = 'slot "A"\\1 mezzanine é'
SENT = rdma.COUNTER_FILES["port_xmit_data"]
EVERY_METRIC = st.sampled_from(
    [m for m in METRICS.values() if m.kind not in {MetricKind.INFO, MetricKind.HISTOGRAM}]
)
FORMATS = pytest.mark.parametrize(
    "text_format", TextFormat, ids=[form.name.lower() for form in TextFormat]
)

Cell = tuple[Metric, Entity, Reading]


def frame_of(*cells: Cell, columnless_entities: tuple[Entity, ...] = ()) -> Frame:
    columns = [(metric, entity) for metric, entity, _ in cells]
    order = Schema.ordered(columns)
    found = [cells[position][2] for position in order]
    reasons = bytes(r.value if isinstance(r, Absent) else 0 for r in found)
    values = array("q", [0 if isinstance(r, Absent) else to_stored(r) for r in found])
    schema = Schema("test", tuple(columns[position] for position in order), columnless_entities)
    return Frame(ORIGIN, schema, 1, NodeTimestamp(1, 1), values, reasons if any(reasons) else b"")


def paused_windows(direction: str, buckets: list[int], millionths: int) -> list[Cell]:
    """A histogram of windows by the share of them in which a port was paused."""
    series = zip([*bursts.NIC_PAUSE.buckets, SUM], [*buckets, millionths], strict=True)
    return [
        (bursts.NIC_PAUSE, Entity(NIC_WINDOW, ("ens1", direction, part)), value)
        for part, value in series
    ]


def every_kind() -> list[Frame]:
    """Each kind of metric, each way to scale it, and texts that need escaping."""
    adapter = Entity(GPU, ("GPU-1",), {"index": "0", "model": ODD, "rail": "0"})
    other = Entity(GPU, ("GPU-2",), {"index": "1", "model": "H100"})
    port = Entity(RDMA_PORT, ("mlx5_0", "1"), {"firmware": "28.39", "rail": "0"})
    node = Entity(NODE, (), {"hostname": "node-1"})
    return [
        frame_of(
            (gpu.GPU_UTILIZATION, adapter, 37),
            (gpu.GPU_UTILIZATION, other, Absent.UNSUPPORTED),
            (gpu.GPU_MEMORY_USED, adapter, 85_520_809_984),
            (gpu.GPU_MEMORY_FREE, adapter, Absent.DENIED),
            (gpu.GPU_POWER, adapter, 631_950),
            (gpu.GPU_ENERGY, adapter, 2**64 - 1),
            (gpu.GPU_CLOCK_SPEED, adapter.child(GPU_CLOCK, "sm"), 1_980),
        ),
        frame_of((SENT, port, 2**64 - 1), (rdma.RDMA_STATE, port, 4), (rdma.RDMA_UP, port, 1)),
        frame_of(
            (pcie.PCIE_SPEED, Entity(PCIE, ("0000:3b:00.0",), {"role": "gpu"}), 32_000),
            (nic.PFC_RECEIVED_TIME, Entity(NIC_PRIORITY, (ODD, "3")), 1_500_001),
            (host.LOAD_AVERAGE, Entity(host.LOAD_AVERAGE.about, ("1m",)), 2),
            (agent.SOURCE_STATE, Entity(SOURCE, ("gpu",)), 4),
            *paused_windows("receive", [3, 3, 4, 4, 4, 4, 4, 4, 7], 3_250_000),
            *paused_windows("transmit", [9] * 9, 0),
            columnless_entities=(node, Entity(NIC, ("ens1",), {"driver": "mlx5_core"})),
        ),
    ]


@FORMATS
def test_the_page_is_what_it_was(text_format: TextFormat) -> None:
    expected = (PAGES / f"every_kind.{text_format.name.lower()}").read_text()
    assert Exposition().render(every_kind(), text_format) == expected


@FORMATS
def test_prometheus_reads_the_page(text_format: TextFormat) -> None:
    found = samples(Exposition().render(every_kind(), text_format))
    assert found[sample("railscope_gpu_power_watts", gpu="GPU-1")] == 631.95
    assert found[sample("railscope_node_info", hostname="node-1", kernel="", agent_version="")] == 1
    paused = sample("railscope_nic_receive_pfc_pause_seconds_total", interface=ODD, priority="3")
    assert found[paused] == 1.500001
    windows = {"interface": "ens1", "direction": "receive"}
    assert found[sample("railscope_nic_burst_pause_ratio_bucket", **windows, le="0.05")] == 4
    assert found[sample("railscope_nic_burst_pause_ratio_bucket", **windows, le="+Inf")] == 7
    assert found[sample("railscope_nic_burst_pause_ratio_count", **windows)] == 7
    assert found[sample("railscope_nic_burst_pause_ratio_sum", **windows)] == 3.25
    states = [
        (dict(labels)["state"], value)
        for (name, labels), value in found.items()
        if name == "railscope_rdma_port_state"
    ]
    assert states == [("active", 1)]


@FORMATS
@given(frames=runs())
def test_any_frame_makes_a_page_that_parses(text_format: TextFormat, frames: list[Frame]) -> None:
    last = frames[-1]
    assume(all(metric.kind is not MetricKind.HISTOGRAM for metric, _ in last.schema.columns))
    # Series of textfiles have their own names.
    assume(all(metric.about is not TEXTFILE_SERIES for metric, _ in last.schema.columns))
    text = Exposition().render([last], text_format)
    found = samples(text)
    present = [
        (metric, entity)
        for (metric, entity, reading), stored in zip(last.readings(), last.values, strict=True)
        if not isinstance(reading, Absent) and metric.kind is not MetricKind.STATE
        if stored or not metric.sparse
    ]
    for metric, entity in present:
        labels = dict(zip(entity.kind.labels, entity.key, strict=True))
        assert sample(metric.name, **labels) in found
    plain = [
        name for name, _ in found if METRICS[name].kind not in {MetricKind.STATE, MetricKind.INFO}
    ]
    assert len(plain) == len(present)


def test_zeros_of_a_sparse_metric_are_omitted_until_they_change() -> None:
    link = Entity(GPU, ("GPU-1",)).child(NVLINK_ERROR, "3", "replay")
    other = Entity(GPU, ("GPU-1",)).child(NVLINK_ERROR, "4", "replay")
    exposition = Exposition()

    def errors(*counts: Reading) -> dict[Sample, float]:
        cells = zip((link, other), counts, strict=True)
        frame = frame_of(*((nvlink.NVLINK_ERRORS, *cell) for cell in cells))
        return samples(exposition.render([frame], TextFormat.PROMETHEUS))

    seventh = sample("railscope_nvlink_errors_total", gpu="GPU-1", link="4", error="replay")
    assert errors(0, 0) == {}
    assert errors(0, 7) == {seventh: 7.0}
    assert errors(Absent.TIMEOUT, 7) == {seventh: 7.0}
    assert errors(0, Absent.GONE) == {}


@given(EVERY_METRIC, STORED)
def test_numbers_are_exact(metric: Metric, stored: int) -> None:
    value = from_stored(stored, counter=metric.kind is MetricKind.COUNTER) * metric.scale
    text = number(metric, stored)
    if metric.scale.denominator == 1:
        assert text == str(value)
    else:
        assert float(text) == float(value), "the nearest float there is"


@given(
    EVERY_METRIC.filter(
        # The page has the series of textfiles under names of their own, and omits zeros of sparse metrics.
        lambda m: m.kind is not MetricKind.STATE and m.about is not TEXTFILE_SERIES and not m.sparse
    ),
    st.lists(STORED, min_size=1),
)
def test_the_page_prints_the_same_numbers(metric: Metric, stored: list[int]) -> None:
    """The fast path of an exposition agrees with the plain one."""
    width = len(metric.about.labels)
    entities = [Entity(metric.about, (str(place),) * width) for place in range(len(stored))]
    if not width:
        entities, stored = entities[:1], stored[:1]
    counter = metric.kind is MetricKind.COUNTER
    cells: list[Cell] = [
        (metric, entity, from_stored(value, counter=counter))
        for entity, value in zip(entities, stored, strict=True)
    ]
    lines = Exposition().render([frame_of(*cells)], TextFormat.PROMETHEUS).splitlines()
    assert [line.rsplit(" ", 1)[1] for line in lines[2:]] == [number(metric, v) for v in stored]


@FORMATS
def test_every_metric_and_rollup_has_a_header_that_parses(text_format: TextFormat) -> None:
    plain = [metric for metric in METRICS.values() if metric.kind is not MetricKind.HISTOGRAM]
    every = [*plain, *(derived.metric for derived in rollups().values())]
    blocks = {}
    for metric in every:
        entity = Entity(metric.about, ("x",) * len(metric.about.labels))
        blocks[metric.name] = entity_prefix(metric, entity) + "1\n"
    assert len(samples(render_blocks(blocks, text_format))) == len(every)


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("", TextFormat.PROMETHEUS),
        ("*/*", TextFormat.PROMETHEUS),
        ("text/plain;version=0.0.4;q=0.5,*/*;q=0.1", TextFormat.PROMETHEUS),
        ("application/openmetrics-text;version=1.0.0,text/plain;q=0.5", TextFormat.OPENMETRICS),
    ],
)
def test_openmetrics_is_returned_if_requested(accept: str, expected: TextFormat) -> None:
    assert TextFormat.negotiate(accept) is expected
