"""Faults of a GPU, and the effect of each on the job."""

from __future__ import annotations

from simulator.conditions import GpuConditions, JobConditions, Scenario, SlowedExchange
from simulator.gpu_model import Generation
from simulator.gpu_models import find
from simulator.span import Span, seconds

# Recovery actions (nvml.h, nvmlDeviceGpuRecoveryAction_t).
GPU_RESET, NODE_REBOOT, DRAIN_AND_RESET = 1, 2, 4


class Thermal(Scenario):
    """Dust, a failed fan or a loose heat sink: insufficient cooling."""

    def struck_gpu(self, span: Span) -> GpuConditions:
        """Insufficient cooling from the onset on."""
        return GpuConditions(thermal_resistance=1.0 + 1.4 * span.share_after(self.onset_ns))


class Xid79(Scenario):
    """A GPU falls off the bus, which stops the job."""

    def job(self, span: Span) -> JobConditions:
        """Hung: the other ranks wait for the lost one."""
        return JobConditions(hung=span.end_ns > self.onset_ns)

    def struck_gpu(self, span: Span) -> GpuConditions:
        """Lost."""
        return GpuConditions(lost=self.onset_ns <= span.end_ns)


class GpuHung(Scenario):
    """The firmware of a GPU stops responding to the driver, and the job waits."""

    def job(self, span: Span) -> JobConditions:
        """Hung: the other ranks wait for the struck one."""
        return JobConditions(hung=span.end_ns > self.onset_ns)

    def struck_gpu(self, span: Span) -> GpuConditions:
        """Every call runs into its timeout."""
        return GpuConditions(hung=self.onset_ns <= span.end_ns)


class DriverStuck(Scenario):
    """A driver thread holds the lock of a GPU permanently: calls for this GPU never return."""

    def job(self, span: Span) -> JobConditions:
        """Hung: the other ranks wait for the struck one."""
        return JobConditions(hung=span.end_ns > self.onset_ns)

    def struck_gpu(self, span: Span) -> GpuConditions:
        """No call returns."""
        return GpuConditions(stuck=self.onset_ns <= span.end_ns)


class RowRemap(Scenario):
    """One memory address repeatedly needs correction, and its row is marked for remapping."""

    errors = 12

    def struck_gpu(self, span: Span) -> GpuConditions:
        """One row waits for a reset."""
        struck = self.onset_ns <= span.end_ns
        return GpuConditions(
            corrected_errors=self.errors if span.passes(self.onset_ns) else 0,
            correctable_rows=int(struck),
            recovery_action=DRAIN_AND_RESET if struck else 0,
        )


class EccUncorrected(Scenario):
    """One uncorrectable memory error ends the process that read the data, and the job with it."""

    def job(self, span: Span) -> JobConditions:
        """No job from the onset on."""
        return JobConditions(present=1.0 - span.share_after(self.onset_ns))

    def struck_gpu(self, span: Span) -> GpuConditions:
        """One error, and its row waits for a reset."""
        struck = self.onset_ns <= span.end_ns
        return GpuConditions(
            uncorrected_errors=int(span.passes(self.onset_ns)),
            uncorrectable_rows=int(struck),
            recovery_action=DRAIN_AND_RESET if struck else 0,
        )


class NvlinkErrors(SlowedExchange):
    """A bad cable or a dirty connector: one NVLink retransmits repeatedly."""

    slowest, fastest = 0.6, 0.9
    error_every_ns = seconds(0.025)

    def struck_gpu(self, span: Span) -> GpuConditions:
        """Errors at a steady rate; up to Hopper the driver reports them as fatal and requires a reset."""
        fatal = find(self.spec.model).generation < Generation.BLACKWELL
        return GpuConditions(
            link_errors=span.count_recurring(self.onset_ns, self.error_every_ns),
            recovery_action=GPU_RESET if fatal and self.onset_ns <= span.end_ns else 0,
        )


class NvmlDenied(Scenario):
    """The driver restricts activity data to administrators (RmProfilingAdminOnly)."""

    def gpu(self, index: int, span: Span) -> GpuConditions:
        """Denied on all GPUs, from the start."""
        del index, span
        return GpuConditions(denied=True)
