"""Slots of a GPU that a MIG device occupies.

A GPU with seven MIG devices has 7 compute slices (120 slots each) and 8 memory slices (105 slots
each); a GPU with four has 4 of each (210 slots each). A GPU instance has a placement, counted in
memory slices; its compute slices begin at the same number. Sources: NVIDIA Multi-Instance GPU User
Guide, "Partitioning" and "Supported MIG Profiles"; nvml.h, nvmlGpuInstancePlacement_t.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from railscope.claim_terms import GPU_CAPACITY

MAX_DEVICES = 7
"""Maximum of MIG devices per GPU if the driver does not report it."""
_FOUR, _SEVEN, _EIGHT = 4, 7, 8
_PROFILE = re.compile(r"(?:(?P<part>\d+)c\.)?(?P<slices>\d+)g\.(?P<gigabytes>\d+)gb.*")
_USUAL_MEMORY_SLICES = {1: 1, 2: 2, 3: 4, 4: 4, 7: 8}
"""Memory slices by compute slices, on a GPU with eight: the minimum of an instance."""
_GIBIBYTE = 1 << 30


class GpuSlotRange(msgspec.Struct, frozen=True, array_like=True, order=True):
    """Slots [low, high) of the 840 slots of a GPU."""

    low: int
    high: int

    def __post_init__(self) -> None:
        """Reject a range outside the GPU."""
        if not 0 <= self.low < self.high <= GPU_CAPACITY:
            message = f"invalid slot range {self}: expected START-END within 0-{GPU_CAPACITY}"
            raise ValueError(message)

    def __str__(self) -> str:
        """Return the range as `low-high`."""
        return f"{self.low}-{self.high}"

    def overlaps(self, other: GpuSlotRange) -> bool:
        """True if the two ranges share a slot."""
        return self.low < other.high and other.low < self.high


WHOLE_GPU = GpuSlotRange(0, GPU_CAPACITY)


def count_covered_slots(slots: Iterable[GpuSlotRange]) -> int:
    """Number of slots in at least one of the ranges."""
    count = covered_until = 0
    for slot_range in sorted(slots):
        count += max(slot_range.high - max(slot_range.low, covered_until), 0)
        covered_until = max(covered_until, slot_range.high)
    return count


@dataclass(frozen=True, slots=True)
class ReportedMigDevice:
    """A MIG device as reported by the driver; `start` and `size` are None if it does not report them."""

    uuid: str
    profile: str
    gpu_instance: int
    compute_instance: int
    start: int | None = None
    size: int | None = None
    max_devices: int = MAX_DEVICES
    """Maximum number of MIG devices of the GPU."""
    gpu_memory_bytes: int = 0
    """Memory of the GPU; 0 if the driver does not report it."""

    @property
    def has_seven_slices(self) -> bool:
        """True for a GPU of seven MIG devices, false for one of four."""
        return self.max_devices > _FOUR

    @property
    def slices(self) -> int:
        """Compute slices of the GPU instance; 0 if the profile is not recognized."""
        match = _PROFILE.fullmatch(self.profile)
        return int(match["slices"]) if match else 0

    @property
    def memory_slices(self) -> int:
        """Memory slices of the GPU instance, as reported or by its profile."""
        match = _PROFILE.fullmatch(self.profile)
        if self.size or not match:
            return self.size or 0
        whole = _EIGHT if self.has_seven_slices else _FOUR
        gpu = self.gpu_memory_bytes / _GIBIBYTE
        return _count_memory_slices(self.slices, int(match["gigabytes"]), gpu, whole)

    @property
    def compute_slices(self) -> int:
        """Compute slices of the compute instance: all of them unless its profile starts with `1c.`."""
        match = _PROFILE.fullmatch(self.profile)
        return int(match["part"] or match["slices"]) if match else 0


def _count_memory_slices(
    compute_slices: int, gigabytes: int, gpu_gigabytes: float, whole: int
) -> int:
    """Return the memory slices of an instance, of the `whole` that its GPU has.

    Some profiles, such as 1g.20gb of a GPU with 80 GB, have more memory than others with as many compute
    slices. `gpu_gigabytes` is 0 if the memory of the GPU is unknown: then the usual number is assumed.
    """
    usual = max(1, compute_slices)
    if whole == _EIGHT:
        usual = _USUAL_MEMORY_SLICES.get(compute_slices, usual)
    if not gpu_gigabytes:
        return usual
    return min(whole, max(usual, round(gigabytes * whole / gpu_gigabytes)))


@dataclass(frozen=True, slots=True)
class MigSlots:
    """Compute and memory slots of a MIG device."""

    compute: GpuSlotRange
    memory: GpuSlotRange


def find_mig_slots(instances: Sequence[ReportedMigDevice]) -> dict[str, MigSlots]:
    """Slots of each MIG device of one GPU, by UUID; devices with an unrecognized profile are omitted.

    If the driver does not report placements, they are assigned in the order of the instances,
    without overlap. Compute instances of one GPU instance share its memory in proportion to their
    compute slices.
    """
    groups: dict[int, list[ReportedMigDevice]] = {}
    for instance in instances:
        if instance.slices:
            groups.setdefault(instance.gpu_instance, []).append(instance)
    slots: dict[str, MigSlots] = {}
    used_ranges: list[range] = []
    # Reported placements are certain: the others get what these leave.
    known_first = sorted(groups.items(), key=lambda group: (group[1][0].start is None, group[0]))
    for _, devices in known_first:
        memory_slices = _memory_range(devices[0], used_ranges)
        if memory_slices is not None:
            used_ranges.append(memory_slices)
            slots |= _divide_instance(devices, memory_slices)
    return slots


def _memory_range(instance: ReportedMigDevice, used_ranges: list[range]) -> range | None:
    """Memory slices of a GPU instance."""
    slices, seven = instance.slices, instance.has_seven_slices
    size = instance.memory_slices
    if instance.start is not None:
        return range(instance.start, instance.start + size)
    end = _EIGHT if seven else _FOUR
    last_of_compute = (_SEVEN if seven else _FOUR) - slices
    # Placements are aligned to their size in memory slices (MIG User Guide, nvidia-smi mig -lgipp).
    for start in range(0, min(end - size, last_of_compute) + 1, size):
        if all(start + size <= other.start or other.stop <= start for other in used_ranges):
            return range(start, start + size)
    return None


def _divide_instance(devices: list[ReportedMigDevice], memory_slices: range) -> dict[str, MigSlots]:
    """Slots of the compute instances of one GPU instance."""
    seven, slices = devices[0].has_seven_slices, devices[0].slices
    unit = GPU_CAPACITY // (_SEVEN if seven else _FOUR)
    memory_unit = GPU_CAPACITY // (_EIGHT if seven else _FOUR)
    compute = GpuSlotRange(
        memory_slices.start * unit, min((memory_slices.start + slices) * unit, GPU_CAPACITY)
    )
    memory = GpuSlotRange(
        memory_slices.start * memory_unit, min(memory_slices.stop * memory_unit, GPU_CAPACITY)
    )
    slots: dict[str, MigSlots] = {}
    first_slice = 0
    for instance in sorted(devices, key=lambda device: device.compute_instance):
        # A list read while instances change may have more than fit.
        width = min(instance.compute_slices, slices - first_slice)
        if width <= 0:
            break
        ranges = (
            _slice_range(slot_range, first_slice, width, slices) for slot_range in (compute, memory)
        )
        slots[instance.uuid] = MigSlots(*ranges)
        first_slice += width
    return slots


def _slice_range(
    slot_range: GpuSlotRange, first_slice: int, width: int, slices: int
) -> GpuSlotRange:
    length = slot_range.high - slot_range.low
    return GpuSlotRange(
        # Both ends are computed from the whole, so that neighbours share a bound and nothing is lost by
        # rounding.
        slot_range.low + length * first_slice // slices,
        slot_range.low + length * (first_slice + width) // slices,
    )
