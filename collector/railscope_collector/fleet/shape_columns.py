"""Columns of a shape that jobs, metering and the inventory use, determined once per shape.

A device is present if a frame has a value of it. It is gone if its readings are gone (a GPU that
NVML reports as lost), except for unsupported ones. Without any value for another reason its presence is
unknown. A source that has found no device on a node sends no frames; the state that the agent reports for
each source shows that.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from sys import intern
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from railscope.catalog import KINDS, METRICS, account, agent, declare, nic, rollup
from railscope.catalog.entities import GPU as GPU_ENTITY, SWITCH
from railscope.claim_terms import SlotsError, parse_slots
from railscope.frame import NO_RAIL
from railscope.mig_profiles import count_memory_slices
from railscope.reading import PRESENT, Absent
from railscope.shapes import RESERVED, join
from railscope.wire import BUILD, NameRows, Shape, Slot, WireEntity, WireGroup, WireSchema
from railscope_collector.metering import counter_increments, units

Positions: TypeAlias = npt.NDArray[np.intp]
ColumnKey: TypeAlias = tuple[declare.Metric, tuple[str, ...]]
"""A metric, and the part of the GPU or port that it describes: a clock, a priority."""

_AT_LINKS = frozenset({nic.RECEIVED_PACKETS, nic.SENT_PACKETS, nic.PFC_RECEIVED, nic.PFC_SENT})
"""Counters of NICs without a roll-up that pages show beside those of the switch port."""
_COMPARED = frozenset((each.metric, each.part) for each in account.STRAGGLER_MEASURES.values())


def columns_of(wire: WireSchema) -> Iterator[tuple[int, WireGroup, int]]:
    """Yield the columns of a schema that are in use: position, group, and position of the entity."""
    members = ((group, member) for group in wire.groups for member in group.entities)
    return (
        (column, group, member)
        for column, (group, member) in enumerate(members)
        if member != RESERVED
    )


def slots_of(shape: Shape) -> Iterator[tuple[int, WireGroup, Slot]]:
    """Yield all columns of a shape: position, group, and slot."""
    slots = ((group, shape.slots[number]) for group in shape.groups for number in group.entities)
    return ((column, group, slot) for column, (group, slot) in enumerate(slots))


def is_of_jobs(metric: declare.Metric, slot: Slot) -> bool:
    """True if the views of jobs read the columns of a metric and a slot."""
    if slot.kind != metric.about.name:
        return False
    return metric in account.BY_JOB or (metric, slot.part) in _COMPARED


def has_rate(metric: declare.Metric, slot: Slot) -> bool:
    """True if a view or a page reads the rate of a counter."""
    if metric.kind is not declare.MetricKind.COUNTER or slot.kind != metric.about.name:
        return False
    is_of_link = metric in _AT_LINKS or metric.about.outermost is SWITCH
    return is_of_link or bool(metric.rollups) or is_of_jobs(metric, slot)


def rate_columns(shape: Shape) -> dict[int, declare.Metric]:
    """Return the metrics of the columns that views do not read as they are: counters, then averaged gauges."""
    counters, averaged = {}, {}
    for column, group, slot in slots_of(shape):
        metric = METRICS.get(group.metric)
        if metric is None:
            continue
        if has_rate(metric, slot):
            counters[column] = metric
        elif rollup.is_averaged(metric) and slot.kind == metric.about.name:
            averaged[column] = metric
    return counters | averaged


class ColumnOwner(NamedTuple):
    """Owner of a column: a GPU by the number of its name, or the GPU on a rail of the node."""

    name: int = BUILD
    rail: int = NO_RAIL


@dataclass(frozen=True, slots=True, eq=False)
class JobColumns:
    """The columns in order, each with its key and its owner; and the counters and averaged gauges among them."""

    columns: Positions
    keys: tuple[ColumnKey, ...]
    owners: tuple[ColumnOwner, ...]
    owner_of: Positions
    counters: Positions
    """Indices of counters and averaged gauges in `columns`; `rates` has their positions among the rate columns."""
    rates: Positions

    def positions(
        self,
        gpus: Sequence[str],
        by_gpu: Mapping[str, int],
        by_rail: Mapping[int, int],
        default: int,
    ) -> Positions:
        """Return for each column the position of its owner; `gpus` are those of the owners, empty for one by its rail."""
        found = [
            by_gpu.get(gpu, default) if gpu else by_rail.get(rail, default)
            for gpu, (_, rail) in zip(gpus, self.owners, strict=True)
        ]
        return np.array(found, np.intp)[self.owner_of]


def job_columns(shape: Shape) -> JobColumns | None:
    """Return the columns of a shape for jobs; None if there are none."""
    owners: dict[ColumnOwner, int] = {}
    rows: list[tuple[int, ColumnKey, int, int]] = []
    places = {column: number for number, column in enumerate(rate_columns(shape))}
    for column, group, slot in slots_of(shape):
        metric = METRICS.get(group.metric)
        if metric is None or not is_of_jobs(metric, slot):
            continue
        is_gpu = KINDS[slot.kind].outermost is GPU_ENTITY
        owner = ColumnOwner(slot.name) if is_gpu else ColumnOwner(rail=rail_of(shape, slot))
        if owner != ColumnOwner():
            number = owners.setdefault(owner, len(owners))
            rows.append((column, (metric, slot.part), number, places.get(column, -1)))
    if not rows:
        return None
    columns, keys, owner_of, rates = zip(*rows, strict=True)
    found = np.array(rates, np.intp)
    return JobColumns(
        np.array(columns, np.intp),
        keys,
        tuple(owners),
        np.array(owner_of, np.intp),
        np.flatnonzero(found >= 0),
        found[found >= 0],
    )


def rail_of(shape: Shape, slot: Slot) -> int:
    """Return the rail of the device that a slot is part of; NO_RAIL if it has none."""
    return NO_RAIL if slot.name == BUILD else shape.rails[slot.name]


MIG_STREAM = "mig"
GPU, RDMA_PORT, _MIG, _NIC = "gpu", "rdma_port", "mig", "nic"
_MEASURES = {
    ("railscope_gpu_energy_joules_total", GPU): counter_increments.CountedQuantity.ENERGY,
    ("railscope_gpu_busy_seconds_total", GPU): counter_increments.CountedQuantity.USED,
    (
        "railscope_gpu_memory_used_byte_seconds_total",
        GPU,
    ): counter_increments.CountedQuantity.MEMORY,
    ("railscope_rdma_receive_bytes_total", RDMA_PORT): counter_increments.CountedQuantity.RECEIVED,
    (
        "railscope_rdma_transmit_bytes_total",
        RDMA_PORT,
    ): counter_increments.CountedQuantity.TRANSMITTED,
    ("railscope_nic_receive_bytes_total", _NIC): counter_increments.CountedQuantity.RECEIVED,
    ("railscope_nic_transmit_bytes_total", _NIC): counter_increments.CountedQuantity.TRANSMITTED,
}
AGENT_MEASURES = frozenset(
    {counter_increments.CountedQuantity.USED, counter_increments.CountedQuantity.MEMORY}
)
"""Counters that the agent keeps: they restart with each run of it."""
_PROFILE = re.compile(r"(?<!\d)(\d{1,3})g\.(\d{1,6})gb")
_MODEL_MEMORY = re.compile(r"(?<!\d)(\d{1,6}) ?GB?\b", re.IGNORECASE)
_UNNAMED_GIGABYTES = {
    "b200": 180,
    "gb200": 186,
    "gh200-120gb": 96,
    "gh200-480gb": 96,
    "h100-nvl": 94,
    "h20": 96,
    "h200": 141,
    "h200-nvl": 141,
}
"""Memory of GPUs by model, if the name states none, or that of the Grace processor."""
_COMPUTE_SLICES, _MEMORY_SLICES = 7, 8
_TILINGS = ("compute", "memory")


class CounterSubject(msgspec.Struct, frozen=True, array_like=True, order=True, gc=False):
    """Subject of a column: a GPU by its UUID, or the GPU on a rail of the node."""

    measure: counter_increments.CountedQuantity
    gpu: str = ""
    rail: int = NO_RAIL
    port: str = ""
    rdma: bool = False


class ReportedMigInstance(msgspec.Struct, frozen=True, array_like=True, order=True):
    """A MIG instance: [low, high) of compute and of memory."""

    compute: tuple[int, int]
    memory: tuple[int, int]


@dataclass(frozen=True, slots=True, eq=False)
class MeteredColumns:
    """The columns of a schema that metering counts, and the MIG layouts of GPUs."""

    counters: tuple[CounterSubject, ...]
    columns: npt.NDArray[np.intp]
    layouts: tuple[tuple[str, tuple[ReportedMigInstance, ...]], ...]
    skus: Mapping[str, str]


NOT_METERED = MeteredColumns((), np.array((), np.intp), (), MappingProxyType({}))
"""Shared by most schemas of a node."""


@dataclass(frozen=True, slots=True, eq=False)
class MeteredShape:
    """The columns of a shape that metering counts: the measure, the number of the name and the kind of each."""

    counters: tuple[tuple[counter_increments.CountedQuantity, int, str], ...]
    columns: npt.NDArray[np.intp]


def find_metered_columns(shape: Shape) -> MeteredShape:
    """Return the columns of a shape that metering counts."""
    counters: list[tuple[counter_increments.CountedQuantity, int, str]] = []
    columns: list[int] = []
    for column, group, slot in slots_of(shape):
        measure = _MEASURES.get((group.metric, slot.kind))
        has_owner = slot.kind == GPU or rail_of(shape, slot) != NO_RAIL
        if measure is not None and slot.name != BUILD and not slot.part and has_owner:
            counters.append((measure, slot.name, slot.kind))
            columns.append(column)
    return MeteredShape(tuple(counters), np.array(columns, np.intp))


def name_metered_columns(metered: MeteredShape, shape: Shape, rows: NameRows) -> MeteredColumns:
    """Return the metering facts of a shape and the names of a node."""
    counters = tuple(
        _counter_subject(measure, kind, rows[name].key, shape.rails[name])
        for measure, name, kind in metered.counters
    )
    layouts = _layouts(join(shape, rows)) if shape.stream == MIG_STREAM else ()
    gpus: Iterable[WireEntity] = ()
    if shape.stream == STREAMS[GPU]:
        gpus = (rows[slot.name] for slot in gpu_slots(shape))
    skus = {intern(row.key[0]): sku_of(row.facts.get("model", "")) for row in gpus}
    if not (counters or layouts or skus):
        return NOT_METERED
    return MeteredColumns(counters, metered.columns, layouts, skus)


def gpu_slots(shape: Shape) -> list[Slot]:
    """Return the slots of the GPUs of a shape, without their parts."""
    return [
        slot for slot in shape.slots if slot.kind == GPU and slot.name != BUILD and not slot.part
    ]


def _counter_subject(
    measure: counter_increments.CountedQuantity, kind: str, key: tuple[str, ...], rail: int
) -> CounterSubject:
    if kind == GPU:
        return CounterSubject(measure, gpu=intern(key[0]))
    return CounterSubject(measure, "", rail, intern("/".join(key)), kind == RDMA_PORT)


@lru_cache(maxsize=256)
def sku_of(model: str) -> str:
    """Return a GPU's model as a slug: `h100-80gb-hbm3` for `NVIDIA H100 80GB HBM3`."""
    names = re.findall(r"[a-z0-9]+", model.lower())
    return "-".join(name for name in names if name not in {"nvidia", "tesla", "geforce"})


