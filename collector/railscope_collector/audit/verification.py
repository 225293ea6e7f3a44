"""Verification of an audit log from its files, a public key and checkpoints kept elsewhere.

Every record is read and hashed again; no hash stored in the log is trusted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from railscope.audit import log_checkpoint, merkle, signed_note
from railscope.audit.record import AuditRecord, RecordError, decode_audit_record
from railscope_collector import archive_stores
from railscope_collector.audit import (
    directory_check,
    hash_tile_check,
    journal,
    log_ownership,
    record_checks,
    verify_outcome,
)
from railscope_collector.audit.cosigners import (
    Cosigner,
    find_cosigners,
    read_conflicting_notes,
    signed_notes,
)
from railscope_collector.audit.tiles import WIDTH, MissingEntriesError, Tiles, widths
from railscope_collector.ledger import ledger_records


@dataclass(frozen=True, slots=True)
class VerifiedLog:
    """Result of the verification of a valid log."""

    checkpoint: log_checkpoint.Checkpoint
    unsigned: int = 0
    """Number of durable records that no checkpoint covers yet."""
    unchecked: int = 0
    """Number of archived records that were not read."""
    anchors: int = 0
    """Number of checkpoints kept elsewhere that this log is consistent with."""
    findings: tuple[str, ...] = ()
    """Findings that no signature covers but a person must explain: gaps in the records of a source."""
    witnesses: tuple[Cosigner, ...] = ()
    """Witnesses with a cosignature of the log, the one with the largest checkpoint first."""
    ledger: ledger_records.LedgerRecords = field(default_factory=ledger_records.LedgerRecords)
    """Records of operations on the ledger's database."""


def verify_log(
    directory: Path,
    key: signed_note.PublicKey,
    anchors: Iterable[str] = (),
    archive: archive_stores.ArchiveReader | None = None,
) -> VerifiedLog:
    """Verify a log, and that it is consistent with every anchor. Raises LogVerificationError.

    Without the archive, archived records are counted and not checked, but all their hashes are.
    """
    try:
        return _verify(directory, key, anchors, archive)
    except OSError as error:
        message = f"cannot read {error.filename or directory}: {error.strerror}"
        raise verify_outcome.LogVerificationError(
            verify_outcome.VerifyOutcome.UNREADABLE, message
        ) from error


def _verify(
    directory: Path,
    key: signed_note.PublicKey,
    anchors: Iterable[str],
    archive: archive_stores.ArchiveReader | None,
) -> VerifiedLog:
    if problem := directory_check.absence_of_log(directory):
        raise verify_outcome.LogVerificationError(
            verify_outcome.VerifyOutcome.TAIL_MISSING, problem
        )
    directory_check.check_file_kinds(directory)
    housekeeping, damage = _read_housekeeping(directory, key)
    checkpoint = housekeeping.checkpoint if housekeeping else _read_own_checkpoint(directory, key)
    cosigned = signed_notes(housekeeping.witnesses, key) if housekeeping else ()
    stated_by_log = [*cosigned, *read_conflicting_notes(directory)]
    notes = [*anchors, *stated_by_log]
    sorted_anchors = sorted(
        (_read_anchor(note, key) for note in notes), key=lambda anchor: anchor.tree.size
    )
    tiles = Tiles(directory, checkpoint.tree.size, archive)
    verification = _Verification(directory, key, checkpoint, tiles)
    verification.check_records(sorted_anchors)
    if housekeeping is None:
        message = f"missing housekeeping files in {directory}"
        raise damage or verify_outcome.LogVerificationError(
            verify_outcome.VerifyOutcome.ALTERED, message
        )
    unsigned = verification.check_journal(housekeeping)
    verification.check_directory(housekeeping, unsigned)
    checks = verification.checks
    witnesses, unread = housekeeping.witnesses, verification.unchecked
    if unread:  # the records with the keys of other witnesses may be among those that were not read
        witnesses = {node: each for node, each in witnesses.items() if node in checks.witnesses}
    cosigners, doubts = find_cosigners(witnesses, key, checks.witnesses)
    if uncompared := len(housekeeping.witnesses) - len(witnesses):
        doubts += (f"witnesses whose keys are not in the records that were read: {uncompared}",)
    return VerifiedLog(
        checkpoint,
        len(unsigned),
        unread,
        len(sorted_anchors) - len(stated_by_log),
        (*checks.findings(), *doubts),
        cosigners,
        checks.ledger,
    )


