"""Files beside the signed records: epoch and lock, acknowledgement, cosignatures of witnesses.

`epoch`, `acknowledged` and `witnesses` are statements of the writer about its own directory, each a
signed note of the log's key in one canonical form:

    railscope audit <kind>
    <origin>
    <epoch>
    <fields, one per line>

The first line contains spaces, which no origin does, so none of them can be mistaken for a
checkpoint. A missing, unreadable or wrong statement is an error that names the file, never a
default.

`acknowledged` has the number of durable records, their root, and the names of the journal files. It
is overwritten in place after each group, without fsync: a crash of the process loses nothing of it,
and a power failure can only make it state fewer records than exist. When the list of files changes,
the file is replaced as a whole and synced.

`witnesses` has the newest checkpoint that each agent has cosigned: one line of JSON and a signed
statement with its SHA-256. It is written only occasionally: agents send their cosignatures again if
some are lost.
"""

from __future__ import annotations

import base64
import os
import re
import secrets
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

import msgspec

from railscope import convert_errors
from railscope.audit import cosignature, merkle, signed_note
from railscope.durable_files import lock_directory, make_directory, write_durably
from railscope.untrusted_text import DECODING_ERRORS
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
        note = content.decode()
        lines = signed_note.verify_note(note, key).removesuffix("\n").split("\n")
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
    if note.count("\n") != len(lines) + 2:
        message = f"invalid {kind} statement {path}: expected one signature, that of {key.name}"
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
        fields = (f"{self.count:020d}", base64.b64encode(self.root).decode(), *self.files)
        return SignedStatement(_KIND, self.epoch, fields).encode(signer)


def read_acknowledgement(path: Path, content: bytes, key: signed_note.PublicKey) -> Acknowledgement:
    """Read an acknowledgement from the content of a file. Raises HousekeepingError."""
    statement = read_statement(path, content, _KIND, key)
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


EPOCH_FILE = "epoch"


class LogLockedError(AuditLogError, RuntimeError):
    """Another process writes the log; the message names the directory."""


@dataclass(slots=True)
class LogOwnership:
    """The right to write a directory: `take` it, then `claim` the next epoch.

    The kernel releases the lock when the process ends. The file `epoch` counts owners: it shows a writer
    that it has been replaced where a lock has no effect, on another host.
    """

    directory: Path
    signer: signed_note.SecretKey
    epoch: int = 0
    """Epoch of the last owner until `claim`, then its own; 0 if the log is new."""
    _lock: int = -1
    _statement: bytes = field(default=b"", repr=False)

    @property
    def _path(self) -> Path:
        return self.directory / EPOCH_FILE

    def acquire(self) -> None:
        """Take the lock and read the epoch of the last owner.

        Raises LogLockedError, HousekeepingError, OSError.
        """
        make_directory(self.directory)
        try:
            self._lock = lock_directory(self.directory)
        except BlockingIOError as error:
            message = f"cannot lock the audit log {self.directory}: another collector writes it"
            raise LogLockedError(message) from error
        if self._path.exists() or any((self.directory / name).exists() for name in _SIGNED):
            content = read_bytes(self._path)
            self.epoch = read_statement(self._path, content, EPOCH_FILE, self.signer.public).epoch

    def write_epoch(self) -> None:
        """Begin the next epoch, after all other files were checked. Raises OSError."""
        # The random token distinguishes two collectors that start at the same time on two hosts.
        statement = SignedStatement(EPOCH_FILE, self.epoch + 1, (secrets.token_hex(16),))
        self._statement = statement.encode(self.signer)
        write_durably(self._path, self._statement)
        self.epoch += 1

    @property
    def is_held(self) -> bool:
        """True if there has been no other owner since. Raises HousekeepingError, OSError."""
        content = read_bytes(self._path)
        if content == self._statement:
            return True
        read_statement(self._path, content, EPOCH_FILE, self.signer.public)
        return False

    def release(self) -> None:
        """Release the lock."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


_SIGNED = ("checkpoint", "tile")
"""Entries of the directory of a log that is not new."""


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