def _layouts(wire: WireSchema) -> tuple[tuple[str, tuple[ReportedMigInstance, ...]], ...]:
    """Return the MIG layout of each GPU of the stream.

    Agents report the slots of each device. If an agent does not report the position of an instance,
    positions are assigned in the order of instance numbers; instances that do not fit are omitted.
    """
    found: dict[str, dict[int, WireEntity]] = {}
    reported: dict[str, dict[str, ReportedMigInstance]] = {}
    models: dict[str, str] = {}
    for entity in wire.entities:
        if entity.kind == GPU:
            found.setdefault(entity.key[0], {})
            models[entity.key[0]] = entity.facts.get("model", "")
        elif entity.kind == _MIG and entity.facts.get("gpu_instance", "").isdecimal():
            instances = found.setdefault(entity.key[0], {})
            instances.setdefault(int(entity.facts["gpu_instance"]), entity)
            if part := _reported_slots(entity):
                parts = reported.setdefault(entity.key[0], {})
                instance = entity.facts["gpu_instance"]
                parts[instance] = (
                    _joined_slots(parts[instance], part) if instance in parts else part
                )
    return tuple(
        (gpu, _mig_instances(list(reported.get(gpu, {}).values()), instances, models.get(gpu, "")))
        for gpu, instances in found.items()
    )


