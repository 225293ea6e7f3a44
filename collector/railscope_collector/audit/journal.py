"""The journal: records that are durable but not signed yet.

Files `journal-<first sequence>-<marker>.wal` contain groups in the format of frame log segments: marker,
length, CRC-32, then the records of one group encoded as a tile of entries. A group is written and synced as
a whole, so only the last group of the newest file can be torn; anything else that cannot be decoded was
damaged, and is an error.

The file `acknowledged` states how many records were durable, and the root over them: a torn group lies
beyond that number, and any other missing or different record was damaged later.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import structlog

from railscope import durable_files
from railscope.audit import merkle, signed_note
from railscope.audit.record import MAX_RECORD_BYTES
from railscope_collector.audit import (
    AuditLogError,
    acknowledgement,
    housekeeping_files,
    log_ownership,
    tiles,
)
from railscope_collector.framelog.segment_files import (
    HEAD,
    MARKER_BYTES,
    frame_payload,
    read_payload,
)

MAX_GROUP_RECORDS = 256
# Block size of common file systems: a power failure loses whole blocks.
_BLOCK_BYTES = 4096
_MAX_GROUP_BYTES = MAX_GROUP_RECORDS * (MAX_RECORD_BYTES + 2)
_NAME = re.compile("journal-([0-9]{20})-([0-9a-f]{32})[.]wal")

log = structlog.get_logger(__name__)


class JournalError(AuditLogError, ValueError):
    """A damaged journal; the message names file and offset."""


@dataclass(frozen=True, slots=True)
class JournalFile:
    """Content of one file of the journal."""

    path: Path
    first: int
    records: list[bytes]
    ends: int
    """Length in bytes up to the end of the last complete group."""
    torn: bytes = b""
    """Bytes after the last complete group."""

    @property
    def next_sequence(self) -> int:
        """Sequence number of the record that follows this file."""
        return self.first + len(self.records)


def read_journal(directory: Path) -> list[JournalFile]:
    """Return all files, oldest first, without a gap between them. Raises JournalError, OSError.

    The log may be written concurrently: a file that was deleted because its records were signed is skipped.
    """
    while True:
        try:
            return _read_files(directory)
        except FileNotFoundError as error:
            if os.path.lexists(error.filename):
                raise


def journal_paths(directory: Path) -> list[Path]:
    """Return the files of the journal, oldest first; none if there is no directory.

    Raises JournalError for an invalid file name, OSError if the directory cannot be read.
    """
    # Not glob: it would treat an unreadable directory as empty.
    entries = sorted(directory.iterdir()) if os.path.lexists(directory) else []
    paths = [path for path in entries if path.suffix == ".wal"]
    for path in paths:
        _parse_name(path)
    return paths


def _parse_name(path: Path) -> tuple[int, bytes]:
    """Return the sequence number of the first record and the marker, parsed from a file name."""
    name = _NAME.fullmatch(path.name)
    if name is None:
        message = (
            f"unexpected file in the journal: {path}: expected a name such as journal-N-MARKER.wal"
        )
        raise JournalError(message)
    return int(name[1]), bytes.fromhex(name[2])


def _read_files(directory: Path) -> list[JournalFile]:
    paths = journal_paths(directory)
    files: list[JournalFile] = []
    for path in paths:
        file = _read_file(path, newest=path == paths[-1])
        if files and file.first != files[-1].next_sequence:
            message = (
                f"wrong first record of {path}: {file.first}: expected {files[-1].next_sequence}"
            )
            raise JournalError(message)
        files.append(file)
    return files


def _read_file(path: Path, *, newest: bool) -> JournalFile:
    first, marker = _parse_name(path)
    content = path.read_bytes()
    records: list[bytes] = []
    position = 0
    while position < len(content):
        payload = read_payload(content, position) if content.startswith(marker, position) else None
        if payload is None:
            # A file that is not the newest was complete when the next one began: nothing of it can be torn.
            if newest and _is_torn(content, position, marker):
                break
            message = f"damaged group at byte {position} of {path}"
            raise JournalError(message)
        try:
            records += tiles.decode_bundle(payload)
        except tiles.TileError as error:
            message = f"damaged group at byte {position} of {path}: {error}"
            raise JournalError(message) from error
        position += HEAD.size + len(payload)
    return JournalFile(path, first, records, position, content[position:])


def _is_torn(content: bytes, position: int, marker: bytes) -> bool:
    """True if a file ends with one frame that a crash has truncated, with or without missing blocks."""
    tail = content[position:]
    # More than one group, or a further marker: no single write leaves that.
    if len(tail) > HEAD.size + _MAX_GROUP_BYTES or tail.find(marker, 1) >= 0:
        return False
    # A block that was not written before a power failure reads as zeros.
    zeros = len(tail) - len(tail.lstrip(b"\0"))
    if zeros == len(tail) or (zeros and (position + zeros) % _BLOCK_BYTES == 0):
        return True
    if len(tail) < HEAD.size:
        return tail[:MARKER_BYTES] == marker[: len(tail)]
    found_marker: bytes
    length: int
    found_marker, length, _ = HEAD.unpack_from(tail)
    return (
        found_marker == marker and len(tail) <= HEAD.size + length <= HEAD.size + _MAX_GROUP_BYTES
    )


def check_files(
    directory: Path,
    files: Sequence[JournalFile],
    acknowledged: acknowledgement.Acknowledgement,
    signed: int,
) -> None:
    """Check that the files are those of an acknowledgement. Raises JournalError.

    After a crash there may be an additional empty new file, and files with signed records only.
    """
    names = [file.path.name for file in files]
    for name in acknowledged.files:
        if name not in names:
            message = f"missing journal file {directory / name}"
            raise JournalError(message)
    for file in files:
        # A crash between creating a file and listing it leaves an empty one.
        just_begun = file is files[-1] and not file.records and not file.torn
        is_new = file.path.name not in acknowledged.files
        if is_new and file.next_sequence > signed and not just_begun:
            message = (
                f"unexpected file in the journal: {file.path}: expected a file that"
                f" `{acknowledgement.ACKNOWLEDGED_FILE}` lists"
            )
            raise JournalError(message)
    if files and files[-1].torn and files[-1].next_sequence < acknowledged.count:
        return  # records are missing, which is reported with their number
    if acknowledged.count < signed:
        message = (
            f"older copy {directory.parent / acknowledgement.ACKNOWLEDGED_FILE}: states {acknowledged.count} records:"
            f" expected at least the {signed} signed ones"
        )
        raise JournalError(message)


def check_root(
    directory: Path, acknowledged: acknowledgement.Acknowledgement, tree: merkle.CompactRange
) -> None:
    """Check the root of the records that an acknowledgement states. Raises JournalError."""
    if tree.size == acknowledged.count and tree.root != acknowledged.root:
        message = f"altered journal {directory}: its records do not match `{acknowledgement.ACKNOWLEDGED_FILE}`"
        raise JournalError(message)


@dataclass(slots=True)
class Journal:
    """Writes groups. Only one writer at a time: the process that has opened the log."""

    directory: Path
    signer: signed_note.SecretKey
    lost_records: int = 0
    """Number of records that were acknowledged before the journal was opened, and are missing."""
    _epoch: int = 0
    _descriptor: int = field(default=-1, repr=False)
    _acknowledged_descriptor: int = field(default=-1, repr=False)
    """Open file descriptor of `acknowledged`."""
    _statement: bytes = field(default=b"", repr=False)
    _is_statement_synced: bool = True
    """False while a power failure could bring back the statement before, with another list of files."""
    _tree: merkle.CompactRange = field(default_factory=merkle.CompactRange)
    _files: list[str] = field(default_factory=list)
    _offset: int = 0
    _marker: bytes = field(default=b"", repr=False)

    @property
    def _path(self) -> Path:
        return self.directory.parent / acknowledgement.ACKNOWLEDGED_FILE

    def open(self, signed: merkle.CompactRange, owned: int) -> list[bytes]:
        """Return the records after the signed ones; a torn group at the end is truncated.

        `owned` is the epoch of the last owner; 0 if the log is new. Raises JournalError, HousekeepingError,
        OSError.
        """
        durable_files.make_directory(self.directory)
        size = signed.size
        acknowledged = self._read_acknowledged(owned)
        files = read_journal(self.directory)
        if files and files[0].first > size:
            message = f"missing records {size} to {files[0].first - 1} before {files[0].path}"
            raise JournalError(message)
        if files and files[-1].next_sequence < size:
            message = (
                f"missing records at the end of {files[-1].path}: ends at record {files[-1].next_sequence}:"
                f" expected the {size} signed records"
            )
            raise JournalError(message)
        check_files(self.directory, files, acknowledged, size)
        journal_records = [record for file in files for record in file.records]
        unsigned = journal_records[size - files[0].first :] if files else []
        self._tree = signed
        for raw in unsigned:
            # At each size, as the acknowledged one is among them.
            check_root(self.directory, acknowledged, self._tree)
            self._tree.append(merkle.leaf_hash(raw))
        check_root(self.directory, acknowledged, self._tree)
        self.lost_records = max(0, acknowledged.count - self._tree.size)
        self._epoch = owned + 1
        self._files = [file.path.name for file in files]
        if files:
            newest = files[-1]
            self._descriptor = os.open(newest.path, os.O_WRONLY)
            self._marker = _parse_name(newest.path)[1]
            self._offset = newest.ends
            # The torn group was not acknowledged; a group after it would be unreadable.
            durable_files.truncate_durably(self._descriptor, newest.ends)
            self._replace_statement()
        else:
            self.rotate()
        return unsigned

    def _read_acknowledged(self, owned: int) -> acknowledgement.Acknowledgement:
        if not owned:
            if any(path.stat().st_size for path in journal_paths(self.directory)):
                message = (
                    f"missing housekeeping file {self.directory.parent / log_ownership.EPOCH_FILE}"
                )
                raise JournalError(message)
            return acknowledgement.Acknowledgement(0, 0, merkle.CompactRange().root, ())
        key = self.signer.public
        acknowledged = acknowledgement.read_acknowledgement(
            self._path, housekeeping_files.read_bytes(self._path), key
        )
        housekeeping_files.check_epoch(self._path, acknowledged.epoch, owned)
        return acknowledged

    def append(self, records: list[bytes]) -> None:
        """Write a group, durable on return, or leave the file as it was. Raises OSError."""
        # Records in a file that the statement does not list would be an error.
        self._sync_statement()
        data = frame_payload(self._marker, tiles.encode_bundle(records))
        durable_files.append_durably(self._descriptor, data, self._offset)
        self._offset += len(data)
        # Only after the write: the tree covers what is durable.
        for record in records:
            self._tree.append(merkle.leaf_hash(record))
        self._acknowledge()

    def _acknowledge(self) -> None:
        """Acknowledge the durable records by overwriting the file in place."""
        statement = self._current_statement()
        try:
            # Without fsync: the journal is durable, and this file may state less than it.
            os.pwrite(self._acknowledged_descriptor, statement, 0)
        except OSError as error:
            # The records are durable nevertheless: the file states fewer until the next group.
            log.warning("acknowledgement_write_failed", file=str(self._path), problem=str(error))
            return
        self._statement = statement

    def _current_statement(self) -> bytes:
        acknowledged = acknowledgement.Acknowledgement(
            self._epoch, self._tree.size, self._tree.root, tuple(self._files)
        )
        return acknowledged.encode(self.signer)

    def _replace_statement(self) -> None:
        """Replace the file that acknowledges the durable records and lists the files. Raises OSError."""
        self._rename_statement()
        self._sync_statement()

    def _rename_statement(self) -> None:
        """Replace that file, not yet durably, or leave it as it was. Raises OSError."""
        statement = self._current_statement()
        with durable_files.partial_file(self._path, statement) as partial:
            # Before the rename: afterwards nothing may fail.
            descriptor = os.open(partial, os.O_WRONLY)
            try:
                partial.rename(self._path)
            except OSError:
                os.close(descriptor)
                raise
        if self._acknowledged_descriptor >= 0:
            os.close(self._acknowledged_descriptor)
        self._acknowledged_descriptor, self._statement = descriptor, statement
        self._is_statement_synced = False

    def _sync_statement(self) -> None:
        """Make that file durable. Raises OSError; the next call tries again."""
        if not self._is_statement_synced:
            durable_files.sync_directory(self._path.parent)
            self._is_statement_synced = True

    def check_in_place(self) -> None:
        """Check that the files on disk are still those that this writer has open.

        Raises JournalError, HousekeepingError, OSError.
        """
        path = self.directory / self._files[-1]
        written = os.fstat(self._descriptor)
        status = path.stat() if path.exists() else None
        if status is None or status.st_ino != written.st_ino or written.st_size != self._offset:
            message = f"journal file replaced or changed during a write: {path}"
            raise JournalError(message)
        if housekeeping_files.read_bytes(self._path) != self._statement:
            message = f"housekeeping file replaced or changed during a write: {self._path}"
            raise JournalError(message)

    def rotate(self) -> None:
        """Continue in a new file. Raises OSError.

        An empty file is reused instead.
        """
        if self._descriptor >= 0:
            # Remains of a failed group must not stay in a file that is not the newest.
            durable_files.truncate_durably(self._descriptor, self._offset)
            if self._offset == 0:
                return
        marker = os.urandom(MARKER_BYTES)
        path = self.directory / f"journal-{self._tree.size:020d}-{marker.hex()}.wal"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        self._files.append(path.name)
        try:
            durable_files.sync_directory(self.directory)
            self._rename_statement()
        except OSError:
            # The current file continues to be written, and must remain the newest.
            self._files.remove(path.name)
            path.unlink()
            os.close(descriptor)
            raise
        self.close()
        self._descriptor, self._marker, self._offset = descriptor, marker, 0
        self._sync_statement()

    def delete_signed_files(self, signed: int) -> None:
        """Delete files with signed records only, except the one being written.

        Raises JournalError, OSError.
        """
        paths = journal_paths(self.directory)
        # A file ends where the next one begins: only its successor shows that all of its records are signed.
        signed_paths = [path for path, after in pairwise(paths) if _parse_name(after)[0] <= signed]
        if not signed_paths:
            return
        self._files = [path.name for path in paths if path not in signed_paths]
        # Before the files are deleted: a listed file that is missing is an error, an unlisted signed one is not.
        self._replace_statement()
        for path in signed_paths:
            path.unlink()

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def release(self) -> None:
        """Close all open files permanently."""
        self.close()
        if self._acknowledged_descriptor >= 0:
            os.close(self._acknowledged_descriptor)
            self._acknowledged_descriptor = -1