def _read_housekeeping(
    directory: Path, key: signed_note.PublicKey
) -> tuple[directory_check.HousekeepingState | None, verify_outcome.LogVerificationError | None]:
    """Return the state of the housekeeping files, or the error in it.

    Damage of these files is reported after defects of signed records, and after a fork.
    """
    # First: a missing checkpoint, or one of another key, has an outcome of its own.
    _read_own_checkpoint(directory, key)
    try:
        return directory_check.read_housekeeping(
            directory, key, lambda: _read_own_checkpoint(directory, key)
        ), None
    except verify_outcome.LogVerificationError as error:
        return None, error


def _read_own_checkpoint(directory: Path, key: signed_note.PublicKey) -> log_checkpoint.Checkpoint:
    path = directory / "checkpoint"
    try:
        return log_checkpoint.read_own_checkpoint(signed_note.read_note(path), key)
    except FileNotFoundError as error:
        message = f"missing checkpoint {path}: the minimum length of the log is unknown"
        raise verify_outcome.LogVerificationError(
            verify_outcome.VerifyOutcome.TAIL_MISSING, message
        ) from error
    except signed_note.UnsignedError as error:
        raise verify_outcome.LogVerificationError(
            verify_outcome.VerifyOutcome.KEY_PROBLEM, f"invalid checkpoint {path}: {error}"
        ) from error
    except signed_note.NoteError as error:
        raise verify_outcome.LogVerificationError(
            verify_outcome.VerifyOutcome.ALTERED, f"invalid checkpoint {path}: {error}"
        ) from error


def _read_anchor(note: str, key: signed_note.PublicKey) -> log_checkpoint.Checkpoint:
    prefix = "invalid checkpoint kept elsewhere: "
    with verify_outcome.raise_verify_error(
        verify_outcome.VerifyOutcome.KEY_PROBLEM, signed_note.NoteError, prefix=prefix
    ):
        return log_checkpoint.read_checkpoint(note, key)


