"""GPUs and MIG devices read by tables of calls, and the state of every GPU on the PCI bus.

GPUs are read by tables of calls and fields, each table at its own period.

MIG devices: resources and usage of each. Power, energy, heat, clocks and PCIe are those of the
whole GPU and stay with it; while a GPU is partitioned utilization is reported for neither, and
NVLink is off (nvml.h). GPM activity is in `activity`.

The state on the PCI bus includes the driver of each GPU: a GPU passed to a virtual machine is not a
missing one.
"""

from __future__ import annotations

from collections.abc import Callable

from railscope.catalog import entities, gpu_health as h, gpu_sharing as s
from railscope.catalog.declare import Metric
from railscope.frame import Entity
from railscope.reading import Reading
from railscope_agent.gpus.inventory import GpuDevice, GpuInventory, list_mig_devices
from railscope_agent.host import Host, NvmlError
from railscope_agent.sampling import (
    answer_readings,
    fact_readers,
    probe_result,
    row_builder,
    source,
)
from railscope_agent.sources.nvidia import (
    call_plan,
    column_history,
    gpu_settings,
    health,
    value_tables,
)
from railscope_agent.topology.pci import gpu_addresses, read_gpu_uuid


class GpuSource(source.SourceWithoutResources):
    """A table of NVML calls and fields for every GPU, at one period."""

    family = "nvml"
    longest_period_seconds = source.LONGEST_PERIOD_SECONDS

    def __init__(
        self,
        name: str,
        table_of: Callable[[Host, int], call_plan.CallTable],
        gpus: GpuInventory | None = None,
    ) -> None:
        self.name = name
        self._gpus = gpus or GpuInventory()
        self._table_of = table_of
        self._plans = call_plan.CallPlans(self._gpus)
        self._integrals = column_history.Integrals(value_tables.LOAD_INTEGRALS)
        self._totals = [column_history.DeviceTotals(*each) for each in value_tables.TOTALS]
        self._modes = column_history.SettingChanges()
        self._describe: Callable[[Host, GpuDevice], Entity] | None = None

    @classmethod
    def load(cls, gpus: GpuInventory | None = None) -> GpuSource:
        """Values that change every second, and events of added and removed GPUs.

        A GPU counts as observed while its samples are at most 30 s apart: periods stay well below.
        """
        gpu = cls("gpu", value_tables.load_table, gpus)
        gpu.longest_period_seconds = 10.0
        return gpu

    @classmethod
    def health(cls, gpus: GpuInventory | None = None) -> GpuSource:
        """Actual and potential faults."""
        return cls("gpu_health", lambda *_: health.HEALTH_TABLE, gpus)

    @classmethod
    def settings(cls, gpus: GpuInventory | None = None) -> GpuSource:
        """Values that change rarely."""
        gpu = cls("gpu_settings", value_tables.settings_table, gpus)
        gpu._describe = gpu_settings.settings_entity
        return gpu

    def probe(self, host: Host) -> probe_result.ProbeResult:
        """Find the GPUs and plan the calls for each. Raises NvmlError if the driver fails."""
        gpus = self._gpus.scan(host)
        columns = probe_result.ColumnBuilder()
        tables = [(g.index, g.entity, self._table_of(host, g.index)) for g in gpus.values()]
        self._plans.add_columns(host, tables, columns, self._needs)
        self._integrals.add_columns(columns, self.period_seconds)
        for totals in self._totals:
            totals.add_columns(columns, [gpu.entity for gpu in gpus.values()])
        self._modes.add_columns(columns)
        described = [self._describe(host, g) for g in gpus.values()] if self._describe else ()
        return columns.result(*self._gpus.findings, columnless_entities=described)

    def _needs(self, metric: Metric) -> bool:
        """True for a selected metric, one that a selected one is computed from, and a setting whose changes are events."""
        return metric in column_history.WATCHED or self.selects(
            metric, *value_tables.SUMS.get(metric, ())
        )

    def read(self, host: Host, into: row_builder.RowBuilder) -> None:
        """Make every call for every GPU; a failed call affects only its own columns."""
        self._plans.read(host, into)
        self._integrals.read(host, into)
        for totals in self._totals:
            totals.read(into)
        addresses = {gpu.entity.key[0]: gpu.pci_address for gpu in self._gpus.gpus.values()}
        changes = self._modes.changes(host, into, addresses)
        into.events = [*self._gpus.take_events(), *changes]


_UNCORRECTED, _VOLATILE = 1, 0

MIG_TABLE = call_plan.CallTable((
    call_plan.members("nvmlDeviceGetMemoryInfo",
                      {"total": s.MIG_MEMORY_SIZE, "free": s.MIG_MEMORY_FREE, "reserved": s.MIG_MEMORY_RESERVED},
                      call_plan.CallTarget(s.MIG_MEMORY_USED, call_plan.used)),
    call_plan.members("nvmlDeviceGetBAR1MemoryInfo", {"bar1Total": s.MIG_BAR1_SIZE, "bar1Used": s.MIG_BAR1_USED}),
    call_plan.members("nvmlDeviceGetAttributes_v2",
                      {"multiprocessorCount": s.MIG_MULTIPROCESSORS, "gpuInstanceSliceCount": s.MIG_GPU_SLICES,
                       "computeInstanceSliceCount": s.MIG_COMPUTE_SLICES}),
    call_plan.simple("nvmlDeviceGetTotalEccErrors", s.MIG_ECC_ERRORS, arguments=(_UNCORRECTED, _VOLATILE)),
    call_plan.NvmlCall(("nvmlDeviceGetComputeRunningProcesses",),
                       (call_plan.CallTarget(s.MIG_PROCESSES, call_plan.count),)),
))  # fmt: skip
MIG_INTEGRALS = (
    column_history.IntegratedGauge(
        s.MIG_MEMORY_USED, s.MIG_MEMORY_USED_TIME, column_history.MAX_MEMORY_BYTES
    ),
)


