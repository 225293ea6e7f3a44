"""Facts from frames, and the state that rules need.

The state consists of earlier values of counters, the GPUs seen so far, and the time of each GPU's last
reset. All of it is bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from agent.health import RULES
from agent.health.driver import firmware_is_silent
from agent.health.facts import Change, Facts, Part
from agent.health.lifetime import Lifetime
from agent.health.rule import HEALTH, KERNEL_LOG, LOAD, NVLINK, NVLINK_SIGNAL, PATHS, SETTINGS
from agent.health.window import Window
from agent.streams.xid_book import JudgedXid
from railscope.catalog import gpu as c
from railscope.catalog import gpu_health as h
from railscope.catalog.declare import Kind, Metric
from railscope.catalog.entities import GPU
from railscope.catalog.kernel import LOG_RECORDS
from railscope.entity import Entity
from railscope.frame import Frame, Schema
from railscope.reading import Absent, Reading

MAX_GPUS = 64
DEVICES = "gpu_device"
"""Source of the state of GPUs on the PCI bus."""
READINGS = (LOAD, HEALTH, NVLINK, NVLINK_SIGNAL, SETTINGS, PATHS)
SOURCES = (*READINGS, DEVICES, KERNEL_LOG)
"""All sources of facts."""
_ONE_EACH = (LOAD, HEALTH)
"""Sources with columns for every GPU; a GPU may have no NVLink."""
_WANTED = frozenset({c.GPU_ENERGY}.union(*(rule.metrics for rule in RULES)))
_GROWING = frozenset(
    metric
    for rule in RULES
    for metric in rule.metrics
    if rule.over_time and metric.kind is Kind.COUNTER
)
_DRIVER, *_TAKEN_AWAY, _MISSING = h.GPU_DEVICE_STATE.states

Latest = Mapping[str, Frame | Absent]
"""By source, the latest frame that is not stale, or an absence reason."""
_Key = tuple[str, Metric, Part]


@dataclass(slots=True)
class _Readings:
    """A source of GPU readings: its current frame, and the increase of its counters."""

    frame: Frame | None = None
    columns: dict[str, list[tuple[int, Metric, Part]]] = field(default_factory=dict)
    """By GPU, the columns that rules use."""
    _schema: Schema | None = None
    _window: Window[_Key] = field(default_factory=Window)
    _taken_ns: int = -1

    def take(self, frame: Frame | None) -> None:
        """Process the latest frame; None if it is stale."""
        self.frame = frame
        if frame is None:
            return
        if frame.schema is not self._schema:
            self._plan(frame.schema)
        if frame.instant.boot_ns > self._taken_ns:
            self._taken_ns = frame.instant.boot_ns
            readings = ((key, frame.reading(place)) for place, key in self._growing())
            present = {key: told for key, told in readings if not isinstance(told, Absent)}
            self._window.take(frame.instant.boot_ns, present)

    def of(self, gpu: str) -> Iterator[tuple[Metric, Part, Reading, Change | None]]:
        """Yield the current readings of a GPU, with the increase of its counters."""
        if self.frame is None:
            return
        for place, metric, part in self.columns.get(gpu, ()):
            change = self._window.change((gpu, metric, part)) if metric in _GROWING else None
            yield metric, part, self.frame.reading(place), change

    def one(self, gpu: str, metric: Metric) -> tuple[Reading, int]:
        """Return a reading of a GPU itself, and its time on the boot clock."""
        for place, found, part in self.columns.get(gpu, ()) if self.frame else ():
            if self.frame and found is metric and not part:
                return self.frame.reading(place), self.frame.instant.boot_ns
        return Absent.UNSUPPORTED, -1

    def _plan(self, schema: Schema) -> None:
        self._schema, self.columns = schema, {}
        for place, (metric, entity) in enumerate(schema.columns):
            if metric in _WANTED:
                gpu, *part = entity.key
                self.columns.setdefault(gpu, []).append((place, metric, tuple(part)))
        self._window.follow([key for _, key in self._growing()])

    def _growing(self) -> Iterator[tuple[int, _Key]]:
        for gpu, columns in self.columns.items():
            for place, metric, part in columns:
                if metric in _GROWING:
                    yield place, (gpu, metric, part)


@dataclass(slots=True)
class _Gpu:
    """A GPU that has been seen."""

    entity: Entity
    lifetime: Lifetime = field(default_factory=Lifetime)

    @property
    def address(self) -> str:
        return self.entity.facts.get("pci_address", "")


class Gathering:
    """Facts about every GPU seen so far, as of the last poll."""

    def __init__(self, xids: Callable[[str], tuple[JudgedXid, ...]]) -> None:
        self.remembered: Mapping[str, Lifetime] = {}
        """State of GPUs from before a restart of the agent."""
        self._xids = xids
        self._readings = {name: _Readings() for name in READINGS}
        self._gpus: dict[str, _Gpu] = {}
        self._silent: dict[str, Absent] = {}
        self._devices: Mapping[str, Reading] = {}

    @property
    def gpus(self) -> list[Entity]:
        """GPUs including lost ones, without those that NVIDIA's driver was unbound from."""
        return [gpu.entity for gpu in self._gpus.values()]

    @property
    def lifetimes(self) -> dict[str, Lifetime]:
        """Time up to which the Xids of each GPU are cleared, with the evidence for it."""
        return {name: gpu.lifetime for name, gpu in self._gpus.items()}

    def look(self, latest: Latest, now_ns: int) -> None:
        """Process the current frames of all sources."""
        frames = {name: told for name, told in latest.items() if isinstance(told, Frame)}
        self._silent = {name: told for name, told in latest.items() if isinstance(told, Absent)}
        for name, readings in self._readings.items():
            readings.take(frames.get(name))
        devices = frames.get(DEVICES)
        self._devices = {e.key[0]: told for _, e, told in devices.readings()} if devices else {}
        if KERNEL_LOG in frames:
            self._listen(frames[KERNEL_LOG])
        self._meet(devices)
        for name, gpu in self._gpus.items():
            energy, _ = self._readings[LOAD].one(name, c.GPU_ENERGY)
            recovery, told_ns = self._readings[HEALTH].one(name, h.GPU_RECOVERY_ACTION)
            gpu.lifetime.look(now_ns, energy, recovery, told_ns)

    def facts(self, gpu: Entity) -> Facts:
        """Return the facts about a GPU."""
        (name,) = gpu.key
        met = self._gpus[name]
        readings: dict[Metric, dict[Part, Reading]] = {}
        changes: dict[Metric, dict[Part, Change]] = {}
        for source in self._readings.values():
            for metric, part, reading, change in source.of(name):
                readings.setdefault(metric, {})[part] = reading
                if change:
                    changes.setdefault(metric, {})[part] = change
        told = self._xids(met.address)
        xids = tuple(xid for xid in told if xid.boot_ns > met.lifetime.cleared_ns)
        state = self._device_state(met)
        # Missing in NVML but with firmware errors in the kernel log: it is present and does not respond.
        hung = state == _MISSING and firmware_is_silent(xids)
        why = Absent.TIMEOUT if hung else Absent.GONE
        unlisted = {s: why for s in _ONE_EACH if name not in self._readings[s].columns}
        return Facts(readings, changes, xids, unlisted | self._silent, state)

    def _listen(self, log: Frame) -> None:
        """Check whether the log itself is readable: its source has other columns as well."""
        for metric, _, told in log.readings():
            if metric is LOG_RECORDS and isinstance(told, Absent):
                self._silent[KERNEL_LOG] = told

    def _meet(self, devices: Frame | None) -> None:
        for source in _ONE_EACH:
            frame = self._readings[source].frame
            for entity in frame.schema.entities if frame else ():
                if entity.kind is GPU:
                    self._met(entity)
        self._meet_missing(devices)
        listed = {gpu for source in _ONE_EACH for gpu in self._readings[source].columns}
        named = {gpu.address for name, gpu in self._gpus.items() if name in listed}
        for name, gpu in tuple(self._gpus.items()):
            if name in listed:
                continue
            has_a_name_now = name == gpu.address and name in named
            if has_a_name_now or self._device_state(gpu) in _TAKEN_AWAY:
                del self._gpus[name]

    def _meet_missing(self, devices: Frame | None) -> None:
        """Add GPUs that NVML never reported: those that were lost before the agent started."""
        met = {gpu.address for gpu in self._gpus.values()}
        for entity in devices.schema.entities if devices else ():
            if entity.kind is GPU and entity.facts["pci_address"] not in met:
                self._met(entity)

    def _met(self, entity: Entity) -> None:
        gpu = self._gpus.get(entity.key[0])
        if gpu:
            gpu.entity = entity
        elif len(self._gpus) < MAX_GPUS:
            before = self.remembered.get(entity.key[0])
            self._gpus[entity.key[0]] = _Gpu(entity, replace(before) if before else Lifetime())

    def _device_state(self, gpu: _Gpu) -> Reading:
        return self._silent.get(DEVICES) or self._devices.get(gpu.address, Absent.GONE)
