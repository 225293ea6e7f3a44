"""Signed notes: human-readable texts followed by Ed25519 signatures.

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
from dataclasses import dataclass, field
from pathlib import Path

from nacl.exceptions import BadSignatureError
from nacl.signing import SigningKey, VerifyKey

from railscope import convert_errors
from railscope.audit import AuditFormatError

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
    key: VerifyKey = field(repr=False)
    kind: bytes = ED25519
    """The signature type of C2SP signed-note: determines the signed content."""

    @property
    def raw(self) -> bytes:
        """The key's 32 bytes."""
        return bytes(self.key)

    @property
    def key_id(self) -> bytes:
        """Four bytes that distinguish keys with the same name."""
        digest = hashlib.sha256(self.name.encode() + b"\n" + self.kind + self.raw)
        return digest.digest()[:KEY_ID_BYTES]

    def __str__(self) -> str:
        return f"{self.name}+{self.key_id.hex()}+{encode_base64(self.kind + self.raw)}"

    @classmethod
    def parse(cls, text: str, kind: bytes = ED25519) -> PublicKey:
        """Parse a key of this type. Raises NoteError."""
        if text.strip().startswith(_SECRET):
            message = "invalid public key: this is a secret key; fix: give the public key, and replace the secret one if others read it"
            raise NoteError(message)
        name, key_id, raw = _key_parts(text.strip(), "public key", kind)
        key = cls(name, VerifyKey(raw), kind)
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
    key: SigningKey = field(repr=False)

    @classmethod
    def generate(cls, name: str) -> SecretKey:
        """Generate a key. Raises NoteError for an invalid key name."""
        if not _NAME.fullmatch(name):
            message = f"invalid name of a key {name!r}: expected no spaces and no plus signs"
            raise NoteError(message)
        return cls(name, SigningKey.generate())

    @classmethod
    def parse(cls, text: str) -> SecretKey:
        """Parse a secret key. Raises NoteError, with a message that contains nothing of the key."""
        stripped = text.strip()
        if not stripped.startswith(_SECRET):
            message = f"invalid secret key: expected {_SECRET} at its start"
            raise NoteError(message)
        name, key_id, seed = _key_parts(stripped.removeprefix(_SECRET), "secret key")
        key = cls(name, SigningKey(seed))
        if key.public.key_id != key_id:
            message = f"invalid ID of the secret key {name}: expected the ID computed from the key"
            raise NoteError(message)
        return key

    @property
    def public(self) -> PublicKey:
        """The public key for verifying signatures."""
        return PublicKey(self.name, self.key.verify_key)

    def secret_text(self) -> str:
        """The key as text, for a file that only its owner can read."""
        body = encode_base64(ED25519 + bytes(self.key))
        return f"{_SECRET}{self.name}+{self.public.key_id.hex()}+{body}"


def sign(text: str, signer: SecretKey) -> str:
    """Return the text as a note with one signature. Raises NoteError if the text cannot be signed."""
    _check_text(text)
    return f"{text}\n{signature_line(signer.public, signer.key.sign(text.encode()).signature)}"


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
            key.key.verify(text.encode(), signature)
        except (BadSignatureError, ValueError) as error:
            message = f"invalid signature of {key.name}: it does not match the text"
            raise ForgedError(message) from error
    return text


def verify_own_note(note: str, key: PublicKey) -> str:
    """Return the text of a note that this key, and no other one, has signed once.

    Raises UnsignedError, ForgedError, NoteError.
    """
    text = verify_note(note, key)
    # Signatures of other keys are not verified: anything could be hidden in them.
    if note.count("\n") != text.count("\n") + 2:
        message = f"invalid signatures of a note: expected one, that of {key.name}"
        raise NoteError(message)
    return text


def signatures_of(note: str, key: PublicKey) -> tuple[str, list[bytes]]:
    """Return a note's text and the signatures of a key: not verified, without the key id.

    Raises NoteError.
    """
    text, signatures = _parts(note)
    # By name and ID, as C2SP signed-note requires: keys of other signers may have the same name.
    own_signatures = [
        s for name, s in signatures if name == key.name and s[:KEY_ID_BYTES] == key.key_id
    ]
    return text, [signature[KEY_ID_BYTES:] for signature in own_signatures]


def signature_line(key: PublicKey, signature: bytes) -> str:
    """Format a signature as a line of a note."""
    return f"{_DASH}{key.name} {encode_base64(key.key_id + signature)}\n"


def read_note(path: Path) -> str:
    """Read a note from a file, byte for byte. Raises NoteError, OSError."""
    with convert_errors(UnicodeDecodeError, NoteError, "invalid note: expected UTF-8: "):
        return path.read_bytes().decode()


def _parts(note: str) -> tuple[str, list[tuple[str, bytes]]]:
    """Return a note's text and its signatures: key name, key id and signature."""
    if len(note) > MAX_NOTE_BYTES:
        message = f"note too large: expected at most {MAX_NOTE_BYTES} characters"
        raise NoteError(message)
    # The last empty line: the text may contain empty lines itself.
    text, divider, tail = note.rpartition("\n\n")
    if not divider or not tail.endswith("\n"):
        message = "invalid signed note: expected a text, an empty line and signatures"
        raise NoteError(message)
    text += "\n"
    _check_text(text)
    return text, [_signature(line) for line in tail.removesuffix("\n").split("\n")]


def _signature(line: str) -> tuple[str, bytes]:
    name, _, encoded = line.removeprefix(_DASH).partition(" ")
    signature = decode_base64(encoded)
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
    body = decode_base64(encoded)
    if not _NAME.fullmatch(name) or not re.fullmatch("[0-9a-f]{8}", key_id):
        message = f"invalid {noun}: expected name+1a2b3c4d+base64"
        raise NoteError(message)
    if len(body) != 1 + KEY_BYTES or body[:1] != kind:
        message = f"invalid {noun} of {name}: expected an Ed25519 key of kind {kind[0]}"
        raise NoteError(message)
    return name, bytes.fromhex(key_id), body[1:]


def encode_base64(content: bytes) -> str:
    """Encode as canonical base64."""
    return base64.b64encode(content).decode()


def decode_base64(text: str) -> bytes:
    """Decode canonical base64; empty for any other text."""
    try:
        content = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return b""
    # Python accepts unused bits that are not zero: the same bytes would have several texts.
    return content if encode_base64(content) == text else b""
