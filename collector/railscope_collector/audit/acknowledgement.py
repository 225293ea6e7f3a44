"""File `acknowledged`: the number of durable records, their root, and the names of the journal files.

It is overwritten in place after each group, without fsync: a crash of the process loses nothing of it,
and a power failure can only make it state fewer records than exist. When the list of files changes,
the file is replaced as a whole and synced.
"""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass
from pathlib import Path

from railscope.audit import merkle, signed_note
from railscope_collector.audit.housekeeping_files import (
    HousekeepingError,
    SignedStatement,
    read_statement,
)

ACKNOWLEDGED_FILE = "acknowledged"
_KIND = "journal"
_COUNT = re.compile("[0-9]{20}")


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """Lower bound of the records that a writer has acknowledged."""

    epoch: int
    count: int
    root: merkle.Hash
    files: tuple[str, ...]
    """Names of the journal's files, oldest first."""

    def encode(self, signer: signed_note.SecretKey) -> bytes:
        """Return the bytes of the file; their length is the same for every count."""
        # A fixed length: overwriting in place must never leave bytes of a longer statement.
        fields = (f"{self.count:020d}", base64.b64encode(self.root).decode(), *self.files)
        return SignedStatement(_KIND, self.epoch, fields).encode(signer)


def read_acknowledgement(path: Path, content: bytes, key: signed_note.PublicKey) -> Acknowledgement:
    """Read an acknowledgement from the content of a file. Raises HousekeepingError."""
    statement = read_statement(path, content, _KIND, key)
    # Filled up: a signed statement with too few fields is an error with a name, not an exception of Python.
    count, encoded, *files = (*statement.fields, "", "")[: max(2, len(statement.fields))]
    try:
        root = base64.b64decode(encoded, validate=True)
    except ValueError:
        root = b""
    if not _COUNT.fullmatch(count) or len(root) != merkle.HASH_BYTES:
        message = (
            f"invalid acknowledgement {path}: {statement.fields!r:.200}: expected a count of 20"
            " digits and a root"
        )
        raise HousekeepingError(message)
    return Acknowledgement(statement.epoch, int(count), root, tuple(files))
