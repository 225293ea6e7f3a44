"""Activity of GPUs: GPM metrics, and burst sampling of activity and power.

GPM: activity of SMs, pipes and links of a GPU or a MIG device, on Hopper and later. Before Hopper
every column is unsupported: NVML only reports the time with any kernel running there, which is
`railscope_gpu_utilization_ratio` and not this.

Burst sampling uses the samples that the driver buffers. Two calls per GPU and second return all
samples since the last ones (nvmlDeviceGetSamples); calls at the window rate would return no more,
as the driver does not measure more often. Each sample covers the time since the previous one; a
window with several samples has their mean.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from railscope.catalog import bursts as c, declare, entities, gpu as a
from railscope.frame import Entity
from railscope.reading import Absent
from railscope.timestamps import MICROSECOND_NS, SECOND_NS
from railscope_agent.gpus.inventory import GpuDevice, GpuInventory
from railscope_agent.host import Host, Json, NvmlError
from railscope_agent.sampling import (
    answer_readings,
    burst_windows,
    fact_readers,
    probe_result,
    row_builder,
    source,
)
from railscope_agent.sources.nvidia.call_plan import GPM, BatchField, CallPlans, CallTable, field

PIPES = {
    4: "integer",
    6: "tensor_dfma",
    7: "tensor_hmma",
    8: "tensor_dmma",
    9: "tensor_imma",
    11: "fp64",
    12: "fp32",
    13: "fp16",
}
ENGINES = {
    **{30 + n: f"decoder{n}" for n in range(8)},
    **{40 + n: f"jpeg{n}" for n in range(8)},
    **{50 + n: f"optical_flow{n}" for n in range(2)},
}
ENCODERS = {166 + n: f"encoder{n}" for n in range(4)}
CACHES = {
    160: ("host", "hit"),
    161: ("host", "miss"),
    162: ("peer", "hit"),
    163: ("peer", "miss"),
    164: ("dram", "hit"),
    165: ("dram", "miss"),
}
CYCLES = {
    248: "elapsed",
    249: "sm_active",
    250: "tensor_active",
    251: "tensor_dmma_active",
    252: "tensor_hmma_active",
    253: "tensor_imma_active",
    254: "tensor_dfma_active",
    257: "integer_active",
    258: "fp64_active",
    259: "fp32_active",
    260: "fp16_active",
}
_MILLIONTHS_PER_PERCENT = 10_000
_BYTES_PER_MEBIBYTE = 1 << 20


def _percent(value: Json) -> int:
    return round(float(value) * _MILLIONTHS_PER_PERCENT)


def _mebibytes(value: Json) -> int:
    return round(float(value) * _BYTES_PER_MEBIBYTE)


def _parts(
    metric: declare.Metric, kind: declare.EntityKind, numbers: Mapping[int, str]
) -> list[BatchField]:
    """Fields of the parts of a device, by their numbers."""
    return [field(n, metric, kind, part, pick=_percent) for n, part in numbers.items()]


_GPU_FIELDS: tuple[BatchField, ...] = (
    field(1, a.GPU_GRAPHICS_ACTIVITY, pick=_percent),
    field(2, a.GPU_SM_ACTIVITY, pick=_percent),
    field(3, a.GPU_SM_OCCUPANCY, pick=_percent),
    field(5, a.GPU_TENSOR_ACTIVITY, pick=_percent),
    field(10, a.GPU_DRAM_ACTIVITY, pick=_percent),
    *_parts(a.GPU_PIPE_ACTIVITY, entities.GPU_PIPE, PIPES),
    *_parts(a.GPU_ENGINE_ACTIVITY, entities.GPU_ENGINE, ENGINES),
    field(20, a.GPU_PCIE_TRANSMIT, pick=_mebibytes),
    field(21, a.GPU_PCIE_RECEIVE, pick=_mebibytes),
    field(61, a.GPU_NVLINK_TRANSMIT, pick=_mebibytes),
    field(60, a.GPU_NVLINK_RECEIVE, pick=_mebibytes),
    field(100, a.GPU_C2C_TRANSMIT, pick=_mebibytes),
    field(101, a.GPU_C2C_RECEIVE, pick=_mebibytes),
)
# Metrics that older drivers lack: they might reject a request that contains one of them.
_RECENT_FIELDS: tuple[BatchField, ...] = (
    *_parts(a.GPU_ENGINE_ACTIVITY, entities.GPU_ENGINE, ENCODERS),
    *(
        field(n, a.GPU_CACHE_SHARE, entities.GPU_CACHE, *cache, pick=_percent)
        for n, cache in CACHES.items()
    ),
    *(field(n, a.GPU_CYCLES, entities.GPU_CYCLE, cycle) for n, cycle in CYCLES.items()),
)
_MIG_FIELDS: tuple[BatchField, ...] = (
    field(1, a.MIG_GRAPHICS_ACTIVITY, pick=_percent),
    field(2, a.MIG_SM_ACTIVITY, pick=_percent),
    field(3, a.MIG_SM_OCCUPANCY, pick=_percent),
    field(5, a.MIG_TENSOR_ACTIVITY, pick=_percent),
    field(10, a.MIG_DRAM_ACTIVITY, pick=_percent),
    *_parts(a.MIG_PIPE_ACTIVITY, entities.MIG_PIPE, PIPES),
)

GPU_TABLE = CallTable(fields=_GPU_FIELDS, batch=GPM)
RECENT_GPU_TABLE = CallTable(fields=_RECENT_FIELDS, batch=GPM, recent=True)
MIG_ACTIVITY_TABLE = CallTable(fields=_MIG_FIELDS, batch=GPM)


class GpuActivitySource(source.SourceWithoutResources):
    """GPM metrics of every GPU and of every MIG device."""

    name = "gpu_activity"
    family = "nvml"
    longest_period_seconds = 20.0
    """Views of a cluster omit values older than 30 s."""

    def __init__(self, gpus: GpuInventory | None = None) -> None:
        self._gpus = gpus or GpuInventory()
        self._plans = CallPlans(self._gpus)

    def probe(self, host: Host) -> probe_result.ProbeResult:
        """Plan the calls for each GPU and each MIG device."""
        gpus = self._gpus.scan(host)
        columns = probe_result.ColumnBuilder()
        devices = [device for gpu in gpus.values() for device in _devices(gpu)]
        self._plans.add_columns(host, devices, columns, self.selects)
        return columns.result()

    def read(self, host: Host, into: row_builder.RowBuilder) -> None:
        """Take a sample of each device and compare it with the previous one."""
        self._plans.read(host, into)


def _devices(gpu: GpuDevice) -> Iterator[tuple[int | str, Entity, CallTable]]:
    yield gpu.index, gpu.entity, GPU_TABLE
    yield gpu.index, gpu.entity, RECENT_GPU_TABLE
    for device in gpu.mig_devices:
        yield device.uuid, device.entity, MIG_ACTIVITY_TABLE


_TOTAL_POWER, _UTILIZATION = 0, 1
"""Values of nvmlSamplingType_t (nvml.h)."""
_NOT_FOUND = 6
"""No sample since the last one."""
_LONGEST_SAMPLE_NS = 2 * SECOND_NS
"""A product's own sample period is at most one second (nvml.h, nvmlUtilization_t)."""
_STEPS, _PERCENT = 10**6, 100


class GpuBurstSource(source.SourceWithoutResources):
    """Windows of utilization and power of every GPU."""

    name = "gpu_burst"
    family = "nvml"
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
        self.limit_milliwatts = int(limit or 0)
        self.supported = [
            buffer
            for buffer in self._buffers
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
        if last_us is None:
            return
        last_ns, at_ns = last_us * MICROSECOND_NS, stamp_us * MICROSECOND_NS
        if at_ns - last_ns > _LONGEST_SAMPLE_NS:
            self.unseen += self._grid.count_windows(last_ns, at_ns)
            self._averaged.forget()
            return
        whole = _PERCENT if self.kind == _UTILIZATION else limit_milliwatts
        for windows, average in self._averaged.add_value(last_ns, at_ns, value * _STEPS // whole):
            self.windows.count(windows, average)
