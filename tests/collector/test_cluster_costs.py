"""Costs that do not grow with the nodes: rows read per round and exchange, calls per envelope."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from makers import SECOND, START_BOOT_NS, START_WALL_NS, FrameSender
from msgspec.structs import replace
from running_collector import RunningCollector, gpu_frames, run_collector
from support.postgresql import PostgreSQL
from test_cluster_head import settings_of, until_head
from test_record_feed import Feed

from railscope.envelopes import open_body
from railscope.wire import SentAt
from railscope_collector.config import MeteringSettings
from railscope_collector.evidence import evidence_tables
from railscope_collector.evidence.node_intervals import FirstContact
from railscope_collector.framelog.segment_files import FrameRecord
from railscope_collector.ledger.database import call_database
from railscope_collector.service import Collector
from railscope_collector.state.record_feed import FORMAT, FeedHeader, RecordPart

EVIDENCE, MEMBERS = re.compile(r"\bevidence_"), re.compile(r"\bcollector_member\b")


@contextmanager
def counted_rows(collector: Collector, tables: re.Pattern[str]) -> Iterator[Counter[str]]:
    """Count the rows that a collector reads from tables, by statement."""
    engine, read = collector.database.open().engine, Counter[str]()

    def count(_connection: object, cursor: Any, statement: str, *_: object) -> None:
        if statement.startswith("SELECT") and tables.search(statement):
            read[statement] += cursor.rowcount

    sa.event.listen(engine, "after_cursor_execute", count)
    yield read
    sa.event.remove(engine, "after_cursor_execute", count)


def add_others(collector: Collector, numbers: range) -> None:
    """Add nodes of other collectors to the database, each with a GPU."""
    with collector.database.open().transaction(writes=True) as connection:
        contacts = {f"m{n}": {f"GPU-m{n}": FirstContact(1)} for n in numbers}
        homes = [{"gpu_uuid": f"GPU-m{n}", "node": f"m{n}", "since_ns": 1} for n in numbers]
        rows = evidence_tables.contact_rows(contacts)
        evidence_tables.insert_new_rows(connection, evidence_tables.first_contacts, rows)
        evidence_tables.insert_new_rows(connection, evidence_tables.gpu_nodes, homes)


async def test_a_collector_reads_no_more_rows_with_more_nodes_of_others(
    tmp_path: Path, server: PostgreSQL
) -> None:
    url = server.database()
    async with AsyncExitStack() as stack:
        running: list[RunningCollector] = []
        for node, name in (("n1", "a"), ("n2", "b")):
            settings = settings_of(tmp_path, name, url)
            settings = replace(settings, metering=MeteringSettings(period_seconds=3600))
            one = await stack.enter_async_context(run_collector(settings))
            await until_head(one.collector.cluster)
            sender = FrameSender(node)
            status, _ = await one.post(sender.body(gpu_frames(sender), schemas=True), node=node)
            assert status == 200
            await one.collector.finalizer.round(everything=True)
            running.append(one)
        (head,) = (one for one in running if one.collector.cluster.role.state)
        (at,) = (one for one in running if one is not head)
        reader = at.collector
        await call_database(reader.finalizer.lease.release)
        await head.collector.finalizer.round()
        assert head.collector.finalizer.lease.is_valid, "the head writes the ledger days as well"
        read: list[Counter[str]] = []
        for numbers in (range(10), range(10, 500)):
            add_others(reader, numbers)
            with counted_rows(reader, EVIDENCE) as first:
                await reader.finalizer.round()
            assert first.total() > len(numbers), "first contacts of others are read once"
            assert {f"m{n}" for n in numbers} <= reader.core.evidence.receipts.keys()
            with counted_rows(reader, EVIDENCE) as again:
                await reader.finalizer.round()
            read.append(again)
        assert read[0] == read[1]
        sender = FrameSender("n3")
        await at.post(sender.body(gpu_frames(sender), schemas=True), node="n3")
        await reader.finalizer.round(everything=True)
        stores = reader.finalizer._stores  # noqa: SLF001 - reads its internal state
        assert stores is not None
        assert "n3" in stores.store.contacts(), "own first contacts are written"
        for each in running:
            with counted_rows(each.collector, MEMBERS) as exchanged:
                assert await each.collector.cluster.attempt()
            is_head = each.collector.cluster.role.state is not None
            assert any("collector_member.nodes" in text for text in exchanged) == is_head
    server.drop(url)


@contextmanager
def counted_calls(calls: Counter[str], of: str) -> Iterator[None]:
    """Count the calls of functions in this thread."""

    def count(_frame: object, event: str, _argument: object) -> None:
        calls[of] += event in {"call", "c_call"}

    sys.setprofile(count)
    yield
    sys.setprofile(None)


async def calls_per_envelope(directory: Path, node_count: int) -> Counter[str]:
    """Count the calls for 64 envelopes of four nodes, while more nodes are present."""
    directory.mkdir()
    feed, calls = Feed(directory), Counter[str]()
    await feed.apply(FeedHeader(FORMAT, START_WALL_NS))
    nodes = [FrameSender(f"n{number:03}") for number in range(node_count)]
    rounds = [nodes] * 2 + [nodes[:4]] * 16
    for number, senders in enumerate(rounds):
        for node in senders:
            body = node.body(gpu_frames(node, 3 * number), schemas=True)
            opened = open_body(body, 1 << 20)
            schemas = [feed.sent.schemas.recognize(content) for content in opened.schemas]
            feed.sent.schemas.put_all(schemas)
            feed.follower.core.schemas.put_all(schemas)
            sent = SentAt(START_WALL_NS, START_BOOT_NS + (3 * number + 3) * SECOND, "boot-1")
            record, envelope = (
                FrameRecord(node.node, START_WALL_NS, sent, body),
                opened.decode_envelope(),
            )
            ignored = Counter[str]()
            with counted_calls(calls if number > 1 else ignored, "receiving"):
                feed.sent.count_new_frames(envelope)
                feed.sent.accept(record, envelope)
            with counted_calls(calls if number > 1 else ignored, "head"):
                await feed.apply(RecordPart(record))
    assert feed.follower.rejected == 0, feed.follower.problem
    assert len(feed.follower.core.fleet.nodes) == node_count
    return calls


async def test_an_envelope_takes_no_more_calls_with_more_nodes(tmp_path: Path) -> None:
    few = await calls_per_envelope(tmp_path / "few", 4)
    many = await calls_per_envelope(tmp_path / "many", 200)
    assert {name: calls <= 1.02 * few[name] for name, calls in many.items()} == {
        "receiving": True,
        "head": True,
    }, (few, many)
