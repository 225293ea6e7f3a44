"""Schemas are bounded by node, and released when nothing refers to them."""

from __future__ import annotations

import sys
from pathlib import Path
from threading import Thread

import pytest
from makers import FrameSender
from running_collector import gpu_frames, run_collector, settings_in
from support.disk import synced_files

from railscope.wire import WireEntity, WireGroup, WireSchema
from railscope_collector.config import FrameLogSettings, IngestLimits
from railscope_collector.fleet.schema_files import (
    MAX_DECODED,
    MAX_DECODED_ENTITIES,
    SchemaFiles,
    encode_schema,
    schema_digest,
)
from railscope_collector.fleet.schema_templates import EncodedSchema
from railscope_collector.fleet.schemas import (
    MAX_SCHEMA_BYTES_PER_NODE,
    MAX_SCHEMAS_PER_NODE,
    KnownSchema,
    StoredSchemas,
)


def schema(number: int) -> WireSchema:
    group = WireGroup("railscope_gpu_energy_joules_total", (1, 1000), (0,))
    return WireSchema("gpu", (group,), (WireEntity("gpu", (f"GPU-{number}",)),))


def test_schemas_of_a_collector_that_was_killed_are_durable_after_opening(tmp_path: Path):
    """It may have ended between the rename of a file and the synchronization of the directory."""
    SchemaFiles(tmp_path).write({schema_digest(b"schema"): b"schema"})
    with synced_files() as synced:
        assert list(SchemaFiles(tmp_path).open()) == [b"schema"]
    assert synced == {tmp_path}


def put_all(schemas: StoredSchemas, *numbers: int) -> list[KnownSchema]:
    wires = [schema(number) for number in numbers]
    return schemas.put_all([EncodedSchema.from_wire(wire) for wire in wires])


def reopened(directory: Path) -> StoredSchemas:
    schemas = StoredSchemas(directory)
    assert schemas.open() == 0
    return schemas


def files(directory: Path) -> int:
    return len(list(directory.glob("*.schema")))


def test_few_schemas_are_kept_decoded(tmp_path: Path):
    files, entities = SchemaFiles(tmp_path), MAX_DECODED_ENTITIES // 2
    large = [
        encode_schema(WireSchema(name, (), (WireEntity("gpu", (name,)),) * entities))
        for name in ("a", "b", "c")
    ]
    digests = [schema_digest(content) for content in large]
    files.write(dict(zip(digests, large, strict=True)))
    first, second = map(files.read, digests[:2])
    assert files.read(digests[0]) is first
    files.read(digests[2])
    assert files.read(digests[0]) is first, "the last ones that were read are kept"
    assert files.read(digests[1]) is not second


def test_empty_schemas_are_not_kept_without_a_bound(tmp_path: Path):
    files = SchemaFiles(tmp_path)
    contents = [encode_schema(WireSchema(str(n), (), ())) for n in range(MAX_DECODED + 1)]
    digests = [schema_digest(content) for content in contents]
    files.write(dict(zip(digests, contents, strict=True)))
    first, *_ = [files.read(digest) for digest in digests]
    assert files.read(digests[0]) is not first


def test_schemas_that_nothing_refers_to_are_released(tmp_path: Path):
    schemas = StoredSchemas(tmp_path)
    schemas.open()
    known = [schemas.put(schema(number)).digest for number in range(4)]
    schemas.segment = 5
    schemas.record_uses("n1", [known[0]])
    shown = {known[1]}
    gone = schemas.release_unused(6, shown)
    assert set(gone) == {known[2], known[3]}
    assert [schemas.get(digest) is None for digest in known] == [False, False, True, True]
    schemas.put(schema(3))  # it is sent again before its file is deleted
    schemas.delete(gone)
    assert files(tmp_path) == len(schemas) == 3
    again = StoredSchemas(tmp_path)
    assert again.open() == 0
    assert len(again) == 3


def test_the_files_of_version_0_2_0_are_read(tmp_path: Path):
    """One file for each schema, named by its hash."""
    contents = [encode_schema(schema(number)) for number in range(3)]
    for content in contents:
        (tmp_path / f"{schema_digest(content).hex()}.schema").write_bytes(content)
    schemas = reopened(tmp_path)
    assert [schemas.read(schema_digest(content)) for content in contents] == [
        schema(number) for number in range(3)
    ]
    schemas.delete(schemas.release_unused(9, {schema_digest(contents[1])}))
    assert [path.stem for path in tmp_path.iterdir()] == [schema_digest(contents[1]).hex()]


