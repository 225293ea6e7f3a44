"""Publisher of the audit log's checkpoints.

Before it signs, it proves from the files on disk that the log it signed last is a prefix of this one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from railscope.audit import log_checkpoint, merkle, signed_note
from railscope.durable_files import write_durably
from railscope_collector.audit import LogWriteError, housekeeping_files, journal, log_ownership
from railscope_collector.audit.tiles import TileError, Tiles

EMPTY_TREE = merkle.TreeHead(0, merkle.EMPTY_ROOT)


@dataclass(slots=True)
class CheckpointPublisher:
    """Signs a log that this process owns."""

    directory: Path
    signer: signed_note.SecretKey
    ownership: log_ownership.LogOwnership
    before_signing: Callable[[merkle.TreeHead], None] | None = None
    """Called with the tree that is about to be signed; an exception prevents signing."""
    signed: merkle.TreeHead = EMPTY_TREE
    note: str = ""
    """Checkpoint over the signed tree; empty if nothing is signed."""
    _last_attempt: tuple[merkle.TreeHead, str] = field(default=(EMPTY_TREE, ""))
    """Tree and note of the last attempt.

    Treated as signed if its checkpoint is on disk, because the attempt may have failed after the rename.
    """

    def open(self) -> None:
        """Load the tree that was signed last. Raises NoteError, TileError, JournalError, OSError."""
        self.signed, self.note = self._read_published()

    def _read_published(self) -> tuple[merkle.TreeHead, str]:
        path = self.directory / "checkpoint"
        if not path.exists():
            # Tiles may exist without a checkpoint: a writer creates them first, and may be killed before it signs.
            if (self.directory / "tile").exists() and self._journal_begins():
                message = f"missing checkpoint {path}: the log has signed records"
                raise signed_note.NoteError(message)
            return EMPTY_TREE, ""
        note = signed_note.read_note(path)
        tree = log_checkpoint.read_own_checkpoint(note, self.signer.public).tree
        # A start verifies what it continues: a tile that was changed would otherwise be signed again.
        if merkle.root_of(Tiles(self.directory, tree.size).node, tree.size) != tree.root:
            message = f"the tiles do not match the root that {path} signs"
            raise TileError(message)
        return tree, note

    def _journal_begins(self) -> bool:
        """True if the journal begins after the first record: the records before it had been signed."""
        paths = journal.journal_paths(self.directory / "journal")
        return not paths or int(paths[0].stem.split("-")[1]) > 0

    def publish(self, records: list[bytes]) -> tuple[merkle.TreeHead, str]:
        """Write tiles and the checkpoint over `signed` and these records. Raises LogWriteError, OSError.

        The caller must put the result into `signed` and `note`.
        """
        try:
            old, _ = self._read_published()
            # Read again from the disk: another process, on another host too, may have written since.
            if old not in {self.signed, self._last_attempt[0]} or not self.ownership.is_held:
                message = (
                    f"cannot sign the audit log {self.directory}: another process has written it"
                )
                raise LogWriteError(message)
            tiles = Tiles(self.directory, old.size)
            # Records that the last attempt signed before it failed are not added twice.
            tiles.grow(records[old.size - self.signed.size :])
            new = merkle.TreeHead(tiles.size, merkle.root_of(tiles.node, tiles.size))
            proof = merkle.consistency_proof(tiles.node, old.size, new.size)
        except (signed_note.NoteError, TileError, housekeeping_files.HousekeepingError) as error:
            message = f"cannot sign the audit log {self.directory}: {error}; fix: run `railscope audit verify`"
            raise LogWriteError(message) from error
        # Verified from the hashes on disk, so that the key never signs two logs that contradict each other.
        if not merkle.consistent(old, new, proof):
            message = (
                f"altered audit log {self.directory}: its first {old.size} records, which are signed,"
                " have changed"
            )
            raise LogWriteError(message)
        if self.before_signing:
            self.before_signing(new)
        note = log_checkpoint.Checkpoint(self.signer.name, new).sign(self.signer)
        # Before the write: an error after the rename leaves a checkpoint on disk, which is then recognized as own.
        self._last_attempt = new, note
        write_durably(self.directory / "checkpoint", note.encode())
        return new, note
