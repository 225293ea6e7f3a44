"""Shapes and names are bounded, stored as rows, and released when nothing refers to them."""

from __future__ import annotations

from pathlib import Path

import msgspec
from makers import FrameSender, gpu_schema
from running_collector import gpu_frames, run_collector, settings_in
from support.schemas import known_schema, schemas_in, store_parts

from railscope import wire1
from railscope.shapes import join, schema_parts, split
from railscope.wire import (
    VERSION,
    Batch,
    Envelope,
    NameRows,
    Shape,
    Slot,
    WireEntity,
    WireSchema,
    content_hash,
    encode_part,
)
from railscope_collector.config import FrameLogSettings, IngestLimits
from railscope_collector.fleet import schemas as stored
from railscope_collector.fleet.schemas import SchemaReader, StoredSchemas


def send(schemas: StoredSchemas, node: str, names: NameRows, shape: Shape | None = None) -> bytes:
    """Store a list of a node, and a shape; return the hash of the list."""
    content = encode_part(names)
    shapes = (encode_part(shape),) if shape else ()
    store_parts(schemas, Envelope(VERSION, node, "r", "b", shapes, (content,)))
    return content_hash(content)


def rows_in(schemas: StoredSchemas, table: str) -> set[bytes]:
    """Hashes of the rows of a table."""
    query = f"SELECT hash FROM {table}"  # noqa: S608 - of constants
    return {digest for (digest,) in schemas._store.read(query)}  # noqa: SLF001


def test_the_oldest_lists_of_a_node_are_forgotten(tmp_path: Path):
    schemas = schemas_in(tmp_path)
    shared = send(schemas, "n1", (WireEntity("gpu", ("G",)),))
    assert send(schemas, "n2", (WireEntity("gpu", ("G",)),)) == shared
    hashes = [
        send(schemas, "n1", (WireEntity("gpu", (f"G{n}",)),))
        for n in range(stored.MAX_LISTS_PER_NODE)
    ]
    assert rows_in(schemas, "names") == {shared, *hashes}, "another node uses the shared one"
    more = send(schemas, "n1", (WireEntity("gpu", ("G-1",)),))
    assert rows_in(schemas, "names") == {shared, *hashes[1:], more}
    large = [
        send(schemas, "n1", tuple(WireEntity("gpu", (f"{n} {i}" + "x" * 240,)) for i in range(900)))
        for n in range(6)
    ]
    kept = rows_in(schemas, "names")
    assert (kept & set(large), kept & set(hashes)) == (set(large[2:]), set())


def test_frames_of_a_forgotten_list_are_read_by_a_restart(tmp_path: Path):
    parts = schema_parts(gpu_schema("n1"))
    identity = parts.shape_hash + parts.names_hash
    schemas = schemas_in(tmp_path)
    schemas.segment = 7
    envelope = Envelope(VERSION, "n1", "r", "b", (parts.shape,), (parts.names,))
    store_parts(schemas, envelope)
    schemas.record_uses("n1", [schemas.get(identity)])
    for number in range(stored.MAX_LISTS_PER_NODE):
        send(schemas, "n1", (WireEntity("gpu", (f"G{number}",)),))
    batch = Batch("gpu", parts.shape_hash, parts.names_hash, 1, (1,), (1,), b"", b"")
    assert schemas.find_unknown([batch]).names == [parts.names_hash], "new frames need it again"
    again = schemas_in(tmp_path)
    assert again.get(identity)
    again.release_unused(8, set())
    assert again.get(identity)
    again.release_unused(9, set())
    assert again.get(identity) is None
    store_parts(schemas, envelope)
    assert schemas.find_unknown([batch]).names == []


