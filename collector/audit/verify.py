"""Verification of an audit log from its files, a public key and checkpoints kept elsewhere.

Every record is read and hashed again; no hash stored in the log is trusted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from collector.audit.directory_check import (
    Housekeeping,
    check_foreign,
    check_key_file,
    read_housekeeping,
)
from collector.audit.explaining import Explaining
from collector.audit.journal import JournalError, check_root
from collector.audit.levels import Levels
from collector.audit.outcome import Outcome, VerifyError, missing_or_altered
from collector.audit.ownership import EPOCH
from collector.audit.tiles import WIDTH, TileError, Tiles, widths
from collector.audit.vouching import Witness, disputed_notes, signed_notes, vouched_for
from collector.ledger.ledger_records import LedgerRecords
from railscope.audit.checkpoint import Checkpoint, read_checkpoint
from railscope.audit.merkle import CompactRange, Hash, leaf_hash
from railscope.audit.note import NoteError, PublicKey, UnsignedError, read_note
from railscope.audit.record import Record, RecordError, decode

__all__ = ["Outcome", "Verified", "VerifyError", "verify"]


@dataclass(frozen=True, slots=True)
class Verified:
    """Result of the verification of a valid log."""

    checkpoint: Checkpoint
    unsigned: int = 0
    """Number of durable records that no checkpoint covers yet."""
    anchors: int = 0
    """Number of checkpoints kept elsewhere that this log is consistent with."""
    findings: tuple[str, ...] = ()
    """Findings that no signature covers but a person must explain: gaps in the records of a source."""
    witnesses: tuple[Witness, ...] = ()
    """Witnesses with a cosignature of the log, the one with the largest checkpoint first."""
    ledger: LedgerRecords = field(default_factory=LedgerRecords)
    """Records of operations on the ledger's database."""


def verify(directory: Path, key: PublicKey, anchors: Iterable[str] = ()) -> Verified:
    """Verify a log, and that it is consistent with every anchor. Raises VerifyError."""
    try:
        return _verified(directory, key, anchors)
    except OSError as error:
        message = f"{error.filename}: {error.strerror}"
        raise VerifyError(Outcome.UNREADABLE, message) from error


def _verified(directory: Path, key: PublicKey, anchors: Iterable[str]) -> Verified:
    kept, damage = _housekeeping(directory, key)
    checkpoint = kept.checkpoint if kept else _own_checkpoint(directory, key)
    said_by_log = [*(signed_notes(kept.witnesses, key) if kept else ()), *disputed_notes(directory)]
    notes = [*anchors, *said_by_log]
    held = sorted((_anchor(note, key) for note in notes), key=lambda anchor: anchor.tree.size)
    if held and held[-1].tree.size > checkpoint.tree.size:
        _refuse_fork(checkpoint, held[-1], "the log is shorter than a checkpoint that was signed")
    explaining = Explaining()
    tree = _tree_of_all(directory, checkpoint, held, explaining)
    if tree.root != checkpoint.tree.root:
        message = f"the {checkpoint.tree.size} records do not give the root that was signed"
        raise VerifyError(Outcome.ALTERED, message)
    if kept is None:
        raise damage or VerifyError(Outcome.ALTERED, f"{directory}: no housekeeping files")
    unsigned = _check_journal(directory, kept, tree, explaining)
    _check_directory(directory, key, kept, unsigned, explaining)
    vouching, doubts = vouched_for(kept.witnesses, key, explaining.witnesses)
    findings = (*explaining.findings(), *doubts)
    asked = len(held) - len(said_by_log)
    return Verified(checkpoint, len(unsigned), asked, findings, vouching, explaining.ledger)


def _housekeeping(
    directory: Path, key: PublicKey
) -> tuple[Housekeeping | None, VerifyError | None]:
    """Return the state of the housekeeping files, or the error in it.

    Damage of these files is reported after defects of signed records, and after a fork.
    """
    _own_checkpoint(directory, key)
    try:
        return read_housekeeping(directory, key, lambda: _own_checkpoint(directory, key)), None
    except VerifyError as error:
        return None, error


