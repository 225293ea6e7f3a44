"""Signing of durable records: tiles, and the checkpoint over them. Blocking; runs off the loop.

Before it signs, the publisher proves from the files on disk that the log it signed last is a prefix of this
one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from collector.audit.housekeeping import HousekeepingError
from collector.audit.journal import journal_paths
from collector.audit.ownership import Ownership
from collector.audit.tiles import TileError, Tiles
from railscope.audit.checkpoint import Checkpoint, read_checkpoint
from railscope.audit.merkle import EMPTY_ROOT, Tree, consistency_proof, consistent, root_of
from railscope.audit.note import NoteError, SecretKey, read_note
from railscope.durable_files import write_durably

EMPTY = Tree(0, EMPTY_ROOT)


class AuditError(RuntimeError):
    """The audit log cannot be written; the message states the reason and the remedy."""


class WaitingError(AuditError):
    """Signing is postponed; this is not a failure."""


@dataclass(slots=True)
class Publisher:
    """Signs a log that this process owns."""

    directory: Path
    signer: SecretKey
    ownership: Ownership
    before_signing: Callable[[Tree], None] | None = None
    """Called with the tree that is about to be signed; an exception prevents signing."""
    signed: Tree = EMPTY
    note: str = ""
    """Checkpoint over the signed tree; empty if nothing is signed."""
    _last_attempt: tuple[Tree, str] = field(default=(EMPTY, ""))
    """Counts as signed if its checkpoint is on disk: the attempt may have failed after the rename."""

    def open(self) -> None:
        """Load the tree that was signed last. Raises NoteError, TileError, JournalError, OSError."""
        self.signed, self.note = self._on_disk()

    def _on_disk(self) -> tuple[Tree, str]:
        path = self.directory / "checkpoint"
        if not path.exists():
            if (self.directory / "tile").exists() and self._journal_begins():
                message = f"{path} is missing, but there are signed records"
                raise NoteError(message)
            return EMPTY, ""
        note = read_note(path)
        tree = read_checkpoint(note, self.signer.public).tree
        if root_of(Tiles(self.directory, tree.size).node, tree.size) != tree.root:
            message = f"the tiles do not give the root that {path} signs"
            raise TileError(message)
        return tree, note

    def _journal_begins(self) -> bool:
        """True if the journal begins after the first record: the records before it had been signed."""
        paths = journal_paths(self.directory / "journal")
        return not paths or int(paths[0].stem.split("-")[1]) > 0

    def publish(self, records: list[bytes]) -> tuple[Tree, str]:
        """Write tiles and the checkpoint over `signed` and these records. Raises AuditError, OSError.

        The caller must put the result into `signed` and `note`.
        """
        try:
            old, _ = self._on_disk()
            if old not in {self.signed, self._last_attempt[0]} or not self.ownership.holds:
                message = f"{self.directory}: someone else has written this audit log"
                raise AuditError(message)
            tiles = Tiles(self.directory, old.size)
            tiles.grow(records[old.size - self.signed.size :])
            new = Tree(tiles.size, root_of(tiles.node, tiles.size))
            proof = consistency_proof(tiles.node, old.size, new.size)
        except (NoteError, TileError, HousekeepingError) as error:
            message = f"{self.directory}: {error}; run `railscope audit verify`"
            raise AuditError(message) from error
        if not consistent(old, new, proof):
            message = f"{self.directory}: what was signed at {old.size} records has changed"
            raise AuditError(message)
        if self.before_signing:
            self.before_signing(new)
        note = Checkpoint(self.signer.name, new).signed(self.signer)
        self._last_attempt = new, note
        write_durably(self.directory / "checkpoint", note.encode())
        return new, note
