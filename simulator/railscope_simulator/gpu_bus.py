"""PCIe link of a GPU, and its C2C link if it has one: bytes in both directions."""

from __future__ import annotations

from dataclasses import dataclass

from railscope.timestamps import SECOND_NS
from railscope_simulator import training_job
from railscope_simulator.spec import TimeSpan

_CHECKPOINT_BYTES_PER_SECOND = 1_200_000_000
_DATA_BYTES_PER_SECOND = 900_000_000
_USUAL_BYTES_PER_SECOND = 15_000_000_000
_COMMAND_BYTES_PER_SECOND, _RESULT_BYTES_PER_SECOND = 6_000_000, 3_000_000
_REGISTER_BYTES_PER_SECOND = 50_000


@dataclass(slots=True)
class BusDirection:
    """Bytes in one direction since driver load, and bytes per second during the last span."""

    moved_bytes: int = 0
    bytes_per_second: float = 0.0

    def move(self, span: TimeSpan, amount_bytes: int) -> None:
        """Count the bytes of a span."""
        self.moved_bytes += amount_bytes
        self.bytes_per_second = amount_bytes / span.seconds


class GpuBus:
    """PCIe link of a GPU, and its C2C link if it has one, after the last span.

    A rail's traffic is the GPU's own memory, which its NIC reads and writes. Traffic to and from the
    processors is checkpoints, data and commands. All of it uses PCIe, except on a module with a Grace
    processor: there the NIC is attached to the processor, and its reads and writes use C2C as well. The
    GPU's own PCIe link then carries only the driver's register accesses.
    """

    def __init__(self, *, grace: bool, uptime_ns: int) -> None:
        self.grace = grace
        rate = _REGISTER_BYTES_PER_SECOND if grace else _USUAL_BYTES_PER_SECOND
        usual = rate * uptime_ns // SECOND_NS
        self.pcie_out, self.pcie_in = BusDirection(usual), BusDirection(usual)
        self.c2c_out, self.c2c_in = BusDirection(), BusDirection()

    def reload(self) -> None:
        """Reset the counters, as after a driver load."""
        for way in (self.pcie_out, self.pcie_in):
            way.moved_bytes = 0

    def advance(
        self, span: TimeSpan, demand: training_job.JobDemand, rail_bytes: tuple[int, int]
    ) -> None:
        """Advance by a span in which the rail's NIC sent and received this many bytes."""
        outward = int(
            span.seconds
            * (
                _CHECKPOINT_BYTES_PER_SECOND * demand.checkpoint
                + _RESULT_BYTES_PER_SECOND * demand.occupied
            )
        )
        inward = int(
            span.seconds
            * (_DATA_BYTES_PER_SECOND * demand.fetch + _COMMAND_BYTES_PER_SECOND * demand.occupied)
        )
        sent, received = rail_bytes
        outward, inward = outward + sent, inward + received
        if self.grace:
            self.c2c_out.move(span, outward)
            self.c2c_in.move(span, inward)
            outward = inward = int(span.seconds * _REGISTER_BYTES_PER_SECOND * demand.occupied)
        self.pcie_out.move(span, outward)
        self.pcie_in.move(span, inward)
