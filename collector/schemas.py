"""Schemas the collector knows, durable, with their layouts.

A schema is stored before frames that refer to it are acknowledged. Layouts are shared by all
schemas of one shape, so that a thousand servers of one build cost one layout.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import msgspec
import numpy as np

from collector.framelog import PARTIAL, write_durably
from collector.layout import Layout, Positions, make_layout
from railscope.wire import WireSchema, layout_hash, schema_hash

GPU_STREAM = "gpu"
_SUFFIX = ".schema"


@dataclass(frozen=True, slots=True, eq=False)
class Gpu:
    """A GPU of a schema: UUID, rail (its place in the server), and its columns."""

    uuid: str
    lane: int
    columns: Positions


@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """What ingest needs of a schema."""

    digest: bytes
    layout: Layout
    gpus: tuple[Gpu, ...]


class Schemas:
    """All known schemas by hash. Blocking where it says so."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[bytes, Known] = {}
        self._layouts: dict[bytes, Layout] = {}
        self.read = lru_cache(maxsize=1000)(self._read)

    def open(self) -> int:
        """Read all stored schemas and say how many could not be read. Blocking; raises OSError."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for left_over in self._folder.glob("*" + PARTIAL):
            left_over.unlink()
        damaged = 0
        for path in self._folder.glob("*" + _SUFFIX):
            try:
                wire = msgspec.msgpack.decode(path.read_bytes(), type=WireSchema)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                damaged += 1
                continue
            self._learn(schema_hash(wire), wire)
        return damaged

    def get(self, digest: bytes) -> Known | None:
        """A schema by its hash."""
        return self._known.get(digest)

    def put(self, wire: WireSchema) -> Known:
        """Keep a schema, durable on return. Blocking; raises OSError."""
        digest = schema_hash(wire)
        if digest not in self._known:
            write_durably(self._path(digest), msgspec.msgpack.encode(wire))
            self._learn(digest, wire)
        return self._known[digest]

    def _read(self, digest: bytes) -> WireSchema:
        return msgspec.msgpack.decode(self._path(digest).read_bytes(), type=WireSchema)

    def _path(self, digest: bytes) -> Path:
        return self._folder / (digest.hex() + _SUFFIX)

    def _learn(self, digest: bytes, wire: WireSchema) -> None:
        shape = layout_hash(wire)
        if shape not in self._layouts:
            self._layouts[shape] = make_layout(wire)
        self._known[digest] = Known(digest, self._layouts[shape], _gpus(wire))


def _gpus(wire: WireSchema) -> tuple[Gpu, ...]:
    if wire.stream != GPU_STREAM:
        return ()
    members = [member for group in wire.groups for member in group.entities]
    found = []
    for position, entity in enumerate(wire.entities):
        if entity.kind == GPU_STREAM:
            columns = np.flatnonzero(np.array(members) == position)
            rail = entity.facts.get("rail", "")
            found.append(Gpu(entity.key[0], int(rail) if rail.isdecimal() else -1, columns))
    return tuple(found)