def _mig_instances(
    reported: list[ReportedMigInstance], instances: dict[int, WireEntity], model: str
) -> tuple[ReportedMigInstance, ...]:
    """Return the instances of one GPU: as reported, if all were and no two overlap."""
    # All or none: positions from two sources could overlap.
    if len(reported) == len(instances) and _are_disjoint(reported):
        return tuple(sorted(reported))
    return _place_mig_instances([e for _, e in sorted(instances.items())], model)


def _are_disjoint(parts: list[ReportedMigInstance]) -> bool:
    tilings = (sorted(part.compute for part in parts), sorted(part.memory for part in parts))
    return all(slot[1] <= other[0] for slots in tilings for slot, other in pairwise(slots))


def _reported_slots(device: WireEntity) -> ReportedMigInstance | None:
    """Return the slots of a MIG device as reported by its agent; None if they are not reported."""
    try:
        return ReportedMigInstance(
            *(parse_slots(device.facts.get(f"{tiling}_slots", "")) for tiling in _TILINGS)
        )
    except SlotsError:
        return None


def _joined_slots(instance: ReportedMigInstance, other: ReportedMigInstance) -> ReportedMigInstance:
    """Return the slots of an instance that has several devices."""
    return ReportedMigInstance(
        (min(instance.compute[0], other.compute[0]), max(instance.compute[1], other.compute[1])),
        (min(instance.memory[0], other.memory[0]), max(instance.memory[1], other.memory[1])),
    )


