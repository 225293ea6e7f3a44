"""MIG devices: resources and usage of each.

Power, energy, heat, clocks and PCIe are those of the whole GPU and stay with it; while a GPU is
partitioned utilization is reported for neither, and NVLink is off (nvml.h). GPM activity is in
`activity`.
"""

from __future__ import annotations

from railscope.catalog import gpu_sharing as s
from railscope.catalog.declare import Metric
from railscope.reading import Reading
from railscope_agent.gpus.inventory import (
    MIG_ENABLED,
    GpuDevice,
    GpuInventory,
    list_mig_devices,
    read_mig_mode,
)
from railscope_agent.host import Host, NvmlError
from railscope_agent.sampling import answer_readings, probe_result, row_builder, source
from railscope_agent.sources.nvidia import (
    call_plan,
    call_table,
    column_history,
)

_UNCORRECTED, _VOLATILE = 1, 0

MIG_TABLE = call_table.CallTable((
    call_table.members("nvmlDeviceGetMemoryInfo",
                      {"total": s.MIG_MEMORY_SIZE},
                      call_table.CallTarget(s.MIG_MEMORY_FREE, call_table.memory("free")),
                      call_table.CallTarget(s.MIG_MEMORY_RESERVED, call_table.memory("reserved")),
                      call_table.CallTarget(s.MIG_MEMORY_USED, call_table.used)),
    call_table.members("nvmlDeviceGetBAR1MemoryInfo", {"bar1Total": s.MIG_BAR1_SIZE, "bar1Used": s.MIG_BAR1_USED}),
    call_table.members("nvmlDeviceGetAttributes_v2",
                      {"multiprocessorCount": s.MIG_MULTIPROCESSORS, "gpuInstanceSliceCount": s.MIG_GPU_SLICES,
                       "computeInstanceSliceCount": s.MIG_COMPUTE_SLICES}),
    call_table.simple("nvmlDeviceGetTotalEccErrors", s.MIG_ECC_ERRORS, arguments=(_UNCORRECTED, _VOLATILE)),
    call_table.NvmlCall(("nvmlDeviceGetComputeRunningProcesses",),
                       (call_table.CallTarget(s.MIG_PROCESSES, call_table.count),)),
))  # fmt: skip
MIG_INTEGRALS = (column_history.IntegratedGauge(s.MIG_MEMORY_USED, s.MIG_MEMORY_USED_TIME),)


class MigSource(source.Source):
    """Every MIG device of every GPU; each read detects added, removed and changed ones."""

    name = "mig"
    lane = source.NVML
    period_seconds = 5.0
    longest_period_seconds = 10.0
    """Time between two samples counts up to 30 s: periods stay well below."""

    def __init__(self, gpus: GpuInventory | None = None) -> None:
        self._gpus = gpus or GpuInventory()
        self._counted: list[tuple[GpuDevice, int]] = []
        self._plans = call_plan.CallPlans(self._gpus)
        self._integrals = column_history.Integrals(MIG_INTEGRALS)

    def probe(self, host: Host) -> probe_result.ProbeResult:
        """Plan the calls for each MIG device, and count those of each MIG-capable GPU."""
        gpus = self._gpus.scan(host)
        columns = probe_result.ColumnBuilder()
        capable = [gpu for gpu in gpus.values() if gpu.mig_mode]
        self._counted = [(gpu, columns.add(s.GPU_MIG_DEVICES, gpu.entity)) for gpu in capable]
        tables = [(m.uuid, m.entity, MIG_TABLE) for gpu in capable for m in gpu.mig_devices]
        self._plans.add_columns(host, tables, columns, self._needs)
        self._integrals.add_columns(columns, self.period_seconds)
        return columns.result()

    def read(self, host: Host, into: row_builder.RowBuilder) -> None:
        """Read each MIG device, and check that the set of devices is unchanged."""
        for gpu, column in self._counted:
            into.put(column, self._count_devices(host, gpu))
        self._plans.read(host, into)
        self._integrals.read(host, into)

    def _needs(self, metric: Metric) -> bool:
        """True for a selected metric, and for the gauge of a selected integral."""
        is_gauge = any(
            metric is each.gauge and self.selects(each.counter) for each in MIG_INTEGRALS
        )
        return is_gauge or self.selects(metric)

    def _count_devices(self, host: Host, gpu: GpuDevice) -> Reading:
        """Number of MIG devices of a GPU; if they differ from the planned ones, all sources probe again."""
        try:
            mode = read_mig_mode(host, gpu.index)
            devices = list_mig_devices(host, gpu) if mode == MIG_ENABLED else ()
        except NvmlError as error:
            return answer_readings.nvml_reason(error.code)
        if mode != gpu.mig_mode or devices != gpu.mig_devices:
            self._gpus.record_change()
        return len(devices)
