"""Durable storage of schemas, with their layouts.

A schema is stored before frames that refer to it are acknowledged, and released when neither the
current state nor the part of the frame log that a restart reads refers to it: an agent that needs
it again sends it again. The schemas of each node are bounded in number and size. Layouts are
shared by all schemas of one shape, so that a thousand nodes of one build use one layout.

A layout is a schema without the names of its entities. Its columns are divided into cells: all
columns of one metric, one part (a priority, a clock) and one rail (the rail of the GPU or NIC
they belong to). One pass of `reduceat` over the columns, ordered by cell, rolls up every metric
of many nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from sys import intern
from threading import Lock
from types import MappingProxyType
from typing import TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from railscope import catalog, device_names, envelopes, wire as wire_format
from railscope.catalog import rollup
from railscope.catalog.declare import Metric
from railscope.catalog.gpu_health import GPU_HEALTH
from railscope_collector.fleet import schema_columns, schema_files
from railscope_collector.fleet.schema_templates import (
    EncodedSchema,
    SchemaTemplates,
    TemplateMatch,
    check_schema,
)

Positions: TypeAlias = npt.NDArray[np.intp]
KeyPart: TypeAlias = tuple[str, ...]
CellKey: TypeAlias = tuple[Metric, KeyPart]


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class SchemaLayout:
    """The shape of a schema.

    `order` lists the columns that roll up, cell by cell; `starts` the start of each cell in it;
    `keys` the metric and part of each run of cells, `key_starts` the start of each run among the
    cells; `cell_rails` the rail of each cell. `counters` lists the counters with rates that views
    read, `averaged` the gauges that views read as means, `rate_columns` both; `rated` their positions
    in `order`, and `rates` the rate column of each of these.
    """

    stream: str
    columns: int
    counters: Positions
    averaged: Positions
    rate_columns: Positions
    windowed: Positions
    """Rate columns of which the last minute is shown."""
    largest: npt.NDArray[np.bool_]
    """True for those of which the largest share of a slot is shown."""
    narrow: npt.NDArray[np.bool_]
    max_rates: npt.NDArray[np.float64]
    """Highest rates of these counters in stored steps; infinity without one."""
    order: Positions
    rated: Positions
    rates: Positions
    starts: Positions
    cell_rails: npt.NDArray[np.int64]
    keys: tuple[CellKey, ...]
    key_starts: Positions
    health: Positions
    """Columns with the verdicts on GPUs."""
    viewed: Positions
    """Columns that views read; `packed_columns` are the rest."""
    packed_columns: Positions
    slots: Positions
    """Position in `viewed` of each column that is in it."""
    bounded: Positions
    """Gauges whose quantity has limits; `lowest` and `highest` are their limits in stored steps."""
    lowest: npt.NDArray[np.int64]
    highest: npt.NDArray[np.int64]

    @property
    def rails(self) -> int:
        """Return the number of rails, not counting -1 (no rail)."""
        return int(self.cell_rails.max(initial=-1)) + 1


def make_layout(schema: wire_format.WireSchema) -> SchemaLayout:
    """Return the layout of a schema.

    Metrics that are not in the catalog, and those that are not comparable on this node, are stored but not rolled up.
    """
    entity_rails = wire_format.rails_of_entities(schema)
    cells: list[tuple[int, KeyPart, int, int]] = []
    metrics: list[Metric] = []
    counters, narrow, max_rates = [], [], []
    viewed: set[int] = set()
    reported = {group.metric for group in schema.groups}
    column = -1
    for group in schema.groups:
        metric, scale = catalog.METRICS.get(group.metric), group.scale[0] / group.scale[1]
        for member in group.entities:
            column += 1
            entity = schema.entities[member]
            if metric and schema_columns.is_of_jobs(metric, entity):
                viewed.add(column)
            if metric and schema_columns.has_rate(metric, entity):
                counters.append(column)
                narrow.append(metric.wraps_at_bits == 32 and not metric.saturates)  # noqa: PLR2004 - narrower than 64 bits
                max_rates.append(metric.max_per_second / scale)
            # The verdict has no roll-up, but the list of GPUs reads it by rail as metrics that have one.
            is_rolled_up = metric and metric.rollups and metric.not_rolled_up_with not in reported
            is_by_rail = is_rolled_up or metric is GPU_HEALTH
            if metric and is_by_rail and entity.kind == metric.about.name:
                part = wire_format.part_of_key(entity)
                cells.append((len(metrics), part, entity_rails[member], column))
        if metric:
            metrics.append(metric)
    starts: list[int] = []
    cell_rails: list[int] = []
    keys: list[CellKey] = []
    key_starts: list[int] = []
    previous: tuple[int, KeyPart, int] | None = None
    cells.sort()
    for position, (number, part, rail, _) in enumerate(cells):
        if previous is None or previous[:2] != (number, part):
            keys.append((metrics[number], part))
            key_starts.append(len(starts))
        if previous != (number, part, rail):
            starts.append(position)
            cell_rails.append(rail)
        previous = (number, part, rail)
    rate_metrics = schema_columns.rate_columns(schema)
    positions = {column: number for number, column in enumerate(rate_metrics)}
    windowed = {
        positions[column]: metric
        for column, metric in rate_metrics.items()
        if rollup.is_of_last_minute(metric)
    }
    health = [
        each
        for each, group, _ in schema_columns.columns_of(schema)
        if group.metric == GPU_HEALTH.name
    ]
    viewed.update(rate_metrics, health, (column for *_, column in cells))
    is_viewed = np.zeros(column + 1, np.bool_)
    is_viewed[list(viewed)] = True
    rated = [(n, positions[column]) for n, (*_, column) in enumerate(cells) if column in positions]
    return SchemaLayout(
        schema.stream,
        column + 1,
        np.array(counters, np.intp),
        np.array(list(rate_metrics)[len(counters) :], np.intp),
        np.array(list(rate_metrics), np.intp),
        np.array(list(windowed), np.intp),
        np.array([rollup.shows_largest(each) for each in windowed.values()], np.bool_),
        np.array(narrow, np.bool_),
        np.array(max_rates, np.float64),
        np.array([column for *_, column in cells], np.intp),
        np.array([position for position, _ in rated], np.intp),
        np.array([counter for _, counter in rated], np.intp),
        np.array(starts, np.intp),
        np.array(cell_rails, np.int64),
        tuple(keys),
        np.array(key_starts, np.intp),
        np.array(health, np.intp),
        np.flatnonzero(is_viewed),
        np.flatnonzero(~is_viewed),
        np.cumsum(is_viewed) - 1,
        *_gauge_limits(schema),
    )


def _gauge_limits(schema: wire_format.WireSchema) -> npt.NDArray[np.int64]:
    """Return the columns of gauges whose quantity has limits, and the lowest and the highest value of each."""
    limits = [
        (column, metric.valid_steps[0], metric.valid_steps[-1])
        for column, group, _ in schema_columns.columns_of(schema)
        if (metric := catalog.METRICS.get(group.metric))
        and metric.has_limits
        and group.scale == metric.scale.as_integer_ratio()
    ]
    return np.array(limits, np.int64).reshape(-1, 3).T.copy()


GPU_STREAM = "gpu"
# Each change of a node's devices is a further schema; without a bound, a node could fill the memory and the disk.
MAX_SCHEMAS_PER_NODE, MAX_SCHEMA_BYTES_PER_NODE = 256, 16 << 20


@dataclass(frozen=True, slots=True, eq=False)
class SchemaGpu:
    """A GPU of a schema: UUID, rail (its position in the node), its columns, the driver's index."""

    uuid: str
    rail: int
    columns: Positions
    index: str = ""
    pci: str = ""
    """PCI address of the device."""


