"""A machine that is simulated while it is read: for the demo, and for trying the agent out."""

from __future__ import annotations

from pathlib import Path

from agent.host import Clock
from agent.host.recorded import RecordedHost
from railscope.capture import Capture
from railscope.simulator.live import STEP_NS, LiveNode, LiveTimeline, read_live_node
from railscope.simulator.run import about


class SimulatedHost(RecordedHost):
    """Answers as the simulated node does at the present offset; it never starts over."""

    def __init__(self, node: LiveNode, clock: Clock) -> None:
        def offset_ns() -> int:
            return max(clock.now().boot_ns - node.started_boot_ns, 0)

        capture = Capture(about(node.spec, 0), ())
        super().__init__(capture, clock, offset_ns, LiveTimeline(node, offset_ns()))

    @property
    def grain_ns(self) -> int:
        """A step of the simulation."""
        return STEP_NS


def simulated_host(path: Path, clock: Clock) -> SimulatedHost:
    """Return the node of a file. Raises LiveError."""
    return SimulatedHost(read_live_node(path), clock)
