"""A start on a full disk: data is served, frames are deferred, and it continues with free space."""

from __future__ import annotations

from pathlib import Path

from makers import FrameSender
from running_collector import RunningCollector, gpu_frames, run_collector, settings_in
from support.waiting import wait_until

from railscope_collector.audit.ledger_watch import KNOWN_HEAD_FILE

FULL = "cannot write the state directory: No space left on device"


async def test_a_start_on_a_full_disk_serves_what_is_known_and_goes_on_by_itself(
    tmp_path: Path,
) -> None:
    sender = FrameSender("n1")
    state = tmp_path / "state"

    async def is_head_kept() -> bool:
        return (state / KNOWN_HEAD_FILE).exists()

    async with run_collector(settings_in(tmp_path)) as running:
        status, _ = await running.post(sender.body(gpu_frames(sender), schemas=True))
        assert status == 200
        await wait_until(is_head_kept, "the thread that checks the ledger has written its file")
    full = [True]
    before = {path: path.read_bytes() for path in state.rglob("*") if path.is_file()}

    def prepare(one: RunningCollector) -> None:
        one.collector.find_write_problem = lambda _directory: FULL if full[0] else ""
        one.collector.disk_retry_seconds = 0.02

    async with run_collector(settings_in(tmp_path), prepare) as running:
        status, text = await running.get("/-/ready")
        assert (status, text) == (503, f"not ready: read-only: {FULL}\n")
        assert (await running.get("/-/healthy"))[0] == 200
        assert (await running.get("/metrics"))[0] == 200
        assert "n1" in (await running.get("/api/v1/nodes"))[1]
        status, answer = await running.post(sender.body(gpu_frames(sender, 10)))
        assert (status, answer["error"]) == (503, FULL)
        after = {path: path.read_bytes() for path in state.rglob("*") if path.is_file()}
        assert after == before, "nothing is written"
        full[0] = False
        first = running.url

        async def goes_on() -> bool:
            return running.url != first and (await running.get("/-/ready"))[0] == 200

        await wait_until(goes_on, "it takes frames again")
        status, _ = await running.post(sender.body(gpu_frames(sender, 10)))
        assert status == 200
