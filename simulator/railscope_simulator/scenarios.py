"""Faults by name: the changes of each scenario to the job, the GPUs and the ports, and their times.

Faults of GPUs, of links, NICs and settings, and of the traffic, with the effect of each on the
device that it affects and on the job.
"""

from __future__ import annotations

from typing import Literal

from railscope_simulator import conditions, device_models, port, training_job
from railscope_simulator.spec import NodeSpec, TimeSpan, seconds_to_ns

# Recovery actions (nvml.h, nvmlDeviceGpuRecoveryAction_t).
GPU_RESET, NODE_REBOOT, DRAIN_AND_RESET = 1, 2, 4


class ThermalThrottling(conditions.Scenario):
    """Dust, a failed fan or a loose heat sink: insufficient cooling."""

    def affected_gpu(self, span: TimeSpan) -> conditions.GpuConditions:
        """Insufficient cooling from the onset on."""
        return conditions.GpuConditions(
            thermal_resistance=1.0 + 1.4 * span.share_after(self.onset_ns)
        )


class Xid79(conditions.Scenario):
    """A GPU falls off the bus, which stops the job."""

    hangs_job, gpu_from_onset = True, conditions.GpuConditions(lost=True)


class GpuHung(conditions.Scenario):
    """The firmware of a GPU stops responding to the driver, and the job waits.

    Every call runs into its timeout.
    """

    hangs_job, gpu_from_onset = True, conditions.GpuConditions(hung=True)


class DriverStuck(conditions.Scenario):
    """A driver thread holds the lock of a GPU permanently: calls for this GPU never return."""

    hangs_job, gpu_from_onset = True, conditions.GpuConditions(stuck=True)


class RowRemap(conditions.Scenario):
    """One memory address repeatedly needs correction, and its row is marked for remapping."""

    errors = 12

    def affected_gpu(self, span: TimeSpan) -> conditions.GpuConditions:
        """One row waits for a reset."""
        is_present = self.onset_ns <= span.end_ns
        return conditions.GpuConditions(
            corrected_errors=self.errors if span.passes(self.onset_ns) else 0,
            correctable_rows=int(is_present),
            recovery_action=DRAIN_AND_RESET if is_present else 0,
        )


class EccUncorrected(conditions.Scenario):
    """One uncorrectable memory error ends the process that read the data, and the job with it."""

    def job(self, span: TimeSpan) -> conditions.JobConditions:
        """No job from the onset on."""
        return conditions.JobConditions(present=1.0 - span.share_after(self.onset_ns))

    def affected_gpu(self, span: TimeSpan) -> conditions.GpuConditions:
        """One error, and its row waits for a reset."""
        is_present = self.onset_ns <= span.end_ns
        return conditions.GpuConditions(
            uncorrected_errors=int(span.passes(self.onset_ns)),
            uncorrectable_rows=int(is_present),
            recovery_action=DRAIN_AND_RESET if is_present else 0,
        )


class NvlinkErrors(conditions.SlowedExchange):
    """A bad cable or a dirty connector: one NVLink retransmits repeatedly."""

    slowest, fastest = 0.6, 0.9
    error_every_ns = seconds_to_ns(0.025)

    def affected_gpu(self, span: TimeSpan) -> conditions.GpuConditions:
        """Errors at a steady rate; up to Hopper the driver reports them as fatal and requires a reset."""
        fatal = (
            device_models.find_model(self.spec.model).generation
            < device_models.GpuGeneration.BLACKWELL
        )
        return conditions.GpuConditions(
            link_errors=span.count_recurring(self.onset_ns, self.error_every_ns),
            recovery_action=GPU_RESET if fatal and self.onset_ns <= span.end_ns else 0,
        )


class NvmlDenied(conditions.Scenario):
    """The driver restricts activity data to administrators (RmProfilingAdminOnly)."""

    def gpu(self, index: int, span: TimeSpan) -> conditions.GpuConditions:
        """Denied on all GPUs, from the start."""
        del index, span
        return conditions.GpuConditions(denied=True)


_HALF = 0.5


