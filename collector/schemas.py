"""Schemas the collector knows, durable, with their layouts.

A schema is stored before frames that refer to it are acknowledged. Layouts are shared by all
schemas of one shape, so that a thousand servers of one build cost one layout.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import msgspec
import numpy as np

from collector.evidence.seen import Metered, metered
from collector.inventory.shown import Showing, showing
from collector.layout import Layout, Positions, make_layout
from collector.segments import PARTIAL, write_durably
from collector.workloads.columns import JobColumns, job_columns
from railscope.wire import WireSchema, lanes, layout_hash, schema_hash

GPU_STREAM = "gpu"
_SUFFIX = ".schema"


@dataclass(frozen=True, slots=True, eq=False)
class Gpu:
    """A GPU of a schema: UUID, rail (its place in the server), its columns, the driver's number."""

    uuid: str
    lane: int
    columns: Positions
    index: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """What ingest needs of a schema."""

    digest: bytes
    shape: bytes
    layout: Layout
    gpus: tuple[Gpu, ...]
    metered: Metered
    showing: Showing
    jobs: JobColumns | None = None


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
                self._learn(self._understand(wire))
            except (msgspec.MsgspecError, ValueError, IndexError, RecursionError):
                damaged += 1
        return damaged

    def get(self, digest: bytes) -> Known | None:
        """A schema by its hash."""
        return self._known.get(digest)

    def put(self, wire: WireSchema) -> Known:
        """Keep a schema, durable on return. Blocking; raises OSError."""
        known = self._understand(wire)
        if known.digest not in self._known:
            write_durably(self._path(known.digest), msgspec.msgpack.encode(wire))
            self._learn(known)
        return self._known[known.digest]

    def _read(self, digest: bytes) -> WireSchema:
        return msgspec.msgpack.decode(self._path(digest).read_bytes(), type=WireSchema)

    def _path(self, digest: bytes) -> Path:
        return self._folder / (digest.hex() + _SUFFIX)

    def _understand(self, wire: WireSchema) -> Known:
        shape = layout_hash(wire)
        layout = self._layouts.get(shape) or make_layout(wire)
        return Known(
            schema_hash(wire), shape, layout, _gpus(wire), metered(wire), showing(wire),
            job_columns(wire),
        )  # fmt: skip

    def _learn(self, known: Known) -> None:
        # Of two that were made at once, one layout stays and is shared.
        layout = self._layouts.setdefault(known.shape, known.layout)
        self._known[known.digest] = replace(known, layout=layout)


def _gpus(wire: WireSchema) -> tuple[Gpu, ...]:
    if wire.stream != GPU_STREAM:
        return ()
    columns: dict[int, list[int]] = {}
    members = (member for group in wire.groups for member in group.entities)
    for column, member in enumerate(members):
        columns.setdefault(member, []).append(column)
    return tuple(
        Gpu(
            entity.key[0],
            lane,
            np.array(columns.get(position, ()), np.intp),
            entity.facts.get("index", ""),
        )
        for position, (entity, lane) in enumerate(zip(wire.entities, lanes(wire), strict=True))
        if entity.kind == GPU_STREAM
    )