def _place_mig_instances(
    instances: list[WireEntity], model: str
) -> tuple[ReportedMigInstance, ...]:
    """Assign positions as agents do for claims: at the first free multiple of the instance's memory."""
    taken: list[range] = []
    parts: list[ReportedMigInstance] = []
    for entity in instances:
        match = _PROFILE.search(entity.facts.get("profile", ""))
        if not match:
            continue
        slices = int(match[1])
        size = count_memory_slices(slices, int(match[2]), _gigabytes_of(model))
        last = min(_MEMORY_SLICES - size, _COMPUTE_SLICES - slices)
        for start in range(0, last + 1, size):
            if all(start + size <= other.start or other.stop <= start for other in taken):
                taken.append(range(start, start + size))
                compute, memory = (
                    units.compute_slices(start, slices),
                    units.memory_slices(start, size),
                )
                parts.append(
                    ReportedMigInstance(
                        (int(compute.low), int(compute.high)), (int(memory.low), int(memory.high))
                    )
                )
                break
    return tuple(sorted(parts))


def _gigabytes_of(model: str) -> int:
    """Return the memory of a GPU by its model; 0 if it is unknown."""
    named = _MODEL_MEMORY.search(model)
    return _UNNAMED_GIGABYTES.get(sku_of(model), int(named[1]) if named else 0)


