"""Envelopes: packed numbers and texts are unpacked unchanged."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

import numpy as np
from hypothesis import given, strategies as st
from support.frames import CLOCK, runs
from support.schemas import parts_of

from railscope import batch_encoding, wire
from railscope.catalog import METRICS, gpu, host
from railscope.catalog.entities import DISK, GPU, GPU_PROCESS
from railscope.envelopes import decode_shape, unpack
from railscope.frame import Entity, Frame, FrameOrigin, NodeTimestamp, Schema
from railscope.reading import Absent, from_stored, to_stored
from railscope.shapes import SchemaTable, schema_parts
from railscope_collector.fleet import sheets
from railscope_collector.fleet.shape_columns import columns_of

PLENTY = 1 << 24
UINT64_MAX = (1 << 64) - 1
ORIGIN = FrameOrigin("node-1", "run-1", "boot-1")
ENERGY = Schema("gpu", ((gpu.GPU_ENERGY, Entity(GPU, ("GPU-1",))),))

FrameContent = tuple[object, ...]


def sent(frames: Sequence[Frame]) -> list[FrameContent]:
    """Content of the frames."""
    return [
        (
            frame.schema.stream,
            [
                (metric.name, metric.scale.as_integer_ratio(), wire.to_wire_entity(entity))
                for metric, entity in frame.schema.columns
            ],
            set(map(str, map(wire.to_wire_entity, frame.schema.entities))),
            frame.sequence,
            frame.timestamp,
            frame.values,
            frame.reasons,
            [
                (e.event_class.name, wire.to_wire_entity(e.entity), e.wall_ns, e.boot_ns, e.facts)
                for e in frame.events
            ],
        )
        for frame in frames
    ]


def received(frames: Sequence[Frame]) -> list[FrameContent]:
    """Content of the frames for the receiver of the request that contained them."""
    batches = batch_encoding.encode_batches(frames)
    sealed = wire.envelope(frames[0].origin, batches, parts_of(frames), agent_version="1")
    opened = unpack(wire.pack(sealed), PLENTY)
    assert (opened.node, opened.run, opened.boot_id) == (
        frames[0].origin.node,
        frames[0].origin.run,
        frames[0].origin.boot_id,
    )
    table = SchemaTable()
    table.add(opened)
    return [reported for batch in opened.batches for reported in rows(batch, table[batch.schema])]


def values_of(batch: wire.Batch, width: int) -> list[array[int]]:
    """All rows, as the collector decodes them."""
    found = sheets.rows_at(batch, range(batch.rows), np.arange(width), width)
    return [array("q", row) for row in found.tolist()]


def rows(batch: wire.Batch, schema: wire.WireSchema) -> Iterator[FrameContent]:
    sheets.check_batch(batch, schema.width, batch.rows)
    used = [
        (column, (group.metric, group.scale, schema.entities[member]))
        for column, group, member in columns_of(schema)
    ]
    columns = [column for column, _ in used]
    for row, values in enumerate(values_of(batch, schema.width)):
        codes = sheets.reasons_of(batch, row, schema.width)
        unused = np.setdiff1d(np.arange(schema.width), columns)
        assert (codes[unused] == Absent.UNSUPPORTED.value).all(), "columns in reserve have no value"
        reasons = codes[np.array(columns, np.intp)].tobytes()
        yield (
            batch.stream,
            [column for _, column in used],
            set(map(str, schema.entities)),
            batch.first_sequence + row,
            NodeTimestamp(batch.wall_ns[row], batch.boot_ns[row], batch.uncertainty_ns),
            array("q", [values[column] for column in columns]),
            reasons if any(reasons) else b"",
            [
                (e.name, e.entity, e.wall_ns, e.boot_ns, e.facts)
                for e in batch.events
                if e.row == row
            ],
        )


def frames_of(schema: Schema, *values: int, first: int = 1) -> list[Frame]:
    """Frames with one column, a second apart."""
    return [
        Frame(
            ORIGIN,
            schema,
            first + place,
            NodeTimestamp(place, place),
            array("q", [to_stored(value)]),
        )
        for place, value in enumerate(values)
    ]


@given(runs())
def test_frames_survive_the_wire(frames: list[Frame]) -> None:
    assert received(frames) == sent(frames)


@given(st.lists(st.integers(0, UINT64_MAX), min_size=1, max_size=6))
def test_counters_keep_all_64_bits(counts: list[int]) -> None:
    (batch,) = batch_encoding.encode_batches(frames_of(ENERGY, *counts))
    arrived = [from_stored(row[0], counter=True) for row in values_of(batch, 1)]
    assert arrived == counts


def test_columns_that_stand_still_cost_one_bit() -> None:
    disks = tuple((host.DISK_READS, Entity(DISK, (str(number),))) for number in range(100))
    schema, still = Schema("host", disks), array("q", range(100))
    frames = [Frame(ORIGIN, schema, n, NodeTimestamp(n, n), still) for n in range(1, 9)]
    (batch,) = batch_encoding.encode_batches(frames)
    assert (batch.steps, len(batch.changed), any(batch.changed)) == (b"", 13, False)


def test_the_rail_of_a_part_is_the_rail_of_the_whole() -> None:
    whole = Entity(GPU, ("GPU-1",), {"rail": "3"})
    schema = Schema(
        "gpu",
        (
            (gpu.GPU_ENERGY, whole),
            (gpu.GPU_CLOCK_SPEED, Entity(gpu.GPU_CLOCK_SPEED.about, ("GPU-1", "sm"))),
            (gpu.GPU_CLOCK_SPEED, Entity(gpu.GPU_CLOCK_SPEED.about, ("GPU-2", "sm"))),
        ),
    )
    shape = decode_shape(schema_parts(schema).shape)
    assert [shape.rails[slot.name] for slot in shape.slots] == [3, 3, -1]


def test_the_shape_forgets_serial_numbers_and_keeps_rails() -> None:
    def shape(uuid: str, rail: str) -> bytes:
        entity = Entity(GPU, (uuid,), {"rail": rail, "serial": uuid})
        return schema_parts(Schema("gpu", ((gpu.GPU_ENERGY, entity),))).shape_hash

    assert shape("GPU-1", "0") == shape("GPU-2", "0") != shape("GPU-1", "1")


def processes(counts: Sequence[int], prefix: str) -> Schema:
    """Memory and time of so many processes on each GPU."""
    metrics = [metric for metric in METRICS.values() if metric.about is GPU_PROCESS]
    entities = [
        Entity(GPU_PROCESS, (f"{prefix}-{number}", f"{prefix}{process}"), {"context": prefix})
        for number, count in enumerate(counts)
        for process in range(count)
    ]
    return Schema("processes", tuple((metric, entity) for metric in metrics for entity in entities))


@given(st.lists(st.lists(st.integers(0, 8), min_size=8, max_size=8), min_size=200, max_size=200))
def test_processes_that_start_and_end_are_few_shapes(nodes: list[list[int]]) -> None:
    hashes = {
        schema_parts(processes(counts, f"n{number}")).shape_hash
        for number, counts in enumerate(nodes)
    }
    assert len(hashes) <= 8


@given(CLOCK, CLOCK, st.text("0123456789abcdef-", max_size=36))
def test_the_clocks_of_sending_survive_their_header(wall: int, boot: int, boot_id: str) -> None:
    clocks = wire.SentAt(wall, boot, boot_id)
    assert wire.SentAt.from_header(clocks.to_headers()[wire.SENT_HEADER]) == clocks


def test_age_follows_the_boot_clock_of_the_same_boot_and_the_wall_clock_of_another() -> None:
    clocks = wire.SentAt(wall_ns=1_000, boot_ns=500, boot_id="now")
    assert clocks.age_ns("now", wall_ns=5_000, boot_ns=200) == 300
    assert clocks.age_ns("before", wall_ns=400, boot_ns=900) == 600
    assert clocks.age_ns("before", wall_ns=2_000, boot_ns=0) == 0
