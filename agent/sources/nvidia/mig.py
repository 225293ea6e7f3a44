"""MIG devices: resources and usage of each.

Power, energy, heat, clocks and PCIe are those of the whole GPU and stay with it; while a GPU is
partitioned utilisation is reported for neither, and NVLink is off (nvml.h). GPM activity is in
`activity`.
"""

from __future__ import annotations

from agent.gpus.inventory import GpuDevice, Gpus, mig_devices
from agent.host import Host, NvmlError
from agent.sampling.facts import counted
from agent.sampling.source import (
    Columns,
    Finding,
    HoldsNothing,
    Inventory,
    Table,
    Verdict,
    nvml_reason,
)
from agent.sources.nvidia.calls import Call, Questions, Target, count, key, used, whole
from agent.sources.nvidia.integrals import MAX_MEMORY_BYTES, Integrals, Integrated
from agent.sources.nvidia.plan import Plans
from railscope.catalog import gpu_sharing as s
from railscope.reading import Reading

_UNCORRECTED, _VOLATILE = 1, 0

QUESTIONS = Questions(
    (
        Call(
            ("nvmlDeviceGetMemoryInfo",),
            (
                Target(s.MIG_MEMORY_SIZE, key("total")),
                Target(s.MIG_MEMORY_USED, used),
                Target(s.MIG_MEMORY_FREE, key("free")),
                Target(s.MIG_MEMORY_RESERVED, key("reserved")),
            ),
        ),
        Call(
            ("nvmlDeviceGetBAR1MemoryInfo",),
            (Target(s.MIG_BAR1_SIZE, key("bar1Total")), Target(s.MIG_BAR1_USED, key("bar1Used"))),
        ),
        Call(
            ("nvmlDeviceGetAttributes_v2",),
            (
                Target(s.MIG_MULTIPROCESSORS, key("multiprocessorCount")),
                Target(s.MIG_GPU_SLICES, key("gpuInstanceSliceCount")),
                Target(s.MIG_COMPUTE_SLICES, key("computeInstanceSliceCount")),
            ),
        ),
        Call(
            ("nvmlDeviceGetTotalEccErrors",),
            (Target(s.MIG_ECC_ERRORS, whole),),
            (_UNCORRECTED, _VOLATILE),
        ),
        Call(("nvmlDeviceGetComputeRunningProcesses",), (Target(s.MIG_PROCESSES, count),)),
    )
)
INTEGRATED = (Integrated(s.MIG_MEMORY_USED, s.MIG_MEMORY_USED_TIME, MAX_MEMORY_BYTES),)


class Mig(HoldsNothing):
    """Every MIG device of every GPU; each read detects added, removed and changed ones."""

    name = "mig"
    family = "nvml"
    longest_period_seconds = 10.0
    """Time between two samples counts up to 30 s: periods stay well below."""

    def __init__(self, period_seconds: float = 5.0, gpus: Gpus | None = None) -> None:
        self.period_seconds = period_seconds
        self._gpus = gpus or Gpus()
        self._counted: list[tuple[GpuDevice, int]] = []
        self._plans = Plans()
        self._integrals = Integrals(INTEGRATED, period_seconds)

    def probe(self, host: Host) -> Inventory:
        """Plan the calls for each MIG device, and count those of each MIG-capable GPU."""
        gpus = self._gpus.look(host)
        columns = Columns()
        capable = [gpu for gpu in gpus.values() if gpu.mig_mode]
        self._counted = [(gpu, columns.add(s.GPU_MIG_DEVICES, gpu.entity)) for gpu in capable]
        wanted = [(m.uuid, m.entity, QUESTIONS) for gpu in capable for m in gpu.mig_devices]
        self._plans.place(host, self._gpus.generation, wanted, columns)
        self._integrals.place(columns)
        detail = f"{len(wanted)} on {counted(len(capable), 'GPU')} that can be cut"
        findings = (Finding("MIG devices", Verdict.SUPPORTED, detail),) if capable else ()
        return Inventory(tuple(columns.columns), (), findings)

    def read(self, host: Host, into: Table) -> None:
        """Read each MIG device, and check that the set of devices is unchanged."""
        for gpu, column in self._counted:
            into.put(column, self._look(host, gpu))
        self._plans.read(host, into)
        self._integrals.read(host, into)
        into.grown |= self._gpus.generation != self._plans.generation

    def _look(self, host: Host, gpu: GpuDevice) -> Reading:
        """Number of MIG devices of a GPU; if they differ from the planned ones, all sources probe again."""
        try:
            mode = bool(host.call("nvml", "nvmlDeviceGetMigMode", gpu.index)[0])
            devices = mig_devices(host, gpu.index, gpu.entity) if mode else ()
        except NvmlError as error:
            return nvml_reason(error.code)
        if str(int(mode)) != gpu.mig_mode or devices != gpu.mig_devices:
            self._gpus.changed()
        return len(devices)
