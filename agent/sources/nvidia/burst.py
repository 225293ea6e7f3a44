"""Burst sampling of GPUs: activity and power from the samples that the driver buffers.

Two calls per GPU and second return all samples since the last ones (nvmlDeviceGetSamples); calls at
the window rate would return no more, as the driver does not measure more often. Each sample covers
the time since the previous one; a window with several samples has their mean.
"""

from __future__ import annotations

from agent.gpus.inventory import GpuDevice, Gpus
from agent.host import Host, NvmlError
from agent.sampling.bursts import Averaged, Grid, Windows
from agent.sampling.source import Columns, HoldsNothing, Inventory, Table, nvml_reason
from railscope.catalog import bursts as c
from railscope.reading import Absent

NS = 1_000_000_000
_TOTAL_POWER, _UTILIZATION = 0, 1
"""nvml.h, nvmlSamplingType_t."""
_NOT_FOUND = 6
"""No sample since the last one."""
_LONGEST_SAMPLE_NS = 2 * NS
"""A product's own sample period is at most one second (nvml.h, nvmlUtilization_t)."""
_NS_PER_US, _STEPS, _PERCENT = 1000, 10**6, 100


class GpuBurst(HoldsNothing):
    """Windows of utilization and power of every GPU."""

    name = "gpu_burst"
    family = "nvml"
    longest_period_seconds = 2.0
    """The driver's buffers are bounded, and their span differs among products."""

    def __init__(
        self, window_seconds: float = 0.1, period_seconds: float = 1.0, gpus: Gpus | None = None
    ) -> None:
        self.period_seconds = period_seconds
        self._grid = Grid(round(window_seconds * NS))
        self._gpus = gpus or Gpus()
        self._generation = 0
        self._devices: dict[str, _Device] = {}
        self._columns: list[tuple[_Device, int]] = []

    def probe(self, host: Host) -> Inventory:
        """Two histograms for each GPU that has the samples."""
        gpus = self._gpus.look(host)
        self._generation = self._gpus.generation
        columns = Columns()
        self._columns = []
        for gpu in gpus.values():
            (uuid,) = gpu.entity.key
            device = self._devices.setdefault(uuid, _Device(self._grid, uuid))
            device.look(host, gpu)
            if not device.supported:
                continue
            first = columns.add(c.GPU_WINDOW_LENGTH, gpu.entity)
            columns.add(c.GPU_MISSED, gpu.entity)
            for buffer in device.supported:
                buffer.windows.add_columns(columns)
            self._columns.append((device, first))
        return Inventory(tuple(columns.columns))

    def read(self, host: Host, into: Table) -> None:
        """Fetch the samples since the last ones of every GPU."""
        for device, first in self._columns:
            for buffer in device.supported:
                buffer.windows.tell(into, buffer.fetch(host, device.index, device.limit_milliwatts))
            into.put_all(first, (self._grid.window_ns, max(b.unseen for b in device.supported)))
        into.grown = self._gpus.generation != self._generation


class _Device:
    """Sample buffers of a GPU, and its power limit."""

    def __init__(self, grid: Grid, uuid: str) -> None:
        self.index = 0
        self.limit_milliwatts = 0
        self._buffers = (
            _Buffer(grid, _UTILIZATION, Windows(c.GPU_UTILIZATION_WINDOWS, (uuid,))),
            _Buffer(grid, _TOTAL_POWER, Windows(c.GPU_POWER_WINDOWS, (uuid,))),
        )
        self.supported: list[_Buffer] = []

    def look(self, host: Host, gpu: GpuDevice) -> None:
        """Read the power limit, and find the supported sample types."""
        self.index = gpu.index
        try:
            self.limit_milliwatts = int(
                host.call("nvml", "nvmlDeviceGetEnforcedPowerLimit", gpu.index)
            )
        except (NvmlError, OSError):
            self.limit_milliwatts = 0
        self.supported = [
            buffer
            for buffer in self._buffers
            if (buffer.kind == _UTILIZATION or self.limit_milliwatts)
            and buffer.fetch(host, gpu.index, self.limit_milliwatts) is not Absent.UNSUPPORTED
        ]


class _Buffer:
    """The driver's samples of one kind, and the histogram of their windows."""

    def __init__(self, grid: Grid, kind: int, windows: Windows) -> None:
        self.kind = kind
        self.windows = windows
        self.unseen = 0
        self._grid = grid
        self._averaged = Averaged(grid)
        self._last_us: int | None = None

    def fetch(self, host: Host, gpu: int, limit_milliwatts: int) -> Absent | None:
        """Add the new samples to the windows. Return the absence reason on failure, else None."""
        try:
            samples = host.call("nvml", "nvmlDeviceGetSamples", gpu, self.kind)
        except NvmlError as error:
            return None if error.code == _NOT_FOUND else nvml_reason(error.code)
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
        last_ns, at_ns = last_us * _NS_PER_US, stamp_us * _NS_PER_US
        if at_ns - last_ns > _LONGEST_SAMPLE_NS:
            self.unseen += self._grid.between(last_ns, at_ns)
            self._averaged.forget()
            return
        whole = _PERCENT if self.kind == _UTILIZATION else limit_milliwatts
        for windows, seen in self._averaged.ended(last_ns, at_ns, value * _STEPS // whole):
            self.windows.see(windows, seen)
