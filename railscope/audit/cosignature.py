"""Cosignatures: a witness confirms a checkpoint, its time, and consistency with all earlier ones.

A signature line below the note, by a key of type 0x04, over

  cosignature/v1
  time <seconds since the epoch>
  <text of the checkpoint>

It contains the time as eight bytes, big-endian, followed by the Ed25519 signature. Source: C2SP
tlog-cosignature.
"""

from __future__ import annotations

import struct
from urllib.parse import quote

from cryptography.exceptions import InvalidSignature

from railscope.audit.note import (
    ForgedError,
    NoteError,
    PublicKey,
    SecretKey,
    UnsignedError,
    signature_line,
    signatures_of,
)

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


def cosigned(note: str, signer: SecretKey, seconds: int) -> str:
    """Return the note with the witness's cosignature at this time added. Raises NoteError."""
    key = witness_key(signer)
    text, _ = signatures_of(note, key)
    signature = signer.key.sign(_message(text, seconds))
    return note + signature_line(key, _TIME.pack(seconds) + signature)


def witnessed(note: str, key: PublicKey) -> int:
    """Return the time of the witness's latest cosignature, in seconds since the epoch.

    Raises UnsignedError without a cosignature of this key, ForgedError if it is not over this text,
    NoteError.
    """
    text, ours = signatures_of(note, key)
    if not ours:
        message = f"not cosigned by {key}"
        raise UnsignedError(message)
    latest = 0
    for signature in ours:
        seconds = _checked(text, signature, key)
        latest = max(latest, seconds)
    return latest


def _checked(text: str, signature: bytes, key: PublicKey) -> int:
    if len(signature) != _TIME.size + _SIGNATURE_BYTES:
        message = f"the cosignature of {key.name} has a wrong length"
        raise ForgedError(message)
    (seconds,) = _TIME.unpack_from(signature)
    if seconds > _LATEST:
        message = f"the cosignature of {key.name} is of no time there is"
        raise ForgedError(message)
    try:
        key.key.verify(signature[_TIME.size :], _message(text, seconds))
    except InvalidSignature as error:
        message = f"the cosignature of {key.name} is not over this text"
        raise ForgedError(message) from error
    return int(seconds)


def _message(text: str, seconds: int) -> bytes:
    if not 0 <= seconds <= _LATEST:
        message = f"{seconds} is no time of a cosignature"
        raise NoteError(message)
    return f"cosignature/v1\ntime {seconds}\n{text}".encode()
