"""Checks of everything in an audit directory that is not a signed record.

Housekeeping files are checked by their signatures, and the directory may contain only what a log of this
size has: every other file is reported. The only exception are partial tiles that longer ones superseded.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from collector.audit.acknowledgement import ACKNOWLEDGED, Acknowledgement, read_acknowledgement
from collector.audit.guard import DIRECTORY as DISPUTED
from collector.audit.housekeeping import (
    KEY_FILE,
    HousekeepingError,
    check_epoch,
    read_bytes,
    read_statement,
)
from collector.audit.journal import (
    JournalError,
    JournalFile,
    check_files,
    journal_paths,
    read_journal,
)
from collector.audit.outcome import Outcome, VerifyError
from collector.audit.ownership import EPOCH, LOCK
from collector.audit.tiles import LEVELS, WIDTH, Tiles, complete_root, encode_bundle
from collector.audit.witnesses import FILE as WITNESSES
from collector.audit.witnesses import Vouched, read_witnesses
from railscope.audit.checkpoint import Checkpoint
from railscope.audit.merkle import HASH_BYTES, Hash, leaf_hash
from railscope.audit.note import PublicKey
from railscope.durable_files import PARTIAL

_STATEMENTS = (EPOCH, ACKNOWLEDGED, WITNESSES)
_TOP = frozenset({*_STATEMENTS, LOCK, KEY_FILE, "checkpoint"})
_TILE = re.compile(r"tile/(entries|[0-7])((?:/x[0-9]{3})*/[0-9]{3})(?:[.]p/([1-9][0-9]{0,2}))?")
_TEMPORARY = re.compile(r".*[.][0-9a-f]{8}" + re.escape(PARTIAL))


@dataclass(frozen=True, slots=True)
class Housekeeping:
    """Housekeeping state of an audit directory at one point in time."""

    epoch: int
    acknowledged: Acknowledgement
    witnesses: dict[str, Vouched]
    files: list[JournalFile]
    checkpoint: Checkpoint


def read_housekeeping(
    directory: Path, key: PublicKey, checkpoint: Callable[[], Checkpoint]
) -> Housekeeping:
    """Read and check everything that is not a tile. Raises VerifyError, OSError.

    The log may be written concurrently: the files are read again until nothing was replaced between the
    first file and the last.
    """
    try:
        while True:
            before = _acknowledged(directory, key)
            witnesses, kept = read_witnesses(directory, key)
            files = read_journal(directory / "journal")
            signed = checkpoint()
            path = directory / EPOCH
            epoch = read_statement(path, read_bytes(path), EPOCH, key).epoch
            after = _acknowledged(directory, key)
            same = (before.files, before.epoch) == (after.files, after.epoch)
            if same and (before.count >= signed.tree.size or before == after):
                break
        check_epoch(directory / ACKNOWLEDGED, before.epoch, epoch)
        check_epoch(directory / WITNESSES, kept, epoch)
        check_files(directory / "journal", files, before, signed.tree.size)
        _check_lock(directory / LOCK)
    except (HousekeepingError, JournalError) as error:
        raise VerifyError(Outcome.ALTERED, str(error)) from error
    return Housekeeping(epoch, before, witnesses, files, signed)


def _check_lock(path: Path) -> None:
    if read_bytes(path):
        message = f"{path}: expected an empty file"
        raise HousekeepingError(message)


def _acknowledged(directory: Path, key: PublicKey) -> Acknowledgement:
    path = directory / ACKNOWLEDGED
    content = read_bytes(path)
    # A writer may be overwriting it: accept the content on which two reads agree.
    while (again := read_bytes(path)) != content:
        content = again
    return read_acknowledgement(path, content, key)


def check_key_file(directory: Path, recorded: str, key: PublicKey) -> None:
    """Check `key.pub` against the genesis record, or the given key. Raises VerifyError, OSError."""
    path = directory / KEY_FILE
    try:
        content = read_bytes(path)
    except HousekeepingError as error:
        raise VerifyError(Outcome.ALTERED, str(error)) from error
    if content != f"{recorded or key}\n".encode():
        message = f"{path}: not the key of this log: expected {recorded or key}"
        raise VerifyError(Outcome.ALTERED, message)


def check_foreign(directory: Path, key: PublicKey, signed: int, unsigned: Sequence[bytes]) -> None:
    """Check that the directory contains no foreign files. Raises VerifyError, OSError.

    Tiles beyond the signed size may exist, because a writer creates them first. They must match the records
    of the journal.
    """
    tiles = _Expected(Tiles(directory, signed), [leaf_hash(raw) for raw in unsigned], unsigned)
    for path in _files(directory):
        name = path.relative_to(directory).as_posix()
        if _TEMPORARY.fullmatch(name):
            continue  # being written, or left behind by a writer that was killed
        problem = _problem(path, name, tiles)
        if problem and os.path.lexists(path):
            if _acknowledged(directory, key).count > signed + len(unsigned):
                return  # The log has grown since; the file is checked on the next run.
            raise VerifyError(Outcome.ALTERED, f"{path}: {problem}")


def _files(directory: Path) -> Iterator[Path]:
    """Iterate over all files, and over directories that are symbolic links."""
    for parent, directories, names in os.walk(directory, onerror=_raise):
        for name in sorted(names):
            yield Path(parent, name)
        for name in directories:
            if Path(parent, name).is_symlink():
                yield Path(parent, name)


def _raise(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


def _problem(path: Path, name: str, tiles: _Expected) -> str:
    if path.is_symlink() or not path.is_file():
        return "not a regular file" if path.exists() or path.is_symlink() else ""
    if name in _TOP or name.startswith(f"{DISPUTED}/"):
        return ""
    if name.startswith("journal/"):
        return _journal_problem(path)
    tile = _TILE.fullmatch(name)
    if tile is None:
        return "foreign file"
    groups = [int(group.removeprefix("x")) for group in tile[2].strip("/").split("/")]
    index = 0
    for group in groups:
        index = index * 1000 + group
    level = tile[1] if tile[1] == "entries" else int(tile[1])
    return tiles.problem(path, level, index, int(tile[3] or WIDTH))


def _journal_problem(path: Path) -> str:
    try:
        known = journal_paths(path.parent)
    except JournalError:
        return "foreign file"
    return "" if path in known else "foreign file"


@dataclass(slots=True)
class _Expected:
    """Tiles that a directory may contain."""

    signed: Tiles
    behind: list[Hash]
    """Leaves after the signed ones."""
    records: Sequence[bytes]

    def problem(self, path: Path, level: int | str, index: int, width: int) -> str:
        """Return the reason why a tile is not allowed here; empty if it is."""
        depth = 0 if isinstance(level, str) else level
        begin, end = index * WIDTH, index * WIDTH + width
        if end << (LEVELS * depth) <= self.signed.size:
            # Full tiles, and the partial tiles that are needed, are checked elsewhere.
            return self._left_behind(path, level, index, width)
        if end << (LEVELS * depth) > self.signed.size + len(self.behind):
            return "foreign file: the log has no such tile"
        hashes = [self._hash(depth, at) for at in range(begin, end)]
        expected = b"".join(hashes)
        if isinstance(level, str):
            first = self.signed.size
            signed = [] if begin >= first else self.signed.records(index)[: first - begin]
            expected = encode_bundle([*signed, *self.records[max(0, begin - first) : end - first]])
        return "" if path.read_bytes() == expected else "not what the journal's records give"

    def _left_behind(self, path: Path, level: int | str, index: int, width: int) -> str:
        """Check that a partial tile superseded by a full one is a prefix of it."""
        if width == WIDTH or index >= (self.signed.size >> (LEVELS * _depth(level))) // WIDTH:
            return ""
        whole = Tiles(self.signed.directory, self.signed.size)
        if isinstance(level, str):
            expected = encode_bundle(whole.records(index)[:width])
        else:
            expected = whole.row(level, index)[: width * HASH_BYTES]
        try:
            return "" if path.read_bytes() == expected else "not what its full tile begins with"
        except FileNotFoundError:
            return ""

    def _hash(self, level: int, index: int) -> Hash:
        """Return the hash of a complete subtree of tile level `level`, signed or not."""
        if (index + 1) << (LEVELS * level) <= self.signed.size:
            return self.signed.node(LEVELS * level, index)
        if level == 0:
            return self.behind[index - self.signed.size]
        return complete_root(
            [self._hash(level - 1, at) for at in range(index * WIDTH, (index + 1) * WIDTH)]
        )


def _depth(level: int | str) -> int:
    return 0 if isinstance(level, str) else level
