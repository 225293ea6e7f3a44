"""Durable storage of schemas, with their layouts.

A schema is stored before frames that refer to it are acknowledged, and released when neither the
current state nor the part of the frame log that a restart reads refers to it: an agent that needs
it again sends it again. The schemas of each node are bounded in number and size. Layouts are shared
by all schemas of one shape, so that a thousand nodes of one build use one layout.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from threading import Lock

import msgspec
import numpy as np

from collector.fleet.job_columns import JobColumns, job_columns
from collector.fleet.layout import Layout, Positions, make_layout
from collector.fleet.metered_columns import Metered, metered
from collector.fleet.shown_devices import Showing, showing
from railscope.device_names import DeviceKey, Names, names_in
from railscope.durable_files import PARTIAL, write_durably
from railscope.wire import WireSchema, layout_hash, rails_of_entities, schema_hash

GPU_STREAM = "gpu"
MAX_OF_A_NODE, MAX_BYTES_OF_A_NODE = 256, 16 << 20
_SUFFIX = ".schema"


@dataclass(frozen=True, slots=True, eq=False)
class Gpu:
    """A GPU of a schema: UUID, rail (its position in the node), its columns, the driver's index."""

    uuid: str
    rail: int
    columns: Positions
    index: str = ""
    pci: str = ""
    """PCI address."""


@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """The parts of a schema that ingest needs."""

    digest: bytes
    shape: bytes
    layout: Layout
    gpus: tuple[Gpu, ...]
    metered: Metered
    showing: Showing
    names: Mapping[DeviceKey, Names]
    jobs: JobColumns | None = None
    size_bytes: int = 0


class Schemas:
    """All stored schemas by hash. Methods that block are marked."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._known: dict[bytes, Known] = {}
        self._layouts: dict[bytes, Layout] = {}
        self._used: dict[bytes, int] = {}
        self._of_nodes: dict[str, set[bytes]] = {}
        self._lock = Lock()
        self.segment = 0
        """The segment of the frame log that is currently written or read."""
        self.read = lru_cache(maxsize=16)(self._read)

    def open(self) -> int:
        """Read all stored schemas; return the number of damaged ones. Blocking; raises OSError."""
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        for left_over in self._directory.glob("*" + PARTIAL):
            left_over.unlink()
        damaged = 0
        for path in self._directory.glob("*" + _SUFFIX):
            try:
                wire = msgspec.msgpack.decode(path.read_bytes(), type=WireSchema)
                self._learn(self._understand(wire))
            except (msgspec.MsgspecError, ValueError, IndexError, RecursionError):
                damaged += 1
        return damaged

    @property
    def digests(self) -> list[str]:
        """Hashes of all stored schemas, in hexadecimal."""
        return [digest.hex() for digest in list(self._known)]

    def get(self, digest: bytes) -> Known | None:
        """Return a schema by its hash; None if it is not stored."""
        return self._known.get(digest)

    def __len__(self) -> int:
        """Return the number of schemas."""
        return len(self._known)

    def put(self, wire: WireSchema) -> Known:
        """Store a schema, durable on return. Blocking; raises OSError."""
        known = self._understand(wire)
        with self._lock:
            if known.digest not in self._known:
                write_durably(self._path(known.digest), msgspec.msgpack.encode(wire))
                self._learn(known)
            self._used[known.digest] = self.segment
            return self._known.get(known.digest, known)

    def use(self, node: str, digest: bytes) -> None:
        """Record that frames of a node refer to a schema."""
        self._used[digest] = self.segment
        self._of_nodes.setdefault(node, set()).add(digest)

    def beyond(self, node: str, new_bytes: Sequence[int]) -> str:
        """Return the reason to reject new schemas of a node; empty if they are accepted."""
        mine = [self._known[digest] for digest in self._of_nodes.get(node, ()) & self._known.keys()]
        count = len(mine) + len(new_bytes)
        size_bytes = sum(known.size_bytes for known in mine) + sum(new_bytes)
        if count > MAX_OF_A_NODE:
            return f"{count} schemas of one node in use, more than {MAX_OF_A_NODE}"
        if size_bytes > MAX_BYTES_OF_A_NODE:
            return f"{size_bytes} bytes of schemas of one node, more than {MAX_BYTES_OF_A_NODE}"
        return ""

    def unused(self, first_segment: int, shown: AbstractSet[bytes]) -> list[bytes]:
        """Release schemas that are neither shown nor in recent segments; return their hashes.

        Their files remain. Schemas of segments from `first_segment` on are retained, and of one
        more for envelopes that are checked and not appended yet.
        """
        gone = [
            digest
            for digest in self._known.keys() - shown
            if self._used.get(digest, 0) < first_segment - 1
        ]
        for digest in gone:
            del self._known[digest]
            self._used.pop(digest, None)
        for node, digests in list(self._of_nodes.items()):
            digests.difference_update(gone)
            if not digests:
                del self._of_nodes[node]
        shapes = {known.shape for known in self._known.values()}
        self._layouts = {shape: one for shape, one in self._layouts.items() if shape in shapes}
        return gone

    def delete(self, digests: Iterable[bytes]) -> None:
        """Delete the files of released schemas. Blocking; raises OSError."""
        for digest in digests:
            with self._lock:
                if digest not in self._known:
                    self._path(digest).unlink(missing_ok=True)

    def _read(self, digest: bytes) -> WireSchema:
        return msgspec.msgpack.decode(self._path(digest).read_bytes(), type=WireSchema)

    def _path(self, digest: bytes) -> Path:
        return self._directory / (digest.hex() + _SUFFIX)

    def _understand(self, wire: WireSchema) -> Known:
        shape = layout_hash(wire)
        layout = self._layouts.get(shape) or make_layout(wire)
        return Known(
            schema_hash(wire), shape, layout, _gpus(wire), metered(wire), showing(wire),
            names_in(wire.entities), job_columns(wire), size_of(wire),
        )  # fmt: skip

    def _learn(self, known: Known) -> None:
        # Of two layouts created at the same time, one stays and is shared.
        layout = self._layouts.setdefault(known.shape, known.layout)
        self._known[known.digest] = replace(known, layout=layout)


def size_of(wire: WireSchema) -> int:
    """Return the bytes of a schema as stored."""
    return len(msgspec.msgpack.encode(wire))


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
            rail,
            np.array(columns.get(position, ()), np.intp),
            entity.facts.get("index", ""),
            entity.facts.get("pci_address", ""),
        )
        for position, (entity, rail) in enumerate(
            zip(wire.entities, rails_of_entities(wire), strict=True)
        )
        if entity.kind == GPU_STREAM
    )