class MigSource(source.SourceWithoutResources):
    """Every MIG device of every GPU; each read detects added, removed and changed ones."""

    name = "mig"
    family = "nvml"
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
        detail = (
            f"{len(tables)} on {probe_result.format_count(len(capable), 'GPU')} with MIG support"
        )
        findings = [probe_result.ProbeFinding.supported("MIG devices", detail)] if capable else []
        return columns.result(*findings)

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
            mode = bool(host.call("nvml", "nvmlDeviceGetMigMode", gpu.index)[0])
            devices = list_mig_devices(host, gpu.index, gpu.entity) if mode else ()
        except NvmlError as error:
            return answer_readings.nvml_reason(error.code)
        if str(int(mode)) != gpu.mig_mode or devices != gpu.mig_devices:
            self._gpus.record_change()
        return len(devices)


DRIVER, VIRTUAL_MACHINE, UNBOUND, OTHER_DRIVER, MISSING = h.GPU_DEVICE_STATE.states
_PASSED_ON = {"vfio-pci", "xen-pciback", "pci-stub", "nvgrace_gpu_vfio_pci", "nvgrace-gpu-vfio-pci"}


class GpuDeviceSource(source.SourceWithoutResources):
    """State of every NVIDIA GPU on the PCI bus.

    A missing GPU is described as an entity too, so that data from other sources can refer to it.
    """

    name = "gpu_device"
    family = "nvml"

    def __init__(self, gpus: GpuInventory | None = None) -> None:
        self._gpus = gpus or GpuInventory()
        self._addresses: list[str] = []
        self._missing: list[str] = []

    def probe(self, host: Host) -> probe_result.ProbeResult:
        """Find the GPUs on the bus. The driver's GPUs were found by the sources that probe earlier."""
        columns = probe_result.ColumnBuilder()
        self._addresses = gpu_addresses(host)
        for address in self._addresses:
            columns.add(h.GPU_DEVICE_STATE, Entity(entities.GPU_ADDRESS, (address,)))
        states = {address: self._state(host, address) for address in self._addresses}
        self._missing = [address for address, state in states.items() if state == MISSING]
        missing = {address: _missing_gpu(host, address) for address in self._missing}
        findings = [_finding(host, address, state) for address, state in states.items()]
        findings += map(_unreported_gpu, missing.values())
        return columns.result(*filter(None, findings), columnless_entities=missing.values())

    def read(self, host: Host, into: row_builder.RowBuilder) -> None:
        """Read the driver of each GPU; an added or removed GPU requests another probe."""
        states = {address: self._state(host, address) for address in self._addresses}
        into.put_readings(0, states.values())
        missing = [address for address, state in states.items() if state == MISSING]
        into.needs_probe = gpu_addresses(host) != self._addresses or missing != self._missing

    def _state(self, host: Host, address: str) -> int:
        driver = fact_readers.read_link_name(host, f"/sys/bus/pci/devices/{address}/driver")
        if driver in _PASSED_ON:
            return VIRTUAL_MACHINE
        if not driver:
            return UNBOUND
        if driver != "nvidia":
            return OTHER_DRIVER
        listed_addresses = {gpu.pci_address for gpu in self._gpus.gpus.values()}
        return DRIVER if address in listed_addresses else MISSING


def _finding(host: Host, address: str, state: int) -> probe_result.ProbeFinding | None:
    subject = f"GPU {address}"
    driver = fact_readers.read_link_name(host, f"/sys/bus/pci/devices/{address}/driver")
    if state == VIRTUAL_MACHINE:
        detail = f"passed through to a virtual machine ({driver}); readable in its guest"
        return probe_result.ProbeFinding.supported(subject, detail)
    if state == UNBOUND:
        remedy = "bind the GPU to nvidia or vfio-pci"
        return probe_result.ProbeFinding.absent(subject, "not bound to a driver", remedy)
    if state == OTHER_DRIVER:
        return probe_result.ProbeFinding.absent(subject, f"bound to the driver {driver}")
    return None


def _missing_gpu(host: Host, address: str) -> Entity:
    """A GPU that NVML does not report; its PCI address is its name if the driver has no UUID for it."""
    name = read_gpu_uuid(host, address) or address
    return Entity(entities.GPU, (name,), {"pci_address": address})


def _unreported_gpu(gpu: Entity) -> probe_result.ProbeFinding:
    detail = f"bound to the nvidia driver as {gpu.key[0]}, but not reported by NVML"
    remedy = "see the health of this GPU below"
    subject = f"GPU {gpu.facts['pci_address']}"
    return probe_result.ProbeFinding(subject, probe_result.ProbeVerdict.BROKEN, detail, remedy)
