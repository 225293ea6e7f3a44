"""Records that one collector passes on to another: a snapshot, then each record, within bounds by node."""

from __future__ import annotations

import contextlib
import io
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given, settings, strategies as st
from makers import SECOND, START_BOOT_NS, START_WALL_NS
from support.examples import fewer_examples
from support.story import no_turns
from test_cluster_head import ReportingNode

from railscope.claim_terms import ClaimAuthority
from railscope.envelopes import MAX_SCHEMA_BYTES, MAX_SCHEMAS_BYTES, open_body
from railscope.wire import MAX_SCHEMAS, SentAt, WireEntity, WireEvent, pack
from railscope_collector.account.live_account import LiveAccount
from railscope_collector.config import IngestLimits
from railscope_collector.evidence.batch_facts import MAX_IN_FORCE_ON_GPU
from railscope_collector.evidence.claim_events import MAX_CHARACTERS, ReportedClaim, ReportedEnd
from railscope_collector.evidence.evidence_memory import GpuMemory
from railscope_collector.evidence.gpu_evidence import AdministratorInputs
from railscope_collector.evidence.gpu_node_history import GpuPresence
from railscope_collector.evidence.node_intervals import (
    FirstContact,
    LayoutSpans,
    NodeReceipts,
    SampleSpan,
)
from railscope_collector.fleet.schemas import StoredSchemas
from railscope_collector.framelog.segment_files import FrameRecord
from railscope_collector.state.collector_state import CollectorState
from railscope_collector.state.feed_follower import FeedFollower
from railscope_collector.state.record_feed import (
    MAX_PART_BYTES,
    MAX_WAITING_BYTES,
    FeedError,
    FeedHeader,
    FeedPart,
    ReadingsPart,
    RecordFeed,
    RecordPart,
    SchemasPart,
    SenderTime,
    divide_gpu,
    divide_schemas,
    encode_part,
    group_claims,
    read_parts,
)
from railscope_collector.state.state_checkpoint import EventsPart, GpuPart, NodeMemory, NodePart
from railscope_collector.work_limits import TimeSlices


class Feed:
    """Records of a collector with one node, and a follower of them."""

    def __init__(self, directory: Path, **limits: int) -> None:
        self.sent = CollectorState(StoredSchemas(directory / "sent"))
        self.sent.schemas.open()
        self.sender_ns = START_WALL_NS
        self.feed = RecordFeed(self.sent, lambda: self.sender_ns, heartbeat_seconds=0.01)
        core = CollectorState(StoredSchemas(directory / "followed"))
        core.schemas.open()
        self.lead_ns = 0
        self.follower = FeedFollower(
            core, IngestLimits(**limits), "a", lead_ns=lambda: self.lead_ns
        )

    def accept(self, node: ReportingNode, received_ns: int = START_WALL_NS) -> None:
        opened = open_body(node.body(), 1 << 20)
        for content in opened.schemas:
            self.sent.schemas.put_all([self.sent.schemas.recognize(content)])
        sent = SentAt(received_ns, START_BOOT_NS + node.at * SECOND, "boot-1")
        body = pack(opened.decode_envelope())
        self.sent.accept(FrameRecord(node.name, received_ns, sent, body), opened.decode_envelope())

    async def parts(self) -> list[FeedPart]:
        """Parts up to the second time of the sender."""
        found: list[FeedPart] = []
        async for encoded in self.feed.parts():
            found += await decoded(encoded)
            if sum(isinstance(part, SenderTime) for part in found) > 1:
                break
        return found

    async def apply(self, *parts: FeedPart) -> None:
        for part in parts:
            await self.follower.apply(part, TimeSlices())


async def decoded(encoded: bytes) -> list[FeedPart]:
    """Parts that follow a header."""
    header = encode_part(FeedHeader(1, START_WALL_NS))
    return [part async for part in read_from(header + encoded)][1:]


async def read_from(encoded: bytes) -> AsyncIterator[FeedPart]:
    reader = io.BytesIO(encoded)

    async def read(size: int) -> bytes:
        found = reader.read(size)
        if len(found) < size:
            raise EOFError
        return found

    with contextlib.suppress(EOFError):
        async for part in read_parts(read):
            yield part


