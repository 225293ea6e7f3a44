"""Metering facts in the frames of a schema, determined once per schema."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise

import msgspec
import numpy as np
import numpy.typing as npt

from collector.metering.measures import Measure
from collector.metering.units import WHOLE, compute_slices, memory_slices
from railscope.frame import NO_RAIL
from railscope.wire import WireEntity, WireSchema, rails_of_entities

MIG_STREAM = "mig"
_GPU, _MIG = "gpu", "mig"
_RDMA_PORT, _NIC = "rdma_port", "nic"
_MEASURES = {
    ("railscope_gpu_energy_joules_total", _GPU): Measure.ENERGY,
    ("railscope_gpu_busy_seconds_total", _GPU): Measure.USED,
    ("railscope_gpu_memory_used_byte_seconds_total", _GPU): Measure.MEMORY,
    ("railscope_rdma_receive_bytes_total", _RDMA_PORT): Measure.RECEIVED,
    ("railscope_rdma_transmit_bytes_total", _RDMA_PORT): Measure.TRANSMITTED,
    ("railscope_nic_receive_bytes_total", _NIC): Measure.RECEIVED,
    ("railscope_nic_transmit_bytes_total", _NIC): Measure.TRANSMITTED,
}
OF_THE_AGENT = frozenset({Measure.USED, Measure.MEMORY})
"""Counters that the agent keeps: they restart with each run of it."""
_PROFILE = re.compile(r"(?<!\d)(\d{1,3})g\.(\d{1,6})gb")
_MODEL_MEMORY = re.compile(r"(?<!\d)(\d{1,6}) ?GB", re.IGNORECASE)
_USUAL_MEMORY_SLICES = {1: 1, 2: 2, 3: 4, 4: 4, 7: 8}
_COMPUTE_SLICES, _MEMORY_SLICES = 7, 8
_SLOTS = re.compile(r"(\d{1,3})-(\d{1,3})")
_TILINGS = ("compute", "memory")


class Counter(msgspec.Struct, frozen=True, array_like=True, order=True):
    """Subject of a column: a GPU by its UUID, or the GPU on a rail of the node."""

    measure: Measure
    gpu: str = ""
    rail: int = NO_RAIL
    port: str = ""
    rdma: bool = False


class Part(msgspec.Struct, frozen=True, array_like=True, order=True):
    """A MIG instance: [low, high) of compute and of memory."""

    compute: tuple[int, int]
    memory: tuple[int, int]


@dataclass(frozen=True, slots=True, eq=False)
class Metered:
    """The columns of a schema that metering counts, and the MIG layouts of GPUs."""

    counters: tuple[Counter, ...]
    columns: npt.NDArray[np.intp]
    layouts: tuple[tuple[str, tuple[Part, ...]], ...]
    skus: dict[str, str]


def metered(wire: WireSchema) -> Metered:
    """Return the metering facts of a schema."""
    counters: list[Counter] = []
    columns: list[int] = []
    entity_rails = rails_of_entities(wire)
    column = -1
    for group in wire.groups:
        for member in group.entities:
            column += 1
            entity = wire.entities[member]
            measure = _MEASURES.get((group.metric, entity.kind))
            if measure is None:
                continue
            if entity.kind == _GPU:
                counters.append(Counter(measure, gpu=entity.key[0]))
            elif entity_rails[member] != NO_RAIL:
                port = "/".join(entity.key)
                rdma = entity.kind == _RDMA_PORT
                counters.append(Counter(measure, "", entity_rails[member], port, rdma))
            else:
                continue
            columns.append(column)
    layouts = _layouts(wire) if wire.stream == MIG_STREAM else ()
    skus = {e.key[0]: sku_of(e.facts.get("model", "")) for e in wire.entities if e.kind == _GPU}
    return Metered(tuple(counters), np.array(columns, np.intp), layouts, skus)


def sku_of(model: str) -> str:
    """Return a GPU's model as a slug: `h100-80gb-hbm3` for `NVIDIA H100 80GB HBM3`."""
    words = re.findall(r"[a-z0-9]+", model.lower())
    return "-".join(word for word in words if word not in {"nvidia", "tesla", "geforce"})


