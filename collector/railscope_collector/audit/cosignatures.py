"""File `witnesses`: the newest checkpoint that each agent has cosigned.

It is one line of JSON and a signed statement with its SHA-256. It is written only occasionally: agents
send their cosignatures again if some are lost.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

import msgspec

from railscope import convert_errors
from railscope.audit import cosignature, signed_note
from railscope.durable_files import write_durably
from railscope.untrusted_text import DECODING_ERRORS
from railscope_collector.audit.housekeeping_files import (
    HousekeepingError,
    SignedStatement,
    check_epoch,
    read_bytes,
    read_statement,
)

WITNESSES_FILE = "witnesses"


class CosignedCheckpoint(msgspec.Struct, frozen=True):
    """A checkpoint with the cosignature of a witness, and the key of that witness."""

    note: str
    key: str

    def seconds(self) -> int:
        """Return the time of the cosignature in seconds. Raises NoteError."""
        return cosignature.cosignature_seconds(self.note, cosignature.parse_witness_key(self.key))

    def is_named_for(self, node: str) -> bool:
        """True if the key is in the node's own name. Raises NoteError if the key is invalid."""
        return cosignature.parse_witness_key(self.key).name == cosignature.key_name(node)


@dataclass(slots=True)
class CosignatureStore:
    """Cosignatures of the agents, by node. `open` it with the log."""

    directory: Path
    signer: signed_note.SecretKey
    nodes: dict[str, CosignedCheckpoint] = field(default_factory=dict)
    has_changes: bool = False
    _epoch: int = 0

    def open(self, owned: int) -> str:
        """Read the file and sign it for the next epoch; return its defect, if any.

        `owned` is the epoch of the last owner; 0 if the log is new. Raises OSError.
        """
        problem = ""
        if owned:
            try:
                self.nodes, epoch = read_witnesses(self.directory, self.signer.public)
                check_epoch(self.directory / WITNESSES_FILE, epoch, owned)
            except HousekeepingError as error:
                self.nodes, problem = {}, str(error)
        self.write(owned + 1)
        return problem

    def write(self, epoch: int) -> None:
        """Write the file as of an epoch, durable on return. Raises OSError."""
        self._epoch, self.has_changes = epoch, True
        self.save()

    def put(self, node: str, cosigned: CosignedCheckpoint) -> None:
        """Store the cosignature of a node, after it was checked."""
        self.nodes[node] = cosigned
        self.has_changes = True

    def save(self) -> None:
        """Write the file if something has changed, durable on return. Blocking; raises OSError."""
        if self.has_changes:
            # Before the write: a cosignature that arrives meanwhile sets it again.
            self.has_changes = False
            body = msgspec.json.encode(self.nodes, order="sorted")
            statement = SignedStatement(WITNESSES_FILE, self._epoch, (sha256(body).hexdigest(),))
            content = body + b"\n" + statement.encode(self.signer)
            write_durably(self.directory / WITNESSES_FILE, content)


def read_witnesses(
    directory: Path, key: signed_note.PublicKey
) -> tuple[dict[str, CosignedCheckpoint], int]:
    """Return the unchecked cosignatures beside a log, and the epoch in which they were written.

    Raises HousekeepingError, OSError.
    """
    path = directory / WITNESSES_FILE
    body, _, statement = read_bytes(path).partition(b"\n")
    if not statement:
        statement = body
    signed_statement = read_statement(path, statement, WITNESSES_FILE, key)
    if signed_statement.fields != (sha256(body).hexdigest(),):
        message = f"altered {path}: its first line does not match the signature"
        raise HousekeepingError(message)
    with convert_errors(DECODING_ERRORS, HousekeepingError, f"cannot decode {path}: "):
        return msgspec.json.decode(body, type=dict[str, CosignedCheckpoint]), signed_statement.epoch
