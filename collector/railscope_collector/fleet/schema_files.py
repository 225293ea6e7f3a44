"""Files of stored schemas: those that were stored together share a file.

`<hash>.schema` contains one schema with this hash; `<hash>.schemas` contains several, and the
hash is that of their hashes. A node registers with a dozen schemas: one file costs a fifth of a dozen.
"""

from __future__ import annotations

from collections import ChainMap, OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from threading import Lock

import msgspec

from railscope import durable_files
from railscope.wire import HASH_BYTES, WireSchema

_SINGLE, _SEVERAL = ".schema", ".schemas"
MAX_DECODED, MAX_DECODED_ENTITIES = 64, 32_768
"""Decoded schemas that are kept, and their entities, about 10 MiB: some nodes, and schemas that all nodes share."""


def schema_digest(content: bytes) -> bytes:
    """Return the hash by which batches refer to an encoded schema."""
    return blake2b(content, digest_size=HASH_BYTES).digest()


def encode_schema(wire: WireSchema) -> bytes:
    """Return a schema as stored."""
    return msgspec.msgpack.encode(wire)


def decode_schema(content: bytes) -> WireSchema:
    """Return a schema from its stored form. Raises msgspec.MsgspecError."""
    return msgspec.msgpack.decode(content, type=WireSchema)


@dataclass(slots=True)
class SchemaFiles:
    """The directory of schemas. All methods block, and raise OSError; only one thread may write."""

    directory: Path
    _names: dict[bytes, str] = field(default_factory=dict)
    """The file of each schema, by hash."""
    _last_read: tuple[str, Mapping[bytes, bytes]] = ("", {})
    """The file that was read last, which usually has further schemas of the same node, and its schemas."""
    _decoded: OrderedDict[bytes, WireSchema] = field(default_factory=OrderedDict)
    _lock: Lock = field(default_factory=Lock)

    def open(self) -> Iterator[bytes | None]:
        """Open the directory to write to it; yield the content of every stored schema, None for a damaged file."""
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        # Of a collector that was killed, possibly between the rename of a file and its durability.
        durable_files.delete_partial_files(self.directory)
        durable_files.sync_directory(self.directory)
        yield from self.read_new()

    def scan(self) -> None:
        """Find the schemas that another process has stored since the last call."""
        for _ in self.read_new():
            pass

    def read_new(self) -> Iterator[bytes | None]:
        """Yield the content of every schema stored since the last call; None for a damaged file."""
        known = set(self._names.values())
        for path in sorted(self.directory.iterdir()):
            if path.suffix in {_SINGLE, _SEVERAL} and path.name not in known:
                contents = _read_contents(path)
                if not contents:
                    yield None
                self._names |= dict.fromkeys(contents, path.name)
                yield from contents.values()

    def name_of(self, digest: bytes) -> str:
        """Return the name of the file of a schema."""
        return self._names.get(digest, digest.hex() + _SINGLE)

    def read(self, digest: bytes) -> WireSchema:
        """Return a stored schema; the last ones are kept decoded."""
        with self._lock:
            if (decoded := self._decoded.get(digest)) is not None:
                self._decoded.move_to_end(digest)
                return decoded
        decoded = decode_schema(self.read_content(digest))
        with self._lock:
            self._decoded[digest] = decoded
            while len(self._decoded) > MAX_DECODED or self._decoded_entities > MAX_DECODED_ENTITIES:
                self._decoded.popitem(last=False)
        return decoded

    @property
    def _decoded_entities(self) -> int:
        return sum(len(each.entities) for each in self._decoded.values())

    def read_content(self, digest: bytes) -> bytes:
        """Return a stored schema as it was encoded."""
        while True:
            name = self.name_of(digest)
            last_name, contents = self._last_read
            if name != last_name:
                contents = _read_contents(self.directory / name)
            if (content := contents.get(digest)) is not None:
                self._last_read = name, contents
                return content
            if self.name_of(digest) == name:  # otherwise it was moved meanwhile
                message = f"reading schema {digest.hex()} failed: {name} does not contain it"
                raise OSError(message)

    def write(self, contents: Mapping[bytes, bytes]) -> None:
        """Store schemas by hash, durable on return, unless a file already has them."""
        self._write({d: content for d, content in contents.items() if d not in self._names})

    def _write(self, new: Mapping[bytes, bytes]) -> None:
        if not new:
            return
        if len(new) == 1:
            ((digest, file_content),) = new.items()
            name = digest.hex() + _SINGLE
        else:
            file_content = msgspec.msgpack.encode(list(new.values()))
            name = schema_digest(b"".join(new)).hex() + _SEVERAL
        # One file and one fsync for all schemas of a registration.
        durable_files.write_durably(self.directory / name, file_content)
        self._names |= dict.fromkeys(new, name)

    def delete(self, digests: Iterable[bytes]) -> None:
        """Delete schemas; others in the same files are stored again first."""
        unused = self._names.keys() & set(digests)
        names = {self._names[digest] for digest in unused}
        shared = {d for d, name in self._names.items() if name in names and d not in unused}
        contents: Mapping[bytes, bytes] = {}
        if shared:
            contents = ChainMap(*(_read_contents(self.directory / name) for name in names))
            # Before the old file is deleted: a crash between the two leaves a schema twice, and never without a file.
            self._write({digest: contents[digest] for digest in shared & contents.keys()})
        for digest in unused | (shared - contents.keys()):
            del self._names[digest]
        for name in names:
            (self.directory / name).unlink(missing_ok=True)


def _read_contents(path: Path) -> dict[bytes, bytes]:
    """Return the encoded schemas of a file by hash; empty if it is missing or damaged. Raises OSError."""
    try:
        file_content = path.read_bytes()
        contents = [file_content]
        if path.suffix == _SEVERAL:
            contents = msgspec.msgpack.decode(file_content, type=list[bytes])
    except (FileNotFoundError, msgspec.MsgspecError, ValueError, RecursionError):
        return {}
    return {schema_digest(content): content for content in contents}
