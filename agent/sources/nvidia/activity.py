"""Activity of SMs, pipes and links of a GPU or a MIG device: GPM, on Hopper and later.

Before Hopper every column is unsupported: NVML only reports the time with any kernel running there,
which is `railscope_gpu_utilization_ratio` and not this.
"""

from __future__ import annotations

from collections.abc import Iterator

from agent.gpus.inventory import GpuDevice, Gpus
from agent.host import Host, Json
from agent.sampling.source import Columns, HoldsNothing, Inventory, Table
from agent.sources.nvidia.calls import GPM, Field, Pick, Questions, Target, whole
from agent.sources.nvidia.plan import Plans
from railscope.catalog import gpu_activity as a
from railscope.catalog.declare import EntityKind, Metric
from railscope.catalog.entities import GPU_CACHE, GPU_CYCLE, GPU_ENGINE, GPU_PIPE, MIG_PIPE
from railscope.entity import Entity

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


def _field(
    number: int, metric: Metric, pick: Pick = _percent, kind: EntityKind | None = None, *part: str
) -> Field:
    return Field((number,), Target(metric, pick, kind, part))


_GPU_FIELDS: tuple[Field, ...] = (
    _field(1, a.GPU_GRAPHICS_ACTIVITY),
    _field(2, a.GPU_SM_ACTIVITY),
    _field(3, a.GPU_SM_OCCUPANCY),
    _field(5, a.GPU_TENSOR_ACTIVITY),
    _field(10, a.GPU_DRAM_ACTIVITY),
    *(_field(n, a.GPU_PIPE_ACTIVITY, _percent, GPU_PIPE, pipe) for n, pipe in PIPES.items()),
    *(_field(n, a.GPU_ENGINE_ACTIVITY, _percent, GPU_ENGINE, e) for n, e in ENGINES.items()),
    _field(20, a.GPU_PCIE_TRANSMIT, _mebibytes),
    _field(21, a.GPU_PCIE_RECEIVE, _mebibytes),
    _field(61, a.GPU_NVLINK_TRANSMIT, _mebibytes),
    _field(60, a.GPU_NVLINK_RECEIVE, _mebibytes),
    _field(100, a.GPU_C2C_TRANSMIT, _mebibytes),
    _field(101, a.GPU_C2C_RECEIVE, _mebibytes),
)
# Metrics that older drivers lack: they might reject a request that contains one of them.
_RECENT_FIELDS: tuple[Field, ...] = (
    *(_field(n, a.GPU_ENGINE_ACTIVITY, _percent, GPU_ENGINE, e) for n, e in ENCODERS.items()),
    *(_field(n, a.GPU_CACHE_SHARE, _percent, GPU_CACHE, *what) for n, what in CACHES.items()),
    *(_field(n, a.GPU_CYCLES, whole, GPU_CYCLE, cycle) for n, cycle in CYCLES.items()),
)
_MIG_FIELDS: tuple[Field, ...] = (
    _field(1, a.MIG_GRAPHICS_ACTIVITY),
    _field(2, a.MIG_SM_ACTIVITY),
    _field(3, a.MIG_SM_OCCUPANCY),
    _field(5, a.MIG_TENSOR_ACTIVITY),
    _field(10, a.MIG_DRAM_ACTIVITY),
    *(_field(n, a.MIG_PIPE_ACTIVITY, _percent, MIG_PIPE, pipe) for n, pipe in PIPES.items()),
)

OF_GPU = Questions(fields=_GPU_FIELDS, batch=GPM)
OF_GPU_RECENT = Questions(fields=_RECENT_FIELDS, batch=GPM, recent=True)
OF_MIG = Questions(fields=_MIG_FIELDS, batch=GPM)


class Activity(HoldsNothing):
    """GPM metrics of every GPU and of every MIG device."""

    name = "gpu_activity"
    family = "nvml"
    longest_period_seconds = 20.0
    """Views of a cluster omit values older than 30 s."""

    def __init__(self, period_seconds: float = 1.0, gpus: Gpus | None = None) -> None:
        self.period_seconds = period_seconds
        self._gpus = gpus or Gpus()
        self._plans = Plans()

    def probe(self, host: Host) -> Inventory:
        """Plan the calls for each GPU and each MIG device."""
        gpus = self._gpus.look(host)
        columns = Columns()
        wanted = [device for gpu in gpus.values() for device in _devices(gpu)]
        self._plans.place(host, self._gpus.generation, wanted, columns)
        return Inventory(tuple(columns.columns))

    def read(self, host: Host, into: Table) -> None:
        """Take a sample of each device and compare it with the previous one."""
        self._plans.read(host, into)
        into.grown |= self._gpus.generation != self._plans.generation


def _devices(gpu: GpuDevice) -> Iterator[tuple[int | str, Entity, Questions]]:
    yield gpu.index, gpu.entity, OF_GPU
    yield gpu.index, gpu.entity, OF_GPU_RECENT
    for device in gpu.mig_devices:
        yield device.uuid, device.entity, OF_MIG
