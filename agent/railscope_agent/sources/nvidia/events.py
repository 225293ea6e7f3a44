"""Events of the NVIDIA driver: Xids for the Xid matcher, MIG changes, memory and power events.

NVML events have no text and no timestamp, and none arrive from a GPU with a dead bus or firmware:
the kernel log is followed as well.
"""

from __future__ import annotations

from collections import Counter

from railscope.catalog import entities, gpu_health as h
from railscope.frame import Entity, Event, NodeTimestamp
from railscope_agent.gpus.inventory import GpuInventory
from railscope_agent.host import Host, NvmlError
from railscope_agent.sampling import fact_readers, probe_result, row_builder, source
from railscope_agent.streams.xid_matcher import NvmlXid, XidMatcher

XID, MIG_CHANGE = 0x8, 0x100
# nvml.h, nvmlEventType*; performance state and clock events are not requested.
KINDS = {
    0x1: "single_bit_ecc",
    0x2: "double_bit_ecc",
    0x80: "power_source_change",
    MIG_CHANGE: "mig_config_change",
    0x200: "single_bit_ecc_storm",
    0x400: "dram_retirement",
    0x800: "dram_retirement_failure",
    0x1000: "nonfatal_poison",
    0x2000: "fatal_poison",
    0x4000: "gpu_unavailable",
    0x8000: "gpu_recovery_action",
}
_NO_INSTANCE = 0xFFFF_FFFF
_NO_EVENTS_CODES = {3, 13, 12, 28}  # NOT_SUPPORTED, FUNCTION_ and LIBRARY_NOT_FOUND, GPU_NOT_FOUND


class NvmlEventSource(source.Source):
    """Read the driver's events and count those other than Xids."""

    name = "gpu_event"
    lane = source.NVML
    period_seconds = 1.0
    min_period_seconds = 0.02
    longest_period_seconds = 5.0
    """The event queue is bounded, and without the kernel log events are the only source of Xids."""

    def __init__(self, matcher: XidMatcher, gpus: GpuInventory | None = None) -> None:
        self._matcher = matcher
        self._gpus = gpus or GpuInventory()
        self._begun = False
        self._last_number = 0
        self._last_boot_ns = 0
        self._lost_reports = 0
        self._waiting: list[Event] = []
        self._counts: Counter[Entity] = Counter()
        self._columns: list[Entity] = []

    def probe(self, host: Host) -> probe_result.ProbeResult:
        """Register for events, and create a column for each kind seen so far.

        If the driver has no events, the source has no columns.
        """
        columns = probe_result.ColumnBuilder()
        try:
            # A probe has no row for events: they wait for the next read.
            self._waiting += self._take(host)
        except NvmlError as error:
            if error.code not in _NO_EVENTS_CODES:
                raise
            return columns.result()
        except FileNotFoundError:  # a recording without this call
            return columns.result()
        columns.add(h.GPU_EVENTS_LOST, Entity(entities.NODE))
        self._columns = list(self._counts)
        for entity in self._columns:
            columns.add(h.GPU_EVENTS, entity)
        return columns.result()

    def read(self, host: Host, into: row_builder.RowBuilder) -> None:
        """Read the new events."""
        if not into.reasons:
            return
        into.events = [*self._waiting, *self._take(host)]
        self._waiting.clear()
        into.put(0, self._lost_reports + self._matcher.dropped_reports)
        into.put_readings(1, [self._counts[entity] for entity in self._columns])
        into.needs_probe = len(self._counts) > len(self._columns)

    def _take(self, host: Host) -> list[Event]:
        now = host.clock.now()
        answer = host.call("nvml", "nvmlEventSetWait")
        numbers = [number for number, *_ in answer]
        first, self._begun = not self._begun, True
        if max(numbers, default=0) < self._last_number:
            self._last_number = 0  # a recording has restarted
        elif numbers and not first:
            self._lost_reports += max(min(numbers) - self._last_number - 1, 0)
        events = []
        for number, index, kind, data, gpu_instance, compute_instance in answer:
            if number <= self._last_number or first:
                continue  # from before the start of this agent, or before its settings were reloaded
            gpu = self._gpus.gpus.get(index)
            address = gpu.pci_address if gpu else "unknown"
            instances = (_instance(gpu_instance), _instance(compute_instance))
            if kind == XID:
                timestamps = (now.wall_ns, now.boot_ns, self._last_boot_ns)
                self._matcher.record_nvml(NvmlXid(address, data, *timestamps, *instances))
                continue
            if kind == MIG_CHANGE:
                # All sources of GPUs have to find the new MIG devices.
                self._gpus.record_change()
            events.append(self._event(address, kind, data, instances, now))
        self._last_number, self._last_boot_ns = max(numbers, default=0), now.boot_ns
        return events

    def _event(
        self, address: str, kind: int, data: int, instances: tuple[str, str], now: NodeTimestamp
    ) -> Event:
        entity = Entity(entities.GPU_EVENT, (address, KINDS.get(kind, hex(kind))))
        self._counts[entity] += 1
        gpu, compute = instances
        facts = fact_readers.nonempty_facts(
            gpu_instance=gpu, compute_instance=compute, data=str(data) if data else ""
        )
        return Event(h.GPU_DRIVER_EVENT, entity, now.wall_ns, now.boot_ns, facts)


def _instance(number: int) -> str:
    return "" if number == _NO_INSTANCE else str(number)
