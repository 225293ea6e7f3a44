"""Version 1 of the wire format, of agents up to 0.3.0, until 0.5.0: the same frames have the same ledger."""

from __future__ import annotations

from pathlib import Path

from makers import FrameSender
from running_collector import gpu_frames, run_collector, settings_in
from support.schemas import former_body
from support.story import NodeReporter, accept, gpus_of, temporary_core

from railscope import envelopes
from railscope.wire import MAX_COLUMNS
from railscope_collector.evidence.node_intervals import encode_interval
from railscope_collector.fleet.schemas import ReceivedParts
from railscope_collector.state.collector_state import CollectorState


async def test_frames_of_version_1_are_accepted_and_read_again(tmp_path: Path):
    sender = FrameSender()
    frames = gpu_frames(sender)
    envelope = sender.envelope(frames)
    async with run_collector(settings_in(tmp_path)) as running:
        status, reply = await running.post(former_body(envelope, frames, schemas=False))
        assert (status, len(reply["unknown_schemas"])) == (409, 1)
        status, reply = await running.post(former_body(envelope, frames))
        assert (status, reply["accepted_frames"]) == (200, 3)
        status, reply = await running.post(former_body(envelope, frames, schemas=False))
        assert (status, reply["duplicate_frames"]) == (200, 3)
        again = gpu_frames(sender, at=3)
        status, reply = await running.post(sender.body(again))
        assert (status, reply["accepted_frames"]) == (200, 3), "shape and names are known"
    async with run_collector(settings_in(tmp_path)) as running:
        row = running.collector.core.fleet.nodes["n1"].rows["gpu"]
        assert row.block.values_of(row.index).tolist()[:4] == [50, 60, 1000, 2000]
        assert running.collector.core.counts.frames == 6
        assert not running.collector.core.counts.unknown_schemas


def facts_of(core: CollectorState) -> list[bytes]:
    """Everything from which the ledger of a node is metered."""
    quarters = core.evidence.quarters.by_key.values()
    found = [each.interval for each in quarters]
    assert any(each.series for each in found)
    for each in found:
        each.series = dict(enumerate(each.series.values()))  # by names of schemas, which differ
    return [encode_interval(each) for each in found]


def test_both_versions_of_the_same_frames_have_the_same_facts():
    schema = gpus_of("GPU-1", "GPU-2")
    node = NodeReporter("n1")
    frames = node.frames(schema, range(0, 600, 10))
    cores = temporary_core(), temporary_core()
    for first in range(0, len(frames), 6):
        part = frames[first : first + 6]
        record, envelope = node.record(part)
        accept(cores[0], [(record, envelope)])
        opened = envelopes.open_body(former_body(envelope, part), 1 << 24)
        received = ReceivedParts(schemas=opened.former_schemas)
        schemas = cores[1].schemas
        schemas.store("n1", schemas.check(received, MAX_COLUMNS))
        cores[1].accept(record, opened.decode_envelope())
    assert facts_of(cores[0]) == facts_of(cores[1])