STREAMS: Mapping[str, str] = {GPU: "gpu", RDMA_PORT: "rdma"}
"""The stream with the devices of each kind; the name of its source is the same."""
AGENT_STREAM = "agent"
UNSUPPORTED = next(code for code, name in agent.SOURCE_STATES.items() if name == "unsupported")
_NO_POSITIONS: npt.NDArray[np.intp] = np.array((), np.intp)


@dataclass(frozen=True, slots=True, eq=False)
class DeviceColumns:
    """The devices of one kind in a shape, by the numbers of their names; `order` lists their columns, `starts` the start of each."""

    numbers: tuple[int, ...] = ()
    order: npt.NDArray[np.intp] = field(default_factory=lambda: _NO_POSITIONS)
    starts: npt.NDArray[np.intp] = field(default_factory=lambda: _NO_POSITIONS)

    def names(self, rows: NameRows) -> tuple[str, ...]:
        """Return the names of the devices of a node."""
        return tuple(intern("/".join(rows[number].key)) for number in self.numbers)

    def states(self, names: tuple[str, ...], codes: npt.NDArray[np.uint8] | None) -> ShownDevices:
        """Return the state of each device of a node from a row of reasons; None if no value is absent."""
        if codes is None or not names:
            return ShownDevices(names)
        ordered_codes = codes[self.order]
        present = np.logical_or.reduceat(ordered_codes == PRESENT, self.starts)
        if present.all():
            return ShownDevices(names)
        is_gone = ordered_codes == Absent.GONE.value
        not_here = np.logical_and.reduceat(
            is_gone | (ordered_codes == Absent.UNSUPPORTED.value), self.starts
        )
        gone = np.logical_or.reduceat(is_gone, self.starts) & not_here
        devices = list(zip(names, present.tolist(), gone.tolist(), strict=True))
        return ShownDevices(
            tuple(name for name, is_present, _ in devices if is_present),
            tuple(name for name, _, is_gone in devices if is_gone),
            tuple(name for name, is_present, is_gone in devices if not (is_present or is_gone)),
        )


@dataclass(frozen=True, slots=True, eq=False)
class ShownDeviceColumns:
    """The parts of a schema that show devices."""

    devices: DeviceColumns = field(default_factory=DeviceColumns)
    states: Mapping[str, int] = field(default_factory=dict)
    """The columns with the states of the sources in `STREAMS`."""


@dataclass(frozen=True, slots=True)
class ShownDevices:
    """The devices of one kind in one node, by name."""

    present: Sequence[str] = ()
    gone: Sequence[str] = ()
    unknown: Sequence[str] = ()
    """Listed without any value: their presence is unknown."""


NO_DEVICE_COLUMNS = ShownDeviceColumns()


def find_device_columns(shape: Shape) -> ShownDeviceColumns:
    """Return the parts of a shape that show devices."""
    if shape.stream == AGENT_STREAM:
        return ShownDeviceColumns(states=_states(shape))
    kind = next((kind for kind, stream in STREAMS.items() if stream == shape.stream), None)
    return NO_DEVICE_COLUMNS if kind is None else ShownDeviceColumns(_devices(shape, kind))


def _devices(shape: Shape, kind: str) -> DeviceColumns:
    columns: dict[int, list[int]] = {}
    for column, _, slot in slots_of(shape):
        if slot.kind == kind and slot.name != BUILD:
            columns.setdefault(slot.name, []).append(column)
    sizes = [0, *(len(positions) for positions in columns.values())]
    return DeviceColumns(
        tuple(columns),
        np.array([position for positions in columns.values() for position in positions], np.intp),
        np.cumsum(sizes[:-1], dtype=np.intp),
    )


def _states(shape: Shape) -> dict[str, int]:
    return {
        source: column
        for column, group, slot in slots_of(shape)
        if group.metric == agent.SOURCE_STATE.name
        for source in slot.part[:1]
        if source in STREAMS.values()
    }
