"""Signed notes: human-readable texts followed by Ed25519 signatures; checkpoints and cosignatures.

  text, each line ended by a line feed
  (an empty line)
  — key-name base64(key id || signature)

The key id is the first four bytes of SHA-256(name || LF || 0x01 || public key). A public key is
encoded as `name+keyid+base64(0x01 || public key)`, a secret key as
`PRIVATE+KEY+name+keyid+base64(0x01 || seed)`. Source: C2SP signed-note;
golang.org/x/mod/sumdb/note.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import struct
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from railscope import convert_errors
from railscope.audit import AuditFormatError
from railscope.audit.merkle import HASH_BYTES, TreeHead

ED25519 = b"\x01"
KEY_BYTES = 32
KEY_ID_BYTES = 4
MAX_NOTE_BYTES = 1_000_000
_DASH = "\N{EM DASH} "
_SECRET = "PRIVATE+KEY+"  # noqa: S105 - prefix of every secret key, not a secret
_NAME = re.compile(r"[^\s+]+")
_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f]")


class NoteError(AuditFormatError):
    """A note or key that is not well formed; the message states the defect."""


class UnsignedError(NoteError):
    """A well-formed note that the key has not signed."""


class ForgedError(NoteError):
    """A note with a signature under the key's name that does not verify over this text."""


@dataclass(frozen=True, slots=True)
class PublicKey:
    """Public key of a signer."""

    name: str
    key: Ed25519PublicKey = field(repr=False)
    kind: bytes = ED25519
    """The signature type of C2SP signed-note: determines the signed content."""

    @property
    def raw(self) -> bytes:
        """The key's 32 bytes."""
        return self.key.public_bytes_raw()

    @property
    def key_id(self) -> bytes:
        """Four bytes that distinguish keys with the same name."""
        digest = hashlib.sha256(self.name.encode() + b"\n" + self.kind + self.raw)
        return digest.digest()[:KEY_ID_BYTES]

    def __str__(self) -> str:
        return f"{self.name}+{self.key_id.hex()}+{_base64(self.kind + self.raw)}"

    @classmethod
    def parse(cls, text: str, kind: bytes = ED25519) -> PublicKey:
        """Parse a key of this type. Raises NoteError."""
        name, key_id, raw = _key_parts(text.strip(), "public key", kind)
        key = cls(name, Ed25519PublicKey.from_public_bytes(raw), kind)
        if key.key_id != key_id:
            message = (
                f"invalid ID of the key {name}: {key_id.hex()}: expected the ID computed from it"
            )
            raise NoteError(message)
        return key


@dataclass(frozen=True, slots=True)
class SecretKey:
    """Secret key of a signer."""

    name: str
    key: Ed25519PrivateKey = field(repr=False)

    @classmethod
    def generate(cls, name: str) -> SecretKey:
        """Generate a key. Raises NoteError for an invalid key name."""
        if not _NAME.fullmatch(name):
            message = f"invalid name of a key {name!r}: expected no spaces and no plus signs"
            raise NoteError(message)
        return cls(name, Ed25519PrivateKey.generate())

    @classmethod
    def parse(cls, text: str) -> SecretKey:
        """Parse a secret key. Raises NoteError, with a message that contains nothing of the key."""
        stripped = text.strip()
        if not stripped.startswith(_SECRET):
            message = f"invalid secret key: expected {_SECRET} at its start"
            raise NoteError(message)
        name, key_id, seed = _key_parts(stripped.removeprefix(_SECRET), "secret key")
        key = cls(name, Ed25519PrivateKey.from_private_bytes(seed))
        if key.public.key_id != key_id:
            message = f"invalid ID of the secret key {name}: expected the ID computed from the key"
            raise NoteError(message)
        return key

    @property
    def public(self) -> PublicKey:
        """The public key for verifying signatures."""
        return PublicKey(self.name, self.key.public_key())

    def secret_text(self) -> str:
        """The key as text, for a file that only its owner can read."""
        body = _base64(ED25519 + self.key.private_bytes_raw())
        return f"{_SECRET}{self.name}+{self.public.key_id.hex()}+{body}"


def sign(text: str, signer: SecretKey) -> str:
    """Return the text as a note with one signature. Raises NoteError if the text cannot be signed."""
    _check_text(text)
    return f"{text}\n{signature_line(signer.public, signer.key.sign(text.encode()))}"


