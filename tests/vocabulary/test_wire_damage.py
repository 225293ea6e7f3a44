"""A damaged or hostile body is rejected with a WireError and no other exception."""

from __future__ import annotations

import sys
import tracemalloc
from array import array

import msgspec
import numpy as np
import pytest
from hypothesis import given, strategies as st
from support.frames import runs
from support.schemas import parts_of

from railscope import batch_encoding, wire
from railscope.catalog import gpu
from railscope.catalog.entities import GPU
from railscope.envelopes import decode_names, unpack
from railscope.frame import Entity, Frame, FrameOrigin, NodeTimestamp, Schema
from railscope_collector.fleet import sheets
from railscope_collector.fleet.names import NodeNames
from railscope_collector.fleet.shapes import KnownShape

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

MAX_BYTES = 1 << 20
MEBIBYTE = 1 << 20
COLUMNS = 3
SCHEMA = Schema("gpu", tuple((gpu.GPU_ENERGY, Entity(GPU, (f"GPU-{n}",))) for n in range(COLUMNS)))
HEAD = {"version": wire.VERSION, "node": "n", "run": "r", "boot_id": "b"}


def make_body() -> bytes:
    origin = FrameOrigin("node-1", "run-1", "boot-1")
    frames = [
        Frame(origin, SCHEMA, n, NodeTimestamp(n, n), array("q", [n, n * n, 7]))
        for n in range(1, 9)
    ]
    batches = batch_encoding.encode_batches(frames)
    return wire.pack(wire.envelope(origin, batches, parts_of(frames), agent_version="1"))


BODY = make_body()


def packed(raw: bytes) -> bytes:
    return wire.MAGIC + zstd.compress(raw)


def open_as_far_as_it_goes(body: bytes) -> None:
    """Process a body as a receiver does; only WireError may be raised."""
    try:
        sealed = unpack(body, MAX_BYTES)
        for content in sealed.shapes:
            KnownShape.from_content(content, COLUMNS)
        for content in sealed.names:
            NodeNames.from_rows(decode_names(content), content, b"")
        for batch in sealed.batches:
            sheets.check_batch(batch, COLUMNS, MAX_BYTES)
            sheets.rows_at(batch, range(batch.rows), np.arange(COLUMNS), COLUMNS)
    except wire.WireError:
        return


def test_the_whole_body_is_accepted() -> None:
    assert unpack(BODY, MAX_BYTES).batches[0].rows == 8


def test_a_cut_body_is_rejected() -> None:
    for length in range(len(BODY)):
        with pytest.raises(wire.WireError):
            unpack(BODY[:length], MAX_BYTES)


@given(st.integers(0, len(BODY) - 1), st.integers(1, 255))
def test_a_flipped_byte_never_crashes_the_receiver(place: int, flip: int) -> None:
    damaged = bytearray(BODY)
    damaged[place] ^= flip
    open_as_far_as_it_goes(bytes(damaged))


@given(st.data())
def test_a_flip_under_the_compression_never_crashes_the_receiver(data: st.DataObject) -> None:
    raw = bytearray(zstd.decompress(BODY[len(wire.MAGIC) :]))
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    open_as_far_as_it_goes(packed(bytes(raw)))


ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.binary(max_size=9)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abz", max_size=3), inner),
)


@given(st.dictionaries(st.sampled_from(wire.Envelope.__struct_fields__), ANYTHING))
def test_fields_of_any_other_type_are_rejected(fields: dict[str, object]) -> None:
    open_as_far_as_it_goes(packed(msgspec.msgpack.encode({**HEAD, **fields})))


def test_another_version_is_named_even_when_its_shape_is_unknown() -> None:
    body = packed(msgspec.msgpack.encode({"version": 3, "batches": "another shape"}))
    with pytest.raises(wire.WireVersionError, match="envelope version: 3: expected 2"):
        unpack(body, MAX_BYTES)


def test_unknown_fields_are_ignored() -> None:
    body = packed(msgspec.msgpack.encode({**HEAD, "new": [1, {"a": b"b"}]}))
    assert unpack(body, MAX_BYTES).node == "n"


def test_endless_nesting_is_rejected() -> None:
    raw = msgspec.msgpack.encode(HEAD | {"new": None}).replace(b"\xc0", b"\x91" * 99_999 + b"\xc0")
    with pytest.raises(wire.WireError, match="invalid envelope"):
        unpack(packed(raw), MAX_BYTES)


def test_a_list_that_claims_billions_of_items_costs_nothing() -> None:
    raw = msgspec.msgpack.encode(HEAD | {"batches": None}).replace(b"\xc0", b"\xdd" + b"\xff" * 4)
    assert peak_memory_of_rejection(packed(raw), "invalid envelope") < MEBIBYTE


def test_a_bomb_is_not_decompressed() -> None:
    compressor = zstd.ZstdCompressor()
    blocks = [compressor.compress(bytes(MEBIBYTE)) for _ in range(256)]
    bomb = wire.MAGIC + b"".join(blocks) + compressor.flush()
    assert len(bomb) < MEBIBYTE
    assert peak_memory_of_rejection(bomb, f"at most {MAX_BYTES} bytes") < 8 * MEBIBYTE


def peak_memory_of_rejection(body: bytes, match: str) -> int:
    """Reject a body and return the peak memory of that."""
    tracemalloc.start()
    try:
        with pytest.raises(wire.WireError, match=match):
            unpack(body, MAX_BYTES)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("group", "message"),
    [
        (wire.WireGroup(gpu.GPU_ENERGY.name, (1, 1), (0,)), "run the same version"),
        (wire.WireGroup(gpu.GPU_ENERGY.name, (1, 1000), (1,)), "column without a slot"),
        (wire.WireGroup(gpu.GPU_ENERGY.name, (1, 1000), (-1,)), "column without a slot"),
    ],
    ids=["other scale", "slot beyond the list", "negative slot"],
)
def test_a_shape_that_fits_no_catalog_is_rejected(group: wire.WireGroup, message: str) -> None:
    shape = wire.Shape("gpu", (group,), (wire.Slot("gpu", 0),), (-1,))
    with pytest.raises(wire.WireError, match=message):
        KnownShape.from_content(wire.encode_part(shape), COLUMNS)


@given(runs(), st.data())
def test_parts_that_contradict_each_other_are_rejected(
    frames: list[Frame], data: st.DataObject
) -> None:
    batch = batch_encoding.encode_batches(frames)[0]
    width = len(frames[0].schema.columns)
    sheets.check_batch(batch, width, batch.rows)
    part = data.draw(st.sampled_from(["base", "changed", "steps", "reasons"]))
    longer = msgspec.structs.replace(
        batch, **{part: getattr(batch, part) + bytes(width * batch.rows + 1)}
    )
    with pytest.raises(wire.WireError, match="invalid lengths of its arrays"):
        sheets.check_batch(longer, width, batch.rows)


@pytest.mark.parametrize(
    "change",
    [{"first_sequence": 0}, {"wall_ns": ()}, {"boot_ns": (1,)}, {"changed": b"\x08"}],
    ids=str,
)
def test_a_batch_without_rows_clocks_or_sequence_is_rejected(change: dict[str, object]) -> None:
    batch = unpack(BODY, MAX_BYTES).batches[0]
    with pytest.raises(wire.WireError, match="expected those of 3 columns"):
        sheets.check_batch(msgspec.structs.replace(batch, **change), COLUMNS, MAX_BYTES)
