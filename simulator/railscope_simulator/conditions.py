"""Conditions of the job, the ports and the GPUs of a node during a span of time.

A scenario states conditions only; the physics of the job, the GPUs and the ports determines the
consequences. Every fault begins at half time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from railscope_simulator import device_models
from railscope_simulator.port import USUAL, PortSettings
from railscope_simulator.spec import NodeSpec, TimeSpan


@dataclass(frozen=True, slots=True)
class JobConditions:
    """Conditions of the job during a span."""

    present: float = 1.0
    exchange_speed: float = 1.0
    hung: bool = False


@dataclass(frozen=True, slots=True)
class HostConditions:
    """Conditions of the host during a span, as shares of its time or of the processors.

    `contention` is the share in which tasks wait for a processor, `used` the share of processors that other
    processes use, `input_stall` the share in which tasks wait for storage. `latencies` are response times of
    the file servers, relative to the usual ones; the job uses the server `input_server`.
    """

    contention: float = 0.0
    used: float = 0.0
    input_stall: float = 0.0
    latencies: tuple[float, ...] = ()
    input_server: int = 0


@dataclass(frozen=True, slots=True)
class PortConditions:
    """Conditions of a port during a span. Shares are of the span's time.

    `pausing` and `paused` count only while the port receives or sends; `stuck` is the share in which the
    port accepts nothing and sends pause frames with or without traffic. `lossy` is the share of arriving
    traffic that finds no buffer, because no flow control limits the senders. `notified` is the share of sent
    packets that receivers send notifications for; `lost_received` and `lost_sent` are shares of packets that
    switches lose on the way to the port, and from it. `ignored` is the share of received notifications that
    the port ignores; `misprioritized_sent` and `misprioritized_received` are shares of packets outside the
    lossless priority; `unanswered` is the share in which the port sends to receivers that do not respond.
    `retransmitted` is the share of sent packets that adaptive retransmission repeats without a loss.
    `marking` and `switch_pauses` are the shares of usual marks and of usual pause that the leaf switch adds.
    `margin_lost` is the share lost of the errors that forward error correction can correct, on the worst lane.
    """

    foreign_receive: float = 0.0
    marked: float = 0.0
    pausing: float = 0.0
    paused: float = 0.0
    stuck: float = 0.0
    unprotected: float = 0.0
    storm_warnings: int = 0
    storm_errors: int = 0
    pcie_write_stall_percent: float = 0.0
    lossy: float = 0.0
    notified: float = 0.0
    lost_received: float = 0.0
    lost_sent: float = 0.0
    ignored: float = 0.0
    retransmitted: float = 0.0
    marking: float = 1.0
    switch_pauses: float = 1.0
    misprioritized_sent: float = 0.0
    misprioritized_received: float = 0.0
    unanswered: float = 0.0
    margin_lost: float = 0.0
    lanes: int = device_models.LANES
    pcie_halved: Literal["", "lanes", "speed"] = ""
    pcie_errors: int = 0
    removed: bool = False
    settings: PortSettings = USUAL


@dataclass(frozen=True, slots=True)
class GpuConditions:
    """Conditions of a GPU during a span, and its state at the end.

    `brake` is the share of time in which the power supply requests the lowest clock. On a hung GPU every call runs into its timeout; with a stuck driver, no call returns. Errors are those
    of the span; `link_errors` are of one NVLink. Rows are those marked for remapping by the end, after
    correctable and after uncorrectable errors.
    """

    thermal_resistance: float = 1.0
    brake: float = 0.0
    lost: bool = False
    hung: bool = False
    stuck: bool = False
    denied: bool = False
    corrected_errors: int = 0
    uncorrected_errors: int = 0
    link_errors: int = 0
    correctable_rows: int = 0
    uncorrectable_rows: int = 0
    recovery_action: int = 0


class Scenario:
    """A healthy training job; base class of all other scenarios."""

    hangs_job = False
    """True if the other ranks wait for the affected device forever, from the onset on."""
    gpu_from_onset = GpuConditions()
    """Conditions of the affected GPU from the onset on."""
    port_from_onset = PortConditions()
    """Conditions of the affected port from the onset on."""

    def __init__(self, spec: NodeSpec, duration_ns: int) -> None:
        self.spec = spec
        self.onset_ns = duration_ns // 2
        self.duration_ns = duration_ns
        self.rng = spec.stream("scenario")

    def job(self, span: TimeSpan) -> JobConditions:
        """Return the job's conditions."""
        return JobConditions(hung=self.hangs_job and span.end_ns > self.onset_ns)

    def port(self, rail: int | None, span: TimeSpan) -> PortConditions:
        """Return the conditions of the port of a rail, or of a storage port."""
        return self.affected_port(span) if rail == self.spec.affected_index else PortConditions()

    def gpu(self, index: int, span: TimeSpan) -> GpuConditions:
        """Return the conditions of a GPU."""
        return self.affected_gpu(span) if index == self.spec.affected_index else GpuConditions()

    def affected_port(self, span: TimeSpan) -> PortConditions:
        """Return the conditions of the port that the fault affects."""
        return self.port_from_onset if self.onset_ns <= span.end_ns else PortConditions()

    def affected_gpu(self, span: TimeSpan) -> GpuConditions:
        """Return the conditions of the GPU that the fault affects."""
        return self.gpu_from_onset if self.onset_ns <= span.end_ns else GpuConditions()

    def link_outages(self, rail: int | None, span: TimeSpan) -> tuple[TimeSpan, ...]:
        """Return the spans in which the link of a port is down; those outside of `span` may be left out."""
        del rail, span
        return ()

    def reload_ns(self) -> int | None:
        """Return the time at which the drivers are reloaded."""
        return None

    def unclaimed_gpu(self, span: TimeSpan) -> int | None:
        """Index of the GPU with an unclaimed process, at the end of a span."""
        del span
        return 0 if self.spec.unclaimed else None

    def application_errors(self, span: TimeSpan) -> Sequence[tuple[int, int, int]]:
        """Offsets, GPU indices and Xids of errors of applications during a span."""
        del span
        return ()

    def resets(self, span: TimeSpan) -> Sequence[int]:
        """Indices of the GPUs that are reset during a span."""
        del span
        return ()

    def onsets(self, span: TimeSpan) -> Sequence[tuple[int, Scenario]]:
        """Offsets and faults that begin during a span."""
        return ((self.onset_ns, self),) if span.passes(self.onset_ns) else ()


class SlowedExchange(Scenario):
    """Fault that slows the job's exchange down by a factor: all rails wait for the affected one."""

    slowest, fastest = 0.25, 0.7

    def __init__(self, spec: NodeSpec, duration_ns: int) -> None:
        super().__init__(spec, duration_ns)
        self.factor = self.rng.uniform(self.slowest, self.fastest)

    def job(self, span: TimeSpan) -> JobConditions:
        """Slower from the onset on."""
        lost = span.share_after(self.onset_ns) * (1.0 - self.factor)
        return JobConditions(exchange_speed=1.0 - lost)
