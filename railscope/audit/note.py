"""Signed notes: a human-readable text followed by Ed25519 signatures.

  text, each line ended by a line feed
  (an empty line)
  — key-name base64(key id || signature)

The key id is the first four bytes of SHA-256(name || LF || 0x01 || public key). A public key is encoded
as `name+keyid+base64(0x01 || public key)`, a secret key as
`PRIVATE+KEY+name+keyid+base64(0x01 || seed)`. Source: C2SP signed-note; golang.org/x/mod/sumdb/note.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

ED25519 = b"\x01"
KEY_BYTES = 32
KEY_ID_BYTES = 4
MAX_NOTE_BYTES = 1_000_000
_DASH = "\N{EM DASH} "
_SECRET = "PRIVATE+KEY+"  # noqa: S105 - prefix of every secret key, not a secret
_NAME = re.compile(r"[^\s+]+")
_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f]")


class NoteError(ValueError):
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
        found = cls(name, Ed25519PublicKey.from_public_bytes(raw), kind)
        if found.key_id != key_id:
            message = f"the key of {name} does not have the id {key_id.hex()} it is given with"
            raise NoteError(message)
        return found


@dataclass(frozen=True, slots=True)
class SecretKey:
    """Secret key of a signer."""

    name: str
    key: Ed25519PrivateKey = field(repr=False)

    @classmethod
    def generate(cls, name: str) -> SecretKey:
        """Generate a key. Raises NoteError for an invalid key name."""
        if not _NAME.fullmatch(name):
            message = f"{name!r} cannot name a key: no spaces and no plus signs"
            raise NoteError(message)
        return cls(name, Ed25519PrivateKey.generate())

    @classmethod
    def parse(cls, text: str) -> SecretKey:
        """Parse a secret key. Raises NoteError, with a message that contains nothing of the key."""
        stripped = text.strip()
        if not stripped.startswith(_SECRET):
            message = f"no secret key: it must begin with {_SECRET}"
            raise NoteError(message)
        name, key_id, seed = _key_parts(stripped.removeprefix(_SECRET), "secret key")
        found = cls(name, Ed25519PrivateKey.from_private_bytes(seed))
        if found.public.key_id != key_id:
            message = f"the secret key of {name} does not have the id it is given with"
            raise NoteError(message)
        return found

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


def verified(note: str, key: PublicKey) -> str:
    """Return the text of a note after verifying the key's signature over it.

    Signatures by other keys are ignored. Raises UnsignedError, ForgedError, NoteError.
    """
    text, ours = signatures_of(note, key)
    if not ours:
        names = ", ".join(name for name, _ in _parts(note)[1])
        message = f"not signed by {key}; signed by {names}"
        raise UnsignedError(message)
    for signature in ours:
        try:
            key.key.verify(signature, text.encode())
        except InvalidSignature as error:
            message = f"the signature of {key.name} is not over this text"
            raise ForgedError(message) from error
    return text


def signatures_of(note: str, key: PublicKey) -> tuple[str, list[bytes]]:
    """Return a note's text and the signatures of a key: not verified, without the key id.

    Raises NoteError.
    """
    text, signatures = _parts(note)
    ours = [s for name, s in signatures if name == key.name and s[:KEY_ID_BYTES] == key.key_id]
    return text, [signature[KEY_ID_BYTES:] for signature in ours]


def signature_line(key: PublicKey, signature: bytes) -> str:
    """Format a signature as a line of a note."""
    return f"{_DASH}{key.name} {_base64(key.key_id + signature)}\n"


def read_note(path: Path) -> str:
    """Read a note from a file, byte for byte. Raises NoteError, OSError."""
    try:
        return path.read_bytes().decode()
    except UnicodeDecodeError as error:
        message = f"no text: {error}"
        raise NoteError(message) from error


def _parts(note: str) -> tuple[str, list[tuple[str, bytes]]]:
    """Return a note's text and its signatures: key name, key id and signature."""
    if len(note) > MAX_NOTE_BYTES:
        message = f"a note of more than {MAX_NOTE_BYTES} characters"
        raise NoteError(message)
    text, divider, tail = note.rpartition("\n\n")
    if not divider or not tail.endswith("\n"):
        message = "no signed note: a text, an empty line and signatures were expected"
        raise NoteError(message)
    text += "\n"
    _check_text(text)
    return text, [_signature(line) for line in tail.removesuffix("\n").split("\n")]


def _signature(line: str) -> tuple[str, bytes]:
    name, _, encoded = line.removeprefix(_DASH).partition(" ")
    signature = _decoded(encoded)
    if not line.startswith(_DASH) or not _NAME.fullmatch(name) or len(signature) <= KEY_ID_BYTES:
        message = f"not a signature line: {line[:100]!r}"
        raise NoteError(message)
    return name, signature


def _check_text(text: str) -> None:
    if not text.endswith("\n") or _CONTROL.search(text):
        message = "the text of a note ends with a line feed and holds no other control character"
        raise NoteError(message)


def _key_parts(text: str, what: str, kind: bytes = ED25519) -> tuple[str, bytes, bytes]:
    name, _, rest = text.partition("+")
    key_id, _, encoded = rest.partition("+")
    body = _decoded(encoded)
    if not _NAME.fullmatch(name) or not re.fullmatch("[0-9a-f]{8}", key_id):
        message = f"no {what}: it must look like name+1a2b3c4d+base64"
        raise NoteError(message)
    if len(body) != 1 + KEY_BYTES or body[:1] != kind:
        message = f"the {what} of {name} is no Ed25519 key of kind {kind[0]}"
        raise NoteError(message)
    return name, bytes.fromhex(key_id), body[1:]


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _decoded(text: str) -> bytes:
    """Decode canonical base64; empty for any other text."""
    try:
        content = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return b""
    return content if _base64(content) == text else b""
