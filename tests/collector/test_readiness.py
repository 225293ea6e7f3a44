"""Readiness: a collector whose ledger or disk cannot be written is not ready, and is ready again once they can."""

from __future__ import annotations

import itertools
from pathlib import Path

from makers import FrameSender
from running_collector import RunningCollector, gpu_frames, run_collector, settings_in
from support.disk import small_file_system
from support.waiting import wait_until

from railscope_collector.http.write_probes import REUSE_SECONDS


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

            async def is_ready() -> bool:
                return (await running.get("/-/ready"))[0] == 200

            await wait_until(is_ready, "the collector is ready")
            filler = disk / "filler"
            filler.write_bytes(bytes(20 << 20))
            problem = "cannot write the frame log; the collector's log has the reason"
            assert await running.get("/-/ready") == (503, f"not ready: {problem}\n")
            assert (await running.post(sender.body(gpu_frames(sender, 10))))[0] == 200
            filler.unlink()
            assert (await running.get("/-/ready"))[0] == 200