def _tree_of_all(
    directory: Path, ours: Checkpoint, anchors: Iterable[Checkpoint], explaining: Explaining
) -> CompactRange:
    """Return the tree over all signed records, after comparing every tile and every anchor with them."""
    tree = CompactRange()
    awaited = list(anchors)
    levels = Levels(Tiles(directory, ours.tree.size))
    _compare_anchors(ours, awaited, tree)
    for leaves, records in _signed_tiles(levels.tiles):
        for record in records:
            explaining.add(record)
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
    return tree


def _own_checkpoint(directory: Path, key: PublicKey) -> Checkpoint:
    path = directory / "checkpoint"
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
    """Compare the anchors of this size, and remove them from the pending ones."""
    while awaited and awaited[0].tree.size == tree.size:
        anchor = awaited.pop(0)
        if tree.root != anchor.tree.root:
            why = f"its first {tree.size} records are not those that were signed"
            _refuse_fork(ours, anchor, why)


def _signed_tiles(tiles: Tiles) -> Iterator[tuple[list[Hash], list[Record]]]:
    full, partial = widths(tiles.size, 0)
    for index in range(full + (partial > 0)):
        raws = _bundle(tiles, index, WIDTH if index < full else partial)
        first = index * WIDTH
        yield (
            [leaf_hash(raw) for raw in raws],
            [_record(raw, sequence) for sequence, raw in enumerate(raws, first)],
        )


def _bundle(tiles: Tiles, index: int, expected: int) -> list[bytes]:
    try:
        raws = tiles.records(index)
    except TileError as error:
        raise VerifyError(missing_or_altered(error.__cause__), str(error)) from error
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


def _check_journal(
    directory: Path, kept: Housekeeping, tree: CompactRange, explaining: Explaining
) -> list[bytes]:
    """Check the records that are not signed yet and return them; they are appended to the tree."""
    files, signed, stated = kept.files, tree.size, kept.acknowledged
    if files and files[0].first > signed:
        message = f"{files[0].path}: records {signed} to {files[0].first - 1} are missing"
        raise VerifyError(Outcome.TAIL_MISSING, message)
    raws = [raw for file in files for raw in file.records]
    behind = signed - files[0].first if files else 0
    _compare_signed(directory, signed, raws[:behind])
    try:
        for sequence, raw in enumerate(raws[behind:], signed):
            check_root(directory / "journal", stated, tree)
            explaining.add(_record(raw, sequence))
            tree.append(leaf_hash(raw))
        check_root(directory / "journal", stated, tree)
    except JournalError as error:
        raise VerifyError(Outcome.ALTERED, str(error)) from error
    if (lost := stated.count - tree.size) > 0:
        # The count is never too high: neither a crash nor a power failure explains the difference.
        message = f"the journal: {lost} records were acknowledged and are not there"
        raise VerifyError(Outcome.ALTERED, message)
    return raws[behind:]


def _compare_signed(directory: Path, signed: int, raws: list[bytes]) -> None:
    """Check that signed records that are still in the journal equal the signed ones."""
    first = signed - len(raws)
    for sequence, (raw, there) in enumerate(
        zip(raws, Tiles(directory, signed).records_from(first), strict=False), first
    ):
        if raw != there:
            message = f"the journal: record {sequence} is not the one that was signed"
            raise VerifyError(Outcome.ALTERED, message)


def _check_directory(
    directory: Path,
    key: PublicKey,
    kept: Housekeeping,
    unsigned: list[bytes],
    explaining: Explaining,
) -> None:
    """Check the key file, the epoch, and that the directory contains no foreign files."""
    if kept.epoch < explaining.epoch:
        message = (
            f"{directory / EPOCH}: states epoch {kept.epoch}, expected at least {explaining.epoch}, "
            "which a record names: it is an older copy"
        )
        raise VerifyError(Outcome.ALTERED, message)
    check_key_file(directory, explaining.genesis_key, key)
    tiles = Tiles(directory, kept.checkpoint.tree.size)
    try:
        tiles.check_outgrown()
        check_foreign(directory, key, tiles.size, unsigned)
    except TileError as error:
        raise VerifyError(missing_or_altered(error.__cause__), str(error)) from error
