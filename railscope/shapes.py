"""Schemas in two parts: the shape, which nodes of one build have in common, and the names of a node's devices.

The catalog declares which labels are names. Entities with the same name share a row of the list: the GPU and its
clocks. The rail of a device is part of the shape, as roll-ups depend on it. Entities of kinds whose number varies
have rows in reserve, up to the next power of two, so that a process that starts changes the names only.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple, TypeAlias

import msgspec

from railscope.catalog import KINDS
from railscope.catalog.declare import EntityKind
from railscope.frame import NO_RAIL, Schema
from railscope.wire import (
    BUILD,
    HASH_BYTES,
    RAIL_DIGITS,
    Envelope,
    NameRows,
    Shape,
    Slot,
    WireEntity,
    WireGroup,
    WireSchema,
    content_hash,
    encode_part,
    to_wire_entity,
)

RESERVED = -1
"""Position of the entity of a column that is not in use."""
_MAX_WITH_RESERVE = 1024
"""Above it nothing is in reserve: three kinds of one stream have more rows than a list may have."""
_RAIL = "rail"
_Row: TypeAlias = tuple[str, tuple[str, ...] | int]
"""Kind and key of a name, or the number of a row in reserve."""


class _Place(NamedTuple):
    """An entity by its row of the list of names, None for parts of the build."""

    kind: str
    row: _Row | None
    part: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SchemaParts:
    """Encoded shape and names of a schema, with their hashes."""

    shape: bytes
    names: bytes
    shape_hash: bytes
    names_hash: bytes
    columns: tuple[int, ...] | None = None
    """Column of the schema for each column of the shape, RESERVED for those in reserve; None if they are the same."""


def schema_parts(schema: Schema) -> SchemaParts:
    """Return the parts of a schema, which are determined once."""
    # Stored as a cached property is: in a dictionary, a schema would be compared with others.
    cache: dict[str, SchemaParts] = vars(schema)
    if _PARTS not in cache:
        groups = tuple(
            WireGroup(metric.name, metric.scale.as_integer_ratio(), members)
            for metric, members in schema.groups
        )
        entities = tuple(map(to_wire_entity, schema.entities))
        shape, names, columns = split(WireSchema(schema.stream, groups, entities), reserve=True)
        encoded = encode_part(shape), encode_part(names)
        hashes = content_hash(encoded[0]), content_hash(encoded[1])
        cache[_PARTS] = SchemaParts(*encoded, *hashes, columns)
    return cache[_PARTS]


_PARTS = "wire parts"


def split(schema: WireSchema, *, reserve: bool) -> tuple[Shape, NameRows, tuple[int, ...] | None]:
    """Return shape, names and columns of a schema; without `reserve`, of exactly its columns."""
    places = list(map(_place_of, schema.entities))
    slots: dict[_Place, int] = {}
    groups, columns, column = [], list[int](), 0
    for group in schema.groups:
        of_group = [places[member] for member in group.entities]
        columns += range(column, column + len(of_group))
        column += len(of_group)
        if reserve and (more := list(_reserve(of_group))):
            of_group += more
            columns += [RESERVED] * len(more)
        positions = tuple([slots.setdefault(place, len(slots)) for place in of_group])
        groups.append(WireGroup(group.metric, group.scale, positions))
    columnless = [place for place in dict.fromkeys(places) if place not in slots]
    for place in chain(columnless, _reserve(columnless) if reserve else ()):
        slots.setdefault(place, len(slots))
    rows: dict[_Row, int] = {}
    numbered = [
        Slot(kind, BUILD if row is None else rows.setdefault(row, len(rows)), part)
        for kind, row, part in slots
    ]
    facts = _facts_of_rows(schema.entities, places)
    rails = tuple(_rail_of(row, facts) for row in rows)
    names = tuple(
        _name_row(row, rail, facts.get(row, {})) for row, rail in zip(rows, rails, strict=True)
    )
    return (
        Shape(schema.stream, tuple(groups), tuple(numbered), rails),
        names,
        tuple(columns) if RESERVED in columns else None,
    )


def _place_of(entity: WireEntity) -> _Place:
    kind = KINDS.get(entity.kind)
    if kind is None:
        return _Place(entity.kind, (entity.kind, entity.key), ())
    key, part = entity.key[: kind.named], entity.key[kind.named :]
    is_named = kind.named or kind.facts
    return _Place(entity.kind, (kind.name_kind.name, key) if is_named else None, part)


def _reserve(places: Sequence[_Place]) -> Iterator[_Place]:
    """Yield the places in reserve for entities of which the number varies: as many parts as the first of them has."""
    rows: dict[str, dict[_Row, list[_Place]]] = defaultdict(lambda: defaultdict(list))
    for place in places:
        if place.row and (kind := KINDS.get(place.kind)) and kind.varies:
            rows[place.row[0]][place.row].append(place)
    for name_kind, of_kind in rows.items():
        parts = next(iter(of_kind.values()))
        size = 1 << (len(of_kind) - 1).bit_length()
        for number in range(len(of_kind), size if size <= _MAX_WITH_RESERVE else 0):
            yield from (place._replace(row=(name_kind, number)) for place in parts)


def _facts_of_rows(
    entities: Iterable[WireEntity], places: Iterable[_Place]
) -> dict[_Row, Mapping[str, str]]:
    facts: dict[_Row, Mapping[str, str]] = {}
    for entity, (kind, row, part) in zip(entities, places, strict=True):
        if row and entity.facts and kind == row[0] and not part:
            facts[row] = max(facts.get(row, {}), entity.facts, key=len)
    return facts


def _rail_of(row: _Row, facts: Mapping[_Row, Mapping[str, str]]) -> int:
    """Return the rail of the device of a name; NO_RAIL if it varies, as others take its place."""
    kind, key = KINDS.get(row[0]), row[1]
    if kind is None or kind.varies or isinstance(key, int):
        return NO_RAIL
    whole = kind.outermost
    text = facts.get((whole.name, key[: len(whole.labels)]), {}).get(_RAIL, "")
    is_rail = text.isascii() and text.isdecimal() and len(text) <= RAIL_DIGITS
    return int(text) if is_rail else NO_RAIL


def _name_row(row: _Row, rail: int, facts: Mapping[str, str]) -> WireEntity:
    kind, key = row
    if isinstance(key, int):
        return WireEntity(kind, ())
    if _states_rail(KINDS.get(kind)) and facts.get(_RAIL) == str(rail):
        facts = {name: text for name, text in facts.items() if name != _RAIL}
    return WireEntity(kind, key, dict(facts))


def _states_rail(kind: EntityKind | None) -> bool:
    """True if the rail in the shape is a fact of the devices of a kind."""
    return kind is not None and kind.part_of is None and _RAIL in kind.facts


def _is_reserved(row: WireEntity) -> bool:
    """True for a row of a list of names that is not in use."""
    kind = KINDS.get(row.kind)
    return not row.key and (kind is None or bool(kind.labels))


def named_devices(shape: Shape, names: NameRows) -> list[WireEntity]:
    """Return the rows of a list of names, with their rails."""
    return [
        WireEntity(row.kind, row.key, {**row.facts, _RAIL: str(rail)})
        if rail != NO_RAIL and _RAIL not in row.facts and _states_rail(KINDS.get(row.kind))
        else row
        for row, rail in zip(names, shape.rails, strict=True)
    ]


def join(shape: Shape, names: NameRows) -> WireSchema:
    """Return the schema of a shape and names that fit it."""
    rows = [None if _is_reserved(row) else row for row in named_devices(shape, names)]
    entities: list[WireEntity] = []
    positions: list[int] = []
    for kind, number, part in map(msgspec.structs.astuple, shape.slots):
        name = rows[number] if number != BUILD else _BUILD
        positions.append(RESERVED if name is None else len(entities))
        if name is not None:
            facts = name.facts if kind == name.kind and not part else {}
            entities.append(WireEntity(kind, name.key + part, facts))
    groups = shape.groups
    if RESERVED in positions:
        groups = tuple(
            WireGroup(each.metric, each.scale, tuple(positions[slot] for slot in each.entities))
            for each in groups
        )
    return WireSchema(shape.stream, groups, tuple(entities))


_BUILD = WireEntity("", ())


class SchemaTable:
    """Schemas of envelopes that contain their shapes and names, by identity; others are found elsewhere."""

    def __init__(self, find: Callable[[bytes], WireSchema] | None = None) -> None:
        self._find = find
        self._shapes: dict[bytes, Shape] = {}
        self._names: dict[bytes, NameRows] = {}
        self._joined: dict[bytes, WireSchema] = {}

    def add(self, envelope: Envelope) -> None:
        """Add the shapes and names of an envelope. Raises msgspec.MsgspecError."""
        self._shapes |= {content_hash(each): _decode_shape(each) for each in envelope.shapes}
        self._names |= {content_hash(each): _decode_names(each) for each in envelope.names}

    def __getitem__(self, identity: bytes) -> WireSchema:
        """Return the schema with the hashes of a shape and of names. Raises LookupError, or an error of `find`."""
        if identity not in self._joined:
            shape = self._shapes.get(identity[:HASH_BYTES])
            names = self._names.get(identity[HASH_BYTES:])
            if shape is not None and names is not None:
                self._joined[identity] = join(shape, names)
            elif self._find:
                self._joined[identity] = self._find(identity)
        return self._joined[identity]


_decode_shape = msgspec.msgpack.Decoder(Shape).decode
_decode_names = msgspec.msgpack.Decoder(NameRows).decode
