"""Files of release 0.3.0 in a state directory, read once into `state.sqlite`.

They stay for a week as `NAME.before`: until the first segment is deleted, that release can continue with them.
"""

from __future__ import annotations

import struct
import time
import zlib
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from shutil import rmtree
from sqlite3 import Connection

import msgspec
import structlog

from railscope import untrusted_text
from railscope.timestamps import DAY_NS
from railscope_collector.evidence import waiting_evidence
from railscope_collector.framelog import segment_files
from railscope_collector.state import state_reader, state_snapshots
from railscope_collector.state_store import StateStore

log = structlog.get_logger(__name__)

MANIFEST = "frames.manifest"
"""List of the segments; nothing replaces it."""
FILES = (
    "checkpoint",
    MANIFEST,
    "waiting",
    "quarantine",
    "observed",
    "acknowledgements",
)
BEFORE = ".before"
_READ = "files of release 0.3.0"
"""Document that exists once they were read."""
_MAGIC = b"railscope checkpoint 1\n"
_HEAD = struct.Struct("<II")
_KEPT_NS = 7 * DAY_NS


class _Header(msgspec.Struct, array_like=True, tag="Beginning"):
    first_segment: int


class _Trailer(msgspec.Struct, array_like=True, tag="Ending"):
    pass


class _FormerFileError(ValueError):
    """A file that cannot be read; the message states the problem."""


def read_former_files(
    store: StateStore, wall_ns: Callable[[], int] = time.time_ns
) -> dict[str, str]:
    """Read the files into the database unless that was done; return the problem of each that is damaged. Raises OSError."""
    directory, problems = store.directory, dict[str, str]()
    found = [directory / name for name in FILES if (directory / name).exists()]
    if found and not store.document(_READ):
        store.create(
            *state_snapshots.TABLES,
            state_reader.QUARANTINE,
            *waiting_evidence.TABLES,
        )
        with store.transaction() as connection:
            for path in found:
                try:
                    _read(path, store, connection)
                except (ValueError, LookupError, *untrusted_text.DECODING_ERRORS) as error:
                    problems[path.name] = str(error)
            store.put_document(connection, _READ, b"read")
        log.info("former_files_read", files=[path.name for path in found], problems=problems)
    for path in found:
        path.rename(path.with_name(path.name + BEFORE))
    for path in (directory / (name + BEFORE) for name in FILES):
        # By the time of the rename.
        if path.exists() and wall_ns() - path.stat().st_ctime_ns > _KEPT_NS:
            rmtree(path) if path.is_dir() else path.unlink()
    return problems


def _read(path: Path, store: StateStore, connection: Connection) -> None:
    if path.name == "checkpoint":
        _read_checkpoint(path.read_bytes(), connection)
    elif path.name == "waiting":
        for file in sorted(path.glob("*.evidence")):
            _read_waiting(file.read_bytes(), connection)
    elif path.name == "quarantine":
        for file in sorted(path.glob("*.record")):
            content = file.read_bytes()
            record = segment_files.decode_record(content)
            segment = int(file.name.split("-")[0])
            state_reader.insert_quarantined(
                connection, segment, record.node, "by release 0.3.0", content
            )
    elif path.name == "observed":
        store.put_document(connection, path.name, path.read_bytes())


def _read_checkpoint(content: bytes, connection: Connection) -> None:
    parts = list(_checkpoint_parts(content))
    header = msgspec.msgpack.decode(parts[0], type=_Header)
    msgspec.msgpack.decode(parts[-1], type=_Trailer)
    rows = [(1, zlib.crc32(part), part) for part in parts[1:-1]]
    connection.executemany(state_snapshots.INSERT_PART, rows)
    connection.execute(state_snapshots.INSERT_SNAPSHOT, (1, header.first_segment, 0))


def _checkpoint_parts(content: bytes) -> Iterator[bytes]:
    if not content.startswith(_MAGIC):
        message = "invalid header: expected a checkpoint of release 0.3.0"
        raise _FormerFileError(message)
    position = len(_MAGIC)
    while position < len(content):
        if len(content) - position < _HEAD.size:
            message = f"damaged part at byte {position}: it is cut off"
            raise _FormerFileError(message)
        length, checksum = _HEAD.unpack_from(content, position)
        payload = content[position + _HEAD.size : position + _HEAD.size + length]
        if len(payload) != length or zlib.crc32(payload) != checksum:
            message = f"damaged part at byte {position}: wrong checksum"
            raise _FormerFileError(message)
        yield payload
        position += _HEAD.size + length


def _read_waiting(content: bytes, connection: Connection) -> None:
    digest, _, body = content.partition(b"\n")
    if sha256(body).hexdigest().encode() != digest:
        message = "damaged file: its content does not match its hash"
        raise _FormerFileError(message)
    intervals = msgspec.msgpack.decode(body, type=list[tuple[str, bytes]])
    kind = waiting_evidence.QUARTER
    rows = [(node, 0, kind, zlib.crc32(each), each) for node, each in intervals]
    connection.executemany(waiting_evidence.INSERT, rows)
