"""Cost of an agent that reads a capture or a simulated node, without the cost of the replay.

A replay holds its capture in memory and decodes answers that a node would have available. Neither is a cost
of the agent: budgets exclude them, and they have their own metrics. The cost of the answers on a node
(system calls, the driver) is not part of a replay.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from agent.host import Host
from agent.host.recorded import RecordedHost
from agent.sampling.meter import Meter, ProcessMeter

Made = TypeVar("Made", bound=RecordedHost)


class ReplayMeter(ProcessMeter):
    """Measures this process without the cost of its recorded host."""

    def __init__(self, host: RecordedHost) -> None:
        self.host = host

    def thread_cpu_ns(self) -> int:
        """Return the processor time of the calling thread, without decoding."""
        return super().thread_cpu_ns() - self.host.cost.thread_cpu_ns()

    def process_cpu_ns(self) -> int:
        """Return the processor time of all threads, without decoding."""
        return super().process_cpu_ns() - self.host.cost.cpu_ns()

    def resident_bytes(self) -> int:
        """Return the resident memory, without the capture."""
        return max(super().resident_bytes() - self.host.cost.resident_bytes, 0)


def meter_of(host: Host) -> Meter:
    """Return the meter for a host."""
    return ReplayMeter(host) if isinstance(host, RecordedHost) else ProcessMeter()


def with_memory_measured(make: Callable[[], Made]) -> Made:
    """Create a recorded host, and record the memory that its capture takes."""
    meter = ProcessMeter()
    meter.give_back()
    before = meter.resident_bytes()
    host = make()
    meter.give_back()
    host.cost.resident_bytes = max(meter.resident_bytes() - before, 0)
    return host
