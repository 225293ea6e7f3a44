"""What acts on the job, the ports and the GPUs of a node during a span of time.

A scenario only states conditions; what follows from them is the physics of the job, the GPUs and the
ports. Every fault sets in at half time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from simulator.nic_models import LANES
from simulator.port_settings import USUAL, PortSettings
from simulator.span import Span
from simulator.spec import NodeSpec


@dataclass(frozen=True, slots=True)
class JobConditions:
    """How the job fares during a span."""

    present: float = 1.0
    exchange_pace: float = 1.0
    hung: bool = False


@dataclass(frozen=True, slots=True)
class PortConditions:
    """What acts on a port during a span. Shares are of the span's time.

    `pausing` and `paused` count only while the port receives or sends; `stuck` is the share in
    which nothing is taken in and pause goes out whether or not anyone sends. `lossy` is the share of
    what arrives that finds no room, because nothing holds the senders back. `margin_lost` is the
    share that is gone of what forward error correction can make up for, on the worst lane.
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
    margin_lost: float = 0.0
    lanes: int = LANES
    pcie_halved: Literal["", "lanes", "speed"] = ""
    pcie_errors: int = 0
    removed: bool = False
    settings: PortSettings = USUAL


@dataclass(frozen=True, slots=True)
class GpuConditions:
    """What acts on a GPU during a span, and what has become of it by its end.

    A hung one lets every call run into its timeout; where the driver is stuck, none comes back at all.
    Errors are those of the span; `link_errors` are of one NVLink. Rows are those marked for
    remapping by the end, after correctable and after uncorrectable errors.
    """

    thermal_resistance: float = 1.0
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
    """A healthy training job; what the others differ from."""

    def __init__(self, spec: NodeSpec, duration_ns: int) -> None:
        self.spec = spec
        self.onset_ns = duration_ns // 2
        self.duration_ns = duration_ns
        self.dice = spec.stream("scenario")

    def job(self, span: Span) -> JobConditions:
        """Say how the job fares."""
        del span
        return JobConditions()

    def port(self, rail: int | None, span: Span) -> PortConditions:
        """Say what acts on the port of a rail, or on a storage port."""
        return self.struck_port(span) if rail == self.spec.struck else PortConditions()

    def gpu(self, index: int, span: Span) -> GpuConditions:
        """Say what acts on a GPU."""
        return self.struck_gpu(span) if index == self.spec.struck else GpuConditions()

    def struck_port(self, span: Span) -> PortConditions:
        """Say what acts on the port the fault strikes."""
        del span
        return PortConditions()

    def struck_gpu(self, span: Span) -> GpuConditions:
        """Say what acts on the GPU the fault strikes."""
        del span
        return GpuConditions()

    def link_outages(self, rail: int | None) -> tuple[Span, ...]:
        """Say when the link of a port is down."""
        del rail
        return ()

    def reload_ns(self) -> int | None:
        """Say when the drivers are loaded anew."""
        return None

    def stray_gpu(self, span: Span) -> int | None:
        """Index of the GPU whose process nobody gave it to, at the end of a span."""
        del span
        return 0 if self.spec.stray else None

    def resets(self, span: Span) -> Sequence[int]:
        """Indices of the GPUs that are reset during a span."""
        del span
        return ()

    def onsets(self, span: Span) -> Sequence[tuple[int, Scenario]]:
        """Offsets and faults that set in during a span."""
        return ((self.onset_ns, self),) if span.passes(self.onset_ns) else ()


class SlowedExchange(Scenario):
    """A fault that slows the job's exchange down by a factor: all rails wait for the struck one."""

    slowest, fastest = 0.25, 0.7

    def __init__(self, spec: NodeSpec, duration_ns: int) -> None:
        super().__init__(spec, duration_ns)
        self.factor = self.dice.uniform(self.slowest, self.fastest)

    def job(self, span: Span) -> JobConditions:
        """Slower from the onset on."""
        lost = span.share_after(self.onset_ns) * (1.0 - self.factor)
        return JobConditions(exchange_pace=1.0 - lost)
