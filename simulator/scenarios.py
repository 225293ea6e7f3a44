"""Faults by name: the changes of each scenario to the job and the ports, and their times.

GPU faults are in `gpu_scenarios`, those of links and NICs in `port_scenarios`.
"""

from __future__ import annotations

from simulator.conditions import JobConditions, PortConditions, Scenario, SlowedExchange
from simulator.gpu_scenarios import (
    DriverStuck,
    EccUncorrected,
    GpuHung,
    NvlinkErrors,
    NvmlDenied,
    RowRemap,
    Thermal,
    Xid79,
)
from simulator.port_scenarios import (
    Flapping,
    NicLost,
    OpticsFading,
    Outages,
    PcieDegraded,
    SettingsDrift,
    SpeedDown,
)
from simulator.span import Span, seconds
from simulator.spec import NodeSpec


class Idle(Scenario):
    """No job."""

    def job(self, span: Span) -> JobConditions:
        """Return conditions without a job."""
        del span
        return JobConditions(present=0.0)


class Incast(SlowedExchange):
    """Receiver of an incast: the port's queue at the switch fills, ECN limits it."""

    slowest, fastest = 0.36, 0.78

    def __init__(self, spec: NodeSpec, duration_ns: int) -> None:
        super().__init__(spec, duration_ns)
        self.load = self.dice.uniform(0.86, 0.95)
        self.marked = self.dice.uniform(0.04, 0.25)

    def struck_port(self, span: Span) -> PortConditions:
        """Fully loaded by other senders, with much of the traffic marked."""
        share = span.share_after(self.onset_ns)
        return PortConditions(foreign_receive=share * self.load, marked=share * self.marked)


class PauseStorm(SlowedExchange):
    """The NIC's receive pipeline is stuck; stall prevention releases the pause at times.

    The NIC pauses until the stall prevention timeout (tunable pfc-prevention-tout, here 2 s) makes it
    drop packets briefly; the warning is issued at 85 % of the timeout (linux:
    drivers/net/ethernet/mellanox/mlx5/core/en_ethtool.c).
    """

    slowest, fastest = 0.02, 0.1
    timeout_ns = seconds(2.0)
    warning_ns = seconds(2.0 * 0.85)
    cycle_ns = seconds(2.25)

    def struck_port(self, span: Span) -> PortConditions:
        """Stuck except for the short times in which it drops."""
        first = Span(self.onset_ns, self.onset_ns + self.timeout_ns)
        stuck = span.share_recurring(first, self.cycle_ns)
        return PortConditions(
            stuck=stuck,
            unprotected=span.share_after(self.onset_ns) - stuck,
            storm_warnings=span.count_recurring(self.onset_ns + self.warning_ns, self.cycle_ns),
            storm_errors=span.count_recurring(first.end_ns, self.cycle_ns),
        )


class SlowReceiver(SlowedExchange):
    """PCIe accepts the data too slowly: the NIC's buffer fills and it pauses the switch."""

    min_pausing, max_pausing = 0.1, 0.35

    def __init__(self, spec: NodeSpec, duration_ns: int) -> None:
        super().__init__(spec, duration_ns)
        self.pausing = self.dice.uniform(self.min_pausing, self.max_pausing)
        self.stall_percent = self.dice.uniform(40.0, 80.0)

    def struck_port(self, span: Span) -> PortConditions:
        """Pauses while it receives, and waits for PCIe writes."""
        share = span.share_after(self.onset_ns)
        return PortConditions(
            pausing=share * self.pausing,
            marked=share * 0.01,
            pcie_write_stall_percent=share * self.stall_percent,
        )


class StalledReceiver(SlowReceiver):
    """The same, more severe: the NIC pauses the switch for most of the time in which it receives."""

    min_pausing, max_pausing = 0.55, 0.7


class PfcVictim(SlowedExchange):
    """Congestion elsewhere has reached the leaf, and the switch pauses this port."""

    slowest, fastest = 0.2, 0.55

    def __init__(self, spec: NodeSpec, duration_ns: int) -> None:
        super().__init__(spec, duration_ns)
        self.paused = self.dice.uniform(0.1, 0.3)

    def struck_port(self, span: Span) -> PortConditions:
        """Paused while it sends."""
        return PortConditions(paused=span.share_after(self.onset_ns) * self.paused)


class LinkFlap(Scenario):
    """The link of one rail is down for some seconds; the job waits for it."""

    def __init__(self, spec: NodeSpec, duration_ns: int) -> None:
        super().__init__(spec, duration_ns)
        length_ns = min(seconds(self.dice.uniform(3.0, 8.0)), duration_ns // 4)
        self.outage = Span(self.onset_ns, self.onset_ns + length_ns)

    def job(self, span: Span) -> JobConditions:
        """Nothing is exchanged during the outage."""
        return JobConditions(exchange_pace=1.0 - span.share_in(self.outage))

    def link_outages(self, rail: int | None) -> tuple[Span, ...]:
        """Return the spans in which the link is down."""
        return (self.outage,) if rail == self.spec.struck else ()


class LinkDown(Outages):
    """A cable was pulled: the link of one rail stays down, and the job waits for it."""

    def __init__(self, spec: NodeSpec, duration_ns: int) -> None:
        super().__init__(spec, duration_ns)
        self.outages = (Span(self.onset_ns, duration_ns),)


class Unclaimed(Scenario):
    """A person starts a process on a GPU, bypassing the scheduler."""

    def stray_gpu(self, span: Span) -> int | None:
        """Return the struck GPU from the onset on."""
        return self.spec.struck if self.onset_ns <= span.end_ns else super().stray_gpu(span)


class CounterReset(Scenario):
    """The drivers are reloaded; the job stops for it and restarts soon after."""

    def job(self, span: Span) -> JobConditions:
        """No job for a while around the reload."""
        length_ns = min(seconds(10.0), self.duration_ns // 6)
        gap = Span(self.onset_ns - length_ns // 5, self.onset_ns + length_ns)
        return JobConditions(present=1.0 - span.share_in(gap))

    def reload_ns(self) -> int | None:
        """Return the time at which the drivers are reloaded."""
        return self.onset_ns


_BY_NAME: dict[str, type[Scenario]] = {
    "idle": Idle,
    "training": Scenario,
    "incast": Incast,
    "pause_storm": PauseStorm,
    "slow_receiver": SlowReceiver,
    "stalled_receiver": StalledReceiver,
    "pfc_victim": PfcVictim,
    "thermal": Thermal,
    "xid79": Xid79,
    "row_remap": RowRemap,
    "link_down": LinkDown,
    "link_flap": LinkFlap,
    "flapping": Flapping,
    "speed_down": SpeedDown,
    "optics": OpticsFading,
    "nic_lost": NicLost,
    "pcie_degraded": PcieDegraded,
    "settings_drift": SettingsDrift,
    "counter_reset": CounterReset,
    "nvlink_errors": NvlinkErrors,
    "ecc_uncorrected": EccUncorrected,
    "gpu_hung": GpuHung,
    "driver_stuck": DriverStuck,
    "unclaimed": Unclaimed,
    "nvml_denied": NvmlDenied,
}


def scenario_of(spec: NodeSpec, duration_ns: int) -> Scenario:
    """Return the scenario that a spec names, for a simulation of this length."""
    return _BY_NAME[spec.scenario](spec, duration_ns)
