"""Entities, and frames of their readings.

Frames: readings of one source of one node at one time.

A schema defines the entity and metric of each column. It is created when a source is probed, and
again only when the node's hardware or configuration changes; frames refer to it.

Entities: the objects that metrics describe.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType

from railscope.catalog import ORDER
from railscope.catalog.declare import EntityKind, EventClass, Metric, MetricKind
from railscope.reading import PRESENT, REASONS, Reading, from_stored
from railscope.untrusted_text import printable

_NO_FACTS: Mapping[str, str] = MappingProxyType({})
"""Shared: thousands of entities have no facts."""


@dataclass(frozen=True, slots=True)
class Entity:
    """Object of a kind: a stable identity, and facts that describe it, as printable text.

    `key` has one value for each label of the kind and is its identity. Two entities compare equal only
    with equal facts, so that a firmware update creates a new schema.
    """

    kind: EntityKind
    key: tuple[str, ...] = ()
    facts: Mapping[str, str] = field(default_factory=lambda: _NO_FACTS, hash=False)

    def __post_init__(self) -> None:
        """Reject a key of the wrong length and facts that the kind does not declare."""
        if len(self.key) != len(self.kind.labels):
            message = f"invalid key of {self.kind.name}: {self.key}: expected {self.kind.labels}"
            raise ValueError(message)
        unknown = set(self.facts) - set(self.kind.facts)
        if unknown:
            message = f"unknown facts of {self.kind.name}: {sorted(unknown)}"
            raise ValueError(message)
        # One check for all texts: nearly all are printable, and there are thousands of entities.
        if not "".join(self.key).isprintable():
            object.__setattr__(self, "key", tuple(map(printable, self.key)))
        if not "".join(self.facts.values()).isprintable():
            facts = {name: printable(text) for name, text in self.facts.items()}
            object.__setattr__(self, "facts", facts)

    def child(self, kind: EntityKind, *key: str) -> Entity:
        """Return a part of this entity, such as the clock of a GPU or the priority of a NIC."""
        return Entity(kind, self.key + key)

    @property
    def whole_key(self) -> tuple[str, ...]:
        """The part of the key that identifies the outermost entity that contains this one."""
        return self.key[: len(self.kind.outermost.labels)]


NO_RAIL = -1

Column = tuple[Metric, Entity]


@dataclass(frozen=True)
class Schema:
    """Columns of one stream, grouped by metric in catalog order."""

    stream: str
    columns: tuple[Column, ...]
    columnless_entities: tuple[Entity, ...] = ()
    """Entities with facts but without a column."""

    @cached_property
    def _hash(self) -> int:
        return hash((self.stream, self.columns))

    def __hash__(self) -> int:
        """Return the cached hash: schemas have thousands of columns and are dict keys for every batch."""
        return self._hash

    @staticmethod
    def ordered(columns: Iterable[Column]) -> list[int]:
        """Return the positions of the columns in schema order: by metric, else in order of discovery."""
        ordered = list(columns)
        # Stable: within a metric, columns keep the order of discovery.
        return sorted(range(len(ordered)), key=lambda i: ORDER[ordered[i][0].name])

    @cached_property
    def entities(self) -> tuple[Entity, ...]:
        """Every entity once, in order of first appearance."""
        all_entities = [entity for _, entity in self.columns] + list(self.columnless_entities)
        return tuple(dict.fromkeys(all_entities))

    @cached_property
    def groups(self) -> tuple[tuple[Metric, tuple[int, ...]], ...]:
        """Runs of columns of one metric, as positions in `entities`."""
        index = {entity: position for position, entity in enumerate(self.entities)}
        runs: list[tuple[Metric, list[int]]] = []
        for metric, entity in self.columns:
            if not runs or runs[-1][0] is not metric:
                runs.append((metric, []))
            runs[-1][1].append(index[entity])
        return tuple((metric, tuple(members)) for metric, members in runs)


@dataclass(frozen=True, slots=True)
class Event:
    """Event of an entity, at a timestamp of the node's clocks; facts are printable.

    Audited events of a run are numbered from 1, without a gap; others have number 0.
    """

    event_class: EventClass
    entity: Entity
    wall_ns: int
    boot_ns: int
    facts: dict[str, str] = field(default_factory=dict)
    number: int = 0

    def __post_init__(self) -> None:
        """Escape unprintable characters."""
        if not "".join((*self.facts, *self.facts.values())).isprintable():
            facts = {printable(name): printable(text) for name, text in self.facts.items()}
            object.__setattr__(self, "facts", facts)


@dataclass(frozen=True, slots=True)
class NodeTimestamp:
    """One timestamp on the node's clocks; `uncertainty_ns` is None if unknown."""

    wall_ns: int
    boot_ns: int
    uncertainty_ns: int | None = None


@dataclass(frozen=True, slots=True)
class FrameOrigin:
    """Origin of a frame: the node, and one run of its agent. A new run counts from sequence 1."""

    node: str
    run: str
    boot_id: str


@dataclass(frozen=True, slots=True)
class Frame:
    """Readings of one stream of one node at one time. Its identity is (node, run, stream, sequence).

    `values` has one stored integer per column. `reasons` has one code per column (0 if the value is
    valid), or is empty if every column has a value. `read_delays` has the microseconds from the timestamp to the read of
    each column's device, as 4 bytes, or is empty if no device was read late.
    """

    origin: FrameOrigin
    schema: Schema
    sequence: int
    timestamp: NodeTimestamp
    values: array[int]
    reasons: bytes = b""
    events: tuple[Event, ...] = ()
    read_delays: bytes = b""

    def reading(self, column: int) -> Reading:
        """Return the stored integer of a column, or the reason for its absence."""
        if self.reasons and self.reasons[column] != PRESENT:
            return REASONS[self.reasons[column]]
        metric = self.schema.columns[column][0]
        return from_stored(self.values[column], counter=metric.kind is MetricKind.COUNTER)

    def all_readings(self) -> Sequence[Reading]:
        """Return the readings of all columns, in their order."""
        if min(self.values, default=0) < 0:  # a counter of more than 63 bits may be among them
            return [self.reading(column) for column in range(len(self.values))]
        if not self.reasons:
            return self.values
        return [
            value if reason == PRESENT else REASONS[reason]
            for value, reason in zip(self.values, self.reasons, strict=True)
        ]

    def readings(self) -> Iterator[tuple[Metric, Entity, Reading]]:
        """Yield every column with its reading."""
        for position, (metric, entity) in enumerate(self.schema.columns):
            yield metric, entity, self.reading(position)