@dataclass(frozen=True, slots=True, eq=False)
class KnownSchema:
    """The parts of a schema that ingest needs."""

    digest: bytes
    shape: bytes
    layout: SchemaLayout
    gpus: tuple[SchemaGpu, ...]
    metered: schema_columns.MeteredColumns
    showing: schema_columns.ShownDeviceColumns
    names: Mapping[device_names.DeviceKey, device_names.Names]
    """Shared by all schemas with the same devices."""
    jobs: schema_columns.JobColumns | None = None
    job_gpus: tuple[str, ...] = ()
    """The UUID of each owner of columns of jobs; empty for the GPU on a rail."""
    size_bytes: int = 0
    gpus_by_rail: Mapping[int, str] = field(default_factory=dict)
    """UUIDs of GPUs; those without a rail, or with one already used, have a negative key."""

    @property
    def has_facts(self) -> bool:
        """True if metering uses more of its frames than their time."""
        metered = self.metered
        return bool(self.gpus or metered.layouts or metered.counters)


_NO_DIGESTS: frozenset[bytes] = frozenset()


class StoredSchemas:
    """All stored schemas by hash. Methods that block are marked."""

    def __init__(self, directory: Path) -> None:
        self._files = schema_files.SchemaFiles(directory)
        self._by_digest: dict[bytes, KnownSchema] = {}
        self._shapes: dict[bytes, KnownSchema] = {}
        """A schema of each shape, of which further ones share the parts that are equal."""
        self._templates = SchemaTemplates()
        self._names: dict[bytes, Mapping[device_names.DeviceKey, device_names.Names]] = {}
        self._used: dict[bytes, int] = {}
        self._by_node: dict[str, set[bytes]] = {}
        self._deriving, self._lock = Lock(), Lock()
        self.segment = 0
        """The segment of the frame log that is currently written or read."""
        self.read = self._files.read

    def open(self) -> int:
        """Read all stored schemas; return the number of damaged ones. Blocking; raises OSError."""
        damaged = 0
        for content in self._files.open():
            try:
                schema = self._derive(self._read(content or b""))
                self._by_digest[schema.digest] = schema
            except (msgspec.MsgspecError, ValueError, IndexError, RecursionError):
                damaged += 1
        return damaged

    def _read(self, content: bytes) -> EncodedSchema:
        form = self._templates.find(content) or schema_files.decode_schema(content)
        return EncodedSchema(content, schema_files.schema_digest(content), form)

    def recognize(self, content: bytes) -> EncodedSchema:
        """Return an encoded schema, decoded unless it is stored or matches a template. Raises WireError."""
        digest = schema_files.schema_digest(content)
        form = self._by_digest.get(digest) or self._templates.find(content)
        if form:
            return EncodedSchema(content, digest, form)
        return EncodedSchema.from_wire(envelopes.decode_schema(content))

    @property
    def file_names(self) -> set[str]:
        """Names of the files of all stored schemas."""
        return {self._files.name_of(digest) for digest in list(self._by_digest)}

    def get(self, digest: bytes) -> KnownSchema | None:
        """Return a schema by its hash; None if it is not stored."""
        return self._by_digest.get(digest)

    def contents(self, digests: Iterable[bytes]) -> list[bytes]:
        """Return stored schemas as they were encoded. Blocking; raises OSError."""
        return [self._files.read_content(digest) for digest in digests]

    def __len__(self) -> int:
        """Return the number of schemas."""
        return len(self._by_digest)

    def put(self, wire: wire_format.WireSchema) -> KnownSchema:
        """Store a schema, durable on return. Blocking; raises OSError."""
        (schema,) = self.put_all([EncodedSchema.from_wire(wire)])
        return schema

    def put_all(self, schemas: Sequence[EncodedSchema]) -> list[KnownSchema]:
        """Store schemas, durable on return. Blocking; raises OSError."""
        # A lock of its own: deriving takes long, and must not delay `release_unused` or other reads.
        with self._deriving:
            derived = [
                self._by_digest.get(encoded.digest) or self._derive(encoded) for encoded in schemas
            ]
        with self._lock:
            # Another thread may have stored or released some of them meanwhile.
            all_known = [self._by_digest.get(schema.digest, schema) for schema in derived]
            contents = {encoded.digest: encoded.content for encoded in schemas}
            self._files.write(
                {d: content for d, content in contents.items() if d not in self._by_digest}
            )
            for schema in all_known:
                self._used[schema.digest] = self.segment
                if schema.digest not in self._by_digest:
                    self._by_digest[schema.digest] = schema
            return all_known

    def record_uses(self, node: str, digests: Sequence[bytes]) -> None:
        """Record that frames of a node refer to schemas."""
        used, segment = self._used, self.segment
        # The usual case changes nothing: all schemas of the envelope were used in this segment.
        if new := [digest for digest in digests if used.get(digest) != segment]:
            used.update(dict.fromkeys(new, segment))
        if not self._by_node.get(node, _NO_DIGESTS).issuperset(digests):
            self._by_node.setdefault(node, set()).update(digests)

    def reason_to_reject(self, node: str, new_bytes: Sequence[int]) -> str:
        """Return the reason to reject new schemas of a node; empty if they are accepted."""
        used = [
            self._by_digest[digest]
            for digest in self._by_node.get(node, ()) & self._by_digest.keys()
        ]
        count = len(used) + len(new_bytes)
        size_bytes = sum(schema.size_bytes for schema in used) + sum(new_bytes)
        if count > MAX_SCHEMAS_PER_NODE:
            return f"{count} schemas of one node in use: expected at most {MAX_SCHEMAS_PER_NODE}"
        if size_bytes > MAX_SCHEMA_BYTES_PER_NODE:
            return f"{size_bytes} bytes of schemas of one node: expected at most {MAX_SCHEMA_BYTES_PER_NODE}"
        return ""

    def release_unused(self, first_segment: int, shown_digests: AbstractSet[bytes]) -> list[bytes]:
        """Release schemas that are neither shown nor in recent segments; return their hashes.

        Their files remain. Schemas of segments from `first_segment` on are retained, and of one
        more for envelopes that are checked and not appended yet. Collections are copied before they
        are iterated: another thread may store schemas meanwhile.
        """
        unused = [
            digest
            for digest in set(self._by_digest) - shown_digests
            if self._used.get(digest, 0) < first_segment - 1
        ]
        if not unused:
            return []
        for digest in unused:
            del self._by_digest[digest]
            self._used.pop(digest, None)
        for node, digests in list(self._by_node.items()):
            digests.difference_update(unused)
            if not digests:
                del self._by_node[node]
        remaining = list(self._by_digest.values())
        self._shapes = {schema.shape: schema for schema in remaining}
        self._templates.drop_unused(self._shapes)
        names = {id(schema.names) for schema in remaining}
        self._names = {k: shared for k, shared in list(self._names.items()) if id(shared) in names}
        return unused

    def delete(self, digests: Iterable[bytes]) -> None:
        """Delete the files of released schemas. Blocking; raises OSError."""
        with self._lock:
            # Only those that were not stored again since they were released.
            self._files.delete(digest for digest in digests if digest not in self._by_digest)

    def _derive(self, encoded: EncodedSchema) -> KnownSchema:
        if isinstance(encoded.form, KnownSchema):
            return encoded.form
        if isinstance(encoded.form, TemplateMatch):
            return self._derive_like(encoded.digest, encoded.form)
        wire = encoded.form
        rails = wire_format.rails_of_entities(wire)
        shape = wire_format.layout_hash(wire, rails)
        like = self._shapes.get(shape)
        gpus = _schema_gpus(wire, rails, like.gpus if like else ())
        jobs = like.jobs if like else schema_columns.job_columns(wire)
        schema = KnownSchema(
            encoded.digest,
            like.shape if like else shape,
            like.layout if like else make_layout(wire),
            gpus,
            schema_columns.find_metered_columns(wire, rails),
            schema_columns.device_columns_like(like.showing, wire)
            if like
            else schema_columns.find_device_columns(wire),
            self._names_of(list(map(_encode, device_names.devices_in(wire.entities)))),
            jobs,
            jobs.gpus(wire) if jobs else (),
            len(encoded.content),
            _gpus_by_rail(gpus),
        )
        self._shapes.setdefault(shape, schema)
        self._add_template(wire, encoded.content, schema)
        return schema

    def _derive_like(self, digest: bytes, match: TemplateMatch) -> KnownSchema:
        """Return a schema that matches a template: its devices have other names."""
        like, texts = match.like, match.texts
        gpus = tuple(replace(gpu, uuid=texts.get(gpu.uuid, gpu.uuid)) for gpu in like.gpus)
        self._shapes.setdefault(like.shape, like)
        return replace(
            like,
            digest=digest,
            gpus=gpus,
            metered=like.metered.renamed(texts),
            showing=like.showing.renamed(texts),
            names=self._names_of(match.devices),
            job_gpus=tuple(texts.get(gpu, gpu) for gpu in like.job_gpus),
            gpus_by_rail=_gpus_by_rail(gpus),
        )

    def _add_template(
        self, wire: wire_format.WireSchema, content: bytes, schema: KnownSchema
    ) -> None:
        """Add a template, unless schemas like this one would have to be checked individually."""
        with suppress(wire_format.WireError):
            check_schema(wire, wire_format.MAX_COLUMNS)
            # Only a schema in the one canonical encoding has its texts at the computed offsets.
            if schema_files.encode_schema(envelopes.decode_schema(content)) == content:
                self._templates.add(wire, content, schema)

    def _names_of(
        self, devices: Sequence[bytes]
    ) -> Mapping[device_names.DeviceKey, device_names.Names]:
        """Return the names of encoded devices; most schemas of a node have the same."""
        key = schema_files.schema_digest(b"".join(devices))
        names = self._names.get(key)
        if names is None:
            entities = [_decode_entity(device) for device in devices]
            names = self._names.setdefault(key, device_names.names_in(entities))
        return names