def _layouts(wire: WireSchema) -> tuple[tuple[str, tuple[Part, ...]], ...]:
    """Return the MIG layout of each GPU of the stream.

    Agents report the slots of each device. If an agent does not report the position of an instance,
    positions are assigned in the order of instance numbers; instances that do not fit are omitted.
    """
    found: dict[str, dict[int, WireEntity]] = {}
    told: dict[str, dict[str, Part]] = {}
    models: dict[str, str] = {}
    for entity in wire.entities:
        if entity.kind == _GPU:
            found.setdefault(entity.key[0], {})
            models[entity.key[0]] = entity.facts.get("model", "")
        elif entity.kind == _MIG and entity.facts.get("gpu_instance", "").isdecimal():
            instances = found.setdefault(entity.key[0], {})
            instances.setdefault(int(entity.facts["gpu_instance"]), entity)
            if part := _told(entity):
                parts = told.setdefault(entity.key[0], {})
                instance = entity.facts["gpu_instance"]
                parts[instance] = _together(parts[instance], part) if instance in parts else part
    return tuple(
        (gpu, _parts(list(told.get(gpu, {}).values()), instances, models.get(gpu, "")))
        for gpu, instances in found.items()
    )


def _parts(told: list[Part], instances: dict[int, WireEntity], model: str) -> tuple[Part, ...]:
    """Return the instances of one GPU: as reported, if all were and no two overlap."""
    if len(told) == len(instances) and _are_apart(told):
        return tuple(sorted(told))
    return _placed([e for _, e in sorted(instances.items())], model)


def _are_apart(parts: list[Part]) -> bool:
    tilings = (sorted(part.compute for part in parts), sorted(part.memory for part in parts))
    return all(one[1] <= other[0] for slots in tilings for one, other in pairwise(slots))


def _told(device: WireEntity) -> Part | None:
    """Return the slots of a MIG device as reported by its agent; None if they are not reported."""
    compute, memory = (_SLOTS.fullmatch(device.facts.get(f"{what}_slots", "")) for what in _TILINGS)
    if compute is None or memory is None:
        return None
    low_high = [(int(found[1]), int(found[2])) for found in (compute, memory)]
    if not all(low < high <= WHOLE.high for low, high in low_high):
        return None
    return Part(*low_high)


def _together(one: Part, other: Part) -> Part:
    """Return the slots of an instance that has several devices."""
    return Part(
        (min(one.compute[0], other.compute[0]), max(one.compute[1], other.compute[1])),
        (min(one.memory[0], other.memory[0]), max(one.memory[1], other.memory[1])),
    )


def _placed(instances: list[WireEntity], model: str) -> tuple[Part, ...]:
    """Assign positions as agents do for claims: at the first free multiple of the instance's memory."""
    taken: list[range] = []
    parts: list[Part] = []
    for entity in instances:
        match = _PROFILE.search(entity.facts.get("profile", ""))
        if not match:
            continue
        slices = int(match[1])
        size = _memory_of(slices, int(match[2]), model)
        last = min(_MEMORY_SLICES - size, _COMPUTE_SLICES - slices)
        for start in range(0, last + 1, size):
            if all(start + size <= other.start or other.stop <= start for other in taken):
                taken.append(range(start, start + max(size, slices)))
                compute, memory = compute_slices(start, slices), memory_slices(start, size)
                parts.append(
                    Part((int(compute.low), int(compute.high)), (int(memory.low), int(memory.high)))
                )
                break
    return tuple(sorted(parts))


def _memory_of(slices: int, gigabytes: int, model: str) -> int:
    """Return the number of memory slices of an instance, out of eight."""
    whole = _MODEL_MEMORY.search(model)
    if whole and int(whole[1]):
        return min(_MEMORY_SLICES, max(1, round(gigabytes * _MEMORY_SLICES / int(whole[1]))))
    return _USUAL_MEMORY_SLICES.get(slices, slices)