def test_schemas_of_one_envelope_share_a_file_that_stays_while_one_is_used(tmp_path: Path):
    schemas = reopened(tmp_path)
    known = put_all(schemas, 1, 2, 3)
    put_all(schemas, 2, 4)
    assert len(list(tmp_path.iterdir())) == len(schemas.file_names) == 2
    schemas = reopened(tmp_path)
    assert len(schemas) == 4
    used = {known[0].digest, known[2].digest}
    schemas.delete(schemas.release_unused(9, used))
    (path,) = tmp_path.iterdir()
    assert schemas.file_names == {path.name}
    schemas = reopened(tmp_path)
    assert {schemas.get(one.digest) is not None for one in known[::2]} == {True}
    assert [schemas.read(one.digest) for one in known[::2]] == [schema(1), schema(3)]
    schemas.delete(schemas.release_unused(9, set()))
    assert list(tmp_path.iterdir()) == []


def test_a_schema_that_is_stored_again_before_its_file_is_deleted_stays(tmp_path: Path):
    schemas = reopened(tmp_path)
    known = put_all(schemas, 1, 2)
    released = schemas.release_unused(9, set())
    put_all(schemas, 1)
    schemas.delete(released)
    assert reopened(tmp_path).get(known[0].digest) is not None
    assert reopened(tmp_path).get(known[1].digest) is None


def test_damaged_and_lost_files_of_schemas_are_counted_and_replaced(tmp_path: Path):
    schemas = reopened(tmp_path)
    known = put_all(schemas, 1, 2)
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-1])
    damaged = StoredSchemas(tmp_path)
    assert (damaged.open(), len(damaged)) == (1, 0)
    path.unlink()
    with pytest.raises(OSError, match="does not contain it"):
        schemas.read(known[0].digest)
    schemas.delete(schemas.release_unused(9, {known[0].digest}))
    assert schemas.get(known[0].digest) is not None, "the collector still has it"
    assert schemas.file_names == {f"{known[0].digest.hex()}.schema"}, "which is missing"


@pytest.fixture
def frequent_switches():
    """Threads take turns as often as the interpreter allows."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("frequent_switches")
def test_schemas_are_released_while_another_thread_stores_some(tmp_path: Path):
    schemas = StoredSchemas(tmp_path)
    schemas.open()
    schemas.segment = 5
    wires = [schema(number) for number in range(400)]
    stored: list[bytes] = []

    def store() -> None:
        for start in range(0, len(wires), 20):
            encoded = [EncodedSchema.from_wire(wire) for wire in wires[start : start + 20]]
            stored.extend(known.digest for known in schemas.put_all(encoded))

    storing = Thread(target=store)
    storing.start()
    released = 0
    while storing.is_alive():
        released += len(schemas.release_unused(6, set()))
    storing.join()
    assert (released, len(stored), len(schemas)) == (0, len(wires), len(wires))


def test_a_node_has_a_share_of_the_schemas_and_of_their_bytes(tmp_path: Path):
    schemas = StoredSchemas(tmp_path)
    schemas.open()
    for number in range(MAX_SCHEMAS_PER_NODE):
        schemas.record_uses("n1", [schemas.put(schema(number)).digest])
    assert schemas.reason_to_reject("n1", []) == ""
    assert (
        schemas.reason_to_reject("n1", [10])
        == "257 schemas of one node in use: expected at most 256"
    )
    assert schemas.reason_to_reject("n2", [10]) == ""
    assert "bytes of schemas" in schemas.reason_to_reject("n2", [MAX_SCHEMA_BYTES_PER_NODE, 1])
    schemas.segment = 9
    schemas.release_unused(9, set())
    assert schemas.reason_to_reject("n1", [10]) == "", "released ones make room"


async def test_a_schema_that_was_released_is_requested_again(tmp_path: Path):
    sender = FrameSender()
    settings = settings_in(
        tmp_path, frame_log=FrameLogSettings(segment_bytes=1 << 16), limits=IngestLimits()
    )
    async with run_collector(settings) as running:
        assert (await running.post(sender.body(gpu_frames(sender), schemas=True)))[0] == 200
        core = running.collector.core
        digest = core.fleet.nodes["n1"].rows["gpu"].schema
        assert core.schemas.release_unused(100, core.fleet.schemas()) == [], (
            "it is the present state"
        )
        row = core.fleet.nodes["n1"].rows.pop("gpu")
        row.sheet.release(row.block, row.index)
        core.fleet.drop_empty_sheets()
        assert list(core.fleet.blocks()) == []
        assert core.schemas.release_unused(100, core.fleet.schemas()) == [digest]
        status, reply = await running.post(sender.body(gpu_frames(sender, at=3)))
        assert (status, reply["unknown_schemas"]) == (409, [digest.hex()])
        assert (await running.post(sender.body(gpu_frames(sender, at=3), schemas=True)))[0] == 200