def verify_note(note: str, key: PublicKey) -> str:
    """Return the text of a note after verifying the key's signature over it.

    Signatures by other keys are ignored. Raises UnsignedError, ForgedError, NoteError.
    """
    text, own_signatures = signatures_of(note, key)
    if not own_signatures:
        names = ", ".join(name for name, _ in _parts(note)[1])
        message = f"no signature of {key}: signed by {names}"
        raise UnsignedError(message)
    for signature in own_signatures:
        try:
            key.key.verify(signature, text.encode())
        except InvalidSignature as error:
            message = f"invalid signature of {key.name}: it does not match the text"
            raise ForgedError(message) from error
    return text


def signatures_of(note: str, key: PublicKey) -> tuple[str, list[bytes]]:
    """Return a note's text and the signatures of a key: not verified, without the key id.

    Raises NoteError.
    """
    text, signatures = _parts(note)
    own_signatures = [
        s for name, s in signatures if name == key.name and s[:KEY_ID_BYTES] == key.key_id
    ]
    return text, [signature[KEY_ID_BYTES:] for signature in own_signatures]


def signature_line(key: PublicKey, signature: bytes) -> str:
    """Format a signature as a line of a note."""
    return f"{_DASH}{key.name} {_base64(key.key_id + signature)}\n"


def read_note(path: Path) -> str:
    """Read a note from a file, byte for byte. Raises NoteError, OSError."""
    with convert_errors(UnicodeDecodeError, NoteError, "invalid note: expected UTF-8: "):
        return path.read_bytes().decode()


def _parts(note: str) -> tuple[str, list[tuple[str, bytes]]]:
    """Return a note's text and its signatures: key name, key id and signature."""
    if len(note) > MAX_NOTE_BYTES:
        message = f"note too large: expected at most {MAX_NOTE_BYTES} characters"
        raise NoteError(message)
    text, divider, tail = note.rpartition("\n\n")
    if not divider or not tail.endswith("\n"):
        message = "invalid signed note: expected a text, an empty line and signatures"
        raise NoteError(message)
    text += "\n"
    _check_text(text)
    return text, [_signature(line) for line in tail.removesuffix("\n").split("\n")]


def _signature(line: str) -> tuple[str, bytes]:
    name, _, encoded = line.removeprefix(_DASH).partition(" ")
    signature = _decode_base64(encoded)
    if not line.startswith(_DASH) or not _NAME.fullmatch(name) or len(signature) <= KEY_ID_BYTES:
        message = f"invalid signature line: {line[:100]!r}: expected a dash, a name and base64"
        raise NoteError(message)
    return name, signature


def _check_text(text: str) -> None:
    if not text.endswith("\n") or _CONTROL.search(text):
        message = (
            "invalid text of a note: expected a line feed at its end and no other control character"
        )
        raise NoteError(message)


def _key_parts(text: str, noun: str, kind: bytes = ED25519) -> tuple[str, bytes, bytes]:
    name, _, rest = text.partition("+")
    key_id, _, encoded = rest.partition("+")
    body = _decode_base64(encoded)
    if not _NAME.fullmatch(name) or not re.fullmatch("[0-9a-f]{8}", key_id):
        message = f"invalid {noun}: expected name+1a2b3c4d+base64"
        raise NoteError(message)
    if len(body) != 1 + KEY_BYTES or body[:1] != kind:
        message = f"invalid {noun} of {name}: expected an Ed25519 key of kind {kind[0]}"
        raise NoteError(message)
    return name, bytes.fromhex(key_id), body[1:]


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _decode_base64(text: str) -> bytes:
    """Decode canonical base64; empty for any other text."""
    try:
        content = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return b""
    return content if _base64(content) == text else b""


SIZE = re.compile("0|[1-9][0-9]{0,18}")
"""Format of a tree size: decimal without leading zeros."""
NOTHING_SIGNED = "nothing has been signed"
"""Start of the answer (404) to a request for the checkpoint of a log without a signature."""


