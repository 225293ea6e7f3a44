"""A day of the agent in minutes: its sources on a clock moved by hand, and its memory.

Run as `python -m bench.long_run ROOT ANSWERS HOURS`; prints resident bytes after the first tenth
and at the end. Burst sampling reads at every window, the other sources at every tenth of their
ticks, and a metrics response is rendered each minute.
"""

from __future__ import annotations

import sys
from pathlib import Path

from bench import harness, node
from railscope.exposition import Exposition, TextFormat
from railscope.frame import Frame, FrameOrigin, NodeTimestamp
from railscope.timestamps import SECOND_NS
from railscope_agent.config import AgentSettings
from railscope_agent.machine_sources import machine_sources
from railscope_agent.sampling.source_reader import SourceReader

WINDOW_NS = SECOND_NS // 10
_SLOWER = 10
_MINUTE_NS = 60 * SECOND_NS
_BURST_SAMPLING = "nic_burst"


class ManualClock:
    """A clock that is moved by hand; no task sleeps on it."""

    def __init__(self) -> None:
        self.boot_ns = 1_000 * SECOND_NS

    def now(self) -> NodeTimestamp:
        """Return the wall and boot clock."""
        return NodeTimestamp(1_790_000_000 * SECOND_NS + self.boot_ns, self.boot_ns)

    async def sleep_until(self, boot_ns: int) -> None:
        """Return immediately."""
        self.boot_ns = max(self.boot_ns, boot_ns)

    @property
    def is_running(self) -> bool:
        """False: time does not pass by itself."""
        return False


def main(root: str, answers: str, hours: str) -> None:
    """Run and print."""
    clock = ManualClock()
    host = node.BenchHost(Path(root), Path(answers), clock)
    origin = FrameOrigin("bench", "run", "boot")
    readers = [SourceReader(source, host, origin) for source in machine_sources(AgentSettings())]
    due = {reader.source.name: clock.boot_ns for reader in readers}
    exposition, latest = Exposition(), dict[str, Frame]()
    started_ns = clock.boot_ns
    length_ns = round(float(hours) * 60) * _MINUTE_NS
    early = 0
    while clock.boot_ns - started_ns < length_ns:
        clock.boot_ns += WINDOW_NS
        for reader in readers:
            name = reader.source.name
            if clock.boot_ns < due[name]:
                continue
            factor = 1 if name == _BURST_SAMPLING else _SLOWER
            due[name] = clock.boot_ns + factor * round(reader.source.period_seconds * SECOND_NS)
            if frame := reader.run().frame:
                latest[name] = frame
        if clock.boot_ns % _MINUTE_NS == 0:
            exposition.render(latest.values(), TextFormat.PROMETHEUS)
        if not early and clock.boot_ns - started_ns >= length_ns // 10:
            early = harness.resident_bytes()
    sys.stdout.write(f"{early} {harness.resident_bytes()}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
