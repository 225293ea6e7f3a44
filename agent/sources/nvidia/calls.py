"""Building blocks of the tables of NVML calls.

Sources: nvml.h; units are those of the catalog's declarations. An entry that a driver or a GPU may
lack can name older calls as fallbacks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from agent.host import Json
from railscope.catalog.declare import EntityKind, Metric
from railscope.entity import Entity
from railscope.reading import Absent, Reading

Pick = Callable[[Json], Reading]


@dataclass(frozen=True, slots=True)
class Target:
    """A column that a call fills: about the device, a part of it, or a given entity."""

    metric: Metric
    pick: Pick
    kind: EntityKind | None = None
    part: tuple[str, ...] = ()
    entity: Entity | None = None

    @property
    def of_part(self) -> bool:
        """True if it is about a part of the device, which the device may not have."""
        return self.kind is not None or self.entity is not None

    def about(self, device: Entity) -> Entity:
        """Entity of the column, for one device."""
        if self.entity:
            return self.entity
        return device.part(self.kind, *self.part) if self.kind else device


@dataclass(frozen=True, slots=True)
class Call:
    """An NVML call and the columns of its result; the first function that the driver has is used."""

    functions: tuple[str, ...]
    targets: tuple[Target, ...]
    arguments: tuple[int, ...] = ()
    of_device: bool = True
    """True if the device is the first argument; a system call takes none."""


@dataclass(frozen=True, slots=True)
class Field:
    """A column that one entry of a batch fills: a field, "field:scope", or a GPM metric.

    The first entry that the GPU has is used, else the call. The call's first target is the column.
    """

    entries: tuple[int | str, ...]
    target: Target
    otherwise: Call | None = None


FIELD_VALUES, GPM = "nvmlDeviceGetFieldValues", "nvmlGpmMetricsGet"


@dataclass(frozen=True, slots=True)
class Questions:
    """All calls for a device at one period; `batch` is the call for the fields.

    `recent` marks fields that older drivers lack: if a driver rejects the whole batch as an invalid
    argument, it has none of them.
    """

    calls: tuple[Call, ...] = ()
    fields: tuple[Field, ...] = ()
    batch: str = FIELD_VALUES
    recent: bool = False


def whole(result: Json) -> Reading:
    """The answer itself."""
    return int(result)


def key(name: str) -> Pick:
    """One member of a structure; a member that this version lacks is unsupported."""

    def pick(result: Json) -> Reading:
        if not isinstance(result, dict):
            return Absent.ERROR
        return int(result[name]) if name in result else Absent.UNSUPPORTED

    return pick


def used(memory: Json) -> Reading:
    """Memory in use. Version 1 of the call includes memory reserved by the driver: another quantity."""
    return int(memory["used"]) if "reserved" in memory else Absent.UNSUPPORTED


def item(index: int) -> Pick:
    """One item of a list."""
    return lambda result: int(result[index])


def bit(mask: int) -> Pick:
    """1 if a bit of a mask is set, else 0."""
    return lambda result: int(bool(int(result) & mask))


def count(result: Json) -> Reading:
    """Length of a list."""
    return len(result) if isinstance(result, list) else Absent.ERROR


def simple(function: str, metric: Metric, *older: str) -> Call:
    """A call that returns the reading itself."""
    return Call((function, *older), (Target(metric, whole),))


def field(number: int | str, metric: Metric, kind: EntityKind | None = None, *part: str) -> Field:
    """A field that contains the reading itself."""
    return Field((number,), Target(metric, whole, kind, part))
