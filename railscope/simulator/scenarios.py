"""The faults: what each scenario changes in the job, the ports and the GPUs, and when.

A scenario only states conditions for a span of time; what follows from them is the physics of the
job, the GPUs and the ports. Every fault sets in at half time.
"""

from __future__ import annotations

from dataclasses import dataclass

from railscope.simulator.span import Span, seconds
from railscope.simulator.spec import NodeSpec


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
    which nothing is taken in and pause goes out whether or not anyone sends.
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


@dataclass(frozen=True, slots=True)
class GpuConditions:
    """What acts on a GPU during a span, and what has happened to its memory by its end."""

    thermal_resistance: float = 1.0
    lost: bool = False
    corrected_errors: int = 0
    rows_to_remap: int = 0


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

    def link_outage(self, rail: int | None) -> Span | None:
        """Say when the link of a port is down."""
        del rail
        return None

    def reload_ns(self) -> int | None:
        """Say when the drivers are loaded anew."""
        return None


class Idle(Scenario):
    """No job at all."""

    def job(self, span: Span) -> JobConditions:
        """There is none."""
        del span
        return JobConditions(present=0.0)


class _SlowedExchange(Scenario):
    """A fault that slows the job's exchange down by a factor: all rails wait for the struck one."""

    slowest, fastest = 0.25, 0.7

    def __init__(self, spec: NodeSpec, duration_ns: int) -> None:
        super().__init__(spec, duration_ns)
        self.factor = self.dice.uniform(self.slowest, self.fastest)

    def job(self, span: Span) -> JobConditions:
        """Slower from the onset on."""
        lost = span.share_after(self.onset_ns) * (1.0 - self.factor)
        return JobConditions(exchange_pace=1.0 - lost)


class Incast(_SlowedExchange):
    """Receiver of an incast: the port's queue at the switch fills, ECN holds it down."""

    slowest, fastest = 0.36, 0.78

    def __init__(self, spec: NodeSpec, duration_ns: int) -> None:
        super().__init__(spec, duration_ns)
        self.load = self.dice.uniform(0.86, 0.95)
        self.marked = self.dice.uniform(0.04, 0.25)

    def struck_port(self, span: Span) -> PortConditions:
        """Fill up with what others send, and much of it is marked."""
        share = span.share_after(self.onset_ns)
        return PortConditions(foreign_receive=share * self.load, marked=share * self.marked)


class PauseStorm(_SlowedExchange):
    """The NIC's receive pipeline is stuck; stall prevention lets go of the pause at times.

    The NIC pauses until the stall prevention timeout (tunable pfc-prevention-tout, here 2 s) lets
    it drop packets for a moment; the warning comes at 85 % of the timeout
    (linux: drivers/net/ethernet/mellanox/mlx5/core/en_ethtool.c).
    """

    slowest, fastest = 0.02, 0.1
    timeout_ns = seconds(2.0)
    warning_ns = seconds(2.0 * 0.85)
    cycle_ns = seconds(2.25)

    def struck_port(self, span: Span) -> PortConditions:
        """Stuck but for the moments in which it drops."""
        first = Span(self.onset_ns, self.onset_ns + self.timeout_ns)
        stuck = span.share_recurring(first, self.cycle_ns)
        return PortConditions(
            stuck=stuck,
            unprotected=span.share_after(self.onset_ns) - stuck,
            storm_warnings=span.count_recurring(self.onset_ns + self.warning_ns, self.cycle_ns),
            storm_errors=span.count_recurring(first.end_ns, self.cycle_ns),
        )


class SlowReceiver(_SlowedExchange):
    """PCIe takes the data too slowly: the NIC's buffer fills and it pauses the switch."""

    def __init__(self, spec: NodeSpec, duration_ns: int) -> None:
        super().__init__(spec, duration_ns)
        self.pausing = self.dice.uniform(0.1, 0.35)
        self.stall_percent = self.dice.uniform(40.0, 80.0)

    def struck_port(self, span: Span) -> PortConditions:
        """Pauses while it receives, and waits for PCIe writes."""
        share = span.share_after(self.onset_ns)
        return PortConditions(
            pausing=share * self.pausing,
            marked=share * 0.01,
            pcie_write_stall_percent=share * self.stall_percent,
        )


