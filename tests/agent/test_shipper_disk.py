"""A full or broken disk: envelopes wait in memory, and every loss is reported."""

from __future__ import annotations

import asyncio
import random
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiohttp.web import Request, Response
from structlog.testing import capture_logs
from support.collector import ScriptedCollector, take
from support.disk import small_file_system
from support.reading import ORIGIN
from support.shipping import SCHEMA, RunningShipper, link_to, run_shipper

from railscope.catalog.agent import GAP_EVENT
from railscope.catalog.entities import DROP
from railscope.frame import Entity, Event, FrameOrigin
from railscope.wire import Envelope, schema_identity
from railscope_agent.config import CollectorLink

MEBIBYTE = 1 << 20


@pytest.fixture
async def late_collector() -> tuple[ScriptedCollector, CollectorLink]:
    """A collector that does not listen yet, and the link to it."""
    collector = ScriptedCollector()
    async with collector.serving():
        return collector, link_to(collector)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 128 KiB."""
    with small_file_system(tmp_path / "disk", 128) as directory:
        yield directory


def publish_large(run: RunningShipper, size: int) -> None:
    """Publish a frame that needs so many bytes in an envelope with any compression."""
    noise = random.Random(len(run.sent))  # noqa: S311 - nothing secret
    now = run.clock.now()
    entity = Entity(DROP, ("disk",))
    events = []
    for _ in range(0, size, 8000):
        text = "".join(chr(0x4E00 + noise.getrandbits(14)) for _ in range(4000))
        events.append(Event(GAP_EVENT, entity, now.wall_ns, now.boot_ns, {"frames": text}))
    run.publish(events=tuple(events))


async def test_a_full_disk_costs_nothing_that_memory_can_hold(
    small_disk: Path, late_collector: tuple[ScriptedCollector, CollectorLink]
) -> None:
    collector, link = late_collector
    with capture_logs() as logs:
        async with run_shipper(small_disk, link) as run:
            for _ in range(6):
                publish_large(run, 40_000)
                await run.shipper.flush()
            on_disk = len(list((small_disk / "spool").iterdir()))
            assert 0 < on_disk < run.stats.spool_envelopes == 6
            assert run.stats.spool_bytes > 6 * 40_000
            await run.failed()
            async with collector.serving():
                run.retry()
                await run.shipped(6)
                assert sorted(collector.taken) == run.sent
                await run.flush()
                await run.shipped(7)
        assert sum(run.stats.dropped_frames.values()) == 0
    (failed,) = [entry for entry in logs if entry["event"] == "spool_failed"]
    assert failed["problem"] == "No space left on device"
    assert "free disk space" in failed["advice"]


async def test_what_only_memory_has_at_the_end_is_a_counted_loss(
    small_disk: Path, late_collector: tuple[ScriptedCollector, CollectorLink]
) -> None:
    _, link = late_collector
    with capture_logs() as logs:
        async with run_shipper(small_disk, link) as run:
            for _ in range(6):
                publish_large(run, 40_000)
                await run.shipper.flush()
            await run.failed()
    stored = len(list((small_disk / "spool").iterdir()))
    assert 0 < stored == run.stats.spool_envelopes
    assert run.stats.dropped_frames["disk"] == 6 - stored
    (stopped,) = [entry for entry in logs if entry["event"] == "agent_stopped"]
    assert (stopped["dropped_frames"], stopped["waiting_envelopes"]) == (6 - stored, stored)


async def test_a_disk_that_comes_back_is_used_again(
    tmp_path: Path, late_collector: tuple[ScriptedCollector, CollectorLink]
) -> None:
    collector, link = late_collector
    async with run_shipper(tmp_path, link) as run:
        spool = tmp_path / "spool"
        shutil.rmtree(spool)
        await run.flush(2)
        assert (run.stats.spool_envelopes, spool.exists()) == (1, False)
        spool.mkdir()
        await run.flush(3)
        assert len(list(spool.iterdir())) == 2, "the one in memory as well"
        await run.failed()
        async with collector.serving():
            run.retry()
            await run.shipped(5)
            assert sorted(collector.taken) == run.sent
            assert collector.duplicates == []


async def test_memory_is_bounded_and_drops_are_counted(
    tmp_path: Path, late_collector: tuple[ScriptedCollector, CollectorLink]
) -> None:
    collector, link = late_collector
    async with run_shipper(tmp_path, link) as run:
        shutil.rmtree(tmp_path / "spool")
        for _ in range(3):
            publish_large(run, 6 * MEBIBYTE)
            await run.shipper.flush()
        assert run.stats.dropped_frames["disk"] == 1
        assert [event.entity.key for event in run.events] == [("disk",)]
        await run.failed()
        async with collector.serving():
            run.retry()
            await run.shipped(2)
            assert collector.taken == run.sent[1:]


async def test_an_envelope_dropped_while_in_flight_affects_no_other(tmp_path: Path) -> None:
    """The oldest envelope in memory is in flight when a newer one displaces it."""
    release = asyncio.Event()

    async def hold(self: ScriptedCollector, request: Request, envelope: Envelope) -> Response:
        await release.wait()
        return await take(self, request, envelope)

    async with ScriptedCollector().serving() as collector:
        async with run_shipper(tmp_path, link_to(collector)) as run:
            await run.flush()
            await run.shipped(1)
            shutil.rmtree(tmp_path / "spool")
            collector.script.append(hold)
            for _ in range(3):
                publish_large(run, 6 * MEBIBYTE)
                await run.shipper.flush()
            assert run.stats.dropped_frames["disk"] == 1
            release.set()
            await run.shipped(3)
            await run.flush()
            await run.shipped(4)
        assert collector.taken == run.sent
        assert collector.duplicates == []


async def test_a_schema_that_did_not_fit_on_the_disk_is_stored_when_there_is_space(
    tmp_path: Path, late_collector: tuple[ScriptedCollector, CollectorLink]
) -> None:
    collector, link = late_collector
    with capture_logs() as logs:
        async with run_shipper(tmp_path, link) as first:
            in_the_way = tmp_path / "schemas" / f"{schema_identity(SCHEMA).hex()}.schema"
            in_the_way.mkdir()
            await first.flush()
            await first.flush()
            in_the_way.rmdir()
            await first.flush()
    assert [entry["event"] for entry in logs].count("schema_write_failed") == 1
    async with collector.serving():
        async with run_shipper(
            tmp_path, link, FrameOrigin(ORIGIN.node, "run-2", "boot-1")
        ) as second:
            await second.shipped(3)
        assert collector.taken == first.sent


async def test_the_bound_of_the_spool_reports_the_gap(
    tmp_path: Path, late_collector: tuple[ScriptedCollector, CollectorLink]
) -> None:
    collector, link = late_collector
    bounded = CollectorLink(url=link.url, spool_bytes=100_000)
    async with run_shipper(tmp_path, bounded) as run:
        for _ in range(4):
            publish_large(run, 40_000)
            await run.shipper.flush()
        assert run.stats.dropped_frames["spool_full"] == 2
        gaps = [(event.entity.key, event.facts["frames"]) for event in run.events]
        assert gaps == [(("spool_full",), "1")] * 2
        await run.failed()
        async with collector.serving():
            run.retry()
            await run.shipped(2)
            assert collector.taken == run.sent[2:]


async def test_a_damaged_envelope_is_reported_and_the_rest_goes_on(
    tmp_path: Path, late_collector: tuple[ScriptedCollector, CollectorLink]
) -> None:
    collector, link = late_collector
    async with run_shipper(tmp_path, link) as run:
        await run.flush(2)
        await run.flush(1)
        first = min((tmp_path / "spool").iterdir())
        first.write_bytes(first.read_bytes()[:-2] + b"xx")
        await run.failed()
        async with collector.serving():
            run.retry()
            await run.shipped(1)
        assert run.stats.dropped_frames["damaged"] == 2
        assert collector.taken == run.sent[2:]


async def test_a_disk_may_be_unreadable_for_as_long_as_it_likes(
    tmp_path: Path, late_collector: tuple[ScriptedCollector, CollectorLink]
) -> None:
    collector, link = late_collector
    async with run_shipper(tmp_path, link) as run:
        await run.flush()
        (envelope,) = (tmp_path / "spool").iterdir()
        envelope.rename(tmp_path / "aside")
        envelope.mkdir()
        for _ in range(sys.getrecursionlimit()):
            await run.failed()
            run.clock.advance(60)
        await run.failed()
        envelope.rmdir()
        (tmp_path / "aside").rename(envelope)
        async with collector.serving():
            run.retry()
            await run.shipped(1)
        assert sorted(collector.taken) == run.sent
