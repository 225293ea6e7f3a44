"""Building blocks of the tables of NVML calls, which map calls and fields to columns.

Sources are nvml.h; units are those of the catalog's declarations. An entry that a driver or a GPU may
lack can name older calls as fallbacks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from railscope.catalog.declare import MARKS, EntityKind, Metric
from railscope.frame import Entity
from railscope.reading import Absent, Reading
from railscope_agent.host import Json

PickReading = Callable[[Json], Reading]

FIELD_VALUES, GPM = "nvmlDeviceGetFieldValues", "nvmlGpmMetricsGet"

whole: PickReading = int
"""The answer itself. The built-in type costs no call of a Python function."""


@dataclass(frozen=True, slots=True)
class CallTarget:
    """A column that a call fills: about the device, a part of it, or a given entity."""

    metric: Metric
    pick: PickReading
    kind: EntityKind | None = None
    part: tuple[str, ...] = ()
    entity: Entity | None = None

    @property
    def is_of_part(self) -> bool:
        """True if it is about a part of the device, which the device may not have."""
        return self.kind is not None or self.entity is not None

    def about(self, device: Entity) -> Entity:
        """Entity of the column, for one device."""
        if self.entity:
            return self.entity
        return device.child(self.kind, *self.part) if self.kind else device


@dataclass(frozen=True, slots=True)
class NvmlCall:
    """An NVML call and the columns of its result; the first function that the driver has is used."""

    functions: tuple[str, ...]
    targets: tuple[CallTarget, ...]
    arguments: tuple[int, ...] = ()
    is_of_device: bool = True
    """True if the device is the first argument; a system call takes none."""


@dataclass(frozen=True, slots=True)
class BatchField:
    """A column that one entry of a batch fills: a field, "field:scope", or a GPM metric.

    The first entry that the GPU has is used, else the call. The call's first target is the column.
    """

    entries: tuple[int | str, ...]
    target: CallTarget
    otherwise: NvmlCall | None = None


@dataclass(frozen=True, slots=True)
class CallTable:
    """All calls for a device at one period; `batch` is the call for the fields.

    `recent` marks fields that older drivers lack: if a driver rejects the whole batch as an invalid
    argument, it has none of them.
    """

    calls: tuple[NvmlCall, ...] = ()
    fields: tuple[BatchField, ...] = ()
    batch: str = FIELD_VALUES
    recent: bool = False

    @property
    def metrics(self) -> set[Metric]:
        """Metrics of the table, whether or not the device supports them."""
        targets = [target for call in self.calls for target in call.targets]
        return {target.metric for target in (*targets, *(each.target for each in self.fields))}

    def select(self, is_needed: Callable[[Metric], bool]) -> CallTable:
        """Return the calls and fields of these metrics."""
        calls = (
            replace(call, targets=tuple(each for each in call.targets if is_needed(each.metric)))
            for call in self.calls
        )
        fields = (each for each in self.fields if is_needed(each.target.metric))
        return replace(
            self, calls=tuple(call for call in calls if call.targets), fields=tuple(fields)
        )


def of_link(result: Json) -> Reading:
    """Generation or width of a link: both start at 1, and 0 stands for none."""
    return int(result) or Absent.ERROR


def key(name: str) -> PickReading:
    """One member of a structure; a member that this version lacks is unsupported."""

    def pick(result: Json) -> Reading:
        if not isinstance(result, dict):
            return Absent.ERROR
        return int(result[name]) if name in result else Absent.UNSUPPORTED

    return pick


def memory(name: str) -> PickReading:
    """One part of the memory, at most the total."""
    pick_part = key(name)

    def pick(result: Json) -> Reading:
        size = pick_part(result)
        is_possible = isinstance(size, Absent) or size <= result["total"]
        return size if is_possible else Absent.ERROR

    return pick


_used = memory("used")


def used(result: Json) -> Reading:
    """Memory in use. Version 1 of the call includes memory reserved by the driver: another quantity."""
    return _used(result) if "reserved" in result else Absent.UNSUPPORTED


def item(index: int) -> PickReading:
    """One item of a list."""
    return lambda result: int(result[index])


def packed(result: Json) -> int:
    """Return a number that contains several readings. Raises ValueError for a number that stands for no value."""
    number = int(result)
    if number in MARKS:
        raise ValueError
    return number


def bit(mask: int) -> PickReading:
    """1 if a bit of a mask is set, else 0."""
    return lambda result: int(bool(packed(result) & mask))


def count(result: Json) -> Reading:
    """Length of a list."""
    return len(result) if isinstance(result, list) else Absent.ERROR


def simple(
    function: str,
    metric: Metric,
    kind: EntityKind | None = None,
    *part: str,
    arguments: tuple[int, ...] = (),
    pick: PickReading = whole,
) -> NvmlCall:
    """A call that returns the reading itself."""
    return NvmlCall((function,), (CallTarget(metric, pick, kind, part),), arguments)


def members(function: str, metrics: Mapping[str, Metric], *more: CallTarget) -> NvmlCall:
    """A call that returns a structure, with the metric of each member that is a reading."""
    targets = (CallTarget(metric, key(name)) for name, metric in metrics.items())
    return NvmlCall((function,), (*targets, *more))


def items(function: str, *metrics: Metric) -> NvmlCall:
    """A call that returns a list, with the metric of each item."""
    targets = (CallTarget(metric, item(index)) for index, metric in enumerate(metrics))
    return NvmlCall((function,), tuple(targets))


def field(
    number: int | str,
    metric: Metric,
    kind: EntityKind | None = None,
    *part: str,
    pick: PickReading = whole,
    otherwise: NvmlCall | None = None,
) -> BatchField:
    """A field that contains the reading itself; `otherwise` is the call of older drivers."""
    return BatchField((number,), CallTarget(metric, pick, kind, part), otherwise)
