"""Names of the devices of nodes: lists that frames refer to, and the schemas that they form with shapes.

Most nodes differ in their names only. A list stays compressed; from it, the names that metering, jobs and views use are
read once for each shape.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from sys import intern
from types import MappingProxyType

import msgspec

from railscope import device_names
from railscope.shapes import join, named_devices
from railscope.wire import HASH_BYTES, NameRows, WireSchema
from railscope_collector.fleet import shape_columns
from railscope_collector.fleet.shapes import KnownShape, Positions, SchemaLayout

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

decode_rows = msgspec.msgpack.Decoder(NameRows).decode


@lru_cache(maxsize=32)
def read_rows(compressed: bytes) -> NameRows:
    """Return the rows of a list; the last ones are kept, as several streams of a node have one list."""
    return decode_rows(zstd.decompress(compressed))


_NO_GPUS: Mapping[int, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True, eq=False)
class SchemaGpu:
    """A GPU of a schema: UUID, rail (its position in the node), its columns, the driver's index."""

    uuid: str
    rail: int
    columns: Positions
    index: str = ""
    pci: str = ""
    """PCI address of the device."""
    sku: str = ""
    """Its model as a slug."""


@dataclass(slots=True, eq=False)
class NodeNames:
    """A list of names, compressed, and the schemas that it forms with shapes."""

    digest: bytes
    keys: bytes
    """Hash of the names without their facts: counters of devices with equal names continue."""
    lengths: bytes
    """Number of labels of each name."""
    size_bytes: int
    compressed: bytes
    schemas: tuple[KnownSchema, ...] = ()
    segment: int = 0
    """Last segment of the frame log with frames of it, and the same as of the stored row."""
    stored_segment: int = 0
    has_frames: bool = False
    """True if frames of the log may refer to it."""

    @classmethod
    def from_rows(cls, rows: NameRows, content: bytes, digest: bytes) -> NodeNames:
        """Return a list, which is encoded as `content`."""
        keys = msgspec.msgpack.encode([(row.kind, row.key) for row in rows])
        return cls(
            digest,
            blake2b(keys, digest_size=HASH_BYTES).digest(),
            bytes([len(row.key) for row in rows]),
            len(content),
            zstd.compress(content),
        )

    @property
    def rows(self) -> NameRows:
        """The names, decoded."""
        return read_rows(self.compressed)

    def with_shape(self, shape: KnownShape) -> KnownSchema:
        """Return the schema of a shape and these names. Raises WireError if they do not fit."""
        for schema in self.schemas:
            if schema.shape is shape:
                return schema
        shape.check_names(self.lengths)
        schema = _make_schema(shape, self) if shape.uses_names else KnownSchema(shape, self)
        self.schemas += (schema,)
        return schema


@dataclass(slots=True, eq=False)
class KnownSchema:
    """A shape with names: the parts of a schema that ingest needs."""

    shape: KnownShape
    names: NodeNames
    gpus: tuple[SchemaGpu, ...] = ()
    counters: tuple[shape_columns.CounterSubject, ...] = ()
    """The subject of each metered column of the shape."""
    mig_layouts: shape_columns.MigLayouts = ()
    gpus_by_rail: Mapping[int, str] = field(default_factory=lambda: _NO_GPUS)
    """UUIDs of GPUs; those without a rail, or with one already used, have a negative key."""
    shown: tuple[str, ...] = ()
    """Names of the devices that the inventory compares."""
    _device_names: Mapping[device_names.DeviceKey, device_names.Names] | None = None

    @property
    def digest(self) -> bytes:
        """Identity: the hashes of shape and names, as batches state them."""
        return self.shape.digest + self.names.digest

    @property
    def layout(self) -> SchemaLayout:
        """Layout of the shape."""
        return self.shape.layout

    @property
    def jobs(self) -> shape_columns.JobColumns | None:
        """Columns of jobs; None if there are none."""
        return self.shape.jobs

    @property
    def has_facts(self) -> bool:
        """True if metering uses more of its frames than their time."""
        return bool(self.gpus or self.mig_layouts or self.counters)

    @property
    def device_names(self) -> Mapping[device_names.DeviceKey, device_names.Names]:
        """Names of the devices of the list; determined when they are first read, which those of most nodes never are."""
        if self._device_names is None:
            rows = named_devices(self.shape.shape, self.names.rows)
            self._device_names = device_names.names_in(rows)
        return self._device_names

    def job_gpus(self) -> list[str]:
        """Return the UUID of each owner of columns of jobs; empty for the GPU on a rail."""
        owners, rows = self.jobs.owners if self.jobs else (), self.names.rows
        return [rows[name].key[0] if name >= 0 and rows[name].key else "" for name, _ in owners]

    def join(self) -> WireSchema:
        """Return the schema with all of its entities, for pages and reports."""
        return _join(self)


@lru_cache(maxsize=64)
def _join(schema: KnownSchema) -> WireSchema:
    """Return a schema with its entities; the last ones are kept, as pages read several columns of them."""
    return join(schema.shape.shape, schema.names.rows)


def _make_schema(shape: KnownShape, names: NodeNames) -> KnownSchema:
    rows = names.rows
    gpus = tuple(
        SchemaGpu(
            intern(rows[gpu.name].key[0]),
            gpu.rail,
            gpu.columns,
            rows[gpu.name].facts.get("index", ""),
            rows[gpu.name].facts.get("pci_address", ""),
            shape_columns.sku_of(rows[gpu.name].facts.get("model", "")),
        )
        for gpu in shape.gpus
    )
    return KnownSchema(
        shape,
        names,
        gpus,
        shape.metered.subjects(shape.shape, rows),
        shape_columns.mig_layouts(shape.shape, rows),
        _gpus_by_rail(gpus),
        shape.devices.names(rows),
    )


def _gpus_by_rail(gpus: tuple[SchemaGpu, ...]) -> Mapping[int, str]:
    """Return GPUs by rail; those without a rail, or with one already used, get a negative key."""
    if not gpus:
        return _NO_GPUS
    found: dict[int, str] = {}
    for position, gpu in enumerate(gpus):
        taken = gpu.rail < 0 or gpu.rail in found
        found[-1 - position if taken else gpu.rail] = gpu.uuid
    return found
