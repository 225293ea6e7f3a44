"""Check an audit log from its files, a public key and checkpoints that others kept.

Every record is read and hashed again; nothing that the log's own hashes say is taken for granted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path

from collector.audit.continuity import Continuity
from collector.audit.journal import JournalError, JournalFile, read_journal
from collector.audit.tiles import LEVELS, WIDTH, TileError, Tiles, complete_root, tile_name, widths
from railscope.audit.checkpoint import Checkpoint, read_checkpoint
from railscope.audit.merkle import HASH_BYTES, CompactRange, Hash, leaf_hash
from railscope.audit.note import NoteError, PublicKey, UnsignedError, read_note
from railscope.audit.record import Record, RecordError, decode


class Outcome(IntEnum):
    """What the check came to: the exit status of `railscope audit verify`."""

    CONSISTENT = 0
    ALTERED = 1
    """A record, a tile or a checkpoint is not what was signed."""
    TAIL_MISSING = 2
    """There are fewer records than were signed."""
    KEY_PROBLEM = 3
    """The key is not that of this log, or its policy forbids what was found."""
    FORKED = 4
    """Two signed checkpoints that no one log can have: it was rolled back, or there are two."""
    UNREADABLE = 5
    """What must be read cannot be: nothing was found out."""


_NO_JOURNAL = "the journal is missing, and what was not signed yet with it"


class VerifyError(Exception):
    """The log does not hold; says what is wrong, and where."""

    def __init__(self, outcome: Outcome, message: str) -> None:
        super().__init__(message)
        self.outcome = outcome


@dataclass(frozen=True, slots=True)
class Verified:
    """What was found in a log that holds."""

    checkpoint: Checkpoint
    unsigned: int = 0
    """Durable records that no checkpoint covers yet."""
    anchors: int = 0
    """Checkpoints kept elsewhere that this log agrees with."""
    findings: tuple[str, ...] = ()
    """What no signature covers but somebody must explain: gaps in what a source produced."""


def verify(folder: Path, key: PublicKey, anchors: Iterable[str] = ()) -> Verified:
    """Check a log, and that it continues every anchor. Raises VerifyError."""
    try:
        return _verified(folder, key, anchors)
    except OSError as error:
        message = f"{error.filename}: {error.strerror}"
        raise VerifyError(Outcome.UNREADABLE, message) from error


def _verified(folder: Path, key: PublicKey, anchors: Iterable[str]) -> Verified:
    # What is in the journal now is signed at most later: a log may be checked while it is written.
    files = _journal(folder)
    checkpoint = _own_checkpoint(folder, key)
    kept = sorted((_anchor(note, key) for note in anchors), key=lambda anchor: anchor.tree.size)
    if kept and kept[-1].tree.size > checkpoint.tree.size:
        _refuse_fork(checkpoint, kept[-1], "the log is shorter than a checkpoint that was signed")
    continuity = Continuity()
    root = _root_of_all(folder, checkpoint, kept, continuity)
    if root != checkpoint.tree.root:
        message = f"the {checkpoint.tree.size} records do not give the root that was signed"
        raise VerifyError(Outcome.ALTERED, message)
    unsigned = _check_journal(files, checkpoint.tree.size, continuity)
    findings = continuity.findings() if files else (*continuity.findings(), _NO_JOURNAL)
    return Verified(checkpoint, unsigned, len(kept), findings)


def _root_of_all(
    folder: Path, ours: Checkpoint, anchors: Iterable[Checkpoint], continuity: Continuity
) -> Hash:
    """The root over all signed records, once every tile and every anchor agrees with them."""
    tree = CompactRange()
    awaited = list(anchors)
    levels = _Levels(Tiles(folder, ours.tree.size))
    _compare_anchors(ours, awaited, tree)
    for leaves, records in _signed_tiles(levels.tiles):
        for record in records:
            continuity.add(record)
        root = levels.add(leaves)
        inside = awaited and awaited[0].tree.size < tree.size + WIDTH
        if root and not inside:
            tree.extend(root, WIDTH)
            _compare_anchors(ours, awaited, tree)
            continue
        for leaf in leaves:
            tree.append(leaf)
            _compare_anchors(ours, awaited, tree)
    levels.finish()
    return tree.root


def _own_checkpoint(folder: Path, key: PublicKey) -> Checkpoint:
    path = folder / "checkpoint"
    try:
        return read_checkpoint(read_note(path), key)
    except FileNotFoundError as error:
        message = f"{path} is missing: nothing says how long the log must be"
        raise VerifyError(Outcome.TAIL_MISSING, message) from error
    except UnsignedError as error:
        raise VerifyError(Outcome.KEY_PROBLEM, f"{path}: {error}") from error
    except NoteError as error:
        raise VerifyError(Outcome.ALTERED, f"{path}: {error}") from error


def _anchor(note: str, key: PublicKey) -> Checkpoint:
    try:
        return read_checkpoint(note, key)
    except NoteError as error:
        raise VerifyError(Outcome.KEY_PROBLEM, f"a checkpoint kept elsewhere: {error}") from error


def _refuse_fork(ours: Checkpoint, theirs: Checkpoint, why: str) -> None:
    message = f"{why}\n--- signed, here:\n{ours.text}--- signed, kept elsewhere:\n{theirs.text}"
    raise VerifyError(Outcome.FORKED, message)


def _compare_anchors(ours: Checkpoint, awaited: list[Checkpoint], tree: CompactRange) -> None:
    """Compare the anchors of this size, and wait for the next."""
    while awaited and awaited[0].tree.size == tree.size:
        anchor = awaited.pop(0)
        if tree.root != anchor.tree.root:
            why = f"its first {tree.size} records are not those that were signed"
            _refuse_fork(ours, anchor, why)


@dataclass(slots=True)
class _Levels:
    """The tiles of hashes, each compared with what the records give."""

    tiles: Tiles
    rows: list[list[Hash]] = field(default_factory=lambda: [[] for _ in range(LEVELS)])
    full: list[int] = field(default_factory=lambda: [0] * LEVELS)

    def add(self, leaves: list[Hash]) -> Hash | None:
        """Take the leaves of the next tile; the root of it, where it is full."""
        self._compare(0, leaves)
        if len(leaves) < WIDTH:
            return None
        self.full[0] += 1
        first = carried = complete_root(leaves)
        for level in range(1, LEVELS):
            row = self.rows[level]
            row.append(carried)
            if len(row) < WIDTH:
                break
            self._compare(level, row)
            self.full[level] += 1
            self.rows[level] = []
            carried = complete_root(row)
        return first

    def finish(self) -> None:
        """Compare the tiles that are not full."""
        for level in range(1, LEVELS):
            if self.rows[level]:
                self._compare(level, self.rows[level])

    def _compare(self, level: int, hashes: list[Hash]) -> None:
        name = tile_name(level, self.full[level], len(hashes))
        try:
            content = self.tiles.row(level, self.full[level])
        except TileError as error:
            raise VerifyError(_missing_or_altered(error.__cause__), str(error)) from error
        if content != b"".join(hashes):
            wanted = [content[at : at + HASH_BYTES] for at in range(0, len(content), HASH_BYTES)]
            at = next((i for i, one in enumerate(hashes) if wanted[i : i + 1] != [one]), WIDTH)
            record = (self.full[level] * WIDTH + at) << (LEVELS * level)
            message = f"{name}: hash {at} is not that of what is stored, from record {record} on"
            raise VerifyError(Outcome.ALTERED, message)


def _signed_tiles(tiles: Tiles) -> Iterator[tuple[list[Hash], list[Record]]]:
    full, partial = widths(tiles.size, 0)
    for index in range(full + (partial > 0)):
        raws = _bundle(tiles, index, WIDTH if index < full else partial)
        first = index * WIDTH
        yield (
            [leaf_hash(raw) for raw in raws],
            [_record(raw, sequence) for sequence, raw in enumerate(raws, first)],
        )


def _missing_or_altered(error: BaseException | None) -> Outcome:
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return Outcome.TAIL_MISSING
    return Outcome.UNREADABLE if isinstance(error, OSError) else Outcome.ALTERED


def _bundle(tiles: Tiles, index: int, expected: int) -> list[bytes]:
    try:
        raws = tiles.records(index)
    except TileError as error:
        raise VerifyError(_missing_or_altered(error.__cause__), str(error)) from error
    if len(raws) != expected:
        message = f"tile {index} of entries holds {len(raws)} records instead of {expected}"
        outcome = Outcome.TAIL_MISSING if len(raws) < expected else Outcome.ALTERED
        raise VerifyError(outcome, message)
    return raws


def _record(raw: bytes, sequence: int) -> Record:
    try:
        record = decode(raw)
    except RecordError as error:
        raise VerifyError(Outcome.ALTERED, f"record {sequence}: {error}") from error
    if record.seq != sequence:
        message = f"record {sequence} says that it is number {record.seq}"
        raise VerifyError(Outcome.ALTERED, message)
    return record


def _journal(folder: Path) -> list[JournalFile]:
    try:
        return read_journal(folder / "journal")
    except JournalError as error:
        raise VerifyError(Outcome.ALTERED, str(error)) from error


def _check_journal(files: list[JournalFile], signed: int, continuity: Continuity) -> int:
    """Check what is not signed yet; how many records that is."""
    if files and files[0].first > signed:
        message = f"{files[0].path}: records {signed} to {files[0].first - 1} are missing"
        raise VerifyError(Outcome.TAIL_MISSING, message)
    raws = [raw for file in files for raw in file.records]
    unsigned = raws[signed - files[0].first :] if files else []
    for sequence, raw in enumerate(unsigned, signed):
        continuity.add(_record(raw, sequence))
    return len(unsigned)
