"""Known devices: the columns of a device persist until the device has left the system.

A probe with failed calls finds fewer devices than exist. `KnownDevices` completes its inventory with the
columns that are missing because of the failed calls. A device that is no longer listed while all calls
succeed in full has left, and its columns are removed.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from railscope.catalog.declare import EntityKind, Metric
from railscope.catalog.entities import CLAIM, GPU_PROCESS
from railscope.frame import Column, Entity
from railscope.reading import Absent
from railscope_agent.host import Host
from railscope_agent.sampling.answer_sizes import AnswerSizes
from railscope_agent.sampling.probe_host import FailedCall, ProbeHost, device_name
from railscope_agent.sampling.probe_result import ProbeResult

MAX_REPEATED_CALLS = 16
"""Limit of failed calls repeated between probes; one that succeeds triggers a new probe."""
MAX_HIDDEN_COLUMNS = 1 << 14
"""Far more columns than the devices of one node have in one source."""
# A process that ended is not a device that failed: only a failed call about its own GPU keeps it.
_TRANSIENT = {GPU_PROCESS, CLAIM}
"""Temporary entities of a permanent device; they are kept only while listed."""
_NAMING_FACTS = ("pci_address", "interface")
_EntityKey = tuple[EntityKind, tuple[str, ...]]
_ColumnKey = tuple[Metric, EntityKind, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class KnownInventory:
    """An inventory completed with the columns that failed calls have hidden.

    `positions` selects the columns from a row of the source followed by one absence reason for each
    hidden column.
    """

    columns: tuple[Column, ...]
    positions: tuple[int, ...]
    columnless_entities: tuple[Entity, ...]
    hidden_reasons: bytes = b""
    failed_calls: tuple[FailedCall, ...] = ()


class _CallHistory:
    """Calls with a successful last attempt, as sorted hashes of eight bytes each.

    Only a call that once succeeded can hide a device: one that always failed found none.
    """

    def __init__(self) -> None:
        self._succeeded = array("q")

    def newly_failed(self, probe: ProbeHost) -> list[FailedCall]:
        """Return the failed calls of a probe that succeeded before."""
        return [call for key, call in probe.failed_calls.items() if self._has_succeeded(key)]

    def take(self, probe: ProbeHost, *, is_complete: bool) -> None:
        """Record the calls of a probe; an incomplete probe removes no earlier call."""
        # A call that fails now stays in the history: it hides its devices in the next probe as well.
        failed = {hash(key) for key in probe.failed_calls if self._has_succeeded(key)}
        earlier = () if is_complete else self._succeeded
        # A set of as many integers takes several times the memory, for each source.
        self._succeeded = array("q", sorted(probe.succeeded_calls.union(failed, earlier)))

    def _has_succeeded(self, key: str) -> bool:
        index = bisect_left(self._succeeded, hash(key))
        return index < len(self._succeeded) and self._succeeded[index] == hash(key)


class KnownDevices:
    """The columns and entities that one source has found so far."""

    def __init__(self) -> None:
        self._found: tuple[tuple[Column, ...], tuple[Entity, ...]] = (), ()
        self._columns: Mapping[_ColumnKey, Column] = {}
        """Columns found so far by their keys, which only an incomplete probe needs."""
        self._columnless_entities: Mapping[_EntityKey, Entity] = {}
        self._history = _CallHistory()
        self._sizes = AnswerSizes()

    def probing(self, host: Host) -> ProbeHost:
        """Return a host for one probe, which compares its answers with those of earlier probes."""
        return ProbeHost(host, self._sizes)

    def complete(self, inventory: ProbeResult, probe: ProbeHost) -> KnownInventory:
        """Add the known columns and entities that failed calls have hidden to an inventory."""
        new = self._history.newly_failed(probe)
        completed = (
            self._add_hidden(inventory, probe, new) if new else _complete_as_found(inventory)
        )
        self._history.take(probe, is_complete=not completed.hidden_reasons)
        # Sizes of calls that an incomplete probe did not reach are still needed for comparison.
        if not completed.hidden_reasons:
            self._sizes.retain(
                {*probe.succeeded_calls, *map(hash, probe.failed_calls)}, probe.listed_paths
            )
        self._found = completed.columns, completed.columnless_entities
        # Built again from `_found` in the rare case that a call fails.
        self._columns, self._columnless_entities = {}, {}
        return completed

    def _add_hidden(
        self, inventory: ProbeResult, probe: ProbeHost, new: Sequence[FailedCall]
    ) -> KnownInventory:
        self._columns = {_column_key(column): column for column in self._found[0]}
        self._columnless_entities = {_entity_key(entity): entity for entity in self._found[1]}
        devices = _DeviceNames([*self._entities(), *_entities(inventory)])
        concerned = {device for call in new for device in devices.devices_of_call(call)}
        was_known = {_whole_device(entity) for entity in self._entities()}
        # Facts are kept only for devices that a failed call concerns: those of others may really have
        # changed.
        keeps = concerned & was_known
        columns = [self._restore_facts(column, keeps) for column in inventory.columns]
        positions = list(range(len(columns)))
        columnless_entities = [
            _with_facts(entity, self._columnless_entities.get(_entity_key(entity)), keeps)
            for entity in inventory.columnless_entities
        ]
        hides = _HiddenEntities(new, devices, probe.mentioned_names)
        hidden = bytearray()
        present = {_column_key(column) for column in columns}
        for key, column in self._columns.items():
            # Bounds the memory, whatever names damaged answers contain.
            if key in present or len(hidden) >= MAX_HIDDEN_COLUMNS:
                continue
            if reason := hides.reason(column[1]):
                positions.append(len(inventory.columns) + len(hidden))
                columns.append(column)
                hidden.append(reason.value)
        described = {_entity_key(entity) for entity in columnless_entities}
        columnless_entities += [
            entity
            for key, entity in self._columnless_entities.items()
            # An entity without columns has nothing that could be absent as gone, so it is removed at once.
            if key not in described and hides.reason(entity) not in {None, Absent.GONE}
        ]
        failed = tuple(new[:MAX_REPEATED_CALLS]) if hidden else ()
        return KnownInventory(
            tuple(columns), tuple(positions), tuple(columnless_entities), bytes(hidden), failed
        )

    def _restore_facts(self, column: Column, keeps: set[tuple[str, ...]]) -> Column:
        earlier = self._columns.get(_column_key(column))
        return (column[0], _with_facts(column[1], earlier[1], keeps)) if earlier else column

    def _entities(self) -> Iterable[Entity]:
        yield from (entity for _, entity in self._columns.values())
        yield from self._columnless_entities.values()


def _complete_as_found(inventory: ProbeResult) -> KnownInventory:
    """Return the inventory as found: no call newly failed, so missing devices have left."""
    columns = tuple(inventory.columns)
    return KnownInventory(columns, tuple(range(len(columns))), tuple(inventory.columnless_entities))


class _DeviceNames:
    """The devices of some entities, by the names that calls use for them."""

    def __init__(self, entities: Iterable[Entity]) -> None:
        self._by_name: dict[str, set[tuple[str, ...]]] = {}
        self.names: dict[tuple[str, ...], set[str]] = {}
        for entity in entities:
            device = _whole_device(entity)
            for name in _names(entity):
                self._by_name.setdefault(name, set()).add(device)
                self.names.setdefault(device, set()).add(name)

    def devices_of_call(self, call: FailedCall) -> set[tuple[str, ...]]:
        """Return the devices that a call concerns; none for a list of devices or a file of the system."""
        return {device for name in call.names for device in self._by_name.get(name, ())}


class _HiddenEntities:
    """The failed calls of a probe, as reasons for the absence of entities that it did not find."""

    def __init__(
        self, failed: Sequence[FailedCall], devices: _DeviceNames, mentioned: set[str]
    ) -> None:
        self._devices = devices
        self._mentioned_names = mentioned
        self._first = failed[0].reason if failed else None
        self._of_all: Absent | None = None
        self._of_device: dict[tuple[str, ...], Absent] = {}
        for call in failed:
            about = devices.devices_of_call(call)
            # A failed list, or a file of the system, may hide any device.
            if not about and self._of_all is None:
                self._of_all = call.reason
            for device in about:
                self._of_device.setdefault(device, call.reason)

    def reason(self, entity: Entity) -> Absent | None:
        """Return the reason that hides an entity; None if it has left the system.

        A device with a name that occurred in the probe, in a list or a call, is present: a call about
        another device, such as the bridge above it, may have hidden it.
        """
        device = _whole_device(entity)
        if reason := self._of_device.get(device):
            return reason
        if entity.kind in _TRANSIENT:
            return None
        if self._of_all:
            return self._of_all
        is_there = not device or not self._mentioned_names.isdisjoint(
            self._devices.names.get(device, ())
        )
        return self._first if is_there else None


def _with_facts(entity: Entity, earlier: Entity | None, keeps: set[tuple[str, ...]]) -> Entity:
    """Return an entity with its earlier facts that a failed call has hidden."""
    if (
        earlier is None
        or _whole_device(entity) not in keeps
        or entity.facts.keys() >= earlier.facts.keys()
    ):
        return entity
    return Entity(entity.kind, entity.key, {**earlier.facts, **entity.facts})


def _column_key(column: Column) -> _ColumnKey:
    metric, entity = column
    return metric, entity.kind, entity.key


def _entity_key(entity: Entity) -> _EntityKey:
    return entity.kind, entity.key


def _whole_device(entity: Entity) -> tuple[str, ...]:
    """Return the device that an entity is or is a part of: the first label of its key."""
    return entity.key[:1]


def _entities(inventory: ProbeResult) -> Iterable[Entity]:
    yield from (entity for _, entity in inventory.columns)
    yield from inventory.columnless_entities


def _names(entity: Entity) -> set[str]:
    """Return the names that calls use for the device of an entity."""
    facts = entity.facts
    names = {*entity.key[:1], *(facts[fact] for fact in _NAMING_FACTS if fact in facts)}
    if "index" in facts:
        # NVML calls name GPUs by index, while entities have their UUIDs.
        names.add(device_name("nvml", facts["index"]))
    return names - {""}
