"""Readiness: a collector whose ledger or disk cannot be written is not ready, and is ready again once they can."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

from makers import FrameSender
from running_collector import RunningCollector, gpu_frames, run_collector, settings_in
from support.disk import small_file_system

from railscope_collector.http.write_probes import REUSE_SECONDS, WriteProbe

UNWRITABLE = "cannot write the ledger; the collector's log has the reason"


async def test_callers_share_one_write_and_its_result_is_reused_for_a_while():
    now, results = 0.0, iter(["", "gone: /secret/path", ""])
    written = []

    async def write() -> str:
        await asyncio.sleep(0)
        written.append(next(results))
        return written[-1]

    probe = WriteProbe("the ledger", write, lambda: now)
    assert await asyncio.gather(*(probe.problem() for _ in range(50))) == [""] * 50
    assert len(written) == 1
    now += REUSE_SECONDS
    assert [await probe.problem(), await probe.problem()] == [UNWRITABLE] * 2
    assert len(written) == 2
    now += REUSE_SECONDS
    assert await probe.problem() == ""


async def test_a_fault_of_the_write_is_a_problem():
    async def write() -> str:
        raise OSError(5, "input/output error")

    assert await WriteProbe("the ledger", write).problem() == UNWRITABLE


async def test_a_write_that_does_not_end_is_a_problem_and_is_not_repeated():
    ended, started = asyncio.Event(), 0

    async def hang() -> str:
        nonlocal started
        started += 1
        await ended.wait()
        return ""

    probe = WriteProbe("the ledger", hang, wait_seconds=0.05)
    for _ in range(2):
        assert await probe.problem() == "no write to the ledger has succeeded for 0.05 s"
    assert started == 1
    ended.set()
    await probe.close()
    assert await probe.problem() == ""


async def test_a_collector_with_a_full_disk_is_not_ready_until_there_is_space(tmp_path: Path):
    """Agents with another collector leave it, and return once it is ready."""
    sender, clock = FrameSender("n1"), itertools.count(step=REUSE_SECONDS)

    def prepare(one: RunningCollector) -> None:
        for probe in one.collector.probes:
            probe.monotonic = lambda: float(next(clock))

    state = tmp_path / "state"
    state.mkdir()
    with small_file_system(state / "frames", 32 << 10) as disk:
        async with run_collector(settings_in(tmp_path), prepare) as running:
            assert (await running.post(sender.body(gpu_frames(sender), schemas=True)))[0] == 200
            async with asyncio.timeout(60):
                while (await running.get("/-/ready"))[0] != 200:  # noqa: ASYNC110 - over HTTP there is no event
                    await asyncio.sleep(0.02)
            filler = disk / "filler"
            filler.write_bytes(bytes(20 << 20))
            problem = "cannot write the frame log; the collector's log has the reason"
            assert await running.get("/-/ready") == (503, f"not ready: {problem}\n")
            assert (await running.post(sender.body(gpu_frames(sender, 10))))[0] == 200
            filler.unlink()
            assert (await running.get("/-/ready"))[0] == 200
