"""Columns of a shape that jobs, metering and the inventory use, determined once per shape.

A device is present if a frame has a value of it. It is gone if its readings are gone (a GPU that
NVML reports as lost), except for unsupported ones. Without any value for another reason its presence is
unknown. A source that has found no device on a node sends no frames; the state that the agent reports for
each source shows that.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
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
from railscope.reading import PRESENT, Absent
from railscope.shapes import RESERVED, join
from railscope.wire import BUILD, NameRows, Shape, Slot, WireEntity, WireGroup, WireSchema
from railscope_collector.metering import counter_increments

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


MigLayouts: TypeAlias = tuple[tuple[str, tuple[ReportedMigInstance, ...]], ...]
"""The MIG instances of each GPU of a node; without instances it is not partitioned."""


@dataclass(frozen=True, slots=True, eq=False)
class MeteredColumns:
    """The columns of a shape that metering counts: the measure, the number of the name and the kind of each."""

    counters: tuple[tuple[counter_increments.CountedQuantity, int, str], ...]
    columns: npt.NDArray[np.intp]

    def subjects(self, shape: Shape, rows: NameRows) -> tuple[CounterSubject, ...]:
        """Return the subject of each column of a node."""
        return tuple(
            CounterSubject(measure, gpu=intern(rows[name].key[0]))
            if kind == GPU
            else CounterSubject(
                measure,
                rail=shape.rails[name],
                port=intern("/".join(rows[name].key)),
                rdma=kind == RDMA_PORT,
            )
            for measure, name, kind in self.counters
        )


def find_metered_columns(shape: Shape) -> MeteredColumns:
    """Return the columns of a shape that metering counts."""
    counters: list[tuple[counter_increments.CountedQuantity, int, str]] = []
    columns: list[int] = []
    for column, group, slot in slots_of(shape):
        measure = _MEASURES.get((group.metric, slot.kind))
        has_owner = slot.kind == GPU or rail_of(shape, slot) != NO_RAIL
        if measure is not None and slot.name != BUILD and not slot.part and has_owner:
            counters.append((measure, slot.name, slot.kind))
            columns.append(column)
    return MeteredColumns(tuple(counters), np.array(columns, np.intp))


def gpu_slots(shape: Shape) -> list[Slot]:
    """Return the slots of the GPUs of a shape, without their parts."""
    return [
        slot for slot in shape.slots if slot.kind == GPU and slot.name != BUILD and not slot.part
    ]


@lru_cache(maxsize=256)
def sku_of(model: str) -> str:
    """Return a GPU's model as a slug: `h100-80gb-hbm3` for `NVIDIA H100 80GB HBM3`."""
    names = re.findall(r"[a-z0-9]+", model.lower())
    return "-".join(name for name in names if name not in {"nvidia", "tesla", "geforce"})


def mig_layouts(shape: Shape, rows: NameRows) -> MigLayouts:
    """Return the MIG layout of each GPU of the MIG stream of a node; empty for other streams.

    Agents report the slots of each device. An instance without them is omitted, and so are all of a GPU if two overlap.
    """
    if shape.stream != MIG_STREAM:
        return ()
    found: dict[str, dict[str, ReportedMigInstance]] = {}
    for entity in join(shape, rows).entities:
        if entity.kind == GPU:
            found.setdefault(entity.key[0], {})
        elif entity.kind == _MIG and (instance := entity.facts.get("gpu_instance")):
            parts = found.setdefault(entity.key[0], {})
            if part := _reported_slots(entity):
                parts[instance] = (
                    _joined_slots(parts[instance], part) if instance in parts else part
                )
    return tuple(
        (gpu, tuple(sorted(parts.values())) if _are_disjoint(list(parts.values())) else ())
        for gpu, parts in found.items()
    )


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


STREAMS: Mapping[str, str] = {GPU: "gpu", RDMA_PORT: "rdma"}
"""The stream with the devices of each kind; the name of its source is the same."""
AGENT_STREAM = "agent"
UNSUPPORTED = next(code for code, name in agent.SOURCE_STATES.items() if name == "unsupported")
_NO_STATES: Mapping[str, int] = MappingProxyType({})
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


@dataclass(frozen=True, slots=True)
class ShownDevices:
    """The devices of one kind in one node, by name."""

    present: Sequence[str] = ()
    gone: Sequence[str] = ()
    unknown: Sequence[str] = ()
    """Listed without any value: their presence is unknown."""


NO_DEVICES = DeviceColumns()


def device_columns(shape: Shape) -> DeviceColumns:
    """Return the devices that the inventory compares; none for most streams."""
    kind = next((kind for kind, stream in STREAMS.items() if stream == shape.stream), None)
    if kind is None:
        return NO_DEVICES
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


def state_columns(shape: Shape) -> Mapping[str, int]:
    """Return the columns with the states of the sources in `STREAMS`; none but for the agent's own stream."""
    if shape.stream != AGENT_STREAM:
        return _NO_STATES
    return {
        source: column
        for column, group, slot in slots_of(shape)
        if group.metric == agent.SOURCE_STATE.name
        for source in slot.part[:1]
        if source in STREAMS.values()
    }
