"""Columns of a schema that jobs, metering and the inventory use, determined once per schema.

A device is present if a frame has a value of it. It is gone if its readings are gone (a GPU that
NVML reports as lost), except for unsupported ones. Without any value for another reason its presence is
unknown. A source that has found no device on a node sends no frames; the state that the agent reports for
each source shows that.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
from railscope.wire import WireEntity, WireGroup, WireSchema, part_of_key, rails_of_entities
from railscope_collector.metering import counter_increments, units

Positions: TypeAlias = npt.NDArray[np.intp]
ColumnKey: TypeAlias = tuple[declare.Metric, tuple[str, ...]]
"""A metric, and the part of the GPU or port that it describes: a clock, a priority."""

NO_MEMBER = -1
_AT_LINKS = frozenset({nic.RECEIVED_PACKETS, nic.SENT_PACKETS, nic.PFC_RECEIVED, nic.PFC_SENT})
"""Counters of NICs without a roll-up that pages show beside those of the switch port."""
_COMPARED = frozenset((each.metric, each.part) for each in account.STRAGGLER_MEASURES.values())


def columns_of(wire: WireSchema) -> Iterator[tuple[int, WireGroup, int]]:
    """Yield all columns of a schema: position, group, and position of the entity."""
    members = ((group, member) for group in wire.groups for member in group.entities)
    return ((column, group, member) for column, (group, member) in enumerate(members))


def is_of_jobs(metric: declare.Metric, entity: WireEntity) -> bool:
    """True if the views of jobs read the columns of a metric and an entity."""
    if entity.kind != metric.about.name:
        return False
    return metric in account.BY_JOB or (metric, part_of_key(entity)) in _COMPARED


def has_rate(metric: declare.Metric, entity: WireEntity) -> bool:
    """True if a view or a page reads the rate of a counter."""
    if metric.kind is not declare.MetricKind.COUNTER or entity.kind != metric.about.name:
        return False
    is_of_link = metric in _AT_LINKS or metric.about.outermost is SWITCH
    return is_of_link or bool(metric.rollups) or is_of_jobs(metric, entity)


def rate_columns(wire: WireSchema) -> dict[int, declare.Metric]:
    """Return the metrics of the columns that views do not read as they are: counters, then averaged gauges."""
    counters, averaged = {}, {}
    for column, group, member in columns_of(wire):
        metric, entity = METRICS.get(group.metric), wire.entities[member]
        if metric is None:
            continue
        if has_rate(metric, entity):
            counters[column] = metric
        elif rollup.is_averaged(metric) and entity.kind == metric.about.name:
            averaged[column] = metric
    return counters | averaged


class ColumnOwner(NamedTuple):
    """Owner of a column: a GPU by its entity, or the GPU on a rail of the node."""

    member: int = NO_MEMBER
    rail: int = NO_RAIL


@dataclass(frozen=True, slots=True, eq=False)
class JobColumns:
    """The columns in order, each with its key and its owner; and the counters and averaged gauges among them.

    All schemas of one layout have the same.
    """

    columns: Positions
    keys: tuple[ColumnKey, ...]
    owners: tuple[ColumnOwner, ...]
    owner_of: Positions
    counters: Positions
    """Indices of counters and averaged gauges in `columns`; `rates` has their positions among the rate columns."""
    rates: Positions

    def gpus(self, wire: WireSchema) -> tuple[str, ...]:
        """Return the UUID of each owner in a schema of this layout; empty for the GPU on a rail."""
        # Shared by the schemas of a node.
        return tuple(
            intern(wire.entities[member].key[0]) if member != NO_MEMBER else ""
            for member, _ in self.owners
        )

    def positions(
        self,
        gpus: Sequence[str],
        by_gpu: Mapping[str, int],
        by_rail: Mapping[int, int],
        default: int,
    ) -> Positions:
        """Return for each column the position of its owner; `gpus` are those of the owners."""
        found = [
            by_gpu.get(gpu, default) if gpu else by_rail.get(rail, default)
            for gpu, (_, rail) in zip(gpus, self.owners, strict=True)
        ]
        return np.array(found, np.intp)[self.owner_of]


def job_columns(wire: WireSchema) -> JobColumns | None:
    """Return the columns of a schema for jobs; None if there are none."""
    entity_rails = rails_of_entities(wire)
    owners: dict[ColumnOwner, int] = {}
    rows: list[tuple[int, ColumnKey, int, int]] = []
    places = {column: number for number, column in enumerate(rate_columns(wire))}
    for column, group, member in columns_of(wire):
        metric, entity = METRICS.get(group.metric), wire.entities[member]
        if metric is None:
            continue
        if not is_of_jobs(metric, entity):
            continue
        key = metric, part_of_key(entity)
        is_gpu = KINDS[entity.kind].outermost is GPU_ENTITY
        owner = ColumnOwner(member) if is_gpu else ColumnOwner(rail=entity_rails[member])
        if owner != ColumnOwner():
            number = owners.setdefault(owner, len(owners))
            rows.append((column, key, number, places.get(column, -1)))
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
_MEASURED = frozenset(metric for metric, _ in _MEASURES)
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

    def renamed(self, texts: Mapping[str, str]) -> MeteredColumns:
        """Return the facts of a schema that differs in the UUIDs of its GPUs."""
        if self is NOT_METERED:
            return self
        renamed = msgspec.structs.replace
        counters = tuple(renamed(each, gpu=texts.get(each.gpu, each.gpu)) for each in self.counters)
        layouts = tuple((texts.get(gpu, gpu), instances) for gpu, instances in self.layouts)
        skus = {texts.get(gpu, gpu): sku for gpu, sku in self.skus.items()}
        return MeteredColumns(counters, self.columns, layouts, skus)


NOT_METERED = MeteredColumns((), np.array((), np.intp), (), MappingProxyType({}))
"""Shared by most schemas of a node."""


def find_metered_columns(wire: WireSchema, entity_rails: Sequence[int]) -> MeteredColumns:
    """Return the metering facts of a schema, with the rails of its entities."""
    counters: list[CounterSubject] = []
    columns: list[int] = []
    start = 0
    for group in wire.groups:
        if group.metric in _MEASURED:
            for column, member in enumerate(group.entities, start):
                subject = _counter_subject(
                    group.metric, wire.entities[member], entity_rails[member]
                )
                if subject is not None:
                    counters.append(subject)
                    columns.append(column)
        start += len(group.entities)
    layouts = _layouts(wire) if wire.stream == MIG_STREAM else ()
    gpus = [e for e in wire.entities if e.kind == GPU] if wire.stream == STREAMS[GPU] else []
    if not (counters or layouts or gpus):
        return NOT_METERED
    skus = {intern(e.key[0]): sku_of(e.facts.get("model", "")) for e in gpus}
    return MeteredColumns(tuple(counters), np.array(columns, np.intp), layouts, skus)


def _counter_subject(metric: str, entity: WireEntity, rail: int) -> CounterSubject | None:
    measure = _MEASURES.get((metric, entity.kind))
    if measure is None:
        return None
    if entity.kind == GPU:
        return CounterSubject(measure, gpu=intern(entity.key[0]))
    if rail == NO_RAIL:
        return None
    return CounterSubject(measure, "", rail, "/".join(entity.key), entity.kind == RDMA_PORT)


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
    """The devices of one kind in a schema; `order` lists their columns, `starts` the start of each.

    `members` are their entities.
    """

    names: tuple[str, ...] = ()
    members: tuple[int, ...] = ()
    order: npt.NDArray[np.intp] = field(default_factory=lambda: _NO_POSITIONS)
    starts: npt.NDArray[np.intp] = field(default_factory=lambda: _NO_POSITIONS)

    def states(self, codes: npt.NDArray[np.uint8] | None) -> ShownDevices:
        """Return the state of each device from a row of reasons; None if no value is absent."""
        if codes is None or not self.names:
            return ShownDevices(self.names)
        ordered_codes = codes[self.order]
        present = np.logical_or.reduceat(ordered_codes == PRESENT, self.starts)
        if present.all():
            return ShownDevices(self.names)
        is_gone = ordered_codes == Absent.GONE.value
        not_here = np.logical_and.reduceat(
            is_gone | (ordered_codes == Absent.UNSUPPORTED.value), self.starts
        )
        gone = np.logical_or.reduceat(is_gone, self.starts) & not_here
        devices = list(zip(self.names, present.tolist(), gone.tolist(), strict=True))
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

    def renamed(self, texts: Mapping[str, str]) -> ShownDeviceColumns:
        """Return the parts of a schema that differs in the UUIDs of its GPUs."""
        names = tuple(texts.get(name, name) for name in self.devices.names)
        return replace(self, devices=replace(self.devices, names=names)) if names else self


@dataclass(frozen=True, slots=True)
class ShownDevices:
    """The devices of one kind in one node, by name."""

    present: Sequence[str] = ()
    gone: Sequence[str] = ()
    unknown: Sequence[str] = ()
    """Listed without any value: their presence is unknown."""


NO_DEVICE_COLUMNS = ShownDeviceColumns()


def find_device_columns(wire: WireSchema) -> ShownDeviceColumns:
    """Return the parts of a schema that show devices, determined once per schema."""
    if wire.stream == AGENT_STREAM:
        return ShownDeviceColumns(states=_states(wire))
    kind = next((kind for kind, stream in STREAMS.items() if stream == wire.stream), None)
    return NO_DEVICE_COLUMNS if kind is None else ShownDeviceColumns(_devices(wire, kind))


def _devices(wire: WireSchema, kind: str) -> DeviceColumns:
    columns: dict[int, list[int]] = {}
    for column, _, member in columns_of(wire):
        if wire.entities[member].kind == kind:
            columns.setdefault(member, []).append(column)
    sizes = [0, *(len(positions) for positions in columns.values())]
    return DeviceColumns(
        _device_names(wire, columns),
        tuple(columns),
        np.array([position for positions in columns.values() for position in positions], np.intp),
        np.cumsum(sizes[:-1], dtype=np.intp),
    )


def _device_names(wire: WireSchema, members: Iterable[int]) -> tuple[str, ...]:
    return tuple("/".join(wire.entities[member].key) for member in members)


def device_columns_like(other: ShownDeviceColumns, wire: WireSchema) -> ShownDeviceColumns:
    """Return the parts that show devices of a schema with the layout of another one."""
    if wire.stream == AGENT_STREAM or not other.devices.members:
        return find_device_columns(wire)
    names = _device_names(wire, other.devices.members)
    return ShownDeviceColumns(replace(other.devices, names=names))


def _states(wire: WireSchema) -> dict[str, int]:
    return {
        source: column
        for column, group, member in columns_of(wire)
        if group.metric == agent.SOURCE_STATE.name
        for source in wire.entities[member].key[:1]
        if source in STREAMS.values()
    }
