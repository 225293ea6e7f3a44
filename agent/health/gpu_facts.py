"""Facts about every GPU from frames, and the state that rules need.

The state consists of earlier values of counters, the GPUs seen so far, and the time of each GPU's
last reset. All of it is bounded. Events of a GPU no longer count up to its last reset, or up to the
driver's report that no recovery action is needed. That time is saved.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Generic, TypeVar

from agent.health import RULES, driver_rules, rule
from agent.host.files import BootState, BootStateFile
from agent.streams.kernel_log import ActionableXid
from railscope.catalog import declare, entities, gpu as c, gpu_health as h, kernel
from railscope.frame import Entity, Frame, Schema
from railscope.reading import Absent, Reading
from railscope.timestamps import SECOND_NS

WINDOW_NS = 10 * rule.MINUTE_NS
STEP_NS = rule.MINUTE_NS // 2
CounterKeyT = TypeVar("CounterKeyT", bound=Hashable)


@dataclass(slots=True)
class _WindowCounter:
    """Last value of a counter, the time since which it is followed, and its increase since then."""

    last: int | None = None
    since_ns: int = 0
    seen_ns: int = 0
    total: int = 0

    def add(self, value: int, boot_ns: int) -> bool:
        """Process a reading; return True if the counter has decreased."""
        fell_back = self.last is not None and value < self.last
        if self.last is None:
            self.since_ns = boot_ns
        elif fell_back:
            self.since_ns, self.total = self.seen_ns, value
        else:
            self.total += value - self.last
        self.last, self.seen_ns = value, boot_ns
        return fell_back


@dataclass(slots=True)
class _WindowMark:
    """Sums of all counters at one time."""

    boot_ns: int
    totals: array[int]


@dataclass(slots=True)
class CounterWindow(Generic[CounterKeyT]):
    """Increase of counters by key; totals are unsigned 64-bit integers, as counters are.

    Increases are summed as readings arrive, and every half minute the sums are stored as one array, so
    memory is bounded. The sums before a counter decreased are no longer valid and are dropped.
    """

    length_ns: int = WINDOW_NS
    step_ns: int = STEP_NS
    _places: dict[CounterKeyT, int] = field(default_factory=dict)
    _counters: list[_WindowCounter] = field(default_factory=list)
    _marks: deque[_WindowMark] = field(default_factory=deque)
    _recent: _WindowMark | None = None
    """The newest mark that is at least a minute old, else the first."""

    def set_keys(self, keys: Sequence[CounterKeyT]) -> None:
        """Follow exactly these counters; those that were followed before keep their sums."""
        before, counters, marks = self._places, self._counters, self._marks
        values = [before.get(key) for key in keys]
        self._places = {key: place for place, key in enumerate(keys)}
        self._counters = [
            _WindowCounter() if place is None else counters[place] for place in values
        ]
        self._marks = deque(
            _WindowMark(
                mark.boot_ns,
                array("Q", [0 if place is None else mark.totals[place] for place in values]),
            )
            for mark in marks
        )
        self._recent = None

    def add(self, boot_ns: int, values: Mapping[CounterKeyT, int]) -> None:
        """Process the readings of one time; counters without one are unchanged."""
        for key, value in values.items():
            place = self._places[key]
            if self._counters[place].add(value, boot_ns):
                for mark in self._marks:
                    mark.totals[place] = 0
        if not self._marks or boot_ns - self._marks[-1].boot_ns >= self.step_ns:
            totals = array("Q", [counter.total for counter in self._counters])
            self._marks.append(_WindowMark(boot_ns, totals))
        while len(self._marks) > 1 and boot_ns - self._marks[1].boot_ns >= self.length_ns:
            self._marks.popleft()
        minute_ago = boot_ns - rule.MINUTE_NS
        older = (mark for mark in reversed(self._marks) if mark.boot_ns <= minute_ago)
        self._recent = next(older, self._marks[0])

    def change(self, key: CounterKeyT) -> rule.CounterIncrease | None:
        """Return the increase of a counter; None if it has been read at most once."""
        place = self._places.get(key)
        return None if place is None else self.change_of_place(place)

    def change_of_place(self, place: int) -> rule.CounterIncrease | None:
        """Return the increase of the counter at a position of the keys."""
        if self._recent is None:
            return None
        counter = self._counters[place]
        if counter.seen_ns <= counter.since_ns:
            return None
        return rule.CounterIncrease(
            *self._growth(place, counter, self._marks[0]),
            *self._growth(place, counter, self._recent),
        )

    @staticmethod
    def _growth(place: int, counter: _WindowCounter, mark: _WindowMark) -> tuple[int, int]:
        """Return the increase since a mark, and the nanoseconds that it covers."""
        since_ns = max(mark.boot_ns, counter.since_ns)
        return counter.total - mark.totals[place], counter.seen_ns - since_ns


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


@dataclass(slots=True)
class _MetricColumns:
    """The columns of one metric of a GPU."""

    metric: declare.Metric
    parts: list[rule.GpuPart] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    window_places: list[int] = field(default_factory=list)
    """Positions in the window of counters; none for a metric whose increase no rule uses."""

    def readings(self, frame: Frame) -> dict[rule.GpuPart, Reading]:
        """Return the readings of a frame by part."""
        values: list[int] = [frame.values[place] for place in self.places]
        is_absent = frame.reasons and any(map(frame.reasons.__getitem__, self.places))
        if is_absent or min(values) < 0:  # a counter of more than 63 bits, or a negative number
            return dict(zip(self.parts, map(frame.reading, self.places), strict=True))
        return dict(zip(self.parts, values, strict=True))


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
    _facts: dict[str, _SourceFacts] = field(default_factory=dict)
    """Facts of the current frame, so that a GPU has the same objects until the next frame."""
    _schema: Schema | None = None
    _growing: list[tuple[int, _ReadingKey]] = field(default_factory=list)
    _window: CounterWindow[_ReadingKey] = field(default_factory=CounterWindow)
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
            readings = ((key, frame.reading(place)) for place, key in self._growing)
            present = {key: reading for key, reading in readings if not isinstance(reading, Absent)}
            self._window.add(frame.timestamp.boot_ns, present)

    def facts_of_gpu(self, gpu: str) -> _SourceFacts:
        """Return the current readings of a GPU, and the increases of its counters."""
        if gpu not in self._facts:
            self._facts[gpu] = self._read_facts(gpu)
        return self._facts[gpu]

    def _read_facts(self, gpu: str) -> _SourceFacts:
        if self.frame is None:
            return {}, {}
        columns = self.columns.get(gpu, {})
        changes = {}
        for metric, columns_of_metric in columns.items():
            increases = map(self._window.change_of_place, columns_of_metric.window_places)
            pairs = zip(columns_of_metric.parts, increases, strict=False)
            if present := {part: change for part, change in pairs if change}:
                changes[metric] = present
        return {metric: of.readings(self.frame) for metric, of in columns.items()}, changes

    def reading_of_gpu(self, gpu: str, metric: declare.Metric) -> tuple[Reading, int]:
        """Return a reading of a GPU itself, and its time on the boot clock."""
        columns = self.columns.get(gpu, {}).get(metric) if self.frame else None
        if self.frame and columns and () in columns.parts:
            place = columns.places[columns.parts.index(())]
            return self.frame.reading(place), self.frame.timestamp.boot_ns
        return Absent.UNSUPPORTED, -1

    def _plan(self, schema: Schema) -> None:
        self._schema, self.columns, self._growing = schema, {}, []
        for place, (metric, entity) in enumerate(schema.columns):
            if metric in _USED_METRICS:
                gpu, *part = entity.key
                of_gpu = self.columns.setdefault(gpu, {})
                columns = of_gpu.setdefault(metric, _MetricColumns(metric))
                columns.parts.append(tuple(part))
                columns.places.append(place)
        keys: list[_ReadingKey] = []
        for gpu, of_gpu in self.columns.items():
            for metric, columns in of_gpu.items():
                if metric in _COUNTER_METRICS:
                    first = len(keys)
                    keys += [(gpu, metric, part) for part in columns.parts]
                    columns.window_places = list(range(first, len(keys)))
                    self._growing += zip(columns.places, keys[first:], strict=True)
        self._window.set_keys(keys)


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
            for metric, increases in changes_of_source.items():
                changes[metric] = changes.get(metric, {}) | increases
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
            frame = self._readings[source].frame
            for entity in frame.schema.entities if frame else ():
                if entity.kind is entities.GPU:
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
