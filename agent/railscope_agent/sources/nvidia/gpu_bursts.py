"""Burst sampling of the activity and the power of GPUs.

The samples are those that the driver buffers. Two calls per GPU and second return all samples since
the last ones (nvmlDeviceGetSamples); calls at the window rate would return no more, as the driver
does not measure more often. Each sample covers the time since the previous one; a window with
several samples has their mean.
"""

from __future__ import annotations

from railscope.catalog import bursts as c, gpu as gpu_metrics
from railscope.reading import Absent
from railscope.timestamps import MICROSECOND_NS, SECOND_NS
from railscope_agent.gpus.inventory import GpuDevice, GpuInventory
from railscope_agent.host import Host, NvmlError
from railscope_agent.sampling import (
    answer_readings,
    burst_windows,
    fact_readers,
    probe_result,
    row_builder,
    source,
)

_TOTAL_POWER, _UTILIZATION = 0, 1
"""Values of nvmlSamplingType_t (nvml.h)."""
_NOT_FOUND = 6
"""No sample since the last one."""
_LONGEST_SAMPLE_NS = 2 * SECOND_NS
"""A product's own sample period is at most one second (nvml.h, nvmlUtilization_t)."""
_STEPS, _PERCENT = 10**6, 100


class GpuBurstSource(source.Source):
    """Windows of utilization and power of every GPU."""

    name = "gpu_burst"
    lane = source.NVML
    period_seconds = 1.0
    longest_period_seconds = 2.0
    """The driver's buffers are bounded, and their span differs among products."""

    def __init__(self, window_seconds: float = 0.1, gpus: GpuInventory | None = None) -> None:
        self._grid = burst_windows.WindowGrid(round(window_seconds * SECOND_NS))
        self._gpus = gpus or GpuInventory()
        self._generation = 0
        self._devices: dict[str, _SampledGpu] = {}
        self._columns: list[tuple[_SampledGpu, int]] = []

    def probe(self, host: Host) -> probe_result.ProbeResult:
        """Two histograms for each GPU that has the samples."""
        gpus = self._gpus.scan(host)
        self._generation = self._gpus.generation
        columns = probe_result.ColumnBuilder()
        self._columns = []
        for gpu in gpus.values():
            (uuid,) = gpu.entity.key
            device = self._devices.setdefault(uuid, _SampledGpu(self._grid, uuid))
            device.find_supported(host, gpu)
            if not device.supported:
                continue
            first = columns.add_each((c.GPU_WINDOW_LENGTH, c.GPU_MISSED), gpu.entity)
            for buffer in device.supported:
                buffer.windows.add_columns(columns)
            self._columns.append((device, first))
        return columns.result()

    def read(self, host: Host, into: row_builder.RowBuilder) -> None:
        """Fetch the samples since the last ones of every GPU."""
        for device, first in self._columns:
            for buffer in device.supported:
                buffer.windows.put(into, buffer.fetch(host, device.index, device.limit_milliwatts))
            into.put_all(first, (self._grid.window_ns, max(b.unseen for b in device.supported)))
        into.needs_probe = self._gpus.generation != self._generation


class _SampledGpu:
    """Sample buffers of a GPU, and its power limit."""

    def __init__(self, grid: burst_windows.WindowGrid, uuid: str) -> None:
        self.index = 0
        self.limit_milliwatts = 0
        kinds = {_UTILIZATION: c.GPU_UTILIZATION_WINDOWS, _TOTAL_POWER: c.GPU_POWER_WINDOWS}
        self._buffers = [
            _SampleBuffer(grid, kind, burst_windows.WindowHistogram(metric, (uuid,)))
            for kind, metric in kinds.items()
        ]
        self.supported: list[_SampleBuffer] = []

    def find_supported(self, host: Host, gpu: GpuDevice) -> None:
        """Read the power limit, and find the supported sample types."""
        self.index = gpu.index
        limit = fact_readers.call_nvml(host, "nvmlDeviceGetEnforcedPowerLimit", gpu.index)
        self.limit_milliwatts = (
            int(limit or 0) if gpu_metrics.GPU_POWER_LIMIT.accepts(limit or 0) else 0
        )
        self.supported = [
            buffer
            for buffer in self._buffers
            # Power is shown as a share of the limit: without one there is no histogram.
            if (buffer.kind == _UTILIZATION or self.limit_milliwatts)
            and buffer.fetch(host, gpu.index, self.limit_milliwatts) is not Absent.UNSUPPORTED
        ]


class _SampleBuffer:
    """The driver's samples of one kind, and the histogram of their windows."""

    def __init__(
        self, grid: burst_windows.WindowGrid, kind: int, windows: burst_windows.WindowHistogram
    ) -> None:
        self.kind = kind
        self.windows = windows
        self.unseen = 0
        self._grid = grid
        self._averaged = burst_windows.WindowMeans(grid)
        self._last_us: int | None = None

    def fetch(self, host: Host, gpu: int, limit_milliwatts: int) -> Absent | None:
        """Add the new samples to the windows. Return the absence reason on failure, else None."""
        try:
            samples = host.call("nvml", "nvmlDeviceGetSamples", gpu, self.kind)
        except NvmlError as error:
            return None if error.code == _NOT_FOUND else answer_readings.nvml_reason(error.code)
        except OSError:
            return Absent.UNSUPPORTED  # a recording made before this call existed
        if samples and self._last_us is not None and samples[-1][0] < self._last_us:
            self._last_us = None  # the driver's clock, or a recording, has restarted
            self._averaged.forget()
        for stamp_us, value in samples:
            self._take(stamp_us, value, limit_milliwatts)
        return None

    def _take(self, stamp_us: int, value: int, limit_milliwatts: int) -> None:
        last_us = self._last_us
        if last_us is not None and stamp_us <= last_us:
            return  # already counted
        self._last_us = stamp_us
        # The first sample has no begin: the time that it covers is unknown.
        if last_us is None:
            return
        last_ns, at_ns = last_us * MICROSECOND_NS, stamp_us * MICROSECOND_NS
        gauge = gpu_metrics.GPU_UTILIZATION if self.kind == _UTILIZATION else gpu_metrics.GPU_POWER
        if at_ns - last_ns > _LONGEST_SAMPLE_NS or not gauge.accepts(value):
            self.unseen += self._grid.count_windows(last_ns, at_ns)
            self._averaged.forget()
            return
        whole = _PERCENT if self.kind == _UTILIZATION else limit_milliwatts
        for windows, average in self._averaged.add_value(last_ns, at_ns, value * _STEPS // whole):
            self.windows.count(windows, average)
