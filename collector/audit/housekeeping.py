"""Signed statements of the writer about its own directory: `epoch`, `acknowledged`, `witnesses`.

Each is a signed note of the log's key in one canonical form:

    railscope audit <kind>
    <origin>
    <epoch>
    <fields, one per line>

The first line contains spaces, which no origin does, so none of them can be mistaken for a checkpoint. A
missing, unreadable or wrong statement is an error that names the file, never a default.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from railscope.audit.note import NoteError, PublicKey, SecretKey, sign, verified

KEY_FILE = "key.pub"
UPGRADE = "run `railscope audit upgrade` once"
_NUMBER = re.compile("0|[1-9][0-9]{0,17}")
_LEGACY = re.compile(rb"[0-9]{1,20}\n?|\{.*\}", re.DOTALL)
_HEAD_LINES = 3


class HousekeepingError(ValueError):
    """A housekeeping file that is missing, unreadable or wrong; the message names it."""


@dataclass(frozen=True, slots=True)
class Statement:
    """Content of a housekeeping file."""

    kind: str
    epoch: int
    fields: tuple[str, ...]

    def signed(self, signer: SecretKey) -> bytes:
        """Return the bytes of the file. Raises NoteError."""
        lines = (f"railscope audit {self.kind}", signer.name, str(self.epoch), *self.fields)
        return sign("".join(f"{line}\n" for line in lines), signer).encode()


def read_statement(path: Path, content: bytes, kind: str, key: PublicKey) -> Statement:
    """Read the statement of this kind from the content of a file. Raises HousekeepingError."""
    try:
        note = content.decode()
        lines = verified(note, key).removesuffix("\n").split("\n")
    except (UnicodeDecodeError, NoteError) as error:
        message = f"{path}: {_problem(content, error)}"
        raise HousekeepingError(message) from error
    expected = [f"railscope audit {kind}", key.name]
    if len(lines) < _HEAD_LINES or lines[:2] != expected or not _NUMBER.fullmatch(lines[2]):
        message = f"{path}: not the {kind} statement of {key.name}: {lines[:_HEAD_LINES]!r:.200}"
        raise HousekeepingError(message)
    if note.count("\n") != len(lines) + 2:
        message = f"{path}: more than one signature: expected that of {key.name} only"
        raise HousekeepingError(message)
    return Statement(kind, int(lines[2]), tuple(lines[_HEAD_LINES:]))


def read_bytes(path: Path) -> bytes:
    """Return the content of a housekeeping file. Raises HousekeepingError if it is missing, OSError."""
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        message = f"{path} is missing"
        raise HousekeepingError(message) from error


def check_epoch(path: Path, found: int, current: int) -> None:
    """Check that a statement was made by the owner of this epoch, or by one that is just starting.

    An owner writes its other statements before `epoch`. Raises HousekeepingError.
    """
    if found not in {current, current + 1}:
        message = f"{path}: signed in epoch {found}, expected {current}: it is an older copy"
        raise HousekeepingError(message)


def _problem(content: bytes, error: ValueError) -> str:
    if _LEGACY.fullmatch(content):
        return f"not signed: written by an earlier version, or replaced; {UPGRADE}"
    return str(error)
