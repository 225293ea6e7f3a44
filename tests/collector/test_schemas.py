"""Schemas are bounded by node, and released when nothing refers to them."""

from __future__ import annotations

from pathlib import Path

from makers import FrameSender
from running_collector import gpu_frames, run_collector, settings_in

from railscope.wire import WireEntity, WireGroup, WireSchema
from railscope_collector.config import FrameLogSettings, IngestLimits
from railscope_collector.fleet.schemas import (
    MAX_SCHEMA_BYTES_PER_NODE,
    MAX_SCHEMAS_PER_NODE,
    StoredSchemas,
)


def schema(number: int) -> WireSchema:
    group = WireGroup("railscope_gpu_energy_joules_total", (1, 1000), (0,))
    return WireSchema("gpu", (group,), (WireEntity("gpu", (f"GPU-{number}",)),))


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
