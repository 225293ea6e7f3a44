"""Cosignatures beside the log: the newest checkpoint that each agent has cosigned.

The file `witnesses` is one line of JSON and a signed statement with its SHA-256. It is written only
occasionally: agents send their cosignatures again if some are lost.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

import msgspec

from collector.audit.housekeeping import (
    HousekeepingError,
    Statement,
    check_epoch,
    read_bytes,
    read_statement,
)
from railscope.audit.cosignature import key_name, parse_witness_key, witnessed
from railscope.audit.note import PublicKey, SecretKey
from railscope.durable_files import write_durably

FILE = "witnesses"


class Vouched(msgspec.Struct, frozen=True):
    """A checkpoint with the cosignature of a witness, and the key of that witness."""

    note: str
    key: str

    def seconds(self) -> int:
        """Return the time of the cosignature in seconds. Raises NoteError."""
        return witnessed(self.note, parse_witness_key(self.key))

    def is_of(self, node: str) -> bool:
        """True if the key is in the node's own name. Raises NoteError if the key is invalid."""
        return parse_witness_key(self.key).name == key_name(node)


@dataclass(slots=True)
class Witnesses:
    """Cosignatures of the agents, by node. `open` it with the log."""

    directory: Path
    signer: SecretKey
    nodes: dict[str, Vouched] = field(default_factory=dict)
    changed: bool = False
    _epoch: int = 0

    def open(self, owned: int) -> str:
        """Read the file and sign it for the next epoch; return its defect, if any.

        `owned` is the epoch of the last owner; 0 if the log is new. Raises OSError.
        """
        problem = ""
        if owned:
            try:
                self.nodes, epoch = read_witnesses(self.directory, self.signer.public)
                check_epoch(self.directory / FILE, epoch, owned)
            except HousekeepingError as error:
                self.nodes, problem = {}, str(error)
        self.keep(owned + 1)
        return problem

    def keep(self, epoch: int) -> None:
        """Write the file as of an epoch, durable on return. Raises OSError."""
        self._epoch, self.changed = epoch, True
        self.save()

    def put(self, node: str, vouched: Vouched) -> None:
        """Store the cosignature of a node, after it was checked."""
        self.nodes[node] = vouched
        self.changed = True

    def save(self) -> None:
        """Write the file if something has changed, durable on return. Blocking; raises OSError."""
        if self.changed:
            self.changed = False
            body = msgspec.json.encode(self.nodes, order="sorted")
            statement = Statement(FILE, self._epoch, (sha256(body).hexdigest(),))
            write_durably(self.directory / FILE, body + b"\n" + statement.signed(self.signer))


def read_witnesses(directory: Path, key: PublicKey) -> tuple[dict[str, Vouched], int]:
    """Return the unchecked cosignatures beside a log, and the epoch in which they were written.

    Raises HousekeepingError, OSError.
    """
    path = directory / FILE
    body, _, statement = read_bytes(path).partition(b"\n")
    if not statement:
        statement = body
    found = read_statement(path, statement, FILE, key)
    if found.fields != (sha256(body).hexdigest(),):
        message = f"{path}: its first line is not the one that was signed"
        raise HousekeepingError(message)
    try:
        return msgspec.json.decode(body, type=dict[str, Vouched]), found.epoch
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        message = f"{path}: {error}"
        raise HousekeepingError(message) from error
