"""Run attacks against a real collector and write what each cost, as JSON.

The costs are those of a process: CPU time, the longest uninterrupted piece of work of the event loop
in CPU time, memory, and files. Each attack has its own, forked from this program, so that no other
test is in them.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from hostile.generators import (
    ATTACKS,
    BOOT,
    SECOND,
    SENT_SECONDS,
    START_BOOT_NS,
    START_WALL_NS,
)
from makers import FrameSender
from running_collector import RunningCollector, gpu_frames, run_collector, settings_in
from support.fork_server import serve

from railscope.wire import SentAt
from railscope_collector.config import IngestLimits

NEIGHBOUR = "n2"
RESULT = "result.json"


class MeteredLoop(asyncio.SelectorEventLoop):
    """An event loop that measures the CPU time of the longest callback that was scheduled at once."""

    longest_seconds = 0.0

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:
        """Schedule a callback, and measure it."""

        def measured(*given: Any) -> None:
            began = time.thread_time()
            try:
                callback(*given)
            finally:
                self.longest_seconds = max(self.longest_seconds, time.thread_time() - began)

        return super().call_soon(measured, *args, context=context)


async def run(directory: Path, name: str, loop: MeteredLoop) -> dict[str, Any]:
    """Post the bodies of an attack one after the other."""
    sent = SentAt(
        START_WALL_NS + SENT_SECONDS * SECOND, START_BOOT_NS + SENT_SECONDS * SECOND, BOOT
    )
    found: dict[str, Any] = {"statuses": [], "cpu_seconds": []}
    settings = settings_in(directory, limits=IngestLimits(), view_refresh_seconds=0.5)
    bodies = list(ATTACKS[name]())
    async with run_collector(settings) as running:
        status, _ = await running.post(b"", headers=sent.to_headers())
        assert status == 400
        loop.longest_seconds = 0.0
        before = _megabytes()
        for body in bodies:
            began = time.process_time()
            status, reply = await running.post(body, headers=sent.to_headers())
            found["cpu_seconds"].append(time.process_time() - began)
            found["statuses"].append(status)
            found["reply"] = reply
        found["longest_seconds"] = loop.longest_seconds
        found["memory_mib"] = _megabytes() - before
        found["faults"] = running.collector.core.counts.rejected.get("fault", 0)
        found["neighbour"] = await _neighbour(running)
    found["disk_mib"] = sum(
        path.stat().st_size for path in directory.rglob("*") if path.is_file()
    ) / (1 << 20)
    began = time.process_time()
    async with run_collector(settings) as running:
        found["restart_cpu_seconds"] = time.process_time() - began
        found["faults_at_restart"] = running.collector.core.counts.rejected.get("fault", 0)
    return found


async def _neighbour(one: RunningCollector) -> int:
    sender = FrameSender(NEIGHBOUR)
    status, _ = await one.post(sender.body(gpu_frames(sender), schemas=True), node=NEIGHBOUR)
    return status


def _megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _measure(directory: str, name: str) -> None:
    metered = MeteredLoop()
    files = Path(directory) / "collector"
    files.mkdir()
    outcome = metered.run_until_complete(run(files, name, metered))
    # Its threads may write to the log, which is on standard output, too.
    metered.run_until_complete(metered.shutdown_default_executor())
    metered.close()
    (Path(directory) / RESULT).write_text(json.dumps(outcome))


if __name__ == "__main__":
    serve(lambda *_: None, _measure)