class LinkOutages(conditions.Scenario):
    """The link of one rail is down intermittently, and the job waits for it."""

    outages: tuple[TimeSpan, ...] = ()

    def job(self, span: TimeSpan) -> conditions.JobConditions:
        """Nothing is exchanged during an outage."""
        down = sum(span.share_in(outage) for outage in self.outages)
        return conditions.JobConditions(exchange_speed=1.0 - down)

    def link_outages(self, rail: int | None, span: TimeSpan) -> tuple[TimeSpan, ...]:
        """Return the spans in which the link is down."""
        del span
        return self.outages if rail == self.spec.affected_index else ()


class FlappingLink(LinkOutages):
    """A loose connector: the link goes down repeatedly, briefly or for some seconds."""

    times = 6

    def __init__(self, spec: NodeSpec, duration_ns: int) -> None:
        super().__init__(spec, duration_ns)
        interval_ns = (duration_ns - self.onset_ns) // (self.times + 1)
        lengths_ns = [
            min(seconds_to_ns(self.rng.uniform(0.4, 6.0)), interval_ns // 2)
            for _ in range(self.times)
        ]
        starts_ns = [self.onset_ns + interval_ns * number for number in range(self.times)]
        self.outages = tuple(
            TimeSpan(start_ns, start_ns + length_ns)
            for start_ns, length_ns in zip(starts_ns, lengths_ns, strict=True)
        )


class LinkSpeedDown(LinkOutages):
    """A cable fails: bit errors rise, the link goes down, and recovers on half of its lanes."""

    left_lanes = device_models.LANES // 2

    def __init__(self, spec: NodeSpec, duration_ns: int) -> None:
        super().__init__(spec, duration_ns)
        rest_ns = duration_ns - self.onset_ns
        self.broken_ns = self.onset_ns + rest_ns // 2
        length_ns = min(seconds_to_ns(self.rng.uniform(3.0, 8.0)), rest_ns // 4)
        self.outages = (TimeSpan(self.broken_ns, self.broken_ns + length_ns),)

    def job(self, span: TimeSpan) -> conditions.JobConditions:
        """Waits for the outage, then exchanges at the remaining link speed."""
        speed = super().job(span).exchange_speed
        slow = span.share_after(self.outages[0].end_ns)
        remaining = min(self.left_lanes / device_models.LANES / training_job.EXCHANGE_RATE, 1.0)
        return conditions.JobConditions(exchange_speed=speed * (1.0 - slow * (1.0 - remaining)))

    def affected_port(self, span: TimeSpan) -> conditions.PortConditions:
        """Rising errors before the outage, none of the bad lanes after it."""
        if span.end_ns >= self.broken_ns:
            return conditions.PortConditions(lanes=self.left_lanes)
        failing = TimeSpan(self.onset_ns, (self.onset_ns + 2 * self.broken_ns) // 3)
        return conditions.PortConditions(margin_lost=_ramp(span, failing))


class OpticsFading(conditions.Scenario):
    """A dirty or failing transceiver: decreasing optical power on one lane."""

    def affected_port(self, span: TimeSpan) -> conditions.PortConditions:
        """The complete margin is lost some time before the end."""
        fading = TimeSpan(self.onset_ns, self.duration_ns - (self.duration_ns - self.onset_ns) // 4)
        return conditions.PortConditions(margin_lost=_ramp(span, fading))


class NicLost(conditions.Scenario):
    """A NIC disappears from the bus; the other ranks wait for its data."""

    hangs_job, port_from_onset = True, conditions.PortConditions(removed=True)


class PcieDegraded(conditions.Scenario):
    """The PCIe link of a NIC retrains after errors, at half of its width or of its speed."""

    errors = 40

    def __init__(self, spec: NodeSpec, duration_ns: int) -> None:
        super().__init__(spec, duration_ns)
        self.halved: Literal["lanes", "speed"] = "lanes" if self.rng.random() < _HALF else "speed"

    def job(self, span: TimeSpan) -> conditions.JobConditions:
        """All rails wait for the NIC that cannot accept its traffic."""
        nic = device_models.nic_of(self.spec.nic, self.spec.affected_index)
        carried = nic.halved_pcie_bytes_per_second / (nic.gigabits * 125_000_000)
        remaining = min(carried / training_job.EXCHANGE_RATE, 1.0)
        return conditions.JobConditions(
            exchange_speed=1.0 - span.share_after(self.onset_ns) * (1.0 - remaining)
        )

    def affected_port(self, span: TimeSpan) -> conditions.PortConditions:
        """Errors at the onset, then half of the link."""
        return conditions.PortConditions(
            pcie_halved=self.halved if self.onset_ns <= span.end_ns else "",
            pcie_errors=self.errors if span.passes(self.onset_ns) else 0,
        )


class SettingsDrift(conditions.SlowedExchange):
    """Settings of the node's ports are reverted: one of four per rail, in rotation.

    Without pause, or in a priority without it, traffic that finds no buffer is lost. Without
    notifications senders do not slow down, and only pause limits them. A smaller MTU means more packets.
    """

    slowest, fastest = 0.5, 0.8
    drifted = (
        port.PortSettings(pausing=False),
        port.PortSettings(notifying=False),
        port.PortSettings(trust="pcp"),
        port.PortSettings(mtu_bytes=port.SMALL_MTU_BYTES),
    )

    def __init__(self, spec: NodeSpec, duration_ns: int) -> None:
        super().__init__(spec, duration_ns)
        self.lossy = self.rng.uniform(0.0005, 0.003)
        self.pausing = self.rng.uniform(0.02, 0.08)

    def port(self, rail: int | None, span: TimeSpan) -> conditions.PortConditions:
        """The ports of all rails drift; those for storage do not."""
        if rail is None or span.end_ns < self.onset_ns:
            return conditions.PortConditions()
        share = span.share_after(self.onset_ns)
        settings = self.drifted[rail % len(self.drifted)]
        is_pausing = settings.is_protected and not settings.notifying
        return conditions.PortConditions(
            settings=settings,
            lossy=0.0 if settings.is_protected else share * self.lossy,
            pausing=share * self.pausing if is_pausing else 0.0,
            marked=0.0 if settings == port.USUAL else share * 0.02,
        )


def _ramp(span: TimeSpan, whole: TimeSpan) -> float:
    """Fraction of a gradual change over a whole span that has completed at the end of another one."""
    passed_ns = min(max(span.end_ns - whole.start_ns, 0), whole.length_ns)
    return passed_ns / max(whole.length_ns, 1)


class IdleNode(conditions.Scenario):
    """No job."""

    def job(self, span: TimeSpan) -> conditions.JobConditions:
        """Return conditions without a job."""
        del span
        return conditions.JobConditions(present=0.0)


class Incast(conditions.SlowedExchange):
    """Receiver of an incast: the port's queue at the switch fills, ECN limits it."""

    slowest, fastest = 0.36, 0.78

    def __init__(self, spec: NodeSpec, duration_ns: int) -> None:
        super().__init__(spec, duration_ns)
        self.load = self.rng.uniform(0.86, 0.95)
        self.marked = self.rng.uniform(0.04, 0.25)

    def affected_port(self, span: TimeSpan) -> conditions.PortConditions:
        """Fully loaded by other senders, with much of the traffic marked."""
        share = span.share_after(self.onset_ns)
        return conditions.PortConditions(
            foreign_receive=share * self.load, marked=share * self.marked
        )


class PauseStorm(conditions.SlowedExchange):
    """The NIC's receive pipeline is stuck; stall prevention releases the pause at times.

    The NIC pauses until the stall prevention timeout (tunable pfc-prevention-tout, here 2 s) makes it
    drop packets briefly; the warning is issued at 85 % of the timeout (linux:
    drivers/net/ethernet/mellanox/mlx5/core/en_ethtool.c).
    """

    slowest, fastest = 0.02, 0.1
    timeout_ns = seconds_to_ns(2.0)
    warning_ns = seconds_to_ns(2.0 * 0.85)
    cycle_ns = seconds_to_ns(2.25)

    def affected_port(self, span: TimeSpan) -> conditions.PortConditions:
        """Stuck except for the short times in which it drops."""
        first = TimeSpan(self.onset_ns, self.onset_ns + self.timeout_ns)
        stuck = span.share_recurring(first, self.cycle_ns)
        return conditions.PortConditions(
            stuck=stuck,
            unprotected=span.share_after(self.onset_ns) - stuck,
            storm_warnings=span.count_recurring(self.onset_ns + self.warning_ns, self.cycle_ns),
            storm_errors=span.count_recurring(first.end_ns, self.cycle_ns),
        )


class SlowReceiver(conditions.SlowedExchange):
    """PCIe accepts the data too slowly: the NIC's buffer fills and it pauses the switch."""

    min_pausing, max_pausing = 0.1, 0.35

    def __init__(self, spec: NodeSpec, duration_ns: int) -> None:
        super().__init__(spec, duration_ns)
        self.pausing = self.rng.uniform(self.min_pausing, self.max_pausing)
        self.stall_percent = self.rng.uniform(40.0, 80.0)

    def affected_port(self, span: TimeSpan) -> conditions.PortConditions:
        """Pauses while it receives, and waits for PCIe writes."""
        share = span.share_after(self.onset_ns)
        return conditions.PortConditions(
            pausing=share * self.pausing,
            marked=share * 0.01,
            pcie_write_stall_percent=share * self.stall_percent,
        )


class StalledReceiver(SlowReceiver):
    """The same, more severe: the NIC pauses the switch for most of the time in which it receives."""

    min_pausing, max_pausing = 0.55, 0.7


class PfcVictim(conditions.SlowedExchange):
    """Congestion elsewhere has reached the leaf, and the switch pauses this port."""

    slowest, fastest = 0.2, 0.55

    def __init__(self, spec: NodeSpec, duration_ns: int) -> None:
        super().__init__(spec, duration_ns)
        self.paused = self.rng.uniform(0.1, 0.3)

    def affected_port(self, span: TimeSpan) -> conditions.PortConditions:
        """Paused while it sends."""
        return conditions.PortConditions(paused=span.share_after(self.onset_ns) * self.paused)


class LinkFlap(LinkOutages):
    """The link of one rail is down for some seconds; the job waits for it."""

    def __init__(self, spec: NodeSpec, duration_ns: int) -> None:
        super().__init__(spec, duration_ns)
        length_ns = min(seconds_to_ns(self.rng.uniform(3.0, 8.0)), duration_ns // 4)
        self.outages = (TimeSpan(self.onset_ns, self.onset_ns + length_ns),)


class LinkDown(LinkOutages):
    """A cable was pulled: the link of one rail stays down, and the job waits for it."""

    def __init__(self, spec: NodeSpec, duration_ns: int) -> None:
        super().__init__(spec, duration_ns)
        self.outages = (TimeSpan(self.onset_ns, duration_ns + 1),)  # down at the last moment, too


class UnclaimedProcess(conditions.Scenario):
    """A person starts a process on a GPU, bypassing the scheduler."""

    def unclaimed_gpu(self, span: TimeSpan) -> int | None:
        """Return the affected GPU from the onset on."""
        return (
            self.spec.affected_index
            if self.onset_ns <= span.end_ns
            else super().unclaimed_gpu(span)
        )


class CounterReset(conditions.Scenario):
    """The drivers are reloaded; the job stops for it and restarts soon after."""

    def job(self, span: TimeSpan) -> conditions.JobConditions:
        """No job for a while around the reload."""
        length_ns = min(seconds_to_ns(10.0), self.duration_ns // 6)
        gap = TimeSpan(self.onset_ns - length_ns // 5, self.onset_ns + length_ns)
        return conditions.JobConditions(present=1.0 - span.share_in(gap))

    def reload_ns(self) -> int | None:
        """Return the time at which the drivers are reloaded."""
        return self.onset_ns


_BY_NAME: dict[str, type[conditions.Scenario]] = {
    "idle": IdleNode,
    "training": conditions.Scenario,
    "incast": Incast,
    "pause_storm": PauseStorm,
    "slow_receiver": SlowReceiver,
    "stalled_receiver": StalledReceiver,
    "pfc_victim": PfcVictim,
    "thermal": ThermalThrottling,
    "xid79": Xid79,
    "row_remap": RowRemap,
    "link_down": LinkDown,
    "link_flap": LinkFlap,
    "flapping": FlappingLink,
    "speed_down": LinkSpeedDown,
    "optics": OpticsFading,
    "nic_lost": NicLost,
    "pcie_degraded": PcieDegraded,
    "settings_drift": SettingsDrift,
    "counter_reset": CounterReset,
    "nvlink_errors": NvlinkErrors,
    "ecc_uncorrected": EccUncorrected,
    "gpu_hung": GpuHung,
    "driver_stuck": DriverStuck,
    "unclaimed": UnclaimedProcess,
    "nvml_denied": NvmlDenied,
}


def scenario_of(spec: NodeSpec, duration_ns: int) -> conditions.Scenario:
    """Return the scenario that a spec names, for a simulation of this length."""
    return _BY_NAME[spec.scenario](spec, duration_ns)
