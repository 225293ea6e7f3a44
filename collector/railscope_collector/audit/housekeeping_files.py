"""Housekeeping files beside the signed records: statements of the writer about its own directory.

`epoch`, `acknowledged` and `witnesses` are each a signed note of the log's key in one canonical form:

    railscope audit <kind>
    <origin>
    <epoch>
    <fields, one per line>

The first line contains spaces, which no origin does, so none of them can be mistaken for a
checkpoint. A missing, unreadable or wrong statement is an error that names the file, never a
default.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from railscope.audit import signed_note
from railscope_collector.audit import AuditLogError

KEY_FILE = "key.pub"
_NUMBER = re.compile("0|[1-9][0-9]{0,17}")
_HEAD_LINES = 3


class HousekeepingError(AuditLogError, ValueError):
    """A housekeeping file that is missing, unreadable or wrong; the message names it."""


@dataclass(frozen=True, slots=True)
class SignedStatement:
    """Content of a housekeeping file."""

    kind: str
    epoch: int
    fields: tuple[str, ...]

    def encode(self, signer: signed_note.SecretKey) -> bytes:
        """Return the bytes of the file. Raises NoteError."""
        lines = (f"railscope audit {self.kind}", signer.name, str(self.epoch), *self.fields)
        return signed_note.sign("".join(f"{line}\n" for line in lines), signer).encode()


def read_statement(
    path: Path, content: bytes, kind: str, key: signed_note.PublicKey
) -> SignedStatement:
    """Read the statement of this kind from the content of a file. Raises HousekeepingError."""
    try:
        lines = signed_note.verify_own_note(content.decode(), key).removesuffix("\n").split("\n")
    except (UnicodeDecodeError, signed_note.NoteError) as error:
        message = (
            f"invalid {kind} statement {path}: {content[:40]!r}: {error}; fix: restore the directory"
            " from a backup, or begin a new log in another one"
        )
        raise HousekeepingError(message) from error
    expected = [f"railscope audit {kind}", key.name]
    if len(lines) < _HEAD_LINES or lines[:2] != expected or not _NUMBER.fullmatch(lines[2]):
        message = (
            f"invalid {kind} statement {path}: {lines[:_HEAD_LINES]!r:.200}:"
            f" expected that of {key.name}"
        )
        raise HousekeepingError(message)
    return SignedStatement(kind, int(lines[2]), tuple(lines[_HEAD_LINES:]))


def read_bytes(path: Path) -> bytes:
    """Return the content of a housekeeping file. Raises HousekeepingError if it is missing, OSError."""
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        message = f"missing housekeeping file {path}"
        raise HousekeepingError(message) from error


def check_epoch(path: Path, epoch: int, current: int) -> None:
    """Check that a statement was made by the owner of this epoch, or by one that is just starting.

    An owner writes its other statements before `epoch`. Raises HousekeepingError.
    """
    if epoch not in {current, current + 1}:
        message = f"older copy {path}: signed in epoch {epoch}: expected epoch {current}"
        raise HousekeepingError(message)
