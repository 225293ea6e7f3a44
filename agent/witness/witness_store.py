"""Files of the witness: newest checkpoint of the collector's audit log, keys and evidence.

    held         the checkpoint, with the agent's own cosignature
    log.pub      the public key of the log, as first seen
    witness.key  the agent's key for cosignatures
    evidence/    pairs of checkpoints that contradict each other

Blocking: do not call it on the event loop. All changes are durable on return.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from railscope.audit.cosignature import key_name
from railscope.audit.note import NoteError, PublicKey, SecretKey

MAX_EVIDENCE = 100
"""Maximum number of stored pairs; more would prove nothing further."""
_PARTIAL = ".partial"


@dataclass(frozen=True, slots=True)
class CustodyStore:
    """Directory below the agent's state directory. Raises OSError, NoteError."""

    directory: Path

    def open(self) -> None:
        """Create the directory and delete partial files."""
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        for partial in self.directory.glob(f"*{_PARTIAL}"):
            partial.unlink()

    def held(self) -> str:
        """Return the stored checkpoint; empty if there is none."""
        return self._text("held")

    def hold(self, note: str) -> None:
        """Store another checkpoint."""
        self._write("held", note)

    def log_key(self) -> PublicKey | None:
        """Return the log's key, as first seen."""
        text = self._text("log.pub")
        return PublicKey.parse(text) if text else None

    def trust(self, key: PublicKey) -> None:
        """Store a key as the log's key."""
        self._write("log.pub", f"{key}\n")

    def witness(self, node: str) -> SecretKey:
        """Return the agent's own key; generate it if there is none."""
        text = self._text("witness.key")
        if text:
            return SecretKey.parse(text)
        key = SecretKey.generate(key_name(node))
        self._write("witness.key", key.secret_text() + "\n")
        return key

    def keep_evidence(self, kind: str, held: str, offered: str) -> Path | None:
        """Store two contradicting checkpoints; None if the limit of stored pairs is reached."""
        digest = hashlib.sha256(f"{held}\0{offered}".encode()).hexdigest()
        directory = self.directory / "evidence" / f"{kind}-{digest[:16]}"
        if (directory / "offered").exists():
            return directory
        if directory.parent.exists() and len(list(directory.parent.iterdir())) >= MAX_EVIDENCE:
            return None
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        name = directory.relative_to(self.directory)
        self._write(f"{name}/held", held)
        self._write(f"{name}/offered", offered)
        _sync(directory.parent)
        _sync(self.directory)
        return directory

    def _text(self, name: str) -> str:
        try:
            return (self.directory / name).read_bytes().decode()
        except FileNotFoundError:
            return ""
        except UnicodeDecodeError as error:
            message = f"{self.directory / name}: no text: {error}"
            raise NoteError(message) from error

    def _write(self, name: str, text: str) -> None:
        path = self.directory / name
        partial = path.with_name(f"{path.name}.{secrets.token_hex(4)}{_PARTIAL}")
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(text.encode())
                file.flush()
                os.fsync(file.fileno())
            partial.rename(path)
        except OSError:
            partial.unlink(missing_ok=True)
            raise
        _sync(path.parent)


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
