"""The server of records: it serves a few readers, and disconnects those that do not read."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa
from aiohttp import web
from makers import SECOND
from running_collector import run_collector
from structlog.testing import capture_logs
from support import postgresql
from test_cluster_head import (
    ReportingNode,
    extent_of,
    report,
    running,
    settings_of,
    until,
    until_head,
    until_page,
    until_true,
)
from test_record_feed import Feed

from railscope.settings import SettingsError
from railscope.wire import SentAt
from railscope_collector.config import IngestLimits, LedgerSettings
from railscope_collector.framelog.segment_files import FrameRecord
from railscope_collector.ledger import database as databases, membership
from railscope_collector.record_exchange import (
    RECORDS_PATH,
    FollowedCollector,
    PeerAccess,
    RecordServer,
)
from railscope_collector.service import Collector
from railscope_collector.state.collector_state import CollectorState
from railscope_collector.state.feed_follower import FeedFollower
from railscope_collector.state.record_feed import FORMAT, FeedHeader, RecordPart, encode_part
from railscope_collector.tables import metadata
from railscope_simulator.demo.process import free_port

LARGE = FrameRecord("n1", 0, SentAt(0, 0, ""), bytes(8 << 20))


@contextlib.asynccontextmanager
async def serving(
    serve: Callable[[web.Request], Awaitable[web.StreamResponse]], port: int = 0
) -> AsyncIterator[tuple[str, int]]:
    """Address of a server of records, which ends with the test."""
    application = web.Application()
    for path in ("/", RECORDS_PATH):
        application.router.add_get(path, serve)
    runner = web.AppRunner(application, shutdown_timeout=0)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", port).start()
        yield runner.addresses[0][:2]
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def connected(host: str, port: int) -> AsyncIterator[asyncio.StreamReader]:
    """A connection with a request that was sent."""
    reader, writer = await asyncio.open_connection(host, port, limit=1024)
    writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    try:
        yield reader
    finally:
        writer.transport.abort()


async def read_status(reader: asyncio.StreamReader) -> bytes:
    return (await reader.readline()).split()[1]


async def test_a_reader_that_does_not_read_is_disconnected(tmp_path: Path):
    feed = Feed(tmp_path)
    server = RecordServer(feed.feed, write_seconds=0.2)
    async with serving(server.serve) as address, connected(*address) as reader:
        assert await read_status(reader) == b"200"
        (waiting,) = await until_true(lambda: feed.feed.readers)
        for _ in range(4):
            waiting.put(RecordPart(LARGE), [])
        await until_true(lambda: server.disconnected)
        assert server.readers == 0
        assert not feed.feed.readers, "nothing waits for it"
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(5 * len(LARGE.body))


async def test_more_readers_than_the_maximum_are_rejected(tmp_path: Path):
    feed = Feed(tmp_path)
    server = RecordServer(feed.feed, max_readers=2)
    async with serving(server.serve) as address, contextlib.AsyncExitStack() as stack:
        first, second, third = [
            await stack.enter_async_context(connected(*address)) for _ in range(3)
        ]
        statuses = sorted([await read_status(each) for each in (first, second, third)])
        assert statuses == [b"200", b"200", b"503"]
        assert (server.readers, server.rejected) == (2, 1)
        feed.feed.close()
        await until_true(lambda: not server.readers)
        assert server.disconnected == 0, "the server ended, the readers were not slow"


@pytest.fixture
def database(server: postgresql.PostgreSQL):
    url = server.database()
    yield url
    server.drop(url)


def test_a_cluster_with_an_embedded_database_is_rejected(tmp_path: Path):
    settings = settings_of(tmp_path, "a", "postgresql://db/ledger")
    with pytest.raises(SettingsError, match=r"several collectors need .* fix: set ledger.url"):
        Collector(msgspec.structs.replace(settings, ledger=LedgerSettings()))


def test_two_collectors_on_one_machine_have_different_names(tmp_path: Path):
    names = []
    for own in ("a", "b"):
        settings = settings_of(tmp_path, own, "postgresql://db/ledger")
        unnamed = msgspec.structs.replace(settings.cluster, name="")
        names.append(
            Collector(msgspec.structs.replace(settings, cluster=unnamed)).cluster.role.name
        )
        assert names[-1] == settings.listen
    assert names[0] != names[1]


def test_a_name_that_another_running_collector_has_is_an_error(database: str):
    shared = databases.SharedDatabase(database, metadata)
    own = membership.ClusterMember("a", "http://one:1", "host-1:5:d00d", 0.0)
    renamed = own._replace(url="http://two:1", holder="host-1:6:beef")
    copied = own._replace(holder="host-2:5:cafe")
    try:
        membership.exchange(shared.open(), own, b"", time.time_ns)
        for other in (renamed, copied):
            with pytest.raises(
                membership.NameInUseError, match="http://one:1 on host-1 has the name a too"
            ):
                membership.exchange(shared.open(), other, b"", time.time_ns)
        restarted = own._replace(holder="host-1:7:f00d")
        found = membership.exchange(shared.open(), restarted, b"", time.time_ns)
        assert [each.url for each in found.members] == ["http://one:1"]
        for seconds in (-3600, 3600):  # it ended, or the clock of the database was ahead
            with shared.open().transaction(writes=True) as connection:
                seen_at = membership.rows.c.seen_at + timedelta(seconds=seconds)
                connection.execute(sa.update(membership.rows).values(seen_at=seen_at))
            moved = copied if seconds < 0 else restarted._replace(holder="host-3:1:abcd")
            found = membership.exchange(shared.open(), moved, b"", time.time_ns)
            assert [each.holder for each in found.members] == [moved.holder]
    finally:
        shared.close()


def test_the_difference_of_two_clocks_is_measured_by_the_clock_of_the_database(database: str):
    shared = databases.SharedDatabase(database, metadata)
    try:
        for name, ahead_ns in (("a", 0), ("b", 3600 * SECOND)):
            member = membership.ClusterMember(name, f"http://{name}:1", f"holder-{name}", 0.0)
            wall_ns = lambda: time.time_ns() + ahead_ns  # noqa: B023, E731 - called at once
            found = membership.exchange(shared.open(), member, b"", wall_ns)
        assert found.lead_ns("b", "a") == pytest.approx(3600 * SECOND, abs=2 * SECOND)
        assert found.lead_ns("a", "b") == -found.lead_ns("b", "a")
        assert found.lead_ns("a", "c") == 0, "not present"
        assert found.leads_over("a") == [found.lead_ns("b", "a")]
        assert found.leads_over("b") == [found.lead_ns("a", "b")]
        absent = [each._replace(age_seconds=60.0) for each in found.members if each.name == "b"]
        assert found._replace(members=absent).leads_over("a") == []
        times = iter([time.time_ns() - 11 * SECOND, time.time_ns()])
        with pytest.raises(databases.UnusableLedgerError, match="responded after 11 s"):
            membership.exchange(shared.open(), member, b"", lambda: next(times))
    finally:
        shared.close()


async def test_the_lag_grows_while_no_records_arrive_until_all_of_them_are_applied(tmp_path: Path):
    feed, port, ended = Feed(tmp_path), free_port(), asyncio.Event()
    now_ns = feed.sender_ns
    member = membership.ClusterMember("b", f"http://127.0.0.1:{port}", "holder", 0.0)

    async def send_header(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(encode_part(FeedHeader(FORMAT, now_ns)))
        await ended.wait()
        return response

    def begin() -> FeedFollower:
        core = CollectorState(feed.follower.core.schemas)
        return FeedFollower(core, IngestLimits(), "b", lead_ns=lambda: feed.lead_ns)

    followed = FollowedCollector(member, begin, wall_ns=lambda: now_ns)
    reading = asyncio.create_task(followed.read_other(PeerAccess("token", "")))
    try:
        assert followed.extent_member(0).lag_seconds is None, "no records yet"
        async with serving(RecordServer(feed.feed).serve, port):
            await until_true(lambda: not followed.problem)
            assert followed.extent_member(0).lag_seconds == 0
            now_ns += 30 * SECOND
            assert followed.extent_member(0).lag_seconds == 30, "its last records are delayed"
            feed.lead_ns = 10 * SECOND
            assert followed.extent_member(0).lag_seconds == 20, "its clock is 10 s behind"
            feed.lead_ns = 0
            feed.feed.close()
        await until_true(lambda: followed.problem)
        now_ns += 30 * SECOND
        assert followed.extent_member(0).lag_seconds == 60, "the connection is interrupted"
        async with serving(send_header, port):
            await until_true(lambda: followed.follower and followed.follower.sender_ns == now_ns)
            assert followed.extent_member(0).lag_seconds == 60, "the snapshot is not complete"
            ended.set()
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


async def test_a_failure_ends_the_term_and_is_logged_once(tmp_path: Path, database: str):
    async with running(tmp_path, database, ["a"]) as one:
        cluster = one["a"].collector.cluster
        open_database, failures = cluster.open, []

        def fail() -> databases.Database:
            failures.append(cluster.role.state)
            message = "defect"
            raise RuntimeError(message)

        cluster.role.state.diagnosis.directory.joinpath("incidents").write_bytes(b"changed")
        with capture_logs() as logs:
            cluster.open = fail
            # The third exchange begins after the second one was logged.
            await until_true(lambda: failures.count(None) > 1)
            assert cluster.role.state is None, "its own failure does not keep the term"
            cluster.open = open_database
            await until_true(lambda: cluster.role.state)
        assert [each["event"] for each in logs].count("cluster_exchange_failed") == 1


async def test_a_collector_that_begins_to_be_the_head_does_not_refer_to_itself(
    tmp_path: Path, database: str
):
    async with running(tmp_path, database, ["a"]) as one:
        cluster = one["a"].collector.cluster
        await until_true(lambda: cluster.role.members.head)
        assert cluster.role.members.head.name == "a"
        assert cluster.other_head is None


async def test_a_large_diagnosis_delays_no_renewal_of_the_lease(tmp_path: Path, database: str):
    """While the files are being written to the database, exchange and renewal continue."""
    async with running(tmp_path, database, ["a"]) as one:
        cluster = one["a"].collector.cluster
        term = cluster.role.lease.term
        shared = databases.SharedDatabase(database, metadata)
        with shared.open().transaction(writes=True) as connection:
            connection.exec_driver_sql("LOCK TABLE collector_head_file IN SHARE MODE")
            cluster.role.state.diagnosis.directory.joinpath("baselines").write_bytes(b"new")
            # The head cannot store it before this transaction ends.
            for _ in range(3):
                exchanged = cluster.role.members
                await until_true(lambda: cluster.role.members is not exchanged)  # noqa: B023
            assert cluster.role.lease.term == term
            assert cluster.role.lease.is_valid
        shared.close()


async def test_a_start_on_a_full_disk_serves_its_own_nodes(tmp_path: Path):
    settings = settings_of(tmp_path, "a", "postgresql://db/ledger")
    full = "cannot write the state directory: No space left on device"

    def prepare(one) -> None:
        one.collector.find_write_problem = lambda _directory: full

    async with run_collector(settings, prepare) as one:
        status, _ = await one.get("/api/v1/nodes")
        assert status == 200


async def test_records_that_the_head_rejects_are_stated(tmp_path: Path, database: str):
    """The head has lower limits than the collector that accepted the records."""
    settings = settings_of(tmp_path, "a", database)
    strict = msgspec.structs.replace(settings, limits=IngestLimits(columns_per_schema=1))
    async with run_collector(strict) as head:
        await until_head(head.collector.cluster)
        async with running(tmp_path, database, ["b"]) as others:
            await report({"n2": ReportingNode("n2")}, others | {"n2": others["b"]})
            page = await until_page(head, "Rejected: ")
            assert "records of b, the last one of n2: " in page

            async def included() -> dict[str, Any]:
                """Parts once the snapshot of b is complete: its other nodes are not affected."""
                parts = {part["name"]: part for part in (await extent_of(head))["parts"]}
                return parts if parts["b"]["is_included"] else {}

            parts = await until(included)
            assert parts["b"]["rejected"] > 0 == parts["a"]["rejected"]
            assert parts["b"]["lag_seconds"] < 10
            _, text = await head.get("/metrics")
            assert "\nrailscope_collector_cluster_head 1\n" in text
            assert '\nrailscope_collector_cluster_included{collector="b"} 1\n' in text
            assert '\nrailscope_collector_cluster_rejected_records_total{collector="a"} 0\n' in text
            assert '\nrailscope_collector_cluster_lag_seconds{collector="b"} ' in text
            _, text = await others["b"].get("/metrics")
            assert "\nrailscope_collector_cluster_head 0\n" in text
            assert "railscope_collector_cluster_included" not in text, "of the head only"


async def test_a_certificate_file_that_was_deleted_is_stated(tmp_path: Path):
    feed = Feed(tmp_path)
    member = membership.ClusterMember("b", "https://127.0.0.1:9", "holder", 0.0)
    followed = FollowedCollector(member, lambda: feed.follower)
    access = PeerAccess("token", str(tmp_path / "missing.pem"))
    reading = asyncio.create_task(followed.read_other(access))
    try:
        await until_true(lambda: "missing.pem" in followed.problem)
        assert not reading.done(), "it continues once the file is back"
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