async def test_a_snapshot_contains_the_current_readings_with_their_rates(tmp_path: Path):
    feed, node = Feed(tmp_path), ReportingNode("n1")
    feed.accept(node)
    await feed.apply(*await feed.parts())
    assert not feed.follower.rejected, feed.follower.problem
    assert feed.follower.is_complete
    before, after = (core.fleet.nodes["n1"] for core in (feed.sent, feed.follower.core))
    assert before.stream_timestamps_ns == after.stream_timestamps_ns
    assert before.agent_version == after.agent_version == "test"
    for stream, row in before.rows.items():
        copied = after.rows[stream]
        for column in ("values_of", "reasons_of", "rates_of"):
            expected = getattr(row.block, column)(row.index).tolist()
            assert getattr(copied.block, column)(copied.index).tolist() == expected, stream
        assert (row.boot_ns, row.run, row.boot_id) == (copied.boot_ns, copied.run, copied.boot_id)
    assert feed.follower.core.gpus_by_node == feed.sent.gpus_by_node
    claims = feed.follower.core.evidence.gpus["GPU-n1-0"].claims
    assert [claim.workload for claim in claims] == ["4711"]


async def test_times_of_a_sender_with_another_clock_are_shifted(tmp_path: Path):
    feed, node = Feed(tmp_path), ReportingNode("n1")
    feed.accept(node)
    hour_ns = 3600 * SECOND
    feed.lead_ns = hour_ns
    await feed.apply(*await feed.parts())
    (before,), (after,) = (core.fleet.nodes.values() for core in (feed.sent, feed.follower.core))
    assert after.timestamp_ns - before.timestamp_ns == hour_ns
    feed.lead_ns += SECOND
    await feed.apply(SenderTime(START_WALL_NS))
    assert feed.follower.shift_ns == hour_ns, "measurements vary"
    feed.lead_ns = SECOND
    await feed.apply(SenderTime(START_WALL_NS))
    assert feed.follower.shift_ns == 0


async def test_records_that_arrive_while_others_are_sent_are_not_stated_as_sent(tmp_path: Path):
    feed, node = Feed(tmp_path), ReportingNode("n1")
    sent: list[FeedPart] = []
    async with contextlib.aclosing(feed.feed.parts()) as parts:
        async for encoded in parts:
            found = [
                part for part in await decoded(encoded) if isinstance(part, RecordPart | SenderTime)
            ]
            sent += found
            if found and len(sent) == 1:
                feed.accept(node)
            if found and len(sent) == 2:
                feed.sender_ns += 60 * SECOND  # a reader that is behind
                feed.accept(node, feed.sender_ns)
            if len(sent) == 5:
                break
    assert [type(part) for part in sent] == 2 * [SenderTime, RecordPart] + [SenderTime]
    times = [part.wall_ns - START_WALL_NS for part in sent if isinstance(part, SenderTime)]
    assert times == [0, 0, 60 * SECOND]


@pytest.mark.parametrize(
    ("limits", "problem"),
    [
        ({"frames_per_envelope": 1}, "6 frames: expected at most 1"),
        ({"decompressed_bytes": 256}, "body too large"),
        ({"batches_per_envelope": 1}, "2 batches: expected at most 1"),
        ({"frames_per_batch": 2}, "invalid lengths"),
    ],
)
async def test_a_record_beyond_a_bound_is_left_out(
    tmp_path: Path, limits: dict[str, int], problem: str
):
    feed, node = Feed(tmp_path, **limits), ReportingNode("n1")
    feed.accept(node)
    parts = await feed.parts()
    await feed.apply(*(part for part in parts if isinstance(part, SchemasPart)))
    opened = pack(open_body(node.body(), 1 << 20).decode_envelope())
    sent = SentAt(START_WALL_NS, START_BOOT_NS, "boot-1")
    await feed.apply(RecordPart(FrameRecord("n1", START_WALL_NS, sent, opened)))
    assert feed.follower.rejected == 1
    assert problem in feed.follower.problem
    assert not feed.follower.core.fleet.nodes


