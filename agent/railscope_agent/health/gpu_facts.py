"""Facts about every GPU from frames, and the state that rules need.

The state consists of earlier values of counters, the GPUs seen so far, and the time of each GPU's
last reset. All of it is bounded. Events of a GPU no longer count up to its last reset, or up to the
driver's report that no recovery action is needed. That time is saved.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from railscope.catalog import entities, gpu as c, gpu_health as h, kernel
from railscope.frame import Entity, Frame
from railscope.reading import Absent, Reading
from railscope_agent.health import RULES, driver_rules, health_facts, rule, source_readings
from railscope_agent.health.gpu_lifetime import GpuLifetime
from railscope_agent.streams.xid_matcher import ActionableXid

MAX_GPUS = 64
DEVICE_SOURCE = "gpu_device"
"""Source of the state of GPUs on the PCI bus."""
READING_SOURCES = (
    rule.LOAD,
    rule.HEALTH,
    rule.NVLINK,
    rule.NVLINK_SIGNAL,
    rule.SETTINGS,
    rule.PATHS,
)
SOURCES = (*READING_SOURCES, DEVICE_SOURCE, rule.KERNEL_LOG)
"""All sources of facts."""
_SOURCES_OF_EVERY_GPU = (rule.LOAD, rule.HEALTH)
"""Sources with columns for every GPU; a GPU may have no NVLink."""
_METRICS = source_readings.metrics_of_rules(RULES, c.GPU_ENERGY)
_DRIVER, *_TAKEN_AWAY, _MISSING = h.GPU_DEVICE_STATE.states

LatestFrames = Mapping[str, Frame | Absent]
"""Latest frame of each source that is not stale, or an absence reason."""


@dataclass(slots=True)
class _ObservedGpu:
    """Observed GPU with its columns and events."""

    entity: Entity
    lifetime: GpuLifetime = field(default_factory=GpuLifetime)

    @property
    def address(self) -> str:
        return self.entity.facts.get("pci_address", "")


def _key(gpu: str) -> source_readings.DeviceName:
    return entities.GPU.name, gpu


class FactCollector:
    """Facts about every GPU seen so far, as of the last poll."""

    def __init__(self, xids: Callable[[str], tuple[ActionableXid, ...]]) -> None:
        self.earlier_lifetimes: Mapping[str, GpuLifetime] = {}
        """State of GPUs from before a restart of the agent."""
        self._xids = xids
        self._readings = {
            name: source_readings.SourceReadings(_METRICS) for name in READING_SOURCES
        }
        self._gpus: dict[str, _ObservedGpu] = {}
        self._absent: dict[str, Absent] = {}
        self._devices: Mapping[str, Reading] = {}

    @property
    def gpus(self) -> list[Entity]:
        """GPUs including lost ones, without those that NVIDIA's driver was unbound from."""
        return [gpu.entity for gpu in self._gpus.values()]

    @property
    def lifetimes(self) -> dict[str, GpuLifetime]:
        """Time up to which the Xids of each GPU are cleared, with the evidence for it."""
        return {name: gpu.lifetime for name, gpu in self._gpus.items()}

    def update(self, latest: LatestFrames, now_ns: int) -> None:
        """Process the current frames of all sources."""
        frames = {name: frame for name, frame in latest.items() if isinstance(frame, Frame)}
        self._absent = {name: frame for name, frame in latest.items() if isinstance(frame, Absent)}
        for name, readings in self._readings.items():
            readings.add(frames.get(name))
        devices = frames.get(DEVICE_SOURCE)
        self._devices = {e.key[0]: frame for _, e, frame in devices.readings()} if devices else {}
        if rule.KERNEL_LOG in frames:
            self._check_kernel_log(frames[rule.KERNEL_LOG])
        self._update_gpus(devices)
        for name, gpu in self._gpus.items():
            energy, _ = self._readings[rule.LOAD].reading_of_device(_key(name), c.GPU_ENERGY)
            recovery, reported_ns = self._readings[rule.HEALTH].reading_of_device(
                _key(name), h.GPU_RECOVERY_ACTION
            )
            gpu.lifetime.observe(now_ns, energy, recovery, reported_ns)

    def facts(self, gpu: Entity) -> health_facts.HealthFacts:
        """Return the facts about a GPU."""
        (name,) = gpu.key
        observed = self._gpus[name]
        readings, changes = source_readings.merge_source_facts(
            source.facts_of_device(_key(name)) for source in self._readings.values()
        )
        gpu_xids = self._xids(observed.address)
        xids = tuple(xid for xid in gpu_xids if xid.boot_ns > observed.lifetime.cleared_ns)
        state = self._device_state(observed)
        # Missing in NVML but with firmware errors in the kernel log: it is present and does not respond.
        hung = state == _MISSING and driver_rules.is_firmware_unresponsive(xids)
        reason = Absent.TIMEOUT if hung else Absent.GONE
        unlisted = {
            s: reason for s in _SOURCES_OF_EVERY_GPU if _key(name) not in self._readings[s].columns
        }
        return health_facts.HealthFacts(readings, changes, xids, unlisted | self._absent, state)

    def _check_kernel_log(self, log: Frame) -> None:
        """Check whether the log itself is readable: its source has other columns as well."""
        for metric, _, reading in log.readings():
            if metric is kernel.LOG_RECORDS and isinstance(reading, Absent):
                self._absent[rule.KERNEL_LOG] = reading

    def _update_gpus(self, devices: Frame | None) -> None:
        for source in _SOURCES_OF_EVERY_GPU:
            if self._readings[source].frame:
                for entity in self._readings[source].devices:
                    if entity.kind is entities.GPU:
                        self._add_gpu(entity)
        self._add_missing_gpus(devices)
        listed = {
            key[1] for source in _SOURCES_OF_EVERY_GPU for key in self._readings[source].columns
        }
        named = {gpu.address for name, gpu in self._gpus.items() if name in listed}
        for name, gpu in tuple(self._gpus.items()):
            if name in listed:
                continue
            has_uuid_now = name == gpu.address and name in named
            if has_uuid_now or self._device_state(gpu) in _TAKEN_AWAY:
                del self._gpus[name]

    def _add_missing_gpus(self, devices: Frame | None) -> None:
        """Add GPUs that NVML never reported: those that were lost before the agent started."""
        addresses = {gpu.address for gpu in self._gpus.values()}
        for entity in devices.schema.entities if devices else ():
            if entity.kind is entities.GPU and entity.facts["pci_address"] not in addresses:
                self._add_gpu(entity)

    def _add_gpu(self, entity: Entity) -> None:
        gpu = self._gpus.get(entity.key[0])
        if gpu:
            gpu.entity = entity
        elif len(self._gpus) < MAX_GPUS:
            before = self.earlier_lifetimes.get(entity.key[0])
            self._gpus[entity.key[0]] = _ObservedGpu(
                entity, replace(before) if before else GpuLifetime()
            )

    def _device_state(self, gpu: _ObservedGpu) -> Reading:
        return self._absent.get(DEVICE_SOURCE) or self._devices.get(gpu.address, Absent.GONE)