_encode = msgspec.msgpack.encode
_decode_entity = msgspec.msgpack.Decoder(wire_format.WireEntity).decode


def _schema_gpus(
    wire: wire_format.WireSchema, rails: Sequence[int], like: Sequence[SchemaGpu]
) -> tuple[SchemaGpu, ...]:
    """Return the GPUs of a schema; `like` are those of another one of its shape."""
    if wire.stream != GPU_STREAM:
        return ()
    if like:
        columns = [gpu.columns for gpu in like]
    else:
        by_member: dict[int, list[int]] = {
            number: [] for number, entity in enumerate(wire.entities) if entity.kind == GPU_STREAM
        }
        for column, _, member in schema_columns.columns_of(wire):
            if member in by_member:
                by_member[member].append(column)
        columns = [np.array(positions, np.intp) for positions in by_member.values()]
    gpus = [(e, r) for e, r in zip(wire.entities, rails, strict=True) if e.kind == GPU_STREAM]
    return tuple(
        SchemaGpu(
            intern(entity.key[0]),  # shared with the other schemas of a node
            rail,
            gpu_columns,
            entity.facts.get("index", ""),
            entity.facts.get("pci_address", ""),
        )
        for (entity, rail), gpu_columns in zip(gpus, columns, strict=True)
    )


_NO_GPUS: Mapping[int, str] = MappingProxyType({})


def _gpus_by_rail(gpus: Sequence[SchemaGpu]) -> Mapping[int, str]:
    """Return GPUs by rail; those without a rail, or with one already used, get a negative key."""
    if not gpus:
        return _NO_GPUS
    found: dict[int, str] = {}
    for position, gpu in enumerate(gpus):
        taken = gpu.rail < 0 or gpu.rail in found
        found[-1 - position if taken else gpu.rail] = gpu.uuid
    return found