async def test_invalid_content_changes_nothing(tmp_path: Path):
    feed, node = Feed(tmp_path), ReportingNode("n1")
    feed.accept(node)
    parts = await feed.parts()
    (readings, *_) = (part for part in parts if isinstance(part, ReadingsPart))
    await feed.apply(readings)
    assert "unknown schema" in feed.follower.problem
    await feed.apply(*(part for part in parts if isinstance(part, SchemasPart)))
    for name, content in (("values", b"1"), ("rates", b""), ("reasons", b"12")):
        await feed.apply(msgspec.structs.replace(readings, **{name: content}))
    body = pack(open_body(node.body(), 1 << 20).decode_envelope())
    sent = SentAt(START_WALL_NS, START_BOOT_NS, "boot-1")
    for name, content in (("n2", body), ("n1", b"RSF1"), ("n1", body[:-9])):
        await feed.apply(RecordPart(FrameRecord(name, START_WALL_NS, sent, content)))
    assert feed.follower.rejected == 7
    assert not feed.follower.core.fleet.nodes
    await feed.apply(SchemasPart("n1", [b"\x81"]))
    assert "n1: invalid schema" in feed.follower.problem
    for encoded in (b"\xff\xff\xff\xff", encode_part(FeedHeader(2, 0)), b"\x01\0\0\0\xc1"):
        with pytest.raises(FeedError):
            await anext(read_from(encoded))


