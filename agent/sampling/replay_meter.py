"""Cost of an agent that reads a capture or a simulated node, apart from the cost of the replay.

A replay holds its capture in memory and decodes an answer where a server has one at hand. Neither is a
cost of the agent: budgets are kept without it, and it is reported by metrics of its own. What a server
would need to answer (system calls, the driver) is not in a replay at all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from agent.host import Host
from agent.host.recorded import RecordedHost
from agent.sampling.meter import Meter, ProcessMeter

Made = TypeVar("Made", bound=RecordedHost)


class ReplayMeter(ProcessMeter):
    """Measures this process without what its recorded host takes."""

    def __init__(self, host: RecordedHost) -> None:
        self.host = host

    def thread_cpu_ns(self) -> int:
        """Processor time of the calling thread, without decoding."""
        return super().thread_cpu_ns() - self.host.cost.thread_cpu_ns()

    def process_cpu_ns(self) -> int:
        """Processor time of all threads, without decoding."""
        return super().process_cpu_ns() - self.host.cost.cpu_ns()

    def resident_bytes(self) -> int:
        """Resident memory, without the capture."""
        return max(super().resident_bytes() - self.host.cost.resident_bytes, 0)


def meter_of(host: Host) -> Meter:
    """The meter that fits a host."""
    return ReplayMeter(host) if isinstance(host, RecordedHost) else ProcessMeter()


def with_memory_measured(make: Callable[[], Made]) -> Made:
    """Make a recorded host, and note the memory that its capture takes."""
    meter = ProcessMeter()
    meter.give_back()
    before = meter.resident_bytes()
    host = make()
    meter.give_back()
    host.cost.resident_bytes = max(meter.resident_bytes() - before, 0)
    return host
