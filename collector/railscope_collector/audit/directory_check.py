"""Checks of everything in an audit directory that is not a signed record.

Housekeeping files are checked by their signatures, and the directory may contain only what a log of
this size has: every other file is reported. The only exception are partial tiles that longer ones
superseded.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from railscope.audit import log_checkpoint, merkle, signed_note
from railscope.durable_files import LOCK_FILE, PARTIAL_NAME
from railscope_collector.audit import (
    acknowledgement,
    cosignatures,
    housekeeping_files,
    journal,
    log_ownership,
    signing_guard,
    tiles as tile_files,
)
from railscope_collector.audit.verify_outcome import (
    LogVerificationError,
    VerifyOutcome,
    raise_verify_error,
)

_TOP_FILES = frozenset(
    {
        log_ownership.EPOCH_FILE,
        acknowledgement.ACKNOWLEDGED_FILE,
        cosignatures.WITNESSES_FILE,
        housekeeping_files.KEY_FILE,
        LOCK_FILE,
        "checkpoint",
    }
)
_DIRECTORIES = ("journal", "tile")
_TILE = re.compile(r"tile/(entries|[0-7])((?:/x[0-9]{3})*/[0-9]{3})(?:[.]p/([1-9][0-9]{0,2}))?")


@dataclass(frozen=True, slots=True)
class HousekeepingState:
    """Housekeeping state of an audit directory at one point in time."""

    epoch: int
    acknowledged: acknowledgement.Acknowledgement
    witnesses: dict[str, cosignatures.CosignedCheckpoint]
    files: list[journal.JournalFile]
    checkpoint: log_checkpoint.Checkpoint


def absence_of_log(directory: Path) -> str:
    """Return the problem of a directory that has no file of an audit log; empty if it has one."""
    if any(os.path.lexists(directory / name) for name in (*_TOP_FILES, *_DIRECTORIES)):
        return ""
    return (
        f"no audit log in {directory}: expected a checkpoint, a journal or tiles;"
        " fix: name the directory audit below the collector's state directory"
    )


def check_file_kinds(directory: Path) -> None:
    """Check that the directory has regular files only. Raises LogVerificationError, OSError.

    Before any of them is read: a read of a named pipe may never end.
    """
    for path in _existing_files(directory):
        try:
            mode = path.lstat().st_mode
        except FileNotFoundError:
            continue  # a writer has removed it since
        if not stat.S_ISREG(mode):
            message = f"symbolic link or special file: {path}"
            raise LogVerificationError(VerifyOutcome.ALTERED, message)


def read_housekeeping(
    directory: Path, key: signed_note.PublicKey, checkpoint: Callable[[], log_checkpoint.Checkpoint]
) -> HousekeepingState:
    """Read and check everything that is not a tile. Raises LogVerificationError, OSError.

    The log may be written concurrently: the files are read again until nothing was replaced between the
    first file and the last.
    """
    with raise_verify_error(
        VerifyOutcome.ALTERED, housekeeping_files.HousekeepingError, journal.JournalError
    ):
        while True:
            before = _read_acknowledged(directory, key)
            witnesses, witnesses_epoch = cosignatures.read_witnesses(directory, key)
            files = journal.read_journal(directory / "journal")
            signed = checkpoint()
            path = directory / log_ownership.EPOCH_FILE
            content = housekeeping_files.read_bytes(path)
            epoch = housekeeping_files.read_statement(
                path, content, log_ownership.EPOCH_FILE, key
            ).epoch
            after = _read_acknowledged(directory, key)
            same = (before.files, before.epoch) == (after.files, after.epoch)
            # A writer replaces these files one after the other: only a state between two of its steps is checked.
            if same and (before.count >= signed.tree.size or before == after):
                break
        housekeeping_files.check_epoch(
            directory / acknowledgement.ACKNOWLEDGED_FILE, before.epoch, epoch
        )
        housekeeping_files.check_epoch(
            directory / cosignatures.WITNESSES_FILE, witnesses_epoch, epoch
        )
        journal.check_files(directory / "journal", files, before, signed.tree.size)
        # An empty file is all that a lock needs: nothing may be hidden in it.
        if housekeeping_files.read_bytes(directory / LOCK_FILE):
            message = f"invalid lock file {directory / LOCK_FILE}: expected an empty file"
            raise housekeeping_files.HousekeepingError(message)
    return HousekeepingState(epoch, before, witnesses, files, signed)


def _read_acknowledged(
    directory: Path, key: signed_note.PublicKey
) -> acknowledgement.Acknowledgement:
    path = directory / acknowledgement.ACKNOWLEDGED_FILE
    content = housekeeping_files.read_bytes(path)
    # A writer may be overwriting it: accept the content on which two reads agree.
    while (again := housekeeping_files.read_bytes(path)) != content:
        content = again
    return acknowledgement.read_acknowledgement(path, content, key)


def check_key_file(directory: Path, recorded: str, key: signed_note.PublicKey) -> None:
    """Check `key.pub` against the genesis record, or the given key. Raises LogVerificationError, OSError."""
    path = directory / housekeeping_files.KEY_FILE
    with raise_verify_error(VerifyOutcome.ALTERED, housekeeping_files.HousekeepingError):
        content = housekeeping_files.read_bytes(path)
    if content != f"{recorded or key}\n".encode():
        message = f"wrong key in {path}: expected {recorded or key}, the key of this log"
        raise LogVerificationError(VerifyOutcome.ALTERED, message)


def check_foreign(
    directory: Path, key: signed_note.PublicKey, signed: int, unsigned: Sequence[bytes]
) -> None:
    """Check that the directory contains no unexpected files. Raises LogVerificationError, OSError.

    Tiles beyond the signed size may exist, because a writer creates them first. They must match the records
    of the journal.
    """
    tiles = _ExpectedTiles(
        tile_files.Tiles(directory, signed), [merkle.leaf_hash(raw) for raw in unsigned], unsigned
    )
    for path in _existing_files(directory):
        name = path.relative_to(directory).as_posix()
        if PARTIAL_NAME.fullmatch(name):
            continue  # being written, or left behind by a writer that was killed
        try:
            problem = _find_file_problem(path, name, tiles)
        except FileNotFoundError:
            if os.path.lexists(path):
                raise
            continue  # a writer has removed it since: a tile with more records replaces it
        if problem and os.path.lexists(path):
            if _read_acknowledged(directory, key).count > signed + len(unsigned):
                return  # The log has grown since; the file is checked on the next run.
            raise LogVerificationError(VerifyOutcome.ALTERED, f"{problem}: {path}")


def _existing_files(directory: Path) -> Iterator[Path]:
    """Iterate over all files, and over directories that are symbolic links."""
    # `os.walk` does not follow symbolic links to directories: they are yielded below, as errors.
    for parent, directories, names in os.walk(directory, onerror=_raise):
        for name in sorted(names):
            yield Path(parent, name)
        for name in directories:
            if Path(parent, name).is_symlink():
                yield Path(parent, name)


def _raise(error: OSError) -> None:
    # A directory that cannot be read is an error: the default of `os.walk` leaves it out.
    if not isinstance(error, FileNotFoundError):
        raise error


def _find_file_problem(path: Path, name: str, tiles: _ExpectedTiles) -> str:
    if name in _TOP_FILES or name.startswith(f"{signing_guard.CONFLICT_DIRECTORY}/"):
        return ""
    if name.startswith("journal/"):
        return _find_journal_problem(path)
    tile = _TILE.fullmatch(name)
    if tile is None:
        return "unexpected file"
    index = int(tile[2].replace("/x", "").replace("/", ""))
    level = tile[1] if tile[1] == "entries" else int(tile[1])
    width = int(tile[3] or tile_files.WIDTH)
    # Nothing reads a tile by another spelling of its name, so nothing would compare its content.
    if width > tile_files.WIDTH or tile_files.tile_name(level, index, width) != name:
        return "unexpected file"
    return tiles.find_problem(path, level, index, width)


def _find_journal_problem(path: Path) -> str:
    try:
        journal_files = journal.journal_paths(path.parent)
    except journal.JournalError:
        return "unexpected file"
    return "" if path in journal_files else "unexpected file"


@dataclass(slots=True)
class _ExpectedTiles:
    """Tiles that a directory may contain."""

    signed: tile_files.Tiles
    unsigned_leaves: list[merkle.Hash]
    """Leaves after the signed ones."""
    records: Sequence[bytes]

    def find_problem(self, path: Path, level: int | str, index: int, width: int) -> str:
        """Return the reason why a tile is not allowed here; empty if it is."""
        depth = tile_files.depth_of(level)
        begin, end = index * tile_files.WIDTH, index * tile_files.WIDTH + width
        # Shifted to the number of records below it: tiles of all levels are compared with the same size.
        if end << (tile_files.LEVELS * depth) <= self.signed.size:
            # Full tiles, and the partial tiles that are needed, are checked elsewhere.
            return self._find_prefix_problem(path, level, index, width)
        if end << (tile_files.LEVELS * depth) > self.signed.size + len(self.unsigned_leaves):
            return "foreign tile, beyond the end of the log"
        hashes = [self._hash(depth, position) for position in range(begin, end)]
        expected = b"".join(hashes)
        if isinstance(level, str):
            first = self.signed.size
            signed = [] if begin >= first else self.signed.records(index)[: first - begin]
            expected = tile_files.encode_bundle(
                [*signed, *self.records[max(0, begin - first) : end - first]]
            )
        is_equal = path.read_bytes() == expected
        return "" if is_equal else "tile that does not match the records of the journal"

    def _find_prefix_problem(self, path: Path, level: int | str, index: int, width: int) -> str:
        """Check that a partial tile superseded by a full one is a prefix of it."""
        if (
            width == tile_files.WIDTH
            or index
            >= (self.signed.size >> (tile_files.LEVELS * tile_files.depth_of(level)))
            // tile_files.WIDTH
        ):
            return ""
        tiles = tile_files.Tiles(self.signed.directory, self.signed.size)
        expected = tiles.row(tile_files.depth_of(level), index)[: width * merkle.HASH_BYTES]
        try:
            found = path.read_bytes()
            if isinstance(level, str):  # the full tile may be archived, its hashes are not
                found = b"".join(map(merkle.leaf_hash, tile_files.decode_bundle(found)))
        except FileNotFoundError:
            return ""
        except tile_files.TruncatedTileError:
            found = b""
        return "" if found == expected else "altered: expected the beginning of its full tile"

    def _hash(self, level: int, index: int) -> merkle.Hash:
        """Return the hash of a complete subtree of tile level `level`, signed or not."""
        if (index + 1) << (tile_files.LEVELS * level) <= self.signed.size:
            return self.signed.node(tile_files.LEVELS * level, index)
        if level == 0:
            return self.unsigned_leaves[index - self.signed.size]
        return tile_files.complete_root(
            [
                self._hash(level - 1, position)
                for position in range(index * tile_files.WIDTH, (index + 1) * tile_files.WIDTH)
            ]
        )