def test_shapes_of_all_nodes_are_bounded(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(stored, "MAX_SHAPES", 5)
    schemas = schemas_in(tmp_path)
    shapes = [Shape("s", (), (Slot("unknown", -1, (str(n),)),), ()) for n in range(9)]
    hashes = [content_hash(encode_part(shape)) for shape in shapes]
    schemas.shown_shapes = lambda: {hashes[0]}
    for number, shape in enumerate(shapes):
        schemas.segment = number
        send(schemas, "n1", (), shape)
    assert rows_in(schemas, "shapes") == {hashes[0], *hashes[5:]}, "the first one has a row"


def test_rows_are_read_again_and_deleted_with_the_segments_that_use_them(tmp_path: Path):
    parts = schema_parts(gpu_schema("n1"))
    identity = parts.shape_hash + parts.names_hash
    schemas = schemas_in(tmp_path)
    schemas.segment = 7
    store_parts(schemas, Envelope(VERSION, "n1", "r", "b", (parts.shape,), (parts.names,)))
    schemas.record_uses("n1", [schemas.get(identity)])
    for segment, is_known in ((7, True), (8, True), (9, False)):
        again = schemas_in(tmp_path)
        again.release_unused(segment, set())
        assert (again.get(identity) is not None) == is_known
    assert rows_in(again, "names") == rows_in(again, "shapes") == set()


def test_another_process_reads_what_the_collector_stores(tmp_path: Path):
    parts = schema_parts(gpu_schema("n1"))
    schemas, reader = schemas_in(tmp_path), SchemaReader(tmp_path)
    store_parts(schemas, Envelope(VERSION, "n1", "r", "b", (parts.shape,), (parts.names,)))
    identity = parts.shape_hash + parts.names_hash
    assert reader.read(identity) == schemas.read(identity) == known_schema(gpu_schema("n1")).join()


def test_the_schemas_of_the_previous_release_are_read_once(tmp_path: Path):
    def former(number: int) -> WireSchema:
        return WireSchema("gpu", (), (WireEntity("gpu", (f"G{number}",), {"rail": "3"}),))

    contents = [msgspec.msgpack.encode(former(number)) for number in range(3)]
    directory = tmp_path / "schemas"
    directory.mkdir()
    (directory / "a.schema").write_bytes(contents[0])
    (directory / "b.schemas").write_bytes(msgspec.msgpack.encode(contents[1:]))
    (directory / "c.schema").write_bytes(b"damaged")
    for _ in range(2):
        schemas = schemas_in(tmp_path)
        assert [schemas.read(content_hash(content)) for content in contents] == list(
            map(former, range(3))
        )
        assert len(schemas) == 1, "they have one shape"
        assert not directory.exists()
    assert len(list((tmp_path / "schemas.before").iterdir())) == 3


def test_a_schema_of_version_1_is_divided_without_a_change():
    schema = known_schema(gpu_schema("n1")).join()
    shape, names = wire1.split_schema(msgspec.msgpack.encode(schema))
    assert (shape, names) == tuple(map(encode_part, split(schema, reserve=False)[:2]))
    decoded = (
        msgspec.msgpack.decode(shape, type=Shape),
        msgspec.msgpack.decode(names, type=NameRows),
    )
    assert join(*decoded) == schema


async def test_names_that_were_released_are_requested_again(tmp_path: Path):
    sender = FrameSender()
    settings = settings_in(
        tmp_path, frame_log=FrameLogSettings(segment_bytes=1 << 16), limits=IngestLimits()
    )
    async with run_collector(settings) as running:
        assert (await running.post(sender.body(gpu_frames(sender), schemas=True)))[0] == 200
        core = running.collector.core
        identity = core.fleet.nodes["n1"].rows["gpu"].schema.digest
        core.schemas.release_unused(100, core.fleet.schemas())
        assert core.schemas.get(identity), "it is the present state"
        row = core.fleet.nodes["n1"].rows.pop("gpu")
        row.sheet.release(row.block, row.index)
        core.fleet.drop_empty_sheets()
        assert list(core.fleet.blocks()) == []
        core.schemas.release_unused(100, core.fleet.schemas())
        status, reply = await running.post(sender.body(gpu_frames(sender, at=3)))
        wanted = [reply["unknown_shapes"], reply["unknown_names"]]
        assert (status, wanted) == (409, [[identity[:16].hex()], [identity[16:].hex()]])
        assert (await running.post(sender.body(gpu_frames(sender, at=3), schemas=True)))[0] == 200
