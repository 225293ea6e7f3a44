"""A collector that loses its disk or waiting evidence: the agent sends again, and the ledger on PostgreSQL is complete."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Collection
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace
from running_collector import RunningCollector, run_collector, settings_in
from support.clock import ManualClock
from support.finalizing import content
from support.postgresql import PostgreSQL
from support.shipping import RunningShipper, run_shipper
from support.story import (
    DAY,
    DAY_SECONDS,
    NodeReporter,
    at,
    claim_ended,
    claim_started,
    gpus_of,
)

from railscope.frame import FrameOrigin, NodeTimestamp
from railscope_agent.config import CollectorLink
from railscope_collector.config import (
    CollectorSettings,
    IngestLimits,
    LedgerSettings,
    MeteringSettings,
)
from railscope_simulator.demo.process import free_port

BOOTED_AT = -5000
SECOND = 1_000_000_000
MANUAL = MeteringSettings(period_seconds=300, quiet_seconds=120, finalize_delay_seconds=3600)


def settings_of(directory: Path, port: int, url: str = "") -> CollectorSettings:
    directory.mkdir()
    return settings_in(
        directory,
        listen=f"127.0.0.1:{port}",
        ledger=LedgerSettings(url=url),
        metering=MANUAL,
    )


@asynccontextmanager
async def collector_at(
    settings: CollectorSettings, clock: ManualClock
) -> AsyncIterator[RunningCollector]:
    """A collector on a clock that the test moves."""

    def prepare(one: RunningCollector) -> None:
        one.collector.clock.wall_ns = lambda: clock.now().wall_ns
        one.collector.clock.boot_ns = lambda: clock.now().boot_ns

    async with run_collector(settings, prepare) as running:
        yield running


async def damage_waiting_file(running: RunningCollector) -> str:
    """Move evidence to disk, write a checkpoint of all frames, and damage the file; return its name."""
    collector = running.collector
    await collector.finalizer.move_to_disk()
    assert await collector.checkpointer.write(collector.log.number + 1, 0)
    (name,) = collector.checkpointer.waiting.sizes
    path = collector.checkpointer.waiting.directory / name
    path.write_bytes(path.read_bytes()[:-1])
    return f"waiting/{name}"


async def compare_ledgers(collectors: Collection[RunningCollector], clock: ManualClock) -> None:
    """Store all evidence, and compare the days that are finalized a day later."""
    for each in collectors:
        await each.collector.finalizer.round(everything=True)
    clock.advance(DAY_SECONDS)
    found = []
    for each in collectors:
        await each.collector.finalizer.round()
        stores = each.collector.finalizer._stores  # noqa: SLF001 - reads its internal state
        assert stores is not None
        found.append(content(stores.ledger, range(DAY, DAY + 1)))
    assert found[0] == found[1]
    assert len(found[0]) == 1


@pytest.mark.parametrize("is_disk_lost", [True, False])
async def test_the_ledger_is_complete_after_the_loss_of_a_disk_or_a_waiting_file(
    tmp_path: Path, server: PostgreSQL, *, is_disk_lost: bool
):
    """The first frames are stored; then half an hour is received only, and its evidence is lost."""
    clock = ManualClock(NodeTimestamp(at(0), -BOOTED_AT * SECOND))
    url, port, other_port = server.database(), free_port(), free_port()
    node = NodeReporter(booted_at=BOOTED_AT)
    origin = FrameOrigin(node.node, node.run, node.boot_id)
    events = {
        60: [claim_started("GPU-0", "first", 60, tenant="alice")],
        4500: [claim_ended("GPU-0", "first", 4500)],
        4800: [claim_started("GPU-0", "second", 4800, tenant="bob")],
    }
    frames = node.frames(gpus_of("GPU-0"), range(0, 7201, 30), events=events)
    agents: list[RunningShipper] = []

    async def publish(until: int) -> None:
        """Let both agents send what is read until then, a minute at a time."""
        while clock.now().wall_ns < at(until):
            clock.advance(60)
            while frames and frames[0].timestamp.wall_ns <= clock.now().wall_ns:
                frame = frames.pop(0)
                for agent in agents:
                    agent.sent.append((node.node, node.run, "gpu", frame.sequence))
                    agent.shipper.publish(frame)
            for agent in agents:
                await agent.shipper.flush()
                await agent.shipped(len(agent.sent))
                await agent.shipper.wait_until_sent()

    async with AsyncExitStack() as stack:
        reference = await stack.enter_async_context(
            collector_at(settings_of(tmp_path / "reference", other_port), clock)
        )
        lost = replace(
            settings_of(tmp_path / "lost", port, url),
            limits=IngestLimits(pending_evidence_intervals=8),
        )
        async with collector_at(lost, clock) as first:
            for name, at_port in (("agent", port), ("other", other_port)):
                link = CollectorLink(url=f"http://127.0.0.1:{at_port}", token="token-n1")  # noqa: S106 - of a test
                agents.append(
                    await stack.enter_async_context(
                        run_shipper(tmp_path / name, link, origin, clock)
                    )
                )
            await publish(1800)
            await first.collector.finalizer.round()
            await publish(5400)
            assert 8 <= agents[0].stats.unstored_envelopes < 80, "the first quarters were stored"
            damaged = [] if is_disk_lost else [await damage_waiting_file(first)]
        if is_disk_lost:
            shutil.rmtree(lost.state_directory)
        async with collector_at(lost, clock) as second:
            assert list(second.collector.state_files.damage) == damaged
            await publish(7200)
            assert second.collector.core.counts.duplicates == 0
            await compare_ledgers((second, reference), clock)
            assert agents[0].stats.dropped_frames["rejected"] == 0
    server.drop(url)
