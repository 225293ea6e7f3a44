"""Clocks that jump: sampling follows the boot clock and records the wall clock."""

from __future__ import annotations

from support.clock import NS, START
from support.machine import FakeHost
from support.rdma_nics import add_nic
from support.sampling import run_sampler

from railscope_agent.sampling.status import OK
from railscope_agent.sources.rdma import RdmaSource

HOUR = 3600


async def test_steps_of_the_wall_clock_change_no_order_and_miss_no_tick() -> None:
    host = FakeHost()
    add_nic(host)
    async with run_sampler(host, [RdmaSource()]) as run:
        for step in (0, -HOUR, 2 * HOUR, -10 * 365 * 24 * HOUR):
            run.clock.step_wall(step)
            await run.step()
        status = run.sampler.statuses["rdma"]
        assert (status.state, status.reads, status.missed_ticks) == (OK, 5, 0)
        boot = [frame.timestamp.boot_ns for frame in run.frames]
        assert [later - START.boot_ns for later in boot] == [n * NS for n in range(5)]
        wall = [frame.timestamp.wall_ns for frame in run.frames]
        assert wall != sorted(wall)
        assert wall[2] - wall[1] == (1 - HOUR) * NS


async def test_a_suspended_machine_misses_ticks_and_reads_once() -> None:
    """The boot clock continues; the missed readings of the hour are not repeated."""
    host = FakeHost()
    add_nic(host)
    async with run_sampler(host, [RdmaSource()]) as run:
        await run.step(HOUR)
        status = run.sampler.statuses["rdma"]
        assert status.reads == 2
        await run.step()
        assert status.reads == 3
        assert [f.timestamp.boot_ns - START.boot_ns for f in run.frames] == [
            0,
            HOUR * NS,
            (HOUR + 1) * NS,
        ]


async def test_ticks_lie_on_a_grid_that_all_nodes_share() -> None:
    """Periods are counted from boot, not from the agent's start: no drift, and one wake-up."""
    host = FakeHost()
    add_nic(host)
    host.clock.advance(0.3)
    async with run_sampler(host, [RdmaSource()]) as run:
        await run.step(0.7)
        await run.step(1.0)
        assert [f.timestamp.boot_ns % NS for f in run.frames] == [3 * NS // 10, 0, 0]
