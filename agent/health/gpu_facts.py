"""Facts about every GPU from frames, and the state that rules need.

The state consists of earlier values of counters, the GPUs seen so far, and the time of each GPU's
last reset. All of it is bounded. Events of a GPU no longer count up to its last reset, or up to the
driver's report that no recovery action is needed. That time is saved.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from agent.health import RULES, driver_rules, rule
from agent.host.files import BootState, BootStateFile
from agent.sampling.counter_unwrap import column_picker
from agent.streams.kernel_log import ActionableXid
from railscope.catalog import declare, entities, gpu as c, gpu_health as h, kernel
from railscope.frame import Entity, Frame, Schema
from railscope.reading import Absent, Reading
from railscope.timestamps import SECOND_NS

SETTLED_NS = 5 * SECOND_NS
"""The driver reports an Xid first, and determines the recovery action later (Xid 154)."""
_NO_RECOVERY_ACTION = 0


@dataclass(slots=True)
class GpuLifetime:
    """Evidence of a reset: the energy counter, which only a reset or a driver load sets back.

    The kernel log keeps an Xid until the next boot, whatever was done about it. Drivers from 570 on also
    report whether the GPU needs a recovery action; with earlier ones, only an agent that observed its
    counters decrease can detect a reset.
    """

    cleared_ns: int = -1
    """Time on the boot clock up to which all events are cleared."""
    resets: int = 0
    """Number of observed decreases of the energy counter."""
    energy: int | None = None
    polled_ns: int = -1

    def observe(self, now_ns: int, energy: Reading, recovery: Reading, recovery_ns: int) -> None:
        """Process the present readings; the recovery action was read at an earlier time.

        Events after the previous poll may be later than the reset and are not cleared.
        """
        if not isinstance(energy, Absent):
            if self.energy is not None and energy < self.energy:
                self.cleared_ns = max(self.cleared_ns, self.polled_ns)
                self.resets += 1
            self.energy = energy
        if recovery == _NO_RECOVERY_ACTION:
            self.cleared_ns = max(self.cleared_ns, recovery_ns - SETTLED_NS)
        self.polled_ns = now_ns


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
_USED_METRICS = frozenset({c.GPU_ENERGY}.union(*(each.metrics for each in RULES)))
_COUNTER_METRICS = frozenset(
    metric
    for each in RULES
    for metric in each.metrics
    if each.compares_readings and metric.kind is declare.MetricKind.COUNTER
)
_DRIVER, *_TAKEN_AWAY, _MISSING = h.GPU_DEVICE_STATE.states

LatestFrames = Mapping[str, Frame | Absent]
"""Latest frame of each source that is not stale, or an absence reason."""
_ReadingKey = tuple[str, declare.Metric, rule.GpuPart]


class _FrameColumns:
    """Some columns of a schema, and their readings in the last frame."""

    def __init__(self, places: Sequence[int]) -> None:
        self._places = places
        self._pick = column_picker(places)
        self._last: tuple[Sequence[int], Sequence[int]] = (), ()
        self._readings: Sequence[Reading] = ()

    def readings(self, frame: Frame) -> Sequence[Reading]:
        """Return the readings of a frame: the same object as before if they have not changed."""
        last = self._pick(frame.values), self._pick(frame.reasons) if frame.reasons else ()
        if last != self._last:
            self._last = values, reasons = last
            # A counter of more than 63 bits is stored as a negative number.
            is_plain = not any(reasons) and min(values, default=0) >= 0
            self._readings = values if is_plain else tuple(map(frame.reading, self._places))
        return self._readings


class _MetricColumns:
    """The columns of one metric of a GPU.

    Facts that are the same as those of the frame before are the same objects: rules whose facts are the
    same objects need no evaluation.
    """

    def __init__(self, places: Mapping[rule.GpuPart, int], window_places: slice) -> None:
        self.places = places
        self._window_places = window_places
        self.is_followed = window_places.start < window_places.stop
        """False for a metric whose increase no rule uses: it is not in the window of counters."""
        self._columns = _FrameColumns(tuple(places.values()))
        self._values: Sequence[Reading] = ()
        self._readings: dict[rule.GpuPart, Reading] = {}
        self._increases: dict[rule.GpuPart, rule.CounterIncrease] = {}
        self._ages: tuple[bool, bool] | None = None
        """If the counters stand still: whether they are followed, and were in the last one, for a minute."""

    def readings(self, frame: Frame) -> dict[rule.GpuPart, Reading]:
        """Return the readings of a frame by part."""
        values = self._columns.readings(frame)
        if values is not self._values:
            self._values, self._readings = values, dict(zip(self.places, values, strict=True))
        return self._readings

    def increases(
        self, window: rule.CounterWindow[_ReadingKey]
    ) -> dict[rule.GpuPart, rule.CounterIncrease]:
        """Return the increase of each counter up to a frame, without those that were read once.

        While counters stand still, only the minute that rates and shares need matters.
        """
        places = self._window_places
        first = window.change_of_place(places.start)
        if first and window.stand_still(places):
            ages = first.over_ns >= rule.MINUTE_NS, first.recent_ns >= rule.MINUTE_NS
            if ages != self._ages:
                self._ages, self._increases = ages, dict.fromkeys(self.places, first)
            return self._increases
        self._ages = None
        increases = map(window.change_of_place, range(places.start, places.stop))
        pairs = zip(self.places, increases, strict=False)
        self._increases = {part: increase for part, increase in pairs if increase}
        return self._increases


_SourceFacts = tuple[
    dict[declare.Metric, dict[rule.GpuPart, Reading]],
    dict[declare.Metric, dict[rule.GpuPart, rule.CounterIncrease]],
]
"""Readings of a GPU in one frame, and increases of its counters up to that frame."""


@dataclass(slots=True)
class _SourceReadings:
    """A source of GPU readings: its current frame, and the increase of its counters."""

    frame: Frame | None = None
    columns: dict[str, dict[declare.Metric, _MetricColumns]] = field(default_factory=dict)
    """Columns that rules use, by GPU."""
    gpus: tuple[Entity, ...] = ()
    """GPUs of the current schema."""
    _facts: dict[str, _SourceFacts] = field(default_factory=dict)
    """Facts of the current frame by GPU."""
    _schema: Schema | None = None
    _growing: _FrameColumns = field(default_factory=lambda: _FrameColumns(()))
    """Counters in the window."""
    _window: rule.CounterWindow[_ReadingKey] = field(default_factory=rule.CounterWindow)
    _taken_ns: int = -1

    def add(self, frame: Frame | None) -> None:
        """Process the latest frame; None if it is stale."""
        if frame is not self.frame:
            self._facts.clear()
        self.frame = frame
        if frame is None:
            return
        if frame.schema is not self._schema:
            self._plan(frame.schema)
        if frame.timestamp.boot_ns > self._taken_ns:
            self._taken_ns = frame.timestamp.boot_ns
            self._window.add(self._taken_ns, self._growing.readings(frame))

    def facts_of_gpu(self, gpu: str) -> _SourceFacts:
        """Return the current readings of a GPU, and the increases of its counters."""
        if gpu not in self._facts:
            self._facts[gpu] = self._read_facts(gpu)
        return self._facts[gpu]

    def _read_facts(self, gpu: str) -> _SourceFacts:
        if self.frame is None:
            return {}, {}
        columns = self.columns.get(gpu, {})
        increases = {
            metric: increase
            for metric, of in columns.items()
            if of.is_followed and (increase := of.increases(self._window))
        }
        return {metric: of.readings(self.frame) for metric, of in columns.items()}, increases

    def reading_of_gpu(self, gpu: str, metric: declare.Metric) -> tuple[Reading, int]:
        """Return a reading of a GPU itself, and its time on the boot clock."""
        columns = self.columns.get(gpu, {}).get(metric) if self.frame else None
        if self.frame and columns and () in columns.places:
            return self.frame.reading(columns.places[()]), self.frame.timestamp.boot_ns
        return Absent.UNSUPPORTED, -1

    def _plan(self, schema: Schema) -> None:
        self._schema, self.columns = schema, {}
        self.gpus = tuple(entity for entity in schema.entities if entity.kind is entities.GPU)
        parts: dict[tuple[str, declare.Metric], dict[rule.GpuPart, int]] = {}
        for place, (metric, entity) in enumerate(schema.columns):
            if metric in _USED_METRICS:
                gpu, *part = entity.key
                parts.setdefault((gpu, metric), {})[tuple(part)] = place
        followed: dict[_ReadingKey, int] = {}
        for (gpu, metric), places in parts.items():
            first = len(followed)
            if metric in _COUNTER_METRICS:
                followed |= {(gpu, metric, part): place for part, place in places.items()}
            of_gpu = self.columns.setdefault(gpu, {})
            of_gpu[metric] = _MetricColumns(places, slice(first, len(followed)))
        self._growing = _FrameColumns(tuple(followed.values()))
        self._window.set_keys(tuple(followed))


@dataclass(slots=True)
class _ObservedGpu:
    """Observed GPU with its columns and events."""

    entity: Entity
    lifetime: GpuLifetime = field(default_factory=GpuLifetime)

    @property
    def address(self) -> str:
        return self.entity.facts.get("pci_address", "")


class FactCollector:
    """Facts about every GPU seen so far, as of the last poll."""

    def __init__(self, xids: Callable[[str], tuple[ActionableXid, ...]]) -> None:
        self.earlier_lifetimes: Mapping[str, GpuLifetime] = {}
        """State of GPUs from before a restart of the agent."""
        self._xids = xids
        self._readings = {name: _SourceReadings() for name in READING_SOURCES}
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
            energy, _ = self._readings[rule.LOAD].reading_of_gpu(name, c.GPU_ENERGY)
            recovery, reported_ns = self._readings[rule.HEALTH].reading_of_gpu(
                name, h.GPU_RECOVERY_ACTION
            )
            gpu.lifetime.observe(now_ns, energy, recovery, reported_ns)

    def facts(self, gpu: Entity) -> rule.GpuHealthFacts:
        """Return the facts about a GPU."""
        (name,) = gpu.key
        observed = self._gpus[name]
        readings: dict[declare.Metric, dict[rule.GpuPart, Reading]] = {}
        changes: dict[declare.Metric, dict[rule.GpuPart, rule.CounterIncrease]] = {}
        for source in self._readings.values():
            of_source, changes_of_source = source.facts_of_gpu(name)
            for metric in readings.keys() & of_source.keys():
                of_source = {**of_source, metric: readings[metric] | of_source[metric]}
            readings |= of_source
            for metric in changes.keys() & changes_of_source.keys():
                merged = changes[metric] | changes_of_source[metric]
                changes_of_source = {**changes_of_source, metric: merged}
            changes |= changes_of_source
        gpu_xids = self._xids(observed.address)
        xids = tuple(xid for xid in gpu_xids if xid.boot_ns > observed.lifetime.cleared_ns)
        state = self._device_state(observed)
        # Missing in NVML but with firmware errors in the kernel log: it is present and does not respond.
        hung = state == _MISSING and driver_rules.is_firmware_unresponsive(xids)
        reason = Absent.TIMEOUT if hung else Absent.GONE
        unlisted = {
            s: reason for s in _SOURCES_OF_EVERY_GPU if name not in self._readings[s].columns
        }
        return rule.GpuHealthFacts(readings, changes, xids, unlisted | self._absent, state)

    def _check_kernel_log(self, log: Frame) -> None:
        """Check whether the log itself is readable: its source has other columns as well."""
        for metric, _, reading in log.readings():
            if metric is kernel.LOG_RECORDS and isinstance(reading, Absent):
                self._absent[rule.KERNEL_LOG] = reading

    def _update_gpus(self, devices: Frame | None) -> None:
        for source in _SOURCES_OF_EVERY_GPU:
            if self._readings[source].frame:
                for entity in self._readings[source].gpus:
                    self._add_gpu(entity)
        self._add_missing_gpus(devices)
        listed = {gpu for source in _SOURCES_OF_EVERY_GPU for gpu in self._readings[source].columns}
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


class _SavedLifetimes(BootState, frozen=True):
    gpus: dict[str, GpuLifetime]


class GpuLifetimeFile:
    """Saves a few hundred bytes per GPU. Blocking."""

    def __init__(self, path: Path, boot_id: str) -> None:
        self._file = BootStateFile(path, boot_id, "gpu_resets")

    def load(self) -> dict[str, GpuLifetime]:
        """Return the saved state by GPU."""
        saved = self._file.read(_SavedLifetimes)
        return saved.gpus if saved else {}

    def save(self, gpus: Mapping[str, GpuLifetime]) -> None:
        """Save the state."""
        self._file.write(_SavedLifetimes(self._file.boot_id, dict(gpus)))