async def test_a_reader_that_is_too_slow_is_disconnected(tmp_path: Path):
    feed, node = Feed(tmp_path), ReportingNode("n1")
    feed.accept(node)
    parts = feed.feed.parts()
    await anext(parts)
    (reader,) = feed.feed.readers
    record = FrameRecord("n1", 0, SentAt(0, 0, ""), bytes(MAX_WAITING_BYTES // 2))
    for _ in range(2):
        reader.put(RecordPart(record), [])
    assert not reader.waiting
    assert [part async for part in parts] == []
    assert not feed.feed.readers


GPU = "GPU-n1-0"
LONG = "あ" * MAX_CHARACTERS
texts = st.sampled_from(("a", "b", LONG))
claims = st.builds(
    ReportedClaim,
    st.integers(0, START_WALL_NS),
    st.just(GPU),
    st.sampled_from(("n1", "n2")),
    st.integers(0, 300).map(str),
    st.just(ClaimAuthority.SCHEDULER),
    texts,
    texts,
)
ends = st.builds(
    ReportedEnd,
    st.integers(0, START_WALL_NS),
    st.just(GPU),
    st.sampled_from(("n1", "n2")),
    st.integers(0, 300).map(str),
)
spans = st.integers(0, 9000).map(lambda count: [SampleSpan(n, n) for n in range(count)])


@given(
    st.lists(claims, max_size=600),
    st.lists(ends, max_size=300),
    spans,
    st.dictionaries(st.sampled_from(("n1", "n2")), st.just([SampleSpan(1, 2)])),
)
@settings(deadline=None, max_examples=30)
def test_the_facts_about_a_gpu_are_divided_and_nothing_is_left_out(
    reported: list[ReportedClaim],
    ended: list[ReportedEnd],
    layout: list[SampleSpan],
    valueless: dict[str, list[SampleSpan]],
):
    presence = GpuPresence("n1", "boot", 1, [SampleSpan(1, 2)])
    layouts = [LayoutSpans((), layout)]
    whole = GpuMemory({"n1\nboot": presence}, reported, ended, layouts, valueless)
    parts = divide_gpu(GpuPart(GPU, whole))
    assert all(len(encode_part(part)) < MAX_PART_BYTES // 4 for part in parts)
    pieces = [part.memory for part in parts]
    assert sorted(claim for piece in pieces for claim in piece.claims) == sorted(reported)
    assert sorted(end for piece in pieces for end in piece.ended) == sorted(ended)
    found = [span for piece in pieces for each in piece.layouts for span in each.spans]
    assert found == layout
    assert [piece.presences for piece in pieces if piece.presences] == [whole.presences]
    assert {node for piece in pieces for node in piece.valueless} == valueless.keys()
    for facts in group_claims(whole):
        names = {(fact.node, fact.id) for fact in facts}
        holding = [p for p in pieces if names & {(f.node, f.id) for f in (*p.claims, *p.ended)}]
        assert len(holding) == 1, "start and end of a claim are applied together"


@given(st.lists(st.integers(0, MAX_SCHEMA_BYTES), max_size=12), st.integers(0, 600))
@settings(deadline=None, max_examples=30)
def test_schemas_are_divided_into_parts_that_the_reader_accepts(sizes: list[int], small: int):
    contents = [bytes(size) for size in sizes] + [b"x"] * small
    parts = list(divide_schemas("n1", contents))
    assert [content for part in parts for content in part.contents] == contents
    for part in parts:
        assert len(part.contents) <= MAX_SCHEMAS
        assert sum(map(len, part.contents)) <= MAX_SCHEMAS_BYTES


async def test_all_claims_that_a_node_may_report_reach_the_head(tmp_path: Path):
    feed, node = Feed(tmp_path), ReportingNode("n1")
    feed.accept(node)
    book = feed.sent.evidence
    text = dict.fromkeys(("source", "owner", "tenant", "workload", "profile", "boot"), LONG)
    claim = ReportedClaim(START_WALL_NS, GPU, "n1", "", ClaimAuthority.SCHEDULER, **text)
    lasting = [msgspec.structs.replace(claim, id=f"a{n}") for n in range(MAX_IN_FORCE_ON_GPU - 1)]
    ended = [msgspec.structs.replace(claim, id=f"z{n}") for n in range(5000)]
    book.add_claims(ended)
    book.add_claims(ReportedEnd(START_WALL_NS + 1, GPU, "n1", each.id) for each in ended)
    book.add_claims(lasting)
    book.gpus[GPU].claims.sort()
    assert len(encode_part(GpuPart(GPU, book.gpus[GPU]))) < 1000, "too large for one part"
    await feed.apply(*await feed.parts())
    assert feed.follower.rejected == 0, feed.follower.problem
    copied = feed.follower.core.evidence.gpus[GPU]
    assert len(copied.claims) == len(book.gpus[GPU].claims) == 128 + 5000
    assert len(copied.ended) == 5000
    await feed.apply(*await feed.parts())
    assert feed.follower.rejected == 0, "the same snapshot again"


async def test_a_part_that_cannot_be_read_costs_only_itself(tmp_path: Path):
    feed, node = Feed(tmp_path), ReportingNode("n1")
    feed.accept(node)
    too_large = (MAX_PART_BYTES + 1).to_bytes(4, "little") + bytes(MAX_PART_BYTES + 1)
    invalid = b"\x01\0\0\0\xc1"
    record = FrameRecord("n9", 0, SentAt(0, 0, ""), bytes(MAX_PART_BYTES))
    damaged = [*await decoded(too_large + invalid), *await decoded(encode_part(RecordPart(record)))]
    await feed.apply(*damaged, *await feed.parts())
    assert feed.follower.is_complete
    assert feed.follower.rejected_nodes == {"": 2, "n9": 1}
    assert feed.follower.nodes == {"n1"}
    with pytest.raises(FeedError, match="more than 100 parts that cannot be read"):
        await decoded(invalid * 101)


NODE = NodePart("n1", {}, NodeMemory("1.0", 0, START_WALL_NS, {0: GPU}, {"gpu": START_WALL_NS}))
LATER = START_WALL_NS + 3601 * SECOND
EVENT = WireEvent("kernel", 0, WireEntity("gpu", ("a",)), START_WALL_NS, START_BOOT_NS)
CLAIM = ReportedClaim(START_WALL_NS, GPU, "n1", "1", ClaimAuthority.SCHEDULER)


def changed(part: Any, **values: Any) -> Any:
    return msgspec.structs.replace(part, **values)


def node_with(**values: Any) -> NodePart:
    found: NodePart = changed(NODE, memory=changed(NODE.memory, **values))
    return found


def gpu_with(**values: Any) -> GpuPart:
    return GpuPart(GPU, GpuMemory(**values))


def presence_of(*times: tuple[int, int]) -> dict[str, GpuPresence]:
    found = [SampleSpan(first, last) for first, last in times]
    return {"any": GpuPresence("n1", "boot", START_WALL_NS, found)}


@pytest.mark.parametrize(
    ("part", "problem"),
    [
        (changed(NODE, name="n" * 256), "characters of a name"),
        (changed(NODE, name=""), "node without a name"),
        (changed(NODE, name="n\n1"), "expected printable characters"),
        (node_with(timestamp_ns=LATER), "expected at most that of the sender"),
        (node_with(timestamp_ns=-1), "invalid time"),
        (node_with(stream_timestamps_ns={"gpu": 1 << 63}), "invalid time"),
        (node_with(stream_timestamps_ns=dict.fromkeys(map(str, range(5000)), 1)), "5000 streams"),
        (node_with(gpus={1000: GPU}), "invalid rail"),
        (node_with(clock_offset_ns=1 << 63), "invalid time"),
        (changed(NODE, receipts=NodeReceipts(LATER)), "expected at most"),
        (
            changed(NODE, receipts=NodeReceipts(0, {str(n): FirstContact(1) for n in range(257)})),
            "257 GPUs of a node",
        ),
        (changed(NODE, receipts=NodeReceipts(0, {"n2/a": FirstContact(1)})), "invalid GPU 'n2/a'"),
        (changed(NODE, receipts=NodeReceipts(0, {}, [SampleSpan(1, 0)])), "spans in order"),
        (GpuPart("n2/a", GpuMemory(presences=presence_of((1, 2)))), "invalid GPU 'n2/a'"),
        (GpuPart("n2/a", GpuMemory(claims=[changed(CLAIM, gpu="n2/a")])), "a name of a GPU"),
        (gpu_with(presences=presence_of((1, LATER))), "expected at most"),
        (gpu_with(presences=presence_of((3, 4), (1, 2))), "spans in order"),
        (gpu_with(presences=presence_of(*[(n, n) for n in range(4097)])), "4097 spans"),
        (gpu_with(claims=[changed(CLAIM, gpu="GPU-other")]), "expected the GPU of its part"),
        (gpu_with(claims=[changed(CLAIM, tenant="t" * 401)]), "characters of a name"),
        (gpu_with(claims=[changed(CLAIM, start_ns=1 << 63)]), "invalid time"),
        (gpu_with(claims=[changed(CLAIM, compute=(0, 841))]), "invalid slot range"),
        (gpu_with(claims=[changed(CLAIM, share="2/1")]), "invalid share"),
        (gpu_with(claims=[changed(CLAIM, authority=ClaimAuthority.ADMINISTRATOR)]), "authority"),
        (gpu_with(ended=[ReportedEnd(-1, GPU, "n1", "1")]), "invalid time"),
        (EventsPart([("n1", "boot", changed(EVENT, name="e" * 256))]), "name of an event"),
        (EventsPart([("n1", "boot", changed(EVENT, boot_ns=-1))]), "invalid time"),
    ],
)
async def test_a_part_beyond_a_bound_is_left_out_and_stated(
    tmp_path: Path, part: FeedPart, problem: str
):
    follower = Feed(tmp_path).follower
    await follower.apply(FeedHeader(1, START_WALL_NS), TimeSlices())
    if not isinstance(part, NodePart):
        await follower.apply(NODE, TimeSlices())
    (part,) = await decoded(encode_part(part))
    before = [*follower.core.fleet.nodes], len(follower.core.events)
    await follower.apply(part, TimeSlices())
    assert follower.rejected == 1
    assert problem in follower.problem
    assert ([*follower.core.fleet.nodes], len(follower.core.events)) == before
    assert not follower.core.evidence.gpus
    await follower.apply(changed(NODE, name="n2"), TimeSlices())
    assert "n2" in follower.nodes, "others are not affected"


class DamagedStream(NamedTuple):
    """Changes of single bytes of a stream, by their position as a fraction."""

    changes: list[tuple[float, int]]

    def apply(self, content: bytes) -> bytes:
        damaged = bytearray(content)
        for position, value in self.changes:
            damaged[int(position * len(damaged))] = value
        return bytes(damaged)


damage = st.lists(
    st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=8
).map(DamagedStream)


@given(damage)
@fewer_examples(300)
async def test_a_damaged_stream_is_left_out_or_ends_the_connection(damaged: DamagedStream):
    """Nothing else: another error would end the term of the head, or be stored and fail later."""
    with tempfile.TemporaryDirectory() as directory:
        feed, node = Feed(Path(directory)), ReportingNode("n1")
        feed.accept(node)
        encoded = b"".join([encode_part(part) for part in await feed.parts()])
        feed.accept(node)
        with contextlib.suppress(FeedError):
            async for part in read_from(damaged.apply(encoded)):
                await feed.apply(part)
        core = feed.follower.core
        account = LiveAccount(core.evidence, AdministratorInputs)
        await account.refresh(START_WALL_NS + 60 * SECOND, no_turns)
