"""Activity of SMs, pipes and links of a GPU or a MIG device by GPM, on Hopper and later.

Before Hopper every column is unsupported: NVML only reports the time with any kernel running there,
which is `railscope_gpu_utilization_ratio` and not this.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from railscope.catalog import declare, entities, gpu as a
from railscope.frame import Entity
from railscope_agent.gpus.inventory import GpuDevice, GpuInventory
from railscope_agent.host import Host, Json
from railscope_agent.sampling import probe_result, row_builder, source
from railscope_agent.sources.nvidia.call_plan import CallPlans
from railscope_agent.sources.nvidia.call_table import GPM, BatchField, CallTable, field

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


class GpuActivitySource(source.Source):
    """GPM metrics of every GPU and of every MIG device."""

    name = "gpu_activity"
    lane = source.NVML
    period_seconds = 1.0
    min_period_seconds = 0.12
    denied_remedy = (
        "run the agent as root, or load the nvidia module with"
        " NVreg_RestrictProfilingToAdminUsers=0"
    )
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
    # A request of its own, so that a driver that rejects it still answers the first one.
    yield gpu.index, gpu.entity, RECENT_GPU_TABLE
    for device in gpu.mig_devices:
        yield device.uuid, device.entity, MIG_ACTIVITY_TABLE