class CheckpointError(NoteError):
    """A signed text that is not a checkpoint of this log; the message states the reason."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Size and root hash of the log, signed by the log's operator.

    Three lines (origin, size, root in base64) as a signed note, with no extension lines. Source: C2SP
    tlog-checkpoint.
    """

    origin: str
    tree: TreeHead

    @property
    def text(self) -> str:
        """The signed text."""
        return f"{self.origin}\n{self.tree.size}\n{_base64(self.tree.root)}\n"

    def sign(self, signer: SecretKey) -> str:
        """Return the checkpoint as a signed note. Raises NoteError."""
        return sign(self.text, signer)


def read_checkpoint(note: str, key: PublicKey) -> Checkpoint:
    """Return the checkpoint in a note after verifying the key's signature.

    The key's name is the log's origin: one key signs for one log. Raises UnsignedError, ForgedError,
    CheckpointError, NoteError.
    """
    text = verify_note(note, key)
    lines = text.removesuffix("\n").split("\n")
    if len(lines) != len(("origin", "size", "root")) or not SIZE.fullmatch(lines[1]):
        message = f"invalid checkpoint: {text[:100]!r}: expected origin, size and root"
        raise CheckpointError(message)
    origin, size, root = lines
    if origin != key.name:
        message = (
            f"wrong origin of a checkpoint: {origin!r}: expected {key.name!r}, the name of the key"
        )
        raise CheckpointError(message)
    digest = _decode_base64(root)
    if len(digest) != HASH_BYTES:
        message = f"invalid root {root[:100]!r}: expected {HASH_BYTES} bytes in canonical base64"
        raise CheckpointError(message)
    return Checkpoint(origin, TreeHead(int(size), digest))


COSIGNATURE = b"\x04"
_TIME = struct.Struct(">Q")
_LATEST = (1 << 63) - 1
_SIGNATURE_BYTES = 64


def key_name(node: str) -> str:
    """The name of a node's witness key."""
    return quote(node, safe="") or "node"


def witness_key(signer: SecretKey) -> PublicKey:
    """Return the public key for verifying a witness's cosignatures."""
    return PublicKey(signer.name, signer.public.key, COSIGNATURE)


def parse_witness_key(text: str) -> PublicKey:
    """Parse a witness's key from its text. Raises NoteError."""
    return PublicKey.parse(text, COSIGNATURE)


def add_cosignature(note: str, signer: SecretKey, seconds: int) -> str:
    """Return the note with the witness's cosignature at this time added. Raises NoteError.

    It confirms the checkpoint, its time, and consistency with all earlier ones: a signature line by a key of
    type 0x04 over `cosignature/v1`, `time <seconds since the epoch>` and the text of the checkpoint. It
    contains the time as eight bytes, big-endian, followed by the signature. Source: C2SP tlog-cosignature.
    """
    key = witness_key(signer)
    text, _ = signatures_of(note, key)
    signature = signer.key.sign(_message(text, seconds))
    return note + signature_line(key, _TIME.pack(seconds) + signature)


def cosignature_seconds(note: str, key: PublicKey) -> int:
    """Return the time of the witness's latest cosignature, in seconds since the epoch.

    Raises UnsignedError without a cosignature of this key, ForgedError if it is not over this text,
    NoteError.
    """
    text, own_signatures = signatures_of(note, key)
    if not own_signatures:
        message = f"no cosignature of {key}"
        raise UnsignedError(message)
    return max(_check_cosignature(text, signature, key) for signature in own_signatures)


def _check_cosignature(text: str, signature: bytes, key: PublicKey) -> int:
    if len(signature) != _TIME.size + _SIGNATURE_BYTES:
        message = f"invalid cosignature of {key.name}: wrong length"
        raise ForgedError(message)
    (seconds,) = _TIME.unpack_from(signature)
    if seconds > _LATEST:
        message = f"invalid cosignature of {key.name}: its time is out of range"
        raise ForgedError(message)
    try:
        key.key.verify(signature[_TIME.size :], _message(text, seconds))
    except InvalidSignature as error:
        message = f"invalid cosignature of {key.name}: it does not match the text"
        raise ForgedError(message) from error
    return int(seconds)


def _message(text: str, seconds: int) -> bytes:
    if not 0 <= seconds <= _LATEST:
        message = f"invalid time of a cosignature: {seconds}: expected 0 to {_LATEST}"
        raise NoteError(message)
    return f"cosignature/v1\ntime {seconds}\n{text}".encode()