@dataclass(slots=True)
class _Verification:
    """One verification: the tree over the records read so far, and what they contain."""

    directory: Path
    key: signed_note.PublicKey
    checkpoint: log_checkpoint.Checkpoint
    tiles: Tiles
    unchecked: int = 0
    """Number of archived records that were not read."""
    tree: merkle.CompactRange = field(default_factory=merkle.CompactRange)
    checks: record_checks.RecordChecks = field(default_factory=record_checks.RecordChecks)

    def check_records(self, anchors: Iterable[log_checkpoint.Checkpoint]) -> None:
        """Compare the signed records with every tile, every anchor and the checkpoint."""
        pending, size = list(anchors), self.checkpoint.tree.size
        if pending and pending[-1].tree.size > size:
            self._report_fork(pending[-1], "the log is shorter than a signed checkpoint")
        levels = hash_tile_check.HashTileCheck(self.tiles)
        self._compare_anchors(pending)
        for leaves in self._signed_tiles():
            root = levels.add(leaves)
            # A whole tile is added at once, unless a checkpoint ends within it.
            inside = pending and pending[0].tree.size < self.tree.size + WIDTH
            if root and not inside:
                self.tree.extend(root, WIDTH)
                self._compare_anchors(pending)
                continue
            for leaf in leaves:
                self.tree.append(leaf)
                self._compare_anchors(pending)
        levels.finish()
        if self.tree.root != self.checkpoint.tree.root:
            message = f"the {size} records do not match the signed root"
            raise verify_outcome.LogVerificationError(verify_outcome.VerifyOutcome.ALTERED, message)

    def _signed_tiles(self) -> Iterator[list[merkle.Hash]]:
        """Check the records of each tile; yield their hashes, or those of level 0 if they are not read."""
        full, partial = widths(self.tiles.size, 0)
        unread: MissingEntriesError | None = None
        for index in range(full + (partial > 0)):
            with verify_outcome.raise_tile_verify_error():
                try:
                    raws = self.tiles.local_records(index)
                except MissingEntriesError as error:
                    unread, last_unread = error, index
                    if self.tiles.archive is None:
                        self.unchecked += WIDTH
                        self.checks.begin_after_unread_records()
                        yield self.tiles.hashes(index)
                        continue
                    raws = self.tiles.archived_records(index, self.tiles.archive)
            _check_count(raws, index, WIDTH if index < full else partial)
            yield [merkle.leaf_hash(raw) for raw in raws]
            for sequence, raw in enumerate(raws, index * WIDTH):
                self.checks.add(_decode_record(raw, sequence))
        # Entries that no record states as archived are lost.
        if unread and self.checks.archived <= last_unread * WIDTH:
            with verify_outcome.raise_tile_verify_error():
                raise unread from unread.__cause__

    def _compare_anchors(self, pending: list[log_checkpoint.Checkpoint]) -> None:
        """Compare the anchors of this size, and remove them from the pending ones."""
        while pending and pending[0].tree.size == self.tree.size:
            anchor = pending.pop(0)
            if self.tree.root != anchor.tree.root:
                reason = f"its first {self.tree.size} records do not match the signed ones"
                self._report_fork(anchor, reason)

    def _report_fork(self, other: log_checkpoint.Checkpoint, reason: str) -> None:
        texts = (
            f"--- signed, here:\n{self.checkpoint.text}--- signed, kept elsewhere:\n{other.text}"
        )
        raise verify_outcome.LogVerificationError(
            verify_outcome.VerifyOutcome.FORKED, f"{reason}\n{texts}"
        )

    def check_journal(self, housekeeping: directory_check.HousekeepingState) -> list[bytes]:
        """Check the records that are not signed yet and return them; they are appended to the tree."""
        files, signed, acknowledged = housekeeping.files, self.tree.size, housekeeping.acknowledged
        if files and files[0].first > signed:
            message = f"missing records {signed} to {files[0].first - 1} before {files[0].path}"
            raise verify_outcome.LogVerificationError(
                verify_outcome.VerifyOutcome.TAIL_MISSING, message
            )
        raws = [raw for file in files for raw in file.records]
        behind = signed - files[0].first if files else 0
        _compare_signed(self.directory, signed, raws[:behind])
        with verify_outcome.raise_verify_error(
            verify_outcome.VerifyOutcome.ALTERED, journal.JournalError
        ):
            for sequence, raw in enumerate(raws[behind:], signed):
                journal.check_root(self.directory / "journal", acknowledged, self.tree)
                self.checks.add(_decode_record(raw, sequence))
                self.tree.append(merkle.leaf_hash(raw))
            journal.check_root(self.directory / "journal", acknowledged, self.tree)
        if (lost := acknowledged.count - self.tree.size) > 0:
            # The count is never too high: neither a crash nor a power failure explains the difference.
            message = f"missing in the journal: {lost} acknowledged records"
            raise verify_outcome.LogVerificationError(verify_outcome.VerifyOutcome.ALTERED, message)
        return raws[behind:]

    def check_directory(
        self, housekeeping: directory_check.HousekeepingState, unsigned: list[bytes]
    ) -> None:
        """Check the key file, the epoch, and that the directory contains no unexpected files."""
        if housekeeping.epoch < self.checks.epoch:
            message = (
                f"older copy {self.directory / log_ownership.EPOCH_FILE}: states epoch {housekeeping.epoch}: expected at least "
                f"{self.checks.epoch}, which a record names"
            )
            raise verify_outcome.LogVerificationError(verify_outcome.VerifyOutcome.ALTERED, message)
        directory_check.check_key_file(self.directory, self.checks.genesis_key, self.key)
        tiles = Tiles(self.directory, housekeeping.checkpoint.tree.size)
        with verify_outcome.raise_tile_verify_error():
            tiles.check_outgrown()
            directory_check.check_foreign(self.directory, self.key, tiles.size, unsigned)


def _check_count(raws: list[bytes], index: int, expected: int) -> None:
    if len(raws) == expected:
        return
    message = f"wrong length of tile {index} of entries: {len(raws)} records: expected {expected}"
    is_short = len(raws) < expected
    raise verify_outcome.LogVerificationError(
        verify_outcome.VerifyOutcome.TAIL_MISSING
        if is_short
        else verify_outcome.VerifyOutcome.ALTERED,
        message,
    )


def _decode_record(raw: bytes, sequence: int) -> AuditRecord:
    try:
        record = decode_audit_record(raw)
    except RecordError as error:
        raise verify_outcome.LogVerificationError(
            verify_outcome.VerifyOutcome.ALTERED, f"invalid record {sequence}: {error}"
        ) from error
    if record.seq != sequence:
        message = f"wrong number of record {sequence}: {record.seq}"
        raise verify_outcome.LogVerificationError(verify_outcome.VerifyOutcome.ALTERED, message)
    return record


def _compare_signed(directory: Path, signed: int, raws: list[bytes]) -> None:
    """Check that signed records that are still in the journal equal the signed ones."""
    tiles = Tiles(directory, signed)
    for sequence, raw in enumerate(raws, signed - len(raws)):
        if merkle.leaf_hash(raw) != tiles.node(0, sequence):
            message = f"record {sequence} of the journal does not match the signed one"
            raise verify_outcome.LogVerificationError(verify_outcome.VerifyOutcome.ALTERED, message)
