"""Cosignatures beside the log: the newest checkpoint that each agent has cosigned.

The file `witnesses` is one line of JSON and a signed statement with its SHA-256. It is written now and
then: agents send again what is lost of it.
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
    """A checkpoint with a witness's cosignature, and the key that it is of."""

    note: str
    key: str

    def seconds(self) -> int:
        """When the witness saw it. Raises NoteError."""
        return witnessed(self.note, parse_witness_key(self.key))

    def is_of(self, node: str) -> bool:
        """Whether the key is in the node's own name. Raises NoteError where it is none."""
        return parse_witness_key(self.key).name == key_name(node)


@dataclass(slots=True)
class Witnesses:
    """The agents' cosignatures, by node. `open` it with the log."""

    directory: Path
    signer: SecretKey
    nodes: dict[str, Vouched] = field(default_factory=dict)
    changed: bool = False
    _epoch: int = 0

    def open(self, owned: int) -> str:
        """Read the file and sign it for the next epoch; what was wrong with it, if anything.

        `owned` is the epoch of the last owner; 0 where the log is to begin. Raises OSError.
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
        """Make it durable as of an epoch. Raises OSError."""
        self._epoch, self.changed = epoch, True
        self.save()

    def put(self, node: str, vouched: Vouched) -> None:
        """Keep what a node says, once it is checked."""
        self.nodes[node] = vouched
        self.changed = True

    def save(self) -> None:
        """Make it durable, if something is new. Blocking; raises OSError."""
        if self.changed:
            self.changed = False
            body = msgspec.json.encode(self.nodes, order="sorted")
            statement = Statement(FILE, self._epoch, (sha256(body).hexdigest(),))
            write_durably(self.directory / FILE, body + b"\n" + statement.signed(self.signer))


def read_witnesses(directory: Path, key: PublicKey) -> tuple[dict[str, Vouched], int]:
    """Cosignatures beside a log, themselves unchecked, and the epoch in which they were kept.

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
