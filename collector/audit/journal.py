"""The journal: records that are durable but not signed yet.

Files `journal-<first sequence>-<marker>.wal` hold groups as segments of the frame log hold records:
marker, length, CRC-32, then the records of one group as a tile of entries has them. A group is
written and synchronised as a whole, so only the last one of the newest file can be torn; whatever
else does not read back was damaged, and is an error.

Whether the last one was torn or was damaged later, the file `acknowledged` beside the folder tells:
it holds the number of records that were durable, and is written after each group but not
synchronised. So it never says too much, and only the power can make it say too little.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from collector.audit.tiles import TileError, decode_bundle, encode_bundle
from collector.segments import HEAD, MARKER_BYTES, framed, make_folder, payload_at, sync_folder

ACKNOWLEDGED = "acknowledged"
_DIGITS = 20
_NAME = re.compile("journal-([0-9]{20})-([0-9a-f]{32})[.]wal")


class JournalError(ValueError):
    """A journal that was damaged; the message names file and offset."""


@dataclass(frozen=True, slots=True)
class JournalFile:
    """What one file of the journal holds."""

    path: Path
    first: int
    records: list[bytes]
    ends: int
    """Bytes up to the end of the last whole group."""

    @property
    def next(self) -> int:
        """Sequence of the record that comes behind."""
        return self.first + len(self.records)


def read_journal(folder: Path) -> list[JournalFile]:
    """All files, oldest first, without a gap between them. Raises JournalError, OSError.

    The log may be written meanwhile: a file whose records have been signed since is looked for no
    more.
    """
    while True:
        try:
            return _read_files(folder)
        except FileNotFoundError as error:
            if os.path.lexists(error.filename):
                raise


def acknowledged(folder: Path) -> int:
    """How many records were acknowledged at least; 0 where that is not told. Raises OSError."""
    try:
        content = (folder.parent / ACKNOWLEDGED).read_bytes()
    except FileNotFoundError:
        return 0
    return int(content) if len(content) == _DIGITS and content.isdigit() else 0


def journal_paths(folder: Path) -> list[Path]:
    """Files of the journal, oldest first; none where there is no folder.

    Raises JournalError for a name that no such file has, OSError where nobody may look.
    """
    # Not glob: a folder that must not be read would pass for an empty one.
    entries = sorted(folder.iterdir()) if os.path.lexists(folder) else []
    paths = [path for path in entries if path.suffix == ".wal"]
    for path in paths:
        _parts(path)
    return paths


def _parts(path: Path) -> tuple[int, bytes]:
    """Sequence of the first record, and the marker, as the name of a file says them."""
    name = _NAME.fullmatch(path.name)
    if name is None:
        message = f"{path}: no file of the journal has such a name"
        raise JournalError(message)
    return int(name[1]), bytes.fromhex(name[2])


def _read_files(folder: Path) -> list[JournalFile]:
    paths = journal_paths(folder)
    found: list[JournalFile] = []
    for path in paths:
        file = _read_file(path, newest=path == paths[-1])
        if found and file.first != found[-1].next:
            message = f"{path}: begins at record {file.first}, where {found[-1].next} is next"
            raise JournalError(message)
        found.append(file)
    return found


def _read_file(path: Path, *, newest: bool) -> JournalFile:
    first, marker = _parts(path)
    content = path.read_bytes()
    records: list[bytes] = []
    position = 0
    while position < len(content):
        payload = payload_at(content, position) if content.startswith(marker, position) else None
        if payload is None:
            if newest and content.find(marker, position + 1) < 0:
                break
            message = f"{path}: the group at byte {position} is damaged"
            raise JournalError(message)
        try:
            records += decode_bundle(payload)
        except TileError as error:
            message = f"{path}: the group at byte {position}: {error}"
            raise JournalError(message) from error
        position += HEAD.size + len(payload)
    return JournalFile(path, first, records, position)


@dataclass(slots=True)
class Journal:
    """Writes groups. One writer at a time, which is whoever has opened the log."""

    folder: Path
    lost: int = 0
    """Records that were acknowledged before it was opened, and are not there."""
    _descriptor: int = field(default=-1, repr=False)
    _told: int = field(default=-1, repr=False)
    _next: int = 0
    _offset: int = 0
    _marker: bytes = field(default=b"", repr=False)

    def open(self, signed: int) -> list[bytes]:
        """Records behind the first `signed` ones; a torn group at the end is cut off.

        Raises JournalError, OSError.
        """
        make_folder(self.folder)
        durable = acknowledged(self.folder)
        files = read_journal(self.folder)
        if files and files[0].first > signed:
            message = f"{files[0].path}: records {signed} to {files[0].first - 1} are missing"
            raise JournalError(message)
        if files and files[-1].next < signed:
            message = f"{files[-1].path} ends at record {files[-1].next}, but {signed} are signed"
            raise JournalError(message)
        if files:
            newest = files[-1]
            self._descriptor = os.open(newest.path, os.O_WRONLY | os.O_CLOEXEC)
            self._marker = _parts(newest.path)[1]
            self._offset = newest.ends
            os.ftruncate(self._descriptor, newest.ends)
            os.fsync(self._descriptor)
        else:
            self.rotate(signed)
        kept = [record for file in files for record in file.records]
        self._next = files[-1].next if files else signed
        self.lost = max(0, durable - self._next)
        path = self.folder.parent / ACKNOWLEDGED
        self._told = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._tell()
        return kept[signed - files[0].first :] if files else []

    def append(self, records: list[bytes]) -> None:
        """Write a group, durable on return, or leave the file as it was. Raises OSError."""
        data = framed(self._marker, encode_bundle(records))
        try:
            written = 0
            while written < len(data):
                written += os.pwrite(self._descriptor, data[written:], self._offset + written)
            os.fdatasync(self._descriptor)
        except OSError:
            os.ftruncate(self._descriptor, self._offset)
            raise
        self._offset += len(data)
        self._next += len(records)
        self._tell()

    def _tell(self) -> None:
        os.pwrite(self._told, b"%0*d" % (_DIGITS, self._next), 0)

    def rotate(self, first: int) -> None:
        """Go on in a new file, whose first record will be number `first`. Raises OSError.

        A file that nothing was written to yet is as good as a new one.
        """
        if self._descriptor >= 0:
            # What a failed group may have left must not lie in a file that is not the newest.
            os.ftruncate(self._descriptor, self._offset)
            os.fsync(self._descriptor)
            if self._offset == 0:
                return
        marker = os.urandom(MARKER_BYTES)
        path = self.folder / f"journal-{first:020d}-{marker.hex()}.wal"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            sync_folder(self.folder)
        except OSError:
            # This one goes on being written, and must stay the newest.
            path.unlink()
            os.close(descriptor)
            raise
        self.close()
        self._descriptor, self._marker, self._offset = descriptor, marker, 0

    def forget(self, signed: int) -> None:
        """Delete files of which every record is signed, but not the one written now.

        Raises JournalError, OSError.
        """
        for path, following in pairwise(journal_paths(self.folder)):
            if _parts(following)[0] <= signed:
                path.unlink()

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def release(self) -> None:
        """Close what is open, for good."""
        self.close()
        if self._told >= 0:
            os.close(self._told)
            self._told = -1
