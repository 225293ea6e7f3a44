"""Files of a witness: checkpoints of audit logs, keys, and evidence."""

from __future__ import annotations

import hashlib
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from railscope.audit import cosignature, log_checkpoint, signed_note
from railscope.durable_files import delete_partial_files, sync_directory, write_durably

MAX_EVIDENCE = 100
"""Maximum number of stored pairs; more would prove nothing further."""


_KEY_LOCK = threading.Lock()
"""Held while the key is read or generated: each witness of an agent has its own thread."""


@dataclass(frozen=True, slots=True)
class WitnessStore:
    """Directory below the agent's state directory. Raises OSError, NoteError.

        held         newest checkpoint of the collector's audit log, with the agent's own cosignature
        log.pub      public key of the log, as first seen
        witness.key  the agent's key for cosignatures
        evidence/    pairs of checkpoints that contradict each other
        log-HASH/    the same, except witness.key, of each of several collectors, by the SHA-256 of its URL

    It is blocking: do not call it on the event loop. Its changes are durable on return.
    """

    directory: Path
    parent: Path | None = None
    """The directory with the key, if it is another one."""

    @classmethod
    def for_collector(cls, directory: Path, url: str, *, is_only: bool) -> WitnessStore:
        """Return the store of a collector: the directory itself, if it is and was the only one."""
        name = hashlib.sha256(url.rstrip("/").encode()).hexdigest()[:16]
        log_directory = directory / f"log-{name}"
        # A single collector has the directory itself; one that was among several keeps its own.
        if is_only and not log_directory.exists():
            return cls(directory)
        return cls(log_directory, directory)

    def open(self) -> None:
        """Create the directory and delete partial files."""
        for directory in filter(None, (self.parent, self.directory)):
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        delete_partial_files(self.directory)

    def read_checkpoint(self) -> str:
        """Return the stored checkpoint; empty if there is none."""
        return self._text("held")

    def write_checkpoint(self, note: str) -> None:
        """Store another checkpoint."""
        self._write("held", note)

    def log_key(self) -> signed_note.PublicKey | None:
        """Return the log's key, as first seen."""
        text = self._text("log.pub")
        return signed_note.PublicKey.parse(text) if text else None

    def write_log_key(self, key: signed_note.PublicKey) -> None:
        """Store a key as the log's key."""
        self._write("log.pub", f"{key}\n")

    def witness(self, node: str) -> signed_note.SecretKey:
        """Return the agent's own key; generate it if there is none."""
        if self.parent:
            return WitnessStore(self.parent).witness(node)
        with _KEY_LOCK:
            text = self._text("witness.key")
            if text:
                return signed_note.SecretKey.parse(text)
            key = signed_note.SecretKey.generate(cosignature.key_name(node))
            self._write("witness.key", key.secret_text() + "\n")
            return key

    def adopt(self, key: signed_note.PublicKey) -> None:
        """Store the newest checkpoint of a log with this key that was received from another URL, if there is one."""
        newest, size = "", 0
        for directory in [self.parent, *self.parent.glob("log-*")] if self.parent else []:
            with suppress(signed_note.NoteError):
                other = WitnessStore(directory)
                note = other.read_checkpoint() if str(other.log_key()) == str(key) else ""
                if note and (found := log_checkpoint.read_checkpoint(note, key).tree.size) > size:
                    newest, size = note, found
        if newest:
            self.write_checkpoint(newest)

    def write_evidence(self, kind: str, stored: str, offered: str) -> Path | None:
        """Store two contradicting checkpoints; None if the limit of stored pairs is reached."""
        digest = hashlib.sha256(f"{stored}\0{offered}".encode()).hexdigest()
        directory = self.directory / "evidence" / f"{kind}-{digest[:16]}"
        # It is written last, so it marks a complete pair; an incomplete one is written again.
        if (directory / "offered").exists():
            return directory
        if directory.parent.exists() and len(list(directory.parent.iterdir())) >= MAX_EVIDENCE:
            return None
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        name = directory.relative_to(self.directory)
        self._write(f"{name}/held", stored)
        self._write(f"{name}/offered", offered)
        # The names of new directories are durable only when their parents are synchronized.
        sync_directory(directory.parent)
        sync_directory(self.directory)
        return directory

    def _text(self, name: str) -> str:
        try:
            return (self.directory / name).read_bytes().decode()
        except FileNotFoundError:
            return ""
        except UnicodeDecodeError as error:
            message = f"invalid file {self.directory / name}: {error}"
            raise signed_note.NoteError(message) from error

    def _write(self, name: str, text: str) -> None:
        write_durably(self.directory / name, text.encode(), 0o600)
