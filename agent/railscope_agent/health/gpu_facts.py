"""Facts about every GPU from frames, and the state that rules need.

The state consists of earlier values of counters, the GPUs seen so far, and the time of each GPU's
last reset. All of it is bounded. Events of a GPU no longer count up to its last reset, or up to the
driver's report that no recovery action is needed; those of a switch up to the reset only. Both times are
saved.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from railscope.catalog import entities, gpu as c, gpu_health as h, kernel, nvlink as n, xids as x
from railscope.frame import Entity, Frame, Schema
from railscope.reading import Absent, Reading
from railscope_agent.health import (
    RULES,
    driver_rules,
    fact_collector,
    health_facts,
    link_rules,
    rule,
)
from railscope_agent.health.gpu_lifetime import GpuLifetime
from railscope_agent.host import MAX_GPUS
from railscope_agent.sampling import status
from railscope_agent.sampling.source import NVML
from railscope_agent.streams.xid_matcher import EVERY_GPU, UNNAMED_GPU, ActionableXid, XidMatcher
from railscope_agent.topology.pci import NVSWITCH

TO_SWITCH = "switch"
"""Type of the device at the other end of an NVLink, as in railscope_nvlink_info."""
DEVICE_SOURCE = "gpu_device"
"""Source of the state of GPUs on the PCI bus."""
BUS_SOURCE = "pcie"
"""Source of the devices on the PCI bus; without it, NVSwitches are not known."""
SOURCES = (
    rule.LOAD,
    rule.HEALTH,
    rule.NVLINK,
    rule.NVLINK_SIGNAL,
    rule.SETTINGS,
    rule.PATHS,
    DEVICE_SOURCE,
    rule.KERNEL_LOG,
)
"""All sources of facts that a verdict needs."""
_SOURCES_OF_EVERY_GPU = (rule.LOAD, rule.HEALTH)
"""Sources with columns for every GPU; a GPU may have no NVLink."""
_, *_TAKEN_AWAY, _ = h.GPU_DEVICE_STATE.states
_VIRTUAL_MACHINE = next(
    code for code, name in h.GPU_DEVICE_STATE.states.items() if name == "virtual_machine"
)
"""While a GPU is passed through, the fabric is divided: links between its parts stay down."""
_UNBOUND = next(code for code, name in h.GPU_DEVICE_STATE.states.items() if name == "unbound")
_UNNAMED = x.Judgement(x.UNKNOWN, (rule.INSPECT,), "")
"""Judgement of a line that may be about this GPU, or about another one of the node."""


@dataclass(slots=True)
class _ObservedGpu:
    """Observed GPU with its columns and events."""

    entity: Entity
    lifetime: GpuLifetime = field(default_factory=GpuLifetime)

    @property
    def address(self) -> str:
        return self.entity.facts.get("pci_address", "")


def _gpus_to_reset(driver_frames: Iterable[Frame]) -> frozenset[str]:
    """Return the GPUs with a reading, also of a part such as a MIG device, that is absent until a reset."""
    code = Absent.RESET_REQUIRED.value
    return frozenset(
        entity.key[0]
        for frame in driver_frames
        if code in frame.reasons
        for (_, entity), reason in zip(frame.schema.columns, frame.reasons, strict=True)
        if reason == code and entity.kind.outermost is entities.GPU
    )


def _key(gpu: str) -> fact_collector.DeviceName:
    return entities.GPU.name, gpu


class GpuFacts:
    """Facts about every GPU seen so far, as of the last poll."""

    def __init__(self, xids: XidMatcher) -> None:
        self.earlier_lifetimes: Mapping[str, GpuLifetime] = {}
        """State of GPUs from before a restart of the agent."""
        self._xids = xids
        self._facts = fact_collector.FactCollector(RULES, (*SOURCES, BUS_SOURCE), c.GPU_ENERGY)
        self._readings = self._facts.sources
        self._gpus: dict[str, _ObservedGpu] = {}
        self._devices: Mapping[str, Reading] = {}
        self._needs_reset: frozenset[str] = frozenset()
        self._link_schema: Schema | None = None
        self._at_switches: set[str] = set()
        self._bus_schema: Schema | None = None
        self._has_switches = False

    @property
    def gpus(self) -> list[Entity]:
        """GPUs including lost ones, without those that NVIDIA's driver was unbound from."""
        return [gpu.entity for gpu in self._gpus.values()]

    @property
    def lifetimes(self) -> dict[str, GpuLifetime]:
        """Time up to which the Xids of each GPU are cleared, with the evidence for it."""
        return {name: gpu.lifetime for name, gpu in self._gpus.items()}

    def update(self, statuses: Mapping[str, status.SourceState], now_ns: int) -> None:
        """Process the current frames of the sources of facts, and of all sources that call NVML."""
        self._facts.update(statuses, now_ns)
        of_driver = [
            each for each in statuses.values() if each.source.lane == NVML and not each.source.stage
        ]
        driver_frames = (each.fresh_frame(now_ns) for each in of_driver)
        self._needs_reset = _gpus_to_reset(filter(None, driver_frames))
        self._find_gpus_at_switches()
        devices = self._readings[DEVICE_SOURCE].frame
        self._devices = {e.key[0]: frame for _, e, frame in devices.readings()} if devices else {}
        self._check_kernel_log()
        self._find_switches(self._readings[BUS_SOURCE].frame)
        self._update_gpus(devices)
        for name, gpu in self._gpus.items():
            energy, _ = self._readings[rule.LOAD].reading(_key(name), c.GPU_ENERGY)
            recovery, reported_ns = self._readings[rule.HEALTH].reading(
                _key(name), h.GPU_RECOVERY_ACTION
            )
            gpu.lifetime.observe(now_ns, energy, recovery, reported_ns)
            gpu.lifetime.answered_ns = max(gpu.lifetime.answered_ns, self._answered_ns(name))
            failure = self._xids.init_failure(gpu.address)
            if failure and failure.boot_ns < gpu.lifetime.answered_ns:  # it was started later
                gpu.lifetime.cleared_ns = max(gpu.lifetime.cleared_ns, failure.boot_ns)

    def facts(self, gpu: Entity) -> health_facts.HealthFacts:
        """Return the facts about a GPU."""
        (name,) = gpu.key
        observed = self._gpus[name]
        gpu_xids = (*self._xids.actionable_xids(observed.address), *self._shared_xids())
        unlisted = {
            s: Absent.GONE
            for s in _SOURCES_OF_EVERY_GPU
            if _key(name) not in self._readings[s].columns
        }
        peer_links, has_fabric_peer = self._peer_facts(name)
        return replace(
            self._facts.facts([_key(name)]),
            xids=tuple(xid for xid in gpu_xids if not observed.lifetime.has_cleared(xid)),
            absent_sources=unlisted | self._facts.absent,
            needs_reset=name in self._needs_reset or observed.address in self._xids.gpus_to_reset,
            init_failure=self._init_failure(observed.address, observed.lifetime),
            peer_links=peer_links,
            has_fabric_peer=has_fabric_peer,
            device_state=self._device_state(observed),
            has_switches=self._has_switches and _VIRTUAL_MACHINE not in self._devices.values(),
        )

    def _peer_facts(self, name: str) -> tuple[int, bool]:
        """Return the most active links to NVSwitches of another GPU of the model, and whether one joined a fabric."""
        model = self._gpus[name].entity.facts.get("model")
        links, is_joined = 0, False
        for peer, gpu in self._gpus.items():
            if peer == name or not model or gpu.entity.facts.get("model") != model:
                continue
            fabric, _ = self._readings[rule.HEALTH].reading(_key(peer), h.GPU_FABRIC_STATE)
            active, _ = self._readings[rule.NVLINK].reading(_key(peer), n.NVLINK_ACTIVE)
            is_joined |= fabric == link_rules.COMPLETED
            if isinstance(active, int) and peer in self._at_switches:
                links = max(links, active)
        return links, is_joined

    def _find_gpus_at_switches(self) -> None:
        """Find the GPUs with a link to an NVSwitch: a link that never came up does not know its other end."""
        frame = self._readings[rule.NVLINK].frame
        schema = frame.schema if frame else None
        # Facts are part of the schema: the links are searched only when it changes.
        if schema is not self._link_schema:
            self._link_schema = schema
            self._at_switches = {
                entity.key[0]
                for entity in (schema.entities if schema else ())
                if entity.facts.get("remote_type") == TO_SWITCH
            }

    def _find_switches(self, bus: Frame | None) -> None:
        """Note whether the bus has NVSwitches: their links to the GPUs are down if none of them ever came up."""
        if bus and bus.schema is not self._bus_schema:
            self._bus_schema = bus.schema
            self._has_switches = any(
                entity.kind is entities.PCIE and entity.facts.get("role") == NVSWITCH
                for entity in bus.schema.entities
            )

    def _shared_xids(self) -> Iterable[ActionableXid]:
        """Return what the driver reported about every GPU, and about one that it did not name: the only one, or any."""
        of_every_gpu = self._xids.actionable_xids(EVERY_GPU)
        unnamed = self._xids.actionable_xids(UNNAMED_GPU)
        if len(self._gpus) != 1:
            unnamed = tuple(replace(each, judgement=_UNNAMED) for each in unnamed)
        return *of_every_gpu, *unnamed

    def _init_failure(self, address: str, lifetime: GpuLifetime) -> str:
        failure = self._xids.init_failure(address)
        return failure.line if failure and failure.boot_ns > lifetime.answered_ns else ""

    def _answered_ns(self, name: str) -> int:
        """Return the time of the latest reading that only a GPU has that the driver has started; -1 without one."""
        readings = (
            self._readings[source].reading(_key(name), metric)
            for source, metrics in driver_rules.PRESENCE_METRICS.items()
            for metric in metrics
        )
        return max((ns for reading, ns in readings if not isinstance(reading, Absent)), default=-1)

    def _check_kernel_log(self) -> None:
        """Check whether the log itself is readable: its source has other columns as well."""
        log = self._readings[rule.KERNEL_LOG].frame
        for metric, _, reading in log.readings() if log else ():
            if metric is kernel.LOG_RECORDS and isinstance(reading, Absent):
                self._facts.absent[rule.KERNEL_LOG] = reading

    def _update_gpus(self, devices: Frame | None) -> None:
        for source in _SOURCES_OF_EVERY_GPU:
            frame = self._readings[source].frame
            for entity in frame.schema.entities if frame else ():
                if entity.kind is entities.GPU:
                    self._add_gpu(entity)
        # After the listed ones, whose addresses show which GPUs are known already.
        self._add_missing_gpus(devices)
        listed = {
            key[1] for source in _SOURCES_OF_EVERY_GPU for key in self._readings[source].columns
        }
        at_address = {gpu.address: gpu for name, gpu in self._gpus.items() if name in listed}
        for name, gpu in tuple(self._gpus.items()):
            if name in listed:
                continue
            successor = at_address.get(gpu.address) if gpu.address else None
            # Another GPU is in its place: earlier faults belong to the former one.
            if successor and name != gpu.address:
                lifetime = successor.lifetime
                lifetime.cleared_ns = max(lifetime.cleared_ns, gpu.lifetime.polled_ns)
            is_failed = self._has_failed_to_start(gpu.address, gpu.lifetime)
            # One that was known by its address until the driver had its UUID is the successor itself.
            if successor or (self._device_state(gpu) in _TAKEN_AWAY and not is_failed):
                del self._gpus[name]

    def _has_failed_to_start(self, address: str, lifetime: GpuLifetime) -> bool:
        """True if a GPU has no driver because its probe failed: it has not been given to another driver."""
        return self._devices.get(address) == _UNBOUND and bool(
            self._init_failure(address, lifetime)
        )

    def _add_missing_gpus(self, devices: Frame | None) -> None:
        """Add GPUs that NVML never reported: those that were lost, or could not be started, before the agent was."""
        addresses = {gpu.address for gpu in self._gpus.values()}
        described = [
            entity
            for entity in (devices.schema.entities if devices else ())
            if entity.kind is entities.GPU
        ]
        described += [
            Entity(entities.GPU, (address,), {"pci_address": address})
            for address in self._devices
            if self._has_failed_to_start(
                address, self.earlier_lifetimes.get(address, GpuLifetime())
            )
        ]
        for entity in described:
            if entity.facts["pci_address"] not in addresses:
                self._add_gpu(entity)

    def _add_gpu(self, entity: Entity) -> None:
        gpu = self._gpus.get(entity.key[0])
        if gpu:
            gpu.entity = entity
        elif len(self._gpus) < MAX_GPUS:
            before = self.earlier_lifetimes.get(entity.key[0])
            # The lifetime is copied: the state from before the restart stays as it was read.
            self._gpus[entity.key[0]] = _ObservedGpu(
                entity, replace(before) if before else GpuLifetime()
            )

    def _device_state(self, gpu: _ObservedGpu) -> Reading:
        return self._facts.absent.get(DEVICE_SOURCE) or self._devices.get(gpu.address, Absent.GONE)