class PfcVictim(_SlowedExchange):
    """Congestion elsewhere has reached the leaf, and the switch pauses us."""

    slowest, fastest = 0.2, 0.55

    def __init__(self, spec: NodeSpec, duration_ns: int) -> None:
        super().__init__(spec, duration_ns)
        self.paused = self.dice.uniform(0.1, 0.3)

    def struck_port(self, span: Span) -> PortConditions:
        """Paused while it sends."""
        return PortConditions(paused=span.share_after(self.onset_ns) * self.paused)


class Thermal(Scenario):
    """Dust, a dead fan, a loose heat sink: heat leaves the GPU too slowly."""

    def struck_gpu(self, span: Span) -> GpuConditions:
        """Badly cooled from the onset on."""
        return GpuConditions(thermal_resistance=1.0 + 1.4 * span.share_after(self.onset_ns))


class Xid79(Scenario):
    """A GPU falls off the bus and takes the job with it."""

    def job(self, span: Span) -> JobConditions:
        """Hung: the other ranks wait for the lost one."""
        return JobConditions(hung=span.end_ns > self.onset_ns)

    def struck_gpu(self, span: Span) -> GpuConditions:
        """Lost."""
        return GpuConditions(lost=self.onset_ns <= span.end_ns)


class RowRemap(Scenario):
    """One memory address needs correction again and again, and its row is marked for remapping."""

    errors = 12

    def struck_gpu(self, span: Span) -> GpuConditions:
        """One row waits for a reset."""
        struck = self.onset_ns <= span.end_ns
        return GpuConditions(
            corrected_errors=self.errors if span.passes(self.onset_ns) else 0,
            rows_to_remap=int(struck),
        )


class LinkFlap(Scenario):
    """The link of one rail is down for some seconds; the job waits for it."""

    def __init__(self, spec: NodeSpec, duration_ns: int) -> None:
        super().__init__(spec, duration_ns)
        length_ns = min(seconds(self.dice.uniform(3.0, 8.0)), duration_ns // 4)
        self.outage = Span(self.onset_ns, self.onset_ns + length_ns)

    def job(self, span: Span) -> JobConditions:
        """Nothing is exchanged during the outage."""
        return JobConditions(exchange_pace=1.0 - span.share_in(self.outage))

    def link_outage(self, rail: int | None) -> Span | None:
        """Say when the link is down."""
        return self.outage if rail == self.spec.struck else None


class CounterReset(Scenario):
    """The drivers are loaded anew; the job had to go for that and starts again soon after."""

    def job(self, span: Span) -> JobConditions:
        """Away for a while around the reload."""
        length_ns = min(seconds(10.0), self.duration_ns // 6)
        gap = Span(self.onset_ns - length_ns // 5, self.onset_ns + length_ns)
        return JobConditions(present=1.0 - span.share_in(gap))

    def reload_ns(self) -> int | None:
        """Say when the drivers are loaded anew."""
        return self.onset_ns


_BY_NAME: dict[str, type[Scenario]] = {
    "idle": Idle,
    "training": Scenario,
    "incast": Incast,
    "pause_storm": PauseStorm,
    "slow_receiver": SlowReceiver,
    "pfc_victim": PfcVictim,
    "thermal": Thermal,
    "xid79": Xid79,
    "row_remap": RowRemap,
    "link_flap": LinkFlap,
    "counter_reset": CounterReset,
}


def scenario_of(spec: NodeSpec, duration_ns: int) -> Scenario:
    """Make the scenario a spec names, for a simulation of this length."""
    return _BY_NAME[spec.scenario](spec, duration_ns)
